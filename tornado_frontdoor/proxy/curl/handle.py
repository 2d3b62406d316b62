"""What a libcurl handle is told: once when it is made, and as little as possible for each call.

A handle keeps its options from call to call (no `reset`), which is what makes a call cheap.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pycurl

from tornado_frontdoor.config.engine_tls import TlsFiles
from tornado_frontdoor.core.request import StoredBody
from tornado_frontdoor.proxy.curl.transfer import Transfer, TransferEnd, UpstreamCall

MAX_IDLE_S = 4
"""Age from which an idle connection is not reused; vLLM closes idle ones after 5.0 s."""

DNS_CACHE_S = 3
"""How long a host's address is believed. With libcurl's minute an engine that came back elsewhere
under its name was not found for 58 refusals in a row."""

BUFFER_BYTES = 64 * 1024
"""The most libcurl reads from a socket at once, so also the most it holds while paused."""

UPLOAD_BUFFER_BYTES = 16 * 1024
"""How much of a body libcurl copies at once, into memory that it keeps as long as the call lasts.
This is its least; of its usual 64 KiB came half of what an open stream took."""

MOST_KEPT_BYTES = 4 * 1024
"""How long a body may be that an idle handle keeps until its next call: dropping it costs one."""

_FRAMING = frozenset({"content-length", "transfer-encoding", "expect"})

_DEFAULTS = {
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


def make_handle() -> Any:
    """Return a handle with everything set that is the same for all calls."""
    curl = pycurl.Curl()
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
        curl.setopt(option, value)
    curl.shape = curl.where = curl.tls = None
    curl.kept_bytes = 0
    return curl


def tls_for(url: str, tls: Mapping[str, TlsFiles]) -> TlsFiles | None:
    """Return the certificates for an address, by how it begins."""
    return next((files for origin, files in tls.items() if url.startswith(origin)), None)


def show(curl: Any, tls: TlsFiles | None) -> Any:
    """Have a new handle take and show the certificates of `tls`; for good: some cannot be unset."""
    for option, file in zip(
        (pycurl.CAINFO, pycurl.SSLCERT, pycurl.SSLKEY), tls or (), strict=False
    ):
        if file is not None:
            curl.setopt(option, str(file))
    curl.tls = tls
    return curl


def prepare(curl: Any, call: UpstreamCall, transfer: Transfer) -> None:
    """Tell `curl` this call; raises ValueError or pycurl.error when it cannot be sent."""
    curl.setopt(pycurl.HTTPHEADER, header_lines(call.headers))
    where = (call.url, call.connect_timeout_s)
    if where != curl.where:
        curl.where = None  # stays so when an option is refused
        curl.setopt(pycurl.URL, call.url)
        curl.setopt(pycurl.CONNECTTIMEOUT_MS, max(1, int(call.connect_timeout_s * 1000)))
        curl.where = where
    method, body = call.method, call.body
    if isinstance(body, bytes):
        shape = (method, "fields" if body or method == "POST" else "")
    else:
        shape = (method, "upload")
    if shape != curl.shape:
        _reshape(curl, *shape)
    if isinstance(body, bytes):
        if shape[1]:
            curl.setopt(pycurl.POSTFIELDS, body)  # not copied; pycurl keeps a reference
            curl.kept_bytes = len(body)
    else:
        reader = BodyReader(body)
        curl.setopt(pycurl.INFILESIZE_LARGE, body.size_bytes)
        curl.setopt(pycurl.READFUNCTION, reader.read)
        curl.setopt(pycurl.SEEKFUNCTION, reader.seek)
    curl.setopt(pycurl.PREREQFUNCTION, transfer.before_send)
    curl.setopt(pycurl.HEADERFUNCTION, transfer.take_header)
    curl.setopt(pycurl.WRITEFUNCTION, transfer.take_body)


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


def release_body(curl: Any) -> None:
    """Let go of the last body: an idle handle must not keep 64 MiB, but may a few KiB."""
    kind = curl.shape[1] if curl.shape is not None else ""
    if kind == "fields":
        if curl.kept_bytes > MOST_KEPT_BYTES:
            curl.setopt(pycurl.POSTFIELDS, b"")
    elif kind == "upload":
        curl.setopt(pycurl.READFUNCTION, _nothing)
        curl.setopt(pycurl.SEEKFUNCTION, _nothing)


def _nothing(*_: object) -> int:
    return pycurl.READFUNC_ABORT  # type: ignore[no-any-return]


def _reshape(curl: Any, method: str, body: str) -> None:
    curl.shape = None  # stays so when an option is refused
    curl.setopt(pycurl.NOBODY, 0)
    curl.unsetopt(pycurl.CUSTOMREQUEST)
    curl.setopt(pycurl.HTTPGET, 1)
    if body == "fields":
        curl.setopt(pycurl.POST, 1)
    elif body == "upload":
        curl.setopt(pycurl.UPLOAD, 1)  # a PUT unless it is called otherwise
    elif method == "HEAD":
        curl.setopt(pycurl.NOBODY, 1)
    if (method, body) not in (("GET", ""), ("HEAD", ""), ("POST", "fields")):
        curl.setopt(pycurl.CUSTOMREQUEST, method)
    curl.shape = (method, body)


def header_lines(headers: Iterable[tuple[str, str]]) -> list[bytes]:
    """Return `headers` as libcurl takes them, its own defaults suppressed.

    Raises UnsendableError for a line break or NUL within one, or a character beyond Latin-1.
    """
    lines = ["Expect:"]
    own = _DEFAULTS.copy()
    for name, value in headers:
        folded = name.lower()
        if folded in _FRAMING:
            continue
        own.pop(folded, None)
        # An empty value is written with a semicolon: with a colon it would mean "suppress".
        lines.append(f"{name}: {value}" if value.strip() else f"{name};")
    lines += own.values()
    # One look at all of them: a break inside a header would show as a line too many.
    text = "\n".join(lines)
    if text.count("\n") != len(lines) - 1 or "\r" in text or "\0" in text:
        raise UnsendableError("a header contains a line break or NUL")
    try:
        return text.encode("latin-1").split(b"\n")
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
            return TransferEnd.COMPLETE, ""
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
