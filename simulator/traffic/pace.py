"""How an engine's speed varies by itself within a run: each time of it is faster or slower.

Rule: who comes in a slow time is so much more work, a prompt as well as an answer. That is nearly
      an engine that is slow just then, and costs nothing where speed does not vary.
"""

from dataclasses import dataclass, replace
from math import inf, log, sqrt

import numpy as np

from simulator.traffic.distributions import Floats

DRAWN = 1024
"""Times that are drawn for a replication; a longer one meets them again."""
MOST_LEVEL_ERROR = 3.0
"""Of the logarithm of its mean speed: whoever may be wrong by twenty times knows nothing of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePace:
    """Times of `time_s` each, whose slowness deviates by that share of the mean (lognormal)."""

    deviation: float = 0.0
    time_s: float = inf
    slower: tuple[float, ...] = ()
    """The times of one replication."""

    def drawn(self, rng: np.random.Generator) -> "EnginePace":
        """Return the times of one replication."""
        if not self.deviation:
            return self
        spread = sqrt(log(1 + self.deviation**2))
        slower = rng.lognormal(-(spread**2) / 2, spread, DRAWN)
        return replace(self, deviation=0.0, slower=tuple(slower.tolist()))

    @property
    def document(self) -> dict[str, object]:
        """Its keys in a profile's file; none where speed does not vary."""
        if not self.deviation:
            return {}
        return {"speed_deviation": self.deviation, "speed_time_s": self.time_s}

    def at(self, at_s: Floats) -> Floats:
        """Return how many times as much those are who come at these instants."""
        number = (at_s / self.time_s).astype(np.int64) % len(self.slower)
        slower: Floats = np.array(self.slower)[number]
        return slower


STEADY = EnginePace()
