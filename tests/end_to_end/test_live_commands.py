"""`frontdoor top` and `tail`: what a running front door tells, in a terminal or a pipe."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from doorway import CHAT, Doorway, doorway
from stopwatch import PATIENCE_S
from wire import chat

from tornado_frontdoor.cli.live import is_wanted, line_of, read_events, run

ROOT = Path(__file__).resolve().parents[2]


async def begin(door: Doorway, *arguments: str) -> asyncio.subprocess.Process:
    admin = f"http://127.0.0.1:{door.admin_port}"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tornado_frontdoor.cli", *arguments, "--admin", admin),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"},
    )


def test_tail_writes_what_is_wanted_as_it_ends() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            plain = await begin(door, "tail", "--outcome", "!served")
            for_scripts = await begin(door, "tail", "--model", "TEX", "--json")
            await door.until(lambda: len(door.app._hub) == 2)
            await door.call(CHAT, chat("text"))
            await door.call(CHAT, chat("reasoning"))
            await door.call(CHAT, chat("nobody\x1b[2J"))
            assert plain.stdout is not None
            assert for_scripts.stdout is not None
            async with asyncio.timeout(PATIENCE_S):
                line = (await plain.stdout.readline()).decode()
                fields = json.loads(await for_scripts.stdout.readline())
            assert "404 model_not_found nobody\\x1b[2J for 127.0.0.1" in line
            assert "There is no model" in line
            assert (fields["model"], fields["outcome"]) == ("text", "served")
            for process in (plain, for_scripts):
                process.terminate()
                await process.communicate()

    asyncio.run(scenario())


def test_top_draws_one_picture_into_a_pipe() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 60}, cap=1, queue=3) as door:
            wires = [await door.begin(CHAT, chat()) for _ in range(3)]
            await door.inside(1, 2)
            await door.call(CHAT, chat("nobody"))
            top = await begin(door, "top")
            async with asyncio.timeout(PATIENCE_S):
                drawn = (await top.communicate())[0].decode()
            assert top.returncode == 0
            assert "1 of 1" in drawn
            assert "2 of 3" in drawn
            assert "model_not_found" in drawn
            for wire in wires:
                wire.leave()

    asyncio.run(scenario())


def test_without_a_front_door_they_say_so_in_a_line() -> None:
    async def scenario() -> None:
        for command in ("top", "tail"):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tornado_frontdoor.cli", command),
                *("--admin", "http://127.0.0.1:9"),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            out, err = await process.communicate()
            assert process.returncode == 1
            assert (out, err.count(b"\n")) == (b"", 1)
            assert b"no front door answers at http://127.0.0.1:9" in err

    asyncio.run(scenario())


async def asking(door: Doorway, *words: str) -> asyncio.subprocess.Process:
    url = f"http://127.0.0.1:{door.port}"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tornado_frontdoor.cli", "ask", *words, "--url", url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


async def ask(door: Doorway, *words: str) -> tuple[int | None, str, str]:
    process = await asking(door, *words)
    async with asyncio.timeout(PATIENCE_S):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def test_ask_shows_the_place_and_then_the_answer() -> None:
    async def scenario() -> None:
        async with doorway(cap=1, queue=1) as door:
            first = await door.begin(CHAT, chat(hold_s=60))
            await door.inside(1)
            process = await asking(door, "reasoning", "hello")
            assert process.stderr is not None
            async with asyncio.timeout(PATIENCE_S):
                told = (await process.stderr.readline()).decode()
                assert "place 1 in the queue, about" in told
                first.leave()
                answer, _ = await process.communicate()
            assert process.returncode == 0
            assert answer.strip()

    asyncio.run(scenario())


def test_ask_says_why_there_is_no_answer() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 60}, cap=1, queue=0) as door:
            code, answer, told = await ask(door, "nobody", "hello")
            assert (code, answer) == (1, "")
            assert "404: There is no model 'nobody'" in told
            first = await door.begin(CHAT, chat())
            await door.inside(1)
            code, _, told = await ask(door, "reasoning", "hello")
            assert code == 1
            assert "503: " in told
            assert "come back in" in told
            first.leave()

    asyncio.run(scenario())


FIELDS: dict[str, Any] = {
    "time": "2026-01-02T03:04:05.678+00:00",
    "status": 503,
    "outcome": "queue_timeout",
    "model": "m",
    "upstream": "u",
    "method": "POST",
    "path": "/v1",
    "client": "1.2.3.4",
    "forwarded": None,
    "total_s": 30.0,
    "waited_s": 30.0,
    "place": 3,
    "tokens_out": None,
    "cause": "No slot came free",
}


def test_a_line_has_what_a_person_asks_first() -> None:
    told = "03:04:05 503 queue_timeout m for 1.2.3.4 in 30.0 s, waited 30.0 s: No slot came free"
    assert line_of(FIELDS) == told


@pytest.mark.parametrize(
    ("outcome", "model", "wanted"),
    [
        (None, None, True),
        ("queue_timeout", None, True),
        ("served", None, False),
        ("!served", "M", True),
        ("!queue_timeout", None, False),
        (None, "u", True),
        (None, "other", False),
    ],
)
def test_filters(outcome: str | None, model: str | None, wanted: bool) -> None:
    assert is_wanted(FIELDS, outcome, model) is wanted


def test_events_are_read_as_they_are_sent() -> None:
    sent = b'id: 1\nevent: a\ndata: {"x":1}\n\n:\n\ndata: {}\n\n'
    assert list(read_events(sent.splitlines(keepends=True))) == [("a", {"x": 1}), ("message", {})]


@pytest.mark.parametrize("name", ["bogus", "!bogus"])
def test_tail_refuses_an_outcome_that_does_not_exist(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = "http://127.0.0.1:1"
    given = {"--admin": nobody, "top": False, "--outcome": name, "--model": None, "--json": False}
    assert run(given) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert f"--outcome {name}: no request ends so; there are served, queue_full" in told.err
