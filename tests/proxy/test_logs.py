"""Log lines: bounded, one line each, in one format, and nobody waits for whoever reads them."""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest
from msgspec.structs import asdict
from stopwatch import PATIENCE_S
from wire import Wire, chat

from tornado_frontdoor.core.decisions import Outcome
from tornado_frontdoor.proxy.logs import Format, LogWriter, access_line, as_line, logging_to, now
from tornado_frontdoor.proxy.records import AccessLine, Record

ROOT = Path(__file__).resolve().parents[2]
FORGED = "no\n2026-01-01 INFO all is well\x1b[2J\x9b1m\u2028\u202e\r"


@contextmanager
def pipe_that_nobody_reads(path: Path) -> Iterator[int]:
    """Put a named pipe at `path` and open its reading end."""
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield reader
    finally:
        os.close(reader)


def drained(reader: int, until: bytes, within_s: float = PATIENCE_S) -> bytes:
    """Read until some bytes have come."""
    data, give_up_s = b"", monotonic() + within_s
    while until not in data:
        assert monotonic() < give_up_s, data[-300:]
        try:
            data += os.read(reader, 65536)
        except BlockingIOError:
            os.sched_yield()
    return data


def test_a_reader_that_stalls_costs_lines_and_nobodys_time(tmp_path: Path) -> None:
    with pipe_that_nobody_reads(tmp_path / "log") as reader:
        writer = LogWriter(tmp_path / "log", "json", buffer_bytes=16 * 1024)
        line = access_line("json", {"time": now(), "request_id": "x" * 1000})
        begun_s = monotonic()
        for _ in range(500):
            writer.write(line)
        assert monotonic() - begun_s < 1.0
        assert writer.dropped > 300
        read = drained(reader, b"lines were dropped")
        told = next(line for line in read.splitlines() if b"dropped" in line)
        assert json.loads(told)["message"].startswith(f"{writer.dropped} log lines were dropped")
        assert read.count(b"\n") == 500 - writer.dropped + 1
        writer.close()


def test_the_end_waits_a_second_for_a_reader_and_no_longer(tmp_path: Path) -> None:
    with pipe_that_nobody_reads(tmp_path / "log"):
        writer = LogWriter(tmp_path / "log", "json", buffer_bytes=1 << 20)
        for _ in range(300):
            writer.write("x" * 1000 + "\n")
        begun_s = monotonic()
        writer.close()
        assert 0.9 < monotonic() - begun_s < 3.0


def test_a_file_that_was_moved_away_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = LogWriter(path, "json", buffer_bytes=1 << 20)
    writer.write("one\n")
    writer.write("two\n")
    while not path.read_text().endswith("two\n"):
        os.sched_yield()
    path.rename(tmp_path / "log.1")
    writer.reopen()
    writer.write("three\n")
    writer.close()
    assert (tmp_path / "log.1").read_text() == "one\ntwo\n"
    assert path.read_text() == "three\n"


@pytest.mark.parametrize("style", ["json", "text"])
def test_text_of_others_forges_no_line_and_moves_no_cursor(style: str) -> None:
    assert style in ("json", "text")
    for line in (
        as_line(style, now(), "WARNING", f"text: {FORGED}"),  # type: ignore[arg-type]
        access_line(style, {"time": now(), "model": FORGED, "cause": FORGED}),  # type: ignore[arg-type]
    ):
        assert line.endswith("\n")
        assert len(line.splitlines()) == 1
        assert line[:-1].isprintable()


def test_a_traceback_stays_with_its_line(tmp_path: Path) -> None:
    for style in ("json", "text"):
        path = tmp_path / style
        with logging_to(path, style, 1 << 20):  # type: ignore[arg-type]
            try:
                int(FORGED)
            except ValueError:
                logging.getLogger("frontdoor").exception("odd")
        first, *rest = path.read_text().splitlines()
        if style == "json":
            assert not rest
            assert "ValueError" in json.loads(first)["traceback"]
        else:
            assert first.endswith("ERROR odd")
            assert all(line.startswith("    ") and line.isprintable() for line in rest)
            assert any("ValueError" in line for line in rest)


@pytest.mark.parametrize("style", ["json", "text"])
@pytest.mark.parametrize("agent", ["curl/8", "caf\u00e9", "\ud800"])
def test_the_line_of_a_request_is_that_of_its_fields_in_their_order(
    style: Format, agent: str
) -> None:
    record = Record("r1", "openai", 0.0)
    record.user_agent = agent
    line = record.line(Outcome.SERVED, "2026-12-01T10:00:00.000+00:00")
    assert access_line(style, line) == access_line(style, asdict(line))


def test_each_word_of_a_line_is_in_its_place() -> None:
    record = Record("r1", "openai", 0.0)
    names = [name for name in AccessLine.__struct_fields__ if hasattr(record, name)]
    for number, name in enumerate(names):
        setattr(record, name, float(number) if name.endswith("_s") else str(number))
    line = record.line(Outcome.QUEUE_FULL, "T")
    assert [getattr(line, name) for name in names] == [getattr(record, name) for name in names]
    assert (line.time, line.outcome, line.code, len(names)) == ("T", "queue_full", "PF", 24)


def test_a_text_line_says_what_is_known_as_pairs() -> None:
    fields = {"time": "T", "model": "a b", "status": 200, "surface": None, "cause": ""}
    line = access_line("text", fields)
    assert line == 'T INFO request model="a b" status=200\n'


def test_a_door_whose_log_nobody_reads_goes_on_serving(tmp_path: Path) -> None:
    """Also its admin listener, which says how many lines were lost."""
    config = tmp_path / "frontdoor.toml"
    config.write_text(
        """
        [server]
        listen = "127.0.0.1:0"
        admin_listen = "127.0.0.1:0"
        [log]
        buffer_kib = 16
        [upstreams.text]
        url = "http://127.0.0.1:9"
        [models.text]
        upstream = "text"
        """
    )

    async def scenario() -> None:
        reader, writer = os.pipe()
        door = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tornado_frontdoor.cli", "serve", "--config", config),
            stdout=asyncio.subprocess.PIPE,
            stderr=writer,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        os.close(writer)
        assert door.stdout is not None
        ports = [int((await door.stdout.readline()).rpartition(b":")[2]) for _ in range(2)]
        wire = Wire(*await asyncio.open_connection("127.0.0.1", ports[0]))
        for _ in range(400):
            wire.send("/v1/chat/completions", chat("nobody"))
            assert (await wire.reply()).status == 404
        admin = Wire(*await asyncio.open_connection("127.0.0.1", ports[1]))
        admin.send("/metrics", None, "GET")
        metrics = (await admin.reply()).body.decode()
        dropped = metrics.partition("\nfrontdoor_log_lines_dropped_total ")[2].split("\n")[0]
        assert float(dropped) > 0
        wire.leave()
        admin.leave()
        door.terminate()
        async with asyncio.timeout(PATIENCE_S):
            assert await door.wait() == 0
        os.close(reader)

    asyncio.run(scenario())
