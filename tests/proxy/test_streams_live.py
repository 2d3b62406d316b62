"""Answers on their way: byte for byte, as they come, and never politely where they are broken."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from doorway import CHAT, Doorway, doorway
from stopwatch import Stopwatch
from wire import Cut, Reply, chat, framed, request

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def saying(kit: SimpleNamespace, *pieces: bytes, gap_s: float = 0.0) -> Handler:
    """Return an engine that says these bytes to each request, one after the other."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await kit.read_request(reader)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(gap_s)

    return handle


def cutting(kit: SimpleNamespace, *pieces: bytes) -> Handler:
    """Return an engine that says these bytes and closes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await kit.read_request(reader)
        for piece in pieces:
            writer.write(piece)
        await writer.drain()
        writer.close()

    return handle


def last_event(body: bytes) -> dict[str, object]:
    """Return the error of the last event of a broken stream."""
    event = body.rstrip().rsplit(b"\n\n", 1)[-1]
    assert event.startswith(b"data: ")
    error = json.loads(event[6:])["error"]
    assert isinstance(error, dict)
    return error


async def read_until_cut(door: Doorway, **knobs: Any) -> bytes:
    """Ask for a stream and return what came of it before it was cut."""
    wire = await door.begin(CHAT, chat(stream=True, **knobs))
    with pytest.raises(Cut) as cut:
        await wire.reply()
    return cut.value.body


def test_chunks_pass_as_they_come_and_byte_for_byte(kit: SimpleNamespace) -> None:
    events = [b'data: {"n": %d, "x": "\xc3\xa4\xe2\x80\xa8"}\n\n' % n for n in range(8)]
    events.append(b"data: [DONE]\n\n")

    async def scenario() -> None:
        engine = saying(kit, SSE, *map(framed, events), b"0\r\n\r\n", gap_s=0.05)
        async with kit.engine(engine) as raw, doorway(url=raw.url) as door:
            asked_s = monotonic()
            wire = await door.begin(CHAT, chat(stream=True))
            status, headers = await wire.head()
            assert (status, headers["content-type"]) == (200, "text/event-stream")
            assert headers["x-frontdoor-upstream"] == "reasoning"
            came = []
            watch = Stopwatch()
            for event in events:
                assert await wire.chunk() == event
                came.append(monotonic())
            assert await wire.chunk() == b""
            gaps = [b - a for a, b in pairwise(came)]
            assert min(gaps) > 0.02, "held back and sent together"
            assert watch.own_s < 0.8
            await door.until(lambda: door.outcomes == ["served"])
            assert door.lines[0]["first_byte_s"] <= came[0] - asked_s

    asyncio.run(scenario())


def test_the_head_of_a_stream_passes_before_its_first_byte() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            wire = await door.begin(CHAT, chat(stream=True, hold_s=0.4))
            watch = Stopwatch()
            assert (await wire.head())[0] == 200
            assert watch.own_s < 0.2
            while await wire.chunk():
                pass

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [1, 2, 5])
def test_an_end_in_pieces_of_any_size_is_an_end(kit: SimpleNamespace, size: int) -> None:
    """What tells the end may come byte by byte."""
    text = b'data: {"choices":[]}\n\ndata: [DONE]\n\n'
    pieces = [framed(text[at : at + size]) for at in range(0, len(text), size)]

    async def scenario() -> None:
        engine = saying(kit, SSE, *pieces, b"0\r\n\r\n", gap_s=0.003)
        async with kit.engine(engine) as raw, doorway(url=raw.url) as door:
            reply = await door.call(CHAT, chat(stream=True))
            assert reply.body == text
            assert door.outcomes == ["served"]

    asyncio.run(scenario())


def test_a_reader_that_stalls_costs_no_memory(kit: SimpleNamespace) -> None:
    """200 MB are on their way to someone who reads none of it for a while."""

    def rss_bytes() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.set_write_buffer_limits(high=65536)
        writer.write(SSE)
        block = framed(b"data: " + b"x" * 65536 + b"\n\n")
        for _ in range(3200):
            writer.write(block)
            await writer.drain()
        writer.write(framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async def scenario() -> None:
        async with kit.engine(endless) as raw, doorway(url=raw.url) as door:
            sock, loop = await door.thirsty()
            with sock:
                await loop.sock_sendall(sock, request(CHAT, chat(stream=True), Connection="close"))
                await loop.sock_recv(sock, 4096)
                await asyncio.sleep(0.3)
                before = rss_bytes()
                await asyncio.sleep(0.7)
                assert rss_bytes() - before < 8 << 20
                size = 0
                while piece := await loop.sock_recv(sock, 1 << 20):
                    size += len(piece)
                assert size > 200 << 20
                assert rss_bytes() - before < 32 << 20
            await door.at_rest()
            assert door.outcomes == ["served"]

    asyncio.run(scenario())


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_death_within_a_stream_ends_with_an_error_event_and_a_cut(after: int) -> None:
    async def scenario() -> None:
        async with doorway() as door:
            body = await read_until_cut(door, die_after_chunks=after, tokens=8, gap_ms=10)
            assert b"[DONE]" not in body
            assert last_event(body)["type"] == "upstream_error"
            await door.until(lambda: door.outcomes == ["upstream_error"])
            assert door.lines[0]["status"] == 200

    asyncio.run(scenario())


def test_a_stream_that_just_ends_is_no_success() -> None:
    """OpenAI's own client takes a polite end for a whole answer."""

    async def scenario() -> None:
        async with doorway() as door:
            body = await read_until_cut(door, break_after=2, break_how="end", tokens=8)
            assert last_event(body)["code"] == 502
            assert door.outcomes == ["upstream_error"]

    asyncio.run(scenario())


def test_an_error_that_the_engine_sent_in_band_passes_unchanged() -> None:
    """F58: what the engine says itself is passed on, and counted as its failure."""

    async def scenario() -> None:
        async with doorway() as door:
            reply = await door.call(CHAT, chat(stream=True, fail_after_chunks=2, tokens=8))
            assert reply.body.endswith(b"data: [DONE]\n\n")
            assert reply.body.count(b'{"error"') == 1
            assert door.outcomes == ["upstream_error"]

    asyncio.run(scenario())


def test_silence_within_a_stream_ends_it() -> None:
    async def scenario() -> None:
        async with doorway(chunk_timeout_s=0.2) as door:
            body = await read_until_cut(door, break_after=2, break_how="stall", tokens=8)
            error = last_event(body)
            assert (error["type"], error["code"]) == ("upstream_timeout", 504)
            await door.until(lambda: door.outcomes == ["upstream_timeout"])
            await door.until(lambda: door.stats()["in_flight"] == 0)

    asyncio.run(scenario())


def test_a_death_within_half_an_event_leaves_the_error_readable(kit: SimpleNamespace) -> None:
    async def scenario() -> None:
        engine = cutting(kit, SSE, framed(b'data: {"ok":1}\n\n'), framed(b'data: {"half": "'))
        async with kit.engine(engine) as raw, doorway(url=raw.url) as door:
            assert last_event(await read_until_cut(door))["type"] == "upstream_error"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n",
    ],
)
def test_a_truncated_answer_is_cut(kit: SimpleNamespace, head: bytes) -> None:
    async def scenario() -> None:
        engine = cutting(kit, head, b'{"half": ')
        async with kit.engine(engine) as raw, doorway(url=raw.url) as door:
            wire = await door.begin(CHAT, chat())
            with pytest.raises(Cut) as cut:
                await wire.reply()
            assert cut.value.body == b'{"half": '
            await door.until(lambda: door.outcomes == ["upstream_error"])

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 999999 Huge\r\n\r\n",
        b"\x00" * 100,
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_a_502(kit: SimpleNamespace, said: bytes) -> None:
    async def scenario() -> None:
        async with kit.engine(cutting(kit, said)) as raw, doorway(url=raw.url) as door:
            reply = await door.call(CHAT, chat())
            hold_to_a_failure(reply, 502, "upstream_error")
            assert door.outcomes == ["upstream_error"]

    asyncio.run(scenario())


def hold_to_a_failure(reply: Reply, status: int, error_type: str) -> None:
    assert reply.status == status
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json["error"]["type"] == error_type
    assert reply.json["upstream"] == "reasoning"
    assert "retry-after" not in reply.headers


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://no-such-host.invalid"])
def test_an_engine_that_nobody_finds_is_a_503_that_says_when_to_come_back(url: str) -> None:
    async def scenario() -> None:
        async with doorway(url=url) as door:
            for _ in range(2):  # the second does not even try
                reply = await door.call(CHAT, chat())
                assert (reply.status, reply.json["error"]["code"]) == (503, "model_waking")
                assert reply.json["sleep_depth"] == "restarting"
                assert reply.headers["retry-after"] == "15"
            assert reply.took_s < 0.5
            assert door.outcomes == ["model_waking"] * 2

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_says_nothing_is_a_504(kit: SimpleNamespace, stream: bool) -> None:
    async def scenario() -> None:
        async with (
            kit.engine(saying(kit)) as raw,
            doorway(url=raw.url, read_timeout_s=0.2) as door,
        ):
            reply = await door.call(CHAT, chat(stream=stream))
            hold_to_a_failure(reply, 504, "upstream_timeout")
            assert door.outcomes == ["upstream_timeout"]
            assert door.lines[0]["code"] == "UT"
            await kit.until(lambda: raw.open == 0)

    asyncio.run(scenario())


def test_time_in_line_is_not_counted_against_the_engine() -> None:
    """Its read timeout starts with the grant: who waited longer than it is served all the same."""

    async def scenario() -> None:
        async with doorway({"hold": 0.3}, cap=1, queue=4, read_timeout_s=0.5) as door:
            replies = await asyncio.gather(*(door.call(CHAT, chat()) for _ in range(4)))
            assert [reply.status for reply in replies] == [200] * 4
            waited = sorted(int(r.headers.get("x-frontdoor-wait-ms", 0)) for r in replies)
            assert waited[0] == 0
            assert waited[-1] > 700

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [301, 302, 303, 304, 307, 308])
def test_redirects_are_never_relayed(kit: SimpleNamespace, status: int) -> None:
    async def scenario() -> None:
        said = kit.answer(b"", f"{status} Moved", "Location: http://127.0.0.1:9/sleep")
        async with kit.engine(saying(kit, said)) as raw, doorway(url=raw.url) as door:
            reply = await door.call(CHAT, chat())
            hold_to_a_failure(reply, 502, "upstream_error")
            assert "location" not in reply.headers

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503])
def test_the_engines_own_errors_pass_unchanged(kit: SimpleNamespace, status: int) -> None:
    """F50: also a refusal of the engine's own, with its own Retry-After."""
    body = b'{"error": {"message": "no"}}'

    async def scenario() -> None:
        said = kit.answer(body, f"{status} No", "Content-Type: application/json", "Retry-After: 7")
        async with kit.engine(saying(kit, said)) as raw, doorway(url=raw.url) as door:
            reply = await door.call(CHAT, chat())
            assert (reply.status, reply.body) == (status, body)
            assert reply.headers["retry-after"] == "7"
            assert reply.headers["content-type"] == "application/json"
            assert door.outcomes == ["upstream_error" if status >= 500 else "served"]

    asyncio.run(scenario())


def test_what_steers_an_engine_is_not_passed_and_ids_are_ours(kit: SimpleNamespace) -> None:
    heads: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await kit.read_request(reader)
            heads.append(head)
            writer.write(kit.answer(b"{}", "200 OK", "X-Request-Id: engine", "Server: uvicorn"))

    async def scenario() -> None:
        async with kit.engine(listen) as raw, doorway(url=raw.url) as door:
            reply = await door.call(
                CHAT + "?priority=1",
                chat(),
                X_Vllm_Priority="-100",
                X_data_parallel_rank="1",
                X_Session_ID="s",
                X_Request_Id="mine",
                Connection="x-private, keep-alive",
                X_Private="p",
                Proxy_Authorization="Basic p",
                TE="trailers",
                Upgrade="h2c",
                X_Harmless="kept",
            )
            passed = heads[0].decode().lower()
            for name in ("priority", "rank", "session", "private", "proxy-", "te:", "upgrade"):
                assert name not in passed.replace("x-harmless", ""), name
            assert "x-harmless: kept" in passed
            ours = reply.headers["x-request-id"]
            assert ours not in {"mine", "engine"}
            assert f"x-request-id: {ours}" in passed
            assert passed.count("x-request-id") == 1
            assert "server" not in reply.headers
            assert door.lines[0]["request_id"] == ours

    asyncio.run(scenario())


def test_a_body_passes_byte_for_byte_but_for_the_models_name(kit: SimpleNamespace) -> None:
    bodies: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            bodies.append((await kit.read_request(reader))[1])
            writer.write(kit.answer(b"{}"))

    async def scenario() -> None:
        async with kit.engine(listen) as raw, doorway(url=raw.url) as door:
            for name in ("reasoning", "Thinker", "claude-opus"):
                odd = ' { "z" : 1.50,\n "model":"%s", "u":"\\u00e4ä", "messages": [ ] } '
                await door.call(CHAT, (odd % name).encode(), Content_Type="application/json")
                assert bodies[-1] == (odd % "reasoning").encode()

    asyncio.run(scenario())


def test_an_http_1_0_client_gets_a_body_that_ends_with_the_connection() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            wire = await door.wire()
            body = json.dumps(chat(stream=True)).encode()
            wire.raw(
                b"POST %b HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b"
                % (CHAT.encode(), len(body), body)
            )
            reply = await wire.reply()
            assert "transfer-encoding" not in reply.headers
            assert reply.closes
            assert reply.body.endswith(b"data: [DONE]\n\n")

    asyncio.run(scenario())


def test_a_connection_serves_one_request_after_the_other() -> None:
    async def scenario() -> None:
        async with doorway(cap=1, queue=0) as door:
            wire = await door.wire()
            for n in range(5):
                wire.send(CHAT, chat(stream=n % 2 == 0))
                assert (await wire.reply()).status == 200
                wire.send("/nothing", {"a": 1})
                assert (await wire.reply()).status == 404
                wire.send(CHAT, b"{", Content_Type="application/json")
                assert (await wire.reply()).status == 400
            assert door.outcomes == ["served", "bad_request", "bad_request"] * 5

    asyncio.run(scenario())


def test_pipelined_requests_are_answered_in_order() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 0.05}, cap=1, queue=0) as door:
            wire = await door.wire()
            wire.raw(
                request(CHAT, chat())
                + request("/v1/models", None, "GET")
                + request(CHAT, chat(stream=True))
                + request("/sleep")
            )
            assert (await wire.reply()).json["object"] == "chat.completion"
            assert (await wire.reply()).json["object"] == "list"
            assert b"[DONE]" in (await wire.reply()).body
            assert (await wire.reply()).status == 404

    asyncio.run(scenario())
