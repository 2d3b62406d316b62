"""Engines that die, come back, or were never quite there: held, proven again, never trusted."""

import asyncio
from time import monotonic

import pytest
from naps import (
    CHAT,
    EMBEDDINGS,
    WORDS,
    chat_with,
    every_release,
    house,
    last_release,
    text_of,
)

MORTAL = ["deaths"]


@every_release
def test_08_a_killed_engine_is_told_as_restarting_then_serves_again(version: str) -> None:
    """Row 8: 503 with 600 while it recovers (the hold is short), 200 afterwards."""

    async def scenario() -> None:
        async with house(version=version, hold_restarting_s=0.3, lawless=MORTAL) as door:
            await door.kill()
            refused = await door.ask()
            assert refused.status == 503
            assert refused.headers["retry-after"] == "600"
            assert int(refused.headers["retry-after-ms"]) <= 59_000
            assert refused.json["error"]["sleep_depth"] == "restarting"
            assert door.state() == "down"
            door.boot()
            await door.settled("awake")
            assert text_of(await door.ask()) == WORDS

    asyncio.run(scenario())


@last_release
@pytest.mark.parametrize("level", [0, 1, 2])
def test_who_asks_while_the_engine_restarts_is_held_and_served(version: str, level: int) -> None:
    """K3: found dead awake or asleep; back, it is a new process, and awake."""

    async def scenario() -> None:
        async with house(version=version, lawless=MORTAL) as door:
            if level:
                await door.put_to_sleep(level)
            quiet = len(door.calls())
            await door.kill(abrupt=True, accept_s=0.2)
            wires = [await door.begin(CHAT, chat_with()) for _ in range(4)]
            await door.inside(0, 4)
            door.boot()
            replies = [await wire.reply() for wire in wires]
            assert [text_of(reply) for reply in replies] == [WORDS] * 4
            assert door.gate._wake is not None
            assert door.gate._wake.wake_backoff.failures == 0  # nothing was tried that failed
            assert door.calls(since=quiet) == []  # it came back awake: there was nothing to wake

    asyncio.run(scenario())


def test_15_three_engines_boot_in_parallel() -> None:
    """Row 15: `restarting` meanwhile, each available as it comes up, all at the end."""

    async def scenario() -> None:
        keys = ("text", "ocr", "embed")
        async with house(*keys, hold_restarting_s=0.2, lawless=MORTAL) as door:
            for key in keys:
                await door.kill(key=key)
            replies = await asyncio.gather(
                door.ask("text"),
                door.ask("ocr"),
                door.call(EMBEDDINGS, {"model": "embed", "input": "a"}),
            )
            assert [reply.status for reply in replies] == [503] * 3
            assert {reply.json["sleep_depth"] for reply in replies} == {"restarting"}
            health = (await door.get("/health")).json
            assert health["status"] == "ok"  # the front door itself is
            assert {u["state"] for u in health["upstreams"].values()} == {"down"}
            door.boot("ocr")
            await door.settled("awake", "ocr")
            assert door.state("text") == door.state("embed") == "down"
            assert text_of(await door.ask("ocr")) == WORDS
            door.boot("text")
            door.boot("embed")
            await door.settled("awake")
            assert text_of(await door.ask("text")) == WORDS
            reply = await door.call(EMBEDDINGS, {"model": "embed", "input": "a"})
            assert reply.status == 200

    asyncio.run(scenario())


def test_a_front_door_that_starts_before_its_engines_serves_when_they_are_there() -> None:
    """Row 15 from the other side: the first look of all finds nobody."""

    async def scenario() -> None:
        async with house(lawless=MORTAL, hold_restarting_s=8, settle=False) as door:
            await door.kill()
            wire = await door.begin(CHAT, chat_with())
            await door.settled("down")
            door.boot()
            assert text_of(await wire.reply()) == WORDS

    asyncio.run(scenario())


@last_release
def test_the_first_answer_after_a_wake_kills_the_engine_and_no_client_sees_it(
    version: str,
) -> None:
    """V14: the canary takes the hit, the held callers wait for the restart."""

    async def scenario() -> None:
        async with house(version=version, lawless=MORTAL) as door:
            await door.put_to_sleep(1)
            door.misfortune("inference=die_on_first*1")
            replies = await asyncio.gather(*(door.ask(stream=True) for _ in range(5)))
            assert [text_of(reply) for reply in replies] == [WORDS] * 5
            assert door.deaths() == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [400, 503])
def test_not_ready_yet_is_for_the_canary_to_hear(status: int) -> None:
    """K6: an engine that says `not ready` right after its wake is asked again, by us."""

    async def scenario() -> None:
        async with house() as door:
            await door.put_to_sleep(2)
            door.misfortune(f"completions=fail:{status}*1")
            assert text_of(await door.ask()) == WORDS
            assert door.seen()["refused"] == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "spec",
    ["sleep=die", "sleep=die_after", "wake_up=die", "wake_up=die_after", "reload_weights=die"],
)
@last_release
def test_a_death_in_a_transition_is_a_restart_for_callers(version: str, spec: str) -> None:
    """V3: also a `/sleep` that said 200: who died is down, not asleep. Nobody sees garbage."""

    async def scenario() -> None:
        async with house(version=version, lawless=[*MORTAL, "two sequences at once"]) as door:
            door.misfortune(f"{spec}*1")
            reply = await door.admin("/admin/sleep/text?level=2", "POST")
            # One that died before it answered is asked once more, and then is another process.
            assert reply.status == (503 if spec == "sleep=die_after" else 200), reply.body
            assert text_of(await door.ask()) == WORDS
            assert door.deaths() == 1

    asyncio.run(scenario())


def test_an_engine_awake_at_the_start_sleeps_though_nobody_ever_came() -> None:
    """K9: its idleness begins with its discovery."""

    async def scenario() -> None:
        async with house(idle_sleep_s=0.2) as door:
            await door.settled("sleeping")
            assert door.calls() == ["sleep level=1"]
            assert door.lines == []

    asyncio.run(scenario())


def test_an_engine_without_sleep_mode_is_awake_for_ever() -> None:
    """V18: found out, not guessed; a note in the log, `sleep_support` false, 501 for operators."""

    async def scenario() -> None:
        async with house(engine={"sleep_mode": False}, idle_sleep_s=0.1) as door:
            await asyncio.sleep(0.3)
            assert door.state() == "awake"
            assert (await door.status())["sleep_support"] is False
            refused = await door.admin("/admin/sleep/text", "POST")
            assert (refused.status, refused.json["reason"]) == (501, "unsupported")
            assert (await door.admin("/admin/wake/text?wait=true", "POST")).status == 200
            assert text_of(await door.ask()) == WORDS

    asyncio.run(scenario())


@last_release
def test_an_engine_put_to_sleep_by_another_hand_is_found_out_and_woken(version: str) -> None:
    """V22: at the next look at the latest, and no request is lost where the engine survives it."""

    async def scenario() -> None:
        async with house(version=version) as door:
            door.look_every(0.1)
            wire = await door.wire(door.engines["text"].port)
            wire.send("/sleep?level=2", b"")
            await wire.reply()
            await door.settled("offloaded")
            assert text_of(await door.ask()) == WORDS
            wire.send("/sleep?level=1", b"")
            await wire.reply()
            await door.settled("sleeping")
            wire.send("/wake_up", b"")
            await wire.reply()
            await door.settled("awake")
            assert text_of(await door.ask()) == WORDS

    asyncio.run(scenario())


def test_a_request_that_meets_an_engine_slept_by_another_hand_is_not_lost() -> None:
    """V22: it waits inside the engine, where it counts as somebody who wants it awake."""

    async def scenario() -> None:
        async with house(lawless=["a request met an engine that was not proven awake"]) as door:
            door.look_every(0.3)
            wire = await door.wire(door.engines["text"].port)
            wire.send("/sleep?level=1", b"")
            await wire.reply()
            assert text_of(await door.ask()) == WORDS

    asyncio.run(scenario())


def test_another_hand_that_wakes_without_reloading_is_not_believed() -> None:
    """V5: `/is_sleeping` says false and `/health` 200 over garbage; it is loaded before anyone."""

    async def scenario() -> None:
        async with house() as door:
            door.look_every(0.1)
            await door.put_to_sleep(2)
            wire = await door.wire(door.engines["text"].port)
            wire.send("/wake_up", b"")
            await wire.reply()
            assert text_of(await door.ask()) == WORDS
            assert door.calls().count("reload_weights") == 1

    asyncio.run(scenario())


def test_slow_calls_are_waited_for() -> None:
    """K4: each look takes 0.9 s; it works, only slower."""

    async def scenario() -> None:
        async with house() as door:
            await door.put_to_sleep(1)
            door.misfortune("is_sleeping=slow:0.9")
            began_s = monotonic()
            assert text_of(await door.ask()) == WORDS
            assert monotonic() - began_s > 1.7

    asyncio.run(scenario())


def test_a_request_goes_on_within_a_moment_of_the_wake() -> None:
    """K2: no polling interval stands between ready and served, whatever the time limits are."""

    async def scenario() -> None:
        async with house(engine={"wake_s": (0.5, 0.5)}) as door:
            await door.put_to_sleep(1)
            await (await door.begin(CHAT, chat_with())).reply()
            ready_s = next(c["ended_s"] for c in door.transitions() if c["call"] == "wake_up")
            assert monotonic() - ready_s < 0.25

    asyncio.run(scenario())
