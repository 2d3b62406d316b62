"""Many values of one kind, kept in bounded memory: their mean and percentiles.

Rule 1: percentiles are of one replication; of a short one it is kept how its values are spread.
Rule 2: memory does not grow with the number of requests: beyond `EXACT_VALUES` a tally folds its
        values into classes a thousandth wide. Below it, percentiles are values that occurred.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, fsum, inf, log

import numpy as np

from simulator.traffic.distributions import Floats

EXACT_VALUES = 1 << 17
SMALLEST = 1e-6
"""Values below it (seconds) count as 0 once they are folded."""
CLASS_WIDTH = 1e-3
"""Relative width of a class: a folded percentile is at most half of it off."""
CLASSES = ceil(log(1e14) / CLASS_WIDTH)


SHORT = 10_000
"""A replication of fewer values tells how they are spread, so that several can be pooled."""
_GROUPS = np.unique(
    np.concatenate(
        [np.linspace(0, 0.9, 101), np.linspace(0.9, 0.98, 101), np.linspace(0.98, 1, 101)]
    )
)
"""Shares at which values are grouped: finely where percentiles are looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """Values in order that stand for all, and how many each stands for."""

    values: Floats
    weights: Floats

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same to the last bit."""
        return isinstance(other, Spread) and all(
            map(np.array_equal, (self.values, self.weights), (other.values, other.weights))
        )

    __hash__ = None  # type: ignore[assignment]


class Tally:
    """Many values of one kind: their mean and percentiles. `add` is an array's append."""

    __slots__ = ("_classes", "_count", "_exact", "_sums", "_values", "_zeros", "add")

    def __init__(self) -> None:
        self._values = array("d")  # as C doubles: half the cost of keeping and copying objects
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
        del self._values[:]
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

    def spread(self, lost: int = 0) -> Spread | None:
        """Return how the values are spread, `lost` of them infinite; None if none or too many."""
        self.settle()
        total = self._count + lost
        if not self._count or total > SHORT or self._classes is not None:
            return None
        ordered = np.sort(np.concatenate([*self._exact, np.full(lost, inf)]))
        edges = np.unique((_GROUPS * total).round().astype(np.int64))
        middles = (edges[:-1] + edges[1:] - 1) // 2
        return Spread(ordered[middles], np.diff(edges).astype(np.float64))

    def _folded(self, rank: int) -> float:
        if rank <= self._zeros:
            return 0.0
        assert self._classes is not None
        index = int(np.searchsorted(np.cumsum(self._classes), rank - self._zeros))
        return float(SMALLEST * np.exp((index + 0.5) * CLASS_WIDTH))
