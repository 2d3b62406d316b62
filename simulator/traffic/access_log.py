"""The front door's own log as rows, and how each request ended."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.traffic.distributions import Floats
from simulator.traffic.service import Rows
from simulator.traffic.tables import MOST, TraceError, lines_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AccessLog:
    """What an access log holds of one upstream (or of all): rows and how each ended."""

    rows: Rows
    outcomes: tuple[str, ...]
    waits_s: Floats
    first_bytes_s: Floats
    """From admission to the first byte; not a number where there was none."""
    streams: NDArray[np.bool_]
    """Whether the answer was a stream, so that its first byte is a first token."""
    skipped: int
    """Lines that are no access line."""
    others: int
    """Access lines of other upstreams, of requests that take no slot or never met a gate."""
    started: str
    """Wall clock of the first arrival."""
    upstream: str
    """Whose requests they are."""

    @property
    def left_out(self) -> str:
        """What was left out and why, in words."""
        return (
            f"{self.others} access lines of other upstreams or of requests that met no gate, "
            f"{self.skipped} other lines"
        )


KNOWN_SHARE = 0.9
"""Served requests whose tokens must be known, or they are not used at all."""
RAN = frozenset({"served", "client_gone_streaming", "upstream_error", "upstream_timeout"})
"""Outcomes of requests that held a slot."""
_MET_NO_GATE = {"bad_request", "model_not_found", "body_too_large", "draining"}


def read_access_log(path: Path, upstream: str | None = None) -> AccessLog:
    """Return the requests of an access log in order of arrival; raises TraceError."""
    entries: list[dict[str, Any]] = []
    skipped = others = 0
    for line in lines_of(path):
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
        _tokens(entries, "tokens_in"),
        _tokens(entries, "tokens_out"),
        service_s=np.array([_service_s(entry) for entry in entries]),
        weight=np.array([max(1, int(entry["weight"])) for entry in entries], dtype=np.float64),
        patience_s=np.array([_patience_s(entry) for entry in entries]),
    )
    return AccessLog(
        rows=rows,
        outcomes=tuple(str(entry["outcome"]) for entry in entries),
        waits_s=np.array([entry["waited_s"] for entry in entries], dtype=np.float64),
        first_bytes_s=np.array([_first_byte_s(entry) for entry in entries]),
        streams=np.array([bool(entry.get("stream")) for entry in entries]),
        skipped=skipped,
        others=others,
        started=str(entries[0]["time"]),
        upstream=names[0],
    )


def _entry(line: str) -> dict[str, Any] | None:
    entry = _object(line)
    needed = {"time", "outcome", "upstream", "waited_s", "total_s", "weight"}
    if not isinstance(entry, dict) or not needed <= set(entry):
        return None
    # numpy reads instants without a zone; ours are all UTC.
    entry["time"] = str(entry["time"]).removesuffix("+00:00").removesuffix("Z")
    numbers = (entry["waited_s"], entry["total_s"], entry["weight"])
    first_s = entry.get("first_byte_s")
    if not all(map(_is_amount, numbers)) or not (first_s is None or _is_amount(first_s)):
        return None
    return entry if _is_instant(entry["time"]) else None


def _is_amount(value: object) -> bool:
    """Return whether a value is a number that a time or a weight can have."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= MOST  # type: ignore[operator]


def _object(line: str) -> Any:
    """Return the JSON object of a line, whatever collected it; None where there is none.

    Compose, containerd and journald write words before it; Docker's json-file and journald's JSON
    hold it as a text.
    """
    start = line.find("{")
    if start < 0:
        return None
    try:
        entry, _ = json.JSONDecoder().raw_decode(line, start)
    except (ValueError, RecursionError):
        return None
    for wrapped in ("log", "MESSAGE"):
        inner = entry.get(wrapped) if "outcome" not in entry else None
        if isinstance(inner, str) and "{" in inner:
            return _object(inner)
    return entry


def _is_instant(text: str) -> bool:
    try:
        return not np.isnat(np.datetime64(text, "ms"))
    except ValueError:
        return False


def _counts(entry: dict[str, Any], upstream: str | None) -> bool:
    if entry["upstream"] is None or (upstream is not None and entry["upstream"] != upstream):
        return False
    if entry["outcome"] in _MET_NO_GATE:
        return False
    return bool(entry["weight"]) or entry["outcome"] not in RAN


def _tokens(entries: Sequence[dict[str, Any]], name: str) -> Floats | None:
    """Return token counts, not a number where a request has none; None where too few have them."""
    counts = [entry.get(name) for entry in entries]
    values = np.array([nan if not _is_amount(each) else each for each in counts], dtype=float)
    served = np.array([entry["outcome"] == "served" for entry in entries])
    known = served & ~np.isnan(values)
    return values if known.sum() >= KNOWN_SHARE * max(1, served.sum()) else None


def _service_s(entry: dict[str, Any]) -> float:
    if entry["outcome"] not in RAN:
        return nan
    return max(0.0, float(entry["total_s"]) - float(entry["waited_s"]))


def _patience_s(entry: dict[str, Any]) -> float:
    gone = entry["outcome"] == "client_gone_queued"
    return float(entry["waited_s"]) or float(entry["total_s"]) if gone else inf


def _first_byte_s(entry: dict[str, Any]) -> float:
    first_s = entry.get("first_byte_s")
    return nan if first_s is None else max(0.0, float(first_s) - float(entry["waited_s"]))
