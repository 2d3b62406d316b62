"""`/v1` and `/llm` before one gate: one cap, one line, one order, two renderings."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from doorway import CHAT, Doorway, doorway
from llm import COUNT_TOKENS, MESSAGES, ask, document, events, raw_engine
from wire import Reply, Wire, chat


@pytest.mark.parametrize("stream", [False, True])
def test_twenty_and_twenty_at_once_never_exceed_the_cap_they_share(
    tmp_path: Path, stream: bool
) -> None:
    """The engine's own log is the witness; both renderings carry one decision."""
    log = tmp_path / "engine.log"

    async def scenario() -> None:
        async with doorway({"hold": 0.6, "log": str(log)}, cap=6, queue=8) as door:
            calls = [
                call
                for _ in range(20)
                for call in (
                    door.call(CHAT, chat(stream=stream)),
                    door.call(MESSAGES, ask(stream=stream)),
                )
            ]
            replies = await asyncio.gather(*calls)
            openai, anthropic = replies[::2], replies[1::2]
            assert Counter(reply.status for reply in replies) == {
                200: 14,
                503: sum(reply.status != 200 for reply in openai),
                529: sum(reply.status != 200 for reply in anthropic),
            }
            served = [sum(reply.status == 200 for reply in half) for half in (openai, anthropic)]
            assert min(served) >= 4, "neither surface is preferred"
            for reply in openai:
                if reply.status != 200:
                    hold_to_the_problem(reply)
            for reply in anthropic:
                if reply.status != 200:
                    hold_to_the_overload(reply)
            assert door.stats()["max_concurrent"] == 6
            assert Counter(door.outcomes) == {"served": 14, "queue_full": 26}
            surfaces = Counter((line["surface"], line["outcome"]) for line in door.lines)
            assert surfaces["anthropic", "served"] == served[1]

    asyncio.run(scenario())
    lines = [
        dict(pair.split("=") for pair in line.split()) for line in log.read_text().splitlines()
    ]
    assert max(int(line["in_flight"]) for line in lines) == 6
    assert {int(line["max_concurrent"]) for line in lines} <= set(range(7))


def hold_to_the_problem(reply: Reply) -> None:
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json["error"]["code"] == "queue_full"
    assert 1 <= int(reply.headers["retry-after"]) <= 59


def hold_to_the_overload(reply: Reply) -> None:
    assert reply.headers["content-type"] == "application/json"
    assert set(reply.json) == {"type", "error", "request_id"}
    assert reply.json["type"] == "error"
    assert reply.json["error"]["type"] == "overloaded_error"
    assert set(reply.json["error"]) == {"type", "message"}
    assert reply.json["request_id"] == reply.headers["request-id"]
    assert reply.headers["request-id"] == f"req_{reply.headers['x-request-id']}"
    assert 1 <= int(reply.headers["retry-after"]) <= 59
    assert 1 <= int(reply.headers["retry-after-ms"]) <= 59_000
    assert reply.headers["x-should-retry"] == "true"


def test_arrivals_that_alternate_are_served_in_the_order_they_came() -> None:
    """Whatever the dialect, streamed or not: the line has one end."""

    async def scenario() -> None:
        async with doorway({"hold": 0.02}, cap=2, queue=38) as door:
            wires: list[Wire] = []
            for number in range(40):
                stream = number % 4 > 1
                path, body = (MESSAGES, ask) if number % 2 else (CHAT, chat)
                wires.append(await door.begin(path, body(stream=stream)))
                await door.until(
                    lambda n=number: len(door.app.door.under_way) + len(door.lines) > n
                )  # type: ignore[misc]
            ids = []
            for wire in wires:
                reply = await wire.reply()
                assert reply.status == 200
                ids.append(reply.headers["x-request-id"])
            assert door.stats()["order"] == ids
            assert door.stats()["max_concurrent"] == 2
            surfaces = [line["surface"] for line in sorted(door.lines, key=lambda li: li["time"])]
            assert Counter(surfaces) == {"openai": 20, "anthropic": 20}

    asyncio.run(scenario())


@pytest.mark.parametrize(("status", "kind"), [(529, "overloaded_error"), (503, "api_error")])
@pytest.mark.parametrize("how", ["queue_full", "queue_timeout"])
def test_overload_has_the_status_that_the_configuration_says(
    status: int, kind: str, how: str
) -> None:
    async def scenario() -> None:
        surfaces = f"anthropic_overloaded_status = {status}"
        queue, timeout_s = (0, 30.0) if how == "queue_full" else (1, 0.2)
        async with doorway(
            {"hold": 60}, cap=1, queue=queue, queue_timeout_s=timeout_s, surfaces=surfaces
        ) as door:
            holder = await door.begin(CHAT, chat())
            await door.inside(1)
            reply = await door.call(MESSAGES, ask(stream=True))
            assert (reply.status, reply.json["error"]["type"]) == (status, kind)
            assert 1 <= int(reply.headers["retry-after"]) <= 59
            assert door.outcomes == [how]
            holder.leave()

    asyncio.run(scenario())


async def refused_body(door: Doorway, body: dict[str, Any]) -> Reply:
    reply = await door.call(MESSAGES, body)
    assert reply.json["type"] == "error"
    return reply


def test_what_can_be_told_wrong_is_refused_before_the_gate_is_asked() -> None:
    """No place in the queue, no call to the engine, and the path to what is wrong."""

    async def scenario() -> None:
        async with doorway(cap=1, queue=0) as door:
            holder = await door.begin(CHAT, chat(hold_s=60))
            await door.inside(1)
            wrong: dict[str, Any] = {"type": "smell"}
            for change, path in (
                ({"messages": [{"role": "user", "content": [wrong]}]}, "messages.0.content.0"),
                ({"messages": [{"role": "ghost", "content": "x"}]}, "messages.0.role"),
                ({"max_tokens": -1}, "max_tokens"),
                ({"mcp_servers": [{}]}, "mcp_servers"),
                ({"tools": [{"type": "teleport_20990101", "name": "t"}]}, "tools.0"),
            ):
                reply = await refused_body(door, ask() | change)
                assert reply.status == 400
                assert reply.json["error"]["message"].startswith(f"{path}")
            assert (await refused_body(door, ask("nobody"))).status == 404
            assert (await refused_body(door, ask())).status == 529, "a right one is in the line"
            assert door.stats()["started"] == 1
            holder.leave()

    asyncio.run(scenario())


def test_counting_takes_no_slot_and_no_place() -> None:
    """Claude Code counts 14 times at once; engines count beside their sequences."""

    async def scenario() -> None:
        async with doorway({"hold": 60}, cap=1, queue=0) as door:
            holder = await door.begin(CHAT, chat())
            await door.inside(1)
            body = ask()
            del body["max_tokens"]
            path = f"{COUNT_TOKENS}?beta=true"
            replies = await asyncio.gather(*(door.call(path, body) for _ in range(14)))
            assert {reply.status for reply in replies} == {200}
            assert {reply.json["input_tokens"] for reply in replies} == {2}
            assert door.gate.in_flight == 1, "the holder is in its slot all the time"
            holder.leave()

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", ["404 Not Found", "503 Service Unavailable", "500 Oh No"])
def test_a_count_that_the_engine_cannot_give_is_an_error_and_never_a_guess(fault: str) -> None:
    """C4: clients estimate for themselves when they are told so."""

    async def say(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(document({"detail": "Not Found"}, fault))

    async def scenario() -> None:
        async with raw_engine(say) as engine, doorway(url=engine.url) as door:
            body = ask()
            del body["max_tokens"]
            reply = await door.call(COUNT_TOKENS, body)
            assert reply.status == int(fault[:3])
            assert "input_tokens" not in reply.json
            assert reply.json["type"] == "error"

    asyncio.run(scenario())


def test_the_line_is_silent_until_a_slot_is_free_and_then_it_streams() -> None:
    """Nothing is committed while queued: a refusal keeps its status."""

    async def scenario() -> None:
        async with doorway({"tokens": 2}, cap=1, queue=1) as door:
            door.app.door.keep_alive_s = 0.02
            holder = await door.begin(CHAT, chat(hold_s=0.3))
            await door.inside(1)
            waiter = await door.begin(MESSAGES, ask(stream=True))
            await door.inside(1, 1)
            assert (await holder.reply()).status == 200
            reply = await waiter.reply()
            assert reply.status == 200
            assert int(reply.headers["x-frontdoor-wait-ms"]) >= 200
            assert reply.body.startswith(b"event: message_start")
            assert events(reply.body)[-1] == {"type": "message_stop"}

    asyncio.run(scenario())
