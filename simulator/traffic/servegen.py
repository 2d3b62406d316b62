"""ServeGen's clients: a day in windows of rates, each with its own law of gaps and of tokens."""

import ast
import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simulator.traffic.distributions import Floats
from simulator.traffic.service import Rows
from simulator.traffic.streams import Purpose, Streams
from simulator.traffic.tables import MOST, TraceError


class Window(NamedTuple):
    """One window of a ServeGen client: gaps by a law, tokens by two distributions."""

    start_s: float
    rate: float
    family: str
    shape: float
    scale: float


Lengths = tuple[Floats, Floats]
"""Token counts and their cumulated chances."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Windows:
    """A client's day in windows of one length; the gaps and tokens of each are drawn anew.

    Counts vary as the gap law has them vary: windows are not rescaled to their exact rate.
    """

    windows: tuple[Window, ...]
    length_s: float
    lengths: dict[float, tuple[Lengths, Lengths]]
    factor: float = 1.0
    since_s: float = 0.0
    """When time begins: of a stretch of a day its first window."""
    block_s: float = 0.0
    parts: int = 1
    """Where there are several, a replication has one: of so many blocks that follow, one each."""
    told: str = ""
    """What was read and what was left out."""
    random = True

    @property
    def has_sizes(self) -> bool:
        """Whether there is a file of lengths beside the rates."""
        return bool(self.lengths)

    @property
    def span_s(self) -> float:
        """From the start of the first window to the end of the last."""
        return self.windows[-1].start_s + self.length_s - self.windows[0].start_s

    @property
    def expected(self) -> float:
        """Requests, on average."""
        return sum(window.rate for window in self.windows) * self.length_s * self.factor

    def blocks(self, streams: Streams) -> Iterator[Rows]:
        """Yield the requests of each window that has any, or of the replication's part of them."""
        if self.parts == 1:
            yield from self._all(streams)
            return
        stretches = ceil(self.span_s / self.block_s / self.parts)
        mine = streams.parts(Purpose.THINNING, stretches, self.parts)
        first_s = self.windows[0].start_s - self.since_s
        for rows in self._all(streams):
            number = ((rows.at_s - first_s) // self.block_s).astype(int)
            stretch = number // self.parts
            kept = mine[stretch] == number % self.parts
            if kept.any():
                at_s = rows.at_s - (number - stretch) * self.block_s
                yield rows._replace(at_s=at_s).taken(kept)

    def _all(self, streams: Streams) -> Iterator[Rows]:
        gaps, sizes = streams.of(Purpose.GAPS), streams.of(Purpose.PROMPT)
        for window in self.windows:
            if not window.rate:
                continue
            instants = window.start_s - self.since_s + self._instants(window, gaps)
            if not len(instants):
                continue
            prompt = output = None
            if self.lengths:
                prompt, output = (
                    values[np.searchsorted(chances, sizes.random(len(instants)))]
                    for values, chances in self._lengths_at(window.start_s)
                )
            yield Rows(instants, prompt, output)

    def _lengths_at(self, start_s: float) -> tuple[Lengths, Lengths]:
        """Return the lengths of that time: their windows are longer, and some are empty."""
        before = [known for known in self.lengths if known <= start_s]
        return self.lengths[max(before) if before else min(self.lengths)]

    def _instants(self, window: Window, rng: np.random.Generator) -> Floats:
        expected = int(window.rate * self.factor * self.length_s * 2 + 50)
        at_s: Floats = np.zeros(1)
        parts: list[Floats] = []
        while at_s[-1] < self.length_s:
            if window.family == "Weibull":
                gaps = window.scale * rng.weibull(window.shape, expected)
            else:
                gaps = rng.gamma(window.shape, window.scale, expected)
            at_s = at_s[-1] + np.cumsum(gaps / self.factor)
            parts.append(at_s)
        instants = np.concatenate(parts)
        return instants[instants < self.length_s]

    @property
    def mean_sizes(self) -> tuple[float, float]:
        """Mean tokens of prompts and of answers, each window by its rate."""
        sums = np.zeros(2)
        for window in self.windows:
            if window.rate and self.lengths:
                means = [_mean(lengths) for lengths in self._lengths_at(window.start_s)]
                sums += window.rate * np.array(means)
        total = sum(window.rate for window in self.windows) or 1.0
        prompt, output = sums / total
        return float(prompt), max(1.0, float(output))

    def faster(self, factor: float) -> "Windows":
        """Return the same client at `factor` times the rate."""
        return replace(self, factor=self.factor * factor)


def read_servegen(path: Path, lines: Iterable[str]) -> Windows:
    """Return a client from its file of rates and the file of lengths beside it."""
    windows = []
    for number, row in enumerate(csv.reader(lines), start=1):
        try:
            rate = float(row[1])
            law = (row[3], float(row[4]), float(row[5])) if rate else ("", 0.0, 0.0)
            window = Window(float(row[0]), rate, *law)
        except (ValueError, IndexError):
            raise TraceError(f"{path}: line {number} is not a window of rates") from None
        if fault := _window_fault(window):
            raise TraceError(f"{path}: line {number}: {fault}")
        windows.append(window)
    length_s = windows[1].start_s - windows[0].start_s if len(windows) > 1 else 600.0
    for number, (before, after) in enumerate(pairwise(windows), start=2):
        if after.start_s <= before.start_s:
            raise TraceError(f"{path}: line {number}: windows must follow each other in time")
    verify_size(path, windows, length_s)
    lengths_path = path.with_name(path.name.replace("_rates.csv", "_lengths.json"))
    lengths: dict[float, tuple[Lengths, Lengths]] = {}
    if lengths_path != path and lengths_path.exists():
        try:
            lengths = _lengths(json.loads(lengths_path.read_text(encoding="utf-8")))
        except (OSError, ValueError, SyntaxError, TypeError, AttributeError):
            raise TraceError(f"{lengths_path} does not hold ServeGen's lengths") from None
    told = f"{len(windows)} windows of rates of a ServeGen client; nothing left out"
    return Windows(windows=tuple(windows), length_s=length_s, lengths=lengths, told=told)


LEAST_SHAPE = 1e-3
"""Below it nearly all gaps are 0 and a window would never end."""
MOST_PER_S = 1e5
MOST_AT_ONCE = 1e8
"""Requests of one window, which are drawn together."""


def verify_size(path: Path, windows: Sequence[Window], length_s: float) -> None:
    """Raise TraceError where a window has more requests than can be drawn together."""
    most = max((window.rate for window in windows), default=0.0) * length_s
    if most > MOST_AT_ONCE:
        raise TraceError(f"{path}: {most:.3g} requests in one window of {length_s:g} s")


def _window_fault(window: Window) -> str | None:
    """Return what is wrong with a window of rates, or None."""
    if not abs(window.start_s) <= MOST:
        return f"a window cannot begin at {window.start_s:g} s"
    if not 0 <= window.rate <= MOST_PER_S:
        return f"a rate must be between 0 and {MOST_PER_S:g} a second, not {window.rate:g}"
    if not window.rate:
        return None
    if window.family not in {"Gamma", "Weibull"}:
        return f"the family of gaps must be Gamma or Weibull, not {window.family!r}"
    # Of a Weibull law the mean is never below 0.88 of the scale.
    mean_s = window.scale * (window.shape if window.family == "Gamma" else 0.88)
    lawful = LEAST_SHAPE <= window.shape <= MOST and window.scale <= MOST
    if not (lawful and mean_s >= 1 / MOST_PER_S):
        return f"shape {window.shape:g} and scale {window.scale:g} are no law of gaps"
    return None


def _lengths(document: dict[str, Any]) -> dict[float, tuple[Lengths, Lengths]]:
    lengths = {}
    for start, window in document.items():
        if window.get("input_tokens") and window.get("output_tokens"):
            prompt = _distribution(window["input_tokens"])
            output = _distribution(window["output_tokens"])
            if len(prompt[0]) and len(output[0]):
                lengths[float(start)] = (prompt, output)
    return lengths


def _mean(lengths: Lengths) -> float:
    values, chances = lengths
    return float(values @ np.diff(chances, prepend=0.0))


def _distribution(text: str) -> Lengths:
    chances = ast.literal_eval(text)
    values = np.array(sorted(chances), dtype=np.float64)
    weights = np.array([chances[value] for value in sorted(chances)], dtype=np.float64)
    return values, np.cumsum(weights) / max(weights.sum(), 1e-300)
