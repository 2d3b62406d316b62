"""How many examples a law of Hypothesis is tried with: a decent number in each run, more by hand.

FRONTDOOR_EXAMPLES=20 pytest tests/surfaces     twenty times as many, of each law
"""

import os

TIMES = float(os.environ.get("FRONTDOOR_EXAMPLES", "1"))


def examples(usual: int) -> int:
    """Return how many examples are tried where so many are usual."""
    return max(1, round(usual * TIMES))
