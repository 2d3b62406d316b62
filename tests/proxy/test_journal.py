"""The journal: what was remembered is there after a kill, and nothing else is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tornado_frontdoor.core.decisions import EngineState, JournalEntry
from tornado_frontdoor.proxy.engine.journal import FILE_NAME, Journal, JournalError

ENGINE = "http://127.0.0.1:8000"
WAKING = JournalEntry(going=EngineState.WAKING, level=2, trusted=False, process="123.45")


def test_an_unknown_engine_has_no_memory(tmp_path):
    journal = Journal(tmp_path / "var")
    assert journal.recall(ENGINE) == (None, {})
    journal.close()


def test_memory_and_wake_times_are_kept_apart_and_by_address(tmp_path):
    journal = Journal(tmp_path)
    journal.remember(ENGINE, WAKING)
    journal.learn(ENGINE, {"sleeping": 2.5})
    journal.remember("http://other", JournalEntry())
    journal.remember(ENGINE, WAKING._replace(level=1))
    journal.close()
    again = Journal(tmp_path)
    assert again.recall(ENGINE) == (WAKING._replace(level=1), {"sleeping": 2.5})
    assert again.recall("http://other") == (JournalEntry(), {})
    again.close()


def test_what_was_remembered_survives_a_kill(tmp_path):
    script = (
        "import sys, os, signal\n"
        "from pathlib import Path\n"
        "from tornado_frontdoor.core.decisions import EngineState, JournalEntry\n"
        "from tornado_frontdoor.proxy.engine.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        f"journal.remember({ENGINE!r}, JournalEntry(EngineState.WAKING, 2, False, '123.45'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(root)},
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    journal = Journal(tmp_path)
    assert journal.recall(ENGINE) == (WAKING, {})
    journal.close()


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"going": "flying"}', "nonsense", "3"])
def test_what_cannot_be_read_counts_as_forgotten(tmp_path, text):
    journal = Journal(tmp_path)
    journal._connection.execute("INSERT INTO engines VALUES (?, ?, ?)", (ENGINE, text, text))
    assert journal.recall(ENGINE) == (None, {})
    journal.close()


def test_a_journal_that_cannot_be_kept_says_where_and_why(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"this is no database at all" * 100)
    with pytest.raises(JournalError, match=r"frontdoor\.sqlite3: file is not a database"):
        Journal(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot keep the journal"):
        Journal(tmp_path / "file" / "below")
