"""A plain HTTP caller on raw sockets, and a stand-in to call: for tests of the stand-in."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from wire import Reply, Wire, chat

from simulator.standin.server import StandIn, StandInOptions

DEADLINE_S = 10.0


class Caller:
    """Calls one stand-in that listens on `port`."""

    def __init__(self, stand_in: StandIn, port: int) -> None:
        self.stand_in = stand_in
        self.port = port
        self._connections: list[Wire] = []

    async def connect(self) -> Wire:
        """Open a connection; it is closed with the scene at the latest."""
        connection = Wire(*await asyncio.open_connection("127.0.0.1", self.port))
        self._connections.append(connection)
        return connection

    async def begin(
        self, path: str, body: object = None, method: str = "POST", **headers: str
    ) -> Wire:
        """Send one request on a new connection and do not wait for the answer."""
        connection = await self.connect()
        connection.send(path, body, method, **headers)
        return connection

    async def call(
        self, path: str, body: object = None, method: str = "POST", **headers: str
    ) -> Reply:
        """Send one request on a new connection and return its answer."""
        connection = await self.begin(path, body, method, **headers)
        try:
            return await asyncio.wait_for(connection.reply(), DEADLINE_S)
        finally:
            connection.leave()

    async def get(self, path: str) -> Reply:
        """GET `path`."""
        return await self.call(path, method="GET")

    async def chat(self, *, stream: bool = False, **knobs: object) -> Reply:
        """Ask for a chat, with `knobs` for the stand-in."""
        return await self.call("/v1/chat/completions", chat_body(stream=stream, **knobs))

    async def begin_chat(self, name: str = "", *, stream: bool = False, **knobs: object) -> Wire:
        """Begin a chat whose request id is `name`."""
        headers = {"X_Request_Id": name} if name else {}
        body = chat_body(stream=stream, **knobs)
        return await self.begin("/v1/chat/completions", body, **headers)

    async def stats(self) -> dict[str, Any]:
        """Return the stand-in's counters."""
        counters = (await self.get("/stand-in/stats")).json
        assert isinstance(counters, dict)
        return counters

    async def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the counters once they fulfil `condition`; fails after the deadline."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    counters = await self.stats()
                    if condition(counters):
                        return counters
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"never came true: {await self.stats()}") from None

    async def until_refused(self) -> None:
        """Wait until the port refuses connections."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except ConnectionRefusedError:
                    return
                writer.close()
                await asyncio.sleep(0.005)

    async def until_back(self) -> None:
        """Wait until the port accepts connections."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except ConnectionRefusedError:
                    await asyncio.sleep(0.005)
                    continue
                writer.close()
                return

    async def close(self) -> None:
        """Close every connection that is still open."""
        for connection in self._connections:
            connection.leave()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                await connection.writer.wait_closed()


def chat_body(*, stream: bool = False, **knobs: object) -> dict[str, Any]:
    """Return a chat body with `knobs` for the stand-in."""
    return chat("m", stream=stream, **knobs)


@contextlib.asynccontextmanager
async def scene(**options: Any) -> AsyncIterator[Caller]:
    """Run a stand-in that serves `m`, and yield who calls it."""
    stand_in = StandIn(StandInOptions(**{"models": ("m",), "tokens": 3, **options}))
    caller = Caller(stand_in, stand_in.listen(0))
    try:
        yield caller
    finally:
        await caller.close()
        await stand_in.close()
