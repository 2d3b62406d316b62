"""A front door killed with -9 at the steps of engines that are no vLLM; the next one goes on.

Each step stands still in the engine when the front door is killed, or has just had its effect. By
default a few of them, all of them are slow. vLLM's are in `test_wake_kills.py`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from engines_of_kinds import FakeEngine, FakeRouter, FakeSglang
from killable import DoorProcess
from naps import CHAT, chat_with
from stopwatch import PATIENCE_S
from test_kinds import CONFIGURATION

SGLANG_WAKE = ("resume weights", "update_weights_from_disk", "resume kv_cache")


class Scene:
    """An engine of this process, and a front door of its own before it."""

    def __init__(self, engine: FakeEngine, door: DoorProcess) -> None:
        self.engine = engine
        self.door = door

    async def state(self) -> str:
        """Return what the front door believes."""
        return str((await self.door.status())["state"])

    async def settled(self, state: str) -> None:
        """Wait until the front door is at rest there."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                status = await self.door.status()
                if status["state"] == state and not status["wake_step"]:
                    return
                await asyncio.sleep(0.05)

    async def ask(self) -> int:
        """Ask for a chat; return the status."""
        wire = await self.door.begin(CHAT, chat_with())
        return (await wire.reply()).status

    async def asleep(self) -> None:
        """Have the engine asleep."""
        if await self.state() != "awake":
            assert await self.ask() == 200
            await self.settled("awake")
        reply = await self.door.admin("/admin/sleep/text", "POST")
        assert reply.status == 200, reply.body
        assert not self.engine.awake

    async def killed_at(self, call: str, *, had_its_effect: bool) -> None:
        """Kill the front door while the engine is at a call, and have the next one go on."""
        engine = self.engine
        engine.blocked = asyncio.Event()
        before = engine.calls.count(call)
        wire = await self.door.begin(CHAT, chat_with())
        async with asyncio.timeout(PATIENCE_S):
            while engine.calls.count(call) == before:
                if engine.calls and engine.calls[-1] != call:
                    engine.blocked.set()  # on to the step that is meant
                    engine.blocked = asyncio.Event()
                await asyncio.sleep(0.005)
        if had_its_effect:
            engine.blocked.set()
            await asyncio.sleep(0)
        await self.door.end()
        wire.leave()
        await self.door.start()
        engine.blocked.set()
        engine.blocked = None
        assert await self.ask() == 200
        assert engine.awake
        assert (engine.garbage, engine.overlaps) == (0, 0)


@contextlib.asynccontextmanager
async def scene(folder: Path, make: type[FakeEngine]) -> AsyncIterator[Scene]:
    engine = make()
    await engine.start()
    path = folder / "frontdoor.toml"
    path.write_text(CONFIGURATION.format(engine=engine.kind, port=engine.port, hold_s=60))
    door = DoorProcess(path)
    await door.start()
    try:
        yield Scene(engine, door)
    finally:
        await door.end()
        await engine.close()


STEPS = [
    pytest.param(FakeRouter, "load", False, id="llama.cpp at load"),
    pytest.param(FakeRouter, "load", True, id="llama.cpp after load", marks=pytest.mark.slow),
    *(
        pytest.param(
            FakeSglang,
            call,
            after,
            id=f"sglang {'after' if after else 'at'} {call}",
            marks=() if (call, after) == (SGLANG_WAKE[1], False) else pytest.mark.slow,
        )
        for call in SGLANG_WAKE
        for after in (False, True)
    ),
]


@pytest.mark.parametrize(("make", "call", "had_its_effect"), STEPS)
def test_killed_at_a_step_of_a_wake(
    tmp_path: Path, make: type[FakeEngine], call: str, *, had_its_effect: bool
) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, make) as one:
            await one.asleep()
            await one.killed_at(call, had_its_effect=had_its_effect)

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("make", [FakeRouter, FakeSglang], ids=["llama.cpp", "sglang"])
def test_killed_while_it_falls_asleep(tmp_path: Path, make: type[FakeEngine]) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, make) as one:
            await one.asleep()
            assert await one.ask() == 200
            engine = one.engine
            engine.blocked = asyncio.Event()
            calls = len(engine.calls)
            await one.door.begin("/admin/sleep/text", admin=True)
            async with asyncio.timeout(PATIENCE_S):
                while len(engine.calls) == calls:  # noqa: ASYNC110 - the engine has no event for it
                    await asyncio.sleep(0.005)
            await one.door.end()
            await one.door.start()
            engine.blocked.set()
            engine.blocked = None
            status = await one.ask()
            if make is FakeRouter and status == 400:
                # It says `loaded` until its process has ended; its refusal is looked into at once.
                status = await one.ask()
            assert status == 200
            assert engine.awake
            assert (engine.garbage, engine.overlaps) == (0, 0)

    asyncio.run(scenario())
