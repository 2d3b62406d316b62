"""Notices a client that leaves, at once and in every case.

Tornado notices a close only while it reads, and it stops reading when bytes are left unread: after
a stray CRLF or a pipelined request a client could leave without a trace. The kernel knows better:
an epoll of our own waits for the peer's FIN or RST (EPOLLRDHUP) whatever is in the buffer. Its one
descriptor is watched by the loop, so ten thousand quiet clients cost nothing.

A client that only closes its writing side counts as gone: vLLM takes a half-close so too.
"""

import asyncio
import select
from collections.abc import Callable
from contextlib import suppress

_EVENTS = select.EPOLLRDHUP  # EPOLLHUP and EPOLLERR are always reported


class DisconnectWatcher:
    """Calls back once when the peer of a watched socket is gone. Linux only."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}
        self._registered: dict[int, object] = {}
        """Whose the descriptors are that the kernel watches, as far as we were told."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._epoll.fileno(), self._on_ready)

    def __len__(self) -> int:
        return len(self._watched)

    def watch(
        self, descriptor: int, on_gone: Callable[[], None], connection: int | None = None
    ) -> None:
        """Call `on_gone` when the peer of `descriptor` has closed, reset or half-closed.

        `connection` is a number that no other one ever has, None: whose it is, is not known.
        """
        self._watched[descriptor] = on_gone
        # A connection stays registered from request to request, which saves the system calls.
        # A descriptor may stand for a new socket by now, of which the kernel was not told.
        if connection is not None and self._registered.get(descriptor) == connection:
            return
        self._registered[descriptor] = connection
        try:
            self._epoll.modify(descriptor, _EVENTS)
        except FileNotFoundError:
            self._epoll.register(descriptor, _EVENTS)

    def forget(self, descriptor: int, on_gone: Callable[[], None]) -> None:
        """Stop watching; does nothing when `descriptor` is watched for someone else by now."""
        if self._watched.get(descriptor) == on_gone:
            del self._watched[descriptor]

    def close(self) -> None:
        """Stop watching everyone."""
        self._loop.remove_reader(self._epoll.fileno())
        self._watched.clear()
        self._epoll.close()

    def _on_ready(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            # Also one that left between two requests: it would be reported again and again.
            with suppress(OSError):  # closed already: the kernel has forgotten it
                self._epoll.unregister(descriptor)
            self._registered.pop(descriptor, None)
            on_gone = self._watched.pop(descriptor, None)
            if on_gone is not None:
                on_gone()


def is_gone(descriptor: int) -> bool:
    """Tell whether the peer of a socket is gone now, without waiting for the loop to say so."""
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))
