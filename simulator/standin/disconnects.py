"""Clients that leave, noticed whatever else they left behind.

A server that only reads learns of a close when it reads to the end; with unread bytes in the way
(a trailing CRLF, a pipelined request) Tornado does not, and a silent answer never writes. The
kernel knows at once: EPOLLRDHUP says that the other side will send no more. vLLM takes that, a
half-close too, as a departure.
"""

import asyncio
import contextlib
import select
import sys
from collections.abc import Callable


class ClientWatcher:
    """Watches file descriptors of connections for their other side's end.

    On systems without epoll it watches nothing, and a departure is what Tornado notices.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._callbacks: dict[int, Callable[[], None]] = {}
        if sys.platform == "linux":
            self._epoll = select.epoll()
            loop.add_reader(self._epoll.fileno(), self._look)

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` once when the other side of `fd` closes or half-closes."""
        if sys.platform == "linux":
            self._callbacks[fd] = callback
            events = select.EPOLLRDHUP | select.EPOLLONESHOT
            try:
                self._epoll.register(fd, events)
            except FileExistsError:  # the connection's earlier request
                self._epoll.modify(fd, events)

    def forget(self, fd: int, callback: Callable[[], None]) -> None:
        """Stop watching `fd` for `callback`; harmless when the descriptor is another's by now."""
        if sys.platform == "linux" and self._callbacks.get(fd) is callback:
            del self._callbacks[fd]
            with contextlib.suppress(OSError):  # closed already: the kernel forgot it by itself
                self._epoll.unregister(fd)

    def close(self) -> None:
        """Stop watching everything."""
        if sys.platform == "linux":
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._callbacks.clear()

    def _look(self) -> None:
        for fd, _ in self._epoll.poll(0):
            callback = self._callbacks.get(fd)
            if callback is not None:
                callback()
