"""Looks at the front door while it works: memory, descriptors, tasks, slots and places."""

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from loadtests.harness.processes import fetch, metrics_of

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one instant."""

    at_s: float
    rss_mib: float
    descriptors: int
    threads: int
    tasks: int
    in_flight: dict[str, int]
    queued: dict[str, int]


@dataclass(slots=True)
class Watch:
    """A thread that looks once a second."""

    pid: int
    """Whom to look at; may change."""
    admin: str
    looks: list[Look] = field(default_factory=list)
    in_vain: int = 0
    """Looks that failed."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        started_s = time.monotonic()
        while not self._stop.wait(EVERY_S):
            try:
                self.looks.append(look(self.pid, self.admin, time.monotonic() - started_s))
            except Exception:  # noqa: BLE001 - whatever it is, it is judged, and the next may go well
                self.in_vain += 1


def look(pid: int, admin: str, at_s: float) -> Look:
    """Look once."""
    process = Path(f"/proc/{pid}")
    upstreams = fetch(f"{admin}/admin/status")["upstreams"]
    metrics = metrics_of(f"{admin}/metrics")
    status = dict(
        line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line
    )
    return Look(
        at_s,
        int((process / "statm").read_text().split()[1]) * PAGE_BYTES / 2**20,
        len(list((process / "fd").iterdir())),
        int(status["Threads"]),
        int(metrics["frontdoor_asyncio_tasks"]),
        {key: upstream["in_flight"] for key, upstream in upstreams.items()},
        {key: upstream["queued"] for key, upstream in upstreams.items()},
    )


def growth(values: list[float]) -> float:
    """Return how much the least of the last third is above the least of the second quarter on.

    The first quarter is warming up. A leak raises the least; what comes and goes does not.
    """
    warm = values[len(values) // 4 :]
    third = max(1, len(warm) // 3)
    return min(warm[-third:]) - min(warm[:third]) if warm else 0.0
