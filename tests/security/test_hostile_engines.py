"""An engine may be broken or taken over. Clients get clean answers, framed by us, or an error."""

import asyncio
from collections.abc import Iterator

import pytest
from doorway import CHAT, doorway
from hostile import answer, hostile_engine
from wire import Cut, Reply, chat

PATHS = [CHAT, "/llm/v1/messages"]
HIDDEN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Evil: 1\r\n\r\npwned"
CHUNKED = b'e\r\n{"choices": []\r\n1\r\n}\r\n0\r\n\r\n'


async def ask_twice(raw: bytes, *, closes: bool = False) -> tuple[Reply | None, Reply | None]:
    """Ask the engine through the front door, then for `/health` on the same connection."""
    async with hostile_engine(raw, closes=closes) as engine, doorway(url=engine.url) as door:
        wire = await door.wire()
        wire.send(CHAT, chat())
        first = second = None
        try:
            first = await wire.reply()
            wire.send("/health", method="GET")
            second = await wire.reply()
        except Cut:
            pass
        return first, second


def raw_names(reply: Reply) -> set[str]:
    return set(reply.headers)


@pytest.mark.parametrize("length", ["0", "1", "14", "17", "100000"])
@pytest.mark.parametrize("transfer", ["Transfer-Encoding: chunked", "Transfer-Encoding:\tchunked"])
def test_a_length_beside_chunks_is_dropped(length: str, transfer: str) -> None:
    """Response splitting: with it the next answer on the connection would be the engine's own."""
    raw = answer(f"Content-Length: {length}", transfer, body=CHUNKED)
    first, second = asyncio.run(ask_twice(raw))
    assert first is not None
    assert second is not None
    assert "content-length" not in first.headers
    assert first.body == b'{"choices": []}'
    assert second.json["status"] == "ok"


FRAMINGS = {
    "two lengths": ["Content-Length: 5", "Content-Length: 90"],
    "two lengths in one": ["Content-Length: 5, 90"],
    "a length that is none": ["Content-Length: 5x"],
    "a negative length": ["Content-Length: -5"],
    "a length with a sign": ["Content-Length: +5"],
    "an endless length": ["Content-Length: " + "9" * 40],
    "a blank before the colon": ["Content-Length : 5", "Content-Length: 90"],
    "a hidden transfer encoding": ["Transfer-Encoding : chunked", "Content-Length: 90"],
    "an unknown transfer encoding": ["Transfer-Encoding: xchunked", "Content-Length: 90"],
    "two transfer encodings": ["Transfer-Encoding: chunked", "Transfer-Encoding: gzip"],
    "chunked twice": ["Transfer-Encoding: chunked, chunked"],
}


@pytest.mark.parametrize("lines", FRAMINGS.values(), ids=FRAMINGS)
def test_a_head_that_two_readers_could_read_in_two_ways_is_a_502(lines: list[str]) -> None:
    first, second = asyncio.run(ask_twice(answer(*lines, body=b"hello" + HIDDEN)))
    assert first is not None
    assert second is not None
    assert first.status == 502
    assert second.json["status"] == "ok"


def test_what_follows_a_body_is_never_an_answer() -> None:
    """The engine keeps talking: what it says is thrown away with its connection."""
    first, second = asyncio.run(ask_twice(answer("Content-Length: 2", body=b"{}" + HIDDEN)))
    assert first is not None
    assert second is not None
    assert first.body == b"{}"
    assert second.json["status"] == "ok"


def test_a_body_shorter_than_its_length_is_cut_and_never_filled_up() -> None:
    first, second = asyncio.run(
        ask_twice(answer("Content-Length: 50", body=b'{"a":1}'), closes=True)
    )
    assert (first, second) == (None, None)


def test_a_204_has_no_body_and_no_length() -> None:
    raw = answer("Content-Length: 5", status="204 No Content", body=b"hello")
    first, second = asyncio.run(ask_twice(raw, closes=True))
    assert first is not None
    assert second is not None
    assert (first.status, first.body) == (204, b"")
    assert not {"content-length", "transfer-encoding"} & raw_names(first)
    assert second.json["status"] == "ok"


def lines_of_ours() -> Iterator[str]:
    yield from ("X-Frontdoor-Upstream: evil", "x-frontdoor-wait-ms: 1", "X-Request-Id: mine")
    yield from ("Server: evil", "Date: yesterday", "Access-Control-Allow-Origin: *")
    yield from ("X-Accel-Redirect: /etc/passwd", "X-Sendfile: /etc/passwd", "Alt-Svc: h3=evil")
    yield from ("Connection: X-Secret, close", "X-Secret: 1", "Keep-Alive: timeout=1")
    yield from ("Strict-Transport-Security: max-age=1", "Trailer: X-T", "Upgrade: h2c")


def test_what_only_we_may_say_is_never_the_engines() -> None:
    raw = answer(*lines_of_ours(), "Content-Length: 2", "X-Fine: yes", body=b"{}")

    async def scenario() -> None:
        async with hostile_engine(raw) as engine, doorway(url=engine.url) as door:
            wire = await door.begin(CHAT, chat())
            head = (await wire.reader.readuntil(b"\r\n\r\n")).decode()
            names = [line.partition(":")[0].lower() for line in head.split("\r\n")[1:-2]]
            assert sorted(names) == [
                "content-length", "x-fine", "x-frontdoor-upstream", "x-request-id",
            ]  # fmt: skip
            assert "evil" not in head
            wire.leave()

    asyncio.run(scenario())


ODD = [
    "X Y: 1",
    ": 1",
    "X-Y : 1",
    "X\x00Y: 1",
    "X-\xe9: 1",
    "(x): 1",
    "X-Bell: a\x07b",
    "X-Cr: a\rb: c",
]


@pytest.mark.parametrize("line", ODD)
def test_a_line_that_is_no_header_does_not_reach_a_client(line: str) -> None:
    async def scenario() -> None:
        raw = answer(line, "Content-Length: 2", body=b"{}")
        async with hostile_engine(raw) as engine, doorway(url=engine.url) as door:
            wire = await door.begin(CHAT, chat())
            head = await wire.reader.readuntil(b"\r\n\r\n")
            status, *lines = head.split(b"\r\n")[:-2]
            assert status.split()[1] in (b"200", b"502")  # libcurl itself refuses some of them
            known = (b"content-", b"x-frontdoor-upstream:", b"x-request-id:")
            assert all(named.lower().startswith(known) for named in lines), lines
            wire.leave()

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
def test_what_connection_names_goes_no_further_on_any_surface(path: str) -> None:
    async def scenario() -> None:
        raw = answer("Content-Length: 2", body=b"{}")
        async with hostile_engine(raw) as engine, doorway(url=engine.url) as door:
            body = chat() | {"max_tokens": 5}
            sent = {"Authorization": "Bearer secret", "Connection": "Authorization, Traceparent"}
            await door.call(path, body, **sent, Traceparent="00-1-1-01")
            await door.call(path, body, Authorization="Bearer secret")
            first, second = (head.lower() for head in engine.heads)
            assert "authorization" not in first
            assert "traceparent" not in first
            assert "authorization: bearer secret" in second

    asyncio.run(scenario())


@pytest.mark.parametrize("body", [chat(stream=True), chat()], ids=["stream", "whole"])
def test_headers_that_steer_an_engine_stay_outside(body: dict[str, object]) -> None:
    async def scenario() -> None:
        raw = answer("Content-Length: 2", body=b"{}")
        async with hostile_engine(raw) as engine, doorway(url=engine.url) as door:
            await door.call(
                CHAT, body, X_Vllm_Priority="-1", X_data_parallel_rank="3", X_Session_ID="s",
                X_Request_Id="mine", Endpoint_Load_Metrics_Format="json",
            )  # fmt: skip
            head = engine.heads[0].lower()
            for name in ("x-vllm-priority", "x-data-parallel-rank", "x-session-id", "mine"):
                assert name not in head

    asyncio.run(scenario())
