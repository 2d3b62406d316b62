"""No legal body stops the loop: not while it comes, is read, waits or is passed on."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Container
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from stopwatch import PATIENCE_S
from wire import Wire

HERE = Path(__file__).parent
MIB = 1 << 20
MOST_MS = 50.0
TRIES = 3
"""A step that cannot be interrupted is as long each time; what a busy machine does is not."""
CHAT, MESSAGES = "/v1/chat/completions", "/llm/v1/messages"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def chat(content: str, size: int) -> bytes:
    text = content * (size // len(content.encode()))
    return b'{"model":"TEXT","messages":[{"role":"user","content":"%b"}]}' % text.encode()


def message(content: bytes) -> bytes:
    return b'{"model":"text","max_tokens":9,"messages":[{"role":"user","content":%b}]}' % content


def repeated(before: bytes, piece: bytes, after: bytes, size: int, most: int = 1 << 40) -> bytes:
    return before + piece * min(most, size // len(piece)) + after


def picture(size: int) -> bytes:
    source = b'{"type":"base64","media_type":"image/png","data":"%b"}' % (b"iVBORw0K" * (size // 8))
    return message(b'[{"type":"image","source":%b}]' % source)


def tool_use(size: int) -> bytes:
    """Return a call whose arguments are written as JSON within JSON, with a text of two bytes."""
    text = "é\\n".encode() * (size // 4)
    use = b'{"type":"tool_use","id":"a","name":"w","input":{"file":"%b"}}' % text
    return (
        b'{"model":"text","max_tokens":9,"messages":[{"role":"assistant","content":[%b]},'
        b'{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"%b"}]}]}'
        % (use, b"ok")
    )


def many_turns(size: int) -> bytes:
    turn = b'{"role":"user","content":"%b"},' % (b"0123456789" * 30 + "😀".encode())
    number = min(59_000, size // len(turn))
    return b'{"model":"text","max_tokens":9,"messages":[%b]}' % (turn * number)[:-1]


def deep(size: int) -> bytes:
    nest = b"[" * 390 + b"]" * 390
    return b'{"model":"text","x":[%b]}' % b",".join([nest] * min(150, size // len(nest)))


SHAPES: dict[str, tuple[str, Callable[[int], bytes], int]] = {
    "one text": (CHAT, lambda size: chat("x", size), 200),
    "one text of emojis": (CHAT, lambda size: chat("😀", size), 200),
    "one text of escapes": (CHAT, lambda size: chat("\\u00e9", size), 200),
    "blanks": (CHAT, lambda size: b" " * size + chat("x", 1), 200),
    "many keys": (
        CHAT,
        lambda size: (
            b'{"model":"text","x":{%b"":0}}'
            % b"".join(b'"k%d":1,' % number for number in range(min(400_000, size // 12)))
        ),
        200,
    ),
    "many objects": (
        CHAT,
        lambda size: repeated(b'{"model":"text","x":[', b'{"a":[{}]},', b"{}]}", size, 19_000),
        200,
    ),
    "deep": (CHAT, deep, 200),
    "too deep": (CHAT, lambda size: repeated(b'{"a":', b"[", b"", size), 400),
    "a huge name": (CHAT, lambda size: b'{"model":"%b"}' % (b"\\u0007" * (size // 6)), 404),
    "a huge key": (CHAT, lambda size: b'{"model":"text","%b":1}' % (b"k" * size), 200),
    "a steering field": (
        CHAT,
        lambda size: b'{"model":"text","x":"%b","priority":1}' % (b"x" * size),
        200,
    ),
    "tokens": (
        "/v1/completions",
        lambda size: repeated(b'{"model":"text","prompt":[', b"12345,", b"1]}", size, 490_000),
        200,
    ),
    "too many tokens": (
        "/v1/completions",
        lambda size: repeated(b'{"model":"text","prompt":[', b"12345,", b"1]}", max(size, 4 * MIB)),
        400,
    ),
    "a message of one text": (MESSAGES, lambda size: message(b'"%b"' % (b"x" * size)), 502),
    "a message of emojis": (
        MESSAGES,
        lambda size: message(b'"%b"' % ("😀".encode() * (size // 4))),
        502,
    ),
    "a picture": (MESSAGES, picture, 502),
    "a tool's arguments": (MESSAGES, tool_use, 502),
    "many turns": (MESSAGES, many_turns, 502),
}


def multipart(size: int) -> bytes:
    """Return a form whose file is made of what nearly is its delimiter."""
    nearly = b"\r\n--" + b"x" * 38
    head = b'\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b'
    parts = [
        head % (b'file"; filename="a', nearly * (size // len(nearly))),
        head % (b"model", b"TEXT"),
        b"--\r\n",
    ]
    return b"\r\n".join(nearly[2:] + b"y" + part for part in parts)


async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer whatever comes with an empty object."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or b"0"
            left = int(length)
            while left:
                left -= len(await reader.read(min(left, MIB)))
            writer.write(OK)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


class Measured:
    """A front door in a process of its own, and its longest pause."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self._port = port

    async def longest_ms(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        return float(await self._process.stdout.readline())

    async def post(self, path: str, body: bytes, content_type: str, *, chunked: bool) -> int:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self._port))
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
        wire.raw(
            f"POST {path} HTTP/1.1\r\nHost: d\r\nContent-Type: {content_type}\r\n"
            f"anthropic-version: 2023-06-01\r\n{framing}\r\n\r\n".encode()
        )
        for at in range(0, len(body), MIB):
            piece = body[at : at + MIB]
            wire.raw(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await wire.writer.drain()
        wire.raw(b"0\r\n\r\n" if chunked else b"")
        async with asyncio.timeout(120):
            status = int((await wire.reader.readuntil(b"\r\n")).split()[1])
        wire.leave()
        with suppress(ConnectionError):
            await wire.writer.wait_closed()
        return status


@asynccontextmanager
async def measured(folder: Path) -> AsyncIterator[Measured]:
    server = await asyncio.start_server(engine, "127.0.0.1", 0, limit=2 * MIB)
    port = server.sockets[0].getsockname()[1]
    config = folder / "frontdoor.toml"
    config.write_text(f"""
        [server]
        listen = "127.0.0.1:0"
        admin_listen = "127.0.0.1:0"
        [upstreams.text]
        url = "http://127.0.0.1:{port}"
        pick = "affinity"
        [upstreams.text.admission]
        slots = 8
        cap = 2
        queue = 8
        queue_timeout_s = 30
        [models.text]
        upstream = "text"
        dialect.max_model_len = 100
        """)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, HERE / "pauses.py", config),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{HERE.parents[1]}:{HERE.parent}"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    public = int((await process.stdout.readline()).rpartition(b":")[2])
    await process.stdout.readline()
    try:
        yield Measured(process, public)
    finally:
        process.stdin.close()
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0
        server.close()


async def every_shape(folder: Path, size: int, only: Container[str] | None = None) -> None:
    async with measured(folder) as door:
        await door.longest_ms()
        told: dict[str, float] = {}
        shapes = {
            name: (path, make(size), "application/json", status)
            for name, (path, make, status) in SHAPES.items()
        }
        form = "multipart/form-data; boundary=" + "x" * 38 + "y"
        shapes["a form"] = ("/v1/audio/transcriptions", multipart(size), form, 200)
        for name, (path, body, content_type, status) in shapes.items():
            if only is not None and name not in only:
                continue
            chunked = len(told) % 2 == 1
            for _ in range(TRIES):
                assert await door.post(path, body, content_type, chunked=chunked) == status, name
                told[name] = await door.longest_ms()
                if told[name] <= MOST_MS:
                    break
        print(json.dumps(told, indent=1))
        assert {name: ms for name, ms in told.items() if ms > MOST_MS} == {}


def test_no_shape_of_a_body_stops_the_loop(tmp_path: Path) -> None:
    """Those that took longest once: all of them, and larger, are among the slow tests."""
    core = ("one text of emojis", "many keys", "a tool's arguments", "a form")
    asyncio.run(every_shape(tmp_path, 2 * MIB, core))


@pytest.mark.slow
def test_no_shape_of_a_body_of_60_mib_stops_the_loop(tmp_path: Path) -> None:
    asyncio.run(every_shape(tmp_path, 60 * MIB))
