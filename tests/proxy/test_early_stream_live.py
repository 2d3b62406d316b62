"""Who asks for it is told its place inside of its stream; errors after that are never an end."""

import asyncio
import json
from typing import Any

import anthropic
import openai
import pytest
from doorway import CHAT, Doorway, doorway
from wire import Cut, Wire, chat

from tornado_frontdoor.proxy import progress

MESSAGES = "/llm/v1/messages"
NOTE = b": Queue-Position=1 Queue-Eta-Ms="
FULL: dict[str, Any] = {"engine": {"hold": 60}, "cap": 1, "queue": 4}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell places ten times as often as in earnest."""
    for name in ("FIRST_S", "EVERY_S", "TICK_S"):
        monkeypatch.setattr(progress, name, getattr(progress, name) / 10)


def message(**more: object) -> dict[str, Any]:
    said = [{"role": "user", "content": "hi"}]
    return {"model": "reasoning", "max_tokens": 9, "stream": True, "messages": said, **more}


async def cut_short(wire: Wire) -> tuple[int, bytes]:
    """Read an answer that must not end politely; return its status and what there is of it."""
    status, _ = await wire.head()
    body = b""
    try:
        while piece := await wire.chunk():
            body += piece
    except Cut as cut:
        return status, body + cut.body
    raise AssertionError(f"this ended politely: {body!r}")


async def taken(door: Doorway) -> Wire:
    """Take the only slot, until whoever has it leaves."""
    first = await door.begin(CHAT, chat())
    await door.inside(1)
    return first


async def told(door: Doorway) -> None:
    """Wait until one of those who wait has been told something."""
    await door.until(lambda: any(one._early for one in door.app.door.under_way))


def quick() -> dict[str, Any]:
    return chat(stream=True, hold_s=0)


def test_places_come_as_comments_and_then_the_stream_byte_for_byte() -> None:
    async def scenario() -> None:
        async with doorway(**FULL) as door:
            first = await taken(door)
            wire = await door.begin(CHAT + "?progress=sse", quick())
            await told(door)
            first.leave()
            reply = await wire.reply()
            assert reply.status == 200
            assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
            head, _, rest = reply.body.partition(b"data: ")
            assert head.startswith(NOTE)
            assert b"Engine-State=awake\n\n" in head
            assert rest.endswith(b"data: [DONE]\n\n")
            assert b": Queue" not in rest
            assert door.lines[1]["outcome"] == "served"
            plain = await door.call(CHAT, quick())
            assert events(plain.body) == events(reply.body)

    asyncio.run(scenario())


def events(body: bytes) -> list[object]:
    """Return what the events say, without what differs from answer to answer."""
    data = [line[6:] for line in body.decode().splitlines() if line.startswith("data: {")]
    return [[choice["delta"] for choice in json.loads(one)["choices"]] for one in data]


def test_anthropic_gets_pings_and_its_own_error_events() -> None:
    async def scenario() -> None:
        async with doorway(**FULL, model='progress = "sse"', queue_timeout_s=0.3) as door:
            first = await taken(door)
            wire = await door.begin(MESSAGES, message())
            status, body = await cut_short(wire)
            assert status == 200
            assert body.startswith(NOTE)
            assert b'event: ping\ndata: {"type":"ping"}\n\n' in body
            event, data = body.decode().strip().split("\n\n")[-1].split("\n")
            assert event == "event: error"
            assert json.loads(data[6:])["error"]["type"] == "overloaded_error"
            first.leave()
            line = next(line for line in door.lines if line["surface"] == "anthropic")
            assert (line["outcome"], line["status"]) == ("queue_timeout", 200)

    asyncio.run(scenario())


def test_a_refusal_after_the_200_is_an_error_event_and_a_cut() -> None:
    async def scenario() -> None:
        async with doorway(**FULL, queue_timeout_s=0.25) as door:
            first = await taken(door)
            wire = await door.begin(CHAT + "?progress=sse", chat(stream=True))
            status, body = await cut_short(wire)
            assert status == 200
            last = body.decode().strip().split("\n\n")[-1]
            told = json.loads(last.removeprefix("data: "))
            assert told["error"]["code"] == "queue_timeout"
            assert told["retry_after_s"] >= 1
            assert b"[DONE]" not in body
            first.leave()

    asyncio.run(scenario())


def test_before_the_first_note_and_without_asking_a_refusal_is_a_503() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 60}, cap=1, queue=0) as door:
            first = await taken(door)
            refused = await door.call(CHAT + "?progress=sse", quick())
            assert refused.status == 503
            first.leave()
        async with doorway(**FULL, server='progress = "off"', queue_timeout_s=0.3) as door:
            first = await taken(door)
            assert (await door.call(CHAT + "?progress=sse", quick())).status == 503
            first.leave()

    asyncio.run(scenario())


def engine_that(kit: Any, answer: bytes, go: asyncio.Event) -> Any:
    async def serve(reader: Any, writer: Any) -> None:
        while True:
            head, _ = await kit.read_request(reader)
            if head.startswith(b"GET"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                continue
            await go.wait()
            writer.write(answer)
            if b"Transfer-Encoding" in answer:
                writer.close()
                return

    return kit.engine(serve)


BROKEN = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'1b\r\ndata: {"choices": [{"a":1}]}\r\n'
)


def whole(status: str, body: bytes, *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *more]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode() + body


@pytest.mark.parametrize(
    ("answer", "outcome", "words", "polite"),
    [
        (whole("400 Bad", b'{"error":{"message":"too big"}}'), "served", "too big", True),
        (whole("500 No", b"oops"), "upstream_error", "oops", False),
        (whole("200 OK", b"{}"), "upstream_error", "without one", False),
        (whole("302 Go", b"", "Location: /x"), "upstream_error", "redirect", False),
        (BROKEN, "upstream_error", "broke off", False),
        (b"garbage\r\n\r\n", "upstream_error", "broke off", False),
    ],
    ids=["refused", "failed", "no stream", "redirect", "broken", "garbage"],
)
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_whatever_the_engine_does_after_the_200_never_looks_complete(
    kit: Any, answer: bytes, outcome: str, words: str, polite: bool, path: str
) -> None:
    async def scenario() -> None:
        go = asyncio.Event()
        async with engine_that(kit, answer, go) as engine, doorway(url=engine.url) as door:
            body = chat(stream=True) if path == CHAT else message()
            wire = await door.begin(path, body, X_Frontdoor_Progress="sse")
            await told(door)
            go.set()
            said = (await wire.reply()).body if polite else (await cut_short(wire))[1]
            assert said.startswith(b": Queue-Position=0 "), "the engine has it"
            assert b"error" in said
            assert b"[DONE]" not in said
            assert b"message_stop" not in said
            (line,) = door.lines
            assert (line["outcome"], line["status"]) == (outcome, 200)
            assert line["cause"]
            if path == CHAT:
                assert words in said.decode()

    asyncio.run(scenario())


def with_openai(url: str) -> str:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
    stream = client.chat.completions.create(
        model="reasoning",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        extra_query={"progress": "sse"},
        extra_body={"stand_in": {"hold_s": 0}},
    )
    told = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    client.close()
    return told


def with_anthropic(url: str) -> str:
    client = anthropic.Anthropic(base_url=f"{url}/llm", api_key="x", max_retries=0)
    with client.messages.stream(
        model="reasoning",
        max_tokens=9,
        messages=[{"role": "user", "content": "hi"}],
        extra_headers={"X-Frontdoor-Progress": "sse"},
    ) as stream:
        told = "".join(stream.text_stream)
    client.close()
    return told


@pytest.mark.parametrize("ask", [with_openai, with_anthropic])
def test_the_sdks_pass_over_notes_and_raise_what_comes_after_them(ask: Any) -> None:
    async def scenario() -> None:
        full = {**FULL, "engine": {"hold": 0.3}}
        async with doorway(**full) as door:
            first = await door.begin(CHAT, chat(hold_s=60))
            await door.inside(1)
            asked = asyncio.to_thread(ask, f"http://127.0.0.1:{door.port}")
            task = asyncio.ensure_future(asked)
            await told(door)
            first.leave()
            assert "w0" in await task
            assert door.lines[-1]["place"] == 1
        async with doorway(**FULL, queue_timeout_s=0.25) as door:
            first = await taken(door)
            with pytest.raises((openai.APIError, anthropic.APIError), match="slot"):
                await asyncio.to_thread(ask, f"http://127.0.0.1:{door.port}")
            first.leave()

    asyncio.run(scenario())


def test_who_leaves_after_a_note_is_out_of_the_queue() -> None:
    async def scenario() -> None:
        async with doorway(**FULL) as door:
            first = await taken(door)
            wire = await door.begin(CHAT + "?progress=sse", quick())
            await wire.head()
            wire.leave()
            await door.until(lambda: "client_gone_queued" in door.outcomes)
            assert door.gate.queued == 0
            first.leave()

    asyncio.run(scenario())
