"""An engine that asks for a key gets ours with our own calls, the client's or ours with theirs."""

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from doorway import Doorway

from tornado_frontdoor.config import ConfigError, load
from tornado_frontdoor.proxy.app import App

CONFIGURATION = """
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"

[upstreams.text]
url = "{url}"
api_key_file = "key"
forward_client_key = {forward}

[upstreams.text.sleep]
max_waiting = 4

[models.text]
upstream = "text"
"""


class Guarded:
    """An engine that answers nobody without a key, as `vllm serve --api-key` does on /v1."""

    def __init__(self, kit: Any) -> None:
        self._kit = kit
        self.keys: list[tuple[str, str]] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await self._kit.read_request(reader)
            line, *rest = head.decode().split("\r\n")
            names = dict(item.lower().split(": ", 1) for item in rest if item)
            key = names.get("authorization", "")
            self.keys.append((line.split()[1], key))
            status = "200 OK" if key in ("bearer ours", "bearer theirs") else "401 No"
            body = b'{"is_sleeping": false}'
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
            )
            await writer.drain()


@pytest.mark.parametrize(("forward", "key"), [("true", "bearer theirs"), ("false", "bearer ours")])
def test_our_calls_have_our_key_and_clients_calls_the_one_that_is_set(
    kit: Any, tmp_path: Path, forward: str, key: str
) -> None:
    async def scenario() -> None:
        engine = Guarded(kit)
        (tmp_path / "key").write_text("ours\n")
        async with kit.engine(engine.handle) as served:
            path = tmp_path / "frontdoor.toml"
            path.write_text(CONFIGURATION.format(url=served.url, forward=forward))
            app = App(load(path), lambda: load(path), io.StringIO())
            door = Doorway(app, path.read_text(), path, io.StringIO())
            try:
                await door.until(lambda: app.pool.current["text"].state == "awake")
                assert {given for _, given in engine.keys} == {"bearer ours"}
                assert "/v1/completions" in [path for path, _ in engine.keys]
                engine.keys.clear()
                body = {"model": "text", "messages": [{"role": "user", "content": "hi"}]}
                reply = await door.call("/v1/chat/completions", body, Authorization="Bearer theirs")
                assert reply.status == 200
                assert ("/v1/chat/completions", key) in engine.keys
                (tmp_path / "key").write_text("others\n")
                app.reread()
                executor = app.pool.current["text"].engine
                assert executor is not None
                assert executor._control.api_key == "others"
            finally:
                await door.leave()
                await app.close()

    asyncio.run(scenario())


def test_a_key_file_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "frontdoor.toml"
    path.write_text(CONFIGURATION.format(url="http://127.0.0.1:1", forward="true"))
    with pytest.raises(ConfigError, match=r"upstreams\.text\.api_key_file: key cannot be read"):
        load(path)
