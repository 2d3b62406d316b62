"""Text files as columns of numbers; what cannot be read is named by file and line.

Rule 1: a number is finite and not negative; anything else is a fault, never a guess.
"""

import csv
import gzip
import sys
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from simulator.traffic.distributions import Floats

MOST = 1e12
"""Largest number in a trace: seconds, milliseconds or tokens beyond it are a mistake."""


class TraceError(ValueError):
    """A trace that cannot be read; says the file, the line and why."""


def lines_of(path: Path) -> list[str]:
    """Return the lines of a text that are not blank; raises TraceError."""
    try:
        lines = _content(path).decode("utf-8").splitlines()
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise TraceError(f"{path} begins like gzip and cannot be unpacked") from None
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path} is not UTF-8 text") from None
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise TraceError(f"{path} is empty")
    return lines


GZIP = b"\x1f\x8b"


@cache
def _stdin() -> bytes:
    """Return all of stdin, which can be read only once."""
    return sys.stdin.buffer.read()


def _content(path: Path) -> bytes:
    """Return what is in a file, or on stdin for `-`; unpacked where it is gzip."""
    content = _stdin() if str(path) == "-" else path.read_bytes()
    return gzip.decompress(content) if content.startswith(GZIP) else content


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def table(path: Path, lines: Sequence[str], columns: int) -> list[list[str]]:
    """Return the cells of a CSV without its header; each row has at least `columns` of them."""
    rows = list(csv.reader(lines))
    for number, row in enumerate(rows, start=2):
        if len(row) < columns:
            raise TraceError(f"{path}: line {number} has {len(row)} columns, not {columns}")
    if not rows:
        raise TraceError(f"{path} has a header and no requests")
    return rows


def numbers(path: Path, rows: Sequence[Sequence[str]], column: int) -> Floats:
    """Return a column as numbers; raises TraceError with the line and the value."""
    try:
        values = np.array([row[column] for row in rows], dtype=np.float64)
    except ValueError as error:
        raise TraceError(f"{path}: column {column + 1}: {error}") from None
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0) & (values <= MOST)))
    if len(wrong):
        value = rows[wrong[0]][column]
        raise TraceError(
            f"{path}: line {wrong[0] + 2}, column {column + 1}: {value!r} is not a number "
            f"between 0 and {MOST:g}"
        )
    return values
