"""Random laws of times and sizes, and numbers that depend on nothing but their place.

Rule 1: a law draws whole arrays from a generator that is given to it and keeps no state.
Rule 2: what is decided late (where a retry goes, when a client hangs up) is a function of the
        replication, the request and the attempt, so that it is the same at every cap and queue.
"""

from dataclasses import dataclass, replace
from math import inf, log
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

Kind = Literal["const", "exp", "lognormal", "empirical"]


@dataclass(frozen=True, slots=True)
class Distribution:
    """A law of non-negative numbers with mean `mean`; `sigma` is the log's deviation.

    An empirical law draws from `values` with equal chances.
    """

    kind: Kind
    mean: float
    sigma: float = 0.0
    values: tuple[float, ...] = ()

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Return `count` independent numbers."""
        match self.kind:
            case "const":
                return np.full(count, self.mean)
            case "exp":
                return rng.exponential(self.mean, count)
            case "lognormal":
                return rng.lognormal(log(self.mean) - self.sigma**2 / 2, self.sigma, count)
            case "empirical":
                return np.asarray(self.values)[rng.integers(0, len(self.values), count)]

    @property
    def random(self) -> bool:
        """Whether two draws can differ."""
        return self.kind != "const" and self.mean > 0

    def scaled(self, factor: float) -> "Distribution":
        """Return the law of `factor` times the number."""
        values = tuple(value * factor for value in self.values)
        return replace(self, mean=self.mean * factor, values=values)

    def __str__(self) -> str:
        match self.kind:
            case "lognormal":
                return f"lognormal:{self.mean:g},{self.sigma:g}"
            case "empirical":
                return f"empirical ({len(self.values)} values, mean {self.mean:.6g})"
            case kind:
                return f"{kind}:{self.mean:g}"


def empirical(values: tuple[float, ...]) -> Distribution:
    """Return the law that draws from `values`; raises ValueError when there are none."""
    if not values:
        raise ValueError("there are no values to draw from")
    return Distribution("empirical", sum(values) / len(values), 0.0, values)


NEVER = Distribution("const", inf)

_MASK = (1 << 64) - 1


def unit(*place: int) -> float:
    """Return a number in [0, 1) that only `place` decides, evenly spread (splitmix64)."""
    mixed = 0x9E3779B97F4A7C15
    for part in place:
        mixed = (mixed + (part & _MASK) * 0xBF58476D1CE4E5B9 + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        mixed ^= mixed >> 31
    return (mixed >> 11) * 2.0**-53


def exponential(mean: float, at: float) -> float:
    """Return the exponential number with that mean at the quantile `at`, in [0, 1)."""
    return -mean * log(1.0 - at)
