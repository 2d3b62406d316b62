"""Requests against the idle timer, transitions against each other on a GPU: hammered."""

import asyncio
import random
from itertools import combinations, pairwise

import pytest
from naps import CHAT, EMBEDDINGS, WORDS, House, chat_with, house, last_release, text_of

IDLE_S = 0.04


async def at_the_moment(door: House, rng: random.Random, n: int) -> None:
    """Send requests a moment before or after the idle timer, alone or a few at once."""
    while n > 0:
        await asyncio.sleep(max(0.0, rng.gauss(IDLE_S, 0.01)))
        size = min(n, rng.choice((1, 1, 1, 2, 5)))
        n -= size
        asks = (
            door.ask(stream=rng.random() < 0.5, hold_s=rng.choice((0, 0.01))) for _ in range(size)
        )
        for reply in await asyncio.gather(*asks):
            assert (reply.status, text_of(reply)) == (200, WORDS)


async def hammer(version: str, requests: int, seed: int, idle_offload_s: float = 0) -> int:
    engine = {"sleep_s": (0.02, 0.02)}
    idle = {"idle_sleep_s": IDLE_S, "idle_offload_s": idle_offload_s}
    async with house(version=version, engine=engine, tables={"text": {"sleep": idle}}) as door:
        rng = random.Random(seed)
        await at_the_moment(door, rng, requests)
        assert door.outcomes == ["served"] * requests
        # The laws at the end of the scene hold the rest: nobody inside at any `/sleep`, nobody
        # at an engine that was not proven awake, no two sequences at once, no death.
        return sum("sleep level" in call for call in door.calls())


@last_release
def test_03_eighty_requests_around_the_moment_of_falling_asleep(version: str) -> None:
    """Rows 11 and 3, S1, S4: all served; many a sleep was begun, none with anyone inside."""
    sleeps = asyncio.run(hammer(version, 80, seed=1))
    assert sleeps >= 2  # else the moment was missed, and nothing was shown


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("version", ["0.16", "0.23", "0.30", "0.33"])
def test_03_thousands_of_requests_around_both_tiers(version: str, seed: int) -> None:
    """The same with the second tier close behind the first, so that escalations are hit too."""
    sleeps = asyncio.run(hammer(version, 500, seed=seed, idle_offload_s=0.08))
    assert sleeps >= 10


def test_a_long_stream_is_no_idleness() -> None:
    """K7: it goes on for many idle times, and sleep comes one idle time after its end."""

    async def scenario() -> None:
        async with house(idle_sleep_s=0.3) as door:
            wire = await door.begin(CHAT, chat_with(stream=True, tokens=40, gap_ms=40))
            reply = await wire.reply()
            ended_s = asyncio.get_running_loop().time()
            assert reply.status == 200
            assert door.calls() == []
            await door.settled("sleeping")
            (sleep,) = door.transitions()
            assert sleep["at_s"] - ended_s >= 0.28

    asyncio.run(scenario())


@pytest.mark.parametrize("seconds", [0.6])
def test_a_wake_longer_than_the_idle_time_ends_with_the_answer(seconds: float) -> None:
    """S3, S4: no sleep while it wakes or anyone waits; then one idle time after the last answer."""

    async def scenario() -> None:
        async with house(engine={"wake_s": (seconds, seconds)}, idle_sleep_s=0.2) as door:
            await door.settled("sleeping")
            assert text_of(await door.ask()) == WORDS
            answered_s = asyncio.get_running_loop().time()
            await door.settled("sleeping")
            names = [call["call"] for call in door.transitions()]
            assert names == ["sleep", "wake_up", "sleep"]
            assert door.transitions()[-1]["at_s"] - answered_s >= 0.18

    asyncio.run(scenario())


def test_looking_is_no_activity() -> None:
    """V21: probes, lists and metrics keep nothing awake and wake nothing."""

    async def scenario() -> None:
        async with house(idle_sleep_s=0.5) as door:
            looks = 0
            while door.state() != "sleeping":
                for path in ("/health", "/v1/models", "/llm/v1/models"):
                    assert (await door.get(path)).status == 200
                assert (await door.admin("/metrics")).status == 200
                assert (await door.admin("/admin/status")).status == 200
                looks += 1
            assert looks
            for path in ("/health", "/v1/models", "/v1/models/text", "/llm/v1/models"):
                await door.get(path)
            await door.admin("/metrics")
            assert (door.state(), door.calls()) == ("sleeping", ["sleep level=1"])

    asyncio.run(scenario())


def test_waiters_are_let_in_before_anything_else_is_decided() -> None:
    """S27: ready and handed over in one step, although another engine waits for the GPU."""

    async def scenario() -> None:
        gpu = {"gpu": {"devices": [2]}}
        async with house(
            "ocr", "embed", tables={"ocr": gpu, "embed": gpu}, idle_sleep_s=0.1
        ) as door:
            await door.settled("sleeping")
            for _ in range(5):
                replies = await asyncio.gather(
                    *(door.ask("ocr") for _ in range(3)),
                    *(door.call(EMBEDDINGS, {"model": "embed", "input": "a"}) for _ in range(3)),
                )
                assert {reply.status for reply in replies} == {200}
                await door.settled("sleeping")

    asyncio.run(scenario())


# One GPU


def spans(door: House, *keys: str) -> list[tuple[float, float]]:
    """Return when transitions of engines ran, in order of their beginning."""
    calls = [call for key in keys for call in door.transitions(key)]
    return sorted((call["at_s"], call["ended_s"]) for call in calls)


def overlap(door: House, *keys: str) -> bool:
    return any(ended_s > begins_s for (_, ended_s), (begins_s, _) in pairwise(spans(door, *keys)))


@last_release
def test_06_transitions_that_share_a_gpu_never_overlap(version: str) -> None:
    """V9: the transitions of one are over before the other's begin; others are not held up."""

    async def scenario() -> None:
        engine = {"sleep_s": (0.05, 0.05), "wake_s": (0.05, 0.05), "reload_s": 0.05}
        tables = {
            "text": {"gpu": {"devices": [0, 1]}},
            "ocr": {"gpu": {"devices": [2]}},
            "embed": {"gpu": {"devices": [2]}},
        }
        async with house(
            *tables, version=version, engine=engine, tables=tables, idle_sleep_s=0.1
        ) as door:
            for _ in range(3):
                await door.settled("sleeping")
                replies = await asyncio.gather(
                    door.ask("text"),
                    door.ask("ocr"),
                    door.call(EMBEDDINGS, {"model": "embed", "input": "a"}),
                )
                assert [reply.status for reply in replies] == [200] * 3
            await door.settled("sleeping")
            assert not overlap(door, "ocr", "embed")
            assert any(overlap(door, a, b) for a, b in combinations(tables, 2) if "text" in (a, b))

    asyncio.run(scenario())


def test_06_a_wake_waits_for_the_sleep_on_its_gpu_and_others_do_not() -> None:
    """V9, V23, S33: also a sleep that hangs holds up nobody but its own GPU's engines."""

    async def scenario() -> None:
        gpu = {"gpu": {"devices": [2]}}
        tables = {"ocr": gpu, "embed": gpu, "text": {"gpu": {"devices": [0]}}}
        async with house("text", "ocr", "embed", tables=tables) as door:
            await door.put_to_sleep(1, "text", "embed")
            door.misfortune("sleep=hang*1", "ocr")
            sleep = await door.wire(door.admin_port)
            sleep.send("/admin/sleep/ocr")
            await door.occupied("sleep", "ocr")
            quiet = len(door.seen("embed")["control_calls"])
            embed = await door.begin(EMBEDDINGS, {"model": "embed", "input": "a"})
            assert text_of(await door.ask("text")) == WORDS
            assert (await door.get("/health")).status == 200
            status = await door.status("embed")
            assert (status["state"], status["wake_step"]) == ("waking", "gpu")
            assert len(door.seen("embed")["control_calls"]) == quiet
            door.release("ocr")
            assert (await embed.reply()).status == 200
            assert (await sleep.reply()).status == 200
            ended_s = door.transitions("ocr")[-1]["ended_s"]
            assert door.transitions("embed")[-1]["at_s"] > ended_s

    asyncio.run(scenario())


def test_two_engines_swap_on_one_gpu_without_starving() -> None:
    """S28: both asked for again and again; each is served in turn."""

    async def scenario() -> None:
        gpu = {"gpu": {"devices": [2]}}
        async with house(
            "ocr", "embed", tables={"ocr": gpu, "embed": gpu}, idle_sleep_s=0.05
        ) as door:

            async def ask(key: str) -> None:
                for _ in range(12):
                    reply = await (
                        door.ask("ocr")
                        if key == "ocr"
                        else door.call(EMBEDDINGS, {"model": "embed", "input": "a"})
                    )
                    assert reply.status == 200
                    await asyncio.sleep(0.06)

            await asyncio.gather(ask("ocr"), ask("embed"))
            await door.settled("sleeping")
            assert not overlap(door, "ocr", "embed")

    asyncio.run(scenario())
