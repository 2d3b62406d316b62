"""How long engines hold a request: `2` seconds, or `exp:2` for exponential holds of that mean."""

import math
import random
from collections.abc import Callable

Hold = Callable[[random.Random], float]


def parse(text: str) -> Hold:
    """Return a drawer of seconds; raises ValueError for what is no hold."""
    law, _, mean = text.rpartition(":")
    try:
        mean_s = float(mean)
    except ValueError:
        mean_s = math.nan
    if law == "exp" and 0 < mean_s < math.inf:
        return lambda rng: rng.expovariate(1 / mean_s)
    if not law and 0 <= mean_s < math.inf:
        return lambda _: mean_s
    raise ValueError(f"{text!r} is not S or exp:S in seconds, as in 2 or exp:0.5")
