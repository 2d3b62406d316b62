"""An engine that answers every request with the same bytes, and remembers what it was sent."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class HostileEngine:
    """Says what it is told to, byte for byte; `heads` are the request heads that came."""

    def __init__(self, answer: bytes, *, closes: bool) -> None:
        self._answer = answer
        self._closes = closes
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's requests."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                self.heads.append(head)
                length = [
                    int(line.partition(":")[2])
                    for line in head.split("\r\n")
                    if line.lower().startswith("content-length:")
                ]
                self.bodies.append(await reader.readexactly(length[0] if length else 0))
                writer.write(self._answer)
                await writer.drain()
                if self._closes:
                    break
        writer.close()


@contextlib.asynccontextmanager
async def hostile_engine(answer: bytes, *, closes: bool = False) -> AsyncIterator[HostileEngine]:
    """Run one."""
    engine = HostileEngine(answer, closes=closes)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()
        await server.wait_closed()


def answer(*lines: str, body: bytes = b"", status: str = "200 OK") -> bytes:
    """Return one answer made of exactly these header lines."""
    head = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", *lines))
    return head.encode("latin-1") + b"\r\n" + body
