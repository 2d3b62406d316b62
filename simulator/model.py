"""One replication: simulated clients before the very gate that admits in production.

Rule 1: this module decides nothing that the gate decides. It calls `arrive`, `finish` and `expire`
        as the proxy's gatekeeper does and does what the decisions say.
Rule 2: one timer for the whole line, armed at `next_deadline()`: the head is the first to expire.
Rule 3: whatever is counted is counted by logical request, attempts besides.
"""

from collections.abc import Iterator, Sequence
from math import inf
from random import Random
from typing import Any, Protocol

from simulator.driver import Driver, Order
from simulator.laws import unit
from simulator.pool import Backend, FreeSlots, Pool
from simulator.records import Records
from simulator.scenario import Scenario
from simulator.tiers import Lifecycle
from simulator.visit import Visit, again
from simulator.workload import Clients, Closed, Purpose, Request, Streams, requests
from tornado_frontdoor.core.decisions import Admit, Decision, Outcome, Reason, Refusal, Refuse
from tornado_frontdoor.core.gate import AdmissionLimits, Gate
from tornado_frontdoor.core.request import Ticket, TicketState, UpstreamKey

_QUEUED = TicketState.QUEUED
_IN_FLIGHT = TicketState.IN_FLIGHT
_SERVED = Outcome.SERVED
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

    def hold(self, limit_s: float) -> Sequence[Decision]:
        """Close it: the engine is not awake."""
        ...

    def resume(self) -> Sequence[Decision]:
        """Open it again."""
        ...


class HeldGate(Gate):
    """A gate whose hold is pulled from outside, for as long as the model keeps its own tiers."""

    def hold(self, limit_s: float) -> Sequence[Decision]:
        """Close the gate: newcomers wait for `resume`, at most `limit_s`."""
        now = self._clock.now()
        return self._decide(self._admission.hold(limit_s, now), now)

    def resume(self) -> Sequence[Decision]:
        """Open the gate: the engine is awake."""
        now = self._clock.now()
        return self._decide(self._admission.resume(now), now)


def new_gate(scenario: Scenario, driver: Driver, streams: Streams) -> HeldGate:
    """Return the production gate on simulated time."""
    limits = AdmissionLimits(
        cap=scenario.cap, queue=scenario.queue, queue_timeout_s=scenario.timeout_s
    )
    pacing = Random(int(streams.of(Purpose.PACING).integers(1 << 62)))
    return HeldGate(SIMULATED, limits, driver, pacing)


class Run:
    """One replication from the first request to the last end; `records` has what came of it."""

    def __init__(
        self, scenario: Scenario, streams: Streams, driver: Driver, gate: GateLike
    ) -> None:
        self.records = Records(scenario, driver)
        self._scenario = scenario
        self._streams = streams
        self._driver = driver
        self._gate = gate
        self._backend: Backend = (
            FreeSlots(driver, self._served)
            if scenario.always_has_slots
            else Pool(scenario, streams, driver, self._served)
        )
        self._retry = scenario.retry
        self._hang_up = scenario.hang_up
        self._armed_s = inf
        self._index = 0
        self._mark = 0
        self._limit = scenario.requests
        self._requests: Iterator[Request] = iter(())
        self._clients: Clients | None = None
        self._inside = 0
        self._tiers = scenario.tiers
        self.lifecycle: Lifecycle | None = None
        if scenario.tiers is not None:
            self.lifecycle = Lifecycle(scenario.tiers, driver, self._hold, self._resume)

    def run(self) -> Records:
        """Carry the replication out."""
        scenario = self._scenario
        if self.lifecycle is not None:
            self.lifecycle.empty()
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
        self.records.end(self._index, self.lifecycle)
        return self.records

    # Who comes

    def _come(self, request: Request) -> None:
        self._new(request, request[0], -1)
        following = next(self._requests, None)
        if following is None:
            self.records.no_more_requests()
        else:
            self._driver.at(following[0], _ARRIVAL, self._come, following)

    def _think(self, client: int) -> None:
        assert self._clients is not None
        request = self._clients.after_thought(client)
        at_s = self._driver.time_s + request[0]
        self._driver.at(at_s, _ARRIVAL, self._ask, (client, request, at_s))

    def _ask(self, what: tuple[int, Request, float]) -> None:
        client, request, at_s = what
        if self._index == self._limit:
            return
        self._new(request, at_s, client)
        if self._index == self._limit:
            self.records.no_more_requests()

    def _new(self, request: Request, at_s: float, client: int) -> None:
        visit = Visit(request[4])
        visit.index = index = self._index
        visit.client = client
        visit.attempts = 1
        visit.first_s = at_s
        visit.work = request[1]
        visit.prompt = request[2]
        visit.patience_s = request[3]
        visit.lined = False
        self._index = index + 1
        if index == self._mark:
            self._mark = self.records.mark(index, at_s)
        self._enter(visit)

    def _enter(self, visit: Visit) -> None:
        self._inside += 1
        if self.lifecycle is not None and not self.lifecycle.arrived():
            self.records.met_cold(visit)
        decisions = self._gate.arrive(visit)
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

    # What the gate decides

    def _obey(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if type(decision) is Admit:
                visit: Any = decision.ticket
                if visit.lined:
                    self._out_of_line(visit)
                self.records.admitted(visit)
                visit.started_s = visit.admitted_s
                self._backend.start(visit)
                if self._hang_up:
                    self._maybe_hang_up(visit)
            elif type(decision) is Refuse:
                visit = decision.ticket
                if visit.lined:
                    self._out_of_line(visit)
                self._refused(visit, decision.refusal)
            # Else the wake machine wants something done: this engine has a sleep of its own.

    def _out_of_line(self, visit: Visit) -> None:
        visit.lined = False
        self.records.unlined()

    def _refused(self, visit: Visit, refusal: Refusal) -> None:
        self._inside -= 1
        self.records.refused(visit)
        told_s = self._told(refusal)
        if self._retry.kind != "none" and refusal.reason is not Reason.BAD_REQUEST:
            streams = self._streams
            place = (streams.seed, streams.replication, Purpose.LATE, 0, visit.index)
            pause_s = self._retry.pause(told_s, visit.attempts, unit(*place, visit.attempts))
            if pause_s is not None:
                at_s = self._driver.time_s + pause_s
                self.records.returns(visit)
                self._driver.at(at_s, _ARRIVAL, self._enter, again(visit))
                self._rest()
                return
        self._over(visit, refusal.reason.value)

    def _told(self, refusal: Refusal) -> float | None:
        if refusal.reason is Reason.MODEL_WAKING and self.lifecycle and self._tiers:
            return self._tiers.retry_after_s[max(self.lifecycle.level, 1) - 1]
        return refusal.retry_after_s

    def _over(self, visit: Visit, outcome: str) -> None:
        """End a logical request."""
        self.records.over(visit, outcome)
        if visit.client >= 0:
            self._think(visit.client)
        self._rest()

    def _rest(self) -> None:
        if self.lifecycle is not None and self._inside == 0:
            self.lifecycle.empty()

    # What happens to visits

    def _served(self, visit: Visit) -> None:
        if visit.state is not _IN_FLIGHT:
            return  # its client has hung up
        self._inside -= 1
        decisions = self._gate.finish(visit, _SERVED)
        self.records.served(visit)
        if decisions:
            self._obey(decisions)
        if visit.client >= 0:
            self._think(visit.client)
        if self.lifecycle is not None:
            self._rest()

    def _lose_patience(self, visit: Visit) -> None:
        if visit.state is not _QUEUED:
            return
        self._out_of_line(visit)
        self._inside -= 1
        decisions = self._gate.finish(visit, Outcome.CLIENT_GONE_QUEUED)
        self._over(visit, "left")
        self._obey(decisions)

    def _maybe_hang_up(self, visit: Visit) -> None:
        streams = self._streams
        place = (streams.seed, streams.replication, Purpose.LATE, 2, visit.index)
        if unit(*place) >= self._hang_up:
            return
        # What it would take alone: a share of that never lies beyond its end.
        profile = self._scenario.service.profile
        takes_s = visit.work if profile is None else profile.alone_s(visit.prompt, visit.work)
        at_s = self._driver.time_s + takes_s * unit(*place, 1)
        self._driver.at(at_s, Order.DEPARTURE, self._go, visit)

    def _go(self, visit: Visit) -> None:
        if visit.state is not _IN_FLIGHT:
            return
        self._backend.abort(visit)
        self._inside -= 1
        decisions = self._gate.finish(visit, Outcome.CLIENT_GONE_STREAMING)
        self.records.landed(visit)
        self._over(visit, "left")
        self._obey(decisions)

    # The line's one timer, and the engine's sleep

    def _arm(self) -> None:
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

    def _hold(self, limit_s: float) -> None:
        self._obey(self._gate.hold(limit_s))
        self._arm()

    def _resume(self) -> None:
        self._obey(self._gate.resume())
        self._arm()
        self._rest()
