"""Engines that take more of their GPU than the settings say: that is learned, and all serve."""

import asyncio
from typing import Any

from naps import CHAT, House, chat_with, house
from test_explain import explained

from simulator.standin.shared_gpu import GpuPart, SharedGpu

MODELS = ("text", "code", "ocr")
EACH = {"gpu": {"devices": [0], "utilization": 0.38, "weights_gib": 20}}
TABLES: dict[str, Any] = dict.fromkeys(MODELS, EACH)
"""32 GiB each by the settings: two of them within the limit of 70.4."""
POOL = "[gpu]\nmemory_gib = 80\nstay_factor = 1\nmax_turn_wait_s = 1.0\n"


def parts(gpu: SharedGpu, awake_gib: float = 41.0, residual_gib: float = 3.0) -> dict[str, GpuPart]:
    """Return what each truly takes: so much that no two of them fit."""
    cache_gib = awake_gib - residual_gib - 25.0
    return {key: gpu.part(25.0, cache_gib, residual_gib) for key in MODELS}


async def counted(door: House) -> float:
    page = (await door.admin("/metrics")).body.decode()
    found = [
        line
        for line in page.splitlines()
        if line.startswith("frontdoor_out_of_memory_wakes_total{")
    ]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def test_a_wake_that_runs_out_of_memory_makes_more_room_and_is_tried_again_at_once() -> None:
    async def scenario() -> None:
        gpu = SharedGpu(80.0)
        async with house(
            "text", "code", tables=TABLES, pool=POOL, parts=parts(gpu), hold_sleeping_s=60
        ) as door:
            await door.put_to_sleep(1)
            assert (await door.ask("text")).status == 200
            assert (await door.ask("code")).status == 200, "after a second try"
            assert gpu.refusals == await counted(door) == 1
            assert door.depth("text") == 1, "one more went"
            told = await explained(door, "code")
            assert any("a GPU was full as it woke" in one["text"] for one in told["history"])
            assert told["takes_gib"]["awake"] > 33.6
            history = (await explained(door, "text"))["history"]
            assert any("to make room for code" in one["text"] for one in history)

    asyncio.run(scenario())


def test_what_was_learned_holds_for_later_wakes_and_is_kept_for_the_next_front_door() -> None:
    async def scenario() -> None:
        gpu = SharedGpu(80.0)
        async with house(
            *MODELS, tables=TABLES, pool=POOL, parts=parts(gpu), hold_sleeping_s=60
        ) as door:
            await door.put_to_sleep(1)
            for model in 3 * MODELS:
                assert (await door.ask(model)).status == 200
            assert 1 <= gpu.refusals <= len(MODELS), "each learns once"
            assert await counted(door) == gpu.refusals
            journal = door.app.pool._journal
            assert journal is not None
            kept = [journal.recall(door.upstream(key).settings.url).sizes_gib for key in MODELS]
            assert sum(bool(sizes) for sizes in kept) == gpu.refusals

    asyncio.run(scenario())


def test_one_that_can_have_no_more_is_tried_again_and_then_waits() -> None:
    """Somebody else is on the GPU: it is neither refused for ever nor tried again and again."""

    async def scenario() -> None:
        gpu = SharedGpu(80.0)
        given = parts(gpu, awake_gib=41.0)
        async with house("text", tables=TABLES, pool=POOL, parts=given, hold_sleeping_s=60) as door:
            await door.put_to_sleep(1)
            gpu.taken_gib[99] = 60.0
            waits = await door.begin(CHAT, chat_with("text"))
            await door.until(lambda: gpu.refusals == 2 and door.gate.wake_trouble())
            waits.leave()
            await door.until(lambda: not door.gate.queued)
            door.hold_for(0.05)  # and it is tried again only after a pause
            refused = await door.ask("text")
            assert refused.status == 503
            assert "ran out of memory" in refused.json["detail"]
            assert gpu.refusals == 2
            gpu.taken_gib[99] = 0.0
            door.hold_for(60)
            await door.admin("/admin/wake/text", "POST")  # without the rest of the pause
            await door.settled("awake")
            assert (await door.ask("text")).status == 200

    asyncio.run(scenario())
