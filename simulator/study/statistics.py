"""From replications to numbers with intervals: means, paired differences, distances in sigmas.

Rule 1: a percentile is computed in each replication and then averaged over replications; of short
        ones it is that of all values together (`pooled.py`).
Rule 2: intervals are Student's t over replication means; two points of a sweep are compared by the
        differences of their replications, which saw the same requests.
Rule 3: where each replication is of another engine, of those that a log leaves open, an interval is
        for the one that there is: for one further replication, not for their mean. Shares and times
        of engines near saturation are lopsided, so it is taken where their spread is more even (of
        shares by the angle, of all else by the root), and holds what the replications came to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import asin, fsum, inf, isfinite, pi, sin, sqrt

from simulator.traffic.quantiles import normal_quantile, student_quantile, student_share


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over replications and the half-width of its 95 % interval.

    Both are None when a replication has no finite value; the half-width also with one replication.
    """

    mean: float | None
    ci95: float | None
    ends: tuple[float, float] | None = None
    """Where the interval is lopsided; `ci95` is then its longer half."""

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        if self.ends is not None:
            return self.ends[0]
        return -inf if self.mean is None or self.ci95 is None else self.mean - self.ci95

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        if self.ends is not None:
            return self.ends[1]
        return inf if self.mean is None or self.ci95 is None else self.mean + self.ci95


@dataclass(frozen=True, slots=True)
class SampleMean:
    """What independent values say of their mean."""

    mean: float
    error: float
    """Standard error of the mean."""
    freedom: int
    skewness: float

    @property
    def ci95(self) -> float:
        """The half-width of the 95 % interval."""
        return student_quantile(self.freedom, 0.975) * self.error

    def chance_at_most(self, limit: float, *, least_error: float = 0.0) -> float:
        """Return the chance that the true mean is not above the limit.

        Student's t, by Hall's transformation where values are lopsided: of rare losses most
        samples see too few, and then their deviation is too small as well.
        """
        error = max(self.error, least_error)
        if error == 0:
            return float(self.mean <= limit)
        count = self.freedom + 1
        off, lean = (self.mean - limit) / error, self.skewness / sqrt(count)
        evened = off + lean * off**2 / 3 + lean**2 * off**3 / 27 + lean / 6
        return student_share(self.freedom, -evened)


def sample_of(values: Sequence[float]) -> SampleMean:
    """Return what two or more independent values say of their mean."""
    mean = fsum(values) / len(values)
    rest = [value - mean for value in values]
    return SampleMean(mean, standard_error(values), len(values) - 1, skewness(rest))


def skewness(rest: Sequence[float]) -> float:
    """Return how lopsided deviations from a mean are; 0 where there are none."""
    square = fsum(each * each for each in rest) / len(rest)
    cube = fsum(each**3 for each in rest) / len(rest)
    return cube / square**1.5 if square > 0 else 0.0


def estimate(values: Sequence[float | None]) -> Estimate:
    """Return mean and half-width of independent replication values."""
    known = [value for value in values if value is not None and isfinite(value)]
    if not known or len(known) < len(values):
        return Estimate(None, None)
    mean = fsum(known) / len(known)
    if len(known) < 2:
        return Estimate(mean, None)
    return Estimate(mean, student_quantile(len(known) - 1, 0.975) * standard_error(known))


def estimate_of_one(values: Sequence[float | None], *, shares: bool) -> Estimate:
    """Return the mean of values, and the interval in which one further value is."""
    made = estimate(values)
    if made.mean is None or made.ci95 is None:
        return made
    evened = [_evened(value, shares=shares) for value in values if value is not None]
    middle = fsum(evened) / len(evened)
    half = student_quantile(len(evened) - 1, 0.975) * standard_error(evened) * sqrt(len(evened) + 1)
    known = sorted(value for value in values if value is not None)
    spared = (len(known) + 1) // 40  # of each end, where there are so many
    low = min(known[spared], made.mean, _as_it_was(middle - half, shares=shares))
    high = max(known[-1 - spared], made.mean, _as_it_was(middle + half, shares=shares))
    return Estimate(made.mean, max(made.mean - low, high - made.mean), (low, high))


def chance_at_most(
    values: Sequence[float], limit: float, *, shares: bool, least_deviation: float = 0.0
) -> float:
    """Return the chance that one further value is not above the limit."""
    evened = [_evened(value, shares=shares) for value in values]
    margin = _evened(limit, shares=shares) - fsum(evened) / len(evened)
    deviation = max(least_deviation, standard_error(evened) * sqrt(len(evened)))
    if deviation == 0:
        return float(margin >= 0)
    chance = student_share(len(evened) - 1, margin / (deviation * sqrt(1 + 1 / len(evened))))
    kept, all_of_them = sum(value <= limit for value in values), len(values) + 1
    return min(max(chance, kept / all_of_them), (kept + 1) / all_of_them)


def is_share(metric: str) -> bool:
    """Return whether a metric is a share of something: between 0 and 1."""
    return of_all(metric).endswith("_share") or metric == "utilization"


def of_all(metric: str) -> str:
    """Return a metric's name without the key whose alone it is: `served_share[A]` is of A."""
    return metric.partition("[")[0]


def _evened(value: float, *, shares: bool) -> float:
    root = sqrt(max(0.0, value))
    return asin(min(1.0, root)) if shares else root


def _as_it_was(evened: float, *, shares: bool) -> float:
    root = max(0.0, evened)
    return (sin(min(root, pi / 2)) if shares else root) ** 2


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of two or more values."""
    mean = fsum(values) / len(values)
    squares = fsum((value - mean) ** 2 for value in values)
    return sqrt(squares / (len(values) - 1) / len(values))


def paired(first: Sequence[float | None], second: Sequence[float | None]) -> Estimate:
    """Return the estimate of `first - second` over replications with common random numbers."""
    differences = [
        None if a is None or b is None else a - b for a, b in zip(first, second, strict=True)
    ]
    return estimate(differences)


def sigmas(values: Sequence[float | None], exact: float) -> float:
    """Return how many standard deviations of a normal law the mean is from the exact value.

    The t statistic is translated to the normal quantile of equal probability, so that 4 means the
    same for 5 replications and for 500.
    """
    known = [value for value in values if value is not None]
    if len(known) < 2 or len(known) < len(values):
        return inf
    mean = fsum(known) / len(known)
    error = standard_error(known)
    off = mean - exact
    if error == 0 or abs(off) <= 1e-12 * max(1.0, abs(exact)):
        return 0.0 if abs(off) <= 1e-9 * max(1.0, abs(exact)) else inf
    # In the lower tail, where a probability near 0 keeps its digits.
    below = normal_quantile(student_share(len(known) - 1, -abs(off) / error))
    return -below if off > 0 else below
