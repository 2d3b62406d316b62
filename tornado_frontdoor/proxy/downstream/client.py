"""One client's answer: how it goes out over HTTP/1.1, and how its leaving is noticed.

This writes below Tornado's `RequestHandler`: heads are rendered and chunks framed here, because at
that level a relayed chunk costs one system call and nothing else. What it promises its users:

- `on_gone` is called once, as soon as the client has left, in every case (see `departures.py`);
- `write` says when the client falls behind, `on_drained` when it has caught up;
- a client that stays but does not read is cut after the stall timeout;
- a body that is cut short never ends politely.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from fcntl import ioctl
from sys import byteorder
from termios import TIOCOUTQ
from time import monotonic
from typing import Any

from tornado.iostream import StreamClosedError

from tornado_frontdoor.proxy.downstream.body_store import ReceivedBody
from tornado_frontdoor.proxy.downstream.disconnects import DisconnectWatcher, is_gone
from tornado_frontdoor.proxy.downstream.heads import REASONS, new_request_id
from tornado_frontdoor.proxy.downstream.http1 import ClientConnection
from tornado_frontdoor.proxy.downstream.request_head import RequestHead
from tornado_frontdoor.surfaces.base import Document, Headers
from tornado_frontdoor.surfaces.keys import Key

BACKLOG_BYTES = 256 * 1024
"""How far a client may fall behind before its engine is paused."""


class ListenerContext:
    """What the clients of one listener share."""

    def __init__(self, departures: DisconnectWatcher, stall_timeout_s: float) -> None:
        self.departures = departures
        self.stall_timeout_s = stall_timeout_s
        self.unsent: set[asyncio.Future[None]] = set()
        """The last writes of answers that are over but have not left yet."""
        self.last = False
        """Whether each answer from now on is the last one on its connection."""


class Client:
    """One request and its answer. `serve` is called by `Incoming` once the request is whole."""

    __slots__ = (
        "_connection",
        "_departures",
        "_descriptor",
        "_head",
        "_left_bytes",
        "_loop",
        "_request",
        "_sent",
        "_stall_timeout_s",
        "_stall_timer",
        "_taken_mark",
        "_unsent",
        "address",
        "arrived_s",
        "body",
        "bytes_out",
        "ended",
        "extra",
        "found",
        "gone",
        "headers",
        "id",
        "is_chunked",
        "key",
        "method",
        "on_drained",
        "on_ended",
        "on_gone",
        "received",
        "stalled",
        "status",
        "target",
    )

    def __init__(
        self,
        connection: ClientConnection,
        head: RequestHead,
        place: "ListenerContext",
    ) -> None:
        self._connection = connection
        self._request = head
        self._departures = place.departures
        self._unsent = place.unsent
        self._sent: asyncio.Future[None] | None = None
        self._stall_timeout_s = place.stall_timeout_s
        self._stall_timer: asyncio.TimerHandle | None = None
        self._taken_mark = 0
        self._loop = asyncio.get_running_loop()
        self._head: bytes | None = None
        self.is_chunked = False
        """Whether the answer that was opened goes out in chunks."""
        self._left_bytes: int | None = None
        self._descriptor = connection.stream.socket.fileno()
        self.address = connection.remote_ip
        """Where the connection comes from."""
        self.id = new_request_id()
        self.arrived_s = monotonic()
        self.method = head.method
        self.target = head.target
        """The request's target as it was sent."""
        self.headers = head.headers
        self.found: Any = None
        """Whatever the service learned from the head and wants back with the body."""
        self.key: Key | None = None
        """Whose key it brought, where keys are asked for."""
        self.extra: Headers = ()
        """What every answer to it says besides."""
        self.body = b""
        self.received: ReceivedBody | None = None
        """The body, where it is too large to be looked at here."""
        self.status = 0
        self.bytes_out = 0
        self.gone = False
        self.stalled = False
        """It stayed, and read nothing for so long that it counts as gone."""
        self.ended = False
        self.on_gone: Callable[[], None] | None = None
        self.on_drained: Callable[[], None] | None = None
        self.on_ended: Callable[[], None] | None = None
        """For the listener: the answer is over, or nobody wants it any more."""

    @property
    def committed(self) -> bool:
        """Whether a byte of the answer has left, so that its status cannot change any more."""
        return self.status != 0 and self._head is None

    # Leaving

    def watch(self) -> None:
        """Notice from now on that the client leaves; until `finish` or `cut`."""
        left = self._left
        self._connection.on_close = left
        self._departures.watch(self._descriptor, left, self._connection.number)

    def is_still_there(self) -> bool:
        """Look once more, without waiting for the loop."""
        if not self.gone and is_gone(self._descriptor):
            self._left()
        return not self.gone

    def _left(self) -> None:
        if self.gone or self.ended:
            return
        self.gone = True
        on_gone, self.on_gone = self.on_gone, None
        self.cut()
        if on_gone is not None:
            on_gone()

    # Answering

    def send(self, document: Document, extra: Headers = ()) -> None:
        """Answer with a whole document."""
        if self.gone or self.ended:
            return
        headers = [*document.headers, ("Content-Length", str(len(document.body))), *extra]
        body = b"" if self.method == "HEAD" else document.body
        self.bytes_out += len(body)
        self._head = None  # one that was opened and has not left yet is withdrawn
        self._end(self._render_head(document.status, headers) + body)

    def send_interim(self, status: int, headers: Headers) -> None:
        """Say something before the answer, to a client that bears it; the status stays open."""
        if self.gone or self.ended or self.status or self._request.version != "HTTP/1.1":
            return
        if self._connection.stream.writing():
            return  # it reads slowly: the next one is as good
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}\r\n"]
        lines += [f"{name}: {value}\r\n" for name, value in headers]
        data = "".join([*lines, "\r\n"]).encode("latin-1", "replace")
        self._send(data)

    def send_early(self, document: Document) -> None:
        """Answer while the body still comes in; `finish` is called when that has ended."""
        headers = [*document.headers, ("Content-Length", str(len(document.body)))]
        self._head = self._render_head(document.status, headers)
        self._send(self._with_head(b"" if self.method == "HEAD" else document.body))

    def open(self, status: int, headers: Headers, length: int | None) -> None:
        """Begin an answer in pieces; the head leaves with the first one, or at the turn's end.

        Where a length is told, the body is there already, or the answer can still be another one.

        `headers` say nothing of the framing. `length` is what the body must come to: no byte above
        it is sent, and an answer that ends below it does not end politely.
        """
        lines = list(headers)
        bodiless = status in (204, 304) or self.method == "HEAD"
        self._left_bytes = 0 if bodiless else length
        self.is_chunked = self._left_bytes is None and self._request.version == "HTTP/1.1"
        if self.is_chunked:
            lines.append(("Transfer-Encoding", "chunked"))
        elif not bodiless and length is not None:
            lines.append(("Content-Length", str(length)))
        elif not bodiless:
            # HTTP/1.0: the end of the connection is the end of the body
            self._connection.keeps_alive = False
        self._head = self._render_head(status, lines)
        if not self._left_bytes:
            self._loop.call_soon(self._flush_head)

    def write(self, data: bytes) -> bool:
        """Send a piece; False: it was taken, but send no more until `on_drained` is called."""
        if self.gone or self.ended:
            return True
        if self.is_chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        elif self._left_bytes is not None:
            left_bytes, self._left_bytes = self._left_bytes, self._left_bytes - len(data)
            data = data[: max(0, left_bytes)]
            if not data:
                return True
        if self._head is None:
            self.bytes_out += len(data)
        else:
            data = self._with_head(data)
        return self._send(data)

    def write_chunk(self, chunk: bytes) -> bool:
        """Send a whole chunk as it is; else as `write`, once the head has left, if `is_chunked`."""
        if self.gone or self.ended:
            return True
        self.bytes_out += len(chunk)
        try:  # as `_send`, without a call between: nearly all of each stream comes this way
            left = self._connection.stream.send_now(chunk)
        except OSError:
            self._left()
            return True
        return self._keep(left) if left else True

    def finish(self) -> None:
        """End the answer politely: it is whole."""
        if self.gone or self.ended:
            return
        if self._left_bytes:
            self.abort_after(b"")
            return
        head, self._head = self._head or b"", None
        self._end(head + b"0\r\n\r\n" if self.is_chunked else head)

    def cut(self) -> None:
        """End the answer rudely: what was sent must not look whole."""
        self.ended = True
        self._unwatch()
        self._stop_stall_watch()
        self._connection.close()
        if self._sent is not None:
            self._sent.cancel()  # Tornado forgets it, and a drain would wait for it

    def abort_after(self, last: bytes) -> None:
        """Send `last` and cut once it has left (or stalls): the client learns it is no end."""
        if self.gone or self.ended:
            return
        if last:
            self.write(last)
        self._flush_head()
        self.ended = True
        self._unwatch()
        stream = self._connection.stream
        if stream.writing():
            self._watch_stall()
            stream.write(b"").add_done_callback(lambda _: self.cut())
        else:
            self.cut()

    # How

    def _end(self, last: bytes) -> None:
        self.ended = True
        self._unwatch()
        stream = self._connection.stream
        if last:
            with suppress(OSError):  # the connection will say that it is closed
                last = stream.send_now(last)
        if not last and not stream.writing():
            self._connection.finish()
            return
        # Through the connection, not the stream: it waits for this write before it reads on.
        sent = self._connection.write(last)
        self._connection.finish()
        if not sent.done():
            self._sent = sent
            self._unsent.add(sent)
            sent.add_done_callback(self._unsent.discard)
            self._watch_stall()

    def _render_head(self, status: int, headers: Headers) -> bytes:
        self.status = status
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}\r\n"]
        lines += [f"{name}: {value}\r\n" for name, value in headers]
        if self.extra:
            lines += [f"{name}: {value}\r\n" for name, value in self.extra]
        if not self._connection.keeps_alive:
            lines.append("Connection: close\r\n")
        elif self._request.version == "HTTP/1.0":
            lines.append("Connection: keep-alive\r\n")
        lines.append(f"X-Request-Id: {self.id}\r\n\r\n")
        head = "".join(lines)
        if not head.count("\n") == head.count("\r") == len(lines) + 1:
            raise ValueError("a header holds a line break")
        return head.encode("latin-1", "replace")

    def _flush_head(self) -> None:
        if self._head is not None and not self.gone and not self.ended:
            self._send(self._with_head(b""))

    def _with_head(self, data: bytes) -> bytes:
        """Return the head, which leaves now, and the first piece behind it."""
        assert self._head is not None
        self.bytes_out += len(data)
        head, self._head = self._head, None
        return head + data

    def _send(self, data: bytes) -> bool:
        """Send it now; False: what the kernel did not take has become too much."""
        try:
            left = self._connection.stream.send_now(data)
        except OSError:
            self._left()
            return True
        return self._keep(left) if left else True

    def _keep(self, data: bytes) -> bool:
        """Keep what the kernel did not take; False: it has become too much."""
        stream = self._connection.stream
        written: asyncio.Future[None] | None = None
        with suppress(StreamClosedError):
            written = stream.write(data)
        if written is None or stream.closed():  # before, or by that very write
            self._left()
            return True
        if len(stream._write_buffer) <= BACKLOG_BYTES:  # noqa: SLF001 - its size has no public name
            return True
        self._watch_stall()
        written.add_done_callback(self._drained)
        return False

    def _drained(self, _: "asyncio.Future[None]") -> None:
        self._stop_stall_watch()
        if self.on_drained is not None and not self.gone and not self.ended:
            self.on_drained()

    def _watch_stall(self) -> None:
        if self._stall_timer is None:
            self._taken_mark = self._taken_bytes()
            self._stall_timer = self._loop.call_later(self._stall_timeout_s, self._judge_stall)

    def _judge_stall(self) -> None:
        self._stall_timer = None
        stream = self._connection.stream
        if stream is None or stream.closed() or not stream.writing():
            return
        if self._taken_bytes() > self._taken_mark:
            self._watch_stall()  # slow, but it reads
        elif self.ended:
            self.cut()
        else:
            self.stalled = True
            self._left()

    def _taken_bytes(self) -> int:
        """Return how much the client's side has acknowledged, counted from anywhere.

        The kernel asks for more only when a third of its buffer is free, which is megabytes: by
        that alone whoever reads 25 kB/s would have stalled.
        """
        stream = self._connection.stream
        pending = ioctl(stream.socket.fileno(), TIOCOUTQ, bytes(4))
        written: int = stream._total_write_done_index  # noqa: SLF001 - it has no public name
        return written - int.from_bytes(pending, byteorder)

    def _stop_stall_watch(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _unwatch(self) -> None:
        self._departures.forget(self._descriptor, self._left)
        if self.on_ended is not None:
            on_ended, self.on_ended = self.on_ended, None
            on_ended()
