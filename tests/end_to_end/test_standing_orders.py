"""Pins, keeps, sleeps with an end and schedules of a running front door, on real sockets."""

import asyncio
import json
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from killable import killable
from naps import CHAT, House, chat_with, house
from test_hand_over_live import next_of, until
from test_wake_commands import command

from tornado_frontdoor.proxy.admin.orders import orders_of

MONDAY_7 = datetime(2026, 11, 30, 7, 0, tzinfo=UTC).timestamp()
OFFICE = ["awake mon-fri 08:00-18:00", "asleep daily 22:00-06:00"]


async def said(door: House, path: str, status: int = 200) -> dict[str, Any]:
    """Call the admin listener and return what it answers."""
    reply = await door.admin(f"/admin/{path}", "POST")
    assert reply.status == status, reply.body
    told: dict[str, Any] = reply.json
    return told


async def explained(door: House) -> dict[str, Any]:
    told: dict[str, Any] = (await door.admin("/admin/explain/text")).json
    return told


def clock(door: House, instant_s: float) -> Callable[[float], None]:
    """Put another clock on the wall; returns what sets it."""
    orders = door.upstream().orders
    assert orders is not None
    shown = [instant_s]
    orders.wall = lambda: shown[0]

    def turn_to(instant_s: float) -> None:
        shown[0] = instant_s
        orders.refresh()

    turn_to(instant_s)
    return turn_to


def test_a_pin_keeps_an_idle_engine_awake_is_shown_and_ends_by_unpin() -> None:
    async def scenario() -> None:
        async with house(idle_sleep_s=0.3) as door:
            told = await said(door, "pin/text?by=alice&for=90m")
            (pin,) = told["orders"]
            assert (pin["kind"], pin["owner"], pin["by"]) == ("pin", "operator", "alice")
            assert 5390 < pin["left_s"] <= 5400
            assert (await door.status())["orders"][0]["until"] == pin["until"]
            await asyncio.sleep(0.6)
            assert door.state() == "awake"
            assert (await explained(door))["held_by"] == [
                f"it is pinned by operator (alice) until {pin['until']}"
            ]
            metrics = (await door.admin("/metrics")).body.decode()
            shown = 'frontdoor_standing_orders{kind="pin",owner="operator",upstream="text"} 1.0'
            assert shown in metrics
            assert (await said(door, "unpin/text"))["orders"] == []
            await door.settled("sleeping")
            await said(door, "unpin/text", 409)

    asyncio.run(scenario())


def test_an_unpin_tells_that_a_caller_still_wants_it_awake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with house() as door:
            asked = await door.call(CHAT, chat_with("text"), **{"X-Frontdoor-Keep-Alive": "1h"})
            assert asked.status == 200
            await said(door, "pin/text")
            caplog.set_level("INFO", "frontdoor")
            await said(door, "unpin/text")
            (told,) = [one for one in caplog.messages if "holds" in one]
            assert told.startswith("text: no order holds it any more, but a caller (127.0.0.1): ")
            assert " awake until 20" in told

    asyncio.run(scenario())


def test_an_order_ends_by_itself_and_what_was_before_counts_again() -> None:
    async def scenario() -> None:
        async with house(idle_sleep_s=0.1) as door:
            await said(door, "keep/text?for=0.5s")
            assert door.state() == "awake"
            await door.settled("sleeping")
            assert (await door.status())["orders"] == []

    asyncio.run(scenario())


def test_one_that_is_to_sleep_on_refuses_requests_with_the_reason_until_somebody_wakes_it() -> None:
    async def scenario() -> None:
        async with house() as door:
            told = await said(door, "sleep/text?for=8h&by=alice&level=2")
            until = told["orders"][0]["until"]
            await door.settled("offloaded")
            refused = await door.ask()
            assert (refused.status, refused.json["error"]["code"]) == (503, "model_asleep")
            assert refused.json["detail"] == (
                f"text is to stay asleep until {until}, by operator (alice)"
            )
            assert refused.headers["retry-after"] == "59"
            assert 1 <= int(refused.headers["retry-after-ms"]) <= 59000
            told = await explained(door)
            assert told["a_request_now"] == f"would be refused: it is to stay asleep until {until}"
            assert told["expected_wait_s"] == 0
            assert door.calls().count("wake_up") == 0
            sleeps = 'frontdoor_sleeps_total{level="2",reason="operator",upstream="text"} 1.0'
            assert sleeps in (await door.admin("/metrics")).body.decode()
            history = (await explained(door))["history"]
            assert any("as an operator wanted it (alice)" in one["text"] for one in history)
            assert (await door.admin("/admin/wake/text?wait=true", "POST")).status == 200
            assert (await door.ask()).status == 200
            assert (await door.status())["orders"] == []

    asyncio.run(scenario())


def test_one_that_is_busy_lets_its_stream_end_and_sleeps_then() -> None:
    async def scenario() -> None:
        async with house() as door:
            stream = asyncio.ensure_future(door.ask(stream=True, tokens=10, gap_ms=30))
            await door.until(lambda: door.gate.in_flight == 1)
            await said(door, "sleep/text?for=1h")
            assert (await door.ask()).status == 503
            assert (await stream).status == 200
            await door.settled("sleeping")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("keep/text", "keep needs an end"),
        ("pin/text?for=soon", "soon"),
        ("pin/text?for=-5m", "is not ahead"),
        ("pin/text?for=1h&until=2030-01-01T00:00:00Z", "cannot both"),
        ("pin/text?until=2030-01-01T00:00:00", "needs a time zone"),
        ("pin/text?until=2020-01-01T00:00:00Z", "is not ahead"),
        ("pin/text?for=999999h", "more than ten years"),
        ("keep/text?for=1h&for=2h", "'for' is given twice"),
        ("pin/text?for=", "'for' has no value; pin takes by, for, replica, until"),
        ("pin/text?for", "'for' has no value"),
        ("pin/text?for=+", "'for' has no value"),
        ("pin/text?for_s=5", "no parameter 'for_s'; it has by, for, replica, until"),
        ("sleep/text?until=", "'until' has no value"),
        ("sleep/text?for_s=5", "no parameter 'for_s'; it has by, for, level, replica, until"),
        ("wake/text?replica=", "'replica' has no value"),
        ("wake/text?wait=bogus", "wait must be true or false, not 'bogus'"),
        ("unpin/text?for=1h", "no parameter 'for'; it has by, replica"),
        ("drain/text?undo=", "'undo' has no value"),
        ("reload?bogus=1", "reload has no parameter 'bogus'; it takes none"),
        ("believe/text?bogus=1", "no parameter 'bogus'; it has replica"),
        ("what-if/text?cap=1&queue=1&timeout=1", "no parameter 'timeout'"),
        ("sleep/text?for=1h&level=7", "level must be one of 1, 2"),
    ],
)
def test_an_order_that_makes_no_sense_changes_nothing(path: str, complaint: str) -> None:
    async def scenario() -> None:
        async with house() as door:
            told = await said(door, path, 400)
            assert complaint in told["error"]
            assert (await door.status())["orders"] == []
            await said(door, "pin/nobody", 404)

    asyncio.run(scenario())


def test_an_engine_that_never_sleeps_takes_no_orders() -> None:
    async def scenario() -> None:
        async with house(tables={"text": {"awake": {}}}) as door:
            assert "no sleep table" in (await said(door, "pin/text", 501))["error"]

    asyncio.run(scenario())


def test_the_last_word_of_an_operator_counts() -> None:
    async def scenario() -> None:
        async with house() as door:
            await said(door, "pin/text")
            assert (await door.admin("/admin/sleep/text", "POST")).status == 200
            assert (await door.status())["orders"] == []
            await said(door, "sleep/text?for=1h")
            told = await said(door, "pin/text")
            assert [one["kind"] for one in told["orders"]] == ["pin"]

    asyncio.run(scenario())


def test_a_pin_goes_on_at_the_front_door_that_takes_over() -> None:
    async def scenario() -> None:
        async with house(idle_sleep_s=0.3, mishaps_allowed=True) as door:
            old = door.upstream()
            pinned = await said(door, "pin/text?for=1h&by=alice")
            async with next_of(door) as new:
                taken = new.app.pool.current["text"]
                await until(lambda: taken.state == "awake")
                assert [one.by for one in taken.sleepers.held()] == ["alice"]
                told = orders_of(taken)
                assert told[0]["until"] == pinned["orders"][0]["until"]
                assert old.orders is not None
                assert old.orders.closed, "one of the two gives orders"
                await asyncio.sleep(0.6)
                assert taken.state == "awake"
                await door.app.succession.finish(asyncio.Event())

    asyncio.run(scenario())


def test_a_weekly_schedule_wakes_ahead_of_time_holds_awake_and_puts_to_sleep() -> None:
    async def scenario() -> None:
        async with house(idle_sleep_s=0.2, schedule=OFFICE, time_zone="Europe/London") as door:
            turn_to = clock(door, MONDAY_7)
            await door.settled("sleeping")
            assert (await door.status())["orders"] == []
            turn_to(MONDAY_7 + 3599.5)  # less than its wake takes is left
            await door.settled("awake")
            (day,) = (await door.status())["orders"]
            assert (day["owner"], day["by"]) == ("schedule", OFFICE[0])
            assert day["until"] == "2026-11-30T18:00:00Z"
            history = (await explained(door))["history"]
            assert any("waking, for its schedule" in one["text"] for one in history)
            turn_to(MONDAY_7 + 5 * 3600)
            await asyncio.sleep(0.4)
            assert door.state() == "awake"
            turn_to(MONDAY_7 + 11.5 * 3600)  # the day is over, and nobody asks
            await door.settled("sleeping")
            assert (await door.ask()).status == 200
            turn_to(MONDAY_7 + 16 * 3600)
            await door.settled("sleeping")
            refused = await door.ask()
            assert refused.status == 503
            assert f"until 2026-12-01T06:00:00Z, by schedule ({OFFICE[1]})" in refused.body.decode()
            assert (await door.admin("/admin/wake/text?wait=true&by=bob", "POST")).status == 200
            orders = (await door.status())["orders"]
            assert [(one["kind"], one["by"]) for one in orders] == [
                ("keep", "bob"),
                ("asleep", OFFICE[1]),
            ]
            assert orders[0]["until"] == "2026-12-01T06:00:00Z"
            assert (await door.ask()).status == 200

    asyncio.run(scenario())


def test_a_schedule_and_a_pin_of_the_file_change_with_the_file() -> None:
    async def scenario() -> None:
        async with house(idle_sleep_s=0.2) as door:
            text = door.path.read_text()
            new = text.replace("idle_sleep_s", "pinned = true\nidle_sleep_s")
            door.path.write_text(new)
            assert door.app.reread()[0]
            assert [one["owner"] for one in (await door.status())["orders"]] == ["configuration"]
            always = 'schedule = ["asleep daily 00:00-24:00"]\nidle_sleep_s'
            door.path.write_text(text.replace("idle_sleep_s", always))
            assert door.app.reread()[0]
            await door.settled("sleeping")
            assert (await door.ask()).status == 503
            door.path.write_text(text)
            assert door.app.reread()[0]
            assert (await door.ask()).status == 200

    asyncio.run(scenario())


def test_what_is_preloaded_is_woken_one_after_the_other_by_priority() -> None:
    async def scenario() -> None:
        keys = ("text", "code", "ocr")
        async with house(*keys) as door:
            await door.put_to_sleep(1, *keys)
            text = door.path.read_text()
            for key in ("text", "code"):
                table = f"[upstreams.{key}.sleep]"
                text = text.replace(table, f"{table}\npreload = true")
            gpu = "[upstreams.code.gpu]\ndevices = [0]\nutilization = 0.1\npriority = 5\n"
            door.path.write_text(text + "\n" + gpu)
            assert door.app.reread()[0]
            door.app.pool.preload()
            await door.settled("awake", "text", "code")
            assert door.state("ocr") == "sleeping"
            begun = {}
            for key in ("code", "text"):
                history = (await door.admin(f"/admin/explain/{key}")).json["history"]
                texts = {one["text"]: one["time"] for one in history}
                begun[key] = texts["it is waking, for its preload"]
            assert begun["code"] < begun["text"]

    asyncio.run(scenario())


@pytest.mark.slow
def test_orders_by_the_command_line_outlive_a_kill_of_the_front_door(tmp_path: Path) -> None:
    """Case S34: a pin survives restarts."""

    async def scenario() -> None:
        async with killable(tmp_path) as scene:
            await scene.door.settled("awake")
            soon = f"{datetime.now(UTC) + timedelta(days=9):%Y-%m-%dT%H:%M}+00:00"
            pinned = await command(scene, "pin", "text-any", "--until", soon)
            assert (pinned.returncode, pinned.stderr) == (0, "")
            assert "pin by operator (" in pinned.stdout
            kept = await command(scene, "keep", "text", "2h")
            assert "keep by operator" in kept.stdout
            asleep = await command(scene, "sleep", "text", "--level", "2", "--for", "1h30m")
            assert asleep.stdout.startswith("text: ")
            assert "asleep by operator" in asleep.stdout
            await scene.door.settled("offloaded")
            before = (await scene.door.status())["orders"]
            await scene.door.end(signal.SIGKILL)
            await scene.door.start()
            await scene.door.settled("offloaded")
            after = (await scene.door.status())["orders"]
            assert [one["until"] for one in after] == [one["until"] for one in before]
            assert (await scene.door.ask()).status == 503
            told = await command(scene, "explain", "text")
            assert "it is kept asleep by operator" in told.stdout
            unpinned = await command(scene, "unpin", "text")
            assert (unpinned.returncode, unpinned.stdout) == (1, "")
            assert "neither pinned nor kept" in unpinned.stderr
            woken = await command(scene, "wake", "text", "--wait")
            assert woken.stdout == "text: awake\n"
            wrong = await command(scene, "keep", "text", "soon")
            assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
            shown = await command(scene, "status", "--json")
            assert json.loads(shown.stdout)["upstreams"]["text"]["orders"] == []

    asyncio.run(scenario())
