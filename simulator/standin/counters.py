"""What a stand-in counts: the witness that tests and load tests assert on.

Rule 1: `in_flight` counts requests that were accepted and have not ended, whether they run or wait
        inside; `waiting` those of them that hold no slot yet.
Rule 2: a request ends once, however it ends, before its last byte is written.
"""

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, TextIO

KEPT = 100_000
"""Entries of each list that are kept, the newest: memory stays bounded."""


class Counters:
    """All counters of one stand-in; `log` gets a line whenever the number in flight changes."""

    def __init__(
        self, log: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._clock = clock
        self.in_flight = 0
        self.sequences = 0
        self.waiting = 0
        self.reset()

    def reset(self) -> None:
        """Begin anew; what is in flight stays in flight."""
        self.max_concurrent = self.in_flight
        self.max_sequences = self.sequences
        self.started = 0
        self.refused = 0
        self.ended: Counter[str] = Counter()
        self.order: deque[str] = deque(maxlen=KEPT)
        self.changes: deque[tuple[float, int, str]] = deque(maxlen=KEPT)
        """When the number of sequences changed, what it was then, and whose start that was."""
        self._note()
        self.not_proven_awake = 0
        self.garbage_pieces = 0
        self.control_calls: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.control_overlaps = 0

    def accept(self, weight: int, *, proven_awake: bool) -> None:
        """Count a request that came in."""
        self.in_flight += 1
        self.waiting += 1
        self.sequences += weight
        self.max_concurrent = max(self.max_concurrent, self.in_flight)
        self.max_sequences = max(self.max_sequences, self.sequences)
        self.not_proven_awake += not proven_awake
        self._note()
        self._write()

    def start(self, request_id: str) -> None:
        """Count a request that took its slots."""
        self.started += 1
        self.waiting -= 1
        self.order.append(request_id)
        self._note(request_id)

    def end(self, how: str, weight: int, *, started: bool) -> None:
        """Count the end of a request: `finished`, `aborted` or `failed`."""
        self.in_flight -= 1
        self.sequences -= weight
        self.waiting -= not started
        self.ended[how] += 1
        self._note()
        self._write()

    def snapshot(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "in_flight": self.in_flight,
            "max_concurrent": self.max_concurrent,
            "waiting": self.waiting,
            "started": self.started,
            "finished": self.ended["finished"],
            "aborted": self.ended["aborted"],
            "failed": self.ended["failed"],
            "refused": self.refused,
            "order": list(self.order),
            "sequences": self.sequences,
            "max_sequences": self.max_sequences,
            "not_proven_awake": self.not_proven_awake,
            "garbage_tokens": self.garbage_pieces,
            "control_calls": list(self.control_calls),
            "control_overlaps": self.control_overlaps,
        }

    def history(self) -> dict[str, Any]:
        """Return every change since the reset, so that those of several engines can be merged."""
        return {"changes": list(self.changes)}

    def _note(self, started: str = "") -> None:
        self.changes.append((self._clock(), self.sequences, started))

    def _write(self) -> None:
        if self._log is not None:
            self._log.write(f"in_flight={self.in_flight} max_concurrent={self.max_concurrent}\n")
            self._log.flush()
