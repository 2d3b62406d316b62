"""Choosing among points: which are not dominated, which one a stated rule picks, which are alike.

Rule 1: all points saw the same requests, so points are compared by the differences of their
        replications, and a difference counts only when its 95 % interval says so.
Rule 2: the recommendation is the smallest cap, then the shortest queue, then the shortest timeout
        of the points whose means keep every limit. A smaller cap leaves more of the engine to
        those who are in it.
Rule 3: the Pareto set is over what callers feel: the lost share and the p95 latency of the served.
        The cap is not in it: where speed does not fall with the batch, more slots are always
        better for callers, and the recommended point need not be in the set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.model.scenario import Scenario
from simulator.study.experiment import Result
from simulator.study.statistics import paired

OBJECTIVES = ("lost_share", "latency_p95_s")
"""Minimised."""
ALIKE_BY = ("lost_share", "wait_p95_s")
LARGER_IS_BETTER = frozenset({"served_share", "goodput_per_s", "utilization", "awake_share"})


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a sweep."""

    scenario: Scenario
    result: Result
    pareto: bool
    keeps_limits: bool
    alike: bool
    """Whether it cannot be told apart from the recommended point."""


@dataclass(frozen=True, slots=True)
class Choice:
    """All points, the recommended one or None, and why."""

    points: tuple[Point, ...]
    recommended: Point | None
    why: str


def choose(
    scenarios: Sequence[Scenario], results: Sequence[Result], slo: Mapping[str, float]
) -> Choice:
    """Return the points with their marks; raises KeyError for a limit on no metric."""
    keeps = [_keeps(result, slo) for result in results]
    order = sorted(range(len(scenarios)), key=lambda at: _size(scenarios[at]))
    best = next((at for at in order if keeps[at]), None)
    points = tuple(
        Point(
            scenario,
            result,
            not any(
                _dominates(other, results[at]) for other in results if other is not results[at]
            ),
            keeps[at],
            best is not None and at != best and _alike(results[at], results[best]),
        )
        for at, (scenario, result) in enumerate(zip(scenarios, results, strict=True))
    )
    if best is None:
        return Choice(points, None, _why_none(results, slo))
    return Choice(points, points[best], _why(points, best, slo))


def _size(scenario: Scenario) -> tuple[int, int, float]:
    return scenario.cap, scenario.queue, scenario.timeout_s


def _keeps(result: Result, slo: Mapping[str, float]) -> bool:
    return all(_keeps_one(name, result.estimate(name).mean, limit) for name, limit in slo.items())


def _keeps_one(name: str, mean: float | None, limit: float) -> bool:
    if mean is None:
        return False
    return mean >= limit if name in LARGER_IS_BETTER else mean <= limit


def _dominates(other: Result, result: Result) -> bool:
    """Return whether `other` is nowhere shown to be worse and somewhere shown to be better."""
    better = False
    for name in OBJECTIVES:
        difference = paired(other.values(name), result.values(name))
        if difference.mean is None:
            continue
        margin = difference.ci95 or 0.0
        if difference.mean > margin or (difference.mean > 0 and not difference.ci95):
            return False
        better = better or difference.mean < -margin
    return better


def _alike(first: Result, second: Result) -> bool:
    """Return whether no paired interval of what matters leaves 0 out."""
    for name in ALIKE_BY:
        difference = paired(first.values(name), second.values(name))
        if difference.mean is None or abs(difference.mean) > (difference.ci95 or 0.0):
            return False
    return True


def _why(points: Sequence[Point], best: int, slo: Mapping[str, float]) -> str:
    point = points[best]
    told = []
    for name, limit in slo.items():
        value = point.result.estimate(name)
        assert value.mean is not None
        half = f" ± {value.ci95:.4g}" if value.ci95 is not None else ""
        clear = value.ci95 is not None and abs(value.mean - limit) > value.ci95
        doubt = "" if clear else ", which the interval does not settle: use more --reps"
        told.append(f"{name} {value.mean:.4g}{half} keeps {limit:g}{doubt}")
    text = (
        "smallest cap, then shortest queue, then shortest timeout of the points that keep every "
        f"limit: {'; '.join(told) or 'no limits'}"
    )
    alike = [_name(other.scenario) for other in points if other.alike]
    if alike:
        text += f". Cannot be told apart from it at this sample size: {', '.join(alike)}"
    return text


def _why_none(results: Sequence[Result], slo: Mapping[str, float]) -> str:
    told = []
    for name, limit in slo.items():
        means = [mean for r in results if (mean := r.estimate(name).mean) is not None]
        if not means:
            told.append(f"{name} is unknown everywhere")
            continue
        nearest = max(means) if name in LARGER_IS_BETTER else min(means)
        verb = "keeps" if _keeps_one(name, nearest, limit) else "misses"
        told.append(f"the best {name}, {nearest:.4g}, {verb} {limit:g}")
    return f"no point keeps every limit: {'; '.join(told)}"


def _name(scenario: Scenario) -> str:
    return f"cap {scenario.cap} queue {scenario.queue} timeout {scenario.timeout_s:g} s"
