"""Engines that do not fit together on one GPU, behind a whole front door: they take turns."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from naps import CHAT, WORDS, House, chat_with, house, text_of

MODELS = ("text", "code", "ocr", "draft")
EACH = {"gpu": {"devices": [0], "utilization": 0.38, "weights_gib": 20}}
TABLES: dict[str, Any] = dict.fromkeys(MODELS, EACH)
POOL = "[gpu]\nmemory_gib = 80\nstay_factor = 1\nmax_turn_wait_s = 1.0\n"


class Gpu:
    """Watches how many engines are truly on the GPU, at every turn of the loop."""

    def __init__(self, door: House) -> None:
        self.door = door
        self.most = 0
        self.switches: Counter[str] = Counter()
        self._before: set[str] = set()
        self._task = asyncio.create_task(self._watch())  # noqa: TID251 - ended below

    async def _watch(self) -> None:
        while True:
            engines = self.door.engines
            there = {key for key in MODELS if not engines[key]._engine.memory.asleep}
            self.switches.update(there - self._before)
            self._before = there
            self.most = max(self.most, len(there))
            await asyncio.sleep(0)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def crowd(door: House, rng: random.Random, requests: int, within_s: float) -> list[Any]:
    """Ask all models at random moments, streams and plain; return the answers."""

    async def one(model: str, at_s: float) -> Any:
        await asyncio.sleep(at_s)
        hold_s = rng.choice((0, 0.02, 0.1))
        reply = await door.ask(model, stream=rng.random() < 0.5, hold_s=hold_s)
        return model, reply

    moments = sorted(rng.uniform(0, within_s) for _ in range(requests))
    return await asyncio.gather(*(one(rng.choice(MODELS), at_s) for at_s in moments))


async def four_models_with_room_for_two(requests: int, within_s: float, seed: int) -> Counter[str]:
    async with house(
        *MODELS, tables=TABLES, pool=POOL, hold_sleeping_s=60, hold_offloaded_s=60
    ) as door:
        await door.put_to_sleep(1)
        gpu = Gpu(door)
        for model, reply in await crowd(door, random.Random(seed), requests, within_s):
            assert (model, reply.status, text_of(reply)) == (model, 200, WORDS)
        await gpu.close()
        assert gpu.most == 2, "room was made, and used"
        return gpu.switches


def test_four_models_with_room_for_two_are_all_served_and_never_three_are_there() -> None:
    """The laws at the end of the scene: no sleep with anyone inside, no overlap, no garbage."""
    switches = asyncio.run(four_models_with_room_for_two(60, 3.0, seed=1))
    assert set(switches) == set(MODELS)
    assert switches.total() < 60, "they stay for their time: fewer switches than requests"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_minute_of_mixed_load_on_four_models(seed: int) -> None:
    switches = asyncio.run(four_models_with_room_for_two(1200, 60.0, seed=seed))
    assert set(switches) == set(MODELS)


async def both_busy(door: House) -> None:
    await door.until(lambda: all(door.seen(key)["in_flight"] == 1 for key in ("text", "code")))


def test_a_stream_is_never_cut_to_make_room() -> None:
    async def scenario() -> None:
        async with house(*MODELS, tables=TABLES, pool=POOL, hold_sleeping_s=60) as door:
            await door.put_to_sleep(1)
            streams = [
                asyncio.ensure_future(door.ask(model, stream=True, tokens=40, gap_ms=30))
                for model in ("text", "code")
            ]
            await both_busy(door)
            third = await door.ask("ocr")
            assert third.status == 200
            for stream in streams:
                reply = await stream
                assert reply.status == 200
                assert text_of(reply).split()[-1] == "w39"

    asyncio.run(scenario())


def test_a_pinned_engine_stays_and_the_other_goes() -> None:
    async def scenario() -> None:
        tables = TABLES | {"text": EACH | {"sleep": {"pinned": True}}}
        async with house(*MODELS, tables=tables, pool=POOL, hold_sleeping_s=60) as door:
            await door.put_to_sleep(1)
            for model in ("text", "code", "ocr"):
                assert (await door.ask(model)).status == 200
            assert door.depth("text") == 0
            assert door.depth("code") == 1

    asyncio.run(scenario())


def test_who_waits_for_room_is_told_for_what() -> None:
    async def scenario() -> None:
        async with house(*MODELS, tables=TABLES, pool=POOL, hold_sleeping_s=0.3) as door:
            await door.put_to_sleep(1)
            slow = []
            for model in ("text", "code"):
                await door.admin(f"/admin/wake/{model}", "POST")
                await door.settled("awake", model)
                slow.append(await door.begin(CHAT, chat_with(model, hold_s=600)))
            await both_busy(door)
            waits = asyncio.ensure_future(door.ask("ocr"))
            await door.until(lambda: door.upstream("ocr").keeper.gate.waits_for is not None)
            assert (await door.status("ocr"))["waits_for"] in (
                "room made by code",
                "room made by text",
                "room on GPU 0",
            )
            reply = await waits
            assert reply.status == 503
            assert "waits for room" in reply.json["detail"]
            await both_busy(door)
            for wire in slow:
                wire.leave()

    asyncio.run(scenario())
