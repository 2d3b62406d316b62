"""The C library's heap, kept small; what is no glibc is left alone.

Of itself it keeps what a crowd has taken: it shrinks only from the top, and each large piece that
is freed raises the size from which memory is mapped apart. So that size is fixed, and the heap is
trimmed when a crowd has gone.
"""

import asyncio
import ctypes
from contextlib import suppress
from typing import Any

MAPPED_FROM_BYTES = 256 * 1024
"""What is at least as large is mapped apart, and goes back to the system when it is freed."""
SENT_FROM_BYTES = 16 * 1024
"""The size of the piece that a handle of libcurl sends its requests from: its least."""
_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2


def _found(name: str) -> Any:
    with suppress(OSError, AttributeError):
        return getattr(ctypes.CDLL(None), name)
    return None


_mallopt = _found("mallopt")
_malloc_trim = _found("malloc_trim")


def keep_little_memory() -> None:
    """Have large pieces mapped apart, whatever was freed before.

    And the heap grow by no more than is asked for: what has room at its top is not mapped apart.
    """
    if _mallopt is not None:
        _mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
        _mallopt(_M_TOP_PAD, 0)
        _mallopt(_M_TRIM_THRESHOLD, 4 * MAPPED_FROM_BYTES)


def map_apart_in_this_turn() -> None:
    """Have smaller pieces mapped apart until the loop's next turn: a handle's first request is due.

    The piece that it sends from is cleared when it is taken from the heap, all of it, and kept.
    Mapped apart it is clear already, and has only the pages that its requests have filled: mostly
    one. For good this size would not do: a request of 78 KB cost half as much again.
    """
    if _mallopt is not None:
        _mallopt(_M_MMAP_THRESHOLD, SENT_FROM_BYTES)
        loop = asyncio.get_running_loop()
        loop.call_soon(_mallopt, _M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)


def give_memory_back() -> None:
    """Give free memory of the heap back to the system."""
    if _malloc_trim is not None:
        _malloc_trim(0)
