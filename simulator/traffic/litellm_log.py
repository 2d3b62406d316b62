"""LiteLLM's spend log: rows of `LiteLLM_SpendLogs` as JSON (lines or one list) or as CSV.

Rule 1: what LiteLLM answered from its cache, or refused by itself, never met an engine.
Rule 2: its seconds are those of the whole call, LiteLLM's own included; the wait of a retry too.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain
from math import nan
from typing import Any

from simulator.traffic.log_columns import LogColumns, LoggedRequest

_CALLS = ("completion", "messages", "responses")


def litellm_columns(lines: Iterable[str], upstream: str | None) -> LogColumns:
    """Return the requests of a spend log; an upstream is a model group."""
    columns = LogColumns()
    for entry in _entries(iter(lines)):
        times = None if entry is None else _times(entry)
        if entry is None or times is None:
            columns.skipped += 1
            continue
        model = str(entry.get("model_group") or entry.get("model") or "")
        wanted = upstream is None or model == upstream
        if not wanted or not _met_engine(entry):
            columns.others += 1
            continue
        began_s, first_s, ended_s = times
        failed = str(entry.get("status") or "success") != "success"
        columns.add(
            LoggedRequest(
                began_s,
                ended_s - began_s,
                "upstream_error" if failed else "served",
                first_byte_s=first_s - began_s,
                tokens_in=_tokens(entry, "prompt_tokens"),
                tokens_out=_tokens(entry, "completion_tokens"),
                stream=first_s < ended_s,
                upstream=model,
            )
        )
    return columns


def _entries(lines: Iterator[str]) -> Iterator[Mapping[str, Any] | None]:
    """Yield the rows; None for what is none."""
    first = next(lines, "")
    if first.lstrip().startswith("["):
        yield from _listed("\n".join((first, *lines)))
    elif first.lstrip().startswith("{"):
        for line in chain((first,), lines):
            yield _object(line)
    elif "startTime" in first and "endTime" in first:
        yield from csv.DictReader(chain((first,), lines))
    else:
        yield None
        for _ in lines:
            yield None


def _listed(text: str) -> Iterator[Mapping[str, Any] | None]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        rows = [None]
    yield from (row if isinstance(row, dict) else None for row in rows)


def _object(line: str) -> Mapping[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _times(entry: Mapping[str, Any]) -> tuple[float, float, float] | None:
    """Return when a call began, gave its first token (not a number: no one knows) and ended."""
    began_s, ended_s = (_instant_s(entry.get(name)) for name in ("startTime", "endTime"))
    if began_s is None or ended_s is None or ended_s < began_s:
        return None
    first_s = _instant_s(entry.get("completionStartTime"))
    return began_s, nan if first_s is None else min(max(first_s, began_s), ended_s), ended_s


def _instant_s(text: object) -> float | None:
    if not isinstance(text, str):
        return None
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()


def _met_engine(entry: Mapping[str, Any]) -> bool:
    call = str(entry.get("call_type") or "completion")
    cached = str(entry.get("cache_hit")).lower() == "true"
    return not cached and any(word in call for word in _CALLS)


def _tokens(entry: Mapping[str, Any], name: str) -> float:
    try:
        count = float(entry[name])
    except (KeyError, TypeError, ValueError):
        return nan
    return count if 0 <= count < 1e9 else nan
