"""Requests as they come in: bodies bounded, refusals early, idle connections closed.

A body above the limit is answered at once, and the rest of it is read and thrown away for a while,
because a connection that is closed with bytes unread resets what was sent on it.
"""

import asyncio
from sys import maxsize
from time import monotonic
from typing import Protocol

from tornado.http1connection import HTTP1Connection
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    ResponseStartLine,
)

from tornado_frontdoor.proxy.downstream.client import Client, ListenerContext
from tornado_frontdoor.proxy.downstream.disconnects import DisconnectWatcher
from tornado_frontdoor.surfaces.base import Document

IDLE_CONNECTION_S = 75.0
"""A connection without a request's head is closed after this; SDKs keep theirs for less."""
IDLE_SWEEP_S = 5.0
BODY_TIMEOUT_S = 120.0
"""A body must have come in by then; 64 MiB take 5 s at 100 Mbit/s."""
LINGER_S = 5.0
"""How long the rest of a refused body is read, so that the refusal is not lost in a reset."""


class Service(Protocol):
    """What a listener serves: decides by the head whether a body is wanted, then serves it."""

    max_body_bytes: int
    write_stall_timeout_s: float

    def turn_away(self, client: Client) -> Document | None:
        """Return the answer that needs no body (unknown path, too large), or None to read it."""
        ...

    def too_large(self, client: Client) -> Document:
        """Return the answer to a body that turned out larger than the limit."""
        ...

    def serve(self, client: Client) -> None:
        """Serve a whole request; must not raise."""
        ...


class Listener(HTTPServerConnectionDelegate):
    """Makes a Client of each request on its connections and hands it to the service."""

    def __init__(self, service: Service, departures: DisconnectWatcher) -> None:
        self.service = service
        self.place = ListenerContext(departures, service.write_stall_timeout_s)
        self._idle: dict[HTTP1Connection, float] = {}
        self._sweep = asyncio.get_running_loop().call_later(IDLE_SWEEP_S, self._sweep_idle)

    def start_request(
        self,
        server_conn: object,  # noqa: ARG002 - Tornado's signature
        request_conn: HTTPConnection,
    ) -> HTTPMessageDelegate:
        """Take a new request on a connection."""
        assert isinstance(request_conn, HTTP1Connection)
        self._idle[request_conn] = monotonic()
        return Incoming(self, request_conn)

    def begun(self, connection: HTTP1Connection) -> None:
        """A request's head has come in on a connection that was idle."""
        self._idle.pop(connection, None)

    def close(self) -> None:
        """Stop looking after idle connections."""
        self._sweep.cancel()

    def _sweep_idle(self) -> None:
        """Close connections without a request for long, forget those closed by their clients.

        One timer for all: Tornado's own costs a task and a timer for each request.
        """
        long_ago_s = monotonic() - IDLE_CONNECTION_S
        for connection, since_s in list(self._idle.items()):
            if connection.stream.closed() or since_s < long_ago_s:
                del self._idle[connection]
                connection.close()
        self._sweep = asyncio.get_running_loop().call_later(IDLE_SWEEP_S, self._sweep_idle)


class Incoming(HTTPMessageDelegate):
    """Collects one request."""

    def __init__(self, listener: Listener, connection: HTTP1Connection) -> None:
        self._listener = listener
        self._connection = connection
        self._client: Client | None = None
        self._pieces: list[bytes] = []
        self._size_bytes = 0
        self._refused = False
        self._linger: asyncio.TimerHandle | None = None

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> None:
        """Take the head; what can be refused by it alone is refused now."""
        assert isinstance(start_line, RequestStartLine)
        service = self._listener.service
        self._listener.begun(self._connection)
        if self._connection.stream.closed():
            return  # left, with this request still in our buffer: nobody waits for its answer
        self._client = Client(self._connection, start_line, headers, self._listener.place)
        # The limit is ours to enforce: Tornado would cut the connection without an answer.
        self._connection.set_max_body_size(1 << 62)
        document = service.turn_away(self._client)
        length_bytes = _content_length(headers)
        if document is None and length_bytes > service.max_body_bytes:
            document = service.too_large(self._client)
        if document is not None:
            headers.pop("Expect", None)  # or Tornado would say "100 Continue" after our answer
            self._refuse(document)
        # Most bodies have come in with their head; only one that has not needs a timer.
        if length_bytes > self._connection.stream._read_buffer_size or length_bytes == 0:  # noqa: SLF001
            self._connection.set_body_timeout(BODY_TIMEOUT_S)

    def data_received(self, chunk: bytes) -> None:
        """Take a piece of the body, or throw it away."""
        if self._refused or self._client is None:
            return
        self._size_bytes += len(chunk)
        if self._size_bytes > self._listener.service.max_body_bytes:
            self._pieces.clear()
            self._refuse(self._listener.service.too_large(self._client))
        else:
            self._pieces.append(chunk)

    def finish(self) -> None:
        """The request is whole."""
        client = self._client
        if client is None or self._connection.stream.closed():
            self.on_connection_close()
            return
        if self._refused:
            self._end_linger()
            client.finish()
            return
        client.body = b"".join(self._pieces)
        self._pieces.clear()
        client.watch()
        self._listener.service.serve(client)

    def on_connection_close(self) -> None:
        """Forget a request that never became whole."""
        self._end_linger()
        self._pieces.clear()
        if self._client is not None:
            self._client.gone = True

    def _refuse(self, document: Document) -> None:
        """Answer at once and read on for a while: a close with bytes unread resets the answer."""
        assert self._client is not None
        self._refused = True
        self._client.send_early(document)
        self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._connection.close)

    def _end_linger(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None


def _content_length(headers: HTTPHeaders) -> int:
    value = headers.get("Content-Length", "0")
    if not (value.isdecimal() and value.isascii()):
        return 0  # Tornado refuses it
    return int(value) if len(value) < len(str(maxsize)) else maxsize
