"""Choosing among points: which are not dominated, which one a stated rule picks, how sure that is.

Rule 1: all points saw the same requests, so points are compared by the differences of their
        replications, and a difference counts only when its 95 % interval says so.
Rule 2: the recommendation is the smallest cap, then the shortest queue, then the shortest timeout
        of the points that keep every limit, today and with the headroom's further traffic. A
        smaller cap leaves more of the engine to those who are in it.
Rule 3: a cap that is not below the engine's slots is neither recommended nor in the Pareto set:
        `frontdoor check` refuses it, and what it hides in the engine nobody can see.
Rule 4: the Pareto set is over what callers feel: the lost share and the p95 latency of the served.
        The cap is not in it: where speed does not fall with the batch, more slots are always
        better for callers, and the recommended point need not be in the set.
Rule 5: a recommendation that a smaller point may beat, or that may miss a limit, says so; before
        that, the points it hangs on get more replications, as far as the budget goes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan, sqrt

import numpy as np

from simulator.model.scenario import Scenario
from simulator.study.experiment import Result
from simulator.study.limits import LimitCheck, judge, limit_text
from simulator.study.spending import Spending
from simulator.study.statistics import Estimate, paired
from simulator.traffic.distributions import Floats
from simulator.traffic.quantiles import student_quantile

OBJECTIVES = ("lost_share", "latency_p95_s")
"""Minimised."""
ALIKE_BY = ("lost_share", "wait_p95_s")
DOUBT = 0.005
"""A chance below it, or above its complement, is taken for certain."""
CLEAR = DOUBT / 6
"""The same while replications are added: a point is looked at up to six times (`MOST` is five
doublings), and who looks often enough sees what there is not."""

Exact = Callable[[Scenario], Mapping[str, float]]
Stress = Callable[[Sequence[Scenario]], Sequence[Result]]
"""Computes scenarios at once: those with the headroom's further traffic."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a sweep."""

    scenario: Scenario
    result: Result
    pareto: bool
    judgements: tuple[LimitCheck, ...]
    alike: bool
    """Whether it cannot be told apart from the recommended point."""
    stressed: tuple[LimitCheck, ...] | None = None
    """The same with the headroom's further traffic, where that was asked."""

    @property
    def keeps_limits(self) -> bool:
        """Whether its means keep every limit today."""
        return all(judgement.keeps for judgement in self.judgements)

    @property
    def allowed(self) -> bool:
        """Whether `frontdoor check` would take its cap."""
        return self.scenario.below_slots


@dataclass(frozen=True, slots=True)
class Choice:
    """All points, the recommended one or None, why, and the chance that it is the right one."""

    points: tuple[Point, ...]
    recommended: Point | None
    why: str
    confidence: float | None = None
    headroom: float = 0.0
    holds_with_headroom: bool | None = None

    @property
    def uncertain(self) -> bool:
        """Whether a further replication might change the recommendation."""
        return self.confidence is not None and self.confidence < 1 - DOUBT


def nothing_exact(scenario: Scenario) -> Mapping[str, float]:  # noqa: ARG001 - an `Exact`
    """Know no exact value."""
    return {}


def choose(
    scenarios: Sequence[Scenario],
    results: Sequence[Result],
    slo: Mapping[str, float],
    *,
    exact: Exact = nothing_exact,
    stress: Stress | None = None,
    headroom: float = 0.0,
    spending: Spending | None = None,
) -> Choice:
    """Return the points with their marks; raises KeyError for a limit on no metric."""
    results = list(results)
    judged = [
        judge(result, slo, exact(scenario))
        for scenario, result in zip(scenarios, results, strict=True)
    ]
    order = [
        at
        for at in sorted(range(len(scenarios)), key=lambda at: _size(scenarios[at]))
        if scenarios[at].below_slots
    ]
    doubts = _Doubts(slo, exact, spending)
    today = {at: _chance(judged[at]) for at in order}
    stressed = _stressed(scenarios, order, today, doubts, stress, headroom)
    both = {
        at: min(today[at], _chance(stressed[at])) if at in stressed else today[at] for at in order
    }
    holds: bool | None = None
    if headroom and stress is not None:
        holds = any(at in stressed and both[at] >= 0.5 for at in order)
    if holds:
        chances = {at: both[at] if at in stressed else 0.0 for at in order}
    else:
        for at in order:
            results[at], judged[at] = doubts.settled(scenarios[at], results[at])
            today[at] = _chance(judged[at])
            if today[at] > 1 - DOUBT:
                break
        chances = today
    best = next((at for at in order if chances[at] >= 0.5), None)
    before = order if best is None else order[: order.index(best)]
    rivals = [at for at in before if chances[at] > DOUBT]
    dominated = _dominated([results[at] for at in order])
    pareto = {at for at, beaten in zip(order, dominated, strict=True) if not beaten}
    points = tuple(
        Point(
            scenario,
            result,
            at in pareto,
            judged[at],
            best is not None and at != best and _alike(result, results[best]),
            stressed.get(at),
        )
        for at, (scenario, result) in enumerate(zip(scenarios, results, strict=True))
    )
    if best is None:
        return Choice(points, None, _why_none(points, slo), headroom=headroom)
    confidence = chances[best]
    for at in rivals:
        confidence *= 1 - chances[at]
    why = _why(points, best, headroom if holds else 0.0)
    if holds is False:
        why += f". It does not keep them with {headroom:.0%} more traffic, and no point here does"
    why += _doubts(points, best, chances, rivals)
    return Choice(points, points[best], why, confidence, headroom, holds)


def _size(scenario: Scenario) -> tuple[int, int, float]:
    return scenario.cap, scenario.queue, scenario.timeout_s


def _chance(judgements: Sequence[LimitCheck]) -> float:
    """Return the chance that all limits are kept; they go together, so the worst one decides."""
    return min((judgement.chance for judgement in judgements), default=1.0)


BATCH = 4
"""Candidates whose headroom is tried at once."""


@dataclass(frozen=True, slots=True)
class _Doubts:
    """Whether points keep their limits, with as many replications as it takes to know."""

    slo: Mapping[str, float]
    exact: Exact
    spending: Spending | None

    def settled(self, scenario: Scenario, result: Result) -> tuple[Result, tuple[LimitCheck, ...]]:
        """Return the result with what more replications added, and its judgements."""
        known, first = self.exact(scenario), len(result.replications)
        while True:
            judged = judge(result, self.slo, known)
            if self.spending is None or not CLEAR < _chance(judged) < 1 - CLEAR:
                return result, judged
            more = self.spending.more(scenario, result, first)
            if more is None:
                return result, judged
            result = more


def _stressed(
    scenarios: Sequence[Scenario],
    order: Sequence[int],
    today: Mapping[int, float],
    doubts: _Doubts,
    stress: Stress | None,
    headroom: float,
) -> dict[int, tuple[LimitCheck, ...]]:
    """Judge candidates with the headroom's traffic, smallest first, until one surely holds."""
    judged: dict[int, tuple[LimitCheck, ...]] = {}
    if stress is None or not headroom:
        return judged
    candidates = [at for at in order if today[at] > DOUBT]
    for start in range(0, len(candidates), BATCH):
        batch = candidates[start : start + BATCH]
        worlds = [scenarios[at].stressed(rate=1 + headroom) for at in batch]
        for at, world, result in zip(batch, worlds, stress(worlds), strict=True):
            _, judged[at] = doubts.settled(world, result)
        if any(min(today[at], _chance(judged[at])) >= 0.5 for at in batch):
            break
    return judged


def _dominated(results: Sequence[Result]) -> list[bool]:
    """Return which results another one beats: nowhere shown to be worse, somewhere better."""
    columns = [[_column(result, name) for name in OBJECTIVES] for result in results]
    return [
        any(_dominates(other, column) for other in columns if other is not column)
        for column in columns
    ]


def _column(result: Result, name: str) -> Floats:
    return np.array([nan if value is None else value for value in result.values(name)])


def _dominates(others: Sequence[Floats], ours: Sequence[Floats]) -> bool:
    better = False
    for other, our in zip(others, ours, strict=True):
        common = min(len(other), len(our))
        differences = other[:common] - our[:common]
        mean = float(differences.mean())
        if not isfinite(mean):
            continue
        margin = 0.0
        if common > 1:
            error = float(differences.std(ddof=1)) / sqrt(common)
            margin = student_quantile(common - 1, 0.975) * error
        if mean > margin:
            return False
        better = better or mean < -margin
    return better


def _difference(first: Result, second: Result, name: str) -> Estimate:
    """Return the paired difference over the replications that both have."""
    common = min(len(first.replications), len(second.replications))
    return paired(first.values(name)[:common], second.values(name)[:common])


def _alike(first: Result, second: Result) -> bool:
    """Return whether no paired interval of what matters leaves 0 out."""
    for name in ALIKE_BY:
        difference = _difference(first, second, name)
        if difference.mean is None or abs(difference.mean) > (difference.ci95 or 0.0):
            return False
    return True


def _why(points: Sequence[Point], best: int, headroom: float) -> str:
    point = points[best]
    text = (
        "smallest cap, then shortest queue, then shortest timeout of the points that keep every "
        f"limit: {_kept(point.judgements, point.result)}"
    )
    if headroom and point.stressed is not None:
        text += f"; with {headroom:.0%} more traffic {_kept(point.stressed, None)}"
    judgements = [*point.judgements, *(point.stressed or ())]
    if judgements:
        binding = min(judgements, key=lambda judgement: judgement.slack)
        text += f". What binds is {binding.metric}"
    alike = [name_of(other.scenario) for other in points if other.alike and other.allowed]
    if alike:
        text += f". Cannot be told apart from it at this sample size: {', '.join(alike)}"
    return text


def _kept(judgements: Sequence[LimitCheck], result: Result | None) -> str:
    told = []
    for judgement in judgements:
        assert judgement.mean is not None
        half = None if result is None or judgement.exact else result.estimate(judgement.metric).ci95
        interval = f" ± {half:.4g}" if half is not None else ""
        value = f"{judgement.metric} {judgement.mean:.4g}{interval}"
        told.append(f"{value} keeps {limit_text(judgement)}")
    return "; ".join(told) or "no limits"


def _doubts(
    points: Sequence[Point], best: int, chances: Mapping[int, float], rivals: Sequence[int]
) -> str:
    text = ""
    if chances[best] < 1 - DOUBT:
        text += f". Uncertain: the chance that it keeps its limits is {chances[best]:.1%}"
    if rivals:
        told = (f"{name_of(points[at].scenario)} ({chances[at]:.1%})" for at in rivals)
        text += f". Uncertain: a smaller one may keep them too: {', '.join(told)}"
    return text + (": use more --reps" if text else "")


def _why_none(points: Sequence[Point], slo: Mapping[str, float]) -> str:
    allowed = [point for point in points if point.allowed]
    if not allowed:
        return "no cap here is below the engine's slots"
    told = []
    for at, name in enumerate(slo):
        known = [point.judgements[at] for point in allowed if point.judgements[at].mean is not None]
        if not known:
            told.append(f"{name} is unknown everywhere")
            continue
        nearest = max(known, key=lambda judgement: judgement.slack)
        verb = "keeps" if nearest.keeps else "misses"
        told.append(f"the best {name}, {nearest.mean:.4g}, {verb} {limit_text(nearest)}")
    doubtful = [point for point in allowed if _chance(point.judgements) > DOUBT]
    text = f"no point keeps every limit: {'; '.join(told)}"
    if doubtful:
        names = (f"{name_of(p.scenario)} ({_chance(p.judgements):.1%})" for p in doubtful)
        text += f". Uncertain: these may: {', '.join(names)}: use more --reps"
    return text


def name_of(scenario: Scenario) -> str:
    """Return the limits of a point in words."""
    return f"cap {scenario.cap} queue {scenario.queue} timeout {scenario.timeout_s:g} s"
