"""The front door's own log, however it was collected, as rows and how each request ended."""

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from typing import Any

from simulator.traffic.litellm_log import litellm_columns
from simulator.traffic.log_columns import RAN, AccessLog, LogColumns, LoggedRequest
from simulator.traffic.proxy_logs import haproxy_columns, nginx_columns
from simulator.traffic.tables import MOST, TraceError, lines_of, peeked

__all__ = ["RAN", "AccessLog", "format_of", "read_access_log"]

LOOKED_AT = 50
"""Lines in which one must be found that tells whose log it is: a log begins with other words."""
HEAVIEST = 60_000
"""Slots of one request: beyond any engine's."""
_MET_NO_GATE = {"bad_request", "model_not_found", "body_too_large", "draining"}
_NEEDED = {"time", "outcome", "upstream", "waited_s", "total_s", "weight"}
_WRAPPED = ("log", "MESSAGE")
_decode = json.JSONDecoder().raw_decode


def read_access_log(path: Path, upstream: str | None = None) -> AccessLog:
    """Return the requests of an access log in order of arrival; raises TraceError."""
    first, lines = peeked(lines_of(path), LOOKED_AT)
    name = format_of(first) or OURS
    columns = _READERS[name](lines, upstream)
    if not len(columns):
        of = f" of {upstream}" if upstream is not None else ""
        hint = "" if format_of(first) else "; a trace is for --trace"
        raise TraceError(f"{path} has no access line of a request{of} that met a gate{hint}")
    if len(columns.upstreams) > 1:
        names = ", ".join(sorted(columns.upstreams))
        raise TraceError(f"{path} has requests of {names}: one gate each, so choose an --upstream")
    return columns.log(name)


OURS = "the front door's own log"
HAPROXY = "HAProxy's HTTP log"
NGINX = "nginx's access log"
LITELLM = "LiteLLM's spend log"


def format_of(lines: Sequence[str]) -> str | None:
    """Return whose log the first lines are of, or None."""
    for line in lines:
        if (entry := _entry(line)) is not None:
            return OURS if entry.keys() >= _NEEDED else None
        for name in (HAPROXY, NGINX):
            if len(_READERS[name]([line], None)):
                return name
    text = "".join(lines)
    return LITELLM if "startTime" in text and "endTime" in text else None


def _own_columns(lines: Iterable[str], upstream: str | None) -> LogColumns:
    columns = LogColumns()
    for line in lines:
        entry = _entry(line)
        instant_s = None if entry is None else _instant_s(entry["time"])
        if entry is None or instant_s is None or not _has_amounts(entry):
            columns.skipped += 1
        elif _counts(entry, upstream):
            _add(columns, entry, instant_s)
        else:
            columns.others += 1
    return columns


def _add(columns: LogColumns, entry: dict[str, Any], ended_s: float) -> None:
    first_s = entry.get("first_byte_s")
    columns.add(
        LoggedRequest(
            ended_s - float(entry["total_s"]),
            float(entry["total_s"]),
            str(entry["outcome"]),
            waited_s=float(entry["waited_s"]),
            first_byte_s=nan if first_s is None else float(first_s),
            tokens_in=_amount(entry.get("tokens_in")),
            tokens_out=_amount(entry.get("tokens_out")),
            weight=min(max(1, int(entry["weight"])), HEAVIEST),
            stream=bool(entry.get("stream")),
            upstream=str(entry["upstream"]),
            key=key if isinstance(key := entry.get("key"), str) and key else None,
        )
    )


def _entry(line: str) -> dict[str, Any] | None:
    """Return an access line's object, whatever collected it; None: it is none.

    Compose, containerd and journald write words before it; Docker's json-file and journald's JSON
    hold it as a text.
    """
    start = line.find("{")
    if start < 0:
        return None
    try:
        entry, _ = _decode(line, start)
    except (ValueError, RecursionError):
        return None
    if entry.keys() >= _NEEDED:
        return entry  # type: ignore[no-any-return]
    for wrapped in _WRAPPED:
        inner = entry.get(wrapped)
        if isinstance(inner, str) and "{" in inner:
            return _entry(inner)
    return None


def _instant_s(text: object) -> float | None:
    """Return seconds of the epoch, to the millisecond; ours are all UTC."""
    try:
        instant = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    instant = instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
    return round(instant.timestamp() * 1000) / 1000


def _has_amounts(entry: dict[str, Any]) -> bool:
    first_s = entry.get("first_byte_s")
    numbers = (entry["waited_s"], entry["total_s"], entry["weight"])
    texts = isinstance(entry["outcome"], str) and isinstance(entry["upstream"], str | None)
    return texts and all(map(_is_amount, numbers)) and (first_s is None or _is_amount(first_s))


def _is_amount(value: object) -> bool:
    """Return whether a value is a number that a time or a weight can have."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= MOST  # type: ignore[operator]


def _amount(value: object) -> float:
    return float(value) if _is_amount(value) else nan  # type: ignore[arg-type]


def _counts(entry: dict[str, Any], upstream: str | None) -> bool:
    if entry["upstream"] is None or (upstream is not None and entry["upstream"] != upstream):
        return False
    if entry["outcome"] in _MET_NO_GATE:
        return False
    return bool(entry["weight"]) or entry["outcome"] not in RAN


Reader = Callable[[Iterable[str], str | None], LogColumns]

_READERS: dict[str, Reader] = {
    OURS: _own_columns,
    HAPROXY: haproxy_columns,
    NGINX: nginx_columns,
    LITELLM: litellm_columns,
}
