"""Wake on request as callers see it, row by row of the plan's matrix, on four releases of vLLM.

Restarts (rows 8, 12 and 15) are in test_wake_restarts.py and test_wake_kills.py.
"""

import asyncio
import json

import pytest
from naps import (
    CHAT,
    EMBEDDINGS,
    WORDS,
    House,
    chat_with,
    every_release,
    first_and_last_release,
    house,
    last_release,
    text_of,
)

ALL = ("text", "ocr", "embed")
FORM = "multipart/form-data; boundary=xX"


def woken_from(version: str, level: int) -> list[str]:
    """Return the calls that wake an engine of a release from a level, in order."""
    reset = ["reset_prefix_cache"] if version == "0.16" else []
    if level == 1:
        return ["wake_up", *reset]
    if version == "0.16":  # it knows no partial wake; the door keeps everyone off meanwhile
        return ["wake_up", "reload_weights", *reset]
    return ["wake_up tags=weights", "reload_weights", "wake_up tags=kv_cache"]


@every_release
@pytest.mark.parametrize("level", [1, 2])
def test_01_a_chat_wakes_its_sleeping_engine_and_is_answered(version: str, level: int) -> None:
    """Row 1, V5, V16: 200 with sense after exactly the calls that are safe, level in the query."""

    async def scenario() -> None:
        async with house(version=version) as door:
            await door.put_to_sleep(level)
            before = len(door.calls())
            assert door.calls()[-1] == f"sleep level={level}"
            reply = await door.ask()
            assert (reply.status, text_of(reply)) == (200, WORDS)
            assert door.calls(since=before) == woken_from(version, level)
            assert int(reply.headers["x-frontdoor-wait-ms"]) > 0
            line = door.lines[-1]
            assert line["outcome"] == "served"
            assert 0 < line["held_s"] <= line["waited_s"] <= line["total_s"]
            # V1, V4: no request came before the last call of the wake had ended.
            assert (await door.status())["wakes_total"] == 1

    asyncio.run(scenario())


@last_release
def test_02_another_engine_wakes_on_its_own_and_both_serve(version: str) -> None:
    """Row 2: `/v1/embeddings` wakes the embedder while text streams; text is left alone."""

    async def scenario() -> None:
        async with house(*ALL, version=version) as door:
            await door.put_to_sleep(1)
            await door.ask()
            quiet = len(door.calls("text"))
            stream = await door.begin(CHAT, chat_with(stream=True, tokens=10_000, gap_ms=25))
            await door.until(lambda: door.seen()["in_flight"])
            reply = await door.call(EMBEDDINGS, {"model": "embed", "input": "hi"})
            assert reply.status == 200
            assert reply.json["data"][0]["embedding"]
            assert door.seen("text")["in_flight"] == 1
            assert text_of(await door.ask()) == WORDS
            stream.leave()
            assert len(door.calls("text")) == quiet
            assert door.state("ocr") == "sleeping"

    asyncio.run(scenario())


@last_release
@pytest.mark.parametrize("named", [True, False])
def test_03_a_picture_as_a_form_reaches_the_picture_model(version: str, named: bool) -> None:
    """Row 3: multipart goes on byte for byte, by its model field or by the default route."""

    async def scenario() -> None:
        async with house(*ALL, version=version) as door:
            await door.put_to_sleep(2, "ocr")
            wanted = b'--xX\r\nContent-Disposition: form-data; name="model"\r\n\r\nocr\r\n'
            picture = bytes(range(256)) * 100
            body = (
                (wanted if named else b"")
                + b'--xX\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n'
                + b"Content-Type: image/png\r\n\r\n"
                + picture
                + b"\r\n--xX--\r\n"
            )
            reply = await door.call(CHAT, body, Content_Type=FORM)
            # The engine's own word on forms (vLLM takes none here) passes through as it stands.
            assert reply.headers["x-frontdoor-upstream"] == "ocr"
            assert door.lines[-1]["bytes_in"] == len(body)
            assert door.calls("ocr")[-1] == woken_from(version, 2)[-1]
            assert reply.status == (await direct(door, "ocr", body)).status
            assert door.calls("text") == door.calls("embed") == []

    asyncio.run(scenario())


async def direct(door: House, key: str, body: bytes):  # type: ignore[no-untyped-def]
    """Ask an engine past the front door."""
    wire = await door.wire(door.engines[key].port)
    wire.send(CHAT, body, Content_Type=FORM)
    return await wire.reply()


@every_release
def test_04_idleness_puts_an_engine_to_sleep_then_deeper_and_each_wakes(version: str) -> None:
    """Row 4: level 1 after one tier, level 2 after the next, and a request wakes from both."""

    async def scenario() -> None:
        async with house(version=version, idle_sleep_s=0.15, idle_offload_s=0.5) as door:
            await door.settled("sleeping")
            assert door.depth() == 1
            assert text_of(await door.ask()) == WORDS
            await door.settled("sleeping")
            await door.settled("offloaded")
            assert door.depth() == 2  # not only by its own account: see the escalation's calls
            assert text_of(await door.ask()) == WORDS
            assert door.state() == "awake"

    asyncio.run(scenario())


@last_release
@pytest.mark.parametrize("level", [1, 2])
def test_05_the_first_chunk_of_a_stream_comes_right_after_the_wake(
    version: str, level: int
) -> None:
    """Row 5: nothing is buffered while the rest of the answer is still being made."""

    async def scenario() -> None:
        async with house(version=version) as door:
            await door.put_to_sleep(level)
            wire = await door.begin(CHAT, chat_with(stream=True, tokens=12, gap_ms=30))
            status, headers = await wire.head()
            assert (status, headers["content-type"].split(";")[0]) == (200, "text/event-stream")
            pieces = [await wire.chunk() for _ in range(2)]
            assert door.seen()["in_flight"] == 1  # most of it is yet to come
            assert b"data: " in pieces[0]
            while piece := await wire.chunk():
                pieces.append(piece)
            assert len(pieces) >= 12
            assert pieces[-1].endswith(b"data: [DONE]\n\n")

    asyncio.run(scenario())


def test_06_an_unknown_model_is_not_found_and_wakes_nobody() -> None:
    """Row 6."""

    async def scenario() -> None:
        async with house(*ALL) as door:
            await door.put_to_sleep(1)
            quiet = {key: len(door.seen(key)["control_calls"]) for key in ALL}
            for path in (CHAT, "/v1/completions", "/v1/responses"):
                reply = await door.call(path, {**chat_with("texts"), "prompt": "a", "input": "a"})
                assert reply.status == 404
                assert reply.json["error"]["code"] == "model_not_found"
            reply = await door.call("/v1/score", {"text_1": "a", "text_2": "b"})
            assert reply.status == 400  # only chats and completions have a default
            await door.at_rest()
            assert [door.state(key) for key in ALL] == ["sleeping"] * 3
            assert quiet == {key: len(door.seen(key)["control_calls"]) for key in ALL}

    asyncio.run(scenario())


PRIVATE = (
    *("/sleep", "/wake_up", "/collective_rpc", "/reset_prefix_cache", "/is_sleeping", "/pause"),
    *("/admin/status", "/admin/sleep/text", "/admin/wake/text", "/metrics", "/invocations"),
)
CROOKED = (
    *("/v1/../sleep", "/v1/%2e%2e/sleep", "/v1%2f..%2fsleep", "/v1/..%2fsleep", "//sleep"),
    *("/v1/./../sleep", "/sleep;x", "/sleep/", "/sleep?level=2", "/v1/chat/../../sleep"),
    *("/v1/../admin/sleep/text", "/v1%2f..%2fadmin%2fsleep%2ftext", "/%61dmin/sleep/text"),
    *("/v1/%252e%252e/sleep", "/v1/chat/completions/../../../sleep", "/SLEEP", "/v1\\..\\sleep"),
)


def test_07_and_14_what_steers_engines_is_not_on_the_public_port() -> None:
    """Rows 7 and 14, S19: 404 by any spelling, and the admin port is another one."""

    async def scenario() -> None:
        async with house(*ALL) as door:
            for path in (*PRIVATE, *CROOKED):
                for method in ("POST", "GET"):
                    reply = await door.call(path, {} if method == "POST" else None, method)
                    assert (reply.status, path) == (404, path)
            assert (await door.admin("/admin/status")).status == 200
            assert [door.state(key) for key in ALL] == ["awake"] * 3
            assert [door.calls(key) for key in ALL] == [[]] * 3

    asyncio.run(scenario())


@every_release
@pytest.mark.parametrize("level", [1, 2])
def test_09_ten_callers_at_once_cause_one_wake(version: str, level: int) -> None:
    """Row 9, S24, V1: single flight, all served, and the engine has seen nobody too early."""

    async def scenario() -> None:
        async with house(version=version) as door:
            await door.put_to_sleep(level)
            before = len(door.calls())
            replies = await asyncio.gather(*(door.ask() for _ in range(10)))
            assert [reply.status for reply in replies] == [200] * 10
            assert {text_of(reply) for reply in replies} == {WORDS}
            assert door.calls(since=before) == woken_from(version, level)
            status = await door.status()
            assert status["wakes_total"] == 1

    asyncio.run(scenario())


@first_and_last_release
def test_11_a_request_at_the_moment_of_falling_asleep_is_served(version: str) -> None:
    """Row 11: S1 too, as more requests and another idle cycle work afterwards."""

    async def scenario() -> None:
        engine = {"sleep_s": (0.15, 0.15)}
        async with house(version=version, engine=engine, idle_sleep_s=0.1) as door:
            for _ in range(2):
                await door.settled("falling_asleep")
                replies = await asyncio.gather(*(door.ask() for _ in range(5)))
                assert [text_of(reply) for reply in replies] == [WORDS] * 5
            await door.settled("sleeping")

    asyncio.run(scenario())


@last_release
def test_13_two_engines_wake_at_once_without_waiting_for_each_other(version: str) -> None:
    """Row 13: their wakes overlap in time, both callers are served."""

    async def scenario() -> None:
        engine = {"wake_s": (0.2, 0.2)}
        async with house("text", "embed", version=version, engine=engine) as door:
            await door.put_to_sleep(1)
            replies = await asyncio.gather(
                door.ask(), door.call(EMBEDDINGS, {"model": "embed", "input": "hi"})
            )
            assert [reply.status for reply in replies] == [200, 200]
            text, embed = (
                next(c for c in door.transitions(key) if c["call"] == "wake_up")
                for key in ("text", "embed")
            )
            assert max(text["at_s"], embed["at_s"]) < min(text["ended_s"], embed["ended_s"])

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        (CHAT, chat_with(None), "text"),
        ("/v1/completions", {"prompt": "a"}, "text"),
        ("/v1/responses", {"model": "text", "input": "a"}, "text"),
        (EMBEDDINGS, {"model": "text", "input": "a"}, "embed"),
        ("/v1/score", {"model": "text", "text_1": "a", "text_2": "b"}, "text"),
        ("/v1/rerank", {"model": "text", "query": "a", "documents": ["b"]}, "text"),
        (
            "/llm/v1/messages",
            {"model": "TEXT-a", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]},
            "text",
        ),
    ],
)
def test_every_route_wakes_what_it_needs(path: str, body: object, model: str) -> None:
    """S29: each either wakes or is answered without the engine's memory; none meets it asleep."""

    async def scenario() -> None:
        async with house(*ALL) as door:
            await door.put_to_sleep(1)
            reply = await door.call(path, body)
            assert reply.headers["x-frontdoor-upstream"] == model
            assert door.state(model) == "awake"
            assert sum(door.state(key) == "sleeping" for key in ALL) == 2

    asyncio.run(scenario())


@last_release
def test_counting_tokens_wakes_nobody(version: str) -> None:
    """S29: the engine's tokenizer is no part of what sleeps; asked asleep, it answers and lives."""

    async def scenario() -> None:
        async with house(version=version) as door:
            await door.put_to_sleep(2)
            calls = (
                ("/tokenize", {"model": "text", "prompt": "abc"}),
                ("/detokenize", {"model": "text", "tokens": [97]}),
                ("/llm/v1/messages/count_tokens", json.loads(MESSAGE)),
            )
            for path, body in calls:
                assert (await door.call(path, body)).status == 200
            assert door.state() == "offloaded"

    asyncio.run(scenario())


MESSAGE = '{"model": "text", "messages": [{"role": "user", "content": "abc"}]}'
