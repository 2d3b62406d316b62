"""Engines that are slept by ending their process: by an operator's commands, or as our children."""

import asyncio
import contextlib
import io
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from doorway import Doorway
from killable import DoorProcess
from naps import CHAT, WORDS, chat_with, text_of
from stopwatch import PATIENCE_S

from tornado_frontdoor.config import ConfigError, load
from tornado_frontdoor.proxy.app import App

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = [
    *(sys.executable, "-m", "tornado_frontdoor.cli", "stand-in"),
    *("--model", "text", "--tokens", "8"),
]

CONFIGURATION = """
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
state_dir = "state"

[upstreams.text]
engine = "{engine}"
url = "http://127.0.0.1:{port}"

[upstreams.text.process]
{process}
start_timeout_s = 30
stop_timeout_s = 2

[upstreams.text.sleep]
max_waiting = 8
idle_sleep_s = 0
idle_offload_s = 0
idle_stop_s = {idle_stop_s}

[models.text]
upstream = "text"
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def argv(*arguments: str) -> str:
    return "[" + ", ".join(f'"{argument}"' for argument in arguments) + "]"


def child(port: int, *more: str) -> str:
    return f"command = {argv(*STAND_IN, '--port', str(port), *more)}"


@contextlib.asynccontextmanager
async def front_door(folder: Path, **values: Any) -> AsyncIterator[Doorway]:
    path = folder / "frontdoor.toml"
    path.write_text(CONFIGURATION.format(**{"engine": "process", "idle_stop_s": 0, **values}))
    app = App(load(path), lambda: load(path), io.StringIO())
    door = Doorway(app, path.read_text(), path, io.StringIO())
    try:
        yield door
    finally:
        await door.leave()
        await app.close()


def state(door: Doorway) -> str:
    return door.app.pool.current["text"].state


def listening(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_a_child_is_started_for_who_comes_and_ended_when_idle(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = free_port()
        async with front_door(tmp_path, port=port, process=child(port), idle_stop_s=0.5) as door:
            await door.until(lambda: state(door) == "stopped")
            assert text_of(await door.call(CHAT, chat_with())) == WORDS
            await door.until(lambda: state(door) == "stopped", within_s=PATIENCE_S)
            assert not listening(port)
            entry = (await door.get("/health")).json["upstreams"]["text"]
            assert (entry["state"], entry["sleep_depth"]) == ("stopped", "stopped")
            assert text_of(await door.call(CHAT, chat_with())) == WORDS
            assert (tmp_path / "state" / "text.log").exists()
            told = (await door.admin("/admin/status")).json["upstreams"]["text"]
            assert told["estimated_wake_seconds"]["stopped"] > 0
        assert not listening(port), "it ends with the front door"

    asyncio.run(scenario())


def test_a_child_that_dies_is_started_again_for_the_next_caller(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = free_port()
        async with front_door(tmp_path, port=port, process=child(port)) as door:
            assert text_of(await door.call(CHAT, chat_with())) == WORDS
            (engine,) = [
                process
                for process in psutil.process_iter(["cmdline"])
                if f"{port}" in (process.info["cmdline"] or []) and process.ppid() != os.getpid()
            ]
            engine.kill()
            await door.until(lambda: not listening(port))
            assert text_of(await door.call(CHAT, chat_with())) == WORDS

    asyncio.run(scenario())


def test_a_child_that_cannot_start_fails_the_wake_and_says_where_to_look(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = free_port()
        process = f"command = {argv('/nowhere/engine')}"
        async with front_door(tmp_path, port=port, process=process) as door:
            await door.until(lambda: state(door) == "stopped")
            reply = await door.admin("/admin/wake/text?wait=true", "POST")
            assert reply.status == 503
            assert "start failed: it ended with 127: see" in reply.json["error"]
            assert "cannot run /nowhere/engine" in (tmp_path / "state" / "text.log").read_text()

    asyncio.run(scenario())


def test_a_child_for_which_the_gpu_is_full_says_so_by_what_it_prints(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = free_port()
        dies = "import sys; sys.exit('torch.OutOfMemoryError: CUDA out of memory.')"
        command = f"command = {argv(sys.executable, '-c', dies)}"
        async with front_door(tmp_path, port=port, process=command) as door:
            await door.until(lambda: state(door) == "stopped")
            reply = await door.admin("/admin/wake/text?wait=true", "POST")
            assert "ran out of memory" in reply.json["error"]
            told = (await door.admin("/metrics")).body.decode()
            assert 'frontdoor_out_of_memory_wakes_total{upstream="text"} 1.0' in told

    asyncio.run(scenario())


def test_nothing_of_a_child_is_left_when_the_front_door_is_killed(tmp_path: Path) -> None:
    """Nor of what the child has started: a shell here, and the engine below it."""

    async def scenario() -> None:
        port = free_port()
        command = " ".join([*STAND_IN, "--port", str(port)])
        process = f"command = {argv('sh', '-c', command + ' & wait')}"
        path = tmp_path / "frontdoor.toml"
        text = CONFIGURATION.format(engine="process", port=port, process=process, idle_stop_s=0)
        path.write_text(text)
        door = DoorProcess(path)
        await door.start()
        try:
            assert text_of(await door.ask()) == WORDS
            assert listening(port)
        finally:
            await door.end(signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            while listening(port):  # noqa: ASYNC110 - another process ends
                await asyncio.sleep(0.05)

    asyncio.run(scenario())


def test_commands_of_the_operator_start_and_stop_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = free_port()
        pid = tmp_path / "pid"
        engine = " ".join([*STAND_IN, "--port", str(port)])
        start = argv("sh", "-c", f"{engine} >/dev/null 2>&1 & echo $! > {pid}")
        stop = argv("sh", "-c", f"kill $(cat {pid})")
        process = f"start = {start}\nstop = {stop}"
        async with front_door(tmp_path, port=port, process=process) as door:
            await door.until(lambda: state(door) == "stopped")
            assert text_of(await door.call(CHAT, chat_with())) == WORDS
            reply = await door.admin("/admin/sleep/text", "POST")
            assert (reply.status, reply.json["state"]) == (200, "stopped")
            assert not listening(port)
            assert text_of(await door.call(CHAT, chat_with())) == WORDS
        assert listening(port), "what is not ours stays"
        os.kill(int(pid.read_text()), signal.SIGTERM)

    asyncio.run(scenario())


def test_a_vllm_engine_goes_down_all_the_way(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = free_port()
        process = child(port, "--sleep-mode")
        async with front_door(tmp_path, port=port, process=process, engine="vllm") as door:
            await door.until(lambda: state(door) == "stopped")
            assert text_of(await door.call(CHAT, chat_with())) == WORDS
            for level, name in ((1, "sleeping"), (2, "offloaded"), (3, "stopped")):
                reply = await door.admin(f"/admin/sleep/text?level={level}", "POST")
                assert (reply.status, reply.json["state"]) == (200, name)
            assert text_of(await door.call(CHAT, chat_with())) == WORDS

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("process", "fault"),
    [
        ("", "needs either command, or start and stop"),
        ('start = ["a"]', "needs either command, or start and stop"),
        ('command = ["a"]\nstop = ["b"]', "needs either command, or start and stop"),
        ('command = "a"', "must be a list"),
    ],
)
def test_a_process_table_says_how(tmp_path: Path, process: str, fault: str) -> None:
    path = tmp_path / "frontdoor.toml"
    path.write_text(CONFIGURATION.format(engine="process", port=1, process=process, idle_stop_s=0))
    with pytest.raises(ConfigError, match=fault):
        load(path)


def test_another_command_is_taken_at_the_next_start_and_the_rest_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        port = free_port()
        async with front_door(tmp_path, process=child(port), port=port) as door:
            door.configuration = door.configuration.replace('"8"', '"9"')
            door.reread()
            control = door.app.pool.current["text"].engine._control
            assert control.process.settings.command[-3:] == ("9", "--port", str(port))
            assert "process" not in caplog.text
            door.reread(start_timeout_s=31)
            assert "upstreams.text.process: all but other commands changes" in caplog.text
            assert control.process.settings.start_timeout_s == 30

    asyncio.run(scenario())
