"""What must survive a front door that is killed: each engine's transition, depth and wake times.

SQLite, one row for each engine address. A memory is committed, to the disk, before the first call
of the transition that it speaks of is made; after a start the gates are told what the last front
door remembered.
"""

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from tornado_frontdoor.core.decisions import EngineState, JournalEntry

FILE_NAME = "frontdoor.sqlite3"


class JournalError(Exception):
    """The journal cannot be used; the message names the file and says why."""


class Journal:
    """The memories of all engines. A call blocks for one commit; a transition makes two."""

    def __init__(self, folder: Path) -> None:
        """Open or make the journal in `folder`; raises JournalError."""
        self._path = folder / FILE_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self._path, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise JournalError(f"cannot keep the journal in {self._path}: {error}") from error
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS engines "
                "(address TEXT PRIMARY KEY, memory TEXT, wake_times TEXT) STRICT"
            )
        except sqlite3.Error as error:
            self._connection.close()
            raise JournalError(f"cannot keep the journal in {self._path}: {error}") from error

    def remember(self, address: str, memory: JournalEntry) -> None:
        """Write a memory down; when this returns it is on the disk."""
        going = None if memory.going is None else memory.going.value
        self._put(address, "memory", json.dumps(memory._asdict() | {"going": going}))

    def learn(self, address: str, wake_times: Mapping[str, float]) -> None:
        """Write down how long wakes take, by depth."""
        self._put(address, "wake_times", json.dumps(dict(wake_times)))

    def recall(self, address: str) -> tuple[JournalEntry | None, dict[str, float]]:
        """Return what was remembered of an engine; what cannot be read counts as forgotten."""
        row = self._connection.execute(
            "SELECT memory, wake_times FROM engines WHERE address = ?", (address,)
        ).fetchone()
        if row is None:
            return None, {}
        return _memory(row[0]), _wake_times(row[1])

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _put(self, address: str, column: str, value: str) -> None:
        self._connection.execute(
            f"INSERT INTO engines (address, {column}) VALUES (?, ?) "  # noqa: S608 - our own names
            f"ON CONFLICT (address) DO UPDATE SET {column} = excluded.{column}",
            (address, value),
        )


def _memory(text: str | None) -> JournalEntry | None:
    try:
        fields = json.loads(text or "null")
        going = fields["going"]
        return JournalEntry(
            going=None if going is None else EngineState(going),
            level=int(fields["level"]),
            trusted=bool(fields["trusted"]),
            process=fields["process"],
        )
    except (ValueError, KeyError, TypeError):
        return None


def _wake_times(text: str | None) -> dict[str, float]:
    try:
        return {str(depth): float(took_s) for depth, took_s in json.loads(text or "{}").items()}
    except (ValueError, TypeError, AttributeError):
        return {}
