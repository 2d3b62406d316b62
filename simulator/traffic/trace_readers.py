"""Recorded traffic as rows: public traces, our own, and the front door's access log.

Rule 1: a reader sorts by time and starts at 0; it neither thins nor rescales.
Rule 2: the format is told by the header or the first line, never by the name of the file.
Rule 3: a line that cannot be read is a fault with its number, except in an access log, which shares
        its file with other lines: those are skipped and counted.

Formats (all CSV but the last):
  Azure LLM inference traces   `TIMESTAMP,ContextTokens,GeneratedTokens`, 7 digits of a second
  Mooncake                     `timestamp_ms,input_length,output_length[,prefix_hit_tokens]`
  ServeGen rates               no header: window, rate, CV, family, shape, scale; lengths beside it
  ours                         `at_s[,prompt_tokens,output_tokens][,service_s]`
  access log                   one JSON object a line
"""

import ast
import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simulator.traffic.distributions import Floats
from simulator.traffic.streams import Purpose, Streams
from simulator.traffic.workload import Arrivals, Replay, Rows

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE_STEP_S = 3.0
"""Mooncake's clock ticks about every 3 s; requests of one tick are spread over it."""


class TraceError(ValueError):
    """A trace that cannot be read; says the file, the line and why."""


def read_trace(path: Path) -> Arrivals:
    """Return the arrivals of a trace file; raises TraceError."""
    lines = _lines(path)
    header = tuple(cell.strip() for cell in lines[0].split(","))
    if header == AZURE:
        return Replay(rows=_azure(path, lines[1:]))
    if header[0] == "timestamp_ms":
        return Replay(rows=_mooncake(path, lines[1:]))
    if header[0] == "at_s":
        return Replay(rows=_ours(path, header, lines[1:]))
    if len(header) == 6 and _is_number(header[0]):
        return _servegen(path, lines)
    if lines[0].startswith("{"):
        return Replay(rows=read_access_log(path).rows)
    raise TraceError(f"{path}: line 1 is the header of no trace known here: {lines[0][:60]!r}")


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path} is not UTF-8 text") from None
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise TraceError(f"{path} is empty")
    return lines


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _table(path: Path, lines: Sequence[str], columns: int) -> list[list[str]]:
    rows = list(csv.reader(lines))
    for number, row in enumerate(rows, start=2):
        if len(row) < columns:
            raise TraceError(f"{path}: line {number} has {len(row)} columns, not {columns}")
    if not rows:
        raise TraceError(f"{path} has a header and no requests")
    return rows


def _numbers(path: Path, rows: Sequence[Sequence[str]], column: int) -> Floats:
    try:
        return np.array([row[column] for row in rows], dtype=np.float64)
    except ValueError as error:
        raise TraceError(f"{path}: column {column + 1}: {error}") from None


def _sorted(rows: Rows) -> Rows:
    ordered = rows.taken(np.argsort(rows.at_s, kind="stable"))
    return ordered._replace(at_s=ordered.at_s - ordered.at_s[0])


def _azure(path: Path, lines: Sequence[str]) -> Rows:
    rows = _table(path, lines, 3)
    try:
        instants = np.array([row[0] for row in rows], dtype="datetime64[ns]")
    except ValueError as error:
        raise TraceError(f"{path}: TIMESTAMP: {error}") from None
    seconds = (instants - instants.min()).astype(np.int64) / 1e9
    return _sorted(Rows(seconds, _numbers(path, rows, 1), _numbers(path, rows, 2)))


def _mooncake(path: Path, lines: Sequence[str]) -> Rows:
    rows = _table(path, lines, 3)
    ticks = _numbers(path, rows, 0) / 1000
    return _sorted(Rows(_spread(ticks), _numbers(path, rows, 1), _numbers(path, rows, 2)))


def _spread(ticks: Floats) -> Floats:
    """Return instants that keep their tick and their order and are even within it.

    Left alone, ten requests would come at one instant, which never happened.
    """
    ticks = np.sort(ticks)
    values, first, count = np.unique(ticks, return_index=True, return_counts=True)
    place = np.arange(len(ticks)) - np.repeat(first, count)
    return np.repeat(values, count) + MOONCAKE_STEP_S * (place + 0.5) / np.repeat(count, count)


def _ours(path: Path, header: Sequence[str], lines: Sequence[str]) -> Rows:
    rows = _table(path, lines, len(header))
    known = {"at_s", "prompt_tokens", "output_tokens", "service_s"}
    if unknown := sorted(set(header) - known):
        raise TraceError(f"{path}: unknown column {unknown[0]}")

    def column(name: str) -> Floats | None:
        return _numbers(path, rows, header.index(name)) if name in header else None

    instants = column("at_s")
    assert instants is not None
    return _sorted(
        Rows(instants, column("prompt_tokens"), column("output_tokens"), column("service_s"))
    )


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
    random = True

    @property
    def has_sizes(self) -> bool:
        """Whether there is a file of lengths beside the rates."""
        return bool(self.lengths)

    def blocks(self, streams: Streams) -> Iterator[Rows]:
        """Yield the requests of each window that has any."""
        gaps, sizes = streams.of(Purpose.GAPS), streams.of(Purpose.PROMPT)
        for window in self.windows:
            if not window.rate:
                continue
            instants = window.start_s + self._instants(window, gaps)
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

    def faster(self, factor: float) -> "Windows":
        """Return the same client at `factor` times the rate."""
        return replace(self, factor=self.factor * factor)


def _servegen(path: Path, lines: Sequence[str]) -> Windows:
    windows = []
    for number, row in enumerate(csv.reader(lines), start=1):
        try:
            rate = float(row[1])
            law = (row[3], float(row[4]), float(row[5])) if rate else ("", 0.0, 0.0)
            windows.append(Window(float(row[0]), rate, *law))
        except (ValueError, IndexError):
            raise TraceError(f"{path}: line {number} is not a window of rates") from None
    length_s = windows[1].start_s - windows[0].start_s if len(windows) > 1 else 600.0
    lengths_path = path.with_name(path.name.replace("_rates.csv", "_lengths.json"))
    lengths = {}
    if lengths_path != path and lengths_path.exists():
        document = json.loads(lengths_path.read_text(encoding="utf-8"))
        for start, window in document.items():
            if window.get("input_tokens") and window.get("output_tokens"):
                prompt = _distribution(window["input_tokens"])
                output = _distribution(window["output_tokens"])
                if len(prompt[0]) and len(output[0]):
                    lengths[float(start)] = (prompt, output)
    return Windows(windows=tuple(windows), length_s=length_s, lengths=lengths)


def _distribution(text: str) -> Lengths:
    chances = ast.literal_eval(text)
    values = np.array(sorted(chances), dtype=np.float64)
    weights = np.array([chances[value] for value in sorted(chances)], dtype=np.float64)
    return values, np.cumsum(weights) / max(weights.sum(), 1e-300)


# The front door's own log


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AccessLog:
    """What an access log holds of one upstream (or of all): rows and how each ended."""

    rows: Rows
    outcomes: tuple[str, ...]
    waits_s: Floats
    first_bytes_s: Floats
    """From admission to the first byte; not a number where there was none."""
    skipped: int
    """Lines that are no access line."""
    others: int
    """Access lines of other upstreams, of requests that take no slot or never met a gate."""
    started: str
    """Wall clock of the first arrival."""


_HELD_A_SLOT = {"served", "client_gone_streaming", "upstream_error", "upstream_timeout"}
_MET_NO_GATE = {"bad_request", "model_not_found", "body_too_large", "draining"}


def read_access_log(path: Path, upstream: str | None = None) -> AccessLog:
    """Return the requests of an access log in order of arrival; raises TraceError."""
    entries: list[dict[str, Any]] = []
    skipped = others = 0
    for line in _lines(path):
        entry = _entry(line)
        if entry is None:
            skipped += 1
        elif _counts(entry, upstream):
            entries.append(entry)
        else:
            others += 1
    if not entries:
        of = f" of {upstream}" if upstream is not None else ""
        raise TraceError(f"{path} has no access line of a request{of} that met a gate")
    names = sorted({str(entry["upstream"]) for entry in entries})
    if len(names) > 1:
        raise TraceError(
            f"{path} has requests of {', '.join(names)}: one gate each, so choose an --upstream"
        )
    ends = np.array([entry["time"] for entry in entries], dtype="datetime64[ms]")
    total_s = np.array([entry["total_s"] for entry in entries], dtype=np.float64)
    arrived_s = (ends - ends.min()).astype(np.int64) / 1e3 - total_s
    order = np.argsort(arrived_s, kind="stable")
    entries = [entries[at] for at in order]
    rows = Rows(
        arrived_s[order] - arrived_s[order[0]],
        service_s=np.array([_service_s(entry) for entry in entries]),
        weight=np.array([max(1, int(entry["weight"])) for entry in entries], dtype=np.float64),
        patience_s=np.array([_patience_s(entry) for entry in entries]),
    )
    return AccessLog(
        rows=rows,
        outcomes=tuple(str(entry["outcome"]) for entry in entries),
        waits_s=np.array([entry["waited_s"] for entry in entries], dtype=np.float64),
        first_bytes_s=np.array([_first_byte_s(entry) for entry in entries]),
        skipped=skipped,
        others=others,
        started=str(entries[0]["time"]),
    )


def _entry(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    needed = {"time", "outcome", "upstream", "waited_s", "total_s", "weight"}
    if not isinstance(entry, dict) or not needed <= set(entry):
        return None
    # numpy reads instants without a zone; ours are all UTC.
    entry["time"] = str(entry["time"]).removesuffix("+00:00").removesuffix("Z")
    return entry if _is_instant(entry["time"]) else None


def _is_instant(text: str) -> bool:
    try:
        np.datetime64(text, "ms")
    except ValueError:
        return False
    return True


def _counts(entry: dict[str, Any], upstream: str | None) -> bool:
    if entry["upstream"] is None or (upstream is not None and entry["upstream"] != upstream):
        return False
    if entry["outcome"] in _MET_NO_GATE:
        return False
    return bool(entry["weight"]) or entry["outcome"] not in _HELD_A_SLOT


def _service_s(entry: dict[str, Any]) -> float:
    if entry["outcome"] not in _HELD_A_SLOT:
        return nan
    return max(0.0, float(entry["total_s"]) - float(entry["waited_s"]))


def _patience_s(entry: dict[str, Any]) -> float:
    gone = entry["outcome"] == "client_gone_queued"
    return float(entry["waited_s"]) or float(entry["total_s"]) if gone else inf


def _first_byte_s(entry: dict[str, Any]) -> float:
    first_s = entry.get("first_byte_s")
    return nan if first_s is None else max(0.0, float(first_s) - float(entry["waited_s"]))
