"""When open-loop requests are due: seconds from the start, known before anything is sent.

Rule 1: a schedule never looks at answers; slow answers must not thin out the load that is offered.
Rule 2: gaps are drawn once and kept as they are; nothing is rounded, clipped or made up for.
"""

import csv
import itertools
import math
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


def read_trace(path: Path) -> list[float]:
    """Return the arrivals of a CSV file in seconds from its first; empty lines are left out.

    The column is the first that is named as in `COLUMNS`, else the first. Times are seconds,
    milliseconds where the name ends in `_ms`, or dates; rows are in order of time. Raises
    ValueError with the line that cannot be read, before anything is sent. Rows of one instant
    arrive in that instant.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        rows = [(reader.line_num, row) for row in reader if row]
    if not rows:
        raise ValueError(f"{path} has no rows")
    header = rows[0][1]
    column = next((header.index(name) for name in COLUMNS if name in header), 0)
    unit_s = 0.001 if header[column].endswith("_ms") else 1.0
    arrivals: list[float] = []
    for number, row in rows if _seconds(header[column]) is not None else rows[1:]:
        at_s = _seconds(row[column]) if column < len(row) else None
        if at_s is None:
            found = row[column] if column < len(row) else ",".join(row)
            raise ValueError(f"{path}: line {number}: {found!r} is not a time")
        if arrivals and at_s < arrivals[-1]:
            raise ValueError(f"{path}: line {number}: its time is before that of the row above it")
        arrivals.append(at_s)
    return [(at_s - arrivals[0]) * unit_s for at_s in arrivals]


def share(value: float) -> float:
    """Return a share of a trace as it is; raises ValueError for what is none."""
    if not 0 < value <= 1:
        raise ValueError(f"{value:g} is not a share above 0, at most 1")
    return value


def trace(path: Path, thin: float, rng: random.Random) -> Iterator[float]:
    """Yield the arrivals of a CSV file (see `read_trace`), of which a share `thin` is kept."""
    return (at_s for at_s in read_trace(path) if rng.random() < thin)


def until(seconds: float, schedule: Iterable[float]) -> Iterator[float]:
    """Yield what is due within the first `seconds`."""
    return itertools.takewhile(lambda at_s: at_s <= seconds, schedule)


def behind_share(due: int, begun: int) -> float:
    """Return the share of the due requests that did not begin in time."""
    return (due - begun) / due if due else 0.0


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        pass
    else:
        return seconds if math.isfinite(seconds) else None
    try:
        # Only differences count, so any zone will do.
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
