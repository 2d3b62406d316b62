"""A front door killed at every step of a wake and of a sleep; the next one picks up where it was.

Each kill is at a chosen moment: an engine's call hangs (it is under way), is mute (it has had its
effect, and nobody heard of it), or its canary is being answered.
"""

import asyncio
from pathlib import Path
from typing import NamedTuple

import pytest
from killable import Scene, killable
from naps import CHAT, RELEASES, WORDS, chat_with, last_release, text_of
from stopwatch import PATIENCE_S
from wire import Wire


class Moment(NamedTuple):
    """When to kill: the misfortune that makes time stand still there."""

    spec: str

    @property
    def struck(self) -> str:
        """How the stand-in counts it."""
        return self.spec.partition("*")[0].partition(":")[0]


def at(*specs: str) -> list[Moment]:
    return [Moment(f"{spec}*1" if "*" not in spec else spec) for spec in specs]


CANARY = "completions=slow:999"
WAKE_1 = at("is_sleeping=hang", "wake_up=hang", "wake_up=mute", "is_sleeping=hang*1@1", CANARY)
WAKE_2 = at(
    *("is_sleeping=hang", "wake_up=hang", "wake_up=mute", "reload_weights=hang"),
    *("reload_weights=mute", "wake_up=hang*1@1", "wake_up=mute*1@1", "is_sleeping=hang*1@1"),
    CANARY,
)
WAKE_2_PLAIN = [
    moment for moment in WAKE_2 if "wake_up" not in moment.spec or "@" not in moment.spec
]
SLEEP = at("is_sleeping=hang", "sleep=hang", "sleep=mute", "is_sleeping=hang*1@1")
DEEPER = at("is_sleeping=hang", "wake_up=hang", "wake_up=mute", "sleep=hang", "sleep=mute")


async def kill_at(scene: Scene, moment: Moment, *, asked_at_once: bool) -> None:
    """Kill the front door at a moment that is about to come, and let the next one go on."""
    engine = scene.engine
    injected = engine._faults.injected
    await scene.until(lambda: injected[moment.struck] == 1)
    if "mute" in moment.spec:
        await scene.until(lambda: engine._engine.busy is None)
    await scene.door.end()
    await scene.door.start()
    if engine._engine.busy is not None:
        # The new one looks while the old one's call is still under way, and must leave it alone.
        await scene.until(lambda: len(engine._engine._loop) > 0)
    wire = None
    if asked_at_once:
        wire = await scene.door.begin(CHAT, chat_with())
    if engine._engine.busy is not None:
        scene.release()
    injected.clear()
    engine._faults.clear()
    if wire is None:
        await at_rest(scene)
        assert not scene.half_awake(), moment
        wire = await scene.door.begin(CHAT, chat_with())
    reply = await wire.reply()
    assert (reply.status, text_of(reply)) == (200, WORDS), moment
    assert not scene.half_awake()
    scene.hold_to_the_laws()


async def at_rest(scene: Scene) -> None:
    """Wait until the front door has nothing more to do to the engine."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            status = await scene.door.status()
            if status["state"] in ("awake", "sleeping", "offloaded") and not status["wake_step"]:
                return
            await asyncio.sleep(0.02)


async def asleep(scene: Scene, level: int) -> None:
    await scene.door.settled("awake")
    reply = await scene.door.admin(f"/admin/sleep/text?level={level}", "POST")
    assert reply.status == 200, reply.body
    assert scene.engine._engine.memory.depth == level


@pytest.mark.parametrize(
    ("version", "level"),
    [
        # By default also the release on which a journal is all that stands before garbage.
        pytest.param(version, level, marks=() if version in by_default else pytest.mark.slow)
        for level, by_default in ((1, ("0.33",)), (2, ("0.16", "0.33")))
        for version in RELEASES
    ],
)
def test_02_killed_at_each_step_of_a_wake(tmp_path: Path, version: str, level: int) -> None:
    """Row 12, V19, V20: served, no garbage, one sequence at a time, never left half awake."""
    moments = WAKE_1 if level == 1 else WAKE_2_PLAIN if version == "0.16" else WAKE_2

    async def scenario() -> None:
        async with killable(tmp_path, version) as scene:
            for number, moment in enumerate(moments):
                await asleep(scene, level)
                scene.engine._faults.add(moment.spec)
                await scene.door.begin(CHAT, chat_with())
                await kill_at(scene, moment, asked_at_once=number % 2 == 0)

    asyncio.run(scenario())


@last_release
@pytest.mark.parametrize("level", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_02_killed_at_each_step_of_a_sleep(tmp_path: Path, version: str, level: int) -> None:
    """S6: and of the sleep nothing is left that would need an operator."""

    async def scenario() -> None:
        async with killable(tmp_path, version) as scene:
            for number, moment in enumerate(SLEEP):
                await scene.door.settled("awake")
                scene.engine._faults.add(moment.spec)
                await scene.door.begin(f"/admin/sleep/text?level={level}", admin=True)
                await kill_at(scene, moment, asked_at_once=number % 2 == 0)

    asyncio.run(scenario())


@last_release
def test_02_killed_at_each_step_from_level_1_to_2(tmp_path: Path, version: str) -> None:
    """On the way deeper the engine is awake in part, and for a moment whole on older releases."""

    async def scenario() -> None:
        async with killable(tmp_path, version) as scene:
            for number, moment in enumerate(DEEPER):
                await asleep(scene, 1)
                scene.engine._faults.add(moment.spec)
                await scene.door.begin("/admin/sleep/text?level=2", admin=True)
                await kill_at(scene, moment, asked_at_once=number % 2 == 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("level", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_12_killed_twice_in_one_wake(tmp_path: Path, level: int) -> None:
    """Row 12: the front door that picks up is killed too."""

    async def scenario() -> None:
        async with killable(tmp_path) as scene:
            await asleep(scene, level)
            for spec in ("wake_up=mute", CANARY):
                scene.engine._faults.injected.clear()
                moment = Moment(f"{spec}*1")
                scene.engine._faults.add(moment.spec)
                await scene.door.begin(CHAT, chat_with())
                await scene.until(lambda m=moment: scene.engine._faults.injected[m.struck] == 1)
                await scene.door.end()
                await scene.door.start()
            scene.engine._faults.clear()
            assert text_of(await scene.door.ask()) == WORDS

    asyncio.run(scenario())


def test_depth_and_wake_times_outlive_a_kill(tmp_path: Path) -> None:
    """The next front door knows how deep its engine sleeps and how long it takes to wake."""

    async def scenario() -> None:
        async with killable(tmp_path) as scene:
            await asleep(scene, 2)
            assert text_of(await scene.door.ask()) == WORDS
            before = (await scene.door.status())["estimated_wake_seconds"]
            assert before["offloaded"] > 0
            await asleep(scene, 1)
            await scene.door.end()
            await scene.door.start()
            # Where the kill came before the end of the sleep was on the disk, it is made once more.
            await at_rest(scene)
            after = await scene.door.status()
            assert (after["sleep_depth"], after["sleeping"]) == ("sleeping", True)
            assert after["estimated_wake_seconds"] == before

    asyncio.run(scenario())


@pytest.mark.parametrize("level", [1, 2])
def test_another_hand_wakes_it_while_no_front_door_is_there(tmp_path: Path, level: int) -> None:
    """V5: killed in a sleep whose end nobody saw; awake and healthy, it may be full of garbage."""

    async def scenario() -> None:
        async with killable(tmp_path) as scene:
            await scene.door.settled("awake")
            scene.engine._faults.add("sleep=mute*1")
            await scene.door.begin(f"/admin/sleep/text?level={level}", admin=True)
            await scene.until(lambda: scene.engine._engine.memory.depth == level)
            await scene.door.end()
            wire = Wire(*await asyncio.open_connection("127.0.0.1", scene.engine.port))
            wire.send("/wake_up", b"")
            assert (await wire.reply()).status == 200
            wire.leave()
            await scene.door.start()
            assert text_of(await scene.door.ask()) == WORDS
            calls = [call["call"] for call in scene.engine._counters.control_calls]
            assert ("collective_rpc" in calls) is (level == 2)

    asyncio.run(scenario())
