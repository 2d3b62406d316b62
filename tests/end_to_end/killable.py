"""A front door as a process of its own, to be killed: its engines stay with the test."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from naps import CHAT, QUICK, Tables, broken_laws, chat_with, configuration
from stopwatch import PATIENCE_S
from wire import Reply, Wire

from simulator.standin.server import StandIn, StandInOptions

ROOT = Path(__file__).resolve().parents[2]


class DoorProcess:
    """One `frontdoor serve`, started again and again on the same configuration and state."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._process: asyncio.subprocess.Process | None = None
        self._wires: list[Wire] = []
        self.port = 0
        self.admin_port = 0

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        with (self.path.parent / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tornado_frontdoor.cli", "serve", "--config", self.path),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            public = await self._process.stdout.readline()
            admin = await self._process.stdout.readline()
        assert admin, self.log()
        self.port = int(public.rpartition(b":")[2])
        self.admin_port = int(admin.rpartition(b":")[2])

    async def end(
        self, number: signal.Signals = signal.SIGKILL, within_s: float = PATIENCE_S
    ) -> int:
        """End it by a signal and return its exit code."""
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(number)
        async with asyncio.timeout(within_s):
            code = await process.wait()
        assert process.stdout is not None
        assert await process.stdout.read() == b""
        for wire in self._wires:
            wire.leave()
            with contextlib.suppress(OSError):
                await wire.writer.wait_closed()
        self._wires.clear()
        return code

    async def restart(self) -> None:
        """Start the next one, after one that has ended by itself."""
        assert self._process is not None
        assert self._process.stdout is not None
        assert await self._process.stdout.read() == b""
        await self.start()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def log(self) -> str:
        """Return what all of them wrote to stderr."""
        return (self.path.parent / "log").read_text()

    async def begin(
        self, path: str, body: object = None, method: str = "POST", *, admin: bool = False
    ) -> Wire:
        """Send a request and do not wait for its answer."""
        port = self.admin_port if admin else self.port
        wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
        self._wires.append(wire)
        wire.send(path, body, method)
        return wire

    async def ask(self, model: str = "text", **more: Any) -> Reply:
        """Ask for a chat with a model and return the answer."""
        return await (await self.begin(CHAT, chat_with(model, **more))).reply()

    async def admin(self, path: str, method: str = "GET") -> Reply:
        """Call the admin listener."""
        return await (await self.begin(path, None, method, admin=True)).reply()

    async def status(self, key: str = "text") -> dict[str, Any]:
        """Return an upstream's part of `/admin/status`."""
        found: dict[str, Any] = (await self.admin("/admin/status")).json["upstreams"][key]
        return found

    async def settled(self, *states: str, key: str = "text", within_s: float = PATIENCE_S) -> str:
        """Wait until an engine is in one of some states."""
        async with asyncio.timeout(within_s):
            while True:
                state = str((await self.status(key))["state"])
                if state in states:
                    return state
                await asyncio.sleep(0.02)


class Scene:
    """A killable front door and the engine `text` behind it."""

    def __init__(self, door: DoorProcess, engine: StandIn) -> None:
        self.door = door
        self.engine = engine

    async def until(self, condition: Any, within_s: float = PATIENCE_S) -> None:
        """Wait for a condition of the engine; fails with its book."""
        try:
            async with asyncio.timeout(within_s):
                while not condition():  # noqa: ASYNC110 - what is watched has no event
                    await asyncio.sleep(0.002)
        except TimeoutError:
            calls = self.engine._counters.snapshot()["control_calls"]
            raise AssertionError(f"never: {calls[-5:]}\n{self.door.log()[-2000:]}") from None

    def release(self) -> None:
        """Let the call come through that the engine is busy with."""
        now = self.engine.now()
        assert self.engine._engine.busy is not None
        self.engine._engine._busy_until_s = now
        self.engine.pump()

    def half_awake(self) -> bool:
        """Tell whether the engine is neither whole asleep nor whole awake."""
        memory = self.engine._engine.memory
        if memory.asleep:
            return len(memory.asleep) < 2
        return not self.engine._engine.proven_awake

    def hold_to_the_laws(self) -> None:
        """Fail where the engine has seen what no engine should."""
        broken = broken_laws(self.engine._counters.snapshot(), self.engine._engine.deaths)
        assert not broken, (broken, self.door.log()[-3000:])


@contextlib.asynccontextmanager
async def killable(
    folder: Path, version: str = "0.33", tables: Mapping[str, Tables] | None = None, **sleep: object
) -> AsyncIterator[Scene]:
    """Run a front door process before one engine; it is ended with SIGTERM and must end well."""
    options = {"models": ("text",), "sleep_mode": True, "vllm": version, **QUICK}
    engine = StandIn(StandInOptions(**options))
    url = f"http://127.0.0.1:{engine.listen()}"
    path = folder / "frontdoor.toml"
    path.write_text(configuration({"text": url}, {"text": {"sleep": sleep, **(tables or {})}}))
    door = DoorProcess(path)
    try:
        await door.start()
        scene = Scene(door, engine)
        yield scene
        assert await door.end(signal.SIGTERM) == 0
        scene.hold_to_the_laws()
        assert "Traceback" not in door.log(), door.log()
    except BaseException:
        if door._process is not None:
            await door.end()
        print(json.dumps(engine._counters.snapshot()["control_calls"][-20:], indent=1))
        print(door.log()[-4000:])
        raise
    finally:
        await engine.close()
