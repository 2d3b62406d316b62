"""What one replication leaves behind: counts and areas under curves, with the warm-up deleted.

Rule 1: a request is measured when its number is at least the warm-up, whenever it ends.
Rule 2: time averages run from the first measured arrival to the last arrival; in a terminating
        run to the last end. A `*_time_integral` is kept as if its height were 0 from now on: each
        jump takes its height times its instant off, so there is one addition for each and nothing
        to do in between; `_area` adds what the present height has made.
Rule 3: shares are of logical requests, and a lost request has an infinite latency.
"""

from math import isfinite
from typing import NamedTuple

from simulator.model.attempt import Attempt
from simulator.model.event_loop import EventLoop, HeapDriver
from simulator.model.key_records import KeyRecords
from simulator.model.kv_records import KvRecords
from simulator.model.scenario import EachRequest, Scenario
from simulator.model.sleeping_engine import StateTimes
from simulator.model.tally import Spread, Tally
from simulator.traffic.workload import BLOCK
from tornado_frontdoor.core.decisions import EngineState, SleepDepth

COUNTS = ("offered", "served", "queue_full", "queue_timeout", "left")
"""What the contract lists; others follow when they occur."""

Metrics = dict[str, float | None]


def metric_names(scenario: Scenario) -> tuple[str, ...]:
    """Return the names of the metrics that a run of this scenario has."""
    records = Records(scenario, HeapDriver())
    records.end(0, None if scenario.tiers is None else StateTimes())
    return tuple(records.metrics())


class _Snapshot(NamedTuple):
    at_s: float
    in_flight: int
    in_flight_time_integral: float
    queued: int
    queued_time_integral: float


class Gauge:
    """A height that jumps, the area under it by rule 2, and the highest it was."""

    __slots__ = ("height", "highest", "integral")

    def __init__(self) -> None:
        self.height = 0
        self.highest = 0
        self.integral = 0.0

    def up(self, by: int, at_s: float) -> None:
        """Note a jump up."""
        self.height = height = self.height + by
        self.integral -= by * at_s
        if height > self.highest:  # noqa: PLR1730 - max() would cost more than all the rest
            self.highest = height

    def down(self, by: int, at_s: float) -> None:
        """Note a jump down."""
        self.height -= by
        self.integral += by * at_s


class Records:
    """The books of one replication."""

    def __init__(self, scenario: Scenario, loop: EventLoop) -> None:
        self._scenario = scenario
        self._loop = loop
        self._warmup = scenario.warmup
        self.ends: dict[str, int] = {}
        self.offered = 0
        self._returns = 0
        self.attempts_refused = 0
        self.first_refused = 0
        self.cold = 0
        self.timeline: list[tuple[float, str, int]] = []
        self.waits = Tally()
        self.latencies = Tally()
        self.hidden = Tally()
        self.first_tokens = Tally()
        self.tokens = Tally()
        self.kept = 0
        self._each = scenario.each
        self._by_replicas = not scenario.always_has_slots
        self._tokens = scenario.service.profile is not None
        self._timed = scenario.terminating
        self.by_key = KeyRecords(scenario.keys, scenario.warmup) if scenario.keys else None
        self.kv: KvRecords | None = None
        if (profile := scenario.service.profile) is not None and profile.details.paged:
            self.kv = KvRecords(profile.details.kv_tokens, scenario.warmup)
        self.flights = Gauge()
        """Slots taken."""
        self.line = Gauge()
        """Places taken in the queue."""
        self._opened = _Snapshot(0.0, 0, 0.0, 0, 0.0)
        self._closed: _Snapshot | None = None
        self._times: StateTimes | None = None

    @property
    def in_flight(self) -> int:
        """Slots taken now."""
        return self.flights.height

    @property
    def inside(self) -> int:
        """Slots taken and places in the queue, now."""
        return self.flights.height + self.line.height

    # What happens

    def mark(self, index: int, at_s: float) -> int:
        """Note that request `index` comes; returns at which one to call this next.

        Not called for each of them: one comparison is all that most requests pay.
        """
        if index == self._warmup and index:
            self._opened = self._snapshot(at_s)
            if self.kv is not None:
                self.kv.open(at_s)
        self._settle()
        following = (index // BLOCK + 1) * BLOCK
        return self._warmup if index < self._warmup < following else following

    def released(self, attempt: Attempt) -> None:
        """Note that an attempt gave its slots back."""
        self.flights.down(attempt.weight, self._loop.time_s)

    def served(self, attempt: Attempt) -> None:
        """Note what else there is to note of a measured attempt that ran to its end."""
        token_s = 0.0
        if self._by_replicas:
            self.hidden.add(attempt.started_s - attempt.admitted_s)
            if self._tokens:
                first_token_s, further = attempt.first_token_s, attempt.work - 1
                self.first_tokens.add(first_token_s - attempt.first_s)
                token_s = (self._loop.time_s - first_token_s) / (further if further > 1 else 1.0)
                self.tokens.add(token_s)
        if self._each is not None:
            self.kept += self._keeps(self._each, attempt, token_s)
        if self.by_key is not None:
            self.by_key.served(attempt)
        if self._timed:
            self._note_end("served")

    def _keeps(self, each: EachRequest, attempt: Attempt, token_s: float) -> bool:
        return (
            self._loop.time_s - attempt.first_s <= each.latency_s
            and attempt.admitted_s - attempt.arrived_s <= each.wait_s
            and (
                not each.of_tokens
                or (
                    attempt.first_token_s - attempt.first_s <= each.first_token_s
                    and token_s <= each.token_s
                )
            )
        )

    def refused(self, attempt: Attempt) -> None:
        """Note a refused attempt."""
        if attempt.index >= self._warmup:
            self.attempts_refused += 1
            if attempt.attempts == 1:
                self.first_refused += 1

    def returns(self, attempt: Attempt) -> None:
        """Note that a refused request will come back."""
        if attempt.index >= self._warmup:
            self._returns += 1

    def over(self, attempt: Attempt, outcome: str) -> None:
        """Note that a logical request ended otherwise than served."""
        if attempt.index >= self._warmup:
            self.ends[outcome] = self.ends.get(outcome, 0) + 1
        if self._timed:
            self._note_end(outcome)

    def met_cold(self, attempt: Attempt) -> None:
        """Note that an attempt found the engine not awake."""
        if attempt.index >= self._warmup and attempt.attempts == 1:
            self.cold += 1

    def no_more_requests(self) -> None:
        """Note that the last request has come: a steady state ends here."""
        if not self._timed:
            self._close(self._loop.time_s)

    @property
    def attempts(self) -> int:
        """Times that measured requests came to the gate."""
        return self.offered + self._returns

    @property
    def states(self) -> list[tuple[float, EngineState]]:
        """When the engine came to which state; nothing without idle tiers."""
        return [] if self._times is None else self._times.changes

    def end(self, requests: int, times: StateTimes | None) -> None:
        """Note that nothing more will happen, and how many requests came in all."""
        self.offered = max(0, requests - self._warmup)
        self._times = times
        if self._closed is None:
            self._close(self.timeline[-1][0] if self.timeline else self._loop.time_s)
        self._settle()

    def _close(self, at_s: float) -> None:
        self._closed = self._snapshot(at_s)
        if self.kv is not None:
            self.kv.close(at_s)

    def _settle(self) -> None:
        for tally in (self.waits, self.latencies, self.hidden, self.first_tokens, self.tokens):
            tally.settle()

    def _snapshot(self, at_s: float) -> _Snapshot:
        return _Snapshot(
            at_s,
            self.flights.height,
            self.flights.integral,
            self.line.height,
            self.line.integral,
        )

    def _note_end(self, outcome: str) -> None:
        now = self._loop.time_s
        if self.timeline and self.timeline[-1][:2] == (now, outcome):
            self.timeline[-1] = (now, outcome, self.timeline[-1][2] + 1)
        else:
            self.timeline.append((now, outcome, 1))

    # What came of it

    def counts(self) -> dict[str, int]:
        """Return logical requests by how they ended."""
        ends = {"offered": self.offered, "served": self.waits.count, **self.ends}
        known = {name: ends.pop(name, 0) for name in COUNTS}
        assert self.offered == sum(known.values()) + sum(ends.values()) - self.offered
        return {**known, **dict(sorted(ends.items())), "attempts": self.attempts}

    def metrics(self) -> Metrics:
        """Return every metric of this replication; None where there is nothing to say."""
        counts = self.counts()
        share = self._shares(counts)
        opened, closed = self._opened, self._closed
        assert closed is not None
        window_s = closed.at_s - opened.at_s
        slot_seconds = self._area(
            closed.in_flight, closed.in_flight_time_integral, closed.at_s
        ) - self._area(opened.in_flight, opened.in_flight_time_integral, opened.at_s)
        queue_seconds = self._area(
            closed.queued, closed.queued_time_integral, closed.at_s
        ) - self._area(opened.queued, opened.queued_time_integral, opened.at_s)
        waits = self.waits.percentiles((0.5, 0.95, 0.99))
        latencies = self.latencies.percentiles((0.5, 0.95, 0.99))
        metrics: Metrics = {
            **share,
            "goodput_per_s": _per(counts["served"], window_s),
            "offered_per_s": _per(self.offered, window_s),
            "utilization": _per(slot_seconds, window_s * self._scenario.cap),
            "queue_length_mean": _per(queue_seconds, window_s),
            "wait_mean_s": self.waits.mean,
            **dict(zip(("wait_p50_s", "wait_p95_s", "wait_p99_s"), waits, strict=True)),
            **dict(
                zip(("latency_p50_s", "latency_p95_s", "latency_p99_s"), latencies, strict=True)
            ),
            **self._of_all_requests(),
            "in_flight_max": float(self.flights.highest),
            "queue_depth_max": float(self.line.highest),
            "hidden_wait_mean_s": self._hidden_mean_s(),
        }
        if self._tokens:
            metrics |= self._token_metrics()
        if self.kv is not None:
            metrics |= self.kv.metrics(self.offered)
        if self.by_key is not None:
            metrics |= self.by_key.metrics()
        if self._each is not None:
            metrics["kept_share"] = _per(self.kept, self.offered)
            metrics["kept_per_s"] = _per(self.kept, window_s)
        if cost := self._scenario.gpu_cost_per_h:
            metrics["cost_per_thousand"] = _per(1000 * cost / 3600 * window_s, counts["served"])
        if self._times is not None:
            metrics |= self._tier_metrics(self._times)
        return metrics

    def spreads(self) -> dict[str, Spread]:
        """Return how values are spread whose percentiles are metrics, of a short steady run."""
        if self._timed:
            return {}
        lost = self.offered - self.waits.count
        spreads = {
            "wait": self.waits.spread(),
            "latency": self.latencies.spread(),
            "latency_of_all": self.latencies.spread(lost),
            "first_token": self.first_tokens.spread(),
            "tpot": self.tokens.spread(),
        }
        return {name: spread for name, spread in spreads.items() if spread is not None}

    def _token_metrics(self) -> Metrics:
        p50, p95, p99 = self.first_tokens.percentiles((0.5, 0.95, 0.99))
        half, most = self.tokens.percentiles((0.5, 0.95))
        return {
            "first_token_p50_s": p50,
            "first_token_p95_s": p95,
            "first_token_p99_s": p99,
            "tpot_p50_s": half,
            "tpot_p95_s": most,
        }

    def _shares(self, counts: dict[str, int]) -> Metrics:
        offered = self.offered
        return {
            "rejected_share": _per(counts["queue_full"], offered),
            "timed_out_share": _per(counts["queue_timeout"], offered),
            "served_share": _per(counts["served"], offered),
            "lost_share": _per(offered - counts["served"], offered),
            "left_share": _per(counts["left"], offered),
            "attempts_per_request": _per(self.attempts, offered),
            "first_attempt_refused_share": _per(self.first_refused, offered),
            "attempt_refused_share": _per(self.attempts_refused, self.attempts),
        }

    def _of_all_requests(self) -> Metrics:
        lost = self.offered - self.waits.count
        p50, p95, p99 = self.latencies.percentiles((0.5, 0.95, 0.99), lost)
        return {
            "latency_of_all_p50_s": p50,
            "latency_of_all_p95_s": p95,
            "latency_of_all_p99_s": p99,
        }

    def _hidden_mean_s(self) -> float | None:
        if self._by_replicas:
            return self.hidden.mean
        return 0.0 if self.waits.count else None

    def _tier_metrics(self, times: StateTimes) -> Metrics:
        total_s = sum(times.seconds.values())

        def share(*states: EngineState) -> float | None:
            return _per(sum(times.seconds.get(state, 0.0) for state in states), total_s)

        def wakes_per_h(depth: SleepDepth) -> float | None:
            return _per(3600 * times.wakes.get(depth, 0), total_s)

        return {
            "awake_share": share(EngineState.AWAKE),
            "sleeping_share": share(EngineState.SLEEPING),
            "offloaded_share": share(EngineState.OFFLOADED),
            "in_transition_share": share(EngineState.FALLING_ASLEEP, EngineState.WAKING),
            "wakes_from_sleeping_per_h": wakes_per_h(SleepDepth.SLEEPING),
            "wakes_from_offloaded_per_h": wakes_per_h(SleepDepth.OFFLOADED),
            "cold_share": _per(self.cold, self.offered),
        }

    @staticmethod
    def _area(height: int, integral: float, at_s: float) -> float:
        return height * at_s + integral


def _per(part: float, whole: float) -> float | None:
    if not whole or not isfinite(whole):
        return None
    return part / whole
