"""What an operator changes under an engine that sleeps, and what breaks under it: it goes on."""

import asyncio
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from killable import ROOT, DoorProcess, killable
from naps import CHAT, QUICK, WORDS, House, chat_with, house, text_of
from stopwatch import PATIENCE_S

from simulator.standin.server import StandIn, StandInOptions
from tornado_frontdoor.core.decisions import (
    Answered,
    Changed,
    Command,
    Note,
    Notice,
    Perform,
    Remember,
    WakeEnded,
)
from tornado_frontdoor.proxy.engine import journal
from tornado_frontdoor.proxy.engine.executor import EngineExecutor
from tornado_frontdoor.proxy.engine.journal import FILE_NAME


def change(door: House, *pairs: tuple[str, str]) -> None:
    """Change the configuration and read it again."""
    text = door.path.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    door.path.write_text(text)
    door.app.reread()


def without(door: House, key: str) -> None:
    """Take an upstream and its model out of the configuration."""
    parts = door.path.read_text().split("\n\n")
    kept = [
        "\n".join(line for line in part.splitlines() if not line.endswith(f'_default = "{key}"'))
        for part in parts
        if not part.lstrip().startswith((f"[upstreams.{key}", f"[models.{key}]"))
    ]
    door.path.write_text("\n\n".join(kept))
    door.app.reread()
    assert key not in door.app.pool.current


def test_a_name_that_moves_to_another_engine_in_mid_wake_serves_from_both() -> None:
    """Locks, journal and calls are the engine's, whatever name it has."""

    async def scenario() -> None:
        spare = StandIn(StandInOptions(models=("text",), sleep_mode=True, **QUICK))
        tables = {"text": {"gpu": {"devices": [0]}}}
        try:
            async with house(tables=tables) as door:
                await door.put_to_sleep(2)
                door.misfortune("reload_weights=hang*1")
                caller = await door.begin(CHAT, chat_with())
                await door.occupied("collective_rpc")
                first = door.upstream()
                url = f"http://127.0.0.1:{spare.listen()}"
                change(door, (first.settings.url, url))
                assert text_of(await door.ask()) == WORDS
                assert not caller.reader.at_eof()
                door.release()
                assert text_of(await caller.reply()) == WORDS
                await door.until(lambda: first not in door.app.pool.everyone())
        finally:
            await spare.close()

    asyncio.run(scenario())


def test_an_engine_that_is_taken_out_is_let_go_once_empty() -> None:
    """Its tier puts it to sleep no more, and nobody asks how it is."""

    async def scenario() -> None:
        async with house("text", "ocr", idle_sleep_s=0.4) as door:
            wire = await door.begin(CHAT, chat_with("ocr", stream=True, tokens=8, gap_ms=40))
            await door.until(lambda: door.upstream("ocr").keeper.gate.in_flight)
            dropped = door.upstream("ocr")
            without(door, "ocr")
            assert dropped in door.app.pool.everyone()
            assert text_of(await wire.reply()) == WORDS
            await door.until(lambda: dropped not in door.app.pool.everyone())
            asked = len(door.seen("ocr")["control_calls"])
            await door.settled("sleeping", "text")
            assert len(door.seen("ocr")["control_calls"]) == asked
            assert door.depth("ocr") == 0

    asyncio.run(scenario())


def test_another_canary_is_asked_from_the_next_wake_on() -> None:
    async def scenario() -> None:
        async with house() as door:
            await door.put_to_sleep()
            change(
                door,
                ("[upstreams.text.sleep]\n", f'[upstreams.text.sleep]\ncanary_path = "{CHAT}"\n'),
            )
            assert text_of(await door.ask()) == WORDS
            executor = door.upstream().engine
            assert executor is not None
            assert executor._control.canary == (CHAT, "text")

    asyncio.run(scenario())


def locked(door: House) -> sqlite3.Connection:
    """Return another process's grip on the journal; `close` ends it."""
    other = sqlite3.connect(door.app.settings.server.state_dir / FILE_NAME, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    return other


def test_a_journal_that_cannot_be_written_costs_a_transition_and_no_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Awake it stays awake and serves; asleep its callers wait until the disk can be written."""
    monkeypatch.setattr(journal, "BUSY_TIMEOUT_S", 0.05)

    async def scenario() -> None:
        async with house() as door:
            grip = locked(door)
            reply = await door.admin("/admin/sleep/text", "POST")
            assert reply.status == 503
            assert "could not be written down" in reply.json["error"]
            assert "database is locked" in reply.json["error"]
            assert text_of(await door.ask()) == WORDS
            assert (door.state(), door.calls()) == ("awake", [])
            grip.close()
            await door.put_to_sleep()
            grip = locked(door)
            caller = await door.begin(CHAT, chat_with())
            await door.until(lambda: door.gate._wake.wake_backoff.failures)
            assert door.depth() == 1
            grip.close()
            assert text_of(await caller.reply()) == WORDS

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", [Perform, Remember, Changed, WakeEnded, Answered, Note])
def test_whatever_command_fails_the_others_are_carried_out(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of them fails once, on the way to sleep or back; the next caller is served."""
    carry_out = EngineExecutor.command
    failed: list[Command | Notice] = []

    def fails_once(executor: EngineExecutor, decision: Command | Notice) -> None:
        if armed and isinstance(decision, kind) and not failed:
            failed.append(decision)
            raise OSError("nobody foresaw this")
        carry_out(executor, decision)

    armed: list[bool] = []
    monkeypatch.setattr(EngineExecutor, "command", fails_once)

    async def scenario() -> None:
        async with house(mishaps_allowed=True) as door:
            if kind is not Answered:  # that one an operator would wait for
                await door.put_to_sleep()
            if kind is Note:
                door.misfortune("wake_up=fail*2")
            armed.append(True)
            assert text_of(await door.ask()) == WORDS
            if kind is Answered:
                await door.admin("/admin/wake/text", "POST")
                await door.until(lambda: failed)
            assert failed
            await door.settled("awake")
            assert door.gate.next_deadline() is not None

    asyncio.run(scenario())


def test_one_folder_of_state_has_one_front_door_until_that_drains(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with killable(tmp_path) as scene:
            await scene.door.settled("awake")
            second = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tornado_frontdoor.cli", "serve"),
                *("--config", scene.door.path),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=ROOT,
            )
            out, err = await second.communicate()
            assert (second.returncode, out) == (1, b"")
            (line,) = err.decode().splitlines()
            assert "another front door" in line
            assert "server.state_dir" in line
            stream = chat_with(stream=True, tokens=8, gap_ms=300)
            wire = await scene.door.begin(CHAT, stream)
            await scene.until(lambda: scene.engine._counters.snapshot()["in_flight"])
            scene.door.signal(signal.SIGTERM)
            follower = DoorProcess(scene.door.path)
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        await follower.start()
                        break
                    except AssertionError:
                        assert follower._process is not None
                        await follower._process.wait()
            assert text_of(await wire.reply()) == WORDS
            process = scene.door._process
            assert process is not None
            assert await process.wait() == 0
            scene.door._process = follower._process
            scene.door.port, scene.door.admin_port = follower.port, follower.admin_port
            await scene.door.settled("awake")

    asyncio.run(scenario())


def test_an_engine_that_sleeps_keeps_its_path_and_its_gate_until_the_next_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with house() as door:
            first = door.app.pool.current["text"]
            url = first.settings.url
            change(door, (f'"{url}"', f'"{url}/other"'))
            assert door.app.pool.current["text"] is first
            assert first.settings.url == url
            assert "upstreams.text.url: another path changes with the next start" in caplog.text

    asyncio.run(scenario())
