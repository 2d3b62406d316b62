"""Raw engines on real sockets, and a receiver that remembers what it was told.

Puts this room's own modules (`wire`, `doorway`) within reach of its tests, too.
"""

import asyncio
import contextlib
import hashlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stopwatch import PATIENCE_S

from tornado_frontdoor.proxy.curl.client import Transfer, TransferEnd, UpstreamCall, UpstreamClient
from tornado_frontdoor.surfaces.chunked import piece_of

sys.path.insert(0, str(Path(__file__).parent))

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Engine:
    """A TCP server that speaks whatever its handler says, byte for byte."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""
        self.port = 0
        self.connections = 0
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Run the handler for one connection, then wait until the client closes it."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        try:
            # Cancelled only by `stop`; asyncio 3.11 would log that as an error.
            with contextlib.suppress(
                ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError
            ):
                await self._handler(reader, writer)
                while not writer.is_closing() and await reader.read(65536):
                    pass
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.transport.abort()

    async def stop(self) -> None:
        """End all connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def engine(handler: Handler) -> AsyncIterator[Engine]:
    served = Engine(handler)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0, backlog=1024)
    served.port = server.sockets[0].getsockname()[1]
    served.url = f"http://127.0.0.1:{served.port}"
    try:
        yield served
    finally:
        server.close()
        await served.stop()
        await server.wait_closed()
        await asyncio.sleep(0)  # aborted transports report their end on the next turn


@contextlib.asynccontextmanager
async def client() -> AsyncIterator[UpstreamClient]:
    made = UpstreamClient()
    try:
        yield made
    finally:
        made.close()


class Taker:
    """Remembers an answer; `hook` is called with (`head`|`data`, taker) from within libcurl."""

    def __init__(self, hook: Callable[[str, "Taker"], None] | None = None) -> None:
        self.status: int | None = None
        self.headers: list[tuple[str, str]] = []
        self.body = bytearray()
        self.keep = True
        self.digest = hashlib.sha256()
        self.size = 0
        self.chunks = 0
        self.past_libcurl = 0
        """How many chunks came alone, and past libcurl."""
        self.willing = True
        self.transfer: Transfer | None = None
        self.heads = 0
        self.ends: list[tuple[TransferEnd, str]] = []
        self._hook = hook
        self._ended = asyncio.Event()

    def on_head(self, status: int, headers: list[tuple[str, str]]) -> None:
        assert not self.ends
        self.heads += 1
        self.status, self.headers = status, headers
        if self._hook is not None:
            self._hook("head", self)

    def on_chunk(self, chunk: bytes) -> bool:
        self.past_libcurl += 1
        return self.on_data(piece_of(chunk))

    def on_data(self, chunk: bytes) -> bool:
        assert not self.ends
        assert self.heads == 1
        self.chunks += 1
        self.size += len(chunk)
        self.digest.update(chunk)
        if self.keep:
            self.body += chunk
        if self._hook is not None:
            self._hook("data", self)
        return self.willing

    def on_end(self, end: TransferEnd, detail: str) -> None:
        self.ends.append((end, detail))
        self._ended.set()

    async def end(self) -> TransferEnd:
        """Wait for the end."""
        async with asyncio.timeout(PATIENCE_S):
            await self._ended.wait()
        await asyncio.sleep(0)
        assert len(self.ends) == 1
        return self.ends[0][0]


def call(url: str, **changes: Any) -> UpstreamCall:
    plain: dict[str, Any] = {
        "url": url,
        "connect_timeout_s": 5.0,
        "read_timeout_s": 5.0,
        "chunk_timeout_s": 5.0,
        "headers": [("Content-Type", "application/json")],
        "body": b"{}",
    }
    return UpstreamCall(**(plain | changes))


async def taken(
    client: UpstreamClient,
    url: str,
    takers: list[Taker] | None = None,
    hook: Callable[[str, Taker], None] | None = None,
    **changes: Any,
) -> Taker:
    """Make one call that streams and wait for its end; `takers` has who takes it, meanwhile too."""
    taker = Taker(hook)
    if takers is not None:
        takers.append(taker)
    taker.transfer = client.start(call(url, **({"streams": True} | changes)), taker)
    await taker.end()
    return taker


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read one request with a Content-Length or without body; return head and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return head, await reader.readexactly(length)


def answer(body: bytes = b"ok", status: str = "200 OK", *more: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *more])
    return head.encode() + b"\r\n\r\n" + body


async def until(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Wait for `condition`; fails after `within_s`."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - what is watched has no event to wait for
            await asyncio.sleep(0.002)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run whatever tests the upstream side alone by libcurl alone, and with chunks read past it."""
    if "kit" in metafunc.fixturenames and metafunc.definition.path.name.startswith("test_upstream"):
        metafunc.parametrize("kit", [False, True], ids=["libcurl", "past"], indirect=True)


@pytest.fixture
def kit(request: pytest.FixtureRequest) -> SimpleNamespace:
    """What tests of the upstream side share."""
    return SimpleNamespace(
        engine=engine,
        client=client,
        Taker=Taker,
        call=partial(call, streams=getattr(request, "param", False)),
        taken=taken,
        read_request=read_request,
        answer=answer,
        until=until,
    )
