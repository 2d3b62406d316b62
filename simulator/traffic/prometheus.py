"""Rates over time: a range query of Prometheus, or a table of rates by time.

Rule 1: within a step arrivals are Poisson: burstiness below the step is not in the data.
Rule 2: a counter is told from a rate by its name, which `rate()` takes away; series are summed.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from simulator.traffic.servegen import MOST_PER_S, Window, Windows, verify_size
from simulator.traffic.tables import MOST, TraceError, columns_of

COUNTER = "frontdoor_requests_total"
MOST_WINDOWS = 1_000_000
"""Two years of minutes."""


def read_range_query(path: Path, lines: Iterable[str]) -> Windows:
    """Return the arrivals of an answer of `/api/v1/query_range`; raises TraceError."""
    try:
        document = json.loads("\n".join(lines))
        series = document["data"]["result"]
        assert document["data"]["resultType"] == "matrix"
        points: dict[float, float] = {}
        for each in series:
            for at_s, value in _points(each):
                points[at_s] = points.get(at_s, 0.0) + value
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        AssertionError,
        ArithmeticError,
        RecursionError,
    ):
        raise TraceError(f"{path} is not a range query's answer (resultType matrix)") from None
    instants = sorted(points)
    if len(instants) < 2:
        raise TraceError(f"{path}: a range query needs two points at least; it has {len(instants)}")
    told = f"{len(instants)} steps of {len(series)} series of a range query; nothing left out"
    return _windows(path, instants, [points[at] for at in instants], told)


def _points(series: Mapping[str, Any]) -> list[tuple[float, float]]:
    values = [(float(at), float(value)) for at, value in series["values"]]
    if series["metric"].get("__name__") != COUNTER:
        return values
    # A counter that falls was started anew: what it shows then came since.
    return [
        (at, (value - before if value >= before else value) / (at - since))
        for (since, before), (at, value) in pairwise(values)
    ]


def read_rates(path: Path, header: Sequence[str], lines: Iterable[str]) -> Windows:
    """Return the arrivals of a table `at_s,rate_per_s`; raises TraceError."""
    wanted = [header.index(name) for name in ("at_s", "rate_per_s")]
    at_s, rates = columns_of(path, lines, len(header), wanted)
    if len(at_s) < 2:
        raise TraceError(f"{path}: two rates at least: a window ends where the next one begins")
    told = f"{len(at_s)} rates by time; nothing left out"
    return _windows(path, at_s.tolist(), rates.tolist(), told)


def _windows(path: Path, instants: Sequence[float], rates: Sequence[float], told: str) -> Windows:
    if not all(abs(at) <= MOST for at in instants):
        raise TraceError(f"{path}: an instant is not between {-MOST:g} and {MOST:g} s")
    step_s = min(later - at for at, later in pairwise(instants))
    if step_s <= 0:
        raise TraceError(f"{path}: steps must follow each other in time")
    if (steps := (instants[-1] - instants[0]) / step_s) > MOST_WINDOWS:
        raise TraceError(f"{path}: {steps:.3g} steps of {step_s:g} s, at most {MOST_WINDOWS}")
    for at, rate in zip(instants, rates, strict=True):
        if not isfinite(rate) or not 0 <= rate <= MOST_PER_S:
            raise TraceError(
                f"{path}: at {at:g} the rate is {rate:g}, not between 0 and {MOST_PER_S:g} a second"
            )
    windows = []
    for at, later, rate in zip(
        instants, [*instants[1:], instants[-1] + step_s], rates, strict=True
    ):
        # A longer gap between steps is one window after another of the same rate.
        for number in range(max(1, round((later - at) / step_s))):
            start_s = at - instants[0] + number * step_s
            windows.append(Window(start_s, rate, "Gamma", 1.0, 1 / rate if rate else 0.0))
    verify_size(path, windows, step_s)
    return Windows(windows=tuple(windows), length_s=step_s, lengths={}, told=told)
