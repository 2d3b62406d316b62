"""Who calls in a world: patient or gone at any moment, slow, deaf, or talking nonsense.

Each caller has a seed of its own, so that it does the same whoever else is there. What it was told
goes into the world's trace; what no caller may ever be told raises here.
"""

import asyncio
import contextlib
import json
import socket
from random import Random
from typing import Any, NamedTuple, Protocol

CHAT, MESSAGES, COUNT = "/v1/chat/completions", "/llm/v1/messages", "/tokenize"
NONSENSE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n{]}",
    b"POST /v1/../sleep HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\nx",
)
UNREAD = (b"", b"\r\n", b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")


class Around(Protocol):
    """What a caller knows of its world."""

    def connect(self, port: int) -> socket.socket:
        """Return a connection; raises ConnectionRefusedError."""
        ...

    def told(self, caller: int, *what: object) -> None:
        """Take note of what a caller was told."""
        ...

    public: int
    admin: int


class Answer(NamedTuple):
    """What came of a request; `status` 0: nothing; `whole`: it ended as its framing promised."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> Answer:
        """Read one answer as far as it goes."""
        body = bytearray()
        status, headers = 0, {}
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(head[0].split()[1])
            pairs = [line.split(": ", 1) for line in head[1:] if line]
            headers = {name.lower(): value for name, value in pairs}
            if headers.get("transfer-encoding") == "chunked":
                while size := int(await self.reader.readuntil(b"\r\n"), 16):
                    body += (await self.reader.readexactly(size + 2))[:-2]
                await self.reader.readuntil(b"\r\n")
            elif "content-length" in headers:
                body += await self.reader.readexactly(int(headers["content-length"]))
            elif status >= 200:
                body += await self.reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            return Answer(status, headers, bytes(body), whole=False)
        return Answer(status, headers, bytes(body), whole=True)

    def leave(self, how: str) -> None:
        """Go, in one of the ways there are."""
        if how == "half" and self.writer.can_write_eof():
            with contextlib.suppress(OSError):
                self.writer.write_eof()
        else:
            self.writer.transport.abort()

    async def close(self) -> None:
        """Close, whatever is under way."""
        self.writer.transport.abort()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


async def dial(around: Around, port: int) -> Wire | None:
    """Connect; None: nobody listens any more."""
    try:
        made = around.connect(port)
    except ConnectionRefusedError:
        return None
    return Wire(*await asyncio.open_connection(sock=made))


def request(path: str, body: bytes, method: str = "POST", more: str = "") -> bytes:
    """Return one request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n{more}"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + body


class Asked(NamedTuple):
    """One request for an engine, and what its whole answer says."""

    raw: bytes
    path: str
    stream: bool
    words: str
    breaks: bool
    """The engine was told to break off or to stall."""
    lies: bool = False
    """The engine may say anything, and its client be told so."""


def draw(rng: Random, models: list[str]) -> Asked:
    """Draw a request for an engine."""
    tokens = rng.choice((1, 3, 8))
    knobs: dict[str, Any] = {
        "tokens": tokens,
        "hold_s": rng.choice((0, 0.1, 1, 4)),
        "gap_ms": rng.choice((0, 50, 900)),
    }
    if rng.random() < 0.15:
        knobs["bytes_per_token"] = 200_000
    if rng.random() < 0.15:
        knobs |= {
            "break_after": rng.randrange(tokens),
            "break_how": rng.choice(("die", "fail", "end", "stall")),
        }
    path = rng.choice((CHAT, CHAT, CHAT, MESSAGES))
    stream = rng.random() < 0.6
    # The stand-in takes its orders from the text too: a translator leaves that as it is.
    text = f"hi\nstand_in:{json.dumps(knobs)}"
    body: dict[str, Any] = {
        "model": rng.choice(models) if rng.random() < 0.95 else "nobody",
        "messages": [{"role": "user", "content": text}],
    }
    if rng.random() < 0.06:
        body["padding"] = "é" * rng.choice((40_000, 200_000))
    if stream:
        body["stream"] = True
    if path == MESSAGES:
        body["max_tokens"] = 100
    elif rng.random() < 0.2:
        body["n"] = rng.choice((2, 3))
    words = "".join(
        f"w{n} ".ljust(int(knobs.get("bytes_per_token", 0)), "x") for n in range(tokens)
    )
    raw = request(path, json.dumps(body).encode())
    lies = body["model"] == "liar"
    return Asked(raw, path, stream, words, breaks="break_after" in knobs, lies=lies)


async def ask(around: Around, number: int, rng: Random, models: list[str]) -> None:
    """Ask for one answer, or two on one connection, in one of the ways in which clients do."""
    wire = await dial(around, around.public)
    if wire is None:
        around.told(number, "refused connection")
        return
    try:
        for _ in range(rng.choice((1, 1, 2))):
            if not await _ask_once(around, number, rng, wire, draw(rng, models)):
                return
    finally:
        await wire.close()


async def _ask_once(around: Around, number: int, rng: Random, wire: Wire, asked: Asked) -> bool:
    """Return whether the connection can be used again."""
    if rng.random() < 0.03:  # stops in the middle, and perhaps waits for what it is told
        wire.writer.write(asked.raw[: rng.randrange(1, len(asked.raw))])
        await asyncio.sleep(rng.choice((0.1, 3, 50)))
        wire.leave("abort")
        around.told(number, "stalled")
        return False
    await _send(rng, wire, asked.raw)
    fate = rng.random()
    if fate < 0.3:  # leaves, perhaps with bytes left unread behind it
        await asyncio.sleep(rng.choice((0, 0, 0.05, 0.5, 2, 6)))
        wire.writer.write(rng.choice(UNREAD))
        await asyncio.sleep(rng.choice((0, 0, 0.01)))
        how = rng.choice(("abort", "half"))
        wire.leave(how)
        around.told(number, "left", how)
        if how == "half":
            await wire.answer()
        return False
    deaf = 0.3 <= fate < 0.4
    if deaf:  # for a while, and perhaps cut before it hears again
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(rng.choice((1, 3, 30)))
        wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
    answer = await wire.answer()
    judge(answer, asked)
    around.told(
        number,
        answer.status,
        answer.whole or deaf,
        len(answer.body),
        answer.headers.get("x-request-id"),
    )
    return answer.whole and answer.headers.get("connection") != "close"


async def _send(rng: Random, wire: Wire, raw: bytes) -> None:
    """Send all of it, at once or in pieces."""
    if rng.random() < 0.8:
        wire.writer.write(raw)
        return
    cut = rng.randrange(1, len(raw))
    for piece in (raw[:cut], raw[cut:]):
        wire.writer.write(piece)
        await asyncio.sleep(rng.choice((0, 0.01, 1)))


def judge(answer: Answer, asked: Asked) -> None:
    """Fail where a client is told what no client may be told."""
    if not answer.whole or asked.lies:
        return
    if answer.status != 200:
        assert answer.status in (400, 404, 413, 429, 500, 502, 503, 504, 529), answer
        json.loads(answer.body)
        return
    text = answer.body.decode()
    if '"finish_reason":"abort"' in text.replace(" ", ""):
        return  # put to sleep under it, past the front door: vLLM calls that an end
    if not asked.stream:
        if asked.breaks:
            return  # an engine that answers 200 and nothing is passed on as it is
        document = json.loads(text)
        if asked.path == MESSAGES:
            told = "".join(part["text"] for part in document["content"])
        else:
            told = document["choices"][0]["message"]["content"]
        assert told == asked.words, "an answer that looks whole is not what the engine said"
        return
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    if any("error" in event for event in events):
        return  # the engine's own report of its failure, told in band
    if asked.path == MESSAGES:
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        told = "".join(delta.get("text", "") for delta in deltas)
        assert events[-1] == {"type": "message_stop"}, "a stream that broke ended politely"
    else:
        choices = [event["choices"][0] for event in events if event.get("choices")]
        told = "".join(c["delta"].get("content") or "" for c in choices if not c.get("index"))
        assert "data: [DONE]" in text, "a stream that broke ended politely"
    assert told == asked.words, "an answer that looks whole is not what the engine said"


async def babble(around: Around, number: int, rng: Random, _models: list[str]) -> None:
    """Send what is no request, wait for a while, and go."""
    wire = await dial(around, around.public)
    if wire is None:
        return
    try:
        noise = rng.choice((*NONSENSE, rng.randbytes(rng.randrange(1, 300))))
        wire.writer.write(noise)
        with contextlib.suppress(TimeoutError, ValueError, IndexError):
            async with asyncio.timeout(rng.choice((0.1, 10))):
                answer = await wire.answer()
                assert answer.status in (0, 400, 404, 405, 413, 415, 431, 501), answer
                around.told(number, "nonsense", answer.status)
    finally:
        await wire.close()


async def operate(around: Around, number: int, rng: Random, models: list[str]) -> None:
    """Look, wake or put to sleep by hand, perhaps without waiting for the answer."""
    wire = await dial(around, around.admin)
    if wire is None:
        return
    model = rng.choice(models)
    path, method = rng.choice(
        (
            ("/admin/status", "GET"),
            ("/metrics", "GET"),
            (f"/admin/wake/{model}", "POST"),
            (f"/admin/wake/{model}?wait=true", "POST"),
            (f"/admin/sleep/{model}?level=1", "POST"),
            (f"/admin/sleep/{model}?level=2", "POST"),
        )
    )
    try:
        wire.writer.write(request(path, b"", method, "X-Frontdoor-Admin: 1\r\n"))
        if rng.random() < 0.2:
            await asyncio.sleep(0.05)
            return
        answer = await wire.answer()
        assert answer.whole, f"{path}: no whole answer"
        assert answer.status in (200, 202, 404, 409, 501, 503), (path, answer)
        around.told(number, path, answer.status)
    finally:
        await wire.close()
