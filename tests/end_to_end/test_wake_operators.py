"""What operators see and may do: admin calls, status, lists, metrics, reloads."""

import asyncio
import re
from typing import Any

import pytest
from naps import CHAT, WORDS, House, chat_with, house, text_of

STATUS_FIELDS = {
    *("url", "models", "state", "sleep_depth", "running", "sleeping", "wake_in_progress"),
    *("wake_step", "last_activity_s", "sleep_support", "in_flight", "cap", "queued", "queue"),
    *("wakes_total", "estimated_wake_seconds", "sleep_fault", "oldest_wait_s", "cooling"),
    *("slots", "since_s", "can_sleep", "canary"),
    *("waits_for", "makes_room", "replicas", "orders", "transition_s", "wake_steps"),
    *("returns", "queue_timeout_s"),
}


async def wake(door: House, name: str = "text", *, wait: bool = True) -> tuple[int, Any]:
    reply = await door.admin(f"/admin/wake/{name}{'?wait=true' if wait else ''}", "POST")
    return reply.status, reply.json


async def sleep(door: House, query: str = "", name: str = "text") -> tuple[int, Any]:
    reply = await door.admin(f"/admin/sleep/{name}{query}", "POST")
    return reply.status, reply.json


# Admin calls


def test_an_operator_wakes_with_and_without_waiting() -> None:
    """202 at once, or 200 when it is awake; by upstream, model or alias; awake it is a no-op."""

    async def scenario() -> None:
        async with house() as door:
            await door.put_to_sleep(1)
            code, told = await wake(door, wait=False)
            assert (code, set(told), told["upstream"]) == (202, {"upstream", "state"}, "text")
            await door.settled("awake")
            for name in ("text", "text-large", "TEXT"):
                await door.put_to_sleep(2)
                assert await wake(door, name) == (200, {"upstream": "text", "state": "awake"})
            quiet = len(door.calls())
            assert (await wake(door))[0] == 200
            assert len(door.calls()) == quiet

    asyncio.run(scenario())


def test_a_wake_that_fails_is_told_to_who_waits_for_it() -> None:
    """503 with the step that failed; the same call tries again at once, without the pause."""

    async def scenario() -> None:
        async with house() as door:
            await door.put_to_sleep(1)
            door.misfortune("wake_up=fail*2")
            code, told = await wake(door)
            assert (code, told["reason"]) == (503, "failed")
            assert "wake_up failed: status 500" in told["error"]
            assert (await wake(door))[0] == 200

    asyncio.run(scenario())


def test_an_operator_puts_to_sleep_by_level() -> None:
    """200 when it is asleep; level 1 unless told; deeper is possible, and asleep twice is 200."""

    async def scenario() -> None:
        async with house() as door:
            assert await sleep(door) == (200, {"upstream": "text", "state": "sleeping"})
            assert (await sleep(door))[0] == 200
            assert door.calls() == ["sleep level=1"]
            assert await sleep(door, "?level=2") == (
                200,
                {"upstream": "text", "state": "offloaded"},
            )
            assert door.depth() == 2  # in truth: the naive call would have been a silent no-op
            assert (await sleep(door, "?level=1"))[0] == 200  # it sleeps deeper than that already
            assert door.depth() == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("query", ["?level=4", "?level=0", "?level=deep"])
def test_a_level_that_is_none_is_refused(query: str) -> None:
    async def scenario() -> None:
        async with house() as door:
            code, told = await sleep(door, query)
            assert code == 400
            assert "level" in told["error"]
            assert door.calls() == []

    asyncio.run(scenario())


def test_no_sleep_while_anyone_is_inside() -> None:
    """V3: 409 with the number of those inside; their stream runs to its end."""

    async def scenario() -> None:
        async with house() as door:
            wire = await door.begin(CHAT, chat_with(stream=True, tokens=8, gap_ms=40))
            await door.inside(1)
            code, told = await sleep(door)
            assert (code, told["reason"]) == (409, "busy")
            assert "1 is inside" in told["error"]
            assert text_of(await wire.reply()) == WORDS
            assert door.calls() == []
            assert (await sleep(door))[0] == 200

    asyncio.run(scenario())


@pytest.mark.parametrize("by", ["operator", "timer"])
def test_no_sleep_while_the_engine_has_work_of_another_hand(by: str) -> None:
    """V3: a stream past the front door, seen in the engine's gauges, is not cut off."""

    async def scenario() -> None:
        async with house(idle_sleep_s=0.2 if by == "timer" else 0) as door:
            door.look_every(0.1)
            wire = await door.wire(door.engines["text"].port)
            wire.send(CHAT, chat_with(stream=True, tokens=8, gap_ms=80))
            await wire.head()
            if by == "operator":
                code, told = await sleep(door)
                assert (code, told["reason"]) == (409, "busy")
                assert "1 requests of somebody else" in told["error"]
            pieces = []
            while piece := await wire.chunk():
                pieces.append(piece)
            assert pieces[-1] == b"data: [DONE]\n\n"
            assert b'"abort"' not in b"".join(pieces)
            assert door.calls() == []
            if by == "timer":
                await door.settled("sleeping")

    asyncio.run(scenario())


def test_what_is_not_there_is_404_and_what_cannot_sleep_501() -> None:
    """Without a sleep table an upstream is awake and cannot be put to sleep."""

    async def scenario() -> None:
        async with house("text", "ocr", tables={"ocr": {"awake": {}}}) as door:
            for answer in (await wake(door, "nobody"), await sleep(door, name="nobody")):
                assert answer[0] == 404
                assert "nobody" in answer[1]["error"]
            assert (await sleep(door, name="ocr"))[0] == 501
            assert await wake(door, "ocr") == (200, {"upstream": "ocr", "state": "awake"})
            for path in ("/admin", "/admin/", "/admin/wake", "/admin/wake/", "/sleep", "/health"):
                for method in ("GET", "POST"):
                    assert (await door.admin(path, method)).status == 404
            assert (await door.admin("/admin/wake/text")).status == 404  # a GET

    asyncio.run(scenario())


def test_an_operators_wake_outlasts_callers_and_their_departures() -> None:
    """A wish to wake is carried out though the only caller leaves."""

    async def scenario() -> None:
        async with house() as door:
            await door.put_to_sleep(1)
            door.misfortune("wake_up=hang*1")
            caller = await door.begin(CHAT, chat_with())
            await door.occupied("wake_up")
            wish = await door.wire(door.admin_port)
            wish.send("/admin/wake/text?wait=true")
            caller.leave()
            await door.inside(0, 0)
            door.release()
            assert (await wish.reply()).status == 200

    asyncio.run(scenario())


def test_sleep_asked_for_while_it_wakes_is_busy() -> None:
    async def scenario() -> None:
        async with house() as door:
            await door.put_to_sleep(1)
            door.misfortune("wake_up=hang*1")
            caller = await door.begin(CHAT, chat_with())
            await door.occupied("wake_up")
            code, told = await sleep(door, "?level=2")
            assert (code, told["reason"]) == (409, "busy")
            door.release()
            assert text_of(await caller.reply()) == WORDS

    asyncio.run(scenario())


def test_with_a_token_nobody_else_wakes_or_sleeps() -> None:
    """S19: 401 for every admin call."""

    async def scenario() -> None:
        async with house() as door:
            door.app.admin.guard._token = b"secret"
            for method, path in (("POST", "/admin/sleep/text"), ("GET", "/admin/status")):
                assert (await door.admin(path, method)).status == 401
                wrong = await door.admin(path, method, Authorization="Bearer secrets")
                assert wrong.status == 401
            right = await door.admin("/admin/sleep/text", "POST", Authorization="Bearer secret")
            assert right.status == 200

    asyncio.run(scenario())


# What is shown


def engine_states(metrics: str, key: str = "text") -> dict[str, float]:
    """Return the state gauge of one upstream."""
    found = re.findall(
        r'^frontdoor_engine_state\{state="(\w+)",upstream="(\w+)"\} (\S+)$', metrics, re.MULTILINE
    )
    return {state: float(value) for state, upstream, value in found if upstream == key}


def test_every_view_agrees_in_every_state() -> None:
    """S16: status, list, health and metrics, within a second of each change, all fields there."""
    seen = []

    async def look(door: House, state: str, depth: str | None, **expected: object) -> None:
        await door.settled(state)
        status = await door.status()
        assert set(status) == STATUS_FIELDS
        assert set(status["estimated_wake_seconds"]) == {"sleeping", "offloaded"}
        assert (status["state"], status["sleep_depth"]) == (state, depth)
        assert {key: status[key] for key in expected} == expected
        assert status["running"] is (state not in ("down", "unknown"))
        assert status["sleeping"] is (state in ("sleeping", "offloaded"))
        assert status["wake_in_progress"] is (state == "waking")
        entry = (await door.get("/v1/models")).json["data"][0]["frontdoor"]
        assert entry == {"upstream": "text", "state": state, "sleep_depth": depth}
        one = (await door.get("/v1/models/text")).json["frontdoor"]
        assert one == entry
        health = (await door.get("/health")).json["upstreams"]["text"]
        assert (health["state"], health["sleep_depth"]) == (state, depth)
        states = engine_states((await door.admin("/metrics")).body.decode())
        assert states == {name: float(name == state) for name in states}
        assert len(states) == 8
        seen.append(state)

    async def scenario() -> None:
        async with house(lawless=["deaths"]) as door:
            await look(door, "awake", None, sleep_support=True, wake_step=None, cap=None)
            door.misfortune("sleep=hang*1")
            asleep = await door.wire(door.admin_port)
            asleep.send("/admin/sleep/text")
            await door.occupied("sleep")
            await look(door, "falling_asleep", "sleeping", wake_step="sleep_1")
            door.release()
            await asleep.reply()
            await look(door, "sleeping", "sleeping", wake_step=None)
            await sleep(door, "?level=2")
            await look(door, "offloaded", "offloaded", wakes_total=0)
            door.misfortune("reload_weights=hang*1")
            caller = await door.begin(CHAT, chat_with())
            await door.occupied("collective_rpc")
            await look(door, "waking", "offloaded", wake_step="reload_weights", queued=1)
            door.release()
            await caller.reply()
            await look(door, "awake", None, wakes_total=1, in_flight=0)
            await door.kill()
            caller = await door.begin(CHAT, chat_with())
            await look(door, "down", "restarting", queued=1)
            door.boot()
            await caller.reply()

    asyncio.run(scenario())
    assert len(set(seen)) == 6


def test_an_engine_that_never_answers_its_first_look_is_unknown() -> None:
    """The seventh state: it accepts and says nothing; who comes is held as if it slept lightly."""

    async def scenario() -> None:
        async with house(settle=False, hold_sleeping_s=0.5) as door:
            door.misfortune("is_sleeping=mute*1")
            refused = await door.ask()
            assert (refused.status, refused.json["sleep_depth"]) == (503, "sleeping")
            assert (await door.status())["state"] == "unknown"
            door.fortune()
            await door.settled("awake")

    asyncio.run(scenario())


def test_wakes_are_counted_by_depth_and_result() -> None:
    async def scenario() -> None:
        async with house() as door:
            for level in (1, 2, 2):
                await door.put_to_sleep(level)
                assert (await door.ask()).status == 200
            await door.put_to_sleep(1)
            door.misfortune("wake_up=fail*2")
            assert (await wake(door))[0] == 503
            text = (await door.admin("/metrics")).body.decode()
            for line in (
                'frontdoor_wakes_total{depth="sleeping",result="succeeded",upstream="text"} 1.0',
                'frontdoor_wakes_total{depth="offloaded",result="succeeded",upstream="text"} 2.0',
                'frontdoor_wakes_total{depth="sleeping",result="failed",upstream="text"} 1.0',
                'frontdoor_wake_seconds_count{depth="offloaded",upstream="text"} 2.0',
                'frontdoor_wake_seconds_bucket{depth="sleeping",le="600.0",upstream="text"} 1.0',
            ):
                assert line in text, line

    asyncio.run(scenario())


# Changing the configuration


def test_reading_idle_limits_again_wakes_and_sleeps_nothing() -> None:
    """S14: only the next idle time is another one."""

    async def scenario() -> None:
        async with house("text", "ocr", idle_sleep_s=30) as door:
            await door.put_to_sleep(1, "ocr")
            quiet = {key: len(door.calls(key)) for key in door.engines}
            door.path.write_text(
                door.path.read_text().replace("idle_sleep_s = 30", "idle_sleep_s = 40")
            )
            door.app.reread()
            await asyncio.sleep(0.1)  # nothing happens: there is no event to wait for
            assert {key: len(door.calls(key)) for key in door.engines} == quiet
            assert (door.state("text"), door.state("ocr")) == ("awake", "sleeping")
            door.path.write_text(door.path.read_text().replace("= 40", "= 0.2"))
            door.app.reread()
            await door.settled("sleeping", "text")

    asyncio.run(scenario())


def test_many_reloads_in_mid_wake_leave_the_wake_alone() -> None:
    """S13: one owner, one sequence."""

    async def scenario() -> None:
        async with house() as door:
            await door.put_to_sleep(2)
            door.misfortune("reload_weights=hang*1")
            caller = await door.begin(CHAT, chat_with())
            await door.occupied("collective_rpc")
            for number in range(5):
                text = door.path.read_text()
                old = "hold_sleeping_s = 10" if number == 0 else f"hold_sleeping_s = {10 + number}"
                door.path.write_text(text.replace(old, f"hold_sleeping_s = {11 + number}"))
                door.app.reread()
            door.release()
            assert text_of(await caller.reply()) == WORDS
            assert (await door.status())["wakes_total"] == 1

    asyncio.run(scenario())
