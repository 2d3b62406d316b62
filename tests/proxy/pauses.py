"""A front door that measures how long its loop stands still; run as a program by tests.

usage: python pauses.py CONFIGURATION

Each turn of the loop is followed by another at once. What counts of each until the next is the
processor time of the whole process, that of threads included which did not let the loop run; but no
more than has passed without the time for which the system did not let it. So what others on the
machine take does not count. A line on stdin is answered with the longest turn since the last one,
in milliseconds.
"""

import asyncio
import gc
import io
import sys
from pathlib import Path
from time import monotonic, process_time

from stopwatch import delayed_s

from tornado_frontdoor.config import load
from tornado_frontdoor.proxy.app import App
from tornado_frontdoor.proxy.heap import keep_little_memory
from tornado_frontdoor.proxy.serving import COLLECT_AFTER, SWITCH_S, announce


class Pauses:
    """Counts turns from when it is made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last = self._now()
        self.longest_s = 0.0
        self._turn()

    def _now(self) -> tuple[float, float]:
        return process_time(), monotonic() - delayed_s()

    def _turn(self) -> None:
        before, self._last = self._last, self._now()
        took_s = min(now - then for now, then in zip(self._last, before, strict=True))
        self.longest_s = max(self.longest_s, took_s)
        self._loop.call_soon(self._turn)


async def main(path: Path) -> None:
    """Serve until stdin ends."""
    keep_little_memory()
    sys.setswitchinterval(SWITCH_S)
    app = App(load(path), lambda: load(path), io.StringIO())
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    announce(*app.start())
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    pauses = Pauses()
    while await reader.readline():
        print(round(pauses.longest_s * 1000, 1), flush=True)
        pauses.longest_s = 0.0
    await app.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
