"""Tornado's streams, read as bytes come: no future, no task and no change of interest a request.

Tornado reads for whoever awaits: each `read_until` costs a future, two turns of the loop and, once
it is answered, two calls of `epoll_ctl`. Here the stream stays registered, and tells one function
that there is more in its buffer. All else is Tornado's: the buffers, writing, closing, TLS.

What is private in Tornado and leaned on, each pinned in `test_stream_privates.py`: `_handle_events`
asks `reading()` which events are wanted, and `_handle_read` reads; `_read_to_buffer` reads once
into `_read_buffer` (a bytearray) of `_read_buffer_size` bytes, and closes where that fails;
`_consume` takes from it; `_add_io_state` adds to what is waited for, which is `_state`; `_closed`
is what `closed()` tells; `_total_write_index` counts what was to be written,
`_total_write_done_index` what the kernel has taken of it.
"""

import logging
from collections.abc import Callable
from operator import attrgetter
from ssl import SSLSocket

from tornado.ioloop import IOLoop
from tornado.iostream import IOStream, SSLIOStream

LOG = logging.getLogger("frontdoor")

_READ = IOLoop.READ

HEAD_READ_BYTES = 16 * 1024
"""Read at once where a head is awaited. No record of TLS is longer, so that none stays half read
where no event tells of it."""
BODY_READ_BYTES = 64 * 1024
"""Read at once where more than that of a body is to come."""


def _nobody() -> None:
    """Take nothing."""


class FedStream(IOStream):
    """A stream that calls `on_bytes` when more is in its buffer, for as long as that is wanted.

    Where it is not, the stream reads once more at most, so as to see that it is closed.
    """

    _plain = True

    def __init__(self, socket: object) -> None:
        super().__init__(socket, read_chunk_size=HEAD_READ_BYTES)  # type: ignore[arg-type]
        self.on_bytes: Callable[[], None] = _nobody
        self._wanted = False

    # What each request asks several times, without a call of Python's between.
    held_bytes = property(attrgetter("_read_buffer_size"))
    """How much was read and not taken yet."""
    held = property(attrgetter("_read_buffer"))
    """What was read and not taken yet, a bytearray; look, and `take`."""
    is_closed = property(attrgetter("_closed"))
    """Whether it is closed, by whomever."""

    take = IOStream._consume  # noqa: SLF001 - without a call between
    """Take what was read first, so many bytes; there must be as much."""

    def want(self) -> None:
        """Hear of more from now on."""
        self._wanted = True
        if self._state is None or not self._state & _READ:  # else the kernel watches already
            self._add_io_state(_READ)

    def want_no_more(self) -> None:
        """Hear of nothing more until `want`."""
        self._wanted = False

    def forget(self) -> None:
        """Call nobody any more."""
        self._wanted = False
        self.on_bytes = _nobody

    def send_now(self, data: bytes) -> bytes:
        """Hand data to the kernel and return what it did not take; raises OSError.

        Past Tornado's buffer and its future for each write, while there is nothing in it: that is
        a third of what a relayed chunk costs.
        """
        if self._total_write_index != self._total_write_done_index or self._closed:
            return data
        try:
            sent_bytes = self.socket.send(data)
        except BlockingIOError:
            return data
        return b"" if sent_bytes == len(data) else data[sent_bytes:]

    def reading(self) -> bool:
        """Tell Tornado to wait for more."""
        return self._wanted or super().reading()

    def _handle_events(self, fd: object, events: int) -> None:
        """Read, where there is nothing else to do; Tornado asks each time what to wait for."""
        wanted, waiting = self._wanted, self._total_write_index != self._total_write_done_index
        if self._plain and events == _READ and wanted and not waiting:
            if self._read_to_buffer():
                self.on_bytes()
            if self._closed:
                return
            waiting = self._total_write_index != self._total_write_done_index
            if not waiting and (self._wanted or not self._read_buffer_size):
                return  # it waits for what it waited for
            events = 0
        super()._handle_events(fd, events)  # type: ignore[arg-type]

    def _read_to_buffer(self) -> int | None:
        """Read once; where there is no TLS without Tornado's memory that is cleared before."""
        if not self._plain:
            return super()._read_to_buffer()
        try:
            data = self.socket.recv(self.read_chunk_size)
        except BlockingIOError:
            return 0
        except (ConnectionError, TimeoutError) as error:  # an end like others
            self.close(exc_info=error)
            return None
        except Exception as error:  # noqa: BLE001 - as Tornado's own: whatever it is, it is over
            self._unreadable(error)
            return None
        if not data:
            self.close()
            return 0
        self._read_buffer += data
        self._read_buffer_size += len(data)
        return len(data)

    def _handle_read(self) -> None:
        if not self._wanted:
            super()._handle_read()
            return
        try:
            came_bytes = self._read_to_buffer()
        except Exception as error:  # noqa: BLE001 - as Tornado's own: whatever it is, it is over
            self._unreadable(error)
            return
        if came_bytes:
            self.on_bytes()

    def _unreadable(self, error: Exception) -> None:
        LOG.warning("a connection cannot be read: %s", error)
        self.close(exc_info=error)


class FedTlsStream(SSLIOStream, FedStream):
    """The same over TLS: Tornado's part does the handshake, then reads through `FedStream`."""

    _plain = False

    def __init__(self, socket: SSLSocket) -> None:
        super().__init__(socket)

    def send_now(self, data: bytes) -> bytes:
        """Leave it all to Tornado, which writes what TLS makes of it."""
        return data
