"""Time as a test may judge it: on a busy machine, what we were kept waiting for is not ours.

Whoever asserts that something took long enough looks at the clock on the wall; whoever asserts that
it took no longer than it should looks at what is left of that without the time for which this
thread could have run and was not let. Where front door, engine and client share one thread, as in
most of these tests, that is their time on an idle machine.
"""

import contextlib
from pathlib import Path
from time import monotonic

PATIENCE_S = 120.0
"""How long to wait for what will happen before a test says that it hangs: no measure of anything.

A front door takes a second of CPU to start: on a machine as busy as they come, that is a minute.
"""
_SCHEDULED = Path("/proc/thread-self/schedstat")


def delayed_s() -> float:
    """Return how long this thread has been ready and not running; 0 where Linux does not say."""
    with contextlib.suppress(OSError):
        return int(_SCHEDULED.read_text().split()[1]) / 1e9
    return 0.0


class Stopwatch:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._began_s = monotonic()
        self._delayed_s = delayed_s()
        self._stopped: tuple[float, float] | None = None

    def stop(self) -> None:
        """Keep what it shows now."""
        self._stopped = monotonic(), delayed_s()

    @property
    def wall_s(self) -> float:
        """Seconds since then."""
        return (self._stopped or (monotonic(),))[0] - self._began_s

    @property
    def own_s(self) -> float:
        """Seconds since then in which nobody else kept us from running."""
        end_s, delayed_at_end_s = self._stopped or (monotonic(), delayed_s())
        return end_s - self._began_s - (delayed_at_end_s - self._delayed_s)
