"""Looks at engines that never sleep, so that a dead one is seen before a request is.

A look is `GET /health`, and an engine is there when anything answers; only 503 says that it is not
ready. One that accepts and says nothing may be busy: that is not taken for death. When to look is
the core's (`core/replicas.py`); here are one timer and the calls.
"""

import asyncio
import logging

from tornado_frontdoor.core.replicas import could_not_connect
from tornado_frontdoor.proxy.curl.client import TransferEnd, UpstreamClient, UpstreamFailed
from tornado_frontdoor.proxy.gate_driver import GateDriver

LOG = logging.getLogger("frontdoor")

LOOK_S = 2.0
"""How long a look may take."""
NOT_READY = 503


class EngineHealth:
    """Looks after all engines of one gate, until `close`; `period_s` 0: by requests alone."""

    def __init__(self, driver: GateDriver, client: UpstreamClient) -> None:
        self._driver = driver
        self._client = client
        self._looks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.arm()

    async def close(self) -> None:
        """Look no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for look in self._looks:
            look.cancel()
        await asyncio.gather(*self._looks, return_exceptions=True)

    def refused(self, name: str, why: str = "") -> None:
        """Take that a request could not connect, and why, in libcurl's words where it is known."""
        self._tell(name, up=False, why=could_not_connect(why))
        self.arm()

    def arm(self) -> None:
        """Look when it is due next; to be called when the engines have changed."""
        replicas = self._driver.gate.replicas
        assert replicas is not None
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed:
            self._timer = self._driver.loop.call_at(replicas.next_probe_s(), self._look_at_all)

    def _look_at_all(self) -> None:
        loop = self._driver.loop
        replicas = self._driver.gate.replicas
        assert replicas is not None
        for name in replicas.due(loop.time()):
            task = loop.create_task(self._look(name))
            self._looks.add(task)
            task.add_done_callback(self._looks.discard)
        self.arm()

    async def _look(self, name: str) -> None:
        try:
            answer = await self._client.ask("GET", f"{name}/health", timeout_s=LOOK_S)
        except UpstreamFailed as failed:
            if failed.end is TransferEnd.CONNECT_FAILED:
                self._tell(name, up=False, why=failed.detail)
        else:
            self._tell(name, up=answer.status != NOT_READY, why="it says that it is not ready")

    def _tell(self, name: str, *, up: bool, why: str) -> None:
        was_up = self._driver.engine_seen(name, up=up, why=why)
        if was_up is None or was_up is up:
            return
        key = self._driver.gate.key
        if up:
            LOG.info("upstreams.%s: %s is there again", key, name)
        else:
            LOG.warning("upstreams.%s: %s is down: %s", key, name, why)
