"""An engine that may say anything: broken heads, wrong lengths, garbage, half an answer."""

import asyncio
import contextlib
import json
from random import Random

WHOLE = json.dumps({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}).encode()
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
CHUNKED = b"Transfer-Encoding: chunked\r\n"
JSON = b"Content-Type: application/json\r\n"
EVENTS = b"Content-Type: text/event-stream\r\n"


def lie(rng: Random) -> bytes:
    """Return something that is perhaps an answer."""
    length = b"Content-Length: %d\r\n" % (len(WHOLE) + rng.choice((0, 0, -5, 7)))
    chunk = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
    lies = (
        b"HTTP/1.1 200 OK\r\n" + JSON + length + b"\r\n" + WHOLE,
        b"HTTP/1.1 200 OK\r\n" + JSON + length + CHUNKED + b"\r\n" + b"2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + EVENTS + CHUNKED + b"\r\n" + chunk,
        b"HTTP/1.1 200 OK\r\n" + EVENTS + CHUNKED + b"\r\n" + chunk + b"0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + EVENTS + CHUNKED + b"\r\n" + chunk + b"no size\r\n",
        b"HTTP/1.1 200 OK\r\n" + EVENTS + b"\r\n" + EVENT,
        b"HTTP/1.1 204 No Content\r\n" + length + b"\r\n" + WHOLE,
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:2/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 No\r\nContent-Length: 300\r\n\r\n\x1b[2J" + b"x" * 295,
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nX-Frontdoor-Upstream: me\r\n : \r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"SSH-2.0-OpenSSH\r\n",
        rng.randbytes(rng.randrange(1, 200)),
        b"",
    )
    said = rng.choice(lies)
    return said[: rng.randrange(len(said) + 1)] if rng.random() < 0.2 else said


class Liar:
    """Answers each request with a lie; then it goes on, closes, resets, or hears nothing more."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._tasks: list[asyncio.Task[None]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        rng = self._rng
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        with contextlib.suppress(
            *(asyncio.IncompleteReadError, asyncio.LimitOverrunError),
            *(ConnectionError, asyncio.CancelledError),
        ):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if head.startswith(b"post") and rng.random() < 0.9:
                    length = head.partition(b"content-length: ")[2].split(b"\r\n")[0]
                    await reader.readexactly(int(length))
                await asyncio.sleep(rng.choice((0, 0, 0.1, 2)))
                writer.write(lie(rng))
                match rng.choice(("on", "on", "close", "reset", "deaf")):
                    case "close":
                        break
                    case "reset":
                        writer.transport.abort()
                        break
                    case "deaf":
                        await asyncio.sleep(rng.choice((1, 20)))
        writer.close()

    async def close(self) -> None:
        """End all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
