"""What is no request is answered once, with an id and a line, and ends its connection."""

import asyncio
from time import monotonic

import pytest
from doorway import CHAT, Doorway, doorway
from wire import Reply, chat, request

HOST = b"Host: 127.0.0.1\r\n"
BODY = b'{"model":"reasoning","messages":[]}'


def post(*lines: bytes, body: bytes = b"", version: bytes = b"HTTP/1.1") -> bytes:
    return b"POST %s %s\r\n" % (CHAT.encode(), version) + b"".join(lines) + b"\r\n" + body


async def say(door: Doorway, raw: bytes, port: int | None = None) -> tuple[Reply, bytes]:
    """Return the answer, and whatever came after it until the connection was closed."""
    wire = await door.wire(port)
    wire.raw(raw)
    reply = await wire.reply()
    return reply, await wire.rest()


NO_REQUESTS = {
    "no HTTP": b"hello\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "HTTP of another age": b"GET /health HTTP/3.0\r\n\r\n",
    "HTTP/2 without asking": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a blank in a name": b"GET /health HTTP/1.1\r\n" + HOST + b"X Y: 1\r\n\r\n",
    "a blank before the colon": b"GET /health HTTP/1.1\r\n" + HOST + b"Content-Length : 0\r\n\r\n",
    "a line without a colon": b"GET /health HTTP/1.1\r\n" + HOST + b"nothing\r\n\r\n",
    "a control character": b"GET /health HTTP/1.1\r\n" + HOST + b"X: a\x00b\r\n\r\n",
    "no Host": b"GET /health HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET /health HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "a Host with a blank": b"GET /health HTTP/1.1\r\nHost: a b\r\n\r\n",
    "two Hosts in one": b"GET /health HTTP/1.1\r\nHost: a, b\r\n\r\n",
    "a Host with a user": b"GET /health HTTP/1.1\r\nHost: a@b\r\n\r\n",
    "two lengths": post(HOST, b"Content-Length: 35\r\nContent-Length: 36\r\n", body=BODY + b"x"),
    "a length that is none": post(HOST, b"Content-Length: 3x\r\n"),
    "a negative length": post(HOST, b"Content-Length: -1\r\n"),
    "a length beside chunks": post(
        HOST, b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", body=b"0\r\n\r\n"
    ),
    "chunks in HTTP/1.0": post(
        HOST, b"Transfer-Encoding: chunked\r\n", body=b"0\r\n\r\n", version=b"HTTP/1.0"
    ),
    "an unknown transfer encoding": post(HOST, b"Transfer-Encoding: xchunked\r\n"),
    "two transfer encodings": post(HOST, b"Transfer-Encoding: gzip, chunked\r\n"),
    "a chunk without a size": post(HOST, b"Transfer-Encoding: chunked\r\n", body=b"x\r\n"),
    "a chunk with a signed size": post(HOST, b"Transfer-Encoding: chunked\r\n", body=b"+5\r\n"),
    "a chunk with an endless size": post(
        HOST, b"Transfer-Encoding: chunked\r\n", body=b"f" * 20 + b"\r\n"
    ),
    "a chunk longer than its size": post(
        HOST, b"Transfer-Encoding: chunked\r\n", body=b"1\r\nxyz\r\n0\r\n\r\n"
    ),
    "a trailer that is none": post(
        HOST, b"Transfer-Encoding: chunked\r\n", body=b"0\r\nnothing\r\n\r\n"
    ),
    "a bell in a chunk's extension": post(
        HOST, b"Transfer-Encoding: chunked\r\n", body=b"1;a=\x07\r\nx\r\n0\r\n\r\n"
    ),
}


@pytest.mark.parametrize("raw", NO_REQUESTS.values(), ids=NO_REQUESTS)
def test_what_is_no_request_is_a_400_with_an_id_a_line_and_a_count(raw: bytes) -> None:
    async def scenario() -> None:
        async with doorway() as door:
            reply, more = await say(door, raw + b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
            assert (reply.status, more) == (400, b""), "one answer, then the end"
            assert reply.closes
            [line] = door.lines
            assert line["request_id"] == reply.headers["x-request-id"]
            assert (line["outcome"], line["status"]) == ("bad_request", 400)
            assert (line["client"], bool(line["cause"])) == ("127.0.0.1", True)
            metrics = (await door.admin("/metrics")).body.decode()
            assert 'edge_refusals_total{listener="public",reason="malformed"} 1.0' in metrics
            assert door.stats()["started"] == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [70_000, 400_000])
@pytest.mark.parametrize("admin", [False, True])
def test_a_head_above_64_kib_is_a_431(size: int, *, admin: bool) -> None:
    async def scenario() -> None:
        async with doorway() as door:
            raw = b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"x" * size + b"\r\n\r\n"
            reply, more = await say(door, raw, door.admin_port if admin else None)
            assert (reply.status, more) == (431, b"")
            assert reply.headers["x-request-id"]
            assert len(door.lines) == (0 if admin else 1)

    asyncio.run(scenario())


def test_a_head_below_64_kib_is_read() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            wire = await door.wire()
            wire.raw(b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 65_000 + b"\r\n\r\n")
            assert (await wire.reply()).status == 200

    asyncio.run(scenario())


def test_tls_on_the_plain_port_is_refused_within_a_second() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            started_s = monotonic()
            hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
            reply, _ = await say(door, hello)
            assert reply.status == 400
            assert monotonic() - started_s < 1
            assert "TLS" in door.lines[0]["cause"]

    asyncio.run(scenario())


CHUNKS = {
    "an extension": b'23;a=b;c="d"\r\n' + BODY + b"\r\n0\r\n\r\n",
    "blanks before an extension": b"23 ;a\r\n" + BODY + b"\r\n0;last\r\n\r\n",
    "trailers": b"23\r\n" + BODY + b"\r\n0\r\nX-Sum: 1\r\nServer-Timing: x\r\n\r\n",
    "leading zeros": b"00023\r\n" + BODY + b"\r\n000\r\n\r\n",
}


@pytest.mark.parametrize("body", CHUNKS.values(), ids=CHUNKS)
def test_chunk_extensions_and_trailers_are_read_and_go_no_further(body: bytes) -> None:
    async def scenario() -> None:
        async with doorway() as door:
            wire = await door.wire()
            head = (HOST, b"Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n")
            wire.raw(post(*head, body=body) + request("/health", method="GET"))
            assert (await wire.reply()).status == 200
            assert (await wire.reply()).json["status"] == "ok"

    asyncio.run(scenario())


def test_a_refused_request_whose_body_is_malformed_gets_one_answer() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            raw = b"POST /nope HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"
            reply, more = await say(door, raw)
            assert (reply.status, more) == (404, b"")
            assert len(door.lines) == 1

    asyncio.run(scenario())


def test_http_1_0_needs_no_host() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            wire = await door.wire()
            wire.raw(b"GET /health HTTP/1.0\r\n\r\n")
            assert (await wire.reply()).status == 200

    asyncio.run(scenario())


def test_a_client_that_asks_may_go_on_whatever_the_case() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            wire = await door.wire()
            wire.raw(post(HOST, b"Content-Length: 35\r\nExpect: 100-Continue\r\n"))
            assert (await wire.head())[0] == 100
            wire.raw(BODY)
            assert (await wire.reply()).status == 200

    asyncio.run(scenario())


def test_weights_written_as_texts_hold_the_cap() -> None:
    """Two requests of eight sequences each before a cap of eight: never both."""

    async def scenario() -> None:
        async with doorway({"slots": 16}, slots=16, cap=8) as door:
            body = chat(hold_s=0.05) | {"n": "8"}
            replies = await asyncio.gather(*(door.call(CHAT, body) for _ in range(4)))
            assert {reply.status for reply in replies} == {200}
            assert door.stats()["max_concurrent"] <= 8
            assert {line["weight"] for line in door.lines} == {8}

    asyncio.run(scenario())
