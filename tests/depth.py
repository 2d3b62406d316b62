"""How many examples a law of Hypothesis is tried with: a decent number in each run, more by hand.

FRONTDOOR_EXAMPLES=20 pytest tests/surfaces     twenty times as many, of each law
FRONTDOOR_SEEDS=0-9999 pytest tests/proxy       these seeds of each world, `1,5,20-29` too
"""

import os

TIMES = float(os.environ.get("FRONTDOOR_EXAMPLES", "1"))


def examples(usual: int) -> int:
    """Return how many examples are tried where so many are usual."""
    return max(1, round(usual * TIMES))


def parse_seeds(text: str) -> list[int]:
    """Return the seeds that `3`, `0-99` or `1,5,20-29` name."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def seeds(usual: str) -> list[int]:
    """Return the seeds that are asked for, or the usual ones."""
    return parse_seeds(os.environ.get("FRONTDOOR_SEEDS", usual))
