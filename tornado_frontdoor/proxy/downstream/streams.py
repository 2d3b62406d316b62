"""Tornado's streams, read as bytes come: no future, no task and no change of interest a request.

Tornado reads for whoever awaits: each `read_until` costs a future, two turns of the loop and, once
it is answered, two calls of `epoll_ctl`. Here the stream stays registered, and tells one function
that there is more in its buffer. All else is Tornado's: the buffers, writing, closing, TLS.

What is private in Tornado and leaned on, each pinned in `test_stream_privates.py`: `_handle_events`
asks `reading()` which events are wanted, and `_handle_read` reads; `_read_to_buffer` reads once
into `_read_buffer` (a bytearray) of `_read_buffer_size` bytes, and closes where that fails;
`_consume` takes from it; `_add_io_state` adds to what is waited for; `_total_write_index` counts
what was to be written, `_total_write_done_index` what the kernel has taken of it.
"""

import logging
from collections.abc import Callable
from ssl import SSLSocket

from tornado.ioloop import IOLoop
from tornado.iostream import IOStream, SSLIOStream

LOG = logging.getLogger("frontdoor")

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

    @property
    def held_bytes(self) -> int:
        """How much was read and not taken yet."""
        return self._read_buffer_size

    @property
    def held(self) -> bytearray:
        """What was read and not taken yet; look, and `take`."""
        return self._read_buffer

    take = IOStream._consume  # noqa: SLF001 - without a call between
    """Take what was read first, so many bytes; there must be as much."""

    def want(self) -> None:
        """Hear of more from now on."""
        self._wanted = True
        self._add_io_state(IOLoop.READ)

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
        waiting = self._total_write_index != self._total_write_done_index
        if waiting or self._closed or not self._plain:
            return data
        try:
            return data[self.socket.send(data) :]
        except BlockingIOError:
            return data

    def reading(self) -> bool:
        """Tell Tornado to wait for more."""
        return self._wanted or super().reading()

    def _handle_events(self, fd: object, events: int) -> None:
        """Read, where there is nothing else to do; Tornado asks each time what to wait for."""
        wanted, waiting = self._wanted, self._total_write_index != self._total_write_done_index
        if self._plain and events == IOLoop.READ and wanted and not waiting:
            self._handle_read()
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
            LOG.warning("a connection cannot be read: %s", error)
            self.close(exc_info=error)
            return
        if came_bytes:
            self.on_bytes()


class FedTlsStream(SSLIOStream, FedStream):
    """The same over TLS: Tornado's part does the handshake, then reads through `FedStream`."""

    _plain = False

    def __init__(self, socket: SSLSocket) -> None:
        super().__init__(socket)
