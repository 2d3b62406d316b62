"""Proxies in front with their defaults, and the clients that are on every machine; by hand."""

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from time import monotonic

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "proxy"))

from doorway import CHAT, Doorway, doorway
from stopwatch import PATIENCE_S
from wire import Wire, chat

pytestmark = pytest.mark.slow

NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 1;
events {{ }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{door}; }} }}
}}
"""
HAPROXY = """
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend in
  bind 127.0.0.1:{port}
  default_backend door
backend door
  server door 127.0.0.1:{door}
"""
CADDY = "{{\n admin off\n}}\nhttp://127.0.0.1:{port} {{\n reverse_proxy 127.0.0.1:{door}\n}}\n"


PROXIES: dict[str, tuple[str, Callable[[Path], list[str]]]] = {
    "nginx": (NGINX, lambda file: ["nginx", "-c", str(file)]),
    "haproxy": (HAPROXY, lambda file: ["haproxy", "-f", str(file)]),
    "caddy": (
        CADDY,
        lambda file: ["caddy", "run", "--adapter", "caddyfile", "--config", str(file)],
    ),
}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.asynccontextmanager
async def in_front(name: str, folder: Path, door: Doorway) -> AsyncIterator[int]:
    """Run a proxy before the front door; yields its port."""
    text, command = PROXIES[name]
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    port = free_port()
    file = folder / f"{name}.conf"
    file.write_text(text.format(folder=folder, port=port, door=door.port))
    process = subprocess.Popen(  # noqa: ASYNC220
        command(file), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={"HOME": str(folder), "PATH": "/usr/sbin:/usr/bin:/bin"},
    )  # fmt: skip
    try:
        for _ in range(500):
            with contextlib.suppress(OSError):
                (await door.wire(port)).leave()
                break
            await asyncio.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize("name", PROXIES)
def test_a_stream_comes_token_by_token_through_a_proxy_with_its_defaults(
    name: str, tmp_path: Path
) -> None:
    """Nginx would keep it until it has a buffer full, were it not told otherwise."""

    async def scenario() -> None:
        slow = {"tokens": 20, "gap_ms": 100}
        async with doorway(slow) as door, in_front(name, tmp_path, door) as port:
            for path in (CHAT, "/llm/v1/messages"):
                wire = await door.wire(port)
                body = chat("reasoning", stream=True) | {"max_tokens": 20}
                started_s = monotonic()
                wire.send(path, body)
                assert (await wire.head())[0] == 200
                await wire.reader.readuntil(b"data: ")
                assert monotonic() - started_s < 1, "the first token at once"
                rest = await read_stream(wire)
                assert monotonic() - started_s > 1.5
                assert b"[DONE]" in rest or b"message_stop" in rest

    asyncio.run(scenario())


async def read_stream(wire: Wire) -> bytes:
    data = b""
    async with asyncio.timeout(PATIENCE_S):
        while b"[DONE]" not in data and b"message_stop" not in data:
            data += await wire.reader.read(65536)
    return data


@pytest.mark.parametrize("name", PROXIES)
def test_refusals_come_through_a_proxy_as_they_are(name: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = {"slots": 2, "cap": 1, "queue": 0}
        async with doorway(**settings) as door, in_front(name, tmp_path, door) as port:
            busy = await door.begin(CHAT, chat("reasoning", hold_s=3))
            await door.inside(1)
            wire = await door.wire(port)
            wire.send(CHAT, chat("reasoning"))
            reply = await wire.reply()
            assert (reply.status, reply.json["error"]["code"]) == (503, "queue_full")
            assert 1 <= int(reply.headers["retry-after"]) <= 59
            assert reply.headers["retry-after-ms"]
            assert reply.headers["content-type"] == "application/problem+json"
            unknown = await door.wire(port)
            unknown.send("/sleep", method="POST")
            assert (await unknown.reply()).status == 404
            await busy.reply()

    asyncio.run(scenario())


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


def test_curl_and_wget_are_served_as_people_call_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with doorway() as door:
            url = f"http://127.0.0.1:{door.port}"
            body = json.dumps(chat("reasoning"))
            json_type = ("-H", "content-type: application/json")
            said = await asyncio.to_thread(
                run, "curl", "-s", f"{url}{CHAT}", *json_type, "-d", body
            )
            assert json.loads(said.stdout)["choices"]
            head = await asyncio.to_thread(run, "curl", "-sI", f"{url}/health")
            assert head.stdout.startswith("HTTP/1.1 200")
            (tmp_path / "a.wav").write_bytes(b"RIFF")
            form = ("-F", f"file=@{tmp_path}/a.wav", "-F", "model=reasoning")
            sent = await asyncio.to_thread(
                run, "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}",
                f"{url}/v1/audio/transcriptions", *form,
            )  # fmt: skip
            assert sent.stdout != "415"
            spider = await asyncio.to_thread(run, "wget", "-q", "--spider", f"{url}/health")
            assert spider.returncode == 0
            admin = f"http://127.0.0.1:{door.admin_port}/admin/wake/text"
            woken = await asyncio.to_thread(run, "curl", "-s", "-X", "POST", admin)
            assert json.loads(woken.stdout)["upstream"] == "text"

    asyncio.run(scenario())
