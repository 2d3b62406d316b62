"""Access logs of proxies that stood before an engine: nginx and HAProxy.

Rule 1: what counts is a POST to where engines take requests; the rest is left out and counted.
Rule 2: their seconds hold the wait inside the engine too, which nobody outside can tell apart.

Formats: nginx's `combined` with `$request_time` at its end or as `rt=` or `request_time=` (and
`$upstream_header_time` as `uht=`), or as JSON; HAProxy's `option httplog`, whose timers are
TR/Tw/Tc/Tr/Ta in milliseconds.
"""

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from math import nan
from typing import Any

import numpy as np

from simulator.traffic.log_columns import LogColumns, LoggedRequest
from simulator.traffic.tables import MOST

_ENGINE = re.compile(r"/(chat/completions|completions|responses|messages)/?(\?|$)")
_FULL = {429, 503, 529}


def _outcome(status: int, gone: str) -> str | None:
    """Return how a request ended, by its status; None: it took no slot and was not refused one."""
    if status == 499 or gone == "C":
        return "client_gone_streaming"
    if 200 <= status < 300:
        return "served"
    if status in _FULL:
        return "queue_full"
    return "upstream_error" if status >= 500 else None


# nginx

_COMBINED = re.compile(
    r'\[(\d{2}/\w{3}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4})\] "(\S+) (\S+)[^"]*" (\d{3}) (?:\d+|-)(.*)$'
)
_TOOK = re.compile(r'(?:\brt|request_time)[=:]"?(\d+\.\d+)')
_LAST = re.compile(r'[ "](\d+\.\d{3})"?\s*$')
_HEADER = re.compile(r'(?:\buht|upstream_header_time)[=:]"?(\d+\.\d+)')


def nginx_columns(lines: Iterable[str], upstream: str | None) -> LogColumns:  # noqa: ARG001
    """Return the requests of an nginx log."""
    columns = LogColumns()
    ends_s: list[float] = []
    for line in lines:
        seen = _nginx_json(line) or _nginx_text(line)
        if seen is None or not (abs(seen[0]) <= MOST and 0 <= seen[4] <= MOST):
            columns.skipped += 1
            continue
        ended_s, method, path, status, took_s, header_s = seen
        outcome = _outcome(status, "")
        if method != "POST" or not _ENGINE.search(path) or outcome is None:
            columns.others += 1
            continue
        ends_s.append(ended_s)
        columns.add(LoggedRequest(0.0, took_s, outcome, first_byte_s=header_s))
    _place(columns, ends_s)
    return columns


def _place(columns: LogColumns, ends_s: list[float]) -> None:
    """Set when each came: nginx writes whole seconds, and those of one are spread over it."""
    if not ends_s:
        return
    ends = np.array(ends_s)
    whole = (ends == np.floor(ends)).all()
    if whole:
        order = np.argsort(ends, kind="stable")
        _, first, count = np.unique(ends[order], return_index=True, return_counts=True)
        place = np.arange(len(ends)) - np.repeat(first, count)
        ends[order] = ends[order] + (place + 0.5) / np.repeat(count, count)
    columns.arrived_s[:] = type(columns.arrived_s)("d", ends - np.array(columns.total_s))


Seen = tuple[float, str, str, int, float, float]
"""End, method, path, status, seconds, seconds to the head."""


def _nginx_text(line: str) -> Seen | None:
    found = _COMBINED.search(line)
    if found is None:
        return None
    took = _TOOK.search(found[5]) or _LAST.search(found[5])
    if took is None:
        return None
    try:
        ended = datetime.strptime(found[1], "%d/%b/%Y:%H:%M:%S %z")
    except ValueError:
        return None
    header = _HEADER.search(found[5])
    header_s = float(header[1]) if header else nan
    return ended.timestamp(), found[2], found[3], int(found[4]), float(took[1]), header_s


def _nginx_json(line: str) -> Seen | None:
    start = line.find("{")
    if start < 0 or "request_time" not in line:
        return None
    try:
        entry, _ = json.JSONDecoder().raw_decode(line, start)
        method, path = _request_of(entry)
        header = entry.get("upstream_header_time")
        return (
            _instant_s(entry),
            method,
            path,
            int(entry["status"]),
            float(entry["request_time"]),
            nan if header in (None, "", "-") else float(str(header)),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _request_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    if "request" in entry:
        method, _, rest = str(entry["request"]).partition(" ")
        return method, rest.split(" ")[0]
    path = entry.get("request_uri", entry.get("uri"))
    return str(entry.get("request_method", entry.get("method", "POST"))), str(path)


def _instant_s(entry: Mapping[str, Any]) -> float:
    if "msec" in entry:
        return float(entry["msec"])
    instant = datetime.fromisoformat(str(entry.get("time_iso8601", entry.get("time"))))
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()


# HAProxy

_HTTPLOG = re.compile(
    r"\[(\d{2}/\w{3}/\d{4}:\d{2}:\d{2}:\d{2}\.\d{3})\] \S+ (\S+)/\S+ "
    r"(-?\d+)/(-?\d+)/-?\d+/(-?\d+)/\+?(\d+) (-?\d+) \+?\d+ \S+ \S+ (\S)(\S)\S\S "
    r'\d+/\d+/\d+/\d+/\+?\d+ \d+/\d+ [^"]*"(\S+) (\S+)'
)


def haproxy_columns(lines: Iterable[str], upstream: str | None) -> LogColumns:
    """Return the requests of a HAProxy log; an upstream is a backend."""
    columns = LogColumns()
    for line in lines:
        found = _HTTPLOG.search(line)
        came_s = None if found is None else _haproxy_instant_s(found[1])
        if found is None or came_s is None:
            columns.skipped += 1
            continue
        read_ms, waited_ms, header_ms, total_ms, status = (int(found[at]) for at in range(3, 8))
        outcome = _haproxy_outcome(status, found[8], found[9])
        wanted = upstream is None or found[2] == upstream
        if found[10] != "POST" or not _ENGINE.search(found[11]) or outcome is None or not wanted:
            columns.others += 1
            continue
        read_s, waited_s = max(0, read_ms) / 1000, max(0, waited_ms) / 1000
        columns.add(
            LoggedRequest(
                came_s + read_s,
                max(0.0, total_ms / 1000 - read_s),
                outcome,
                waited_s=waited_s,
                first_byte_s=nan if header_ms < 0 else waited_s + header_ms / 1000,
                upstream=found[2],
            )
        )
    return columns


def _haproxy_instant_s(text: str) -> float | None:
    try:
        return datetime.strptime(text, "%d/%b/%Y:%H:%M:%S.%f").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _haproxy_outcome(status: int, who: str, where: str) -> str | None:
    if where == "Q":  # it ended in HAProxy's own queue
        return "client_gone_queued" if who == "C" else "queue_timeout"
    return _outcome(status, "C" if who == "C" else "")
