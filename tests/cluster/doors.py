"""Several front doors, their engines and a real Redis on one loop, all on real sockets."""

import asyncio
import contextlib
import io
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from redis_server import RedisServer
from stopwatch import PATIENCE_S
from wire import Reply, Wire, chat

from simulator.standin.server import StandIn, StandInOptions
from tornado_frontdoor.config import load
from tornado_frontdoor.proxy.app import App

LEASE_S = 0.5
LONG_LEASE_S = 3
"""Where nobody is to lose touch, though a busy machine may stand still for half a second."""
CHAT = "/v1/chat/completions"

CONFIGURATION = """
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
state_dir = "{folder}"
drain_timeout_s = 5
{server}
[cluster]
redis = "{redis}"
lease_s = {lease_s}
on_outage = "{on_outage}"

[upstreams.reasoning]
{engines}
[upstreams.reasoning.admission]
{slots}
cap = {cap}
queue = 8
queue_timeout_s = 20
{naps}
[upstreams.text]
url = "{text}"
{sleep}

[models.reasoning]
upstream = "reasoning"
[models.text]
upstream = "text"
"""

SLEEP = """
[upstreams.text.sleep]
idle_sleep_s = 0
idle_offload_s = 0
max_waiting = 16
"""


QUICK: dict[str, Any] = {"sleep_s": (0.01, 0.01), "wake_s": (0.01, 0.01), "reload_s": 0.01}
REPLICAS = ("reasoning", "second")


class Door:
    """One front door."""

    def __init__(self, app: App, log: io.StringIO) -> None:
        self.app = app
        self.log = log
        self.closed = False
        self.public, self.admin = (address.port for address in app.start())

    @property
    def node(self) -> Any:
        return self.app.pool.cluster.door.node

    async def wire(self, port: int | None = None) -> Wire:
        return Wire(*await asyncio.open_connection("127.0.0.1", port or self.public))

    async def call(self, model: str = "reasoning", **knobs: object) -> Reply:
        wire = await self.wire()
        wire.send(CHAT, chat(model, **knobs))
        reply = await wire.reply()
        wire.leave()
        return reply

    async def ask_admin(self, path: str, method: str = "GET") -> Any:
        wire = await self.wire(self.admin)
        wire.send(path, None, method, Host=f"127.0.0.1:{self.admin}")
        reply = await wire.reply()
        wire.leave()
        return reply

    async def status(self) -> Any:
        return (await self.ask_admin("/admin/status")).json

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            await self.app.close()


class Doors:
    """All of them."""

    def __init__(self, redis: RedisServer, folder: Path, **settings: object) -> None:
        self.redis = redis
        self.folder = folder
        self.settings = settings
        self.doors: list[Door] = []
        self.urls: dict[str, str] = {}
        self.reasoning: StandIn
        self.second: StandIn | None = None
        """Another engine behind the same name, each with 4 slots."""
        self.text: StandIn

    async def add(self, **settings: object) -> Door:
        values = {
            "server": "",
            "on_outage": "split",
            "sleep": "",
            "naps": "",
            "cap": 6,
            "lease_s": LEASE_S,
        }
        number = len(self.doors)
        path = self.folder / f"door-{number}.toml"
        if self.second is None:
            values |= {"engines": 'url = "{reasoning}"'.format_map(self.urls), "slots": "slots = 8"}
        else:
            several = [f'{{ url = "{self.urls[name]}", slots = 4 }}' for name in REPLICAS]
            values |= {"engines": f"replicas = [{', '.join(several)}]", "slots": ""}
        path.write_text(
            CONFIGURATION.format_map(
                {**values, **self.urls, "redis": self.redis.url, "folder": self.folder}
                | self.settings
                | settings
            )
        )
        log = io.StringIO()
        app = App(load(path), lambda: load(path), log)
        try:
            await app.pool.cluster.join()
        except Exception:
            await app.close()
            raise
        door = Door(app, log)
        self.doors.append(door)
        return door

    @property
    def alive(self) -> list[Door]:
        return [door for door in self.doors if not door.closed]

    @property
    def owner(self) -> Door:
        return next(door for door in self.alive if door.node.owner is not None)

    @property
    def member(self) -> Door:
        return next(door for door in self.alive if door.node.role == "member")

    def serves(self) -> bool:
        """Whether one owns the gates, knows all, and all know it."""
        owners = [door for door in self.alive if door.node.owner is not None]
        if len(owners) != 1 or owners[0].node.owner.learning:
            return False
        others = [door for door in self.alive if door is not owners[0]]
        return all(door.node.role == "member" and door.node.views for door in others)

    async def until(self, condition: Callable[[], object], within_s: float = PATIENCE_S) -> float:
        began_s = time.monotonic()
        while not condition():
            assert time.monotonic() - began_s < within_s, [door.node.role for door in self.alive]
            await asyncio.sleep(0.01)
        return time.monotonic() - began_s

    def stats(self) -> dict[str, Any]:
        return self.reasoning._counters.snapshot()


@contextlib.asynccontextmanager
async def doors(
    redis: RedisServer,
    folder: Path,
    count: int = 2,
    hold_s: float = 0.3,
    *,
    several: bool = False,
    **settings: object,
) -> AsyncIterator[Doors]:
    """Run so many front doors before two engines; in the end all slots must be free."""
    logging.getLogger("frontdoor").setLevel(logging.WARNING)
    many = Doors(redis, folder, **settings)
    options = StandInOptions(models=("reasoning",), slots=8, hold=hold_s, sleep_mode=True, **QUICK)
    many.reasoning = StandIn(options)
    many.text = StandIn(StandInOptions(models=("text",), sleep_mode=True))
    many.urls = {
        "reasoning": f"http://127.0.0.1:{many.reasoning.listen()}",
        "text": f"http://127.0.0.1:{many.text.listen()}",
    }
    if several:
        many.second = StandIn(options)
        many.urls["second"] = f"http://127.0.0.1:{many.second.listen()}"
    try:
        for _ in range(count):
            await many.add()
        await many.until(many.serves)
        yield many
    finally:
        for door in many.doors:
            await door.close()
        await many.reasoning.close()
        if many.second is not None:
            await many.second.close()
        await many.text.close()
