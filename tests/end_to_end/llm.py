"""What tests of `/llm` share: requests, what a stream must look like, engines that speak badly."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

MESSAGES = "/llm/v1/messages"
COUNT_TOKENS = "/llm/v1/messages/count_tokens"
_EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def ask(model: str = "reasoning", *, stream: bool = False, **knobs: object) -> dict[str, Any]:
    """Return a request for a message, with `knobs` for a stand-in in the text of it."""
    text = f"hi\nstand_in:{json.dumps(knobs)}" if knobs else "hi"
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": 4096,
        "messages": [{"role": "user", "content": text}],
    }
    if stream:
        body["stream"] = True
    return body


def events(raw: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream; fails for a frame of another form than this dialect's."""
    found = []
    for frame in raw.decode().split("\n\n"):
        if not frame or frame.startswith(":"):
            continue
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def kinds(raw: bytes) -> list[str]:
    """Return the types of the events of a stream."""
    return [event["type"] for event in events(raw)]


def hold_to_the_grammar(raw: bytes) -> None:
    """Fail where a whole stream is not a whole message, event for event, or not of the SDK's types.

    The SDK itself validates nothing as it reads, so it is done here.
    """
    told = events(raw)
    for event in told:
        if event["type"] != "ping":
            _EVENT.validate_python(event, strict=True)
    told = [event for event in told if event["type"] != "ping"]
    assert told[0]["type"] == "message_start"
    assert [event["type"] for event in told[-2:]] == ["message_delta", "message_stop"]
    open_block, number = False, -1
    for event in told[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert not open_block
                open_block, number = True, number + 1
            case "content_block_delta":
                assert open_block
            case "content_block_stop":
                assert open_block
                open_block = False
            case other:
                raise AssertionError(f"{other} inside of a message")
        assert event["index"] == number
    assert not open_block


def hold_to_the_types(body: dict[str, Any]) -> None:
    """Fail where a whole message is none by the SDK's types."""
    Message.model_validate(body, strict=True)


# Engines that say what they are told


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    """Return one chat completion chunk as an event."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice], **more}).encode() + b"\n\n"


class RawEngine:
    """An engine of few words: `say` gets the writer after each request; bodies are kept."""

    def __init__(self, say: Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]) -> None:
        self._say = say
        self._tasks: set[asyncio.Task[None]] = set()
        self.bodies: list[bytes] = []
        self.heads: list[bytes] = []
        self.url = ""
        self.open = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.open += 1
        try:
            with contextlib.suppress(
                ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError
            ):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
                    self.bodies.append(await reader.readexactly(int(length or 0)))
                    self.heads.append(head)
                    await self._say(writer, self.bodies[-1])
                    await writer.drain()
                    if writer.is_closing():
                        break
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
async def raw_engine(
    say: Callable[[asyncio.StreamWriter, bytes], Awaitable[None]],
) -> AsyncIterator[RawEngine]:
    """Run an engine that answers as `say` does."""
    engine = RawEngine(say)
    server = await asyncio.start_server(engine._serve, "127.0.0.1", 0, limit=1 << 24)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()
        await engine.stop()
        await server.wait_closed()
        await asyncio.sleep(0)  # aborted transports report their end on the next turn


def document(body: object, status: str = "200 OK") -> bytes:
    """Return a whole answer of an engine."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}"
    return head.encode() + b"\r\n\r\n" + raw


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def framed(data: bytes) -> bytes:
    """Return a piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
