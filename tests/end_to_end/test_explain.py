"""`GET /admin/explain/X` says why an engine is as it is, what would happen, and what keeps it."""

import asyncio
from typing import Any

from naps import House, house
from test_room import MODELS, POOL, TABLES, both_busy


async def explained(door: House, name: str = "text") -> dict[str, Any]:
    reply = await door.admin(f"/admin/explain/{name}")
    assert reply.status == 200, reply.body
    told: dict[str, Any] = reply.json
    return told


def test_an_awake_engine_serves_at_once_and_an_idle_one_says_why_it_sleeps() -> None:
    async def scenario() -> None:
        async with house(idle_sleep_s=0.2) as door:
            awake = await explained(door)
            assert (awake["state"], awake["blocked_by"]) == ("awake", None)
            assert awake["a_request_now"] == "would be sent to the engine at once"
            await door.settled("sleeping")
            asleep = await explained(door, "text-large")
            assert asleep["upstream"] == "text"
            assert "as nobody asked for it" in asleep["history"][-1]["text"]
            assert asleep["a_request_now"] == "would wake it, at place 1 of its queue"
            metrics = (await door.admin("/metrics")).body.decode()
            assert 'frontdoor_sleeps_total{level="1",reason="idle",upstream="text"} 1.0' in metrics

    asyncio.run(scenario())


def test_one_that_an_operator_put_to_sleep_says_so() -> None:
    async def scenario() -> None:
        async with house() as door:
            await door.put_to_sleep(2)
            assert "as an operator wanted it" in (await explained(door))["history"][-1]["text"]

    asyncio.run(scenario())


def test_one_that_waits_for_room_says_for_whose_and_the_other_for_whom_it_went() -> None:
    async def scenario() -> None:
        async with house(*MODELS, tables=TABLES, pool=POOL, hold_sleeping_s=60) as door:
            await door.put_to_sleep(1)
            busy = [
                asyncio.ensure_future(door.ask(model, stream=True, tokens=30, gap_ms=50))
                for model in ("text", "code")
            ]
            await both_busy(door)
            third = asyncio.ensure_future(door.ask("ocr"))
            await door.until(lambda: door.upstream("ocr").keeper.gate.waits_for is not None)
            told = await explained(door, "ocr")
            assert told["blocked_by"].startswith("it waits for ")
            assert told["queued"] == 1
            await asyncio.gather(third, *busy)
            metrics = (await door.admin("/metrics")).body.decode()
            gone = [key for key in ("text", "code") if door.depth(key)]
            for key in gone:
                assert f'frontdoor_evictions_total{{for="ocr",upstream="{key}"}} 1.0' in metrics
                history = (await explained(door, key))["history"]
                assert any("to make room for ocr" in one["text"] for one in history)
            assert len(gone) == 1

    asyncio.run(scenario())


def test_a_name_that_nobody_has_is_not_found() -> None:
    async def scenario() -> None:
        async with house() as door:
            assert (await door.admin("/admin/explain/nobody")).status == 404

    asyncio.run(scenario())


def test_an_order_that_a_higher_one_outdoes_is_said_to_be_overruled() -> None:
    always = ["asleep daily 00:00-24:00"]

    async def scenario() -> None:
        async with house(schedule=always, time_zone="UTC") as door:
            assert (await door.admin("/admin/pin/text?by=alice", "POST")).status == 200
            pinned, asleep = (await explained(door))["held_by"]
            assert pinned == "it is pinned by operator (alice)"
            assert asleep.startswith("it is kept asleep by schedule")
            assert asleep.endswith(", overruled by operator")

    asyncio.run(scenario())
