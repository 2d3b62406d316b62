"""Recorded traffic as rows: public traces, our own, and the front door's access log.

Rule 1: a reader sorts by time and starts at 0; it neither thins nor rescales.
Rule 2: the format is told by the header or the first line, never by the name of the file.
Rule 3: a line that cannot be read is a fault with its number, except in an access log, which shares
        its file with other lines: those are skipped and counted.

Formats (all CSV but the last):
  Azure LLM inference traces   `TIMESTAMP,ContextTokens,GeneratedTokens`, 7 digits of a second
  Azure 2024                   the same with a zone of UTC
  Mooncake                     as published (JSON lines), or as columns:
                               `timestamp_ms,input_length,output_length[,prefix_hit_tokens]`
  ServeGen rates               no header: window, rate, CV, family, shape, scale; lengths beside it
  ours                         `at_s[,prompt_tokens,output_tokens][,service_s]`
  BurstGPT                     `Timestamp,Model,Request tokens,Response tokens,...`
  access log                   one JSON object a line, whatever is written before it
"""

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import numpy as np

from simulator.traffic.access_log import LOOKED_AT, format_of, read_access_log
from simulator.traffic.benchmarks import is_benchmark, read_benchmark
from simulator.traffic.distributions import Floats
from simulator.traffic.prometheus import read_range_query, read_rates
from simulator.traffic.servegen import read_servegen
from simulator.traffic.service import Rows
from simulator.traffic.tables import (
    TraceError,
    columns_of,
    is_number,
    lines_of,
    numbers,
    peeked,
    table,
)
from simulator.traffic.workload import Arrivals, Replay

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE_STEP_S = 3.0
"""Mooncake's clock ticks about every 3 s; requests of one tick are spread over it."""

MOONCAKE_BLOCK = 512
"""Tokens of a block whose hash its published trace has."""
MOST_BLOCKS = 2_000_000
"""Of which what is cached is known; beyond them later prompts count as new."""


def read_trace(path: Path) -> Arrivals:
    """Return the arrivals of a trace file, told by its first lines; raises TraceError."""
    first, lines = peeked(lines_of(path), LOOKED_AT)
    header = tuple(cell.strip() for cell in first[0].split(","))
    if len(header) == 6 and is_number(header[0]):
        return read_servegen(path, lines)
    if header[0] in _COLUMNS:
        return _columns(path, header, _rest(lines))
    return _objects(path, first, lines)


def _objects(path: Path, first: Sequence[str], lines: Iterator[str]) -> Arrivals:
    """Return the arrivals of what is no table."""
    if '"input_length"' in first[0]:
        return _mooncake_replay(*_mooncake_lines(path, lines))
    if '"resultType"' in "".join(first):
        return read_range_query(path, lines)
    if is_benchmark(first):
        return _benchmark(path)
    if format_of(first) is not None or any("outcome" in line for line in first):
        log = read_access_log(path)
        told = f"{len(log.outcomes)} requests of {log.format}; left out: {log.left_out}"
        return Replay(rows=log.rows, told=told)
    raise TraceError(f"{path}: line 1 is the header of no trace known here: {first[0][:60]!r}")


_COLUMNS = {"TIMESTAMP", "timestamp_ms", "at_s", "Timestamp"}


def _rest(lines: Iterator[str]) -> Iterator[str]:
    next(lines)
    return lines


def _replay(rows: Rows, name: str) -> Replay:
    return Replay(rows=rows, told=f"{len(rows.at_s)} requests of {name}; nothing left out")


def _benchmark(path: Path) -> Replay:
    """Return a benchmark's requests as its clients sent them."""
    read = read_benchmark(path)
    assert read is not None
    times = read.timings
    rows = _sorted(Rows(times.scheduled_s, times.prompt, times.output))
    return Replay(rows=rows, told=read.told)


def _columns(path: Path, header: Sequence[str], lines: Iterable[str]) -> Arrivals:
    """Return the arrivals of a CSV, told by its header."""
    if "rate_per_s" in header:
        return read_rates(path, header, lines)
    if tuple(header) == AZURE:
        return _replay(_azure(path, lines), "Azure's trace")
    if header[0] == "timestamp_ms":
        return _mooncake_replay(*_mooncake(path, header, lines))
    if header[0] == "at_s":
        return _replay(_ours(path, header, lines), "a table of instants")
    if header[0] == "Timestamp" and {"Request tokens", "Response tokens"} <= set(header):
        return _burst_gpt(path, header, lines)
    told = ",".join(header)
    raise TraceError(f"{path}: line 1 is the header of no trace known here: {told[:60]!r}")


def _sorted(rows: Rows) -> Rows:
    ordered = rows.taken(np.argsort(rows.at_s, kind="stable"))
    return ordered._replace(at_s=ordered.at_s - ordered.at_s[0])


def _azure(path: Path, lines: Iterable[str]) -> Rows:
    pieces: list[list[Floats]] = []
    for line, rows in table(path, lines, 3):
        try:
            texts = [row[0].removesuffix("+00:00") for row in rows]
            with warnings.catch_warnings():  # of time zones, which numpy has none of
                warnings.simplefilter("error")
                instants = np.array(texts, dtype="datetime64[ns]")
        except (ValueError, Warning) as error:
            raise TraceError(f"{path}: TIMESTAMP: {error}") from None
        if np.isnat(instants).any():
            number = int(np.isnat(instants).argmax()) + line
            raise TraceError(f"{path}: line {number} has no TIMESTAMP")
        tokens = (numbers(path, rows, column, line) for column in (1, 2))
        pieces.append([instants.astype(np.int64), *tokens])
    at_ns, prompt, output = (np.concatenate(made) for made in zip(*pieces, strict=True))
    return _sorted(Rows((at_ns - at_ns.min()) / 1e9, prompt, output))


def _mooncake(path: Path, header: Sequence[str], lines: Iterable[str]) -> tuple[Rows, Floats]:
    """Return the rows of Mooncake as columns, and what a prefix cache would have of each."""
    wanted = [0, 1, 2, *(at for at, name in enumerate(header) if name == "prefix_hit_tokens")]
    ticks_ms, prompt, output, *found = columns_of(path, lines, len(header), wanted)
    cached = found[0] if found else np.zeros(0)
    return _sorted(Rows(_spread(ticks_ms / 1000), prompt, output)), cached


def _mooncake_lines(path: Path, lines: Iterable[str]) -> tuple[Rows, Floats]:
    """Return the same of Mooncake as it is published: a JSON object a line."""
    seen: set[int] = set()

    def cells() -> Iterator[list[str]]:
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                found = [entry[key] for key in ("timestamp", "input_length", "output_length")]
                blocks = [int(block) for block in entry.get("hash_ids", ())]
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
                raise TraceError(f"{path}: line {number} is not a request of Mooncake") from None
            known = sum(1 for _ in takewhile(seen.__contains__, blocks))
            if len(seen) < MOST_BLOCKS:
                seen.update(blocks)
            yield [str(cell) for cell in (*found, MOONCAKE_BLOCK * known)]

    texts = (",".join(row) for row in cells())
    ticks_ms, prompt, output, cached = columns_of(path, texts, 4, (0, 1, 2, 3))
    rows = _sorted(Rows(_spread(ticks_ms / 1000), prompt, output))
    return rows, np.minimum(cached, prompt) if seen else np.zeros(0)


def _mooncake_replay(rows: Rows, cached: Floats) -> Replay:
    replay = _replay(rows, "Mooncake's trace")
    if rows.prompt is None or not cached.any():
        return replay
    # The first block is the same for nearly all: who has more goes on with a conversation.
    goes_on = cached > MOONCAKE_BLOCK
    continued = float(goes_on.mean()) or 1.0
    share = min(1.0, float(cached.sum() / rows.prompt.sum()) / continued)
    told = (
        f"{replay.told}; a prefix cache without end would have "
        f"{cached.sum() / rows.prompt.sum():.0%} of the prompt tokens, about "
        f"--prefix-cache {continued:.2g},{share:.2g}"
    )
    return replace(replay, told=told)


def _burst_gpt(path: Path, header: Sequence[str], lines: Iterable[str]) -> Replay:
    """Return the rows of BurstGPT; a request that failed has 0 tokens in its answer."""
    names = ("Timestamp", "Request tokens", "Response tokens")
    wanted = [header.index(name) for name in names]
    rows = _sorted(Rows(*columns_of(path, lines, len(header), wanted)))
    return _replay(rows, "BurstGPT's trace")


def _spread(ticks: Floats) -> Floats:
    """Return instants that keep their tick and their order and are even within it.

    Left alone, ten requests would come at one instant, which never happened.
    """
    ticks = np.sort(ticks)
    values, first, count = np.unique(ticks, return_index=True, return_counts=True)
    place = np.arange(len(ticks)) - np.repeat(first, count)
    return np.repeat(values, count) + MOONCAKE_STEP_S * (place + 0.5) / np.repeat(count, count)


def _ours(path: Path, header: Sequence[str], lines: Iterable[str]) -> Rows:
    known = ("at_s", "prompt_tokens", "output_tokens", "service_s")
    if unknown := sorted(set(header) - set(known)):
        raise TraceError(f"{path}: unknown column {unknown[0]}")
    names = [name for name in known if name in header]
    made = columns_of(path, lines, len(header), [header.index(name) for name in names])
    column = dict(zip(names, made, strict=True))
    return _sorted(
        Rows(
            column["at_s"],
            column.get("prompt_tokens"),
            column.get("output_tokens"),
            column.get("service_s"),
        )
    )
