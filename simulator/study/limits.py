"""Whether a point keeps its limits, and how sure that is: the chance, limit by limit.

Rule 1: a value that theory knows exactly is not judged by a sample.
Rule 2: the chance is that of the true mean, given the replications: Student's t, mended where they
        are lopsided, and for shares never surer than so many independent requests could make it.
Rule 3: what never happened in n requests may still have a true share of about 3 / n.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, exp, log, sqrt

from simulator.study.experiment import Result
from simulator.study.statistics import chance_at_most, is_share, of_all

LARGER_IS_BETTER = frozenset(
    {"served_share", "goodput_per_s", "utilization", "awake_share", "kept_share", "kept_per_s"}
)
"""A limit on these is the least that there must be, of one key or of all; on others the most."""

PERCENTILES_OFF = 25.0
"""A percentile of n requests that follow each other is off by some 25 / n of itself on average, in
every replication alike: as many of them as there may be do not know it better."""
_PERCENTILE = re.compile(r"_p(\d+)_s$")


def is_least(metric: str) -> bool:
    """Return whether a limit on a metric is the least that there must be."""
    return of_all(metric) in LARGER_IS_BETTER


def limit_text(check: "LimitCheck") -> str:
    """Return a limit as it is meant: `at least 0.9` where less would miss it."""
    return f"{'at least ' if is_least(check.metric) else ''}{check.limit:g}"


def fewest_requests(slo: Mapping[str, float], replications: int) -> tuple[int, str]:
    """Return with how many requests each limit could be seen to be kept, and which needs them.

    A percentile needs as many as make one request of its tail; a share so many in all replications
    that a run without a loss speaks for it (rule 3).
    """
    fewest = {"any limit": 1}
    for name, limit in slo.items():
        if found := _PERCENTILE.search(name):
            fewest[f"{name}={limit:g}"] = ceil(round(100 / (100 - int(found[1])), 6))
        elif is_share(name) and (room := 1 - limit if is_least(name) else limit) > 0:
            fewest[f"{name}={limit:g}"] = ceil(log(2) / room / replications)
    why = max(fewest, key=fewest.__getitem__)
    return fewest[why], why


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
        away = self.mean - self.limit if is_least(self.metric) else self.limit - self.mean
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
    sign = 1.0 if is_least(name) else -1.0
    keeps = sign * (mean - limit) >= 0
    chance = _chance(result, name, limit, sign * (mean - limit)) if exact is None else float(keeps)
    return LimitCheck(name, limit, mean, keeps, chance, exact is not None)


def _chance(result: Result, name: str, limit: float, margin: float) -> float:
    """Return the chance that the true mean is on the good side, `margin` being the distance."""
    sample = result.sample(name)
    offered = result.counts().get("offered", 0)
    if sample is None:
        return float(margin >= 0)
    if result.uncertain_engine:
        values = [value for value in result.values(name) if value is not None]
        return _chance_of_one(values, name, limit, offered)
    least = 0.0
    if is_share(name) and offered:
        if sample.mean == 0:
            return 1 - exp(-abs(margin) * offered) if margin >= 0 else 0.0
        least = sqrt(max(0.0, sample.mean * (1 - sample.mean)) / offered)
    elif _PERCENTILE.search(name) and offered:
        least = abs(sample.mean) * PERCENTILES_OFF * len(result.replications) / offered
    below = sample.chance_at_most(limit, least_error=least)
    return 1 - below if is_least(name) else below


def _chance_of_one(values: list[float], name: str, limit: float, offered: int) -> float:
    """Return the chance that it is kept by the engine that there is, one of those it may be."""
    shares = is_share(name)
    # Of a share, an angle deviates by that much at least.
    least = sqrt(len(values) / offered) / 2 if shares and offered else 0.0
    below = chance_at_most(values, limit, shares=shares, least_deviation=least)
    return 1 - below if is_least(name) else below
