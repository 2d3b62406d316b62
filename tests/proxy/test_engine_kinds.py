"""A new kind of engine costs one file and one line of configuration: the toy of `kinds/` is one."""

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from doorway import Doorway

from tornado_frontdoor import engines
from tornado_frontdoor.config import ConfigError, load
from tornado_frontdoor.proxy.app import App

CONFIGURATION = """
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"

[upstreams.text]
engine = "toy"
url = "{url}"

[upstreams.text.sleep]
max_waiting = 4
idle_sleep_s = 0
idle_offload_s = 0

[models.text]
upstream = "text"
"""


class ToyEngine:
    """Speaks the toy's few words, and OpenAI's API while it is up."""

    def __init__(self, kit: Any) -> None:
        self._kit = kit
        self.up = True
        self.asked: list[str] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await self._kit.read_request(reader)
            _, path, _ = head.decode().split(" ", 2)
            self.asked.append(path)
            if path in ("/rest", "/rise"):
                self.up = path == "/rise"
            status = "200 OK" if self.up or path in ("/how", "/rest") else "500 Down"
            said = (b"up 0" if self.up else b"down") if path == "/how" else b"{}"
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Length: {len(said)}\r\n\r\n".encode() + said
            )
            await writer.drain()


@pytest.fixture
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay the toy's file beside the others."""
    folders = [*engines.__path__, str(Path(__file__).parent / "kinds")]
    monkeypatch.setattr(engines, "__path__", folders)


@pytest.mark.usefixtures("_toy")
def test_a_second_kind_sleeps_wakes_and_serves(kit: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = ToyEngine(kit)
        async with kit.engine(engine.handle) as served:
            path = tmp_path / "frontdoor.toml"
            path.write_text(CONFIGURATION.format(url=served.url))
            app = App(load(path), lambda: load(path), io.StringIO())
            door = Doorway(app, path.read_text(), path, io.StringIO())
            upstream = app.pool.current["text"]
            try:
                await door.until(lambda: upstream.state == "awake")
                assert (await door.admin("/admin/sleep/text", "POST")).status == 200
                assert not engine.up
                engine.asked.clear()
                body = {"model": "text", "messages": [{"role": "user", "content": "hi"}]}
                assert (await door.call("/v1/chat/completions", body)).status == 200
                asked = ["/how", "/rise", "/how", "/ping", "/v1/chat/completions"]
                assert engine.asked == asked
            finally:
                await door.leave()
                await app.close()

    asyncio.run(scenario())


def test_a_kind_that_nobody_knows_is_a_fault_that_names_those_there_are(tmp_path: Path) -> None:
    path = tmp_path / "frontdoor.toml"
    path.write_text(CONFIGURATION.format(url="http://127.0.0.1:1"))
    with pytest.raises(ConfigError, match=r"upstreams\.text\.engine: .*\"vllm\""):
        load(path)
