"""The gate of one upstream wherever it is: here, at another door, or, for a while, nowhere.

Requests meet the same face as that of a `GateDriver`: `enter` gives a lease that is decided at once
or later. Behind it is the cluster. While this door owns the gates there is a real one here, and the
tickets of all doors are in it.
"""

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from tornado_frontdoor.core.decisions import (
    Admit,
    Answered,
    EngineState,
    Outcome,
    Refusal,
    SleepDepth,
    Verdict,
)
from tornado_frontdoor.core.refusals import asleep_refusal
from tornado_frontdoor.core.request import Ticket, TicketState, UpstreamKey, WakeTerms
from tornado_frontdoor.proxy.cluster.door import ClusterDoor
from tornado_frontdoor.proxy.gate_driver import AdmissionLimits, GateDriver, Lease, Lingering

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
        self.sleep_levels = frozenset(view.get("sleep_levels", ()))
        self.replicas = None
        """Each door picks by itself; the owner shows one gate, whatever stands behind it."""

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

    def idle_for_s(self) -> float | None:
        """Return the time since a request last came or ended, as the owner told it."""
        idle_s: float | None = self._view.get("idle_s")
        return idle_s


class SharedGate:
    """One upstream at one door of the cluster.

    `build` makes the gate that this door drives while it owns it; `count` asks the engine how much
    it runs; `wish` does at the gate here what an operator wants.
    """

    def __init__(
        self,
        door: ClusterDoor,
        address: str,
        key: UpstreamKey,
        limits: Callable[[], AdmissionLimits],
        build: Callable[[int | None, Mapping[str, str]], tuple[GateDriver, Callable[[], None]]],
        count: Callable[[], Any],
        wish: Callable[[int], Any],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.address = address
        self.key = key
        self.driver: GateDriver | None = None
        self._door = door
        self._limits = limits
        self._build = build
        self._drop: Callable[[], None] = _nothing
        self._count = count
        self._wish = wish
        self._leases: dict[int, Lease] = {}
        self._split = False
        door.gates[address] = self

    @property
    def gate(self) -> Any:
        """The gate as this door knows it: its own, or what the owner shows."""
        if self.driver is not None and not self._split:
            return self.driver.gate
        view = _NOTHING if self._split else self._door.node.views.get(self.address, _NOTHING)
        shown = GateView(self.key, self._limits(), view)
        if self.driver is not None:
            own = self.driver.gate
            shown.in_flight, shown.queued, shown.state = own.in_flight, own.queued, own.state
        return shown

    # Requests of this door

    def enter(
        self,
        weight: int = 1,
        terms: WakeTerms | None = None,
        request_id: str = "",  # noqa: ARG002 - the owner knows its tickets by number
    ) -> Lease:
        """Bring a request to the gate; who wakes nobody is judged by what this door knows."""
        ticket = Ticket(weight)
        depth = self.gate.sleep_depth
        if terms is not None and not terms.wakes and depth is not None:
            left_s = self.gate.expected_wait_s(0)
            ticket.state = TicketState.GONE
            lease = Lease(self, ticket)
            lease.decide(asleep_refusal(self.key, self.gate.state, depth, left_s))
            return lease
        ticket.arrived_s = monotonic()
        ticket.state = TicketState.QUEUED
        ticket.number = self._door.new_number(self.address)
        lease = self._leases[ticket.number] = Lease(self, ticket)
        self._door.enter(ticket.number, self.address, weight)
        return lease

    def may_start(self, ticket: Ticket) -> bool:
        """Tell whether an admitted request may go to its engine now."""
        return self._door.may_start(ticket.number)

    def finish(self, ticket: Ticket, outcome: Outcome) -> None:
        """End a request."""
        ticket.state = TicketState.GONE
        self._leases.pop(ticket.number, None)
        self._door.finish(ticket.number, outcome)

    def cool(self, ticket: Ticket, outcome: Outcome, lingering: Lingering) -> None:
        """End a request once its engine has let go of it, or the limit for that has come."""
        ticket.state = TicketState.COOLING
        self._door.cool(ticket.number)

        def end() -> None:
            timer.cancel()
            lingering.close()
            self.finish(ticket, outcome)

        timer = self.loop.call_later(self._limits().cooling_limit_s, end)
        lingering.on_over = end

    def granted(self, number: int, waited_s: float, paused_s: float) -> None:
        """Take that a request may start."""
        lease = self._leases.get(number)
        if lease is not None:
            lease.ticket.state = TicketState.IN_FLIGHT
            lease.decide(Admit(lease.ticket, waited_s, paused_s))

    def refused(self, number: int, refusal: Refusal) -> None:
        """Take that a request is gone."""
        lease = self._leases.pop(number, None)
        if lease is not None:
            lease.ticket.state = TicketState.GONE
            lease.decide(refusal._replace(upstream=self.key))

    # What the cluster wants

    def open(self, share: int | None, journal: Mapping[str, str]) -> GateDriver:
        """Make a fresh gate; with `share` instead of the cap, and no engine."""
        self._split = share is not None
        self.driver, self._drop = self._build(share, journal)
        return self.driver

    def begin(self) -> None:
        """Let the gate look at its engine."""
        if self.driver is not None:
            self.driver.begin()

    def close_gate(self) -> None:
        """Drop the gate; nothing of it has any effect any more."""
        if self.driver is not None:
            self.driver.close()
            self._drop()
        self.driver, self._drop, self._split = None, _nothing, False

    def view(self) -> Mapping[str, Any]:
        """Return the gate as other doors show it."""
        if self.driver is None:
            return _NOTHING
        gate = self.driver.gate
        depth = gate.sleep_depth
        return {
            "state": gate.state.value,
            "sleep_depth": None if depth is None else depth.value,
            "sleep_support": gate.sleep_support,
            "sleep_fault": gate.sleep_fault,
            "wake_step": gate.wake_step,
            "wake_steps": gate.wake_steps,
            "transition_s": gate.transition_s,
            "waits_for": gate.waits_for,
            "makes_room": gate.makes_room,
            "sleep_levels": sorted(gate.sleep_levels),
            "wake_trouble": gate.wake_trouble(),
            "wakes_total": gate.wakes_total,
            "learned_s": gate.learned_s,
            "idle_s": gate.idle_for_s(),
            "oldest_wait_s": gate.oldest_wait_s,
            "in_flight": gate.in_flight,
            "cooling": gate.cooling,
            "queued": gate.queued,
        }

    async def sample(self) -> int | None:
        """Return how many sequences the engine runs and keeps waiting; None: it does not tell."""
        busy: int | None = await self._count()
        return busy

    async def grant_wish(self, level: int) -> Answered:
        """Do what an operator wants of the engine, here where its gate is."""
        if self.driver is None:
            return Answered("", Verdict.FAILED, "the gates have just gone to another front door")
        answered: Answered = await self._wish(level)
        return answered

    # What the proxy wants of any gate

    def drain(self) -> None:
        """Refuse nobody: those inside go on as the cluster's, until the front door is closed."""

    def close(self) -> None:
        """Drop the gate."""
        self.close_gate()


def _nothing() -> None:
    pass
