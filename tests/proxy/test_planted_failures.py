"""Ten things that go wrong in the field, planted: the log alone names the cause of each, in words.

Each has an upstream or a client of its own; the log is a file, as an operator has it.
"""

import asyncio
import contextlib
import json
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

from wire import Cut, Wire, chat, request

from tornado_frontdoor.config import load
from tornado_frontdoor.proxy.app import App
from tornado_frontdoor.proxy.logs import logging_to

CHAT = "/v1/chat/completions"
SERVER = """
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
write_stall_timeout_s = 0.3
"""
UPSTREAM = """
[upstreams.{name}]
url = "{url}"
read_timeout_s = {read_timeout_s}
connect_timeout_s = 2
probe_period_s = 0
[models.{name}]
upstream = "{name}"
[models.{name}.dialect]
max_model_len = 1000
"""
FULL = """
[upstreams.full.admission]
slots = 3
cap = 1
queue = 1
queue_timeout_s = 0.2
"""
ABORT = b'data: {"choices":[{"delta":{},"finish_reason":"abort"}]}\n\ndata: [DONE]\n\n'
STREAM = "Content-Type: text/event-stream"


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


async def speak_tls(port: int) -> None:
    with contextlib.suppress(OSError):
        await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context())


async def read_nothing(port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    await loop.sock_sendall(sock, request(CHAT, chat("flood")))
    return sock


def planted(kit: Any) -> Any:
    """Return an engine whose answer the served name of the model chooses."""

    async def serve(reader: Any, writer: Any) -> None:
        with contextlib.suppress(OSError):
            while True:
                _, body = await kit.read_request(reader)
                model = json.loads(body)["model"]
                if model == "keyless":
                    writer.write(kit.answer(b'{"error":"Unauthorized"}', "401 Unauthorized"))
                elif model == "asleep":
                    writer.write(kit.answer(ABORT, "200 OK", STREAM))
                elif model == "flood":
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n")
                    while True:
                        writer.write(b"x" * 65536)
                        await writer.drain()
                else:
                    await reader.read()  # silent until the front door gives it up

    return kit.engine(serve)


async def ask(port: int, path: str, body: object) -> int:
    wire = Wire(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))
    wire.send(path, body, "POST")
    try:
        return (await wire.reply()).status
    except Cut:
        return 0
    finally:
        wire.leave()


async def plant(port: int, ended: Any) -> dict[str, int]:
    """Have each go wrong; return the statuses that clients saw."""
    seen = {}
    for name in ("lost", "down", "keyless", "asleep", "silent"):
        seen[name] = await ask(port, CHAT, chat(name, stream=name == "asleep"))
    seen["base"] = await ask(port, "/v1/v1/chat/completions", chat("down"))
    seen["garbage"] = await ask(port, CHAT, b"{'model': 'down'}")
    await speak_tls(port)
    slow = await read_nothing(port)
    await ended(9)
    slow.close()
    crowd = await asyncio.gather(*(ask(port, CHAT, chat("full")) for _ in range(3)))
    seen["full"], seen["late"] = crowd.count(503), crowd.count(504)
    return seen


def test_the_log_alone_names_each_cause_in_plain_words(kit: Any, tmp_path: Path) -> None:
    config, file = tmp_path / "frontdoor.toml", tmp_path / "log"

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            urls = {
                "lost": "http://no-such-host.invalid:8000",
                "down": f"http://127.0.0.1:{closed_port()}",
            }
            text = SERVER
            for name in ("keyless", "asleep", "flood", "silent", "full"):
                urls[name] = (await stack.enter_async_context(planted(kit))).url
            for name, url in urls.items():
                wait_s = 0.4 if name in ("silent", "full") else 30
                text += UPSTREAM.format(name=name, url=url, read_timeout_s=wait_s)
            config.write_text(text + FULL)
            with logging_to(file, "json", 1 << 20) as log:
                app = App(load(config), lambda: load(config), log)
                public, _ = app.start()

                async def ended(requests: int) -> None:
                    async with asyncio.timeout(20):
                        while len(lines_of(file)) < requests:  # noqa: ASYNC110 - a thread writes
                            await asyncio.sleep(0.01)

                await plant(public.port, ended)
                await app.close()

    asyncio.run(scenario())
    lines = lines_of(file)
    causes = {(line["model"] or line["path"] or "tls"): line["cause"] for line in lines}
    for who, words in {
        "lost": "Could not resolve host: no-such-host.invalid",
        "down": "Could not connect to server",
        "keyless": "it wants a key: see upstreams.keyless.api_key_file",
        "asleep": "put to sleep by another hand",
        "flood": "the client read nothing for too long",
        "silent": "no byte for 0.4 s",
        "/v1/v1/chat/completions": "There is nothing at POST /v1/v1/chat/completions",
        CHAT: "not valid JSON",
        "tls": "perhaps TLS: here plain HTTP is spoken",
    }.items():
        assert words.lower() in (causes[who] or "").lower(), (who, causes[who])
    crowd = {line["outcome"]: line["cause"] for line in lines if line["model"] == "full"}
    assert "places in its queue" in crowd["queue_full"]
    assert "within" in crowd["queue_timeout"]
    assert all(line["cause"] for line in lines if line["outcome"] != "served")
    assert jq_reads(file)


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Return the access lines of a log."""
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    return [entry for entry in entries if "outcome" in entry]


def jq_reads(file: Path) -> bool:
    """Tell whether `jq` reads every line; without it each was read by `lines_of`."""
    if shutil.which("jq") is None:
        return True
    said = subprocess.run(
        ["jq", "-e", "-c", 'has("time")', file], capture_output=True, text=True, check=False
    )
    return said.returncode == 0 and set(said.stdout.split()) == {"true"}
