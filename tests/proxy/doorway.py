"""A front door and its engines on one loop and on real sockets; at the end nothing may be left."""

import asyncio
import contextlib
import io
import json
import logging
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from stopwatch import PATIENCE_S
from wire import Reply, Wire

from simulator.standin.server import StandIn, StandInOptions
from tornado_frontdoor.config import load
from tornado_frontdoor.core.gate import Gate
from tornado_frontdoor.proxy.app import App
from tornado_frontdoor.proxy.gate_driver import Lease

CHAT = "/v1/chat/completions"

CONFIGURATION = """
[server]
listen = "{listen}"
admin_listen = "127.0.0.1:0"
max_body_mib = {max_body_mib}
drain_timeout_s = {drain_timeout_s}
write_stall_timeout_s = {write_stall_timeout_s}
{server}
[surfaces]
{surfaces}

[upstreams.reasoning]
url = "{reasoning}"
connect_timeout_s = {connect_timeout_s}
read_timeout_s = {read_timeout_s}
chunk_timeout_s = {chunk_timeout_s}
{upstream}

[upstreams.reasoning.admission]
slots = {slots}
cap = {cap}
queue = {queue}
queue_timeout_s = {queue_timeout_s}

[upstreams.text]
url = "{text}"
read_timeout_s = {read_timeout_s}
chunk_timeout_s = {chunk_timeout_s}

[models.reasoning]
upstream = "reasoning"
aliases = ["thinker", "claude-*"]
{model}

[models.text]
upstream = "text"

[routes]
chat_default = "text"
multipart_chat_default = "text"
embeddings = "text"
{tables}
"""

DEFAULTS: dict[str, Any] = {
    "slots": 8,
    "cap": 6,
    "queue": 8,
    "queue_timeout_s": 30,
    "max_body_mib": 1,
    "drain_timeout_s": 5,
    "write_stall_timeout_s": 30,
    "connect_timeout_s": 2,
    "read_timeout_s": 30,
    "chunk_timeout_s": 30,
    "listen": "127.0.0.1:0",
    "server": "",
    "surfaces": "",
    "upstream": "",
    "model": "",
    "tables": "",
}


class Mishaps(logging.Handler):
    """Collects what was logged as an error: nothing a client does may end up there."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record's text."""
        self.seen.append(logging.Formatter().format(record))


class Doorway:
    """A running front door with `reasoning` (capped) and `text` (not) behind it."""

    def __init__(self, app: App, configuration: str, path: Path, log: io.StringIO) -> None:
        self.app = app
        self.configuration = configuration
        self.path = path
        self.said: list[str] = []
        """What was logged as an error so far."""
        self.reasoning: StandIn
        self.text: StandIn
        self._log = log
        self._wires: list[Wire] = []
        self.most = 0
        public, admin = app.start()
        self.port, self.admin_port = public.port, admin.port

    @property
    def gate(self) -> Gate:
        """The gate of `reasoning`."""
        return self.app.pool.current["reasoning"].keeper.gate

    @property
    def waiting(self) -> list[Lease]:
        """The leases of those in line before `reasoning`."""
        return list(self.app.pool.current["reasoning"].keeper._waiting.values())

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The access lines written so far."""
        return [json.loads(line) for line in self._log.getvalue().splitlines()]

    @property
    def outcomes(self) -> list[str]:
        """The outcomes of the access lines, in order."""
        return [line["outcome"] for line in self.lines]

    def stats(self, engine: StandIn | None = None) -> dict[str, Any]:
        """Return what an engine (reasoning) has counted."""
        return (engine or self.reasoning)._counters.snapshot()

    async def wire(self, port: int | None = None) -> Wire:
        """Open a connection; it is closed with the scene at the latest."""
        wire = Wire(*await asyncio.open_connection("127.0.0.1", port or self.port, limit=1 << 24))
        self._wires.append(wire)
        return wire

    async def thirsty(self) -> tuple[socket.socket, "asyncio.AbstractEventLoop"]:
        """Open a connection with the smallest buffer, for who reads in sips by himself."""
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", self.port))
        return sock, loop

    async def begin(
        self, path: str, body: object = None, method: str = "POST", **headers: str
    ) -> Wire:
        """Send one request on a new connection and do not wait for its answer."""
        wire = await self.wire()
        wire.send(path, body, method, **headers)
        return wire

    async def call(
        self, path: str, body: object = None, method: str = "POST", **headers: str
    ) -> Reply:
        """Send one request on a new connection and return its answer."""
        wire = await self.begin(path, body, method, **headers)
        reply = await wire.reply(to_head=method == "HEAD")
        wire.leave()
        return reply

    async def get(self, path: str) -> Reply:
        """GET from the public listener."""
        return await self.call(path, method="GET")

    async def admin(self, path: str, method: str = "GET", **headers: str) -> Reply:
        """Call the admin listener."""
        wire = await self.wire(self.admin_port)
        wire.send(path, None, method, **headers)
        reply = await wire.reply(to_head=method == "HEAD")
        wire.leave()
        return reply

    async def until(self, condition: Callable[[], object], within_s: float = PATIENCE_S) -> int:
        """Wait for a condition; fails with the state of things.

        Returns how often it had to look, every 2 ms: a measure of time that a busy machine, on
        which looks come late, does not stretch.
        """
        looks = 0
        try:
            async with asyncio.timeout(within_s):
                while not condition():
                    looks += 1
                    await asyncio.sleep(0.002)
        except TimeoutError:
            raise AssertionError(f"never came true: {self.remains()}; {self.lines[-3:]}") from None
        return looks

    async def inside(self, in_flight: int, queued: int = 0) -> None:
        """Wait until so many are in flight and in line."""
        await self.until(lambda: (self.gate.in_flight, self.gate.queued) == (in_flight, queued))

    def remains(self) -> dict[str, int]:
        """Return everything that must be 0 at rest."""
        everyone = self.app.pool.everyone()
        # Where another process has the gates, it is that one's to have nothing left.
        keepers = [] if self.app.succession.given else [u.keeper for u in everyone]
        gates = [keeper.gate for keeper in (*keepers, *(u.side_door for u in everyone))]
        return {
            "in_flight": sum(gate.in_flight for gate in gates),
            "cooling": sum(gate.cooling for gate in gates),
            "queued": sum(gate.queued for gate in gates),
            "duplicate_finishes": sum(gate.duplicate_finishes for gate in gates),
            "leases": sum(len(keeper._waiting) for keeper in keepers),
            "lingering": sum(len(keeper._cooling) for keeper in keepers),
            "transfers": len(self.app.pool.client.under_way),
            "watched": len(self.app._departures),
            "passages": len(self.app.door.under_way),
            "unsent": sum(len(listener.place.unsent) for listener in self.app._listeners),
            "reasoning": self.stats()["in_flight"],
            "text": self.stats(self.text)["in_flight"],
        }

    async def at_rest(self, within_s: float = PATIENCE_S) -> None:
        """Wait until nothing is left of any request; fails with what is."""
        await self.until(lambda: not any(self.remains().values()), within_s)

    def reread(self, **changes: object) -> None:
        """Change the configuration file and read it again, as SIGHUP does."""
        text = self.configuration
        for key, value in changes.items():
            old = next(line for line in text.splitlines() if line.startswith(f"{key} = "))
            text = text.replace(old, f"{key} = {value}")
        self.configuration = text
        self.path.write_text(text)
        self.app.reread()

    async def leave(self) -> None:
        """Close all connections."""
        for wire in self._wires:
            wire.leave()
        for wire in self._wires:
            with contextlib.suppress(OSError):
                await wire.writer.wait_closed()


def with_length(model: str) -> str:
    """Add a length to the lines of a model, so that no engine is asked for one."""
    if "max_model_len" in model:
        return model
    table = "[models.reasoning.dialect]"
    return f"{model}\n{'' if table in model else table}\nmax_model_len = 131072"


@contextlib.asynccontextmanager
async def doorway(
    engine: dict[str, Any] | None = None,
    text: dict[str, Any] | None = None,
    url: str | None = None,
    *,
    asks_lengths: bool = False,
    **settings: object,
) -> AsyncIterator[Doorway]:
    """Run a front door before stand-ins made with `engine` and `text`; all must end at zero.

    `url` puts another engine behind `reasoning`: with `asks_lengths` it is asked for its models'
    lengths too, else it hears what the test sends and nothing more. Afterwards nothing may have
    been logged as an error, and no task, transfer, slot, lease or watch may be left.
    """
    if url is not None and not asks_lengths:
        settings["model"] = with_length(str(settings.get("model", "")))
    mishaps = Mishaps()
    logging.getLogger().addHandler(mishaps)
    before = asyncio.all_tasks()
    reasoning_in = StandIn(StandInOptions(**{"models": ("reasoning",), **(engine or {})}))
    text_in = StandIn(StandInOptions(**{"models": ("text",), **(text or {})}))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frontdoor.toml"
        configuration = CONFIGURATION.format_map(
            {
                **DEFAULTS,
                "reasoning": url or f"http://127.0.0.1:{reasoning_in.listen()}",
                "text": f"http://127.0.0.1:{text_in.listen()}",
                **settings,
            }
        )
        path.write_text(configuration)
        log = io.StringIO()
        app = App(load(path), lambda: load(path), log)
        door = Doorway(app, configuration, path, log)
        door.reasoning, door.text, door.said = reasoning_in, text_in, mishaps.seen
        try:
            yield door
            await door.leave()
            await door.at_rest()
        except BaseException:
            print("\n".join(mishaps.seen))
            raise
        finally:
            await door.leave()
            await app.close()
            await reasoning_in.close()
            await text_in.close()
            logging.getLogger().removeHandler(mishaps)
    assert not mishaps.seen, "\n".join(mishaps.seen)
    async with asyncio.timeout(PATIENCE_S):
        while asyncio.all_tasks() - before:  # noqa: ASYNC110 - tasks that end by themselves
            await asyncio.sleep(0.002)
