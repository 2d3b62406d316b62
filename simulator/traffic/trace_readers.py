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
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simulator.traffic.access_log import read_access_log
from simulator.traffic.distributions import Floats
from simulator.traffic.servegen import read_servegen
from simulator.traffic.service import Rows
from simulator.traffic.tables import TraceError, is_number, lines_of, numbers, table
from simulator.traffic.workload import Arrivals, Replay

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
LOOKED_AT = 50
"""Lines in which an access line must be found: a log begins with other words."""
MOONCAKE_STEP_S = 3.0
"""Mooncake's clock ticks about every 3 s; requests of one tick are spread over it."""


def read_trace(path: Path) -> Arrivals:
    """Return the arrivals of a trace file; raises TraceError."""
    lines = lines_of(path)
    header = tuple(cell.strip() for cell in lines[0].split(","))
    if len(header) == 6 and is_number(header[0]):
        return read_servegen(path, lines)
    if '"input_length"' in lines[0]:
        return Replay(rows=_mooncake_lines(path, lines))
    if any("outcome" in line for line in lines[:LOOKED_AT]):
        return Replay(rows=read_access_log(path).rows)
    return Replay(rows=_columns(path, header, lines))


def _columns(path: Path, header: Sequence[str], lines: Sequence[str]) -> Rows:
    """Return the rows of a CSV, told by its header."""
    if tuple(header) == AZURE:
        return _azure(path, lines[1:])
    if header[0] == "timestamp_ms":
        return _mooncake(path, lines[1:])
    if header[0] == "at_s":
        return _ours(path, header, lines[1:])
    if header[0] == "Timestamp" and "Request tokens" in header:
        return _burst_gpt(path, header, lines[1:])
    raise TraceError(f"{path}: line 1 is the header of no trace known here: {lines[0][:60]!r}")


def _sorted(rows: Rows) -> Rows:
    ordered = rows.taken(np.argsort(rows.at_s, kind="stable"))
    return ordered._replace(at_s=ordered.at_s - ordered.at_s[0])


def _azure(path: Path, lines: Sequence[str]) -> Rows:
    rows = table(path, lines, 3)
    try:
        instants = np.array([row[0].removesuffix("+00:00") for row in rows], dtype="datetime64[ns]")
    except ValueError as error:
        raise TraceError(f"{path}: TIMESTAMP: {error}") from None
    if np.isnat(instants).any():
        raise TraceError(f"{path}: line {int(np.isnat(instants).argmax()) + 2} has no TIMESTAMP")
    seconds = (instants - instants.min()).astype(np.int64) / 1e9
    return _sorted(Rows(seconds, numbers(path, rows, 1), numbers(path, rows, 2)))


def _mooncake(path: Path, lines: Sequence[str]) -> Rows:
    rows = table(path, lines, 3)
    ticks = numbers(path, rows, 0) / 1000
    return _sorted(Rows(_spread(ticks), numbers(path, rows, 1), numbers(path, rows, 2)))


def _mooncake_lines(path: Path, lines: Sequence[str]) -> Rows:
    """Return the rows of Mooncake as it is published: a JSON object a line."""
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            cells = [entry[key] for key in ("timestamp", "input_length", "output_length")]
        except (ValueError, KeyError, TypeError):
            raise TraceError(f"{path}: line {number} is not a request of Mooncake") from None
        rows.append([str(cell) for cell in cells])
    ticks = numbers(path, rows, 0) / 1000
    return _sorted(Rows(_spread(ticks), numbers(path, rows, 1), numbers(path, rows, 2)))


def _burst_gpt(path: Path, header: Sequence[str], lines: Sequence[str]) -> Rows:
    """Return the rows of BurstGPT; a request that failed has 0 tokens in its answer."""
    rows = table(path, lines, len(header))
    prompt, output = header.index("Request tokens"), header.index("Response tokens")
    return _sorted(
        Rows(numbers(path, rows, 0), numbers(path, rows, prompt), numbers(path, rows, output))
    )


def _spread(ticks: Floats) -> Floats:
    """Return instants that keep their tick and their order and are even within it.

    Left alone, ten requests would come at one instant, which never happened.
    """
    ticks = np.sort(ticks)
    values, first, count = np.unique(ticks, return_index=True, return_counts=True)
    place = np.arange(len(ticks)) - np.repeat(first, count)
    return np.repeat(values, count) + MOONCAKE_STEP_S * (place + 0.5) / np.repeat(count, count)


def _ours(path: Path, header: Sequence[str], lines: Sequence[str]) -> Rows:
    rows = table(path, lines, len(header))
    known = {"at_s", "prompt_tokens", "output_tokens", "service_s"}
    if unknown := sorted(set(header) - known):
        raise TraceError(f"{path}: unknown column {unknown[0]}")

    def column(name: str) -> Floats | None:
        return numbers(path, rows, header.index(name)) if name in header else None

    instants = column("at_s")
    assert instants is not None
    return _sorted(
        Rows(instants, column("prompt_tokens"), column("output_tokens"), column("service_s"))
    )
