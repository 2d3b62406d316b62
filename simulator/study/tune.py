"""One recommendation for one engine and its traffic, found by spending where it is in doubt.

Rule 1: the point wanted is that of `sweep`: the smallest cap below the slots, then the shortest
        queue, then the shortest timeout that keep every limit, with the headroom's traffic and
        today. A cap that cannot serve what is offered is out before anything is simulated.
Rule 2: a longer queue and a longer timeout never lose more and never make the served wait less. So
        of each cap the longest is tried first: if it loses too much, the cap is out. The shortest
        queue that loses little enough is found by bisection, timeout by timeout: if callers wait
        too long with it, or lose too much with the longest, that timeout is out.
Rule 3: a point is replicated until it is clear whether it keeps its limits, or `MOST` times; where
        theory knows the values, not at all. All points see the same requests.
Rule 4: doubts are kept: the confidence is the chance that the point keeps its limits and that none
        of those passed over does.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from simulator.model.scenario import Scenario
from simulator.study.capacity import Load, load_of
from simulator.study.experiment import Plan, Result, experiment
from simulator.study.limits import LimitCheck, judge
from simulator.study.sweep import CLEAR, DOUBT, Exact, nothing_exact

QUEUES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
FEWEST, MOST = 4, 32
"""Replications of a point: at first, and at most."""
MORE_HELPS = frozenset(
    {
        *("lost_share", "rejected_share", "served_share", "goodput_per_s", "utilization"),
        *("attempts_per_request", "first_attempt_refused_share", "attempt_refused_share"),
        *("timed_out_share", "left_share", "latency_of_all_p50_s", "latency_of_all_p95_s"),
        "latency_of_all_p99_s",
    }
)
"""Metrics that a longer queue or timeout makes better, if anything; it makes the others worse."""
MORE_IS_EITHER = frozenset({"kept_share", "kept_per_s", "cost_per_thousand"})
"""But for these, which a longer queue may make better and then worse."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What is known of one point: today and with the headroom's traffic."""

    scenario: Scenario
    today: Result | None
    stressed: Result | None
    judged_today: tuple[LimitCheck, ...]
    judged_stressed: tuple[LimitCheck, ...]

    @property
    def judgements(self) -> tuple[LimitCheck, ...]:
        """All of them."""
        return (*self.judged_stressed, *self.judged_today)

    @property
    def chance(self) -> float:
        """The chance that it keeps all limits."""
        return min((judgement.chance for judgement in self.judgements), default=1.0)

    def value(self, metric: str, *, stressed: bool = False) -> float | None:
        """A metric today or with the headroom: of theory where it has it, else of the sample."""
        judged = self.judged_stressed if stressed else self.judged_today
        for check in judged:
            if check.metric == metric and check.mean is not None:
                return check.mean
        result = self.stressed if stressed else self.today
        if result is None or not result.replications:
            return None
        return result.estimate(metric).mean

    @property
    def binding(self) -> LimitCheck | None:
        """The limit that is nearest, or missed most."""
        return min(self.judgements, key=lambda judgement: judgement.slack, default=None)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What `tune` found."""

    recommended: Trial | None
    confidence: float | None
    ruled_out: tuple[tuple[int, Load], ...]
    """Caps that cannot serve what is offered with the headroom."""
    trials: tuple[Trial, ...]
    """All points that were tried, in the order of their size."""
    neighbours: tuple[Trial, ...]
    """The recommended point's nearest: a cap, a queue, a timeout less and more."""
    headroom: float
    holds_with_headroom: bool = True
    simulated: int = 0
    """Requests that were simulated."""

    @property
    def borne(self) -> float:
        """The headroom with which the limits were kept, or looked for in vain."""
        return self.headroom if self.holds_with_headroom else 0.0

    @property
    def uncertain(self) -> bool:
        """Whether further replications might change the recommendation."""
        return self.confidence is None or self.confidence < 0.95


Say = Callable[[str], None]
Number = TypeVar("Number", bound=float)


@dataclass(kw_only=True)
class Search:
    """What is to be searched, and with what."""

    base: Scenario
    plan: Plan
    caps: Sequence[int]
    queues: Sequence[int]
    timeouts_s: Sequence[float]
    slo: Mapping[str, float]
    headroom: float
    exact: Exact = nothing_exact
    say: Say = field(default=lambda _: None)
    pool: Executor | None = None
    simulated: int = 0
    _results: dict[Scenario, Result] = field(default_factory=dict)
    _trials: dict[tuple[int, int, float], Trial] = field(default_factory=dict)

    def run(self) -> Tuned:
        """Return the recommendation."""
        caps: list[int] = []
        out: list[tuple[int, Load]] = []
        for cap in self.caps:
            world = self._at(cap, 0, 0).stressed(rate=1 + self.headroom)
            load = load_of(world)
            hopeless = load.share is not None and load.share * (1 - self._may_lose()) > 1
            if hopeless:
                out.append((cap, load))
            else:
                caps.append(cap)
        if out:
            self.say(ruled_out_text(out, self.headroom))
        found: tuple[int, int, float] | None = None
        for cap in caps:
            found = self._within(cap)
            if found is not None:
                break
        if found is None and self.headroom:
            self.say("nothing bears the headroom; without it:")
            again = replace(self, headroom=0.0, _results=self._results, _trials={}).run()
            return replace(again, headroom=self.headroom, holds_with_headroom=False)
        return self._tuned(found, tuple(out))

    def _may_lose(self) -> float:
        return self.slo.get("lost_share", 1 - self.slo.get("served_share", 0.0))

    # One cap

    def _within(self, cap: int) -> tuple[int, int, float] | None:
        """Return the smallest point of a cap that keeps every limit, or None."""
        if not self._loses_little(cap, self.queues[-1], self.timeouts_s[-1]):
            self.say(f"cap {cap} is out: even its longest queue misses {self._missed(cap)}")
            return None
        best: tuple[int, int, float] | None = None
        longest = len(self.queues) - 1
        fewest = self._shortest(cap, self.timeouts_s[-1], 0, longest)
        # The longest timeout first: a shorter one needs no shorter queue.
        for timeout_s in reversed(self.timeouts_s):
            if not self._waits_little(cap, self.queues[fewest], timeout_s):
                continue  # with each queue that it may need
            if not self._loses_little(cap, self.queues[longest], timeout_s):
                break  # shorter timeouts lose more
            fewest = self._shortest(cap, timeout_s, fewest, longest)
            for queue in self.queues[fewest : longest + 1]:
                if self.trial(cap, queue, timeout_s).chance >= 0.5:
                    best, longest = (cap, queue, timeout_s), self.queues.index(queue)
                    break
                if not self._waits_little(cap, queue, timeout_s):
                    break
        if best is None:
            self.say(f"cap {cap} is out: a queue long enough to lose little waits too long")
        return best

    def _shortest(self, cap: int, timeout_s: float, low: int, high: int) -> int:
        """Return the place of the shortest queue that loses little; that at `high` does."""
        while low < high:
            middle = (low + high) // 2
            if self._loses_little(cap, self.queues[middle], timeout_s):
                high = middle
            else:
                low = middle + 1
        return low

    def _loses_little(self, cap: int, queue: int, timeout_s: float) -> bool:
        judged = self.trial(cap, queue, timeout_s).judgements
        return all(each.chance >= 0.5 for each in judged if each.metric in MORE_HELPS)

    def _waits_little(self, cap: int, queue: int, timeout_s: float) -> bool:
        judged = self.trial(cap, queue, timeout_s).judgements
        return all(
            each.chance >= 0.5 for each in judged if each.metric not in MORE_HELPS | MORE_IS_EITHER
        )

    def _missed(self, cap: int) -> str:
        judged = self.trial(cap, self.queues[-1], self.timeouts_s[-1]).judgements
        helped = [each for each in judged if each.metric in MORE_HELPS]
        binding = min(helped, key=lambda each: each.slack)
        value = "unknown" if binding.mean is None else f"{binding.mean:.3g}"
        return f"{binding.metric} {binding.limit:g} (it is {value})"

    # One point

    def trial(self, cap: int, queue: int, timeout_s: float) -> Trial:
        """Return what is known of a point, and find out what has to be known."""
        key = (cap, queue, timeout_s)
        if key not in self._trials:
            world = self._at(*key)
            today, judged_today = self._judged(world)
            stressed: Result | None = None
            judged_stressed: tuple[LimitCheck, ...] = ()
            if self.headroom and min((j.chance for j in judged_today), default=1.0) > DOUBT:
                stressed, judged_stressed = self._judged(world.stressed(rate=1 + self.headroom))
            made = Trial(world, today, stressed, judged_today, judged_stressed)
            self._trials[key] = made
            self.say(_progress(made))
        return self._trials[key]

    def _at(self, cap: int, queue: int, timeout_s: float) -> Scenario:
        return self.base.at(cap, queue, timeout_s)

    def _judged(self, world: Scenario) -> tuple[Result | None, tuple[LimitCheck, ...]]:
        exact = self.exact(world)
        if set(self.slo) <= set(exact):
            return None, judge(Result(()), self.slo, exact)
        result = self._replicated(world, FEWEST)
        while True:
            judged = judge(result, self.slo, exact)
            clear = all(not CLEAR < each.chance < 1 - CLEAR for each in judged)
            worst = min((each.chance for each in judged), default=1.0)
            done = len(result.replications)
            if clear or worst <= CLEAR or done >= MOST or not world.random:
                return result, judged
            result = self._replicated(world, 2 * done)

    def _replicated(self, world: Scenario, replications: int) -> Result:
        known = self._results.get(world)
        done = 0 if known is None else len(known.replications)
        wanted = replications if world.random else 1
        if done < wanted:
            plan = replace(self.plan, replications=wanted - done)
            (more,) = experiment([world], plan, pool=self.pool, first=done)
            before = () if known is None else known.replications
            known = Result((*before, *more.replications), more.uncertain_engine)
            self._results[world] = known
            self.simulated += sum(each.counts["offered"] for each in more.replications)
        assert known is not None
        return known

    # What came of it

    def _tuned(
        self, found: tuple[int, int, float] | None, out: tuple[tuple[int, Load], ...]
    ) -> Tuned:
        searched = dict(self._trials)
        if found is None:
            return Tuned(
                None, None, out, _ordered(searched), (), self.headroom, True, self.simulated
            )
        best = searched[found]
        confidence = best.chance
        for key, trial in searched.items():
            if key < found:
                confidence *= 1 - min(trial.chance, 0.5)
        neighbours = [self.trial(*key) for key in self._near(found)]
        return Tuned(
            self._shown(best),
            confidence,
            out,
            _ordered(self._trials),
            tuple(self._shown(trial) for trial in neighbours),
            self.headroom,
            True,
            self.simulated,
        )

    def _shown(self, trial: Trial) -> Trial:
        """Return a trial with all its metrics, also where theory was enough to judge it."""
        today = self._replicated(trial.scenario, FEWEST)
        stressed = trial.stressed
        if self.headroom and stressed is None:
            stressed = self._replicated(trial.scenario.stressed(rate=1 + self.headroom), FEWEST)
        return replace(trial, today=today, stressed=stressed)

    def _near(self, found: tuple[int, int, float]) -> list[tuple[int, int, float]]:
        cap, queue, timeout_s = found
        near = [(other, queue, timeout_s) for other in _beside(self.caps, cap)]
        near += [(cap, other, timeout_s) for other in _beside(self.queues, queue)]
        near += [(cap, queue, other) for other in _beside(self.timeouts_s, timeout_s)]
        return near


def _progress(trial: Trial) -> str:
    """Return in one line what a point came to."""
    world, binding = trial.scenario, trial.binding
    point = f"cap {world.cap}, queue {world.queue}, timeout {world.timeout_s:g} s"
    if binding is None:
        return f"{point}: no limits"
    value = "unknown" if binding.mean is None else f"{binding.mean:.3g}"
    verb = "keeps" if trial.chance >= 0.5 else "misses"
    return f"{point} {verb} the limits: {binding.metric} {value}, limit {binding.limit:g}"


def ruled_out_text(out: Sequence[tuple[int, Load]], headroom: float) -> str:
    """Return in one line which caps cannot serve what is offered."""
    cap, load = out[-1]
    caps = f"cap {cap} serves" if len(out) == 1 else f"caps {out[0][0]} to {cap} serve"
    return (
        f"{caps} at most {load.served_at_most_per_s:.3g} requests a second; "
        f"{'with the headroom ' if headroom else ''}{load.offered_per_s:.3g} are offered"
    )


def _beside(values: Sequence[Number], value: Number) -> list[Number]:
    at = list(values).index(value)
    return [*values[max(0, at - 1) : at], *values[at + 1 : at + 2]]


def _ordered(trials: Mapping[tuple[int, int, float], Trial]) -> tuple[Trial, ...]:
    return tuple(trials[key] for key in sorted(trials))
