"""Transitions that fail, hang or cannot be undone: bounded, told, and no trouble for others."""

import asyncio

import pytest
from naps import CHAT, WORDS, House, chat_with, house, text_of
from wire import Reply

from tornado_frontdoor.core.wake import machine
from tornado_frontdoor.engines import vllm
from tornado_frontdoor.engines.base import PROBE


async def wake(door: House, name: str = "text") -> int:
    return (await door.admin(f"/admin/wake/{name}?wait=true", "POST")).status


async def sleep(door: House, name: str = "text") -> Reply:
    return await door.admin(f"/admin/sleep/{name}", "POST")


def test_an_engine_that_cannot_load_again_is_not_dropped_to_level_2_and_says_why() -> None:
    """V6: put back to sleep whole, level 1 from then on, until a load is seen to work."""

    async def scenario() -> None:
        async with house() as door:
            await door.put_to_sleep(2)
            door.misfortune("reload_weights=fail")
            assert await wake(door) == 503
            await door.until(lambda: len(door.engines["text"]._engine.memory.asleep) == 2)
            assert door.calls()[-1] == "sleep level=2"  # its weights had been mapped, for nothing
            await door.settled("offloaded")
            assert "reload_weights failed" in (await door.status())["sleep_fault"]
            door.fortune()
            assert await wake(door) == 200
            assert (await door.status())["sleep_fault"] is None

    asyncio.run(scenario())


def test_a_sleep_that_never_answers_is_given_up_and_nothing_is_put_on_top_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """V23: bounded, unknown until a look comes through, told to the operator; others go on."""
    monkeypatch.setattr(vllm, "SLEEP_1", vllm.SLEEP_1._replace(timeout_s=0.3))
    monkeypatch.setattr(machine, "PROBE", PROBE._replace(timeout_s=0.1))

    async def scenario() -> None:
        async with house("text", "ocr") as door:
            door.misfortune("sleep=hang*1")
            reply = await sleep(door)
            assert (reply.status, reply.json["reason"]) == (503, "failed")
            assert "sleep_1 timed out" in reply.json["error"]
            assert door.state() == "unknown"
            wire = await door.begin(CHAT, chat_with())
            looks = len(door.seen()["control_calls"])
            # A look that is not answered says busy, neither awake nor asleep nor gone.
            await door.until(lambda: len(door.seen()["control_calls"]) >= looks + 2)
            assert door.state() == "unknown"
            assert text_of(await door.ask("ocr")) == WORDS
            assert door.calls() == ["sleep level=1"]
            door.release()
            assert text_of(await wire.reply()) == WORDS
            assert door.calls() == ["sleep level=1", "wake_up"]

    asyncio.run(scenario())


def test_a_sleep_that_fails_holds_up_nobody() -> None:
    """S6: its own GPU's other engine and others are served; it works again without a restart."""

    async def scenario() -> None:
        gpu = {"gpu": {"devices": [2]}}
        tables = {"ocr": gpu, "embed": gpu}
        async with house("text", "ocr", "embed", tables=tables) as door:
            await door.put_to_sleep(1, "text", "embed")
            door.misfortune("sleep=fail*2", "ocr")
            assert (await sleep(door, "ocr")).status == 503
            assert text_of(await door.ask("text")) == WORDS
            assert await wake(door, "embed") == 200
            assert text_of(await door.ask("ocr")) == WORDS
            assert (await sleep(door, "ocr")).status == 200

    asyncio.run(scenario())


def test_a_stream_that_never_ends_holds_up_nobody_else() -> None:
    """S33: the admin port and other models answer; this engine stays awake under it."""

    async def scenario() -> None:
        async with house("text", "ocr", idle_sleep_s=0.1) as door:
            wire = await door.begin(CHAT, chat_with(stream=True, silent=True))
            await door.inside(1)
            await door.settled("sleeping", "ocr")
            assert text_of(await door.ask("ocr")) == WORDS
            assert (await sleep(door)).status == 409
            assert door.state("text") == "awake"
            wire.leave()
            await door.settled("sleeping", "text")

    asyncio.run(scenario())


def test_garbage_after_a_wake_is_quarantined_and_its_weights_are_read_again() -> None:
    """A wake that went well by all that vLLM says, and answers with what nobody asked for."""

    async def scenario() -> None:
        async with house(lawless=["garbage"], mishaps_allowed=True) as door:
            await door.put_to_sleep(1)
            door.misfortune("completions=garbage*1")
            assert text_of(await door.ask()) == WORDS
            assert door.calls()[-3:] == [
                "wake_up tags=weights",
                "reload_weights",
                "wake_up tags=kv_cache",
            ]
            told = (await door.admin("/admin/explain/text")).json
            texts = [one["text"] for one in told["history"]]
            assert any("quarantined: its first token is '!!!!'" in text for text in texts)
            assert told["canary"]["last"] == "matched"

    asyncio.run(scenario())


def test_an_operator_may_say_that_another_answer_is_right() -> None:
    async def scenario() -> None:
        async with house(
            lawless=["garbage"], mishaps_allowed=True, hold_sleeping_s=0.3, hold_offloaded_s=0.3
        ) as door:
            await door.put_to_sleep(1)
            door.misfortune("completions=garbage")
            assert (await door.ask()).status == 503
            assert (await door.status())["canary"]["quarantined"]
            assert (await door.admin("/admin/believe/text", "POST")).status == 200
            await door.settled("awake")
            assert text_of(await door.ask()) == WORDS

    asyncio.run(scenario())
