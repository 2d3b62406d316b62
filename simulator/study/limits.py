"""Whether a point keeps its limits, and how sure that is: the chance, limit by limit.

Rule 1: a value that theory knows exactly is not judged by a sample.
Rule 2: the chance is that of the true mean, given the replications: Student's t, and for shares
        never surer than so many independent requests could make it.
Rule 3: what never happened in n requests may still have a true share of about 3 / n.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, sqrt

from scipy.special import stdtr

from simulator.study.experiment import Result
from simulator.study.statistics import standard_error

LARGER_IS_BETTER = frozenset(
    {"served_share", "goodput_per_s", "utilization", "awake_share", "kept_share", "kept_per_s"}
)


@dataclass(frozen=True, slots=True)
class LimitCheck:
    """One limit of one point: the value, whether it keeps the limit, and the chance that it does.

    `slack` is the distance to the limit as a share of it; below 0 where it is missed.
    """

    metric: str
    limit: float
    mean: float | None
    keeps: bool
    chance: float
    exact: bool

    @property
    def slack(self) -> float:
        """How far from the limit, as a share of it."""
        if self.mean is None:
            return -1.0
        away = self.mean - self.limit if self.metric in LARGER_IS_BETTER else self.limit - self.mean
        return away / abs(self.limit) if self.limit else away


def judge(
    result: Result, slo: Mapping[str, float], exact: Mapping[str, float]
) -> tuple[LimitCheck, ...]:
    """Return the judgement of each limit; `exact` has the values that theory knows."""
    return tuple(_judge(result, name, limit, exact.get(name)) for name, limit in slo.items())


def _judge(result: Result, name: str, limit: float, exact: float | None) -> LimitCheck:
    mean = result.estimate(name).mean if exact is None else exact
    if mean is None:
        return LimitCheck(name, limit, None, keeps=False, chance=0.0, exact=False)
    sign = 1.0 if name in LARGER_IS_BETTER else -1.0
    keeps = sign * (mean - limit) >= 0
    chance = float(keeps) if exact is not None else _chance(result, name, sign * (mean - limit))
    return LimitCheck(name, limit, mean, keeps, chance, exact is not None)


def _chance(result: Result, name: str, margin: float) -> float:
    """Return the chance that the true mean is on the good side, `margin` being the distance."""
    values = [value for value in result.values(name) if value is not None]
    offered = result.counts().get("offered", 0)
    if len(values) < 2:
        return float(margin >= 0)
    mean = sum(values) / len(values)
    error = standard_error(values)
    if name.endswith("_share") and offered:
        if not any(values):
            return 1 - exp(-abs(margin) * offered) if margin >= 0 else 0.0
        error = max(error, sqrt(max(0.0, mean * (1 - mean)) / offered))
    if result.uncertain_engine:
        error *= sqrt(len(values) + 1)  # of one engine, not of the mean of all it may be
    if error == 0:
        return float(margin >= 0)
    return float(stdtr(len(values) - 1, margin / error))
