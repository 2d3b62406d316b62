"""One replication: simulated clients before the very gate that admits in production.

Rule 1: this module decides nothing that the gate decides. It calls `arrive`, `finish`, `expire`
        and `report` as the proxy's gatekeeper does, and does what the decisions say.
Rule 2: one timer for the whole queue, armed at `next_deadline()`: the head is the first to expire.
Rule 3: whatever is counted is counted by logical request, attempts besides.
"""

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any

from simulator.model.attempt import Attempt, again
from simulator.model.event_loop import EventLoop, Order
from simulator.model.gate_like import GateLike
from simulator.model.records import Records
from simulator.model.replicas import ReplicaSet
from simulator.model.scenario import Scenario
from simulator.model.sleeping_engine import SleepingEngine, StateTimes
from simulator.traffic.distributions import unit
from simulator.traffic.keys import key_of
from simulator.traffic.streams import Purpose, Streams
from simulator.traffic.workload import Clients, Closed, Request, Timed, timed
from tornado_frontdoor.core.decisions import (
    Admit,
    Changed,
    Decision,
    EngineState,
    OfReplica,
    Outcome,
    Perform,
    Reason,
    Refusal,
    Refuse,
    Remember,
    WakeEnded,
)
from tornado_frontdoor.core.request import CallerFacts, TicketState
from tornado_frontdoor.engines.base import Report, StepResult

_QUEUED = TicketState.QUEUED
_IN_FLIGHT = TicketState.IN_FLIGHT
_COOLING = TicketState.COOLING
_SERVED = Outcome.SERVED
_AWAKE = EngineState.AWAKE
_COMPLETION = int(Order.COMPLETION)
_DEPARTURE = int(Order.DEPARTURE)
_EXPIRY = int(Order.EXPIRY)
_ARRIVAL = int(Order.ARRIVAL)


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
        self._backend = ReplicaSet(scenario, streams, loop, self._served, self.records.kv)
        # Bound once: these are called for each of a million requests.
        self._at = loop.at
        self._arrive = gate.arrive
        self._finish = gate.finish
        self._done = self._served
        self._always_has_slots = scenario.always_has_slots
        self._flights = self.records.flights
        self._line = self.records.line
        self._add_wait = self.records.waits.add
        self._add_latency = self.records.latencies.add
        self._warmup = scenario.warmup
        plain = scenario.always_has_slots and not scenario.terminating and scenario.each is None
        self._record = None if plain and not scenario.keys else self.records.served
        self._retry = scenario.retry
        self._comes_back = scenario.retry.kind != "none"
        self._tells_patience = scenario.patience_told != "no"
        self._is_known = self._comes_back or self._tells_patience or bool(scenario.keys)
        self._hang_up = scenario.hang_up
        self._armed_s = inf
        self._index = 0
        self._mark = 0
        self._limit = scenario.requests
        self._clients: Clients | None = None
        self._client_of: dict[int, int] = {}
        self._returning = 0
        self._expecting = True
        self._engine: SleepingEngine | None = None
        self._engines: dict[str | None, SleepingEngine] = {}
        self.times = StateTimes()
        if scenario.tiers is not None:
            self._soonest_s = min(filter(None, scenario.tiers.idle_s), default=inf)
            names = [None] if gate.replicas is None else [one.name for one in gate.replicas]
            self._engines = {
                name: SleepingEngine(
                    scenario.tiers, loop, partial(self._reported, name), partial(self._runs, name)
                )
                for name in names
            }
            self._engine = self._engines[names[0]]
            self.times = StateTimes(len(names))

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
            self._loop.feed(
                timed(
                    scenario.arrivals,
                    scenario.service,
                    scenario.patience,
                    self._streams,
                    scenario.requests,
                ),
                self._come,
                self._no_more_requests,
            )
        self._loop.run()
        self.records.end(self._index, None if self._engine is None else self.times)
        return self.records

    # Who comes

    def _come(self, request: Timed) -> None:
        self._index = following = self._index + 1
        if following > self._mark:
            self._mark = self.records.mark(following - 1, request[0])
        attempt = Attempt(request, following - 1)
        if self._is_known:
            self._introduce(attempt)
        if self._engine is not None:
            self._enter(attempt)
            return
        # As `_enter`, without the call: this is done for each request.
        decisions = self._arrive(attempt)
        if decisions:
            self._obey(decisions)
        if attempt.state is _QUEUED:
            self._wait(attempt)

    def _introduce(self, attempt: Attempt) -> None:
        """Let the gate know what it may know of who asks."""
        index, keys = attempt.index, self._scenario.keys
        token = index if self._comes_back else None
        patience_s = attempt.patience_s if self._tells_patience else inf
        attempt.caller = CallerFacts(token, patience_s)
        if self.records.by_key is not None:
            key = key_of(keys, self._streams, index, self._client_of.get(index))
            attempt.caller = CallerFacts(token, patience_s, key.name, key.share)
            self.records.by_key.came(attempt)

    def _think(self, client: int) -> None:
        assert self._clients is not None
        request = self._clients.after_thought(client)
        at_s = self._loop.time_s + request.at_s
        self._at(at_s, _ARRIVAL, self._ask, (client, request._replace(at_s=at_s)))

    def _ask(self, what: tuple[int, Request]) -> None:
        client, request = what
        if self._index == self._limit:
            return
        self._client_of[self._index] = client
        self._come(request)
        if self._index == self._limit:
            self._no_more_requests()

    def _no_more_requests(self) -> None:
        self._expecting = False
        self.records.no_more_requests()
        self.times.close(self._loop.time_s)

    def _enter(self, attempt: Attempt) -> None:
        if self._gate.state is not _AWAKE:
            self.records.met_cold(attempt)
        decisions = self._arrive(attempt)
        if decisions:
            self._obey(decisions)
        if attempt.state is _QUEUED:
            self._wait(attempt)
        if self._engine is not None:
            self._arm_where_it_sleeps()

    def _wait(self, attempt: Attempt) -> None:
        attempt.queued = True
        self._line.up(1, self._loop.time_s)
        if self._armed_s == inf or self._engine is not None:
            self._arm()
        if attempt.patience_s != inf:
            at_s = self._loop.time_s + attempt.patience_s
            self._at(at_s, _DEPARTURE, self._lose_patience, attempt)

    # What the gate decides

    def _obey(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if type(decision) is Admit:
                attempt: Any = decision.ticket
                admitted_s, weight, flights = attempt.admitted_s, attempt.weight, self._flights
                # As `Gauge.up`, without the call: this is done for each request.
                if attempt.queued:
                    attempt.queued = False
                    self._line.down(1, admitted_s)
                flights.height = height = flights.height + weight
                flights.integral -= weight * admitted_s
                if height > flights.highest:  # noqa: PLR1730 - max() would cost more than all the rest
                    flights.highest = height
                if self._always_has_slots:
                    self._at(admitted_s + attempt.work, _COMPLETION, self._done, attempt)
                else:
                    self._backend.start(attempt)
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
        """Do what a wake machine wants; what it tells operators is not heard here."""
        name = decision.replica if isinstance(decision, OfReplica) else None
        what = decision.what if isinstance(decision, OfReplica) else decision
        if isinstance(what, Perform):
            self._engines[name].perform(what)
        elif isinstance(what, Remember):
            if what.number:  # a disk that takes no time
                written = Report(what.number, StepResult.DONE)
                reported = partial(self._reported, name)
                self._at(self._loop.time_s, _COMPLETION, reported, written)
        elif isinstance(what, Changed):
            self._engine_changed(name, what)
        elif isinstance(what, WakeEnded):
            self.times.woke(what)

    def _engine_changed(self, name: str | None, change: Changed) -> None:
        if name is None:
            self.times.became(change, self._loop.time_s)
        if name in self._engines:
            self.times.changed(name, change, self._loop.time_s)

    def _runs(self, name: str | None) -> int:
        """Return how many requests are in an engine."""
        if name is None or self._gate.replicas is None:
            return self.records.in_flight
        replica = self._gate.replicas.named(name)
        return 0 if replica is None else replica.used

    def _out_of_queue(self, attempt: Attempt) -> None:
        attempt.queued = False
        self._line.down(1, self._loop.time_s)

    def _refused(self, attempt: Attempt, refusal: Refusal) -> None:
        self.records.refused(attempt)
        if self._comes_back and refusal.reason is not Reason.BAD_REQUEST:
            told_s = self._scenario.advice.told_s(refusal.retry_after_s)
            if self._tries_again(attempt, told_s):
                return
        self._over(attempt, refusal.reason.value)

    def _tries_again(self, attempt: Attempt, told_s: float | None) -> bool:
        """Have a client come back that was sent away or has left, if it does."""
        streams = self._streams
        place = (streams.seed, streams.replication, Purpose.LATE, 0, attempt.index)
        pause_s = self._retry.pause(told_s, attempt.attempts, unit(*place, attempt.attempts))
        if pause_s is None:
            return False
        self.records.returns(attempt)
        self._returning += 1
        self._at(self._loop.time_s + pause_s, _ARRIVAL, self._return, again(attempt))
        return True

    def _over(self, attempt: Attempt, outcome: str) -> None:
        """End a logical request."""
        self.records.over(attempt, outcome)
        if self._clients is not None:
            self._think(self._client_of.pop(attempt.index))

    def _return(self, attempt: Attempt) -> None:
        self._returning -= 1
        self._enter(attempt)

    # What happens to attempts

    def _served(self, attempt: Attempt) -> None:
        if attempt.state is not _IN_FLIGHT:  # its client has hung up
            self._let_go(attempt)
            return
        decisions = self._finish(attempt, _SERVED)
        # As `Gauge.down`, without the call.
        now, flights, weight = self._loop.time_s, self._flights, attempt.weight
        flights.height -= weight
        flights.integral += weight * now
        if attempt.index >= self._warmup:
            self._add_wait(attempt.admitted_s - attempt.arrived_s)
            self._add_latency(now - attempt.first_s)
            if self._record is not None:
                self._record(attempt)
        if decisions:
            self._obey(decisions)
        if self._clients is not None:
            self._think(self._client_of.pop(attempt.index))
        if self._engine is not None:
            self._arm_where_it_sleeps()

    def _lose_patience(self, attempt: Attempt) -> None:
        if attempt.state is not _QUEUED:
            return
        self._out_of_queue(attempt)
        decisions = self._gate.finish(attempt, Outcome.CLIENT_GONE_QUEUED)
        if not self._tells_patience or not self._tries_again(attempt, None):
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
        self._at(at_s, _DEPARTURE, self._go, attempt)

    def _go(self, attempt: Attempt) -> None:
        if attempt.state is not _IN_FLIGHT:
            return
        cooling_s = self._scenario.cooling_s
        if cooling_s:
            self._at(self._loop.time_s + cooling_s, _COMPLETION, self._noticed, attempt)
            decisions = self._gate.cool(attempt, Outcome.CLIENT_GONE_STREAMING)
        else:
            self._abort(attempt)
            decisions = self._gate.finish(attempt, Outcome.CLIENT_GONE_STREAMING)
        self.records.released(attempt)
        self._over(attempt, "left")
        self._obey(decisions)
        self._arm()

    def _noticed(self, attempt: Attempt) -> None:
        self._abort(attempt)
        self._let_go(attempt)

    def _abort(self, attempt: Attempt) -> None:
        if not self._always_has_slots:  # there, the end of one that is gone is ignored
            self._backend.abort(attempt)

    def _let_go(self, attempt: Attempt) -> None:
        """Tell the gate that the engine is done with an attempt, unless it waits no longer."""
        if attempt.state is _COOLING:
            self._obey(self._gate.finish(attempt, Outcome.CLIENT_GONE_STREAMING))
            self._arm()

    # The queue's one timer, and the engine's sleep

    def _arm_where_it_sleeps(self) -> None:
        """Arm, unless the timer fires before idleness can want anything of an awake engine."""
        awake = self._gate.state is _AWAKE
        if not awake or self._armed_s > self._loop.time_s + self._soonest_s:
            self._arm()

    def _arm(self) -> None:
        if not (self._expecting or self.records.inside or self._returning or self._gate.cooling):
            return  # an engine that is left alone would be looked at for ever
        deadline_s = self._gate.next_deadline()
        if deadline_s is not None and deadline_s < self._armed_s:
            self._armed_s = deadline_s
            at_s = max(deadline_s, self._loop.time_s)
            self._at(at_s, _EXPIRY, self._expire, deadline_s)

    def _expire(self, armed_s: float) -> None:
        if armed_s != self._armed_s:
            return
        self._armed_s = inf
        deadline_s = self._gate.next_deadline()
        if deadline_s is not None and deadline_s <= self._loop.time_s:
            self._obey(self._gate.expire())
        self._arm()

    def _reported(self, name: str | None, report: Report) -> None:
        self._obey(self._gate.report(report, name))
        self._arm()
