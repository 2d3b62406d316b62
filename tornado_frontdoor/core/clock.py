"""Time as the core sees it: monotonic seconds from whoever drives it."""

from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds; the zero point means nothing."""

    def now(self) -> float:
        """Return the current instant in seconds; never less than the last one."""
        ...


class ManualClock:
    """A clock that stands still until it is told to move: for tests and simulated worlds."""

    __slots__ = ("_now_s",)

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now(self) -> float:
        """Return the instant last set."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds` (>= 0)."""
        self.set(self._now_s + seconds)

    def set(self, now_s: float) -> None:
        """Move to `now_s`; raises ValueError when that lies in the past."""
        if now_s < self._now_s:
            raise ValueError(f"time does not run backwards: {now_s} < {self._now_s}")
        self._now_s = now_s
