"""The random streams of one replication, one for each purpose: points see the same requests.

Rule: where a few replications are to try all that something may be, they take turns, so that any
number of them is spread evenly over it (a Halton sequence, moved by the seed).
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Purpose(IntEnum):
    """One random stream each."""

    GAPS = 0
    WORK = 1
    PROMPT = 2
    PATIENCE = 3
    THINNING = 4
    DWELLS = 5
    THINKING = 6
    PACING = 7
    MODEL = 9
    PACE = 10
    LATE = 8
    """Key of the numbers that `laws.unit` gives: retries, picks, hang-ups."""


class Streams:
    """The random streams of one replication."""

    def __init__(self, seed: int, replication: int) -> None:
        self.seed = seed
        self.replication = replication

    def of(self, purpose: Purpose, *more: int) -> np.random.Generator:
        """Return the stream of a purpose, from its beginning."""
        key = (self.replication, int(purpose), *more)
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))

    def spread(self, purpose: Purpose) -> tuple[float, float]:
        """Return a point of the open unit square; those of all replications are spread evenly."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(int(purpose),)))
        moved = (
            (_mirrored(self.replication, base) + float(shift)) % 1.0
            for base, shift in zip((2, 3), rng.random(2), strict=True)
        )
        first, second = (min(max(each, 1e-12), 1 - 1e-12) for each in moved)
        return first, second

    def parts(self, purpose: Purpose, stretches: int, parts: int) -> NDArray[np.int64]:
        """Return which part of each stretch is this replication's; `parts` of them have all."""
        turn, place = divmod(self.replication, parts)
        key = (int(purpose), turn, 0, 0)
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))
        each: NDArray[np.int64] = np.argsort(rng.random((stretches, parts)), axis=1)
        return each[:, place]

    def turn(self, purpose: Purpose) -> int:
        """Return the replication's number, counted from one that the seed chooses."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(int(purpose),)))
        return int(rng.integers(1 << 30)) + self.replication


def _mirrored(number: int, base: int) -> float:
    """Return the digits of a number behind the point, the last one first."""
    mirrored, unit = 0.0, 1.0
    while number:
        number, digit = divmod(number, base)
        unit /= base
        mirrored += digit * unit
    return mirrored
