"""One HTTP exchange of a stand-in, on a Tornado connection.

Rule 1: an answer begins and ends once; whatever comes after the end, or after the client, is lost.
Rule 2: a client that leaves is noticed at once, also when it left unread bytes or says nothing; or
        after `notice_s`, as by an engine that looks after its clients only now and then: until
        then its sequence goes on and its connection stays open.
"""

import asyncio
import socket
import weakref
from collections.abc import Callable
from http import HTTPStatus
from typing import cast
from urllib.parse import parse_qs

from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPHeaders, HTTPServerRequest, ResponseStartLine
from tornado.iostream import IOStream

from simulator.standin.disconnects import ClientWatcher

JSON = "application/json"


class WebExchange:
    """One HTTP exchange on a Tornado connection."""

    def __init__(
        self,
        request: HTTPServerRequest,
        number: int,
        departures: ClientWatcher,
        notice_s: float = 0.0,
    ) -> None:
        self.request_id = request.headers.get("X-Request-Id") or f"{number:012x}"
        self.method = request.method or "GET"
        self.path = request.path or "/"
        self.body = request.body
        self.content_type = request.headers.get("Content-Type", JSON)
        self.host = request.headers.get("Host", "")
        self._raw_query = request.query
        self._connection = cast(HTTP1Connection, request.connection)
        self._stream: IOStream = self._connection.stream
        self._chunked = request.version == "HTTP/1.1"
        self._departures = departures
        self._fd = -1
        self._notice_s = notice_s
        self._unnoticed: socket.socket | None = None
        self._gone: Callable[[], None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._over = False

    @property
    def query(self) -> dict[str, list[str]]:
        """Return the query, with every value of a repeated name."""
        return parse_qs(self._raw_query, keep_blank_values=True)

    @property
    def blocked(self) -> bool:
        """Tell whether the kernel takes no more for the moment."""
        return self._stream.writing()

    def answer(
        self,
        status: int,
        body: bytes = b"",
        content_type: str = JSON,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Answer as a whole."""
        if self._forget():
            return
        fields = HTTPHeaders({"Server": "uvicorn", "Content-Length": str(len(body))})
        if body:
            fields["Content-Type"] = content_type
        for name, value in headers:
            fields[name] = value
        line = ResponseStartLine("HTTP/1.1", status, _reason(status))
        body = b"" if self.method == "HEAD" else body
        self._connection.write_headers(line, fields, body)
        self._connection.finish()

    def begin_stream(self) -> None:
        """Send 200 and the head of an event stream."""
        if self._stream.closed():
            return
        self._stream.set_nodelay(True)
        fields = HTTPHeaders(
            {"Server": "uvicorn", "Content-Type": "text/event-stream; charset=utf-8"}
        )
        self._connection.write_headers(ResponseStartLine("HTTP/1.1", 200, "OK"), fields)
        self._look_for_close()

    def send(self, events: list[bytes]) -> None:
        """Send each event as one chunk, all of them in one write."""
        # Past the connection's own `write`, whose two futures a chunk cost more than the chunk.
        if not events or self._stream.closed():
            return
        if self._chunked:
            events = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
        self._drained = self._stream.write(b"".join(events))
        self._look_for_close()

    def end_stream(self) -> None:
        """End the stream properly."""
        if not self._forget():
            self._connection.finish()

    def cut(self) -> None:
        """Close the connection, whatever was sent."""
        if not self._forget():
            self._stream.close()

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call back once when all that was sent is with the kernel; never when the client left."""
        assert self._drained is not None
        self._drained.add_done_callback(lambda _: None if self._stream.closed() else callback())

    def when_gone(self, callback: Callable[[], None]) -> None:
        """Call back once when the client leaves before its answer is complete."""
        self._gone = callback
        if self._stream.closed():
            asyncio.get_running_loop().call_soon(self._leave)
            return
        if self._notice_s:
            # Tornado closes its socket as soon as the client's end comes: a duplicate keeps the
            # connection open for as long as this engine has not noticed.
            self._unnoticed = self._stream.socket.dup()
            weakref.finalize(self, self._unnoticed.close)  # an engine that ends notices nobody
        self._fd = (self._unnoticed or self._stream.socket).fileno()
        self._watcher = self._leave_later if self._notice_s else self._leave
        self._departures.watch(self._fd, self._watcher)
        if not self._notice_s:
            self._connection.set_close_callback(self._leave)

    def _leave_later(self) -> None:
        asyncio.get_running_loop().call_later(self._notice_s, self._leave)

    def _look_for_close(self) -> None:
        """Notice a client that a write has just found gone: Tornado does not tell of it yet."""
        if self._stream.closed():
            asyncio.get_running_loop().call_soon(self._leave)

    def _leave(self) -> None:
        gone, self._gone = self._gone, None
        if gone is not None:
            gone()

    def _forget(self) -> bool:
        """Stop watching the client; tell whether the exchange was over before."""
        was_over, self._over = self._over, True
        if self._fd >= 0:
            self._departures.forget(self._fd, self._watcher)
            self._fd = -1
        if self._unnoticed is not None:
            self._unnoticed.close()
            self._unnoticed = None
        self._gone = None
        if not was_over and not self._stream.closed():
            self._connection.set_close_callback(None)
            return False
        return True


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
