"""The last hours by the minute, bounded, for the page's charts; it survives a restart on SQLite.

A minute costs one entry and one write on a thread; a store that cannot be written is given up with
a line in the log, and the history goes on in memory.
"""

import asyncio
import json
import logging
import sqlite3
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from time import time_ns
from typing import Any

from tornado_frontdoor.proxy.records import AccessLine

LOG = logging.getLogger("frontdoor")

MINUTES_KEPT = 12 * 60
WAITS_KEPT = 256
"""Of a busy minute a sample of as many waits tells the quantiles."""
SAMPLE_S = 5.0
FILE = "history.sqlite3"

Minute = dict[str, Any]


class History:
    """Counts the minute that runs and keeps those before it. `load` returns (in flight, queued)."""

    def __init__(self, folder: Path | None, load: Callable[[], tuple[int, int]]) -> None:
        self._load = load
        self._rng = Random(0)  # noqa: S311 - picks a sample
        self._minutes: deque[Minute] = deque(maxlen=MINUTES_KEPT)
        self._store = ThreadPoolExecutor(1, "history")
        self._path = None if folder is None else folder / FILE
        if self._path is not None:
            with suppress(OSError):  # told when the first minute cannot be written
                self._path.parent.mkdir(parents=True, exist_ok=True)
            self._minutes.extend(self._read(self._path))
        self._begin(_minute_now())
        self._timer = asyncio.get_running_loop().call_later(SAMPLE_S, self._sample)

    def ended(self, line: AccessLine) -> None:
        """Take a request that ended."""
        self._outcomes[line.outcome] += 1
        if line.outcome != "served" or line.upstream is None:
            return
        self._served += 1
        if len(self._waits_s) < WAITS_KEPT:
            self._waits_s.append(line.waited_s)
        elif (place := int(self._rng.random() * self._served)) < WAITS_KEPT:
            self._waits_s[place] = line.waited_s

    def heard(self, kind: str, told: Any) -> None:
        """Take an event: a request that ended, or another state of an engine."""
        if kind == "request":
            self.ended(told)
        elif told["state"] in ("sleeping", "offloaded", "stopped"):
            self._sleeps += 1

    def minutes(self) -> list[Minute]:
        """Return what is kept, oldest first, the minute that runs included."""
        return [*self._minutes, self._closed()]

    def close(self) -> None:
        """Keep the minute that runs, and stop; again it does nothing."""
        if self._timer.cancelled():
            return
        self._timer.cancel()
        self._keep(self._closed())
        self._store.shutdown()

    # How

    def _begin(self, minute: int) -> None:
        self._minute = minute
        self._outcomes: Counter[str] = Counter()
        self._served = 0
        self._waits_s: list[float] = []
        self._most_in_flight = self._most_queued = 0
        self._sleeps = 0

    def _sample(self) -> None:
        in_flight, queued = self._load()
        self._most_in_flight = max(self._most_in_flight, in_flight)
        self._most_queued = max(self._most_queued, queued)
        minute = _minute_now()
        if minute != self._minute:
            closed = self._closed()
            self._minutes.append(closed)
            self._keep(closed)
            self._begin(minute)
        self._timer = asyncio.get_running_loop().call_later(SAMPLE_S, self._sample)

    def _closed(self) -> Minute:
        waits = sorted(self._waits_s)
        served = self._outcomes["served"]
        total = sum(self._outcomes.values())
        left = sum(n for name, n in self._outcomes.items() if name.startswith("client_gone"))
        return {
            "minute": self._minute,
            "arrivals": total,
            "served": served,
            "left": left,
            "refused": total - served - left,
            "wait_p50_s": _quantile(waits, 0.5),
            "wait_p95_s": _quantile(waits, 0.95),
            "in_flight": self._most_in_flight,
            "queued": self._most_queued,
            "sleeps": self._sleeps,
        }

    def _keep(self, minute: Minute) -> None:
        if self._path is not None:
            self._store.submit(self._write, self._path, minute)

    def _write(self, path: Path, minute: Minute) -> None:
        try:
            with sqlite3.connect(path) as store:
                store.execute("pragma synchronous = off")  # a lost minute is no loss
                store.execute("create table if not exists minutes (minute integer primary key, j)")
                row = (minute["minute"], json.dumps(minute))
                store.execute("insert or replace into minutes values (?, ?)", row)
                oldest = minute["minute"] - MINUTES_KEPT
                store.execute("delete from minutes where minute < ?", (oldest,))
            store.close()
        except sqlite3.Error as error:
            LOG.warning("the page's history is in memory only from now on: %s: %s", path, error)
            self._path = None

    def _read(self, path: Path) -> list[Minute]:
        if not path.exists():
            return []
        try:
            with sqlite3.connect(path) as store:
                rows = store.execute("select j from minutes order by minute").fetchall()
            store.close()
            kept = [json.loads(row[0]) for row in rows]
        except (sqlite3.Error, ValueError) as error:
            LOG.warning("the page's history cannot be read and begins anew: %s: %s", path, error)
            path.rename(path.with_suffix(".unreadable"))
            return []
        now = _minute_now()
        return [minute for minute in kept if now - MINUTES_KEPT <= minute["minute"] < now]


def _quantile(ordered: list[float], share: float) -> float | None:
    return round(ordered[int(share * (len(ordered) - 1))], 4) if ordered else None


def _minute_now() -> int:
    return time_ns() // 60_000_000_000
