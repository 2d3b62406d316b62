"""From replications to numbers with intervals: means, paired differences, distances in sigmas.

Rule 1: a percentile is computed in each replication and then averaged over replications; values
        of different replications are never pooled.
Rule 2: intervals are Student's t over replication means; two points of a sweep are compared by the
        differences of their replications, which saw the same requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, inf, isfinite, sqrt

from scipy.special import ndtri, stdtr, stdtrit


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over replications and the half-width of its 95 % interval.

    Both are None when a replication has no finite value; the half-width also with one replication.
    """

    mean: float | None
    ci95: float | None

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return -inf if self.mean is None or self.ci95 is None else self.mean - self.ci95

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return inf if self.mean is None or self.ci95 is None else self.mean + self.ci95


def estimate(values: Sequence[float | None]) -> Estimate:
    """Return mean and half-width of independent replication values."""
    known = [value for value in values if value is not None and isfinite(value)]
    if not known or len(known) < len(values):
        return Estimate(None, None)
    mean = fsum(known) / len(known)
    if len(known) < 2:
        return Estimate(mean, None)
    return Estimate(mean, float(stdtrit(len(known) - 1, 0.975)) * standard_error(known))


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
    below = float(ndtri(stdtr(len(known) - 1, -abs(off) / error)))
    return -below if off > 0 else below
