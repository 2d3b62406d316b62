"""Holds that end in vain, bounds that hold in every state, and breakers: what callers are told."""

import asyncio
from functools import partial
from time import monotonic
from typing import Any

import pytest
from naps import (
    CHAT,
    WORDS,
    House,
    chat_with,
    house,
    last_release,
    text_of,
)
from wire import Cut, Reply, Wire

MESSAGES = "/llm/v1/messages"
LIMITED = {"slots": 8, "cap": 2, "queue": 2, "queue_timeout_s": 10}


def message(model: str = "text") -> dict[str, Any]:
    return {"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


async def both_dialects(door: House) -> tuple[Reply, Reply]:
    """Ask in both dialects at once."""
    openai, anthropic = await asyncio.gather(door.ask(), door.call(MESSAGES, message()))
    return openai, anthropic


def hold_to_the_contract(openai: Reply, anthropic: Reply, depth: str, retry_after: str) -> None:
    """Fail where a refusal of a hold in vain is not as callers may rely on."""
    assert openai.status == anthropic.status == 503
    assert openai.headers["content-type"] == "application/problem+json"
    body, error = openai.json, openai.json["error"]
    assert (error["type"], error["code"]) == ("model_waking", "model_waking")
    assert (body["status"], body["upstream"]) == (503, "text")
    for place in (body, error):
        assert place["sleep_depth"] == depth
        assert place["estimated_wake_seconds"] >= 0
    told = anthropic.json
    assert (told["type"], told["error"]["type"]) == ("error", "api_error")
    assert told["request_id"] == anthropic.headers["request-id"]
    for reply in (openai, anthropic):
        assert reply.headers["retry-after"] == retry_after
        assert 0 < int(reply.headers["retry-after-ms"]) <= 59_000
        assert reply.headers["x-should-retry"] == "true"


@last_release
@pytest.mark.parametrize(
    ("level", "depth", "after"), [(1, "sleeping", "10"), (2, "offloaded", "60")]
)
def test_10_a_hold_in_vain_is_told_by_depth(
    version: str, level: int, depth: str, after: str
) -> None:
    """Row 10: the hold is forced to 1 s and the wake takes longer; then it serves."""

    async def scenario() -> None:
        async with house(version=version, hold_sleeping_s=1, hold_offloaded_s=1) as door:
            await door.put_to_sleep(level)
            door.misfortune("wake_up=hang*1")
            began_s = monotonic()
            hold_to_the_contract(*await both_dialects(door), depth, after)
            assert monotonic() - began_s > 0.99
            assert set(door.outcomes) == {"model_waking"}
            assert {line["code"] for line in door.lines} == {"PW"}
            for line in door.lines:  # all of the wait was for the wake
                assert 0.99 < line["held_s"] == pytest.approx(line["waited_s"], abs=0.1)
            # The wake goes on without them, and is the only one.
            door.release()
            await door.settled("awake")
            assert text_of(await door.ask()) == WORDS
            assert (await door.status())["wakes_total"] == 1

    asyncio.run(scenario())


def test_10_an_engine_that_is_gone_is_told_as_restarting() -> None:
    """Row 10: 600, though `retry-after-ms` stays below what SDKs sleep for blindly."""

    async def scenario() -> None:
        async with house(hold_restarting_s=1, lawless=["deaths"]) as door:
            await door.kill()
            hold_to_the_contract(*await both_dialects(door), "restarting", "600")
            assert door.state() == "down"
            door.boot()
            await door.settled("awake")
            assert text_of(await door.ask()) == WORDS

    asyncio.run(scenario())


def test_an_estimate_is_learned_kept_and_counts_down() -> None:
    """`estimated_wake_seconds` is the usual time of a wake, less what has passed of this one."""

    async def scenario() -> None:
        async with house(hold_sleeping_s=1.2) as door:
            await door.put_to_sleep(1)
            door.misfortune("wake_up=hang*1")
            refused = await door.ask()
            assert 1 <= refused.json["estimated_wake_seconds"] < 5  # 6 s until it knows better
            door.release()
            await door.settled("awake")
            learned_s = (await door.status())["estimated_wake_seconds"]["sleeping"]
            assert learned_s > 1.2
            journal = door.app.pool._journal
            assert journal is not None
            url = door.upstream().settings.url
            await door.until(lambda: journal.recall(url)[1] == {"sleeping": learned_s})

    asyncio.run(scenario())


# The same bound in every state


def _are_inside(door: House, number: int) -> bool:
    return door.gate.in_flight + door.gate.queued >= number


async def crowd(door: House, size: int, hold_s: float = 0) -> list[Wire]:
    """Send `size` streamed requests one after another, and return their connections."""
    wires = []
    inside = door.gate.in_flight + door.gate.queued
    for number in range(1, size + 1):
        wires.append(await door.begin(CHAT, chat_with(stream=True, hold_s=hold_s)))
        await door.until(partial(_are_inside, door, inside + number))
    return wires


@last_release
@pytest.mark.parametrize("state", ["asleep", "waking", "awake", "down"])
def test_the_bound_is_the_same_in_every_state(version: str, state: str) -> None:
    """S8: cap 2 and queue 2 hold four, awake or not; the fifth is refused before any byte."""

    async def scenario() -> None:
        tables = {"text": {"admission": LIMITED}}
        async with house(version=version, tables=tables, lawless=["deaths"]) as door:
            if state in ("asleep", "waking"):
                await door.put_to_sleep(1)
                door.misfortune("wake_up=hang*1")
            elif state == "down":
                await door.kill()
            wires = await crowd(
                door, 1 if state == "waking" else 4, hold_s=0.6 if state == "awake" else 0
            )
            if state == "waking":
                await door.occupied("wake_up")
                wires += await crowd(door, 3)
            assert door.gate.in_flight == (2 if state == "awake" else 0)
            refused = await door.ask(stream=True)
            assert refused.status == 503
            assert refused.json["error"]["code"] == "queue_full"
            assert 1 <= int(refused.headers["retry-after"]) <= 59
            assert door.gate.in_flight + door.gate.queued == 4  # it was refused while all waited
            if state in ("asleep", "waking"):
                await door.occupied("wake_up")
                door.release()
            elif state == "down":
                door.boot()
            replies = [await wire.reply() for wire in wires]
            assert [text_of(reply) for reply in replies] == [WORDS] * 4
            assert door.seen()["max_concurrent"] <= 2

    asyncio.run(scenario())


def test_without_a_cap_only_those_who_wait_for_a_wake_are_bounded() -> None:
    """S21: `max_waiting` 3: the fourth is refused with 503 and advice, all come in when awake."""

    async def scenario() -> None:
        async with house(max_waiting=3) as door:
            await door.put_to_sleep(1)
            door.misfortune("wake_up=hang*1")
            wires = await crowd(door, 3)
            refused = await door.ask()
            assert (refused.status, refused.json["error"]["code"]) == (503, "queue_full")
            assert "retry-after" in refused.headers
            await door.occupied("wake_up")
            door.release()
            assert [(await wire.reply()).status for wire in wires] == [200] * 3
            replies = await asyncio.gather(*(door.ask(hold_s=0.1) for _ in range(8)))
            assert [reply.status for reply in replies] == [200] * 8

    asyncio.run(scenario())


# Those who leave


@last_release
@pytest.mark.parametrize("level", [1, 2])
def test_all_waiters_leave_in_mid_wake_and_nothing_is_left_of_them(
    version: str, level: int
) -> None:
    """S11: no leak, the wake's bookkeeping survives, the next caller is served by the same wake."""

    async def scenario() -> None:
        async with house(version=version) as door:
            await door.put_to_sleep(level)
            door.misfortune("wake_up=hang*1")
            wires = [await door.begin(CHAT, chat_with()) for _ in range(8)]
            await door.occupied("wake_up")
            for wire in wires:
                wire.leave()
            await door.at_rest()
            assert door.outcomes == ["client_gone_queued"] * 8
            held = [(line["held_s"], line["waited_s"]) for line in door.lines]
            assert all(0 < held_s <= waited_s for held_s, waited_s in held), held
            assert door.state() == "waking"
            wire = await door.begin(CHAT, chat_with())
            await door.inside(0, 1)
            door.release()
            assert text_of(await wire.reply()) == WORDS
            status = await door.status()
            assert (status["wakes_total"], status["queued"]) == (1, 0)
            assert door.seen()["started"] - canaries(door) == 1

    asyncio.run(scenario())


def canaries(door: House, key: str = "text") -> int:
    """Return how many of an engine's requests were no client's."""
    ids = {line["request_id"] for line in door.lines}
    return sum(request_id not in ids for request_id in door.seen(key)["order"])


def test_a_switch_that_nobody_wants_any_more_does_not_begin() -> None:
    """S10: all who wanted `embed` leave while the GPU is another's; it is not woken."""

    async def scenario() -> None:
        gpu = {"gpu": {"devices": [2]}}
        tables = {"ocr": gpu, "embed": gpu}
        async with house("ocr", "embed", tables=tables) as door:
            await door.put_to_sleep(1)
            door.misfortune("wake_up=hang*1", "ocr")
            held = await door.begin(CHAT, chat_with("ocr"))
            await door.occupied("wake_up", "ocr")
            wires = [await door.begin(CHAT, chat_with("embed")) for _ in range(3)]
            await door.settled("waking", "embed")
            assert door.upstream("embed").keeper.gate.wake_step == "gpu"
            quiet = len(door.seen("embed")["control_calls"])
            for wire in wires:
                wire.leave()
            await door.settled("sleeping", "embed")
            door.release("ocr")
            assert (await held.reply()).status == 200
            await asyncio.sleep(0.1)  # nothing happens: there is no event to wait for
            assert len(door.seen("embed")["control_calls"]) == quiet
            assert (await door.status("embed"))["wakes_total"] == 0

    asyncio.run(scenario())


# Wakes that fail


def test_one_failed_wake_is_tried_again_at_once() -> None:
    """The caller only notices that it took longer."""

    async def scenario() -> None:
        async with house() as door:
            await door.put_to_sleep(1)
            door.misfortune("wake_up=fail*1")
            assert text_of(await door.ask()) == WORDS
            assert door.calls()[-2:] == ["wake_up", "wake_up"]

    asyncio.run(scenario())


def test_a_wake_that_failed_leaves_no_state_that_needs_a_restart() -> None:
    """S5: the caller of the failed wake is told, the next request makes a clean new attempt."""

    async def scenario() -> None:
        async with house(hold_sleeping_s=1.6, hold_offloaded_s=1.6) as door:
            await door.put_to_sleep(1)
            door.misfortune("wake_up=fail*2")
            refused = await door.ask()
            assert (refused.status, refused.json["error"]["code"]) == (503, "model_waking")
            assert "wake_up failed" in refused.json["detail"]
            door.fortune()
            wake = door.gate._wake
            assert wake is not None
            await door.until(lambda: not wake.wake_backoff.on(monotonic()))
            assert text_of(await door.ask()) == WORDS

    asyncio.run(scenario())


def test_a_wake_that_never_works_is_tried_ever_more_seldom() -> None:
    """S32, V6: who polls meets a breaker: few attempts, and Retry-After is at least its pause."""

    async def scenario() -> None:
        async with house(hold_sleeping_s=0.3, hold_offloaded_s=0.3) as door:
            await door.put_to_sleep(2)
            door.misfortune("reload_weights=fail")
            began_s = monotonic()
            while monotonic() - began_s < 3:
                refused = await door.ask()
                assert refused.status == 503
                assert int(refused.headers["retry-after"]) >= 10
            assert 2 <= door.calls().count("reload_weights") <= 4
            assert door.gate._wake is not None
            assert door.gate._wake.wake_backoff.failures <= 2
            # V6: this engine is not dropped to level 2 again, and it says why.
            assert "reload_weights" in (door.gate.sleep_fault or "")
            door.fortune()

    asyncio.run(scenario())


def test_a_stream_that_is_held_gets_no_byte_before_the_engine_speaks() -> None:
    """S15: nothing is mixed into an answer to bridge the wake."""

    async def scenario() -> None:
        async with house() as door:
            awake = await door.ask(stream=True)
            await door.put_to_sleep(1)
            door.misfortune("wake_up=hang*1")
            wire = await door.begin(CHAT, chat_with(stream=True))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(wire.reader.read(1), 0.3)
            await door.occupied("wake_up")
            door.release()
            reply = await wire.reply()
            assert text_of(reply) == text_of(awake) == WORDS

    asyncio.run(scenario())


async def to_the_end(wire: Wire) -> None:
    while await wire.chunk():
        pass


def test_a_half_sent_answer_of_an_engine_that_dies_is_cut_not_finished() -> None:
    """After the first byte there is no status left: an error in band, then a cut."""

    async def scenario() -> None:
        async with house(lawless=["deaths"]) as door:
            wire = await door.begin(CHAT, chat_with(stream=True, tokens=50, gap_ms=20))
            await wire.head()
            await wire.chunk()
            await door.kill(0.2, abrupt=True)
            with pytest.raises(Cut):
                await to_the_end(wire)
            assert text_of(await door.ask()) == WORDS

    asyncio.run(scenario())
