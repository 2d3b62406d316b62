"""A gate that is not here: at another front door, or at the process that has taken over from this.

Requests meet the same face as that of a `GateDriver`: `enter` gives a lease that is decided at once
or later. What is decided comes from where the gate is, in `granted` and `refused`.
"""

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Protocol

from tornado_frontdoor.core.decisions import (
    Admit,
    EngineState,
    Outcome,
    Refusal,
    SleepDepth,
)
from tornado_frontdoor.core.replicas import EngineReplica
from tornado_frontdoor.core.request import CallerFacts, Ticket, TicketState, UpstreamKey, WakeTerms
from tornado_frontdoor.core.standing import NOTHING
from tornado_frontdoor.core.wake.policy import KeepAlive
from tornado_frontdoor.proxy.gate_driver import AdmissionLimits, Lease, Lingering

_NOTHING: Mapping[str, Any] = {}


class GateView:
    """A gate at another door, as its owner last showed it; what it has not shown is unknown."""

    def __init__(self, key: UpstreamKey, limits: AdmissionLimits, view: Mapping[str, Any]) -> None:
        self.key = key
        self.limits = limits
        self._view = view
        self.in_flight = int(view.get("in_flight", 0))
        self.cooling = int(view.get("cooling", 0))
        self.queued = int(view.get("queued", 0))
        self.wakes_total = int(view.get("wakes_total", 0))
        self.state = EngineState(view.get("state", EngineState.UNKNOWN.value))
        depth = view.get("sleep_depth")
        self.sleep_depth = None if depth is None else SleepDepth(depth)
        self.sleep_support: bool | None = view.get("sleep_support")
        self.sleep_fault: str | None = view.get("sleep_fault")
        self.wake_step: str | None = view.get("wake_step")
        self.wake_steps: tuple[str, ...] = tuple(view.get("wake_steps", ()))
        self.transition_s: float | None = view.get("transition_s")
        self.oldest_wait_s: float | None = view.get("oldest_wait_s")
        self.learned_s: dict[str, float] = dict(view.get("learned_s", {}))
        self.waits_for: str | None = view.get("waits_for")
        self.makes_room = bool(view.get("makes_room", False))
        self.standing = NOTHING  # nobody keeps orders for a gate that is elsewhere
        self.keep_alive: KeepAlive | None = None
        self.takes_gib: dict[str, float] = dict(view.get("takes_gib", {}))
        self.proof: dict[str, object] | None = view.get("proof")
        self.sleep_levels = frozenset(view.get("sleep_levels", ()))
        self.returns_expected = self.returns_kept = self.came_back = self.stayed_away = 0
        """Nobody: who asks is not told to other doors, so nobody is known again."""
        self.replicas: list[EngineReplica] | None = None
        if view.get("replicas"):
            self.replicas = [
                EngineReplica(name, slots, used, up, drained)
                for name, slots, used, up, drained, *_ in view["replicas"]
            ]

    def sleep_of(self, replica: str) -> dict[str, object] | None:
        """Return how one of several engines sleeps, as the owner told it."""
        told = {one[0]: one[5:] for one in self._view.get("replicas", ())}
        sleep: list[dict[str, object] | None] = told.get(replica, [])
        return sleep[0] if sleep else None

    def waiting(self) -> tuple[Ticket, ...]:
        """Nobody: the queue is the owner's, and its tickets are not shown."""
        return ()

    def expected_wait_s(self, place: int) -> float:  # noqa: ARG002 - a gate's own knows places
        """Return how long the oldest has waited: the owner shows no more."""
        return self.oldest_wait_s or 0.0

    def wake_trouble(self) -> str | None:
        """Say why no wake begins although it is wanted, as the owner told it."""
        trouble: str | None = self._view.get("wake_trouble")
        return trouble

    @property
    def down_why(self) -> str:
        """Why the engine is down, as the owner told it."""
        return str(self._view.get("down_why", ""))

    def idle_for_s(self) -> float | None:
        """Return the time since a request last came or ended, as the owner told it."""
        idle_s: float | None = self._view.get("idle_s")
        return idle_s


def view_of(gate: Any) -> dict[str, Any]:
    """Return a gate as it is shown elsewhere."""
    depth = gate.sleep_depth
    return {
        "state": gate.state.value,
        "sleep_depth": None if depth is None else depth.value,
        "sleep_support": gate.sleep_support,
        "sleep_fault": gate.sleep_fault,
        "wake_step": gate.wake_step,
        "wake_steps": gate.wake_steps,
        "transition_s": gate.transition_s,
        "takes_gib": gate.takes_gib,
        "proof": gate.proof,
        "waits_for": gate.waits_for,
        "makes_room": gate.makes_room,
        "sleep_levels": sorted(gate.sleep_levels),
        "wake_trouble": gate.wake_trouble(),
        "down_why": gate.down_why,
        "wakes_total": gate.wakes_total,
        "learned_s": gate.learned_s,
        "idle_s": gate.idle_for_s(),
        "oldest_wait_s": gate.oldest_wait_s,
        "in_flight": gate.in_flight,
        "cooling": gate.cooling,
        "queued": gate.queued,
        "replicas": [
            [one.name, one.slots, one.used, one.up, one.drained, gate.sleep_of(one.name)]
            for one in gate.replicas or ()
        ],
    }


class WayToGates(Protocol):
    """How requests of this process are brought to the gates, and what is known of those."""

    @property
    def views(self) -> Mapping[str, Mapping[str, Any]]:
        """The gates by address, as they were last shown."""
        ...

    def new_number(self, address: str) -> int:
        """Return a number for a request of this upstream."""
        ...

    def enter(
        self, number: int, address: str, weight: int, affinity: str, terms: WakeTerms | None
    ) -> None:
        """Bring a new request. What is decided is told to its gate here."""
        ...

    def may_start(self, number: int) -> bool:
        """Tell whether a granted request may go to its engine now."""
        ...

    def finish(self, number: int, outcome: Outcome) -> None:
        """End a request, wherever it is."""
        ...

    def cool(self, number: int) -> None:
        """Take that a request was broken off: its engine may not count it any more."""
        ...

    def lost(self, address: str, replica: str, why: str) -> None:
        """Take that nobody answers at an upstream's engine, or at that one of several, and why."""
        ...


class DistantGate:
    """One upstream whose gate is elsewhere."""

    full = False
    """Whether whoever comes now is refused is not known here."""

    def __init__(
        self,
        way: WayToGates,
        address: str,
        key: UpstreamKey,
        limits: Callable[[], AdmissionLimits],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.address = address
        self.key = key
        self._way = way
        self._limits = limits
        self._leases: dict[int, Lease] = {}

    @property
    def gate(self) -> Any:
        """The gate as it was last shown."""
        return GateView(self.key, self._limits(), self._way.views.get(self.address, _NOTHING))

    # Requests

    def enter(
        self,
        weight: int = 1,
        waited_s: float = 0.0,
        affinity: bytes | None = None,
        terms: WakeTerms | None = None,
        request_id: str = "",
        caller: CallerFacts | None = None,  # noqa: ARG002 - who asks is not told to other doors
    ) -> Lease:
        """Bring a request to the gate."""
        ticket = Ticket(weight)
        ticket.arrived_s = monotonic() - waited_s
        ticket.state = TicketState.QUEUED
        ticket.affinity, ticket.terms, ticket.request_id = affinity, terms, request_id
        lease = Lease(self, ticket)
        self.take(lease)
        text = (affinity or b"").hex()
        self._way.enter(ticket.number, self.address, weight, text, terms)
        return lease

    def take(self, lease: Lease) -> None:
        """Have a lease that was of another gate, under a number of its own."""
        lease.ticket.number = self._way.new_number(self.address)
        lease.moved_to(self)
        self._leases[lease.ticket.number] = lease

    def waits(self, number: int) -> bool:
        """Tell whether a request has not been decided upon."""
        lease = self._leases.get(number)
        return lease is not None and lease.ticket.state is TicketState.QUEUED

    def lost(self, replica: str, why: str) -> None:
        """Take that nobody answers at the engine, or at that one of several, and why."""
        self._way.lost(self.address, replica, why)

    def may_start(self, ticket: Ticket) -> bool:
        """Tell whether an admitted request may go to its engine now."""
        return self._way.may_start(ticket.number)

    def finish(self, ticket: Ticket, outcome: Outcome) -> None:
        """End a request."""
        ticket.state = TicketState.GONE
        self._leases.pop(ticket.number, None)
        self._way.finish(ticket.number, outcome)

    def cool(self, ticket: Ticket, outcome: Outcome, lingering: Lingering) -> None:
        """End a request once its engine has let go of it, or the limit for that has come."""
        ticket.state = TicketState.COOLING
        self._way.cool(ticket.number)

        def end() -> None:
            timer.cancel()
            lingering.close()
            self.finish(ticket, outcome)

        timer = self.loop.call_later(self._limits().cooling_limit_s, end)
        lingering.on_over = end

    # What was decided

    def granted(self, number: int, waited_s: float, paused_s: float, replica: str) -> None:
        """Take that a request may start, on that one of several engines."""
        lease = self._leases.get(number)
        if lease is not None:
            lease.ticket.state = TicketState.IN_FLIGHT
            lease.ticket.replica = replica or None
            lease.decide(Admit(lease.ticket, waited_s, paused_s))

    def refused(self, number: int, refusal: Refusal) -> None:
        """Take that a request is gone."""
        lease = self._leases.pop(number, None)
        if lease is not None:
            lease.ticket.state = TicketState.GONE
            lease.decide(refusal._replace(upstream=self.key))

    # What the proxy wants of any gate

    def drain(self) -> None:
        """Refuse nobody: those inside go on where the gate is, until this process ends."""

    def close(self) -> None:
        """Do nothing: the gate is not here."""
