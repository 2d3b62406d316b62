"""HTTP/1.1 as it comes in: one request after the other on a connection, read strictly.

What Tornado reads is read here where it would cut without a word or read on where two readers could
read two requests: heads that are too long or are no HTTP, a `Host` that is missing or doubled,
chunks with extensions and trailers. Whatever is refused here is answered once, with an id and a
line, and the connection is closed: where the next request would begin is not known any more.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable
from socket import SHUT_WR
from typing import Any, Protocol

from tornado.http1connection import HTTP1Connection, HTTP1ServerConnection
from tornado.httputil import (
    HTTPHeaders,
    HTTPInputError,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    parse_request_start_line,
)
from tornado.iostream import IOStream, StreamClosedError, UnsatisfiableReadError

LOG = logging.getLogger("frontdoor")

HEAD_BYTES = 64 * 1024
CHUNK_LINE_BYTES = 4 * 1024
TRAILERS_BYTES = 16 * 1024
STEP_BYTES = 256 * 1024
"""How much of a body is read before the others get a turn; a chunk counts for at least 1 KiB."""
DRAIN_BYTES = 1024 * 1024
"""How much of what lies unread is thrown away at the end: with bytes unread a close is a reset,
which can overtake the answer."""

_END_OF_HEAD = rb"\r?\n\r?\n"
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?\r\n")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n")


class Malformed(Exception):  # noqa: N818 - what came is no request
    """What came is no HTTP request; the message says why, `status` is what it is answered with."""

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.status = status


class Delegate(Protocol):
    """Who takes one request, by Tornado's verbs and one more."""

    def headers_received(self, start_line: RequestStartLine, headers: HTTPHeaders) -> None:
        """Take the head."""
        ...

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Take a piece of the body; what is returned is waited for before more is read."""
        ...

    def finish(self) -> None:
        """Take that the request is whole."""
        ...

    def on_connection_close(self) -> None:
        """Take that it never will be."""
        ...

    def malformed(self, status: int, why: str) -> bytes:
        """Take that this is no request; return what to say, empty where it was answered."""
        ...


class RequestConnection(HTTP1Connection):
    """One request on a connection. Lives as long as its answer is not finished."""

    async def serve(self, delegate: Any) -> bool:
        """Read a request and wait for its answer; False: the connection is over."""
        known = False
        try:
            data = await self.stream.read_until_regex(_END_OF_HEAD, HEAD_BYTES)
            start_line, headers = self._take_head(data)
            known = True
            delegate.headers_received(start_line, headers)
            if headers.get("Expect", "").lower() == "100-continue" and not self._write_finished:
                self.stream.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await self._take_body(headers, delegate)
            self._read_finished = True
            known = False
            if not self._write_finished:
                delegate.finish()
            if not self._finish_future.done() and not self.stream.closed():
                self.stream.set_close_callback(self._on_connection_close)
                await self._finish_future
        except Malformed as error:
            say_and_close(self.stream, delegate.malformed(error.status, str(error)))
            self.close()
            return False
        finally:
            if known:
                delegate.on_connection_close()
            self._clear_callbacks()
        return not self.stream.closed()

    def _take_head(self, data: bytes) -> tuple[RequestStartLine, HTTPHeaders]:
        try:
            first, headers = self._parse_headers(data)
            start_line = parse_request_start_line(first)
        except HTTPInputError as error:
            raise Malformed(f"The head is malformed: {error}") from error
        hosts = headers.get_list("Host")
        if len(hosts) > 1 or (start_line.version == "HTTP/1.1" and not hosts):
            raise Malformed("There must be one Host")
        if start_line.version == "HTTP/1.0" and "Transfer-Encoding" in headers:
            raise Malformed("HTTP/1.0 has no Transfer-Encoding")
        self._request_start_line, self._request_headers = start_line, headers
        self._disconnect_on_finish = not self._can_keep_alive(start_line, headers)
        return start_line, headers

    async def _take_body(self, headers: HTTPHeaders, delegate: HTTPMessageDelegate) -> None:
        try:
            body = self._read_body(0, headers, delegate)
        except HTTPInputError as error:
            raise Malformed(f"The length of the body is not clear: {error}") from error
        if body is None:
            return
        if self._body_timeout is None:
            await body
            return
        try:
            async with asyncio.timeout(self._body_timeout):
                await body
        except TimeoutError:
            self.close()
            raise StreamClosedError from None

    async def _read_chunked_body(self, delegate: HTTPMessageDelegate) -> None:
        stream = self.stream
        work_bytes = 0
        while True:
            line = await stream.read_until(b"\r\n", max_bytes=CHUNK_LINE_BYTES)
            size = _SIZE.fullmatch(line)
            if size is None:
                raise Malformed("A chunk of the body has no size")
            left_bytes = int(size[1], 16)
            if left_bytes == 0:
                await self._read_trailers()
                return
            work_bytes += 1024
            while left_bytes:
                piece = await stream.read_bytes(min(left_bytes, 65536), partial=True)
                left_bytes -= len(piece)
                work_bytes += len(piece)
                if not self._write_finished and (taking := delegate.data_received(piece)):
                    await taking
                if work_bytes >= STEP_BYTES:
                    work_bytes = 0
                    await asyncio.sleep(0)
            if await stream.read_bytes(2) != b"\r\n":
                raise Malformed("A chunk of the body is longer than its size")

    async def _read_trailers(self) -> None:
        """Read what follows the last chunk; nothing in it is meant for an engine."""
        left_bytes = TRAILERS_BYTES
        while (line := await self.stream.read_until(b"\r\n", max_bytes=left_bytes)) != b"\r\n":
            left_bytes -= len(line)
            if left_bytes <= 2 or not _TRAILER.fullmatch(line):
                raise Malformed("The body ends with a trailer that is none, or with too many")


class ServerConnection(HTTP1ServerConnection):
    """Serves the requests of one connection, one after the other."""

    async def _server_request_loop(self, delegate: HTTPServerConnectionDelegate) -> None:
        # Tornado's stream closes itself when a head is too long; what it asks to know that is ours.
        vars(self.stream)["_check_max_bytes"] = self._check_head
        try:
            while True:
                connection = RequestConnection(self.stream, False, self.params, self.context)
                self._request: Any = delegate.start_request(self, connection)
                try:
                    if not await connection.serve(self._request):
                        return
                except (StreamClosedError, UnsatisfiableReadError, asyncio.CancelledError):
                    return
                except Exception:
                    LOG.exception("a connection was closed by a fault of ours")
                    connection.close()
                    return
                await asyncio.sleep(0)
        finally:
            del vars(self.stream)["_check_max_bytes"], self._request
            delegate.on_close(self)

    def _check_head(self, wanted: bytes | re.Pattern[bytes], size_bytes: int) -> None:
        """Look at what has come of a head; raises UnsatisfiableReadError, and it is closed."""
        stream = self.stream
        most_bytes = stream._read_max_bytes  # noqa: SLF001 - what Tornado's own check reads
        if isinstance(wanted, bytes):
            if most_bytes is not None and size_bytes > most_bytes:
                raise UnsatisfiableReadError
            return
        first = stream._read_buffer[0]  # noqa: SLF001
        if size_bytes > HEAD_BYTES:
            status, why = 431, f"The head is longer than {HEAD_BYTES >> 10} KiB"
        elif not 0x21 <= first <= 0x7E and first not in b"\r\n":
            status, why = 400, "This is no HTTP, and perhaps TLS: here plain HTTP is spoken"
        else:
            return
        # The stream closes itself now, and asks once more while it does: that says nothing again.
        _say(stream, self._request.malformed(status, why))
        raise UnsatisfiableReadError


def say_and_close(stream: IOStream, last: bytes) -> None:
    """Send the last words of a connection and close it, so that they are not lost in a reset."""
    if not stream.closed():
        _say(stream, last)
        stream.close()


def _say(stream: IOStream, last: bytes) -> None:
    if not last:
        return
    try:
        stream.socket.send(last)
        stream.socket.shutdown(SHUT_WR)
        read_bytes = 0
        while read_bytes < DRAIN_BYTES and (piece := stream.socket.recv(65536)):
            read_bytes += len(piece)
    except OSError:
        pass  # it has left, or there is nothing more to read
