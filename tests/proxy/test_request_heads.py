"""Heads of requests: the quick reading of common ones says what Tornado's parser says of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPInputError, parse_request_start_line

from tornado_frontdoor.proxy.downstream.request_head import (
    Malformed,
    RequestHead,
    _read_any,
    _read_common,
    read_head,
)

COMMON = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAccept: */*\r\n"
    b"User-Agent: OpenAI/Python 1.0\r\nX-Stainless-Lang: python\r\nContent-Length: 17\r\n\r\n"
)

# Pieces that heads are made of, and that they are spoilt with.
NAMES = st.sampled_from(
    [
        *(b"Host", b"host", b"Accept", b"Content-Length", b"Transfer-Encoding", b"Connection"),
        *(b"X-Y", b"x!#$%&'*+.^_`|~", b"", b" X", b"X ", b"X Y", b"\xe4", b"X\x00", b"X:"),
    ]
)
VALUES = st.sampled_from(
    [
        *(b"a", b"", b"5", b"5, 5", b"5,6", b"-1", b"+5", b"0005", b"1" * 15, b"9" * 30, b"5 "),
        *(b"chunked", b"Chunked", b"gzip, chunked", b"close", b"Close", b"keep-alive", b"close, x"),
        *(b"a b\tc", b"\xe4\xff", b"a\x0bb", b"a\x85b", b"a\x7fb", b"\xb2", b"a\rb", b"a\x00"),
    ]
)
BLANKS = st.sampled_from([b"", b" ", b"  ", b"\t", b" \t "])
ENDS = st.sampled_from([b"\r\n"] * 9 + [b"\n", b"\r\r\n"])
FIELDS = st.builds(
    lambda name, before, value, after, end: name + b":" + before + value + after + end,
    *(NAMES, BLANKS, VALUES, BLANKS, ENDS),
)
LINES = st.sampled_from(
    [
        *[b"GET / HTTP/1.1\r\n", b"POST /v1/x?y=%20 HTTP/1.1\r\n"] * 4,
        *(b"\r\nGET / HTTP/1.1\r\n", b"GET / HTTP/1.0\r\n", b"GET / HTTP/1.7\r\n"),
        *(b"GET / HTTP/2.0\r\n", b"GET  / HTTP/1.1\r\n", b"GET / HTTP/1.1 \r\n", b"\r\n"),
        *(b"GET /\xe4 HTTP/1.1\r\n", b"G{T / HTTP/1.1\r\n", b"GET / http/1.1\r\n"),
        *(b"GET /\x00 HTTP/1.1\r\n", b"GET /\x7f HTTP/1.1\r\n", b"GET / HTTP/1.1\n"),
    ]
)
HEADS = st.builds(
    lambda line, fields, end: line + b"".join(fields) + end,
    *(LINES, st.lists(FIELDS, max_size=5), ENDS),
)


def by_tornado(data: bytes) -> tuple[str, str, str, dict[str, str]] | str:
    """Return what Tornado's own connection makes of a head, or why it refuses it."""
    parse = HTTP1Connection._parse_headers
    try:
        line, headers = parse(object.__new__(HTTP1Connection), data)
        start = parse_request_start_line(line)
    except HTTPInputError as error:
        return str(error)
    return (*start, {name.lower(): value for name, value in headers.items()})


def _told(head: RequestHead) -> tuple[str, str, str, dict[str, str]]:
    """Return what Tornado's parser says of a head, too."""
    return head.method, head.target, head.version, head.headers


def test_what_clients_send_is_read_the_quick_way() -> None:
    head = _read_common(COMMON)
    assert head is not None
    assert (head.method, head.target, head.version) == ("POST", "/v1/chat/completions", "HTTP/1.1")
    assert head.headers["user-agent"] == "OpenAI/Python 1.0"
    assert (head.length_bytes, head.chunked, head.keeps_alive) == (17, False, True)


@given(HEADS)
def test_the_quick_reading_is_the_strict_one(data: bytes) -> None:
    head = _read_common(data)
    if head is not None:
        assert head == _read_any(data)
        assert by_tornado(data) == _told(head)


OURS = ("There must be one Host", "The Host is none", "HTTP/1.0 has no Transfer-Encoding")
"""What Tornado would take."""


@given(HEADS | st.binary(max_size=60).map(lambda data: data + b"\n\n"))
def test_what_tornado_refuses_is_refused_in_its_words(data: bytes) -> None:
    told = by_tornado(data)
    try:
        read = _told(read_head(data))
    except Malformed as error:
        read = str(error)
    if isinstance(told, str):
        told = f"The head is malformed: {told}"
    assert read in (told, *OURS)


@pytest.mark.parametrize(
    ("fields", "length_bytes", "chunked", "unclear"),
    [
        (b"", 0, False, None),
        (b"Content-Length: 5\r\n", 5, False, None),
        (b"Content-Length: 5\r\nContent-Length: 5\r\n", 5, False, None),
        (b"Content-Length: 5, 5\r\n", 5, False, None),
        (b"Content-Length: 5,6\r\n", 0, False, "Multiple unequal Content-Lengths: '5,6'"),
        (b"Content-Length: +5\r\n", 0, False, "Only integer Content-Length is allowed: +5"),
        (b"Content-Length: \xb2\r\n", 0, False, "Only integer Content-Length is allowed: \xb2"),
        (b"Content-Length: %b\r\n" % (b"9" * 30), (1 << 63) - 1, False, "Content-Length too long"),
        (
            b"Content-Length: %b\r\n" % (b"9" * 9999),
            (1 << 63) - 1,
            False,
            "Content-Length too long",
        ),
        (b"Transfer-Encoding: chunked\r\n", 0, True, None),
        (
            *(b"Transfer-Encoding: gzip, chunked\r\n", 0, False),
            "Unsupported Transfer-Encoding gzip, chunked",
        ),
        (
            *(b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 5, False),
            "Message with both Transfer-Encoding and Content-Length",
        ),
    ],
)
def test_where_a_body_ends(
    fields: bytes, length_bytes: int, chunked: bool, unclear: str | None
) -> None:
    head = read_head(b"POST / HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n")
    assert (head.chunked, head.length_bytes, head.unclear) == (chunked, length_bytes, unclear)


@pytest.mark.parametrize(
    ("line", "fields", "keeps_alive"),
    [
        (b"GET / HTTP/1.1", b"", True),
        (b"GET / HTTP/1.1", b"Connection: Close\r\n", False),
        (b"GET / HTTP/1.1", b"Connection: keep-alive\r\n", True),
        (b"GET / HTTP/1.0", b"", False),
        (b"GET / HTTP/1.0", b"Connection: keep-alive\r\n", True),
        (b"POST / HTTP/1.0", b"Connection: keep-alive\r\n", False),
        (b"POST / HTTP/1.0", b"Connection: keep-alive\r\nContent-Length: 0\r\n", True),
    ],
)
def test_whether_a_connection_may_serve_another_request(
    line: bytes, fields: bytes, keeps_alive: bool
) -> None:
    head = read_head(line + b"\r\nHost: x\r\n" + fields + b"\r\n")
    assert isinstance(head, RequestHead)
    assert head.keeps_alive is keeps_alive
