"""An engine in the hands of its gate: order of what is carried out, and answers to operators."""

import asyncio
import logging
import sqlite3
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from stopwatch import PATIENCE_S

from tornado_frontdoor.core.decisions import (
    Answered,
    Changed,
    EngineState,
    JournalEntry,
    Note,
    Remember,
    RoomDecided,
    SleepDepth,
    Verdict,
    WakeEnded,
)
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.engines.base import Report, StepResult
from tornado_frontdoor.proxy.engine.executor import EngineExecutor
from tornado_frontdoor.proxy.engine.journal import FILE_NAME, Journal

URL = "http://127.0.0.1:8000"
KEY = UpstreamKey("text")
WAKING = JournalEntry(going=EngineState.WAKING, level=2, trusted=False, process="1.00")


class Learned:
    """What a gate has learned."""

    learned_s = {"sleeping": 2.5}  # noqa: RUF012
    learned_gib = {"needs_gib": 9.0}  # noqa: RUF012


class Hands:
    """What an engine needs, noting what was asked of each, and what the journal held then."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder)
        self.happened: list[Any] = []
        self._came = asyncio.Event()
        self.engine = EngineExecutor(
            KEY,
            URL,
            self,  # type: ignore[arg-type] # a waker, a telemetry: each of one method
            self.journal,
            self,  # type: ignore[arg-type]
            lambda key: self.happened.append(("granted", key)),
            Learned(),  # type: ignore[arg-type] # a gate, asked what was learned
        )

    def report(self, report: Report) -> None:
        memory = self.journal.recall(URL).memory
        self.happened.append((report, memory))
        self._came.set()

    async def reported(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self._came.wait()

    def wake_ended(self, upstream: str, ended: WakeEnded) -> None:
        self.happened.append((upstream, ended))

    def engine_changed(self, upstream: str, state: EngineState) -> None:
        self.happened.append((upstream, state))

    async def close(self) -> None:
        self.happened.append("closed")


def test_what_is_to_be_remembered_is_on_the_disk_before_the_call_is_made(tmp_path: Path) -> None:
    """A kill between the two is harmless; the other way round it would not be."""

    async def scenario() -> None:
        hands = Hands(tmp_path)
        hands.engine.command(Remember(WAKING, 7))
        assert hands.happened == []
        await hands.reported()
        assert hands.happened == [(Report(7, StepResult.DONE), WAKING)]
        hands.journal.close()

    asyncio.run(scenario())


def test_what_cannot_be_written_down_is_reported_with_the_reason(tmp_path: Path) -> None:
    """With a number the gate is told; without one it is only said."""

    async def scenario() -> None:
        hands = Hands(tmp_path)
        other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        began = monotonic()
        hands.engine.command(Remember(WAKING, 7))
        hands.engine.command(Remember(WAKING))
        hands.engine.command(WakeEnded(SleepDepth.SLEEPING, succeeded=True, took_s=2.5))
        assert monotonic() - began < 0.5, "the loop does not wait for the disk"
        await hands.reported()
        ((report, _), *_) = [told for told in hands.happened if isinstance(told[0], Report)]
        assert report.ending is StepResult.FAILED
        assert "database is locked" in report.detail
        other.close()
        hands.journal._writer.shutdown(wait=True)
        await asyncio.sleep(0)
        hands.journal.close()

    asyncio.run(scenario())


def test_a_wake_that_ended_is_counted_and_its_time_is_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        hands = Hands(tmp_path)
        ended = WakeEnded(SleepDepth.SLEEPING, succeeded=True, took_s=2.5)
        hands.engine.command(ended)
        assert hands.happened == [("text", ended)]
        hands.journal.close()
        again = Journal(tmp_path)
        assert again.recall(URL)[:2] == (None, {"sleeping": 2.5})
        again.close()

    asyncio.run(scenario())


def test_a_gpu_is_passed_on(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    hands.engine.command(RoomDecided("http://ocr"))
    assert hands.happened == [("granted", "http://ocr")]
    hands.journal.close()


def test_states_and_notes_are_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hands = Hands(tmp_path)
    with caplog.at_level(logging.INFO, "frontdoor"):
        hands.engine.command(Changed(EngineState.OFFLOADED))
        hands.engine.command(Note("it has no sleep mode"))
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert told == [("INFO", "text is offloaded"), ("WARNING", "text: it has no sleep mode")]
    hands.journal.close()


def test_all_who_wish_for_the_same_get_the_one_answer(tmp_path: Path) -> None:
    """Also one who has left meanwhile; and who wishes for the other thing is not answered by it."""

    async def scenario() -> None:
        hands = Hands(tmp_path)
        wakes = [hands.engine.request("wake") for _ in range(3)]
        sleep = hands.engine.request("sleep", 1)
        wakes[1].cancel()
        done = Answered("wake", Verdict.DONE)
        hands.engine.command(done)
        assert [await wakes[0], await wakes[2]] == [done, done]
        assert not sleep.done()
        hands.engine.command(done)  # nobody waits for it
        busy = Answered("sleep", Verdict.BUSY, "1 is inside", 1)
        hands.engine.command(busy)
        assert await sleep == busy
        hands.journal.close()

    asyncio.run(scenario())


def test_who_still_waits_at_the_end_is_told_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        hands = Hands(tmp_path)
        wishes = [hands.engine.request("wake"), hands.engine.request("sleep", 1)]
        await hands.engine.close()
        answers = [await wish for wish in wishes]
        assert {answer.verdict for answer in answers} == {Verdict.FAILED}
        assert hands.happened == ["closed"]
        hands.journal.close()

    asyncio.run(scenario())
