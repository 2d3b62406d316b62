"""What must survive a front door that is killed: each engine's transition, depth, what was learned.

SQLite, one row for each engine address, and one for each other fact that was learned of it. What a
transition is about to do is committed, to the disk, before it is done; after a start the gates are
told what the last front door remembered.

Rule 1: one front door to a folder, held by a lock on a file beside the journal. The lock goes with
        the process, however that ends; one that drains gives it up for the next.
Rule 2: the loop never waits for the disk. Writes are made by one thread, in order; each ends by
        itself, and one that fails is told to whoever asked for it.
"""

import asyncio
import fcntl
import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import NamedTuple

from tornado_frontdoor.core.decisions import EngineState, JournalEntry
from tornado_frontdoor.core.standing import OrderKind, OrderOwner, StandingOrder
from tornado_frontdoor.engines.base import FirstToken

FILE_NAME = "frontdoor.sqlite3"
LOCK_NAME = "frontdoor.lock"
BUSY_TIMEOUT_S = 2.0
"""For another process that has the file locked, e.g. a backup."""
_COLUMNS = ["address", "memory", "wake_times"]


class JournalError(Exception):
    """The journal cannot be used; the message names the file and says why."""


class Known(NamedTuple):
    """What is known of an engine."""

    memory: JournalEntry | None = None
    wake_times_s: Mapping[str, float] = {}
    """By depth."""
    sizes_gib: Mapping[str, float] = {}
    """As `core/gpu_sizes.py` calls them."""
    order: StandingOrder | None = None
    """An operator's, by the clock on the wall (UTC)."""


class Journal:
    """The memories of all engines."""

    def __init__(self, folder: Path) -> None:
        """Open or make the journal in `folder`, and lock it; raises JournalError."""
        self._path = folder / FILE_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise JournalError(f"cannot keep the journal in {self._path}: {error}") from error
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._connection: sqlite3.Connection | None = None
        try:
            self._take_lock()
            self._connection = self._open()
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._lock, 20, 0).decode("ascii", "replace").strip()
            raise JournalError(
                f"another front door{f' (process {owner})' if owner else ''} keeps its state in "
                f"{self._path.parent}: stop it, take its place with --take-over, or give this one "
                "a server.state_dir of its own"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _open(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                self._path, isolation_level=None, timeout=BUSY_TIMEOUT_S, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise JournalError(f"cannot keep the journal in {self._path}: {error}") from error
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS engines "
                "(address TEXT PRIMARY KEY, memory TEXT, wake_times TEXT) STRICT"
            )
            ((health,), *_) = connection.execute("PRAGMA quick_check(1)").fetchall()
            found = [row[1] for row in connection.execute("PRAGMA table_info(engines)")]
            if health != "ok":
                raise sqlite3.DatabaseError(health)
            if found != _COLUMNS:
                raise sqlite3.DatabaseError(f"its table has the columns {', '.join(found)}")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS facts "
                "(address TEXT, name TEXT, value TEXT, PRIMARY KEY (address, name)) STRICT"
            )
        except sqlite3.OperationalError as error:
            connection.close()
            raise JournalError(f"cannot keep the journal in {self._path}: {error}") from error
        except sqlite3.Error as error:
            connection.close()
            raise JournalError(
                f"{self._path} is damaged or of another version "
                f"({' '.join(str(error).split())}): move it away and start "
                "again; engines that sleep are then woken with the greatest care"
            ) from error
        return connection

    async def flush(self) -> None:
        """Wait until all that was to be written is."""
        await asyncio.get_running_loop().run_in_executor(self._writer, int)

    def unlock(self) -> None:
        """Let another front door take over: this one begins nothing any more."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def remember(self, address: str, memory: JournalEntry) -> "asyncio.Future[None]":
        """Write a memory down; it is on the disk when the future is done."""
        return self._put(address, "memory", written(memory))

    def learn(self, address: str, wake_times: Mapping[str, float]) -> "asyncio.Future[None]":
        """Write down how long wakes take, by depth."""
        return self._put(address, "wake_times", json.dumps(dict(wake_times)))

    def learn_sizes(self, address: str, sizes: Mapping[str, float]) -> "asyncio.Future[None]":
        """Write down what was learned of the memory that an engine takes, in GiB."""
        return self._put_fact(address, "sizes", json.dumps(dict(sizes)))

    def keep_order(self, address: str, order: StandingOrder | None) -> "asyncio.Future[None]":
        """Write an operator's standing order down, or that there is none."""
        return self._put_fact(address, "order", _order_text(order))

    def recall(self, address: str) -> Known:
        """Return what is known of an engine; what cannot be read counts as forgotten."""
        assert self._connection is not None
        try:
            row = self._connection.execute(
                "SELECT memory, wake_times FROM engines WHERE address = ?", (address,)
            ).fetchone()
            facts = dict(
                self._connection.execute(
                    "SELECT name, value FROM facts WHERE address = ?", (address,)
                ).fetchall()
            )
        except sqlite3.Error:
            return Known()
        memory, wake_times = row or (None, None)
        sizes, order = numbers(facts.get("sizes")), _order(facts.get("order"))
        return Known(read(memory), numbers(wake_times), sizes, order)

    def close(self) -> None:
        """Write what is still to be written, and close the file."""
        self._writer.shutdown(wait=True)
        if self._connection is not None:
            self._connection.close()
        os.close(self._lock)

    def _put(self, address: str, column: str, value: str) -> "asyncio.Future[None]":
        statement = (
            f"INSERT INTO engines (address, {column}) VALUES (?, ?) "  # noqa: S608 - our names
            f"ON CONFLICT (address) DO UPDATE SET {column} = excluded.{column}"
        )
        return self._later(statement, address, value)

    def _put_fact(self, address: str, name: str, value: str) -> "asyncio.Future[None]":
        statement = "INSERT OR REPLACE INTO facts (address, name, value) VALUES (?, ?, ?)"
        return self._later(statement, address, name, value)

    def _later(self, statement: str, *values: str) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._writer, self._write, statement, values)

    def _write(self, statement: str, values: Sequence[str]) -> None:
        assert self._connection is not None
        try:
            self._connection.execute(statement, values)
        except sqlite3.Error as error:
            raise JournalError(f"cannot write the journal {self._path}: {error}") from error


def written(memory: JournalEntry) -> str:
    """Write an entry as text."""
    going = None if memory.going is None else memory.going.value
    return json.dumps(memory._asdict() | {"going": going})


def read(text: str | None) -> JournalEntry | None:
    """Read an entry; what cannot be read counts as forgotten."""
    try:
        fields = json.loads(text or "null")
        going = fields["going"]
        return JournalEntry(
            going=None if going is None else EngineState(going),
            level=int(fields["level"]),
            trusted=bool(fields["trusted"]),
            process=fields["process"],
            token=_token(fields.get("token")),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _order_text(order: StandingOrder | None) -> str:
    if order is None:
        return "null"
    until_s = None if order.until_s == inf else order.until_s
    changed = {"kind": order.kind.value, "owner": order.owner.value, "until_s": until_s}
    return json.dumps(order._asdict() | changed)


def _order(text: str | None) -> StandingOrder | None:
    """Read a standing order; what cannot be read counts as forgotten."""
    try:
        fields = json.loads(text or "null")
        until_s, level = fields["until_s"], fields["level"]
        return StandingOrder(
            OrderKind(fields["kind"]),
            OrderOwner(fields["owner"]),
            by=str(fields["by"]),
            until_s=inf if until_s is None else float(until_s),
            level=None if level is None else int(level),
            ends=str(fields["ends"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _token(told: object) -> FirstToken | None:
    match told:
        case [str() as text, float() | int() | None as logprob]:
            return FirstToken(text, logprob)
        case _:
            return None


def numbers(text: str | None) -> dict[str, float]:
    """Read named numbers; what cannot be read counts as forgotten."""
    try:
        return {str(name): float(value) for name, value in json.loads(text or "{}").items()}
    except (ValueError, TypeError, AttributeError):
        return {}
