"""HTTP/1.1 as it comes in: one request after the other on a connection, read strictly.

What Tornado reads is read here where it would cut without a word or read on where two readers could
read two requests: heads that are too long or are no HTTP, a `Host` that is missing or doubled,
chunks with extensions and trailers. Whatever is refused here is answered once, with an id and a
line, and the connection is closed: where the next request would begin is not known any more.

A connection is a small machine (`_step` is its state) that runs as far as the bytes go which its
stream holds. While a request is answered nothing is read but what shows that the client left.
"""

import asyncio
import itertools
import logging
import re
from collections.abc import Awaitable, Callable
from socket import SHUT_WR
from typing import Protocol

from tornado.iostream import IOStream, StreamClosedError

from tornado_frontdoor.proxy.downstream.request_head import (
    Malformed,
    RequestHead,
    read_head,
)
from tornado_frontdoor.proxy.downstream.streams import (
    BODY_READ_BYTES,
    HEAD_READ_BYTES,
    FedStream,
)

LOG = logging.getLogger("frontdoor")

HEAD_BYTES = 64 * 1024
CHUNK_LINE_BYTES = 4 * 1024
TRAILERS_BYTES = 16 * 1024
STEP_BYTES = 256 * 1024
"""How much of a body is read before the others get a turn; a chunk counts for at least 1 KiB."""
DRAIN_BYTES = 1024 * 1024
"""How much of what lies unread is thrown away at the end: with bytes unread a close is a reset,
which can overtake the answer."""

_numbers = itertools.count()
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?\r\n")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n")


class Delegate(Protocol):
    """Who takes one request."""

    def headers_received(self, head: RequestHead) -> None:
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


class RequestHost(Protocol):
    """Whose connections they are."""

    def start_request(self, connection: "ClientConnection") -> Delegate:
        """Return who takes the next request of a connection."""
        ...

    def is_idle(self, connection: "ClientConnection") -> None:
        """Take that a connection awaits a request."""
        ...

    def on_close(self, connection: "ClientConnection") -> None:
        """Take that a connection is over."""
        ...


class ClientConnection:
    """One connection of a client. What is public is for whoever answers the request it is at."""

    __slots__ = (
        "_delegate",
        "_host",
        "_left_bytes",
        "_looked_bytes",
        "_read_finished",
        "_sent",
        "_step",
        "_taking",
        "_work_bytes",
        "_write_finished",
        "keeps_alive",
        "number",
        "on_close",
        "remote_ip",
        "stream",
    )

    def __init__(self, stream: FedStream, remote_ip: str, host: RequestHost) -> None:
        self.stream = stream
        self.remote_ip = remote_ip
        self.keeps_alive = True
        """It may serve another request after this one."""
        self.number = next(_numbers)
        """It has been no other connection's."""
        self._host = host
        self._delegate: Delegate | None = None
        """Who takes the request that is coming in; nobody before its head is whole."""
        self.on_close: Callable[[], None] | None = None
        """Called once when the client closes while its request is answered."""
        self._sent: asyncio.Future[None] | None = None
        self._taking: asyncio.Future[None] | None = None
        """What a piece of a body is waited for with."""
        self._left_bytes = 0
        self._looked_bytes = 0
        self._work_bytes = 0
        self._read_finished = self._write_finished = False
        self._step = ClientConnection._read_head
        stream.set_nodelay(True)  # whatever is sent is meant to leave
        stream.on_bytes = self._run
        stream.set_close_callback(self._closed)
        host.is_idle(self)
        stream.want()

    # For whoever answers

    def write(self, data: bytes) -> "asyncio.Future[None]":
        """Send; the next request is read when that has left."""
        try:
            self._sent = self.stream.write(data)
        except StreamClosedError:
            self._sent = asyncio.get_running_loop().create_future()
            self._sent.cancel()
        return self._sent

    def finish(self) -> None:
        """Take that the answer is over: the next request may come."""
        self._write_finished = True
        if not self._read_finished:
            self.keeps_alive = False  # only the end of the connection ends what still comes in
        if self._sent is None or self._sent.done():
            self._answered()
        else:
            self._sent.add_done_callback(lambda _: self._answered())

    def close(self) -> None:
        """Close now; whoever answers is not told."""
        self.on_close = None
        self.stream.close()

    # Requests, one after another

    def _run(self) -> None:
        """Go as far as the bytes go that are there."""
        try:
            while self._step(self):
                pass
        except Malformed as error:
            self.say_and_close(error.status, str(error))
        except Exception:
            LOG.exception("a connection was closed by a fault of ours")
            self.close()

    def _answered(self) -> None:
        self._delegate = self.on_close = self._sent = self._taking = None
        stream = self.stream
        if stream.is_closed:
            return
        if not self.keeps_alive:
            stream.close()
            return
        self._read_finished = self._write_finished = False
        self._step = ClientConnection._read_head
        self._looked_bytes = 0
        self._host.is_idle(self)
        if stream.held_bytes:
            # The others first: a client may have sent a thousand requests at once.
            asyncio.get_running_loop().call_soon(self._resume)
        else:
            stream.want()

    def _resume(self) -> None:
        if self.stream.is_closed:
            return
        self.stream.want()
        self._run()

    def _closed(self) -> None:
        """The stream is closed, by whomever."""
        self._step = ClientConnection._wait
        self.stream.forget()
        delegate, self._delegate = self._delegate, None
        on_close, self.on_close = self.on_close, None
        try:
            if delegate is not None and not self._read_finished:
                delegate.on_connection_close()
            if on_close is not None:
                on_close()
        finally:
            self._host.on_close(self)

    def say_and_close(self, status: int, why: str) -> None:
        """Answer what is no request, and close."""
        delegate = self._delegate or self._host.start_request(self)
        last = delegate.malformed(status, why)
        if not self.stream.is_closed:
            _say(self.stream, last)
            self.close()

    # States: each tells whether there may be more to do

    def _wait(self) -> bool:
        return False

    def _read_head(self) -> bool:
        stream = self.stream
        held = stream.held
        if not held:
            return False
        end = _end_of_head(held, self._looked_bytes)
        _check_head(held[0], end or len(held))
        if not end:
            self._looked_bytes = len(held)
            return False
        self._looked_bytes = 0
        head = read_head(stream.take(end))
        self.keeps_alive = head.keeps_alive
        self._delegate = delegate = self._host.start_request(self)
        delegate.headers_received(head)
        if stream.is_closed:
            return False
        if head.unclear is not None:
            raise Malformed(f"The length of the body is not clear: {head.unclear}")
        expect = head.headers.get("expect")
        if expect and expect.lower() == "100-continue" and not self._write_finished:
            stream.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._left_bytes = head.length_bytes
        if head.chunked:
            self._work_bytes = 0
            self._step = ClientConnection._read_chunk_size
            return True
        self._step = ClientConnection._read_fixed
        return self._read_fixed()

    def _read_fixed(self) -> bool:
        """Read a body of a told length."""
        if self._left_bytes and not self._read_piece():
            return False
        return True if self._left_bytes else self._whole()

    def _read_chunk_size(self) -> bool:
        line = self._take_line(CHUNK_LINE_BYTES)
        if line is None:
            return False
        size = _SIZE.fullmatch(line)
        if size is None:
            raise Malformed("A chunk of the body has no size")
        self._work_bytes += 1024
        self._left_bytes = int(size[1], 16)
        if self._left_bytes:
            self._step = ClientConnection._read_chunk
        else:
            self._left_bytes = TRAILERS_BYTES
            self._step = ClientConnection._read_trailer
        return True

    def _read_chunk(self) -> bool:
        if self._left_bytes:
            return self._read_piece()
        self._step = ClientConnection._read_end_of_chunk
        if self._work_bytes < STEP_BYTES:
            return True
        self._work_bytes = 0
        self.stream.want_no_more()
        asyncio.get_running_loop().call_soon(self._resume)
        return False

    def _read_end_of_chunk(self) -> bool:
        if self.stream.held_bytes < 2:
            return False
        if self.stream.take(2) != b"\r\n":
            raise Malformed("A chunk of the body is longer than its size")
        self._step = ClientConnection._read_chunk_size
        return True

    def _read_trailer(self) -> bool:
        """Read a line of what follows the last chunk; nothing in it is meant for an engine."""
        line = self._take_line(self._left_bytes)
        if line is None:
            return False
        if line == b"\r\n":
            return self._whole()
        self._left_bytes -= len(line)
        if self._left_bytes <= 2 or not _TRAILER.fullmatch(line):
            raise Malformed("The body ends with a trailer that is none, or with too many")
        return True

    # How

    def _read_piece(self) -> bool:
        """Hand on what is there of a body, or of a chunk; False: there is nothing, or wait."""
        stream = self.stream
        size_bytes = min(stream.held_bytes, self._left_bytes, BODY_READ_BYTES)
        if not size_bytes:
            return False
        piece = stream.take(size_bytes)
        self._left_bytes -= size_bytes
        self._work_bytes += size_bytes
        if self._left_bytes > HEAD_READ_BYTES:
            stream.read_chunk_size = BODY_READ_BYTES
        if not self._write_finished:
            assert self._delegate is not None
            taking = self._delegate.data_received(piece)
            if taking is not None:
                stream.want_no_more()
                self._taking = asyncio.ensure_future(self._wait_for(taking))
                return False
        return not stream.is_closed

    async def _wait_for(self, taking: Awaitable[None]) -> None:
        try:
            await taking
        except Exception:
            LOG.exception("a connection was closed by a fault of ours")
            self.close()
        self._resume()

    def _take_line(self, most_bytes: int) -> bytes | None:
        """Take a line with its end; None: it is not there yet. Closes where it is too long."""
        stream = self.stream
        end = stream.held.find(b"\r\n", max(0, self._looked_bytes - 1)) + 2
        if (end if end > 1 else stream.held_bytes) > most_bytes:
            stream.close()
            return None
        if end < 2:
            self._looked_bytes = stream.held_bytes
            return None
        self._looked_bytes = 0
        return stream.take(end)

    def _whole(self) -> bool:
        self._read_finished = True
        self._step = ClientConnection._wait
        self.stream.want_no_more()
        self.stream.read_chunk_size = HEAD_READ_BYTES
        if not self._write_finished:
            assert self._delegate is not None
            self._delegate.finish()
        return False


def _end_of_head(held: bytearray, looked_bytes: int) -> int:
    """Return where the empty line ends that ends a head, with a bare LF or a CRLF; 0: nowhere."""
    start = max(0, looked_bytes - 2)
    end = held.find(b"\n\r\n", start)
    bare = held.find(b"\n\n", start, end + 1 if end >= 0 else len(held))
    if bare >= 0:
        return bare + 2
    return end + 3 if end >= 0 else 0


def _check_head(first: int, size_bytes: int) -> None:
    """Look at what has come of a head; raises Malformed."""
    if size_bytes > HEAD_BYTES:
        raise Malformed(f"The head is longer than {HEAD_BYTES >> 10} KiB", 431)
    if not 0x21 <= first <= 0x7E and first not in b"\r\n":
        raise Malformed("This is no HTTP, and perhaps TLS: here plain HTTP is spoken")


def _say(stream: IOStream, last: bytes) -> None:
    """Send the last words of a connection, so that they are not lost in a reset by its close."""
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
