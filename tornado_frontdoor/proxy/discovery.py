"""Which addresses stand behind an engine's name: asked again and again, in a thread of its own.

The system's resolver may take as long as it likes: one question is under way at a time, and nobody
waits for it. What it cannot answer changes nothing: engines do not vanish with a name server.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

LOG = logging.getLogger("frontdoor")

FIRST_AGAIN_S = 1.0
"""How soon it is asked again while nothing has been found yet."""
ADDRESSES_MAX = 64
"""More than that is no answer for engines, but somebody's mistake."""


class Discovery:
    """Looks an engine's name up every `every_s`, until `close`; tells when the answer changes."""

    def __init__(self, url: str, every_s: float, on_found: Callable[[Sequence[str]], None]) -> None:
        self.every_s = every_s
        self._url = url
        self._on_found = on_found
        self._found: tuple[str, ...] = ()
        self._fails = False
        self._thread = ThreadPoolExecutor(1, "dns")
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._look()

    def close(self) -> None:
        """Look no more; a question that is under way is let be."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _look(self) -> None:
        parts = urlsplit(self._url)
        loop = asyncio.get_running_loop()
        asked = loop.run_in_executor(self._thread, lookup, parts.hostname or "", parts.port or 80)
        asked.add_done_callback(self._told)

    def _told(self, asked: "asyncio.Future[tuple[str, ...]]") -> None:
        if self._closed or asked.cancelled():
            return
        error = asked.exception()
        if isinstance(error, OSError):
            self._say_once(str(error.strerror or error))
        elif error is not None:
            self._say_once(repr(error))
        else:
            self._take(asked.result())
        again_s = self.every_s if self._found else min(FIRST_AGAIN_S, self.every_s)
        self._timer = asyncio.get_running_loop().call_later(again_s, self._look)

    def _take(self, found: tuple[str, ...]) -> None:
        if len(found) > ADDRESSES_MAX:
            self._say_once(f"it has {len(found)} addresses, more than {ADDRESSES_MAX}")
            return
        self._fails = False
        if found == self._found:
            return
        for word, some in (
            ("joins", set(found) - set(self._found)),
            ("leaves", set(self._found) - set(found)),
        ):
            for url in sorted(some):
                LOG.info("%s: %s %s", self._url, url, word)
        self._found = found
        self._on_found(found)

    def _say_once(self, why: str) -> None:
        if not self._fails:
            self._fails = True
            LOG.warning("%s cannot be looked up: %s: its engines stay as they are", self._url, why)


def lookup(host: str, port: int) -> tuple[str, ...]:
    """Return the addresses of a name as those of engines, in an order of their own; blocks."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    hosts = {str(where[0]) for *_, where in found}
    names = (f"[{host}]" if ":" in host else host for host in hosts)
    return tuple(sorted(f"http://{name}:{port}" for name in names))
