"""Text files as columns of numbers, a piece at a time; what cannot be read is named by its line.

Rule 1: a number is finite and not negative; anything else is a fault, never a guess.
Rule 2: no file is held as text: ten million rows are ten million numbers a column.
"""

import csv
import gzip
import io
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import IO

import numpy as np

from simulator.traffic.distributions import Floats

MOST = 1e12
"""Largest number in a trace: seconds, milliseconds or tokens beyond it are a mistake."""
PIECE = 1 << 16
"""Rows that are held as text at a time."""


class TraceError(ValueError):
    """A trace that cannot be read; says the file, the line and why."""


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a text that are not blank; raises TraceError, also when there are none."""
    count = 0
    try:
        with _opened(path) as file, io.TextIOWrapper(file, encoding="utf-8") as text:
            for line in text:
                if line.strip():
                    count += 1
                    yield line.rstrip("\r\n")
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise TraceError(f"{path} begins like gzip and cannot be unpacked") from None
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path} is not UTF-8 text") from None
    if not count:
        raise TraceError(f"{path} is empty")


def peeked(lines: Iterator[str], count: int) -> tuple[list[str], Iterator[str]]:
    """Return the first lines, and all of them."""
    first = list(islice(lines, count))
    return first, chain(first, lines)


GZIP = b"\x1f\x8b"
LOOKED_AT_BYTES = 1 << 16
MOST_SPOOLED_GIB = 16


@cache
def _spooled(path: Path) -> Path:
    """Return a file with all of stdin or of a pipe, which can be read once; it goes with us."""
    kept = tempfile.NamedTemporaryFile(prefix="frontdoor-", suffix=".stdin")  # noqa: SIM115
    with nullcontext(sys.stdin.buffer) if str(path) == "-" else path.open("rb") as source:
        while piece := source.read(LOOKED_AT_BYTES):
            if not kept.tell():
                _verify_text(path, piece)
            kept.write(piece)
            if kept.tell() > MOST_SPOOLED_GIB << 30:
                raise TraceError(f"{path} does not end: give a part of it, as a file")
    kept.flush()
    _KEPT.append(kept)
    return Path(kept.name)


_KEPT: list[object] = []


def _opened(path: Path) -> IO[bytes]:
    """Return a file, a pipe, or stdin for `-`; unpacked where it is gzip."""
    kind = 0 if str(path) == "-" else path.stat().st_mode
    if stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
        raise TraceError(f"{path} is a device, which has no end: give a file")
    name = _spooled(path) if stat.S_ISFIFO(kind) or not kind else path
    with name.open("rb") as file:
        packed = file.read(len(GZIP)) == GZIP
    found = _unpacked(name) if packed else name.open("rb")
    try:
        _verify_text(path, found.read(LOOKED_AT_BYTES))
    except BaseException:
        found.close()
        raise
    found.seek(0)
    return found


def _unpacked(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb")  # type: ignore[return-value]


def _verify_text(path: Path, piece: bytes) -> None:
    """Raise TraceError for what is no text: of zeros alone a line would have no end."""
    if not piece.startswith(GZIP) and b"\0" in piece:
        raise TraceError(f"{path} is not UTF-8 text")


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


Row = Sequence[str]


def table(path: Path, lines: Iterable[str], columns: int) -> Iterator[tuple[int, list[Row]]]:
    """Yield the cells of a CSV without its header, a piece at a time, each with its first line.

    Each row has at least `columns` cells, and there is one at least.
    """
    rows: Iterator[Row] = iter(csv.reader(lines))
    line = 2
    try:
        while piece := list(islice(rows, PIECE)):
            for number, row in enumerate(piece, start=line):
                if len(row) < columns:
                    raise TraceError(f"{path}: line {number} has {len(row)} columns, not {columns}")
            yield line, piece
            line += len(piece)
    except csv.Error as error:
        raise TraceError(f"{path}: line {line} or one after it is not CSV: {error}") from None
    if line == 2:
        raise TraceError(f"{path} has a header and no requests")


def columns_of(path: Path, lines: Iterable[str], width: int, wanted: Sequence[int]) -> list[Floats]:
    """Return columns of a CSV without its header as numbers; raises TraceError."""
    pieces: list[list[Floats]] = [[] for _ in wanted]
    for line, rows in table(path, lines, width):
        for made, column in zip(pieces, wanted, strict=True):
            made.append(numbers(path, rows, column, line))
    return [np.concatenate(made) for made in pieces]


def numbers(path: Path, rows: Sequence[Row], column: int, line: int = 2) -> Floats:
    """Return a column as numbers; raises TraceError with the line and the value."""
    try:
        values = np.array([row[column] for row in rows], dtype=np.float64)
    except ValueError as error:
        raise TraceError(f"{path}: column {column + 1}: {error}") from None
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0) & (values <= MOST)))
    if len(wrong):
        value = rows[wrong[0]][column]
        raise TraceError(
            f"{path}: line {wrong[0] + line}, column {column + 1}: {value!r} is not a number "
            f"between 0 and {MOST:g}"
        )
    return values
