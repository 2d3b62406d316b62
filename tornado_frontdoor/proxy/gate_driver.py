"""The only driver of a Gate in production: a lease for each request, one timer for all.

Every decision comes from the gate. The keeper tells it what happens (someone arrives, ends, a limit
comes) and carries out what it answers; no semaphore and no `wait_for` is near a grant, because both
lose a slot that is granted and given up in the same turn of the loop.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from time import monotonic
from typing import Protocol

from tornado_frontdoor.core.decisions import (
    Admit,
    Command,
    Cooled,
    Decision,
    Notice,
    OfReplica,
    Outcome,
    Perform,
    Refusal,
    Refuse,
    Remember,
)
from tornado_frontdoor.core.gate import AdmissionLimits, Gate, SleepConfig, SleepPolicy
from tornado_frontdoor.core.replica_gate import ReplicaGate
from tornado_frontdoor.core.replicas import Engines, Replicas
from tornado_frontdoor.core.request import (
    CallerFacts,
    Ticket,
    TicketState,
    UpstreamKey,
    WakeTerms,
)
from tornado_frontdoor.core.sleeper import Sleeper
from tornado_frontdoor.core.standing import Standing
from tornado_frontdoor.engines.base import Report, StepResult

__all__ = [
    "AdmissionLimits",
    "Engines",
    "GateDriver",
    "Lease",
    "MonotonicClock",
    "SleepConfig",
    "SleepPolicy",
    "Sleeper",
]

LOG = logging.getLogger("frontdoor")

_OVER = (TicketState.GONE, TicketState.COOLING)
EngineOrder = Command | Notice | OfReplica  # what a gate wants done to an engine, or known of it


class MonotonicClock:
    """The machine's monotonic clock, which asyncio's timers run by too."""

    __slots__ = ()

    now = staticmethod(monotonic)
    """Return the current instant in seconds."""


class Lingering(Protocol):
    """What is left of a call that was broken off, until its engine has let go of it."""

    on_over: Callable[[], None] | None

    @property
    def over(self) -> bool:
        """Whether it has."""
        ...

    def close(self) -> None:
        """Wait for it no longer."""
        ...


class Keeper(Protocol):
    """Who a lease is of: the driver of a gate here, or the way to one at another front door."""

    loop: asyncio.AbstractEventLoop

    def finish(self, ticket: Ticket, outcome: Outcome) -> None:
        """End a ticket wherever it is."""
        ...

    def cool(self, ticket: Ticket, outcome: Outcome, lingering: Lingering) -> None:
        """End a ticket once its engine has let go of it."""
        ...

    def may_start(self, ticket: Ticket) -> bool:
        """Tell whether an admitted ticket may go to its engine now."""
        ...


class Lease:
    """A ticket in the hands of one request; `close` gives back whatever it holds.

    Look at `decision` first: most need not wait. Whoever must sets `on_decision`, which is called
    once, on a turn of its own, unless the lease is closed before.
    """

    __slots__ = ("_keeper", "decision", "on_decision", "ticket")

    def __init__(self, keeper: Keeper, ticket: Ticket) -> None:
        self._keeper = keeper
        self.ticket = ticket
        self.decision: Admit | Refusal | None = None
        self.on_decision: Callable[[Admit | Refusal], None] | None = None

    def moved_to(self, keeper: Keeper) -> None:
        """Be of another gate from now on, wherever the ticket stands."""
        self._keeper = keeper

    def may_start(self) -> bool:
        """Tell whether the engine may be asked now; if not, `on_decision` is called again."""
        return self._keeper.may_start(self.ticket)

    def close(self, outcome: Outcome, lingering: Lingering | None = None) -> None:
        """End the ticket wherever it is, once the transfer is over; again it does nothing.

        Where the transfer was broken off its slots cool until `lingering` is over.
        """
        self.on_decision = None
        if self.ticket.state in _OVER:
            return
        if lingering is None or lingering.over:
            self._keeper.finish(self.ticket, outcome)
        else:
            self._keeper.cool(self.ticket, outcome, lingering)

    def decide(self, decision: Admit | Refusal) -> None:
        """Take what the gate decided."""
        self.decision = decision
        if self.on_decision is not None:
            # On a turn of its own: whoever caused this is in the middle of something.
            self._keeper.loop.call_soon(self._tell)

    def _tell(self) -> None:
        if self.on_decision is not None:  # closed meanwhile: then nobody wants to know
            assert self.decision is not None
            self.on_decision(self.decision)


def _no_engine(decision: EngineOrder) -> None:
    raise AssertionError(f"a gate without an engine to wake decided {decision}")


def _nothing() -> None:
    """Do nothing."""


class GateDriver:
    """Drives the gate of one upstream. Must be made within a running loop."""

    def __init__(
        self,
        key: UpstreamKey,
        limits: AdmissionLimits,
        rng: Random,
        nap: SleepConfig | None = None,
        engines: Engines | None = None,
        naps: Mapping[str, SleepConfig] | None = None,
    ) -> None:
        """`naps`: the sleep of each of several engines, by its address."""
        self.loop = asyncio.get_running_loop()
        clock = MonotonicClock()
        if naps is not None:
            assert engines is not None
            self.gate: Gate = ReplicaGate(key, limits, clock, rng, engines, naps)
        else:
            replicas = Replicas(engines, clock.now()) if engines is not None else None
            self.gate = Gate(key, limits, clock, rng, nap, replicas)
        self.on_command: Callable[[EngineOrder], None] = _no_engine
        """Carries out what the gate wants done to its engine, in order; set before `begin`."""
        self.on_rest: Callable[[], None] | None = None
        """Called each time when nobody is inside and no transition is under way."""
        self.on_cooling: Callable[[], None] = _nothing
        """Called when a slot begins to cool."""
        self._waiting: dict[Ticket, Lease] = {}
        self._cooling: dict[Ticket, Lingering] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._given = False

    def enter(
        self,
        weight: int = 1,
        waited_s: float = 0.0,
        affinity: bytes | None = None,
        terms: WakeTerms | None = None,
        request_id: str = "",
        caller: CallerFacts | None = None,
    ) -> Lease:
        """Bring a new ticket to the gate; the lease knows at once if it need not wait."""
        ticket = Ticket(weight)
        ticket.affinity = affinity
        ticket.terms = terms
        ticket.request_id = request_id
        ticket.caller = caller
        lease = Lease(self, ticket)
        self._waiting[ticket] = lease
        self._carry_out(self.gate.arrive(ticket, waited_s))
        return lease

    def adopt(self, weight: int, replica: str | None = None) -> Lease:
        """Bring a ticket that is in flight already, on that one of several engines."""
        ticket = Ticket(weight)
        ticket.replica = replica
        self._carry_out(self.gate.adopt(ticket))
        return Lease(self, ticket)

    def may_start(self, _: Ticket) -> bool:
        """Tell that it may: nobody but this gate has let anybody in."""
        return True

    @property
    def full(self) -> bool:
        """Whether whoever comes now is refused: every slot and every place is taken."""
        limits = self.gate.limits
        if limits.cap is None:
            return False
        taken = self.gate.in_flight + self.gate.cooling
        return taken >= limits.cap and self.gate.queued >= limits.queue

    def finish(self, ticket: Ticket, outcome: Outcome) -> None:
        """Tell the gate that a ticket ended."""
        self._waiting.pop(ticket, None)
        self._carry_out(self.gate.finish(ticket, outcome))

    def cool(self, ticket: Ticket, outcome: Outcome, lingering: Lingering) -> None:
        """Tell the gate that a call was broken off, and later that its engine let go of it."""
        if self._closed:
            lingering.close()
        self._cooling[ticket] = lingering
        lingering.on_over = lambda: self._let_go(ticket, outcome)
        self._carry_out(self.gate.cool(ticket, outcome))
        self.on_cooling()

    def cooling_at(self, engine: str | None) -> set[Ticket]:
        """Return whose slots cool at one of several engines, or at the only one (None)."""
        return {one for one in self._cooling if engine in (None, one.replica)}

    def count_free(self, slots: int, tickets: Collection[Ticket]) -> None:
        """Take that so many of these slots are free by the engine's count."""
        for ticket in sorted(tickets, key=lambda one: one.cooling_since_s):
            lingering = self._cooling.get(ticket)
            let_go = None if lingering is None else lingering.on_over
            if lingering is not None and let_go is not None and ticket.weight <= slots:
                slots -= ticket.weight
                lingering.close()
                let_go()

    def drain(self) -> None:
        """Refuse the queue and all newcomers."""
        self._carry_out(self.gate.drain())

    def give_away(self) -> tuple[list[Lease], list[tuple[Ticket, Lingering]]]:
        """Drop the gate: return who waits, in order, and whose slots cool. Nothing moves here now.

        Those in flight have their leases in their own hands.
        """
        waiting, cooling = [*self._waiting.values()], [*self._cooling.items()]
        self._waiting.clear()
        self._cooling.clear()
        self._given = True
        self.close()
        return waiting, cooling

    def change_policies(self, policies: Mapping[str, SleepPolicy]) -> None:
        """Put other policies in force, by the addresses of the engines."""
        self._carry_out(self.gate.change_policies(policies))

    def sleeper(self, replica: str | None) -> Sleeper:
        """Return the engine that sleeps, or that one of several, to be asked how it is."""
        return self.gate.sleeper(replica)

    def change_limits(self, limits: AdmissionLimits, wake: SleepPolicy | None = None) -> None:
        """Put new limits in force."""
        self._carry_out(self.gate.change_limits(limits, wake))

    # Where the gate looks after its engines

    def engine_seen(self, name: str, *, up: bool, why: str = "") -> bool | None:
        """Tell the gate whether an engine is there; returns what it thought, None: unknown."""
        assert self.gate.replicas is not None
        known = {one.name: one.up for one in self.gate.replicas}
        if self._closed or name not in known:
            return None
        self._carry_out(self.gate.engine_seen(name, up=up, why=why))
        return known[name]

    def drain_engine(self, name: str, *, undo: bool) -> None:
        """Tell the gate to send nobody new to an engine, or to send them again."""
        self._carry_out(self.gate.drain_engine(name, undo=undo))

    def change_engines(self, engines: Engines) -> None:
        """Tell the gate that it has other engines."""
        self._carry_out(self.gate.change_engines(engines))

    # Where the engine can sleep; `replica` is the address of one of several

    def begin(self) -> None:
        """Let the gate look at its engine for the first time."""
        self._carry_out(self.gate.expire())

    def report(self, report: Report, replica: str | None = None) -> None:
        """Tell the gate what came of a step."""
        self._carry_out(self.gate.report(report, replica))

    def hear_ledger(self, replica: str | None = None) -> None:
        """Tell the gate that something was decided about its engine's memory."""
        self._carry_out(self.gate.hear_ledger(replica))

    def suspect(self, replica: str | None = None) -> None:
        """Tell the gate that its engine refused a request as one that sleeps does."""
        self._carry_out(self.gate.suspect(replica))

    def believe(self, replica: str | None = None) -> None:
        """Tell the gate that an operator says that its engine's answers are good."""
        self._carry_out(self.gate.believe(replica))

    def measured(self, gib: float, replica: str | None = None) -> None:
        """Tell the gate what its engine takes of its GPUs now."""
        self._carry_out(self.gate.measured(gib, replica))

    def lost(self, why: str = "", replica: str | None = None) -> None:
        """Tell the gate that a request could not connect to its engine, and why."""
        self._carry_out(self.gate.lost(why, replica))

    def wake_now(self, by: str = "an operator", replica: str | None = None) -> None:
        """Tell the gate that an operator, or whoever, wants the engine awake."""
        self._carry_out(self.gate.wake_now(by, replica))

    def stand(self, standing: Standing, replica: str | None = None) -> None:
        """Tell the gate which orders hold its engine awake or asleep."""
        self._carry_out(self.gate.stand(standing, replica))

    def sleep_now(self, level: int, replica: str | None = None) -> None:
        """Tell the gate that an operator wants the engine asleep."""
        self._carry_out(self.gate.sleep_now(level, replica))

    def close(self) -> None:
        """Stop the timer and wait for no engine; nobody may be inside any more."""
        self._closed = True
        for lingering in self._cooling.values():
            lingering.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _carry_out(self, decisions: Sequence[Decision]) -> None:
        for decision in () if self._given else decisions:
            if isinstance(decision, Admit):
                self._waiting.pop(decision.ticket).decide(decision)
            elif isinstance(decision, Refuse):
                self._waiting.pop(decision.ticket).decide(decision.refusal)
            elif isinstance(decision, Cooled):
                self._cooling.pop(decision.ticket).close()
            else:
                self._command(decision)
        gate = self.gate
        if self.on_rest is not None and gate.at_rest:
            self.on_rest()
        deadline_s = gate.next_deadline()
        timer = self._timer
        if deadline_s is None:
            return
        if timer is not None:
            if timer.when() <= deadline_s:
                return  # early is harmless: it finds nothing to do, and is armed anew then
            timer.cancel()
        if not self._closed:
            self._timer = self.loop.call_at(deadline_s, self._on_deadline)

    def _let_go(self, ticket: Ticket, outcome: Outcome) -> None:
        del self._cooling[ticket]
        self._carry_out(self.gate.finish(ticket, outcome))

    def _command(self, decision: EngineOrder) -> None:
        """Have one decision carried out; whatever comes of that, the others follow it."""
        try:
            self.on_command(decision)
        except Exception:
            LOG.exception("%s: could not carry out %s", self.gate.key, decision)
            replica = decision.replica if isinstance(decision, OfReplica) else None
            what = decision.what if isinstance(decision, OfReplica) else decision
            if isinstance(what, Perform | Remember) and what.number:
                failed = Report(what.number, StepResult.FAILED, detail="see the log")
                self.loop.call_soon(self.report, failed, replica)

    def _on_deadline(self) -> None:
        self._timer = None
        self._carry_out(self.gate.expire())
