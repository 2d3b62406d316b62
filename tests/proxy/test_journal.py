"""The journal: what was remembered is there after a kill, and nothing else is."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tornado_frontdoor.core.decisions import EngineState, JournalEntry
from tornado_frontdoor.core.standing import OrderKind, OrderOwner, StandingOrder
from tornado_frontdoor.proxy.engine.journal import FILE_NAME, Journal, JournalError

ENGINE = "http://127.0.0.1:8000"
WAKING = JournalEntry(going=EngineState.WAKING, level=2, trusted=False, process="123.45")


def test_an_unknown_engine_has_no_memory(tmp_path):
    journal = Journal(tmp_path / "var")
    assert journal.recall(ENGINE)[:2] == (None, {})
    journal.close()


def test_memory_and_wake_times_are_kept_apart_and_by_address(tmp_path):
    async def write() -> None:
        journal = Journal(tmp_path)
        journal.remember(ENGINE, WAKING)
        journal.learn(ENGINE, {"sleeping": 2.5})
        journal.remember("http://other", JournalEntry())
        journal.remember(ENGINE, WAKING._replace(level=1))
        journal.close()

    asyncio.run(write())
    again = Journal(tmp_path)
    assert again.recall(ENGINE)[:2] == (WAKING._replace(level=1), {"sleeping": 2.5})
    assert again.recall("http://other")[:2] == (JournalEntry(), {})
    again.close()


def test_what_was_remembered_survives_a_kill(tmp_path):
    script = (
        "import asyncio, sys, os, signal\n"
        "from pathlib import Path\n"
        "from tornado_frontdoor.core.decisions import EngineState, JournalEntry\n"
        "from tornado_frontdoor.proxy.engine.journal import Journal\n"
        "async def write():\n"
        "    journal = Journal(Path(sys.argv[1]))\n"
        "    entry = JournalEntry(EngineState.WAKING, 2, False, '123.45')\n"
        f"    await journal.remember({ENGINE!r}, entry)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(write())\n"
    )
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(root)},
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    journal = Journal(tmp_path)
    assert journal.recall(ENGINE)[:2] == (WAKING, {})
    journal.close()


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"going": "flying"}', "nonsense", "3"])
def test_what_cannot_be_read_counts_as_forgotten(tmp_path, text):
    journal = Journal(tmp_path)
    journal._connection.execute("INSERT INTO engines VALUES (?, ?, ?)", (ENGINE, text, text))
    assert journal.recall(ENGINE)[:2] == (None, {})
    journal.close()


ORDERS = [
    StandingOrder(OrderKind.PIN, OrderOwner.OPERATOR, "alice"),
    StandingOrder(
        OrderKind.ASLEEP, OrderOwner.OPERATOR, "bob", 1.8e9, 2, "until 2027-01-15T08:00:00Z"
    ),
]


@pytest.mark.parametrize("order", ORDERS, ids=["for good", "with an end"])
def test_an_operators_order_is_kept_until_another_or_none_takes_its_place(tmp_path, order):
    async def write() -> None:
        journal = Journal(tmp_path)
        await journal.keep_order(ENGINE, order)
        await journal.remember(ENGINE, WAKING)
        journal.close()

    asyncio.run(write())
    journal = Journal(tmp_path)
    assert journal.recall(ENGINE).order == order

    async def forget() -> None:
        await journal.keep_order(ENGINE, None)

    asyncio.run(forget())
    assert journal.recall(ENGINE).order is None
    for text in ("", "[]", '{"kind": "nap"}', '{"until_s": "soon", "level": null}'):
        journal._connection.execute("UPDATE facts SET value = ?", (text,))
        assert journal.recall(ENGINE).order is None
    journal.close()


def test_a_journal_that_cannot_be_kept_says_where_and_why(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"this is no database at all" * 100)
    with pytest.raises(JournalError, match=r"frontdoor\.sqlite3 is damaged .*: move it away"):
        Journal(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot keep the journal"):
        Journal(tmp_path / "file" / "below")


def test_a_journal_of_another_version_is_not_touched(tmp_path):
    """Nor is one taken whose pages are scrambled: one line says what to do."""
    path = tmp_path / FILE_NAME
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE engines (address TEXT PRIMARY KEY, going TEXT)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(JournalError, match=r"of another version .*columns address, going.*move it"):
        Journal(tmp_path)
    assert len(path.read_bytes()) == len(before)


def test_a_journal_whose_pages_are_scrambled_says_what_to_do(tmp_path):
    async def write() -> None:
        journal = Journal(tmp_path)
        for number in range(200):
            journal.remember(f"http://engine-{number}", WAKING)
        journal.close()

    asyncio.run(write())
    path = tmp_path / FILE_NAME
    content = bytearray(path.read_bytes())
    content[4096:8192] = bytes(range(256)) * 16
    path.write_bytes(content)
    with pytest.raises(JournalError, match=r"(?s)is damaged .*: move it away and start again"):
        Journal(tmp_path)


def test_one_folder_has_one_front_door_until_that_hands_over(tmp_path):
    first = Journal(tmp_path)
    with pytest.raises(JournalError, match=rf"another front door \(process {os.getpid()}\)"):
        Journal(tmp_path)
    first.unlock()
    Journal(tmp_path).close()
    first.close()
