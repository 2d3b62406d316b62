"""Witnesses between the model and its gate: the laws as they are kept, and a journal to look at.

Rule 1: a witness changes nothing. It passes on every call and every decision as they are.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from simulator.model.engine_invariants import EngineWitness
from simulator.model.event_loop import EventLoop
from simulator.model.gate_like import GateLike, wake_limits
from simulator.model.invariants import QueueWitness
from simulator.model.promises import PromiseWitness
from simulator.model.scenario import Scenario
from tornado_frontdoor.core.decisions import (
    Admit,
    Changed,
    Decision,
    EngineState,
    OfReplica,
    Outcome,
    Refuse,
    SleepDepth,
)
from tornado_frontdoor.core.limits import COOLING_LIMIT_S
from tornado_frontdoor.core.replicas import Replicas
from tornado_frontdoor.core.request import Ticket, TicketState
from tornado_frontdoor.engines.base import Report


class Entry(NamedTuple):
    """One decision or event, with the gauges right after it."""

    at_s: float
    what: str
    number: int
    in_flight: int
    queued: int

    def __str__(self) -> str:
        return f"{self.at_s!r} {self.what} {self.number} {self.in_flight} {self.queued}"


class WholeGate(GateLike, Protocol):
    """A gate that can be asked how it stands."""

    @property
    def in_flight(self) -> int:
        """See `Gate`."""
        ...

    @property
    def queued(self) -> int:
        """See `Gate`."""
        ...

    @property
    def duplicate_finishes(self) -> int:
        """See `Gate`."""
        ...

    @property
    def sleep_depth(self) -> SleepDepth | None:
        """See `Gate`."""
        ...


class CheckedGate:
    """The real gate with witnesses beside it; raises their `LawError` at the first fault."""

    def __init__(self, gate: WholeGate, scenario: Scenario, loop: EventLoop) -> None:
        self._gate = gate
        self._loop = loop
        self._queue = QueueWitness(
            scenario.cap,
            scenario.queue,
            scenario.timeout_s,
            cooling_limit_s=COOLING_LIMIT_S,
            tolerance_s=_ROUNDING_S,
        )
        self._scenario = scenario
        self._cap = scenario.cap
        self._shares = len(scenario.keys) if scenario.fair_share else 0
        """Keys that have a place of their own each."""
        self._promises = PromiseWitness(scenario.places_for_returns)
        self._engines: dict[str | None, EngineWitness] = {}
        self._arrivals = 0
        self._depth: SleepDepth | None = None
        self.journal: list[Entry] | None = None
        if scenario.tiers is not None:
            self._limits = wake_limits(scenario.tiers)
            names = [None] if gate.replicas is None else [one.name for one in gate.replicas]
            self._engines = {name: EngineWitness() for name in names}
            self._note_depth()

    @property
    def state(self) -> EngineState:
        """Pass on."""
        return self._gate.state

    @property
    def cooling(self) -> int:
        """Pass on."""
        return self._gate.cooling

    def arrive(self, ticket: Ticket) -> Sequence[Decision]:
        """Pass on and judge."""
        self._arrivals += 1
        now = self._loop.time_s
        kept = self._promises.most_kept(ticket.token, now)
        key = ""
        if self._shares:
            key, kept = ticket.key, max(kept, self._shares - 1)
        self._queue.arrived(now, self._arrivals, ticket.weight, kept, key=key)
        decisions = self._gate.arrive(ticket)
        self._note("arrived", ticket.number)
        return self._judged(decisions)

    def finish(self, ticket: Ticket, outcome: Outcome) -> Sequence[Decision]:
        """Pass on and judge."""
        if ticket.state is TicketState.COOLING:
            self._queue.let_go(self._loop.time_s, ticket.number)
        else:
            self._queue.ended(self._loop.time_s, ticket.number, outcome)
        decisions = self._gate.finish(ticket, outcome)
        self._note(outcome.label, ticket.number)
        return self._judged(decisions)

    def cool(self, ticket: Ticket, outcome: Outcome) -> Sequence[Decision]:
        """Pass on and judge."""
        self._queue.cools(self._loop.time_s, ticket.number, outcome)
        return self._judged(self._gate.cool(ticket, outcome))

    def expire(self) -> Sequence[Decision]:
        """Pass on and judge."""
        return self._judged(self._gate.expire())

    def report(self, report: Report, replica: str | None = None) -> Sequence[Decision]:
        """Pass on and judge."""
        return self._judged(self._gate.report(report, replica))

    @property
    def replicas(self) -> Replicas | None:
        """Pass on."""
        return self._gate.replicas

    def next_deadline(self) -> float | None:
        """Pass on."""
        return self._gate.next_deadline()

    def at_rest(self) -> None:
        """Judge the end, at which nobody is inside."""
        self._queue.at_rest()
        assert self._gate.duplicate_finishes == 0, "an attempt was finished twice"

    def _judged(self, decisions: Sequence[Decision]) -> Sequence[Decision]:
        now = self._loop.time_s
        self._note_depth()
        moves = [decision for decision in decisions if isinstance(decision, Admit | Refuse)]
        for decision in decisions:
            name = decision.replica if isinstance(decision, OfReplica) else None
            told = decision.what if isinstance(decision, OfReplica) else decision
            if isinstance(told, Changed) and name in self._engines:
                self._judge_engine(name, told.state)
        self._queue.decided(now, decisions)
        for decision in decisions:
            if isinstance(decision, Refuse):
                refusal = decision.refusal
                self._promises.promised(decision.ticket.token, now, refusal.retry_after_s)
        self._queue.settled(now)
        self._queue.agree(self._gate.in_flight, self._gate.queued, self._gate.cooling)
        for move in moves:
            admitted = isinstance(move, Admit)
            if admitted and self._engines:
                self._engines[None if None in self._engines else move.ticket.replica].saw_request()
            what = "admitted" if isinstance(move, Admit) else move.refusal.reason.value
            self._note(what, move.ticket.number)
        return decisions

    def _note_capacity(self) -> None:
        """Note what those that are awake run at once, where each sleeps by itself."""
        if self._gate.replicas is None or not self._engines:
            return
        slots = sum(one.slots for one in self._gate.replicas if one.available)
        cap = int(min(self._scenario.cap, slots)) if slots else self._cap
        if cap != self._cap:
            self._cap = cap
            places = self._scenario.queue + self._scenario.cap - cap  # who the others are woken for
            limits = places, self._scenario.timeout_s, COOLING_LIMIT_S
            self._queue.limits_changed(self._loop.time_s, cap, *limits)

    def _note_depth(self) -> None:
        self._note_capacity()
        depth = self._gate.sleep_depth
        if depth is self._depth:
            return
        self._depth = depth
        if depth is None:
            self._queue.resumed(self._loop.time_s)
        else:
            self._queue.paused(self._loop.time_s, self._limits.hold_s(depth))

    def _judge_engine(self, name: str | None, state: EngineState) -> None:
        engine = self._engines[name]
        if state is EngineState.WAKING:
            engine.wake_began()
        elif state is EngineState.AWAKE:
            engine.wake_ended(proven=True)
        elif state is EngineState.FALLING_ASLEEP:
            engine.sleep_began(self._inside(name))

    def _inside(self, name: str | None) -> int:
        """Return who must not be inside of an engine that is put to sleep."""
        if name is None or self._gate.replicas is None:
            return self._gate.in_flight + self._gate.queued
        replica = self._gate.replicas.named(name)
        return 0 if replica is None else replica.used

    def _note(self, what: str, number: int) -> None:
        if self.journal is not None:
            gate = self._gate
            self.journal.append(Entry(self._loop.time_s, what, number, gate.in_flight, gate.queued))


_ROUNDING_S = 1e-6
"""The witness adds up the time between events; the gate takes one difference. In 10^7 s of
simulated time the sums drift apart by less than this."""
