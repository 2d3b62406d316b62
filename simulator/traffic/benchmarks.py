"""Results of an engine's benchmarks: when each request began, gave its first token and ended.

Formats: JSON lines with `input_toks, output_toks, scheduled_ts, first_token_ts, last_token_ts`;
`vllm bench serve --save-result --save-detailed` (one object, or one a line with `--append-result`);
GuideLLM's JSON report, of which the requests that succeeded count, of every benchmark in it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.traffic.distributions import Floats
from simulator.traffic.tables import MOST, TraceError, lines_of, peeked


@dataclass(frozen=True, slots=True)
class Timings:
    """What a log knows of requests that ran: tokens and instants in seconds."""

    prompt: Floats
    output: Floats
    scheduled_s: Floats
    first_s: Floats
    last_s: Floats
    queued_s: Floats | None = None
    """When the engine took it in, where that is known to be before it was scheduled."""

    @property
    def came_s(self) -> Floats:
        """When each came."""
        return self.scheduled_s if self.queued_s is None else self.queued_s


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The requests of a benchmark, and what it is."""

    timings: Timings
    told: str
    """What was read and what was left out."""


VLLM = '"ttfts"'
GUIDELLM = '"benchmarks"'
ENGINE = '"first_token_ts"'
_KEYS = ("input_toks", "output_toks", "scheduled_ts", "first_token_ts", "last_token_ts")


def is_benchmark(first: Sequence[str]) -> bool:
    """Return whether the first lines are those of a benchmark's results."""
    text = "".join(first)
    if not text.lstrip().startswith("{"):
        return False
    return any(mark in text for mark in (ENGINE, VLLM, GUIDELLM)) or _is_vllm_head(text)


def _is_vllm_head(text: str) -> bool:
    return '"endpoint_type"' in text or '"request_throughput"' in text


def read_benchmark(path: Path) -> Benchmark | None:
    """Return the requests of a benchmark; None: the file is none. Raises TraceError."""
    first, lines = peeked(lines_of(path), 30)
    if not is_benchmark(first):
        return None
    if ENGINE in "".join(first):
        return _benchmark(path, _engine_rows(path, lines), "an engine's benchmark", 0)
    documents = list(_documents(path, lines))
    if all("benchmarks" in each for each in documents):
        return _guidellm(path, documents)
    return _vllm(path, documents)


def _documents(path: Path, lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a file: one a line, or one over all lines."""
    text = "\n".join(lines)
    decode, at = json.JSONDecoder().raw_decode, 0
    while at < len(text):
        try:
            document, at = decode(text, at)
        except (ValueError, RecursionError):
            raise TraceError(f"{path} holds no JSON, or half of it") from None
        if not isinstance(document, dict):
            raise TraceError(f"{path} holds no JSON object")
        yield document
        while at < len(text) and text[at].isspace():
            at += 1


def _benchmark(path: Path, rows: Iterable[Sequence[float]], name: str, left: int) -> Benchmark:
    kept: list[Sequence[float]] = []
    for row in rows:
        _, output, scheduled, first, last, *came = row
        whole = bool(np.isfinite(row).all()) and min(row[:2]) >= 0 and max(row) <= MOST
        if not (whole and min([*came, scheduled]) <= scheduled <= first <= last):
            raise TraceError(
                f"{path}: request {len(kept) + left + 1}: its tokens or times cannot be"
            )
        if output >= 2:
            kept.append(row)
        else:
            left += 1
    if not kept:
        raise TraceError(f"{path}: no request has two tokens or more")
    told = f"{len(kept)} requests of {name}; left out: {left} that failed or have no two tokens"
    return Benchmark(Timings(*np.array(kept, dtype=np.float64).T), told)


def _engine_rows(path: Path, lines: Iterable[str]) -> Iterator[list[float]]:
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            came = float(entry.get("queued_ts", entry["scheduled_ts"]))
            yield [*(float(entry[key]) for key in _KEYS), came]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise TraceError(f"{path}: line {number} is not a request of a benchmark") from None


def _vllm(path: Path, documents: Sequence[Mapping[str, Any]]) -> Benchmark:
    rows: list[list[float]] = []
    failed, shift_s = 0, 0.0
    for document in documents:
        if not document.get("start_times") or not document.get("ttfts"):
            raise TraceError(
                f"{path}: it has no start_times and ttfts: run `vllm bench serve` of 2025-10 or "
                "later with --save-result --save-detailed"
            )
        try:
            made, lost = _vllm_rows(document, shift_s)
        except (KeyError, TypeError, ValueError):
            raise TraceError(
                f"{path}: its start_times, ttfts, itls and lens do not match"
            ) from None
        rows += made
        failed += lost
        # Runs that follow each other in a file never met: a minute between them keeps them apart.
        shift_s = max((row[4] for row in rows), default=shift_s) + 60.0
    return _benchmark(path, rows, "`vllm bench serve`", failed)


def _vllm_rows(document: Mapping[str, Any], shift_s: float) -> tuple[list[list[float]], int]:
    names = ("input_lens", "output_lens", "start_times", "ttfts", "itls")
    columns = [document[name] for name in names]
    errors = document.get("errors") or [""] * len(columns[0])
    began_s = min(float(each) for each in document["start_times"])
    rows, failed = [], 0
    for prompt, output, start, ttft, itl, error in zip(*columns, errors, strict=True):
        if error or not ttft:
            failed += 1
            continue
        scheduled = shift_s + float(start) - began_s
        first = scheduled + float(ttft)
        rows.append([float(prompt), float(output), scheduled, first, first + sum(map(float, itl))])
    return rows, failed


def _guidellm(path: Path, documents: Sequence[Mapping[str, Any]]) -> Benchmark:
    rows: list[list[float]] = []
    left = 0
    try:
        for document in documents:
            for benchmark in document["benchmarks"]:
                requests = benchmark.get("requests") or {}
                left += sum(len(requests.get(kind) or ()) for kind in ("incomplete", "errored"))
                found = list(map(_guidellm_row, requests.get("successful") or ()))
                rows += [row for row in found if row is not None]
                left += found.count(None)
    except (AttributeError, TypeError):
        raise TraceError(f"{path} is not GuideLLM's report: its requests are no lists") from None
    if not rows:
        raise TraceError(f"{path}: GuideLLM's report holds no request with its times and tokens")
    return _benchmark(path, rows, "GuideLLM's report", left)


def _guidellm_row(request: Mapping[str, Any]) -> list[float] | None:
    """Return a row; times stand in `info.timings`, and in the request itself before 0.4."""
    timings = (request.get("info") or {}).get("timings") or {}
    found = (
        request.get("prompt_tokens"),
        request.get("output_tokens"),
        timings.get("request_start", request.get("start_time")),
        timings.get("first_token_iteration", request.get("first_token_time")),
        timings.get("last_token_iteration", request.get("last_token_time")),
    )
    try:
        return [float(value) for value in found]  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
