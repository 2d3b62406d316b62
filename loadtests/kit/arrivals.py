"""When open-loop requests are due: seconds from the start, known before anything is sent.

Rule 1: a schedule never looks at answers; slow answers must not thin out the load that is offered.
Rule 2: gaps are drawn once and kept as they are; nothing is rounded, clipped or made up for.
"""

import csv
import itertools
import random
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

GRACE_S = 0.1
"""A request that is due at the very end may begin this much later and still count as offered."""
BEHIND_ALLOWED = 0.02
"""Share of the due requests that may not have begun before a run says nothing about its load."""
COLUMNS = ("arrival_s", "timestamp_s", "timestamp_ms", "timestamp", "TIMESTAMP")


def poisson(rate_per_s: float, rng: random.Random) -> Iterator[float]:
    """Yield arrivals with independent exponential gaps, for ever; none for a rate of 0."""
    now = 0.0
    while rate_per_s > 0:
        now += rng.expovariate(rate_per_s)
        yield now


def trace(path: Path, thin: float, rng: random.Random) -> Iterator[float]:
    """Yield the arrivals of a CSV file, from its first row on; `thin` is the share that is kept.

    The column is the first that is named as in `COLUMNS`, else the first. Times are seconds,
    milliseconds where the name ends in `_ms`, or dates; rows are in order of time. Raises
    ValueError with the line that cannot be read. Rows of one instant arrive in that instant.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        header = next(rows, [])
        column = next((header.index(name) for name in COLUMNS if name in header), 0)
        unit_s = 0.001 if header and header[column].endswith("_ms") else 1.0
        has_names = bool(header) and _seconds(header[column]) is None
        first_s = None
        for number, row in enumerate(rows if has_names else itertools.chain([header], rows), 1):
            at_s = _seconds(row[column])
            if at_s is None:
                raise ValueError(f"{path}: row {number}: {row[column]!r} is not a time")
            first_s = at_s if first_s is None else first_s
            if rng.random() < thin:
                yield (at_s - first_s) * unit_s


def until(seconds: float, schedule: Iterable[float]) -> Iterator[float]:
    """Yield what is due within the first `seconds`."""
    return itertools.takewhile(lambda at_s: at_s <= seconds, schedule)


def behind_share(due: int, begun: int) -> float:
    """Return the share of the due requests that did not begin in time."""
    return (due - begun) / due if due else 0.0


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        # Only differences count, so any zone will do.
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
