"""A plain HTTP caller on raw sockets, and a stand-in to call: for tests of the stand-in."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from simulator.standin.server import StandIn, StandInOptions

DEADLINE_S = 10.0


class Reply(NamedTuple):
    """One whole answer; `chunks` are the pieces of a chunked body as they were framed."""

    status: int
    headers: dict[str, str]
    body: bytes
    chunks: list[bytes]

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The JSON of all `data:` events but `[DONE]`."""
        lines = [line for line in self.body.decode().splitlines() if line.startswith("data: ")]
        return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]

    @property
    def text(self) -> str:
        """What a chat stream says, all its deltas together."""
        choices = [event["choices"][0] for event in self.events if event.get("choices")]
        return "".join(choice["delta"].get("content") or "" for choice in choices)


class Connection:
    """One client connection, in the caller's hand from the first byte to the last."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> None:
        """Send one request; a body that is no `bytes` goes as JSON."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
        fields = {"Host": "test", "Content-Length": str(len(raw)), **(headers or {})}
        if body and not isinstance(body, bytes):
            fields.setdefault("Content-Type", "application/json")
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + raw)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read status and headers."""
        raw = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in raw[1:] if line)
        return int(raw[0].split()[1]), {name.lower(): value for name, value in pairs}

    async def chunk(self) -> bytes:
        """Read one chunk of a chunked body; empty: the end."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def reply(self) -> Reply:
        """Read one whole answer; raises IncompleteReadError when it is cut."""
        status, headers = await self.head()
        chunks: list[bytes] = []
        if headers.get("transfer-encoding") == "chunked":
            while chunk := await self.chunk():
                chunks.append(chunk)
            return Reply(status, headers, b"".join(chunks), chunks)
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Reply(status, headers, body, chunks)

    def leave(self) -> None:
        """Close at once."""
        self.writer.close()

    def half_close(self) -> None:
        """Say that nothing more will be sent, and go on reading."""
        self.writer.write_eof()

    def reset(self) -> None:
        """Close with a reset instead of a goodbye."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.writer.transport.abort()


class Caller:
    """Calls one stand-in that listens on `port`."""

    def __init__(self, stand_in: StandIn, port: int) -> None:
        self.stand_in = stand_in
        self.port = port
        self._connections: list[Connection] = []

    async def connect(self) -> Connection:
        """Open a connection; it is closed with the scene at the latest."""
        connection = Connection(*await asyncio.open_connection("127.0.0.1", self.port))
        self._connections.append(connection)
        return connection

    async def begin(
        self, path: str, body: object = None, method: str = "POST", **headers: str
    ) -> Connection:
        """Send one request on a new connection and do not wait for the answer."""
        connection = await self.connect()
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.send(method, path, body, fields)
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

    async def begin_chat(
        self, name: str = "", *, stream: bool = False, **knobs: object
    ) -> Connection:
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
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    if stream:
        body["stream"] = True
    if knobs:
        body["stand_in"] = knobs
    return body


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
