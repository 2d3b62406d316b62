"""From events to numbers with intervals: tallies, replication means, paired differences.

Rule 1: a percentile is computed in each replication and then averaged over replications; values
        of different replications are never pooled.
Rule 2: intervals are Student's t over replication means; two points of a sweep are compared by the
        differences of their replications, which saw the same requests.
Rule 3: memory does not grow with the number of requests: beyond `EXACT_VALUES` a tally folds its
        values into classes a thousandth wide. Below it, percentiles are values that occurred.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, fsum, inf, isfinite, log, sqrt

import numpy as np
from scipy.special import ndtri, stdtr, stdtrit

from simulator.laws import Floats

EXACT_VALUES = 1 << 17
SMALLEST = 1e-6
"""Values below it (seconds) count as 0 once they are folded."""
CLASS_WIDTH = 1e-3
"""Relative width of a class: a folded percentile is at most half of it off."""
CLASSES = ceil(log(1e14) / CLASS_WIDTH)


class Tally:
    """Many values of one kind: their mean and percentiles. `add` is a list's append."""

    __slots__ = ("_classes", "_count", "_exact", "_sums", "_values", "_zeros", "add")

    def __init__(self) -> None:
        self._values: list[float] = []
        self.add = self._values.append
        self._exact: list[Floats] = []
        self._sums: list[float] = []
        self._classes: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None
        self._zeros = 0
        self._count = 0

    def settle(self) -> None:
        """Take in what was added; called now and then, so that plain floats do not pile up."""
        if not self._values:
            return
        values = np.array(self._values)
        self._values.clear()
        self._count += len(values)
        self._sums.append(float(values.sum()))
        if self._classes is not None:
            self._fold(values)
            return
        self._exact.append(values)
        if self._count > EXACT_VALUES:
            self._classes = np.zeros(CLASSES, dtype=np.int64)
            for exact in self._exact:
                self._fold(exact)
            self._exact.clear()

    def _fold(self, values: Floats) -> None:
        assert self._classes is not None
        large = values[values >= SMALLEST]
        self._zeros += len(values) - len(large)
        index = (np.log(large / SMALLEST) / CLASS_WIDTH).astype(np.int64)
        self._classes += np.bincount(np.minimum(index, CLASSES - 1), minlength=CLASSES)

    @property
    def count(self) -> int:
        """How many values were added."""
        return self._count + len(self._values)

    @property
    def mean(self) -> float | None:
        """Their mean; None when there are none."""
        self.settle()
        return fsum(self._sums) / self._count if self._count else None

    def percentiles(self, shares: Sequence[float], lost: int = 0) -> list[float | None]:
        """Return the smallest values that at least these shares do not exceed.

        `lost` further values count as infinite; None stands for nothing or infinity.
        """
        self.settle()
        total = self._count + lost
        ranks = [max(1, ceil(share * total - 1e-9)) for share in shares]
        if not self._count:
            return [None for _ in shares]
        if self._classes is None:
            ordered = np.sort(np.concatenate(self._exact))
            return [float(ordered[r - 1]) if r <= self._count else None for r in ranks]
        return [self._folded(rank) if rank <= self._count else None for rank in ranks]

    def _folded(self, rank: int) -> float:
        if rank <= self._zeros:
            return 0.0
        assert self._classes is not None
        index = int(np.searchsorted(np.cumsum(self._classes), rank - self._zeros))
        return float(SMALLEST * np.exp((index + 0.5) * CLASS_WIDTH))


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
    return Estimate(mean, float(stdtrit(len(known) - 1, 0.975)) * _error(known, mean))


def _error(values: Sequence[float], mean: float) -> float:
    """Return the standard error of the mean."""
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
    error = _error(known, mean)
    off = mean - exact
    if error == 0 or abs(off) <= 1e-12 * max(1.0, abs(exact)):
        return 0.0 if abs(off) <= 1e-9 * max(1.0, abs(exact)) else inf
    # In the lower tail, where a probability near 0 keeps its digits.
    below = float(ndtri(stdtr(len(known) - 1, -abs(off) / error)))
    return -below if off > 0 else below
