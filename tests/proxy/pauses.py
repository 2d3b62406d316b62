"""A front door that measures how long its loop stands still; run as a program by tests.

usage: python pauses.py CONFIGURATION

Each turn of the loop is followed by another at once, and of each is counted how much processor time
the whole process took until the next: that of the loop itself, and that of threads which did not
let it run. What others on the machine take does not count. A line on stdin is answered with the
longest turn since the last one, in milliseconds.
"""

import asyncio
import gc
import io
import sys
from pathlib import Path
from time import process_time

from tornado_frontdoor.config import load
from tornado_frontdoor.proxy.app import COLLECT_AFTER, SWITCH_S, App, announce, keep_little_memory


class Pauses:
    """Counts turns from when it is made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last_s = process_time()
        self.longest_s = 0.0
        self._turn()

    def _turn(self) -> None:
        now_s = process_time()
        self.longest_s = max(self.longest_s, now_s - self._last_s)
        self._last_s = now_s
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
