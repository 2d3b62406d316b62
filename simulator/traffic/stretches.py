"""The busiest stretch of recorded requests or of rates."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simulator.traffic.servegen import Windows
from simulator.traffic.workload import Replay


class Stretch(NamedTuple):
    """A part of recorded traffic: from when on, how long, with how many requests."""

    arrivals: Replay | Windows
    start_s: float
    lasts_s: float
    requests: float

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.lasts_s


def busiest(arrivals: Replay | Windows, lasts_s: float) -> Stretch:
    """Return the stretch of that length, or of whole windows of rates, with the most requests."""
    if isinstance(arrivals, Replay):
        return _of_requests(arrivals, lasts_s)
    windows = arrivals.windows
    count = min(len(windows), max(1, round(lasts_s / arrivals.length_s)))
    sums = np.cumsum([0.0, *(window.rate for window in windows)])
    first = int(np.argmax(sums[count:] - sums[:-count]))
    start_s = windows[first].start_s
    part = replace(arrivals, windows=windows[first : first + count], since_s=start_s)
    requests = float(sums[first + count] - sums[first]) * arrivals.length_s * arrivals.factor
    return Stretch(part, start_s, count * arrivals.length_s, requests)


def _of_requests(replay: Replay, lasts_s: float) -> Stretch:
    at_s = replay.rows.at_s
    lasts_s = min(lasts_s / replay.stretch, float(at_s[-1]))
    ends = np.searchsorted(at_s, at_s + lasts_s, side="right")
    first = int(np.argmax(ends - np.arange(len(at_s))))
    rows = replay.rows.taken(slice(first, int(ends[first])))
    start_s = float(at_s[first])
    part = replace(replay, rows=rows._replace(at_s=rows.at_s - start_s))
    requests = len(rows.at_s) * replay.thin
    return Stretch(part, start_s * replay.stretch, lasts_s * replay.stretch, requests)
