"""What one replication leaves behind: counts and areas under curves, with the warm-up deleted.

Rule 1: a request is measured when its number is at least the warm-up, whenever it ends.
Rule 2: time averages run from the first measured arrival to the last arrival; in a terminating
        run to the last end. An area is kept as the sum of jumps times their instants: one addition
        for each jump, and nothing to do in between.
Rule 3: shares are of logical requests, and a lost request has an infinite latency.
"""

from math import isfinite
from typing import NamedTuple

from simulator.model.attempt import Attempt
from simulator.model.event_loop import EventLoop
from simulator.model.scenario import Scenario
from simulator.model.sleeping_engine import StateTimes
from simulator.model.tally import Tally
from simulator.traffic.workload import BLOCK
from tornado_frontdoor.core.decisions import EngineState, SleepDepth

COUNTS = ("offered", "served", "queue_full", "queue_timeout", "left")
"""What the contract lists; others follow when they occur."""

Metrics = dict[str, float | None]


class _Reading(NamedTuple):
    at_s: float
    flying: int
    flying_jumps: float
    line: int
    line_jumps: float


class Records:
    """The books of one replication."""

    def __init__(self, scenario: Scenario, driver: EventLoop) -> None:
        self._scenario = scenario
        self._driver = driver
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
        self._add_wait = self.waits.add
        self._add_latency = self.latencies.add
        self.hidden = Tally()
        self.first_tokens = Tally()
        self._pooled = not scenario.always_has_slots
        self._tokens = scenario.service.profile is not None
        self._timed = scenario.terminating
        self._flying = 0
        self._flying_jumps = 0.0
        self._line = 0
        self._line_jumps = 0.0
        self.flying_max = 0
        self.line_max = 0
        self._opened = _Reading(0.0, 0, 0.0, 0, 0.0)
        self._closed: _Reading | None = None
        self._times: StateTimes | None = None

    @property
    def flying(self) -> int:
        """Slots taken now."""
        return self._flying

    @property
    def inside(self) -> int:
        """Slots taken and places in the line, now."""
        return self._flying + self._line

    # What happens

    def mark(self, index: int, at_s: float) -> int:
        """Note that request `index` comes; returns at which one to call this next.

        Not called for each of them: one comparison is all that most requests pay.
        """
        if index == self._warmup and index:
            self._opened = self._reading(at_s)
        self._settle()
        following = (index // BLOCK + 1) * BLOCK
        return self._warmup if index < self._warmup < following else following

    def lined(self) -> None:
        """Note that one more waits."""
        self._line = line = self._line + 1
        self._line_jumps += self._driver.time_s
        if line > self.line_max:  # noqa: PLR1730 - as in `admitted`
            self.line_max = line

    def unlined(self) -> None:
        """Note that one less waits."""
        self._line -= 1
        self._line_jumps -= self._driver.time_s

    def admitted(self, visit: Attempt) -> None:
        """Note that a visit holds its slots."""
        weight = visit.weight
        self._flying = flying = self._flying + weight
        self._flying_jumps += weight * visit.admitted_s
        if flying > self.flying_max:  # noqa: PLR1730 - max() would cost more than all the rest
            self.flying_max = flying

    def landed(self, visit: Attempt) -> None:
        """Note that a visit gave its slots back."""
        weight = visit.weight
        self._flying -= weight
        self._flying_jumps -= weight * self._driver.time_s

    def served(self, visit: Attempt) -> None:
        """Note that a visit ran to its end."""
        now = self._driver.time_s
        weight = visit.weight
        self._flying -= weight
        self._flying_jumps -= weight * now
        if visit.index >= self._warmup:
            self._add_wait(visit.admitted_s - visit.arrived_s)
            self._add_latency(now - visit.first_s)
            if self._pooled:
                self.hidden.add(visit.started_s - visit.admitted_s)
                if self._tokens:
                    self.first_tokens.add(visit.first_token_s - visit.first_s)
        if self._timed:
            self._tell("served")

    def refused(self, visit: Attempt) -> None:
        """Note a refused attempt."""
        if visit.index >= self._warmup:
            self.attempts_refused += 1
            if visit.attempts == 1:
                self.first_refused += 1

    def returns(self, visit: Attempt) -> None:
        """Note that a refused request will come back."""
        if visit.index >= self._warmup:
            self._returns += 1

    def over(self, visit: Attempt, outcome: str) -> None:
        """Note that a logical request ended otherwise than served."""
        if visit.index >= self._warmup:
            self.ends[outcome] = self.ends.get(outcome, 0) + 1
        if self._timed:
            self._tell(outcome)

    def met_cold(self, visit: Attempt) -> None:
        """Note that an attempt found the engine not awake."""
        if visit.index >= self._warmup and visit.attempts == 1:
            self.cold += 1

    def no_more_requests(self) -> None:
        """Note that the last request has come: a steady state ends here."""
        if not self._timed:
            self._closed = self._reading(self._driver.time_s)

    @property
    def attempts(self) -> int:
        """Times that measured requests came to the gate."""
        return self.offered + self._returns

    def end(self, requests: int, times: StateTimes | None) -> None:
        """Note that nothing more will happen, and how many requests came in all."""
        self.offered = max(0, requests - self._warmup)
        self._times = times
        if self._closed is None:
            last_s = self.timeline[-1][0] if self.timeline else self._driver.time_s
            self._closed = self._reading(last_s)
        self._settle()

    def _settle(self) -> None:
        for tally in (self.waits, self.latencies, self.hidden, self.first_tokens):
            tally.settle()

    def _reading(self, at_s: float) -> _Reading:
        return _Reading(at_s, self._flying, self._flying_jumps, self._line, self._line_jumps)

    def _tell(self, outcome: str) -> None:
        now = self._driver.time_s
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
        flying_s = self._area(closed.flying, closed.flying_jumps, closed.at_s) - self._area(
            opened.flying, opened.flying_jumps, opened.at_s
        )
        line_s = self._area(closed.line, closed.line_jumps, closed.at_s) - self._area(
            opened.line, opened.line_jumps, opened.at_s
        )
        waits = self.waits.percentiles((0.5, 0.95, 0.99))
        latencies = self.latencies.percentiles((0.5, 0.95, 0.99))
        metrics: Metrics = {
            **share,
            "goodput_per_s": _per(counts["served"], window_s),
            "offered_per_s": _per(self.offered, window_s),
            "utilization": _per(flying_s, window_s * self._scenario.cap),
            "queue_length_mean": _per(line_s, window_s),
            "wait_mean_s": self.waits.mean,
            **dict(zip(("wait_p50_s", "wait_p95_s", "wait_p99_s"), waits, strict=True)),
            **dict(
                zip(("latency_p50_s", "latency_p95_s", "latency_p99_s"), latencies, strict=True)
            ),
            **self._of_all_requests(),
            "in_flight_max": float(self.flying_max),
            "queue_depth_max": float(self.line_max),
            "hidden_wait_mean_s": self._hidden_mean_s(),
        }
        if self._tokens:
            p50, p95 = self.first_tokens.percentiles((0.5, 0.95))
            metrics |= {"first_token_p50_s": p50, "first_token_p95_s": p95}
        if self._times is not None:
            metrics |= self._tier_metrics(self._times)
        return metrics

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
        if self._pooled:
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
    def _area(height: int, jumps: float, at_s: float) -> float:
        return height * at_s - jumps


def _per(part: float, whole: float) -> float | None:
    if not whole or not isfinite(whole):
        return None
    return part / whole
