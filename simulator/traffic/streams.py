"""The random streams of one replication, one for each purpose: points see the same requests."""

from enum import IntEnum

import numpy as np


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
