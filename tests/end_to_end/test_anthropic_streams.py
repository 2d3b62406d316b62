"""Streams on `/llm`: when all goes well, when nothing is said for long, when the engine fails."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from doorway import CHAT, Doorway, doorway
from llm import (
    MESSAGES,
    STREAM_HEAD,
    ask,
    chunk,
    document,
    events,
    framed,
    hold_to_the_grammar,
    hold_to_the_types,
    kinds,
    raw_engine,
)
from stopwatch import Stopwatch
from wire import Cut, Wire, chat

from tornado_frontdoor.proxy.downstream.client import Client

Say = Callable[[asyncio.StreamWriter], Awaitable[None]]
BEGUN = framed(chunk({"role": "assistant", "content": ""})) + framed(chunk({"content": "Once "}))
WHOLE = framed(chunk({"content": "all."}, "stop")) + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def then(*pieces: bytes) -> Say:
    """Begin an answer, say `pieces`, and nothing more."""

    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + BEGUN + b"".join(pieces))

    return say


async def reset(writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD + BEGUN)
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.transport.abort()


async def close(writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD + BEGUN)
    writer.close()


ERROR = framed(b'data: {"error":{"message":"out of memory","code":500}}\n\n')
BUSY = framed(b'data: {"error":{"message":"too busy","code":503}}\n\n')
DONE = framed(b"data: [DONE]\n\n")
DEATHS: dict[str, tuple[Say, str]] = {
    "reset": (reset, "api_error"),
    "closed without the end of the body": (close, "api_error"),
    "a polite end before the answer's": (then(b"0\r\n\r\n"), "api_error"),
    "an end mark before the answer's end": (then(DONE, b"0\r\n\r\n"), "api_error"),
    "silence": (then(), "timeout_error"),
    "half a frame and silence": (then(framed(b'data: {"choi')), "timeout_error"),
    "broken JSON": (then(framed(b'data: {"choices":[{]\n\n')), "api_error"),
    "no JSON object": (then(framed(b"data: 7\n\n")), "api_error"),
    "no UTF-8": (then(framed(b'data: {"choices": "\xff\xfe"}\n\n')), "api_error"),
    "a chunk without a size": (then(b"zz\r\nwhat\r\n"), "api_error"),
    "an error in band": (then(ERROR, DONE, b"0\r\n\r\n"), "api_error"),
    "overload in band": (then(BUSY, DONE, b"0\r\n\r\n"), "overloaded_error"),
    "given up": (then(framed(chunk({}, "abort")), DONE, b"0\r\n\r\n"), "api_error"),
}


async def until_the_error(wire: Wire) -> bytes:
    """Read a stream up to its error event."""
    told = b""
    while b"event: error" not in told:
        told += await wire.chunk()
    return told


@pytest.mark.parametrize("death", DEATHS)
def test_an_engine_that_fails_mid_stream_is_told_and_its_slot_is_free_by_then(death: str) -> None:
    """S16, S34, S37: an error event, then a cut, and the same request again is served.

    Claude Code sends it again as soon as it reads the event, when the slot may still cool: it waits
    until the engine has let go of the first one, or for `cooling_limit_s`.
    """
    fail, kind = DEATHS[death]

    async def say(writer: asyncio.StreamWriter, body: bytes) -> None:
        if b"again" in body:
            writer.write(document({"choices": [{"message": {"content": "there"}}]}))
        else:
            await fail(writer)

    async def scenario() -> None:
        async with (
            raw_engine(say) as engine,
            doorway(url=engine.url, cap=1, queue=1, chunk_timeout_s=0.3) as door,
        ):
            wire = await door.begin(MESSAGES, ask(stream=True))
            second = await door.wire()
            assert (await wire.head())[0] == 200
            told = await until_the_error(wire)
            again = ask() | {"messages": [{"role": "user", "content": "again"}]}
            second.send(MESSAGES, again)
            with pytest.raises(Cut):
                await wire.chunk()
            assert (await second.reply()).json["content"] == [{"type": "text", "text": "there"}]
            assert kinds(told) == [
                "message_start",
                "content_block_start",
                "content_block_delta",
                "error",
            ]
            error = events(told)[-1]
            assert error["error"]["type"] == kind
            assert error["error"]["message"]
            assert error["request_id"].startswith("req_")
            assert door.outcomes[0] == (
                "upstream_timeout" if kind == "timeout_error" else "upstream_error"
            )

    asyncio.run(scenario())


@pytest.mark.parametrize("death", ["reset", "silence", "broken JSON", "an error in band"])
def test_at_the_instant_the_error_is_written_nothing_is_in_flight(
    death: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits may be let in before the news is out; never the other way round."""
    seen: list[int] = []

    async def scenario() -> None:
        async def say(writer: asyncio.StreamWriter, _: bytes) -> None:
            await DEATHS[death][0](writer)

        async with (
            raw_engine(say) as engine,
            doorway(url=engine.url, cap=1, queue=0, chunk_timeout_s=0.3) as door,
        ):
            write = Client.abort_after

            def look(client: Client, last: bytes) -> None:
                seen.append(door.gate.in_flight)
                write(client, last)

            monkeypatch.setattr(Client, "abort_after", look)
            wire = await door.begin(MESSAGES, ask(stream=True))
            await wire.head()
            await until_the_error(wire)

    asyncio.run(scenario())
    assert seen == [0]


# Whole ones


def test_a_stream_is_whole_and_ends_when_the_message_does() -> None:
    """S31: the body is closed with `message_stop`, although the engine keeps its own open."""

    async def say(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(STREAM_HEAD + BEGUN + WHOLE.removesuffix(b"0\r\n\r\n"))

    async def scenario() -> None:
        async with (
            raw_engine(say) as engine,
            doorway(url=engine.url, cap=1, queue=0, chunk_timeout_s=0.6) as door,
        ):
            reply = await door.call(MESSAGES, ask(stream=True) | {"metadata": {"user_id": "x"}})
            assert reply.took_s < 0.5
            hold_to_the_grammar(reply.body)
            assert reply.body.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
            assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert reply.headers["cache-control"] == "no-cache"
            assert reply.headers["x-accel-buffering"] == "no"
            assert reply.headers["x-frontdoor-upstream"] == "reasoning"
            assert reply.headers["x-frontdoor-ignored"] == "metadata"
            assert reply.headers["request-id"] == f"req_{reply.headers['x-request-id']}"
            assert "content-length" not in reply.headers
            await door.inside(0)
            assert door.outcomes == ["served"]

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_pieces_of_any_size_make_the_same_message(size: int) -> None:
    """S22, S28: also cut within a character."""
    frames = chunk({"reasoning": "hm 渐"}) + chunk({"content": "渐🙂é"}) + chunk({}, "stop")
    frames += b"data: [DONE]\n\n"
    pieces = [frames[at : at + size] for at in range(0, len(frames), size)]

    async def say(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(STREAM_HEAD)
        for piece in pieces:
            writer.write(framed(piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async def scenario() -> None:
        async with raw_engine(say) as engine, doorway(url=engine.url) as door:
            body = (await door.call(MESSAGES, ask(stream=True))).body
            hold_to_the_grammar(body)
            deltas = [event.get("delta", {}) for event in events(body)]
            assert "".join(delta.get("thinking", "") for delta in deltas) == "hm 渐"
            assert "".join(delta.get("text", "") for delta in deltas) == "渐🙂é"

    asyncio.run(scenario())


def test_one_connection_serves_streams_and_messages_one_after_another() -> None:
    async def scenario() -> None:
        async with doorway(cap=1, queue=0) as door:
            wire = await door.wire()
            for stream in (True, False, True, False):
                wire.send(MESSAGES, ask(stream=stream, text="so it is", reasoning="hm"))
                reply = await wire.reply()
                assert reply.status == 200
                if stream:
                    hold_to_the_grammar(reply.body)
                else:
                    hold_to_the_types(reply.json)

    asyncio.run(scenario())


def test_a_request_for_a_stream_that_fails_at_once_has_a_status_of_its_own() -> None:
    """Clients try again by themselves only as long as no 200 was sent."""

    async def scenario() -> None:
        async with doorway(cap=1, queue=0) as door:
            for status in (400, 429, 500, 503):
                reply = await door.call(MESSAGES, ask(stream=True, status=status, error="no"))
                assert reply.status == status
                assert reply.json["error"]["message"] == "no"

    asyncio.run(scenario())


# Silence


def test_a_long_prefill_is_bridged_by_comments_and_pauses_by_pings() -> None:
    """S27, S33: nothing that a client could take for a part of the message, no empty data."""

    async def scenario() -> None:
        async with doorway({"hold": 0.4, "tokens": 2, "gap_ms": 400}, cap=1, queue=1) as door:
            door.app.door.keep_alive_s = 0.05
            reply = await door.call(MESSAGES, ask(stream=True))
            before, started, after = reply.body.partition(b"event: message_start")
            assert started
            assert before.count(b": keep-alive\n\n") >= 3
            assert before.replace(b": keep-alive\n\n", b"") == b""
            assert after.count(b'event: ping\ndata: {"type":"ping"}\n\n') >= 3
            assert b"keep-alive" not in after
            hold_to_the_grammar(started + after)

    asyncio.run(scenario())


def test_an_engine_that_speaks_often_gets_no_pings_between() -> None:
    async def scenario() -> None:
        async with doorway({"tokens": 40, "gap_ms": 10}, cap=1, queue=1) as door:
            door.app.door.keep_alive_s = 0.2
            reply = await door.call(MESSAGES, ask(stream=True))
            assert "ping" not in kinds(reply.body)

    asyncio.run(scenario())


def test_documents_and_the_other_dialect_are_left_alone_while_they_wait() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 0.3, "tokens": 2}, cap=3, queue=1) as door:
            door.app.door.keep_alive_s = 0.05
            plain, streamed, document = await asyncio.gather(
                door.call(MESSAGES, ask()),
                door.call(CHAT, chat(stream=True)),
                door.call(CHAT, chat()),
            )
            hold_to_the_types(plain.json)
            assert document.json["choices"]
            assert streamed.body.startswith(b"data: {")
            assert b"ping" not in streamed.body

    asyncio.run(scenario())


def test_who_gives_up_on_a_long_prefill_frees_the_slot_and_ends_the_call() -> None:
    """S33: the abandoned copy is cancelled, so the next one does not wait behind it."""

    async def scenario() -> None:
        async with doorway({"hold": 60}, cap=1, queue=0) as door:
            door.app.door.keep_alive_s = 0.05
            wire = await door.begin(MESSAGES, ask(stream=True))
            await wire.head()
            assert await wire.chunk() == b": keep-alive\n\n"
            wire.leave()
            watch = Stopwatch()
            await door.until(lambda: door.stats()["aborted"] == 1 and door.gate.in_flight == 0)
            assert watch.own_s < 0.2
            assert door.outcomes == ["client_gone_streaming"]

    asyncio.run(scenario())


def test_a_dead_stream_ends_at_the_idle_limit_although_pings_go_out() -> None:
    """S34: our own signs of life must not be taken for the engine's."""

    async def scenario() -> None:
        async with doorway({"tokens": 9}, cap=1, queue=0, chunk_timeout_s=0.4) as door:
            door.app.door.keep_alive_s = 0.05
            asked = ask(stream=True, break_after=1, break_how="stall")
            wire = await door.begin(MESSAGES, asked)
            await wire.head()
            watch = Stopwatch()
            told = await until_the_error(wire)
            assert watch.wall_s > 0.2
            assert watch.own_s < 3
            assert "ping" in kinds(told)
            assert events(told)[-1]["error"]["type"] == "timeout_error"
            with pytest.raises(Cut):
                await wire.chunk()

    asyncio.run(scenario())


def test_draining_cuts_what_is_left_with_an_error_event() -> None:
    async def scenario(door: Doorway) -> None:
        wire = await door.begin(MESSAGES, ask(stream=True))
        await wire.head()
        assert b"message_start" in await wire.chunk()
        drained = asyncio.ensure_future(door.app.drain())
        told = await until_the_error(wire)
        assert json.loads(told.rpartition(b"data: ")[2])["error"]["type"] == "api_error"
        with pytest.raises(Cut):
            await wire.chunk()
        await drained
        assert door.outcomes == ["draining"]

    async def run() -> None:
        async with doorway({"tokens": 1000, "gap_ms": 20}, drain_timeout_s=0.3) as door:
            await scenario(door)

    asyncio.run(run())
