"""Where bodies are until their engine has them: small ones in memory, large ones in files.

A file has no name, so that nothing is left of it whatever ends the process, and is written and read
whole by threads. Where no file can be made (no room, a full disk, no descriptor), a body stays in
memory, within the same budget as small ones.
"""

import asyncio
import logging
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from time import monotonic

from tornado_frontdoor.config.settings import ServerSettings
from tornado_frontdoor.proxy.downstream.budget import BodyBudget
from tornado_frontdoor.proxy.downstream.limits import ADMIN_BUFFERED_BYTES

LOG = logging.getLogger("frontdoor")

FLUSH_BYTES = 1024 * 1024
"""How much of a body that goes to a file is gathered for one write."""
CRUMB_BYTES = 16 * 1024
SAID_AGAIN_S = 60.0
WRITERS = 2


class BodyStore:
    """Where the bodies of one listener are; `most_files`: how many descriptors they may take."""

    def __init__(self, folder: Path, most_files: int) -> None:
        self.memory = BodyBudget(ADMIN_BUFFERED_BYTES)
        self.spill_from_bytes = 0
        """A body larger than that goes to a file; 0: none does."""
        self.limit_bytes = 0
        self.held_bytes = 0
        self.files = 0
        self.writers: Executor = ThreadPoolExecutor(WRITERS, "spill")
        self._folder = folder
        self._most_files = most_files
        self._said_s = -SAID_AGAIN_S

    def change(self, limits: ServerSettings) -> None:
        """Put limits in force; until then they are those of the admin listener."""
        self.memory.limit_bytes = limits.max_buffered_bytes
        self.spill_from_bytes = limits.spill_body_bytes
        self.limit_bytes = limits.max_spilled_bytes

    def open(self) -> "BodyFile | None":
        """Return a file for one body; None: there is no room for another."""
        if self.files >= self._most_files:
            return None
        self.files += 1
        return BodyFile(self)

    def make(self) -> int:
        """Make a file and return its descriptor; raises OSError. Called in a thread."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._folder, buffering=0) as file:
            return os.dup(file.fileno())

    def take(self, size_bytes: int) -> bool:
        """Take room on the disk; False: there is none."""
        if self.held_bytes + size_bytes > self.limit_bytes:
            return False
        self.held_bytes += size_bytes
        return True

    def failed(self, error: OSError) -> None:
        """Say that a body stays in memory, and why; not for each of a crowd."""
        if monotonic() - self._said_s >= SAID_AGAIN_S:
            self._said_s = monotonic()
            LOG.warning(
                "a large body stays in memory: no file in %s (server.state_dir): %s",
                self._folder,
                error.strerror,
            )

    def close(self) -> None:
        """Write no more."""
        self.memory.close()
        self.writers.shutdown(wait=False, cancel_futures=True)


class BodyFile:
    """One body in a file, given back once it is closed and no thread is at work on it."""

    def __init__(self, store: BodyStore) -> None:
        self._store = store
        self._descriptor = -1
        self._taken_bytes = 0
        self._users = 0
        self._closed = self._given_back = False
        self.size_bytes = 0

    async def append(self, pieces: Sequence[bytes]) -> bool:
        """Write pieces behind what there is; False: they are not in it."""
        size_bytes = sum(map(len, pieces))
        if self._closed or not self._store.take(size_bytes):
            return False
        self._taken_bytes += size_bytes
        loop = asyncio.get_running_loop()
        self.hold()
        try:
            await loop.run_in_executor(self._store.writers, self._write, pieces, self.size_bytes)
        except OSError as error:
            self._store.failed(error)
            return False
        finally:
            self.release()
        self.size_bytes += size_bytes
        return True

    def whole(self) -> bytes:
        """Return all of it; called in a thread."""
        return self._read(0, self.size_bytes)

    def write(self, body: bytes, begin: int) -> bool:
        """Have a body in it, of which the first `begin` bytes are; False: it cannot.

        Called in a thread.
        """
        try:
            self._write([memoryview(body)[begin:]], begin)
            os.ftruncate(self._descriptor, len(body))
        except OSError as error:
            self._store.failed(error)
            return False
        self.size_bytes = len(body)
        return True

    def read(self, offset: int, most: int) -> bytes:
        """Return some of it from a place on; empty where it cannot be read any more."""
        try:
            return b"" if self._closed else os.pread(self._descriptor, most, offset)
        except OSError as error:
            LOG.warning("a body's file cannot be read any more: %s", error.strerror)
            return b""

    def hold(self) -> None:
        """Keep it open until `release`."""
        self._users += 1

    def release(self) -> None:
        """Let go of it."""
        self._users -= 1
        self._give_back()

    def close(self) -> None:
        """Give it back, now or when no thread is at work on it. Idempotent."""
        self._closed = True
        self._give_back()

    def _give_back(self) -> None:
        if self._users or not self._closed or self._given_back:
            return
        self._given_back = True
        self._store.files -= 1
        self._store.held_bytes -= self._taken_bytes
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def _write(self, pieces: Sequence[bytes | memoryview], offset: int) -> None:
        if self._descriptor < 0:
            self._descriptor = self._store.make()
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                written = os.pwrite(self._descriptor, rest, offset)
                rest, offset = rest[written:], offset + written

    def _read(self, offset: int, size_bytes: int) -> bytes:
        pieces = []
        while size_bytes and (piece := os.pread(self._descriptor, size_bytes, offset)):
            pieces.append(piece)
            size_bytes -= len(piece)
            offset += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class ReceivedBody:
    """A body as it comes in: pieces in memory, behind what is in a file where it is large."""

    def __init__(self, budget: BodyBudget) -> None:
        self.size_bytes = 0
        self._budget = budget
        self._memory_bytes = 0
        self._file: BodyFile | None = None
        self._pieces: list[bytes] = []
        self._crumbs = bytearray()
        """Pieces that are too small to be kept each by itself: a byte would take forty."""
        self._may_spill = True

    def add(self, piece: bytes) -> None:
        """Take a piece, for which there is room in memory."""
        if self.size_bytes and (len(piece) < CRUMB_BYTES or self._crumbs):
            self._crumbs += piece
            if len(self._crumbs) >= 4 * CRUMB_BYTES:
                self._gather()
        else:
            self._pieces.append(piece)
        self.size_bytes += len(piece)
        self._memory_bytes += len(piece)

    def wants_to_spill(self, store: BodyStore) -> bool:
        """Tell whether what is in memory is to go to a file now."""
        if not self._may_spill or not store.spill_from_bytes:
            return False
        most_bytes = store.spill_from_bytes if self._file is None else FLUSH_BYTES
        return self._memory_bytes > most_bytes

    async def spill(self, store: BodyStore) -> None:
        """Move what is in memory to a file; where that cannot be, no more of it will."""
        file = self._file = self._file or store.open()
        self._gather()
        pieces = self._pieces
        self._may_spill = file is not None and await file.append(pieces)
        if self._may_spill and self._pieces is pieces:  # else it was forgotten meanwhile
            self._pieces = []
            self._leave_memory()

    def forget(self) -> None:
        """Let go of everything. Idempotent."""
        self._pieces = []
        self._crumbs.clear()
        self._leave_memory()
        if self._file is not None:
            self._file.close()

    def small(self) -> bytes | None:
        """Return a small body whole; None: it takes a thread."""
        if self._file is not None or self.size_bytes >= FLUSH_BYTES:
            return None
        if self._crumbs:
            self._gather()
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)

    # What a thread does with a large one, between `begin` and `end`

    def begin(self) -> None:
        """Keep it until `end`, whatever becomes of its client."""
        if self._file is not None:
            self._file.hold()

    def whole(self) -> bytes:
        """Return all of it, and keep nothing in memory."""
        self._gather()
        pieces, self._pieces = self._pieces, []
        if self._file is not None and self._file.size_bytes:
            pieces = [self._file.whole(), *pieces]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def keep(self, body: bytes, *, unchanged: bool) -> bytes | BodyFile:
        """Keep what an engine is sent where the body was; returns what to send it from."""
        file = self._file
        if file is None or not self._may_spill:
            return body
        begin = file.size_bytes if unchanged else 0
        self._may_spill = file.write(body, begin)
        return file if self._may_spill else body

    def end(self) -> None:
        """It was read: what is in a file is in memory no more."""
        if self._file is not None:
            if self._may_spill:
                self._leave_memory()
            self._file.release()

    def _gather(self) -> None:
        if self._crumbs:
            self._pieces.append(bytes(self._crumbs))
            self._crumbs.clear()

    def _leave_memory(self) -> None:
        self._budget.give(self._memory_bytes)
        self._memory_bytes = 0
