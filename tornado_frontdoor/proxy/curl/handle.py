"""What a libcurl handle is told: once when it is made, and as little as possible for each call.

A handle keeps its options from call to call (no `reset`), which is what makes a call cheap.
"""

from collections.abc import Mapping
from functools import lru_cache
from time import monotonic
from typing import Any

import pycurl

from tornado_frontdoor.config.engine_tls import TlsFiles
from tornado_frontdoor.core.request import StoredBody
from tornado_frontdoor.proxy.curl.transfer import (
    Transfer,
    TransferEnd,
    UpstreamCall,
    is_chunked,
    parse_head,
)
from tornado_frontdoor.proxy.heap import SENT_FROM_BYTES, map_apart_in_this_turn

MAX_IDLE_S = 4
"""Age from which an idle connection is not reused; vLLM closes idle ones after 5.0 s."""

DNS_CACHE_S = 3
"""How long a host's address is believed. With libcurl's minute an engine that came back elsewhere
under its name was not found for 58 refusals in a row."""

BUFFER_BYTES = 64 * 1024
"""The most libcurl reads from a socket at once, so also the most it holds while paused."""

STALE_WITHIN_S = 1.0
"""How soon a reused connection must turn out dead for the request to go out once more.

libcurl sends a request again, for as long as no byte of an answer came, when a reused connection
breaks. That is right for one that the engine closed as we took it, which shows within a round
trip. It is wrong after a minute of silence: the engine was at work on it, and would be again.
"""

UPLOAD_BUFFER_BYTES = SENT_FROM_BYTES
"""How much of a body libcurl copies at once, into memory that the handle keeps."""

MOST_KEPT_BYTES = 4 * 1024
"""How long a body may be that an idle handle keeps until its next call: dropping it costs one."""

_FRAMING = frozenset({"content-length", "transfer-encoding", "expect"})

_SUPPRESSED = {
    "expect": "Expect:",
    "accept": "Accept:",
    "content-type": "Content-Type:",
    "user-agent": "User-Agent:",
}
"""What libcurl would send of its own; a name alone tells it not to."""

_CONNECT_ERRORS = frozenset(
    {
        pycurl.E_URL_MALFORMAT,
        pycurl.E_COULDNT_RESOLVE_PROXY,
        pycurl.E_COULDNT_RESOLVE_HOST,
        pycurl.E_COULDNT_CONNECT,
        pycurl.E_SSL_CONNECT_ERROR,
        pycurl.E_PEER_FAILED_VERIFICATION,
        # The only time limit libcurl gets from us is the one for connecting.
        pycurl.E_OPERATION_TIMEDOUT,
    }
)


_CLOSED_ERRORS = frozenset({pycurl.E_PARTIAL_FILE, pycurl.E_GOT_NOTHING, pycurl.E_SEND_ERROR})
_RECEIVED_NOTHING = ("Recv failure", "OpenSSL SSL_read")
"""How libcurl's text begins where its error for receiving is not one of what was received."""


class UnsendableError(ValueError):
    """A header of a request is none that can be sent; the message says why."""


_GO_ON: int = pycurl.PREREQFUNC_OK
_ABORT: int = pycurl.PREREQFUNC_ABORT
_PAUSE: int = pycurl.WRITEFUNC_PAUSE
_COMPLETE = (TransferEnd.COMPLETE, "")
_BLANK = (b"\r\n", b"\n")
_DATA_IN: int = pycurl.INFOTYPE_DATA_IN


class Handle:
    """A libcurl handle, what it was told last, and the call it is at.

    What libcurl calls is set once: another function for each call is half a microsecond each. What
    we know of a handle is kept here and not on pycurl's own object, which takes one to find it.
    """

    __slots__ = (
        "_has_not_sent",
        "_kept_bytes",
        "_lines",
        "_shape",
        "_tells",
        "_where",
        "curl",
        "setopt",
        "tls",
        "transfer",
    )

    def __init__(self) -> None:
        self.curl = curl = pycurl.Curl()
        self.setopt = setopt = curl.setopt
        self.transfer: Any = None
        """The call it is at: None while it is idle, and libcurl calls nothing then."""
        self.tls: TlsFiles | None = None
        self._lines: list[bytes] = []
        """Of the head that comes in."""
        self._shape: tuple[str, str] | None = None
        """Method, and how a body is sent with it."""
        self._where: tuple[str, float] | None = None
        self._kept_bytes = 0
        self._has_not_sent = True
        self._tells = False
        """Whether libcurl tells what it reads, beside lines of text that nobody reads."""
        for option, value in (
            (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
            (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
            (pycurl.FOLLOWLOCATION, 0),  # vLLM answers a trailing slash with a 307 to itself
            (pycurl.PATH_AS_IS, 1),
            (pycurl.HTTP09_ALLOWED, 0),
            (pycurl.PROXY, ""),  # the environment's proxies are not meant for our engines
            (pycurl.NOPROXY, "*"),
            (pycurl.NOSIGNAL, 1),
            (pycurl.TCP_NODELAY, 1),
            (pycurl.MAXAGE_CONN, MAX_IDLE_S),
            (pycurl.DNS_CACHE_TIMEOUT, DNS_CACHE_S),
            (pycurl.BUFFERSIZE, BUFFER_BYTES),
            (pycurl.UPLOAD_BUFFERSIZE, UPLOAD_BUFFER_BYTES),
        ):
            setopt(option, value)
        setopt(pycurl.PREREQFUNCTION, self._before_send)
        setopt(pycurl.HEADERFUNCTION, self._take_header)
        setopt(pycurl.WRITEFUNCTION, self._take_body)
        setopt(pycurl.DEBUGFUNCTION, self._take_note)

    def close(self) -> None:
        """Close it for good."""
        self.curl.close()

    def show(self, tls: TlsFiles | None) -> None:
        """Take and show the certificates of `tls`; for good: some cannot be unset."""
        for option, file in zip(
            (pycurl.CAINFO, pycurl.SSLCERT, pycurl.SSLKEY), tls or (), strict=False
        ):
            if file is not None:
                self.setopt(option, str(file))
        self.tls = tls

    # What it is told

    def prepare(self, call: UpstreamCall) -> None:
        """Tell libcurl this call; raises ValueError or pycurl.error when it cannot be sent."""
        setopt = self.setopt
        lines = header_lines(tuple(call.headers))
        setopt(pycurl.HTTPHEADER, [*lines, *call.marks])
        where = (call.url, call.connect_timeout_s)
        if where != self._where:
            self._where = None  # stays so when an option is refused
            setopt(pycurl.URL, call.url)
            setopt(pycurl.CONNECTTIMEOUT_MS, max(1, int(call.connect_timeout_s * 1000)))
            self._where = where
        if self._tells:
            self.tell(told=False)
        method, body = call.method, call.body
        if isinstance(body, bytes):
            shape = (method, "fields" if body or method == "POST" else "")
        else:
            shape = (method, "upload")
        if shape != self._shape:
            self._reshape(*shape)
        if isinstance(body, bytes):
            if shape[1]:
                setopt(pycurl.POSTFIELDS, body)  # not copied; pycurl keeps a reference
                self._kept_bytes = len(body)
        else:
            reader = BodyReader(body)
            setopt(pycurl.INFILESIZE_LARGE, body.size_bytes)
            setopt(pycurl.READFUNCTION, reader.read)
            setopt(pycurl.SEEKFUNCTION, reader.seek)

    def _reshape(self, method: str, body: str) -> None:
        self._shape = None  # stays so when an option is refused
        self.setopt(pycurl.NOBODY, 0)
        self.curl.unsetopt(pycurl.CUSTOMREQUEST)
        self.setopt(pycurl.HTTPGET, 1)
        if body == "fields":
            self.setopt(pycurl.POST, 1)
        elif body == "upload":
            self.setopt(pycurl.UPLOAD, 1)  # a PUT unless it is called otherwise
        elif method == "HEAD":
            self.setopt(pycurl.NOBODY, 1)
        if (method, body) not in (("GET", ""), ("HEAD", ""), ("POST", "fields")):
            self.setopt(pycurl.CUSTOMREQUEST, method)
        self._shape = (method, body)

    def tell(self, *, told: bool) -> None:
        """Have libcurl tell what it reads, or no more."""
        self._tells = told
        self.setopt(pycurl.VERBOSE, int(told))

    def release(self) -> None:
        """Let go of the call: an idle handle must not keep 64 MiB, but may a few KiB."""
        self.transfer = None
        if self._lines:
            self._lines.clear()
        kind = self._shape[1] if self._shape is not None else ""
        if kind == "fields":
            if self._kept_bytes > MOST_KEPT_BYTES:
                self.setopt(pycurl.POSTFIELDS, b"")
                self._kept_bytes = 0
        elif kind == "upload":
            self.setopt(pycurl.READFUNCTION, _nothing)
            self.setopt(pycurl.SEEKFUNCTION, _nothing)

    # What libcurl calls: nothing of it calls back into libcurl

    def _before_send(self, *_addresses: object) -> int:
        """Take note: connected and about to send; also before it sends once more."""
        if self._has_not_sent:
            self._has_not_sent = False
            map_apart_in_this_turn()
        transfer = self.transfer
        now_s = monotonic()
        if transfer.streams:
            transfer.listen()
        if transfer.sent_s is None:
            transfer.sent_s = now_s
        elif now_s - transfer.sent_s > STALE_WITHIN_S:
            return _ABORT
        return _GO_ON

    def _take_header(self, line: bytes) -> None:
        """Take one line of a head, of an interim head, or of a trailer."""
        if line not in _BLANK:
            self._lines.append(line)
            return
        lines, transfer = self._lines, self.transfer
        if not transfer.status and not transfer.doomed and lines:  # trailers are not relayed
            status, headers = parse_head(lines)
            transfer.take_head(status, headers)
            if self._tells and transfer.status and is_chunked(lines[0], headers):
                transfer.expect_chunks()
        lines.clear()

    def _take_body(self, chunk: bytes) -> int | None:
        """Take a chunk; None means that all of it was taken."""
        transfer = self.transfer
        if transfer.paused:
            # The chunk after which the receiver said "no more" was taken; this one stays with
            # libcurl, which stops reading the socket and hands it over again when it may go on.
            transfer.held = True
            return _PAUSE
        if transfer.reader is not None:
            transfer.reader.owed_bytes -= len(chunk)
        transfer.take_data(chunk)
        return None

    def _take_note(self, kind: int, raw: bytes) -> None:
        """Take what libcurl says that it does; of that, what it has read of a body."""
        if kind == _DATA_IN and self.transfer.reader is not None:
            self.transfer.reader.told(raw)


def tls_for(url: str, tls: Mapping[str, TlsFiles]) -> TlsFiles | None:
    """Return the certificates for an address, by how it begins."""
    return next((files for origin, files in tls.items() if url.startswith(origin)), None)


class BodyReader:
    """Hands a stored body to libcurl, piece by piece, and from its beginning where it asks."""

    def __init__(self, body: StoredBody) -> None:
        self._body = body
        self._offset = 0

    def read(self, most: int) -> bytes | int:
        """Return the next piece; empty: it was the last."""
        piece = self._body.read(self._offset, most)
        self._offset += len(piece)
        if not piece and self._offset < self._body.size_bytes:
            return pycurl.READFUNC_ABORT  # type: ignore[no-any-return]
        return piece

    def seek(self, offset: int, _origin: int) -> int:
        """Go on from another place: libcurl sends a body once more."""
        self._offset = offset
        return pycurl.SEEKFUNC_OK  # type: ignore[no-any-return]


def _nothing(*_: object) -> int:
    return pycurl.READFUNC_ABORT  # type: ignore[no-any-return]


@lru_cache(64)
def header_lines(headers: tuple[tuple[str, str], ...]) -> tuple[bytes, ...]:
    """Return headers as libcurl takes them, its own defaults suppressed.

    Raises UnsendableError for a line break or NUL within one, or a character beyond Latin-1.
    """
    named = {name.lower() for name, _ in headers}
    given = [pair for pair in headers if pair[0].lower() not in _FRAMING]
    own = [line for name, line in _SUPPRESSED.items() if name not in named]
    # An empty value is written with a semicolon: with a colon it would mean "suppress".
    lines = [f"{name}: {value}" if value.strip() else f"{name};" for name, value in given] + own
    # One look at all of them: a break inside a header would show as a line too many.
    text = "\n".join(lines)
    if text.count("\n") != len(lines) - 1 or "\r" in text or "\0" in text:
        raise UnsendableError("a header contains a line break or NUL")
    try:
        return tuple(text.encode("latin-1").split(b"\n"))
    except UnicodeEncodeError as error:
        raise UnsendableError("a header has a character beyond Latin-1") from error


def unsent(error: Exception) -> TransferEnd:
    """Say how a transfer ended that could not be prepared: by its headers, or by its address."""
    if isinstance(error, UnsendableError):
        return TransferEnd.UNSENDABLE
    return TransferEnd.CONNECT_FAILED


def end_of(transfer: Transfer, error: int | None, message: str) -> tuple[TransferEnd, str]:
    """Say how a transfer ended from libcurl's code (None: no error) and message."""
    if error is None:
        if transfer.status:
            return _COMPLETE
        return TransferEnd.BROKEN, "the answer has no head"
    message = message or f"libcurl error {error}"
    if error == pycurl.E_ABORTED_BY_CALLBACK:
        return TransferEnd.BROKEN, "the connection broke before an answer"
    if error in _CONNECT_ERRORS:
        return TransferEnd.CONNECT_FAILED, message
    transfer.let_go = error in _CLOSED_ERRORS or message.startswith(_RECEIVED_NOTHING)
    return TransferEnd.BROKEN, message


def silence_of(transfer: Transfer, limit_s: float) -> tuple[TransferEnd, str]:
    """Say how a transfer ended that was silent for too long."""
    if transfer.sent_s is None:
        return TransferEnd.CONNECT_FAILED, f"not connected within {limit_s:g} s"
    return TransferEnd.SILENT, f"no byte for {limit_s:g} s"
