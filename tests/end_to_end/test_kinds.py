"""Kinds of engine other than vLLM, each through what waking must keep; their stand-ins too."""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doorway import Doorway
from engines_of_kinds import FakeEngine, FakeRouter, FakeSglang
from naps import CHAT, chat_with
from stopwatch import PATIENCE_S

from tornado_frontdoor.config import load
from tornado_frontdoor.core.wake import machine, policy
from tornado_frontdoor.proxy.app import App
from tornado_frontdoor.proxy.gate_settings import limits_of, wake_limits_of

CONFIGURATION = """
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
state_dir = "state"

[upstreams.text]
engine = "{engine}"
url = "http://127.0.0.1:{port}"

[upstreams.text.sleep]
max_waiting = 64
idle_sleep_s = 0
idle_offload_s = 0
hold_offloaded_s = {hold_s}
hold_restarting_s = {hold_s}

[models.text]
upstream = "text"
"""
Engine = FakeRouter | FakeSglang
every_kind = pytest.mark.parametrize("make", [FakeRouter, FakeSglang], ids=["llama.cpp", "sglang"])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the machine look again, and try again, sooner than is good for real engines."""
    monkeypatch.setattr(machine, "RETRY_S", 0.05)
    monkeypatch.setattr(policy, "FIRST_PAUSE_S", 0.3)


class KindDoor(Doorway):
    """A front door before one engine."""

    engine: Any

    @property
    def state(self) -> str:
        """What the front door believes."""
        return self.app.pool.current["text"].state

    async def settled(self, *states: str) -> None:
        """Wait until the front door believes one of these."""
        await self.until(lambda: self.state in states, PATIENCE_S)

    def change(self, **limits: float) -> None:
        """Have other limits than the configuration's, or what is no setting."""
        upstream = self.app.pool.current["text"]
        wake = wake_limits_of(upstream.settings)
        assert wake is not None
        upstream.keeper.change_limits(limits_of(upstream.settings), replace(wake, **limits))

    async def sleep(self) -> None:
        """Have it asleep, by an operator's call."""
        reply = await self.admin("/admin/sleep/text", "POST")
        assert (reply.status, reply.json["state"]) == (200, "offloaded"), reply.body
        assert not self.engine.awake

    async def ask(self) -> int:
        """Ask for a chat; return the status."""
        return (await self.call(CHAT, chat_with())).status


@contextlib.asynccontextmanager
async def front_door(folder: Path, engine: FakeEngine, **values: Any) -> AsyncIterator[KindDoor]:
    path = folder / "frontdoor.toml"
    told = {"engine": engine.kind, "port": engine.port, "hold_s": 10, **values}
    path.write_text(CONFIGURATION.format(**told))
    app = App(load(path), lambda: load(path), io.StringIO())
    door = KindDoor(app, path.read_text(), path, io.StringIO())
    door.engine = engine
    try:
        yield door
    finally:
        await door.leave()
        await app.close()


@contextlib.asynccontextmanager
async def scene(folder: Path, make: type[Engine], **values: Any) -> AsyncIterator[KindDoor]:
    """Run both; at the end nobody may have met an engine that was not awake."""
    engine = make()
    await engine.start()
    try:
        async with front_door(folder, engine, **values) as door:
            door.change(probe_period_s=0.1)
            await door.settled("awake", "offloaded")
            if door.state == "offloaded":
                assert await door.ask() == 200
            yield door
        assert (engine.garbage, engine.overlaps) == (0, 0)
    finally:
        await engine.close()


@every_kind
def test_who_comes_to_a_sleeping_engine_is_served_by_it(tmp_path: Path, make: type[Engine]) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, make) as door:
            await door.sleep()
            wakes, chats = door.engine.wakes, door.engine.chats
            assert await door.ask() == 200
            assert door.engine.awake
            assert door.engine.wakes == wakes + 1
            assert door.engine.chats == chats + 2, "the canary, and who came"
            assert door.engine.deaths == 0

    asyncio.run(scenario())


@every_kind
def test_a_crowd_wakes_it_once(tmp_path: Path, make: type[Engine]) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, make) as door:
            await door.sleep()
            wakes = door.engine.wakes
            assert await asyncio.gather(*(door.ask() for _ in range(20))) == [200] * 20
            assert door.engine.wakes == wakes + 1

    asyncio.run(scenario())


@every_kind
def test_idleness_puts_it_to_sleep_and_somebody_elses_work_keeps_it_awake(
    tmp_path: Path, make: type[Engine]
) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, make) as door:
            door.change(probe_period_s=0.1, idle_offload_s=0.3)
            door.engine.running = 1
            assert await door.ask() == 200
            backoff = door.app.pool.current["text"].keeper.gate._wake
            assert backoff is not None
            await door.until(lambda: backoff.sleep_backoff.until_s > 0, PATIENCE_S)
            assert door.engine.awake, "it works for somebody else"
            door.engine.running = 0
            await door.until(lambda: door.state == "offloaded", PATIENCE_S)
            assert not door.engine.awake

    asyncio.run(scenario())


@every_kind
def test_a_wake_that_fails_is_a_503_and_a_later_one_serves(
    tmp_path: Path, make: type[Engine]
) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, make) as door:
            await door.sleep()
            door.change(hold_offloaded_s=0.2, hold_restarting_s=0.2)
            door.engine.failing.add("load")
            assert await door.ask() == 503
            door.engine.failing.clear()
            async with asyncio.timeout(PATIENCE_S):
                while await door.ask() != 200:
                    pass
            assert door.engine.awake
            # What was resumed in part ends when it is resumed again, and its supervisor starts it.
            assert door.engine.deaths == (1 if make is FakeSglang else 0)

    asyncio.run(scenario())


@every_kind
def test_what_is_done_out_of_band_is_found(tmp_path: Path, make: type[Engine]) -> None:
    """A router's model unloaded by hand; SGLang started anew while it was asleep."""

    async def scenario() -> None:
        async with scene(tmp_path, make) as door:
            if make is FakeRouter:
                door.engine.status = "unloaded"
                await door.settled("offloaded")
            else:
                await door.sleep()
                await door.engine.close()
                await door.engine.start()
            assert await door.ask() == 200
            assert door.engine.awake
            assert door.engine.deaths == 0

    asyncio.run(scenario())


@every_kind
def test_an_engine_that_dies_while_it_wakes_serves_when_it_is_back(
    tmp_path: Path, make: type[Engine]
) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, make, hold_s=20) as door:
            await door.sleep()
            door.engine.blocked = asyncio.Event()
            calls = len(door.engine.calls)
            asking = asyncio.ensure_future(door.ask())
            await door.until(lambda: len(door.engine.calls) > calls, PATIENCE_S)
            await door.engine.die()
            door.engine.blocked.set()
            door.engine.blocked = None
            await door.settled("down")
            await door.engine.start()
            assert await asking == 200
            assert door.engine.awake

    asyncio.run(scenario())


@every_kind
def test_the_next_front_door_knows_how_it_stands(tmp_path: Path, make: type[Engine]) -> None:
    async def scenario() -> None:
        engine = make()
        await engine.start()
        try:
            async with front_door(tmp_path, engine) as first:
                await first.settled("awake", "offloaded")
                assert await first.ask() == 200
                await first.sleep()
            async with front_door(tmp_path, engine) as second:
                await second.settled("offloaded")
                assert await second.ask() == 200
            assert (engine.garbage, engine.deaths) == (0, 0)
        finally:
            await engine.close()

    asyncio.run(scenario())


@every_kind
def test_an_engine_that_answers_with_garbage_is_quarantined_until_it_does_not(
    tmp_path: Path, make: type[Engine]
) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, make) as door:
            gate = door.app.pool.current["text"].keeper.gate
            # SGLang was awake when it was found, and the router's model was loaded by us.
            assert gate.proof is not None
            assert gate.proof["last"] == "recorded"
            await door.sleep()
            door.engine.babbles = True
            door.change(hold_offloaded_s=0.5, hold_sleeping_s=0.5, hold_restarting_s=0.5)
            chats = door.engine.chats
            assert await door.ask() == 503
            await door.until(lambda: gate.proof["quarantined"], PATIENCE_S)
            told = (await door.admin("/admin/explain/text")).json
            assert told["canary"]["quarantined"]
            assert any("quarantined: its first token is '!!'" in t["text"] for t in told["history"])
            assert door.engine.chats > chats, "canaries alone"
            door.engine.babbles = False
            async with asyncio.timeout(PATIENCE_S):
                while await door.ask() != 200:
                    pass
            page = (await door.admin("/metrics")).body.decode()
            for result in ("recorded", "garbage", "matched"):
                assert f'frontdoor_canaries_total{{result="{result}",upstream="text"}}' in page

    asyncio.run(scenario())


def test_a_router_that_says_that_its_model_is_not_loaded_is_looked_at_at_once(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, FakeRouter) as door:
            door.change(probe_period_s=1e6)
            wake = door.app.pool.current["text"].keeper.gate._wake
            assert wake is not None
            wake.next_s = 1e9  # nobody looks by himself
            door.engine.status = "unloaded"
            assert await door.ask() == 400
            await door.settled("offloaded")
            assert await door.ask() == 200

    asyncio.run(scenario())
