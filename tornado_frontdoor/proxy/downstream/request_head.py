"""The head of a request, from its bytes to plain values.

What nearly all clients send is read by two regular expressions, and a line that was sent before by
none: clients send the same ones again and again. Whatever these do not take as it stands is read
by Tornado's parser, which is the truth: what is refused is refused in its words, and what both
take they read alike (`test_request_heads.py` holds them to that).
"""

import re
from functools import lru_cache
from sys import maxsize

from msgspec import Struct
from tornado.http1connection import is_transfer_encoding_chunked, parse_int
from tornado.httputil import HTTPHeaders, HTTPInputError, parse_request_start_line

MOST_BODY_BYTES = 1 << 62
"""What a body may say it is long, for it to be a length at all. The limit is the listener's."""

_REQUEST = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]++) ([!-~\x80-\xff]++) HTTP/1\.1")
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]++):[ \t]*+([\t -~\x80-\xff]*+)(?<![ \t])")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+;=%-]*)(?::[0-9]*)?")
"""RFC 9112 3.2, but for commas: two lines that were joined look so."""
_KNOWN_CHARACTERS = 2048
"""Longer lines are not kept, and read by Tornado's parser."""
_DIGITS_OF_A_LENGTH = 15
_DIGITS_OF_NO_LENGTH = 19


class Malformed(Exception):  # noqa: N818 - what came is no request
    """What came is no HTTP request; the message says why, `status` is what it is answered with."""

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.status = status


class RequestHead(Struct, frozen=True):
    """One head. `headers` has lower-case names; what came several times is joined by commas."""

    method: str
    target: str
    """As it was sent."""
    version: str
    headers: dict[str, str]
    length_bytes: int = 0
    """Of the body, where it is told."""
    chunked: bool = False
    """The body comes in chunks."""
    keeps_alive: bool = True
    """The connection may serve another request."""
    unclear: str | None = None
    """Why nobody can tell where the body ends: then it is not read, and the head is still good."""


def read_head(data: bytes) -> RequestHead:
    """Read a head with the empty line behind it; raises Malformed."""
    return _read_common(data) or _read_any(data)


def _read_common(data: bytes) -> RequestHead | None:
    """Read a head of HTTP/1.1 with each name once and a body of a plain length, if any."""
    if not data.endswith(b"\r\n\r\n"):
        return None
    first, *lines = data[:-4].decode("latin-1").split("\r\n")
    try:
        method, target = _request_of(first)
        headers = dict(map(_field_of, lines))
    except ValueError:
        return None
    if len(headers) != len(lines):
        return None
    if "transfer-encoding" in headers or not _HOST.fullmatch(headers.get("host", " ")):
        return None
    length_bytes = 0
    length = headers.get("content-length")
    if length is not None:
        if not (length.isdecimal() and length.isascii() and len(length) <= _DIGITS_OF_A_LENGTH):
            return None
        length_bytes = int(length)
    connection = headers.get("connection")
    keeps_alive = connection is None or connection.lower() != "close"
    return RequestHead(method, target, "HTTP/1.1", headers, length_bytes, False, keeps_alive)


@lru_cache(64)
def _request_of(line: str) -> tuple[str, str]:
    """Return method and target of a head's first line; raises ValueError for an uncommon one."""
    request = _REQUEST.fullmatch(line) if len(line) <= _KNOWN_CHARACTERS else None
    if request is None:
        raise ValueError(line)
    return request[1], request[2]


@lru_cache(256)
def _field_of(line: str) -> tuple[str, str]:
    """Return name, in lower case, and value of a line; raises ValueError for an uncommon one."""
    field = _FIELD.fullmatch(line) if len(line) <= _KNOWN_CHARACTERS else None
    if field is None:
        raise ValueError(line)
    return field[1].lower(), field[2]


def _read_any(data: bytes) -> RequestHead:
    """Read whatever Tornado takes; raises Malformed."""
    # Some clients send line breaks between requests.
    first, _, rest = data.decode("latin-1").lstrip("\r\n").partition("\n")
    try:
        headers = HTTPHeaders.parse(rest)
        start = parse_request_start_line(first.rstrip("\r"))
    except HTTPInputError as error:
        raise Malformed(f"The head is malformed: {error}") from error
    hosts = headers.get_list("Host")
    if len(hosts) > 1 or (start.version == "HTTP/1.1" and not hosts):
        raise Malformed("There must be one Host")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise Malformed("The Host is none")
    if start.version == "HTTP/1.0" and "Transfer-Encoding" in headers:
        raise Malformed("HTTP/1.0 has no Transfer-Encoding")
    length_bytes, chunked, unclear = 0, False, None
    try:
        length_bytes = _length_of(headers)
        chunked = is_transfer_encoding_chunked(headers)
        if length_bytes > MOST_BODY_BYTES:
            unclear = "Content-Length too long"
    except HTTPInputError as error:
        unclear = str(error)
    return RequestHead(
        *start,
        {name.lower(): value for name, value in headers.items()},
        length_bytes,
        chunked,
        _keeps_alive(start.method, start.version, headers),
        unclear,
    )


def _length_of(headers: HTTPHeaders) -> int:
    """Return the length that a head tells, 0 where it tells none; raises HTTPInputError."""
    told = headers.get("Content-Length")
    if told is None:
        return 0
    length, *others = re.split(r",[ \t]*", told)
    if any(other != length for other in others):
        raise HTTPInputError(f"Multiple unequal Content-Lengths: {told!r}")
    if len(length) >= _DIGITS_OF_NO_LENGTH and length.isdecimal() and length.isascii():
        return maxsize
    try:
        return parse_int(length)
    except ValueError:
        raise HTTPInputError(f"Only integer Content-Length is allowed: {length}") from None


def _keeps_alive(method: str, version: str, headers: HTTPHeaders) -> bool:
    """Tell whether the client may ask again on its connection."""
    connection = headers.get("Connection", "").lower()
    if version == "HTTP/1.1":
        return connection != "close"
    ends = "Content-Length" in headers or method in ("HEAD", "GET")
    return ends and connection == "keep-alive"
