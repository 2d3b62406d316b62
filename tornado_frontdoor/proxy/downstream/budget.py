"""How much of all bodies together may be in memory, and how it is given back to the system.

The C library keeps what a crowd has taken: its heap shrinks only from the top, and each body that
is freed raises the size from which memory is mapped apart. So that size is fixed, and the heap is
trimmed when a crowd has gone.
"""

import asyncio
import ctypes
from contextlib import suppress

MAPPED_FROM_BYTES = 256 * 1024
"""What is at least as large is mapped apart, and goes back to the system when it is freed."""
CROWD_BYTES = 16 * 1024 * 1024
"""A peak below it is not worth a trim."""
CALM_S = 0.5
"""How long after a crowd the heap is trimmed."""
_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2


class BodyBudget:
    """Counts the bytes of bodies that are held, from their first piece to the end of the answer."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._peak_bytes = 0
        self._trim: asyncio.TimerHandle | None = None

    def take(self, size_bytes: int) -> bool:
        """Hold more, or tell that there is no room for it."""
        if self.held_bytes + size_bytes > self.limit_bytes:
            return False
        self.held_bytes += size_bytes
        self._peak_bytes = max(self._peak_bytes, self.held_bytes)
        return True

    def give(self, size_bytes: int) -> None:
        """Hold less; after a crowd the system gets its memory back."""
        self.held_bytes -= size_bytes
        crowd_has_gone = self._peak_bytes >= CROWD_BYTES and self.held_bytes * 4 < self._peak_bytes
        if crowd_has_gone and self._trim is None:
            self._trim = asyncio.get_running_loop().call_later(CALM_S, self._trim_heap)

    def close(self) -> None:
        """Forget a trim that is due."""
        if self._trim is not None:
            self._trim.cancel()
            self._trim = None

    def _trim_heap(self) -> None:
        self._trim = None
        self._peak_bytes = self.held_bytes
        # In a thread: it may take tens of milliseconds, and ctypes lets the others run meanwhile.
        asyncio.get_running_loop().run_in_executor(None, give_memory_back)


def keep_little_memory() -> None:
    """Have the C library map large pieces apart, whatever was freed before; glibc only.

    And have its heap grow by just what is asked for: what the system has just given is empty and
    needs not be emptied, so that of the 16 KiB from which libcurl sends a request only the pages
    are ever taken that the request fills.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
        libc.mallopt(_M_TOP_PAD, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 4 * MAPPED_FROM_BYTES)


def give_memory_back() -> None:
    """Give free memory of the heap back to the system; glibc only."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
