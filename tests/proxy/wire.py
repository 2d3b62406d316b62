"""A client on a raw socket: sends what it is told, reads byte for byte, leaves as it is told."""

import asyncio
import contextlib
import json
import socket
from typing import Any, NamedTuple

from stopwatch import PATIENCE_S, Stopwatch


class Cut(Exception):  # noqa: N818 - what happened to an answer
    """The answer ended before it was whole; `body` is what came."""

    def __init__(self, body: bytes) -> None:
        super().__init__(f"cut after {len(body)} bytes")
        self.body = body


class Reply(NamedTuple):
    """One whole answer; `chunks` are the pieces of a chunked body as they were framed."""

    status: int
    headers: dict[str, str]
    body: bytes
    chunks: list[bytes]
    took_s: float
    """Without the time for which the machine kept us waiting."""

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

    @property
    def closes(self) -> bool:
        """Whether the server says that it closes the connection."""
        return self.headers.get("connection", "").lower() == "close"


class Wire:
    """One connection, from its first byte to its last."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._sent = Stopwatch()

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._sent = Stopwatch()
        self.writer.write(data)

    def send(self, path: str, body: object = None, method: str = "POST", **headers: str) -> None:
        """Send one request; a body that is no `bytes` goes as JSON."""
        self.raw(request(path, body, method, **headers))

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read status and headers (lower-case names); raises Cut."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                raw = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            raise Cut(error.partial) from None
        except ConnectionError:
            raise Cut(b"") from None
        lines = raw.decode("latin-1").split("\r\n")
        pairs = [line.split(":", 1) for line in lines[1:] if line]
        return int(lines[0].split()[1]), {name.lower(): value.strip() for name, value in pairs}

    async def chunk(self) -> bytes:
        """Read one chunk of a chunked body; empty: the proper end; raises Cut."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                size = int(await self.reader.readuntil(b"\r\n"), 16)
                return (await self.reader.readexactly(size + 2))[:-2]
        except asyncio.IncompleteReadError as error:
            raise Cut(error.partial) from None
        except ConnectionError:
            raise Cut(b"") from None

    async def rest(self) -> bytes:
        """Read until the server closes."""
        data = b""
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                while piece := await self.reader.read(65536):
                    data += piece
        return data

    async def reply(self, *, to_head: bool = False) -> Reply:
        """Read one whole answer; raises Cut with what came of one that is not."""
        status, headers = await self.head()
        chunks: list[bytes] = []
        if to_head or status == 204:
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            try:
                while piece := await self.chunk():
                    chunks.append(piece)
            except Cut as cut:
                raise Cut(b"".join(chunks) + cut.body) from None
            body = b"".join(chunks)
        elif "content-length" in headers:
            body = await self._exactly(int(headers["content-length"]))
        else:
            body = await self.rest()
        return Reply(status, headers, body, chunks, self._sent.own_s)

    async def _exactly(self, size: int) -> bytes:
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self.reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            raise Cut(error.partial) from None

    async def closed(self, within_s: float = PATIENCE_S) -> None:
        """Wait until the server has closed; fails where it says anything more."""
        async with asyncio.timeout(within_s):
            with contextlib.suppress(ConnectionError):
                more = await self.reader.read(65536)
                assert more == b"", more

    def leave(self) -> None:
        """Close at once, whatever is under way."""
        self.writer.close()

    def half_close(self) -> None:
        """Say that nothing more will be sent, and go on reading."""
        self.writer.write_eof()

    def reset(self) -> None:
        """Close with a reset instead of a goodbye."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.writer.transport.abort()


CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def framed(piece: bytes) -> bytes:
    """Return a piece as one chunk."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def request(path: str, body: object = None, method: str = "POST", **headers: str) -> bytes:
    """Return one HTTP/1.1 request; `X_Y="z"` becomes the header `X-Y: z`."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    fields = {"Host": "127.0.0.1"}
    if body is not None:
        fields["Content-Length"] = str(len(raw))
    if body is not None and not isinstance(body, bytes):
        fields["Content-Type"] = "application/json"
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + raw


def chat(model: str = "reasoning", *, stream: bool = False, **knobs: object) -> dict[str, Any]:
    """Return a chat's body, with `knobs` for a stand-in (`n` goes to the top)."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    if stream:
        body["stream"] = True
    if "n" in knobs:
        body["n"] = knobs.pop("n")
    if knobs:
        body["stand_in"] = knobs
    return body
