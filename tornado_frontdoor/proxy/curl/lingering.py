"""The connection of a call that was broken off, kept half open until the engine has closed it too.

An engine learns of a close when it reads it, and works on until then: vLLM within a few
milliseconds, llama.cpp at its next look, up to a second later. Who closes and goes away never hears
when that was. So a duplicate of the socket outlives libcurl's: it says that nothing more will be
sent (FIN), throws away what still comes, and waits for the engine's own end of file. A reset says
the same. What it reads is never looked at, so that TLS makes no difference.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress

_log = logging.getLogger(__name__)

MOST_DRAINED_BYTES = 1 << 20
"""What an engine may still send. One that sends more does not look for a FIN at all: a reset, which
comes of closing a socket with bytes unread, is what it may notice."""

SETTLE_S = 0.003
"""From the engine's end of file to the sign. A server on asyncio closes the socket some turns of
its loop before it cancels what works for it: without this a newcomer met its forerunner in vLLM's
HTTP server (not in its engine) in one hand-over of ten, with 2 ms in none of 800."""

READS_A_TURN = 4

_trash = bytearray(64 * 1024)


class LingeringClose:
    """Waits for the engine's end of file on one connection. Lives on the running loop."""

    __slots__ = ("_drained_bytes", "_loop", "_socket", "on_over", "over")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._drained_bytes = 0
        self.over = False
        """The engine has closed its side: it has let go of the call."""
        self.on_over: Callable[[], None] | None = None
        """Called once when that happens, unless `close` came first."""

    def follow(self, fd: int, *, let_go: bool = True) -> None:
        """Begin, before its owner closes the descriptor; -1: the connection is gone already.

        `let_go`: by the engine; else no sign will come of it, and the limit decides.
        """
        if fd < 0:
            if let_go:
                self._loop.call_later(SETTLE_S, self._end)
            return
        try:
            connection = socket.socket(fileno=os.dup(fd))
        except OSError as error:  # no descriptor is left: no sign will come, and the limit decides
            _log.warning("cannot follow the end of a call: %s", error.strerror)
            return
        connection.setblocking(False)
        self._socket = connection
        try:
            connection.shutdown(socket.SHUT_WR)
        except OSError:  # it was reset before
            self._end()
            return
        self._loop.add_reader(connection.fileno(), self._drain)

    def close(self) -> None:
        """Give up waiting. Idempotent."""
        self.on_over = None
        self._release()

    def _end(self) -> None:
        self._release()
        self.over = True
        on_over, self.on_over = self.on_over, None
        if on_over is not None:
            on_over()

    def _drain(self) -> None:
        assert self._socket is not None
        for _ in range(READS_A_TURN):
            try:
                size_bytes = self._socket.recv_into(_trash)
            except BlockingIOError:
                return
            except OSError:
                size_bytes = 0
            if not size_bytes:
                self._release()
                self._loop.call_later(SETTLE_S, self._end)
                return
            self._drained_bytes += size_bytes
        if self._drained_bytes > MOST_DRAINED_BYTES:
            self._release()  # no sign will come of it: the limit decides

    def _release(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            self._loop.remove_reader(connection.fileno())
            with suppress(OSError):
                connection.close()
