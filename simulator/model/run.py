"""One replication: simulated clients before the very gate that admits in production.

Rule 1: this module decides nothing that the gate decides. It calls `arrive`, `finish`, `expire`
        and `report` as the proxy's gatekeeper does, and does what the decisions say.
Rule 2: one timer for the whole queue, armed at `next_deadline()`: the head is the first to expire.
Rule 3: whatever is counted is counted by logical request, attempts besides.
"""

from collections.abc import Iterator, Sequence
from math import inf
from random import Random
from typing import Any, Protocol

from simulator.model.attempt import Attempt, again
from simulator.model.event_loop import EventLoop, Order
from simulator.model.records import Records
from simulator.model.replicas import Backend, FreeSlots, ReplicaSet, engines_of
from simulator.model.scenario import Scenario, Tiers
from simulator.model.sleeping_engine import SleepingEngine, StateTimes
from simulator.traffic.distributions import unit
from simulator.traffic.streams import Purpose, Streams
from simulator.traffic.workload import Clients, Closed, Request, requests
from tornado_frontdoor.core.decisions import (
    Admit,
    Changed,
    Decision,
    EngineState,
    Outcome,
    Perform,
    Reason,
    Refusal,
    Refuse,
    Remember,
    WakeEnded,
)
from tornado_frontdoor.core.gate import AdmissionLimits, Gate, SleepConfig, SleepPolicy
from tornado_frontdoor.core.replicas import Replicas
from tornado_frontdoor.core.request import Ticket, TicketState, UpstreamKey
from tornado_frontdoor.engines.base import Report, StepResult
from tornado_frontdoor.engines.vllm import KIND

_QUEUED = TicketState.QUEUED
_IN_FLIGHT = TicketState.IN_FLIGHT
_COOLING = TicketState.COOLING
_SERVED = Outcome.SERVED
_AWAKE = EngineState.AWAKE
_ARRIVAL = int(Order.ARRIVAL)
_COMPLETION = int(Order.COMPLETION)

SIMULATED = UpstreamKey("simulated")


class GateLike(Protocol):
    """The part of `Gate` that the model drives; a witness may stand before the real one."""

    def arrive(self, ticket: Ticket) -> Sequence[Decision]:
        """See `Gate`."""
        ...

    def finish(self, ticket: Ticket, outcome: Outcome) -> Sequence[Decision]:
        """See `Gate`."""
        ...

    def cool(self, ticket: Ticket, outcome: Outcome) -> Sequence[Decision]:
        """See `Gate`."""
        ...

    def expire(self) -> Sequence[Decision]:
        """See `Gate`."""
        ...

    def next_deadline(self) -> float | None:
        """See `Gate`."""
        ...

    def report(self, report: Report) -> Sequence[Decision]:
        """See `Gate`."""
        ...

    @property
    def state(self) -> EngineState:
        """See `Gate`."""
        ...


def new_gate(scenario: Scenario, loop: EventLoop, streams: Streams) -> Gate:
    """Return the production gate on simulated time."""
    limits = AdmissionLimits(
        cap=scenario.cap, queue=scenario.queue, queue_timeout_s=scenario.timeout_s
    )
    pacing = Random(int(streams.of(Purpose.PACING).integers(1 << 62)))
    nap = (
        None
        if scenario.tiers is None
        else SleepConfig(limits=wake_limits(scenario.tiers), kind=KIND)
    )
    several = engines_of(scenario)
    return Gate(SIMULATED, limits, loop, pacing, nap, several and Replicas(several, loop.now()))


def wake_limits(tiers: Tiers) -> SleepPolicy:
    """Return the tiers as the wake machine takes them."""
    return SleepPolicy(
        idle_sleep_s=tiers.idle_s[0],
        idle_offload_s=tiers.idle_s[1],
        hold_sleeping_s=tiers.hold_s[0],
        hold_offloaded_s=tiers.hold_s[1],
        hold_restarting_s=300.0,
        retry_after_sleeping_s=tiers.retry_after_s[0],
        retry_after_offloaded_s=tiers.retry_after_s[1],
        retry_after_restarting_s=600.0,
        canary=False,  # it would take no time here
        probe_period_s=LOOK_PERIOD_S,
    )


LOOK_PERIOD_S = 1e6
"""Nobody else touches a simulated engine, so there is nothing to be seen between transitions."""


class SimulatedRun:
    """One replication from the first request to the last end; `records` has what came of it."""

    def __init__(
        self, scenario: Scenario, streams: Streams, loop: EventLoop, gate: GateLike
    ) -> None:
        self.records = Records(scenario, loop)
        self._scenario = scenario
        self._streams = streams
        self._loop = loop
        self._gate = gate
        self._backend: Backend = (
            FreeSlots(loop, self._served)
            if scenario.always_has_slots
            else ReplicaSet(scenario, streams, loop, self._served)
        )
        # Bound once: these are called for each of a million requests.
        self._at = loop.at
        self._arrive = gate.arrive
        self._finish = gate.finish
        self._start = self._backend.start
        self._admitted = self.records.admitted
        self._record = self.records.served
        self._at_gate = self._enter if scenario.tiers is None else self._enter_where_it_sleeps
        self._retry = scenario.retry
        self._hang_up = scenario.hang_up
        self._armed_s = inf
        self._index = 0
        self._mark = 0
        self._limit = scenario.requests
        self._requests: Iterator[Request] = iter(())
        self._clients: Clients | None = None
        self._client_of: dict[int, int] = {}
        self._returning = 0
        self._expecting = True
        self._engine: SleepingEngine | None = None
        self.times = StateTimes()
        if scenario.tiers is not None:
            self._engine = SleepingEngine(
                scenario.tiers, loop, self._reported, lambda: self.records.in_flight
            )

    def run(self) -> Records:
        """Carry the replication out."""
        scenario = self._scenario
        if self._engine is not None:
            self._arm()  # it wants to look at once
        if isinstance(scenario.arrivals, Closed):
            self._clients = Clients(
                scenario.arrivals, scenario.service, scenario.patience, self._streams
            )
            for client in range(len(self._clients)):
                self._think(client)
        else:
            self._requests = requests(
                scenario.arrivals,
                scenario.service,
                scenario.patience,
                self._streams,
                scenario.requests,
            )
            first = next(self._requests, None)
            if first is not None:
                self._loop.at(first.at_s, _ARRIVAL, self._come, first)
        self._loop.run()
        self.records.end(self._index, None if self._engine is None else self.times)
        return self.records

    # Who comes

    def _come(self, request: Request) -> None:
        self._at_gate(self._made(request))
        following = next(self._requests, None)
        if following is None:
            self._no_more_requests()
        else:
            self._at(following.at_s, _ARRIVAL, self._come, following)

    def _think(self, client: int) -> None:
        assert self._clients is not None
        request = self._clients.after_thought(client)
        at_s = self._loop.time_s + request.at_s
        self._at(at_s, _ARRIVAL, self._ask, (client, request._replace(at_s=at_s)))

    def _ask(self, what: tuple[int, Request]) -> None:
        client, request = what
        if self._index == self._limit:
            return
        attempt = self._made(request)
        self._client_of[attempt.index] = client
        self._at_gate(attempt)
        if self._index == self._limit:
            self._no_more_requests()

    def _no_more_requests(self) -> None:
        self._expecting = False
        self.records.no_more_requests()
        self.times.close(self._loop.time_s)

    def _made(self, request: Request) -> Attempt:
        at_s, work, prompt, patience_s, weight = request
        attempt = Attempt(weight)
        attempt.first_s = at_s
        attempt.work = work
        attempt.prompt = prompt
        attempt.patience_s = patience_s
        attempt.index = index = self._index
        attempt.attempts = 1
        attempt.queued = False
        self._index = index + 1
        if index == self._mark:
            self._mark = self.records.mark(index, at_s)
        return attempt

    def _enter(self, attempt: Attempt) -> None:
        decisions = self._arrive(attempt)
        if decisions:
            self._obey(decisions)
        if attempt.state is _QUEUED:
            attempt.queued = True
            self.records.joined_queue()
            if self._armed_s == inf:
                self._arm()
            if attempt.patience_s != inf:
                at_s = self._loop.time_s + attempt.patience_s
                self._loop.at(at_s, Order.DEPARTURE, self._lose_patience, attempt)

    def _enter_where_it_sleeps(self, attempt: Attempt) -> None:
        if self._gate.state is not _AWAKE:
            self.records.met_cold(attempt)
        self._enter(attempt)
        self._arm()

    # What the gate decides

    def _obey(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if type(decision) is Admit:
                attempt: Any = decision.ticket
                if attempt.queued:
                    self._out_of_queue(attempt)
                self._admitted(attempt)
                self._start(attempt)
                if self._hang_up:
                    self._maybe_hang_up(attempt)
            elif type(decision) is Refuse:
                attempt = decision.ticket
                if attempt.queued:
                    self._out_of_queue(attempt)
                self._refused(attempt, decision.refusal)
            else:
                self._engine_does(decision)

    def _engine_does(self, decision: Decision) -> None:
        """Do what the wake machine wants; what it tells operators is not heard here."""
        if isinstance(decision, Perform):
            assert self._engine is not None
            self._engine.perform(decision)
        elif isinstance(decision, Remember):
            if decision.number:  # a disk that takes no time
                written = Report(decision.number, StepResult.DONE)
                self._loop.at(self._loop.time_s, Order.COMPLETION, self._reported, written)
        elif isinstance(decision, Changed):
            self.times.changed(decision, self._loop.time_s)
        elif isinstance(decision, WakeEnded):
            self.times.woke(decision)

    def _out_of_queue(self, attempt: Attempt) -> None:
        attempt.queued = False
        self.records.left_queue()

    def _refused(self, attempt: Attempt, refusal: Refusal) -> None:
        self.records.refused(attempt)
        if self._retry.kind != "none" and refusal.reason is not Reason.BAD_REQUEST:
            streams = self._streams
            place = (streams.seed, streams.replication, Purpose.LATE, 0, attempt.index)
            pause_s = self._retry.pause(
                refusal.retry_after_s, attempt.attempts, unit(*place, attempt.attempts)
            )
            if pause_s is not None:
                at_s = self._loop.time_s + pause_s
                self.records.returns(attempt)
                self._returning += 1
                self._at(at_s, _ARRIVAL, self._return, again(attempt))
                return
        self._over(attempt, refusal.reason.value)

    def _over(self, attempt: Attempt, outcome: str) -> None:
        """End a logical request."""
        self.records.over(attempt, outcome)
        if self._clients is not None:
            self._think(self._client_of.pop(attempt.index))

    def _return(self, attempt: Attempt) -> None:
        self._returning -= 1
        self._at_gate(attempt)

    # What happens to attempts

    def _served(self, attempt: Attempt) -> None:
        if attempt.state is not _IN_FLIGHT:  # its client has hung up
            self._let_go(attempt)
            return
        decisions = self._finish(attempt, _SERVED)
        self._record(attempt)
        if decisions:
            self._obey(decisions)
        if self._clients is not None:
            self._think(self._client_of.pop(attempt.index))
        if self._engine is not None:
            self._arm()

    def _lose_patience(self, attempt: Attempt) -> None:
        if attempt.state is not _QUEUED:
            return
        self._out_of_queue(attempt)
        decisions = self._gate.finish(attempt, Outcome.CLIENT_GONE_QUEUED)
        self._over(attempt, "left")
        self._obey(decisions)
        self._arm()

    def _maybe_hang_up(self, attempt: Attempt) -> None:
        streams = self._streams
        place = (streams.seed, streams.replication, Purpose.LATE, 2, attempt.index)
        if unit(*place) >= self._hang_up:
            return
        # What it would take alone: a share of that never lies beyond its end.
        profile = self._scenario.service.profile
        takes_s = attempt.work if profile is None else profile.alone_s(attempt.prompt, attempt.work)
        at_s = self._loop.time_s + takes_s * unit(*place, 1)
        self._loop.at(at_s, Order.DEPARTURE, self._go, attempt)

    def _go(self, attempt: Attempt) -> None:
        if attempt.state is not _IN_FLIGHT:
            return
        cooling_s = self._scenario.cooling_s
        if cooling_s:
            self._at(self._loop.time_s + cooling_s, _COMPLETION, self._noticed, attempt)
            decisions = self._gate.cool(attempt, Outcome.CLIENT_GONE_STREAMING)
        else:
            self._backend.abort(attempt)
            decisions = self._gate.finish(attempt, Outcome.CLIENT_GONE_STREAMING)
        self.records.released(attempt)
        self._over(attempt, "left")
        self._obey(decisions)
        self._arm()

    def _noticed(self, attempt: Attempt) -> None:
        self._backend.abort(attempt)
        self._let_go(attempt)

    def _let_go(self, attempt: Attempt) -> None:
        """Tell the gate that the engine is done with an attempt, unless it waits no longer."""
        if attempt.state is _COOLING:
            self._obey(self._gate.finish(attempt, Outcome.CLIENT_GONE_STREAMING))
            self._arm()

    # The queue's one timer, and the engine's sleep

    def _arm(self) -> None:
        if not (self._expecting or self.records.inside or self._returning):
            return  # an engine that is left alone would be looked at for ever
        deadline_s = self._gate.next_deadline()
        if deadline_s is not None and deadline_s < self._armed_s:
            self._armed_s = deadline_s
            at_s = max(deadline_s, self._loop.time_s)
            self._loop.at(at_s, Order.EXPIRY, self._expire, deadline_s)

    def _expire(self, armed_s: float) -> None:
        if armed_s != self._armed_s:
            return
        self._armed_s = inf
        deadline_s = self._gate.next_deadline()
        if deadline_s is not None and deadline_s <= self._loop.time_s:
            self._obey(self._gate.expire())
        self._arm()

    def _reported(self, report: Report) -> None:
        self._obey(self._gate.report(report))
        self._arm()
