"""The access line alone says who asked for what, and in plain words why it was not served."""

import asyncio
import contextlib
import json
import socket
from ipaddress import ip_network
from typing import Any

import pytest
from doorway import CHAT, doorway
from wire import Cut, chat, request

from tornado_frontdoor.proxy.records import forwarded_for, print_of, spoken_for
from tornado_frontdoor.surfaces.usage import tokens_of


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_who_what_and_how_much() -> None:
    async def scenario() -> None:
        async with doorway(server='trusted_proxies = ["127.0.0.0/8"]') as door:
            reply = await door.call(
                CHAT + "?secret=1",
                chat(tokens=3),
                User_Agent="curl/8 " + "x" * 300,
                Authorization="Bearer sk-secret",
                X_Forwarded_For="6.6.6.6, 10.1.2.3, 127.0.0.9",
            )
            assert reply.status == 200
            (line,) = door.lines
            assert (line["method"], line["path"], line["client"]) == ("POST", CHAT, "127.0.0.1")
            assert line["forwarded"] == "10.1.2.3"
            assert line["user_agent"] == "curl/8 " + "x" * 192 + "…"
            assert line["key"] == print_of("Bearer sk-secret") == print_of("sk-secret")
            assert "sk-secret" not in json.dumps(line)
            assert (line["tokens_in"], line["tokens_out"]) == usage_in(reply.json)
            assert line["replica"] == door.app.settings.upstreams["reasoning"].url
            assert (line["place"], line["wake"], line["cause"]) == (None, None, None)

    asyncio.run(scenario())


def usage_in(answer: dict[str, Any]) -> tuple[int, int]:
    return answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]


def test_places_and_real_waits_also_of_those_who_left() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 0.5}, cap=1) as door:
            wires = [await door.begin(CHAT, chat())]
            await door.inside(1)
            for number in (1, 2):
                wires.append(await door.begin(CHAT, chat()))
                await door.inside(1, number)
            await asyncio.sleep(0.2)
            wires[2].leave()
            await door.until(lambda: door.outcomes == ["client_gone_queued"])
            for wire in wires[:2]:
                assert (await wire.reply()).status == 200
            left, first, second = door.lines
            assert (left["place"], first["place"], second["place"]) == (2, None, 1)
            assert 0.15 < left["waited_s"] < 2
            assert "left while it waited" in left["cause"]
            histogram = (await door.admin("/metrics")).body.decode()
            low = 'frontdoor_queue_wait_seconds_bucket{le="0.1",upstream="reasoning"} 1.0'
            assert low in histogram

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:{}", "connect"),
        ("http://no-such-host.invalid:80", "no-such-host.invalid"),
    ],
)
def test_an_engine_that_cannot_be_reached_is_said_with_the_reason(url: str, words: str) -> None:
    async def scenario() -> None:
        async with doorway(url=url.format(closed_port())) as door:
            assert (await door.call(CHAT, chat())).status == 503
            assert words in door.lines[0]["cause"]

    asyncio.run(scenario())


def test_each_end_but_served_has_a_cause(kit: Any) -> None:
    answers = iter(
        [
            kit.answer(b'{"error":"no key"}', "503 Gone"),
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 3\r\n\r\nx\n\n",
            b"garbage\r\n\r\n",
        ]
    )

    async def serve(reader: Any, writer: Any) -> None:
        while True:
            head, _ = await kit.read_request(reader)
            if head.startswith(b"GET"):  # whether it is there
                writer.write(kit.answer(b"", "200 OK"))
                continue
            writer.write(next(answers))

    async def scenario() -> None:
        async with kit.engine(serve) as engine, doorway(url=engine.url, cap=1, queue=0) as door:
            for _ in range(3):
                with contextlib.suppress(Cut):
                    await door.call(CHAT, chat(stream=True))
            await door.call("/nowhere", {})
            await door.call(CHAT, {"model": "nobody"})
            await door.call(CHAT, b"{")
            causes = [line["cause"] for line in door.lines]
            assert "answered 503" in causes[0]
            assert "no key" in causes[0]
            assert "ended its stream" in causes[1]
            assert causes[2]
            assert "/nowhere" in causes[3]
            assert "nobody" in causes[4]
            assert "JSON" in causes[5]
            assert door.lines[3]["path"] == "/nowhere"

    asyncio.run(scenario())


def test_a_key_that_the_engine_misses_and_a_sleep_by_another_hand_are_said(kit: Any) -> None:
    stream = b'data: {"choices":[{"delta":{},"finish_reason":"abort"}]}\n\ndata: [DONE]\n\n'
    answers = iter(
        [
            kit.answer(b'{"error":"Unauthorized"}', "401 Unauthorized"),
            kit.answer(stream, "200 OK", "Content-Type: text/event-stream"),
        ]
    )

    async def serve(reader: Any, writer: Any) -> None:
        while True:
            head, _ = await kit.read_request(reader)
            if head.startswith(b"GET"):  # whether it is there
                writer.write(kit.answer(b"", "200 OK"))
                continue
            writer.write(next(answers))

    async def scenario() -> None:
        async with kit.engine(serve) as engine, doorway(url=engine.url) as door:
            assert (await door.call(CHAT, chat())).status == 401
            assert (await door.call(CHAT, chat(stream=True))).status == 200
            refused, aborted = door.lines
            assert refused["outcome"] == "served"
            assert "the engine answered 401" in refused["cause"]
            assert "Unauthorized" in refused["cause"]
            assert aborted["outcome"] == "upstream_error"
            assert "by another hand" in aborted["cause"]

    asyncio.run(scenario())


def test_an_engine_that_is_silent_and_a_client_that_reads_nothing_are_said(kit: Any) -> None:
    async def serve(reader: Any, writer: Any) -> None:
        head, _ = await kit.read_request(reader)
        if head.startswith(b"GET"):  # whether it is there
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            return
        if b"x-flood" in head.lower():
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n")
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        await reader.read()  # until the front door gives it up

    async def scenario() -> None:
        limits = {"read_timeout_s": 0.4, "write_stall_timeout_s": 0.4}
        async with kit.engine(serve) as engine, doorway(url=engine.url, **limits) as door:
            assert (await door.call(CHAT, chat())).status == 504
            assert "no byte for 0.4 s" in door.lines[0]["cause"]
            sock, loop = await door.thirsty()
            await loop.sock_sendall(sock, request(CHAT, chat(), X_Flood="1"))
            await door.until(lambda: len(door.lines) == 2)
            assert door.lines[1]["outcome"] == "client_gone_streaming"
            assert door.lines[1]["cause"] == "the client read nothing for too long in the answer"
            sock.close()

    asyncio.run(scenario())


def test_a_body_whose_client_leaves_is_a_line_too() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            wire = await door.wire()
            wire.raw(b"POST %b HTTP/1.1\r\nHost: d\r\nContent-Length: 99\r\n\r\n{" % CHAT.encode())
            await door.until(lambda: door.app._listeners[0]._unfinished)
            wire.leave()
            await door.until(lambda: door.outcomes == ["request_timeout"])
            assert "after 1 bytes of its body" in door.lines[0]["cause"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("header", "peer", "said"),
    [
        ("1.2.3.4", "10.0.0.1", "1.2.3.4"),
        ("1.2.3.4", "8.8.8.8", None),
        (None, "10.0.0.1", None),
        ("9.9.9.9, 1.2.3.4, 10.0.0.7", "10.0.0.1", "1.2.3.4"),
        ("10.0.0.9", "10.0.0.1", "10.0.0.9"),
        ("\x1b[31m", "10.0.0.1", "\\x1b[31m"),
    ],
)
def test_a_forwarded_address_is_believed_of_trusted_proxies_only(
    header: str | None, peer: str, said: str | None
) -> None:
    assert spoken_for(header, peer, (ip_network("10.0.0.0/8"),)) == said


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("for=1.2.3.4", "1.2.3.4"),
        ('For="[2001:db8::1]:4711";proto=https, for=10.0.0.7', "2001:db8::1"),
        ("for=1.2.3.4:80;by=10.0.0.1", "1.2.3.4"),
        ("by=1.2.3.4;proto=http", None),
        ("for=_hidden", "_hidden"),
        (None, None),
    ],
)
def test_the_standard_header_says_the_same(header: str | None, said: str | None) -> None:
    trusted = (ip_network("10.0.0.0/8"),)
    assert spoken_for(forwarded_for(header), "10.0.0.1", trusted) == said


@pytest.mark.parametrize(
    ("tail", "tokens"),
    [
        (b'{"usage":{"prompt_tokens":5,"completion_tokens":7}}', (5, 7)),
        (b'data: {"usage":{"prompt_tokens": 5, "completion_tokens": 7}}\n\ndata: [DONE]', (5, 7)),
        (b'{"usage":{"input_tokens":5,"output_tokens":1}} {"output_tokens":9}', (5, 9)),
        (b'{"prompt_tokens_details":{"cached_tokens":3}}', (None, None)),
        (b"", (None, None)),
    ],
)
def test_tokens_are_read_from_the_end_of_an_answer(
    tail: bytes, tokens: tuple[int | None, int | None]
) -> None:
    assert tokens_of(tail) == tokens
