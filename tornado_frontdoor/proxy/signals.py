"""Signals told to the loop, and to nobody once the process is about to end.

asyncio's own handlers give way to the system's defaults, and those end a process: a second SIGTERM,
a SIGHUP or a SIGUSR2 in the last moment would make a failure of an end that went well. Here no
moment lies between the two.
"""

import asyncio
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType


class Signals:
    """Calls what each signal means on the running loop. For the main thread."""

    def __init__(self, meant: Mapping[signal.Signals, Callable[[], object]]) -> None:
        self._meant = meant
        self._loop = asyncio.get_running_loop()
        for number in meant:
            signal.signal(number, self._heard)
            signal.siginterrupt(number, False)

    def ignore(self) -> None:
        """Heed none of them any more, until the process has ended."""
        for number in self._meant:
            signal.signal(number, signal.SIG_IGN)

    def _heard(self, number: int, _: FrameType | None) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._meant[signal.Signals(number)])
