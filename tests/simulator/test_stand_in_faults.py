"""Misfortunes by order and by command: what goes wrong, how often, and that it then ends."""

import asyncio
from typing import Any

import pytest
from caller import Caller, scene
from stopwatch import Stopwatch
from wire import Cut

from simulator.standin.faults import Faults


def sleeper(**options: Any) -> Any:
    """Return the scene of an engine in sleep mode whose transitions take no time."""
    quick = {"sleep_s": (0, 0), "wake_s": (0, 0), "reload_s": 0, "restart_s": 0.15}
    return scene(sleep_mode=True, **{**quick, **options})


async def took_s(caller: Caller, path: str) -> float:
    """Return the seconds that a control call takes."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await caller.call(path)
    return loop.time() - began_s


async def is_unanswered(caller: Caller, path: str, method: str = "POST") -> bool:
    """Tell whether a call has no answer after a while."""
    connection = await caller.begin(path, method=method)
    try:
        await asyncio.wait_for(connection.head(), 0.15)
    except TimeoutError:
        return True
    return False


@pytest.mark.parametrize(
    ("spec", "strikes"),
    [
        ("chat=fail*2", ["fail", "fail", "", ""]),
        ("chat=fail", ["fail"] * 4),
        ("chat=fail*1@2", ["", "", "fail", ""]),
        ("chat=slow:3*1,inference=die*1", ["slow", "die", "", ""]),
        ("messages=fail", [""] * 4),
    ],
)
def test_rules_strike_by_name_count_and_order(spec: str, strikes: list[str]) -> None:
    faults = Faults(spec)
    assert [faults.strike("chat", "inference").kind for _ in strikes] == strikes


@pytest.mark.parametrize(
    "spec",
    ["chat", "chat=", "chat=slow", "sleep=garbage", "health=noop", "nap=fail", "chat=fail*x"],
)
def test_a_wrong_rule_is_named(spec: str) -> None:
    with pytest.raises(ValueError, match=spec.replace("*", r"\*")):
        Faults(f"sleep=fail,{spec}")


def test_a_failing_reload_leaves_the_engine_alive_and_paused() -> None:
    async def scenario() -> None:
        async with sleeper(faults="reload_weights=fail") as caller:
            await caller.call("/sleep?level=2")
            await caller.call("/wake_up?tags=weights")
            for _ in range(3):
                assert (
                    await caller.call("/collective_rpc", {"method": "reload_weights"})
                ).status == 500
            assert (await caller.get("/is_sleeping")).json == {"is_sleeping": True}
            assert (await caller.call("/collective_rpc", {"method": "nap"})).status == 200

    asyncio.run(scenario())


def test_a_failing_wake_can_be_tried_again() -> None:
    async def scenario() -> None:
        async with sleeper(faults="wake_up=fail:507*1") as caller:
            await caller.call("/sleep")
            assert (await caller.call("/wake_up")).status == 507
            assert (await caller.get("/is_sleeping")).json == {"is_sleeping": True}
            assert (await caller.call("/wake_up")).json["status"] == "awake"

    asyncio.run(scenario())


def test_slow_calls_are_slow_as_often_as_ordered() -> None:
    async def scenario() -> None:
        async with sleeper(faults="wake_up=slow:0.6*1") as caller:
            await caller.call("/sleep")
            assert await took_s(caller, "/wake_up") >= 0.6
            watch = Stopwatch()
            await caller.call("/wake_up")
            assert watch.own_s < 0.6

    asyncio.run(scenario())


def test_a_sleep_that_hangs_blocks_every_later_control_call_but_not_health() -> None:
    async def scenario() -> None:
        async with sleeper(faults="sleep=hang*1") as caller:
            assert await is_unanswered(caller, "/sleep")
            assert await is_unanswered(caller, "/is_sleeping", "GET")
            assert (await caller.get("/health")).status == 200
            assert (await caller.stats())["engine"]["busy"] == "sleep"
            await caller.call("/stand-in/kill", {"restart_s": 0.05})
            await caller.until_refused()
            await caller.until_back()
            assert (await caller.get("/is_sleeping")).json == {"is_sleeping": False}

    asyncio.run(scenario())


def test_a_mute_call_takes_effect_without_an_answer() -> None:
    async def scenario() -> None:
        async with sleeper(faults="sleep=mute*1") as caller:
            assert await is_unanswered(caller, "/sleep")
            assert (await caller.get("/is_sleeping")).json == {"is_sleeping": True}

    asyncio.run(scenario())


def test_a_call_that_does_nothing_says_it_did() -> None:
    async def scenario() -> None:
        async with sleeper(faults="sleep=noop,reset_prefix_cache=noop*1") as caller:
            assert (await caller.call("/sleep?level=2")).json == {"status": "sleeping", "level": 2}
            assert (await caller.get("/is_sleeping")).json == {"is_sleeping": False}
            assert (await caller.call("/reset_prefix_cache")).json == {"success": False}
            assert (await caller.call("/reset_prefix_cache")).json == {"success": True}

    asyncio.run(scenario())


@pytest.mark.parametrize(("kind", "status"), [("die", 500), ("die_after", 200)])
def test_sleep_may_kill_with_or_after_its_200(kind: str, status: int) -> None:
    async def scenario() -> None:
        async with sleeper(faults=f"sleep={kind}*1") as caller:
            assert (await caller.call("/sleep")).status == status
            await caller.until_refused()
            await caller.until_back()
            assert (await caller.get("/is_sleeping")).json == {"is_sleeping": False}

    asyncio.run(scenario())


def test_the_first_inference_after_a_wake_dies_and_the_next_after_the_restart_too() -> None:
    async def scenario() -> None:
        async with sleeper(faults="chat=die_on_first*2@0") as caller:
            for _ in range(2):
                assert (await caller.chat()).status == 500
                await caller.until_refused()
                await caller.until_back()
            assert (await caller.chat()).status == 200
            assert (await caller.chat()).status == 200
            assert (await caller.stats())["deaths"] == 2

    asyncio.run(scenario())


def test_die_on_first_waits_for_a_wake_when_the_engine_has_served_before() -> None:
    async def scenario() -> None:
        async with sleeper() as caller:
            await caller.chat()
            await caller.call("/stand-in/faults", {"spec": "chat=die_on_first*1"})
            assert (await caller.chat()).status == 200
            await caller.call("/sleep")
            await caller.call("/wake_up")
            assert (await caller.chat()).status == 500

    asyncio.run(scenario())


def test_not_ready_yet_reaches_only_as_many_as_ordered() -> None:
    async def scenario() -> None:
        async with scene(faults="inference=fail:503*2") as caller:
            statuses = [(await caller.chat()).status for _ in range(3)]
            assert statuses == [503, 503, 200]
            assert (await caller.stats())["injected"] == {"inference=fail": 2}

    asyncio.run(scenario())


def test_garbage_and_drops_by_order() -> None:
    async def scenario() -> None:
        async with scene(faults="chat=garbage*1,chat=drop*1") as caller:
            assert (await caller.chat(stream=True)).text == "!!!!" * 3
            with pytest.raises(Cut):
                await caller.chat()
            assert (await caller.chat(stream=True)).text == "w0 w1 w2 "

    asyncio.run(scenario())


def test_looks_can_fail_hang_and_be_slow() -> None:
    async def scenario() -> None:
        faults = "health=fail:503*1,health=hang*1,version=slow:0.1*1,models=drop*1"
        async with scene(faults=faults) as caller:
            assert (await caller.get("/health")).status == 503
            assert await is_unanswered(caller, "/health", "GET")
            assert (await caller.get("/health")).status == 200
            assert (await caller.get("/version")).status == 200
            with pytest.raises(Cut):
                await caller.get("/v1/models")

    asyncio.run(scenario())


def test_faults_come_and_go_at_run_time() -> None:
    async def scenario() -> None:
        async with scene() as caller:
            wrong = await caller.call("/stand-in/faults", {"spec": "chat=explode"})
            assert wrong.status == 400
            await caller.call("/stand-in/faults", {"spec": "chat=fail"})
            assert (await caller.chat()).status == 500
            await caller.call("/stand-in/faults", {"clear": True})
            assert (await caller.chat()).status == 200

    asyncio.run(scenario())


@pytest.mark.parametrize("abrupt", [False, True])
def test_a_killed_engine_tells_its_streams_or_cuts_them_and_refuses_until_it_is_back(
    abrupt: bool,
) -> None:
    async def scenario() -> None:
        async with scene(slots=1) as caller:
            streaming = await caller.begin_chat("1", stream=True, tokens=1000, gap_ms=5)
            waiting = await caller.begin_chat("2", stream=True)
            plain = await caller.begin_chat("3")
            await caller.until(lambda s: s["in_flight"] == 3)
            kill = {"restart_s": 0.2, "abrupt": abrupt}
            assert (await caller.call("/stand-in/kill", kill)).status == 200
            for connection in (streaming, waiting, plain):
                if abrupt:
                    with pytest.raises(Cut):
                        await connection.reply()
                else:
                    reply = await connection.reply()
                    assert b'"code":500' in reply.body
                    assert reply.status == (500 if connection is plain else 200)
            await caller.until_refused()
            await caller.until_back()
            stats = await caller.stats()
            assert (stats["failed"], stats["in_flight"], stats["waiting"]) == (3, 0, 0)
            assert (await caller.chat()).status == 200

    asyncio.run(scenario())


def test_a_restarted_engine_may_accept_before_it_serves() -> None:
    async def scenario() -> None:
        async with scene() as caller:
            loop = asyncio.get_running_loop()
            await caller.call("/stand-in/kill", {"restart_s": 0.05, "accept_s": 0.3})
            await caller.until_refused()
            await caller.until_back()
            began_s = loop.time()
            assert (await caller.chat()).status == 200
            assert loop.time() - began_s > 0.1

    asyncio.run(scenario())
