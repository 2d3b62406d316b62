"""How much of all bodies together may be in memory; after a crowd the system gets it back."""

import asyncio

from tornado_frontdoor.proxy.heap import give_memory_back

CROWD_BYTES = 16 * 1024 * 1024
"""A peak below it is not worth a trim."""
CALM_S = 0.5
"""How long after a crowd the heap is trimmed."""


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
