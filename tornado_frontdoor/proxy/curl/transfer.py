"""One call to an engine: what is asked, who takes the answer, and how it ended.

Rules:
- `Receiver` is told the head at most once, then chunks, then the end exactly once and last.
- What libcurl calls (see `Handle`) never calls back into libcurl.
- A receiver that raises loses its transfer: it is logged and aborted, so that no slot leaks.
"""

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache
from time import monotonic
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from tornado_frontdoor.core.request import StoredBody
from tornado_frontdoor.proxy.curl.lingering import LingeringClose
from tornado_frontdoor.surfaces.chunked import piece_of

_log = logging.getLogger(__name__)


class TransferEnd(Enum):
    """How a call ended."""

    COMPLETE = "complete"
    """The whole answer came, whatever its status."""
    CONNECT_FAILED = "connect_failed"
    """The engine never saw the request: refused, unreachable or unresolved."""
    UNSENDABLE = "unsendable"
    """Nothing was sent: a header of the request is none that can be."""
    SILENT = "silent"
    """Connected, then no byte for longer than allowed."""
    BROKEN = "broken"
    """Reset, truncated, or not HTTP."""
    ABORTED = "aborted"
    """By us."""


class Receiver(Protocol):
    """Who takes an engine's answer. Plain calls on the loop, mostly from within libcurl.

    They must not block and should not raise. Calling `abort` or `resume` from them is fine.
    """

    def on_head(self, status: int, headers: list[tuple[str, str]]) -> None:
        """Take the final head; names as received; interim (1xx) heads are skipped."""
        ...

    def on_data(self, chunk: bytes) -> bool:
        """Take `chunk`; return False to get no more until `Transfer.resume`."""
        ...

    def on_chunk(self, chunk: bytes) -> bool:
        """Take one whole chunk of a call that `streams`, framed as it came; else as `on_data`.

        Some pieces of an answer come this way and others by `on_data`, in their order.
        """
        ...

    def on_end(self, end: TransferEnd, detail: str) -> None:
        """Take the end: exactly once, last, and never from within libcurl or `start`.

        `abort` calls it before it returns, unless `abort` was itself called from `on_head` or
        `on_data`: then it comes in the same turn of the loop, right after libcurl returned.
        """
        ...


class UpstreamCall(Struct):
    """One request to an engine, all its headers given by the caller.

    Content-Length, Transfer-Encoding and Expect among `headers` are left out: framing is ours.
    """

    url: str
    connect_timeout_s: float
    read_timeout_s: float
    """Longest silence before the first byte of the body, counted from `start` and again from
    the head: vLLM sends the head of a stream before its request has a slot in the engine."""
    chunk_timeout_s: float
    """Longest silence between bytes of the body, and before its end."""
    method: str = "POST"
    body: bytes | StoredBody = b""
    headers: Sequence[tuple[str, str]] = ()
    """What is told with each call to this engine by this client: rendered once, and kept."""
    marks: Sequence[str] = ()
    """Lines of what is told of this call alone, in words of ours: ASCII, without a line break."""
    streams: bool = False
    """Whether the answer comes in many small pieces."""
    lingers: bool = False
    """Whether a call that is broken off is followed until the engine has closed it too."""


class UpstreamAnswer(NamedTuple):
    """A whole answer to a small control call."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class UpstreamFailed(Exception):  # noqa: N818 - the field's word for it
    """A control call got no whole answer; `end` is never COMPLETE."""

    def __init__(self, end: TransferEnd, detail: str) -> None:
        super().__init__(f"{end.value}: {detail}")
        self.end = end
        self.detail = detail


class TransferDriver(Protocol):
    """What a transfer asks of the client that runs it."""

    def abort_transfer(self, transfer: "Transfer") -> None:
        """End `transfer` as ABORTED; at once, or right after libcurl returns."""
        ...

    def resume_transfer(self, transfer: "Transfer") -> None:
        """Let libcurl hand over what it held back, on a later turn of the loop."""
        ...

    def listen(self, transfer: "Transfer") -> None:
        """Have libcurl tell what it reads of the answer, once it has sent the request."""
        ...

    def read_chunks(self, transfer: "Transfer") -> None:
        """Read whole chunks of the answer past libcurl, once it has returned."""
        ...

    def watch_silence(self, transfer: "Transfer") -> None:
        """Look at `transfer` again when its present silence limit may have passed."""
        ...


class Transfer:
    """One call under way. `abort`, `resume`, `paused`, `first_byte` are for the caller.

    The rest belongs to the client and to libcurl.
    """

    __slots__ = (
        "_driver",
        "chunk_timeout_s",
        "doomed",
        "ended",
        "first_byte",
        "handle",
        "heard_s",
        "held",
        "let_go",
        "lingering",
        "lingers",
        "method",
        "paused",
        "reader",
        "receiver",
        "sent_s",
        "silence_s",
        "status",
        "streams",
        "url",
    )

    def __init__(self, driver: TransferDriver, call: UpstreamCall, receiver: Receiver) -> None:
        self._driver = driver
        self.method, self.url = call.method, call.url
        self.chunk_timeout_s = call.chunk_timeout_s
        self.receiver = receiver
        self.handle: Any = None
        """The `Handle` it is on, while it is."""
        self.reader: Any = None
        """The `ChunkReader` of its answer, where it has one."""
        self.streams = call.streams and call.url.startswith("http://")
        """Whether whole chunks are read past libcurl: behind TLS there is something else."""
        self.lingers = call.lingers
        self.lingering: LingeringClose | None = None
        """Set once the call is broken off and the engine may not have noticed; see `lingers`."""
        self.first_byte = False
        """A byte of the body came (the head alone does not count)."""
        self.paused = False
        self.held = False
        """libcurl was told to wait, and keeps what we did not take (<= one buffer)."""
        self.doomed = False
        self.ended = False
        self.let_go = True
        """Where its connection is gone, the engine closed it, and not libcurl for what came."""
        self.status = 0
        self.sent_s: float | None = None
        self.heard_s = monotonic()
        self.silence_s = call.read_timeout_s

    def __repr__(self) -> str:
        state = "ended" if self.ended else "paused" if self.paused else "flowing"
        return f"<Transfer {self.method} {self.url} {state}>"

    def abort(self) -> None:
        """Close the connection now and end as ABORTED. Idempotent; only on the loop."""
        if not self.ended:
            self._driver.abort_transfer(self)

    def resume(self) -> None:
        """Go on after `on_data` returned False; chunks follow on a later turn of the loop.

        Not remembered: from within the very `on_data` that then returns False it does nothing.
        """
        if not self.paused or self.doomed or self.ended:
            return
        self.paused = False
        self.heard_s = monotonic()  # our own pause was no silence of the engine's
        if self.held:
            self.held = False
            self._driver.resume_transfer(self)

    def finish(self, end: TransferEnd, detail: str) -> None:
        """Tell the receiver the end, once."""
        if self.ended:
            return
        self.ended = True
        try:
            self.receiver.on_end(end, detail)
        except Exception:  # noqa: BLE001 - whatever it is, the slot must come back
            _log.exception("the receiver of %r failed in on_end", self)
        self.receiver = _NOBODY  # an idle handle keeps its last transfer, but nobody's memory

    def take_head(self, status: int, headers: list[tuple[str, str]]) -> None:
        """Take a head; interim ones are skipped."""
        if status < 200:
            return
        self.status = status
        self.heard_s = monotonic()
        try:
            self.receiver.on_head(status, headers)
        except Exception:  # noqa: BLE001 - whatever it is, the slot must come back
            self.receiver_failed("on_head")

    def listen(self) -> None:
        """Have it told what libcurl reads of the answer."""
        self._driver.listen(self)

    def expect_chunks(self) -> None:
        """Have whole chunks of the answer read past libcurl: it comes in such."""
        self._driver.read_chunks(self)

    def take_data(self, piece: bytes) -> None:
        """Take a piece of the body."""
        self.heard_s = monotonic()
        if not self.first_byte:
            self.begin_body()
        try:
            if not self.receiver.on_data(piece):
                self.paused = True
        except Exception:  # noqa: BLE001 - whatever it is, the slot must come back
            self.receiver_failed("on_data")

    def begin_body(self) -> None:
        """Take that the first byte of the body is there."""
        self.first_byte = True
        self.silence_s = self.chunk_timeout_s
        self._driver.watch_silence(self)

    def doom(self) -> None:
        """Take nothing more: `abort` was called where libcurl could not be told at once."""
        self.doomed = self.paused = True
        self.linger()

    def linger(self) -> LingeringClose | None:
        """Return who is to follow the end of a call that was sent and broke off."""
        if self.lingering is None and self.lingers and self.sent_s is not None and not self.ended:
            self.lingering = LingeringClose()
        return self.lingering

    def receiver_failed(self, where: str) -> None:
        """Lose the call of a receiver that raised."""
        _log.exception("the receiver of %r failed in %s", self, where)
        self.abort()


class _Nobody:
    def on_head(self, status: int, headers: list[tuple[str, str]]) -> None:
        """Ignore."""

    def on_data(self, chunk: bytes) -> bool:  # noqa: ARG002 - the protocol's signature
        """Ignore."""
        return True

    def on_chunk(self, chunk: bytes) -> bool:  # noqa: ARG002 - the protocol's signature
        """Ignore."""
        return True

    def on_end(self, end: TransferEnd, detail: str) -> None:
        """Ignore."""


_NOBODY = _Nobody()


def parse_head(lines: list[bytes]) -> tuple[int, list[tuple[str, str]]]:
    """Read a status line, whose form libcurl has checked, and header lines as they are.

    A name may be anything: what goes on to a client is chosen by `surfaces.headers`. A
    line without a colon is no header.
    """
    headers: list[tuple[str, str]] = []
    for line in lines[1:]:
        if line[0] in b" \t" and headers:  # obs-fold, RFC 9112 5.2: joined by one space
            name, value = headers.pop()
            headers.append((name, f"{value} {line.decode('latin-1').strip(_SPACE)}"))
            continue
        field = _field_of(line) if len(line) <= _KNOWN_BYTES else _field_of.__wrapped__(line)
        if field is not None:
            headers.append(field)
    return int(lines[0].split(None, 2)[1]), headers


def is_chunked(status_line: bytes, headers: Sequence[tuple[str, str]]) -> bool:
    """Tell whether the body comes in chunks and in no other coding."""
    codings = [value.lower() for name, value in headers if name.lower() == "transfer-encoding"]
    return codings == ["chunked"] and status_line.startswith(b"HTTP/1.1 ")


_SPACE = " \t\r\n"
_KNOWN_BYTES = 256


@lru_cache(256)
def _field_of(line: bytes) -> tuple[str, str] | None:
    """Return name and value of a line, nearly all of which an engine sends again and again."""
    name, colon, value = line.decode("latin-1").partition(":")
    return (name, value.strip(_SPACE)) if colon else None


class Collector:
    """Receives a whole small answer into `future`."""

    def __init__(
        self, settle: Callable[[UpstreamAnswer | UpstreamFailed], None], limit_bytes: int
    ) -> None:
        self._settle = settle
        self._limit_bytes = limit_bytes
        self._status = 0
        self._headers: list[tuple[str, str]] = []
        self._chunks: list[bytes] = []
        self._size_bytes = 0

    def on_head(self, status: int, headers: list[tuple[str, str]]) -> None:
        """Keep the head."""
        self._status, self._headers = status, headers

    def on_data(self, chunk: bytes) -> bool:
        """Keep the chunk, or fail when the answer is too large."""
        self._size_bytes += len(chunk)
        if self._size_bytes > self._limit_bytes:
            self._chunks.clear()
            detail = f"the answer is larger than {self._limit_bytes} bytes"
            self._settle(UpstreamFailed(TransferEnd.BROKEN, detail))
            return False
        self._chunks.append(chunk)
        return True

    def on_chunk(self, chunk: bytes) -> bool:
        """Keep what the chunk holds."""
        return self.on_data(piece_of(chunk))

    def on_end(self, end: TransferEnd, detail: str) -> None:
        """Settle."""
        if end is TransferEnd.COMPLETE:
            self._settle(UpstreamAnswer(self._status, self._headers, b"".join(self._chunks)))
        else:
            self._settle(UpstreamFailed(end, detail))
