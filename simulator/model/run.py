"""One replication: simulated clients before the very gate that admits in production.

Rule 1: this module decides nothing that the gate decides. It calls `arrive`, `finish`, `expire`
        and `report` as the proxy's gatekeeper does, and does what the decisions say.
Rule 2: one timer for the whole line, armed at `next_deadline()`: the head is the first to expire.
Rule 3: whatever is counted is counted by logical request, attempts besides.
"""

from collections.abc import Iterator, Sequence
from math import inf
from random import Random
from typing import Any, Protocol

from simulator.model.attempt import Attempt, again
from simulator.model.event_loop import EventLoop, Order
from simulator.model.records import Records
from simulator.model.replicas import Backend, FreeSlots, ReplicaSet
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
    WakeEnded,
)
from tornado_frontdoor.core.gate import AdmissionLimits, Gate, SleepConfig, SleepPolicy
from tornado_frontdoor.core.request import Ticket, TicketState, UpstreamKey
from tornado_frontdoor.engines.vllm import Report

_QUEUED = TicketState.QUEUED
_IN_FLIGHT = TicketState.IN_FLIGHT
_SERVED = Outcome.SERVED
_AWAKE = EngineState.AWAKE
_ARRIVAL = int(Order.ARRIVAL)

SIMULATED = UpstreamKey("simulated")


class GateLike(Protocol):
    """The part of `Gate` that the model drives; a witness may stand before the real one."""

    def arrive(self, ticket: Ticket) -> Sequence[Decision]:
        """See `Gate`."""
        ...

    def finish(self, ticket: Ticket, outcome: Outcome) -> Sequence[Decision]:
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


def new_gate(scenario: Scenario, driver: EventLoop, streams: Streams) -> Gate:
    """Return the production gate on simulated time."""
    limits = AdmissionLimits(
        cap=scenario.cap, queue=scenario.queue, queue_timeout_s=scenario.timeout_s
    )
    pacing = Random(int(streams.of(Purpose.PACING).integers(1 << 62)))
    nap = None if scenario.tiers is None else SleepConfig(limits=wake_limits(scenario.tiers))
    return Gate(SIMULATED, limits, driver, pacing, nap)


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
        self, scenario: Scenario, streams: Streams, driver: EventLoop, gate: GateLike
    ) -> None:
        self.records = Records(scenario, driver)
        self._scenario = scenario
        self._streams = streams
        self._driver = driver
        self._gate = gate
        self._backend: Backend = (
            FreeSlots(driver, self._served)
            if scenario.always_has_slots
            else ReplicaSet(scenario, streams, driver, self._served)
        )
        # Bound once: these are called for each of a million requests.
        self._at = driver.at
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
                scenario.tiers, driver, self._reported, lambda: self.records.flying
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
                self._driver.at(first[0], _ARRIVAL, self._come, first)
        self._driver.run()
        self.records.end(self._index, None if self._engine is None else self.times)
        return self.records

    # Who comes

    def _come(self, request: Request) -> None:
        self._at_gate(self._made(request))
        following = next(self._requests, None)
        if following is None:
            self._no_more_requests()
        else:
            self._at(following[0], _ARRIVAL, self._come, following)

    def _think(self, client: int) -> None:
        assert self._clients is not None
        request = self._clients.after_thought(client)
        at_s = self._driver.time_s + request[0]
        self._at(at_s, _ARRIVAL, self._ask, (client, (at_s, *request[1:])))

    def _ask(self, what: tuple[int, Request]) -> None:
        client, request = what
        if self._index == self._limit:
            return
        visit = self._made(request)
        self._client_of[visit.index] = client
        self._at_gate(visit)
        if self._index == self._limit:
            self._no_more_requests()

    def _no_more_requests(self) -> None:
        self._expecting = False
        self.records.no_more_requests()
        self.times.close(self._driver.time_s)

    def _made(self, request: Request) -> Attempt:
        visit = Attempt(request[4])
        visit.first_s, visit.work, visit.prompt, visit.patience_s, _ = request
        visit.index = index = self._index
        visit.attempts = 1
        visit.lined = False
        self._index = index + 1
        if index == self._mark:
            self._mark = self.records.mark(index, visit.first_s)
        return visit

    def _enter(self, visit: Attempt) -> None:
        decisions = self._arrive(visit)
        if decisions:
            self._obey(decisions)
        if visit.state is _QUEUED:
            visit.lined = True
            self.records.lined()
            if self._armed_s == inf:
                self._arm()
            if visit.patience_s != inf:
                at_s = self._driver.time_s + visit.patience_s
                self._driver.at(at_s, Order.DEPARTURE, self._lose_patience, visit)

    def _enter_where_it_sleeps(self, visit: Attempt) -> None:
        if self._gate.state is not _AWAKE:
            self.records.met_cold(visit)
        self._enter(visit)
        self._arm()

    # What the gate decides

    def _obey(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if type(decision) is Admit:
                visit: Any = decision.ticket
                if visit.lined:
                    self._out_of_line(visit)
                self._admitted(visit)
                self._start(visit)
                if self._hang_up:
                    self._maybe_hang_up(visit)
            elif type(decision) is Refuse:
                visit = decision.ticket
                if visit.lined:
                    self._out_of_line(visit)
                self._refused(visit, decision.refusal)
            else:
                self._engine_does(decision)

    def _engine_does(self, decision: Decision) -> None:
        """Do what the wake machine wants; what it tells operators is not heard here."""
        if isinstance(decision, Perform):
            assert self._engine is not None
            self._engine.perform(decision)
        elif isinstance(decision, Changed):
            self.times.changed(decision, self._driver.time_s)
        elif isinstance(decision, WakeEnded):
            self.times.woke(decision)

    def _out_of_line(self, visit: Attempt) -> None:
        visit.lined = False
        self.records.unlined()

    def _refused(self, visit: Attempt, refusal: Refusal) -> None:
        self.records.refused(visit)
        if self._retry.kind != "none" and refusal.reason is not Reason.BAD_REQUEST:
            streams = self._streams
            place = (streams.seed, streams.replication, Purpose.LATE, 0, visit.index)
            pause_s = self._retry.pause(
                refusal.retry_after_s, visit.attempts, unit(*place, visit.attempts)
            )
            if pause_s is not None:
                at_s = self._driver.time_s + pause_s
                self.records.returns(visit)
                self._returning += 1
                self._at(at_s, _ARRIVAL, self._return, again(visit))
                return
        self._over(visit, refusal.reason.value)

    def _over(self, visit: Attempt, outcome: str) -> None:
        """End a logical request."""
        self.records.over(visit, outcome)
        if self._clients is not None:
            self._think(self._client_of.pop(visit.index))

    def _return(self, visit: Attempt) -> None:
        self._returning -= 1
        self._at_gate(visit)

    # What happens to visits

    def _served(self, visit: Attempt) -> None:
        if visit.state is not _IN_FLIGHT:
            return  # its client has hung up
        decisions = self._finish(visit, _SERVED)
        self._record(visit)
        if decisions:
            self._obey(decisions)
        if self._clients is not None:
            self._think(self._client_of.pop(visit.index))
        if self._engine is not None:
            self._arm()

    def _lose_patience(self, visit: Attempt) -> None:
        if visit.state is not _QUEUED:
            return
        self._out_of_line(visit)
        decisions = self._gate.finish(visit, Outcome.CLIENT_GONE_QUEUED)
        self._over(visit, "left")
        self._obey(decisions)
        self._arm()

    def _maybe_hang_up(self, visit: Attempt) -> None:
        streams = self._streams
        place = (streams.seed, streams.replication, Purpose.LATE, 2, visit.index)
        if unit(*place) >= self._hang_up:
            return
        # What it would take alone: a share of that never lies beyond its end.
        profile = self._scenario.service.profile
        takes_s = visit.work if profile is None else profile.alone_s(visit.prompt, visit.work)
        at_s = self._driver.time_s + takes_s * unit(*place, 1)
        self._driver.at(at_s, Order.DEPARTURE, self._go, visit)

    def _go(self, visit: Attempt) -> None:
        if visit.state is not _IN_FLIGHT:
            return
        self._backend.abort(visit)
        decisions = self._gate.finish(visit, Outcome.CLIENT_GONE_STREAMING)
        self.records.landed(visit)
        self._over(visit, "left")
        self._obey(decisions)
        self._arm()

    # The line's one timer, and the engine's sleep

    def _arm(self) -> None:
        if not (self._expecting or self.records.inside or self._returning):
            return  # an engine that is left alone would be looked at for ever
        deadline_s = self._gate.next_deadline()
        if deadline_s is not None and deadline_s < self._armed_s:
            self._armed_s = deadline_s
            at_s = max(deadline_s, self._driver.time_s)
            self._driver.at(at_s, Order.EXPIRY, self._expire, deadline_s)

    def _expire(self, armed_s: float) -> None:
        if armed_s != self._armed_s:
            return
        self._armed_s = inf
        deadline_s = self._gate.next_deadline()
        if deadline_s is not None and deadline_s <= self._driver.time_s:
            self._obey(self._gate.expire())
        self._arm()

    def _reported(self, report: Report) -> None:
        self._obey(self._gate.report(report))
        self._arm()
