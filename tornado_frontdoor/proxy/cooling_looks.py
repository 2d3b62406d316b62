"""Asks engines for their counts while slots cool for long; the rule is in `core/cooling_count.py`.

Nearly always the engine's end of file comes within milliseconds, and nobody is asked. llama-server
looks at its clients once a second, and not while it is asked something: so the first look comes
after that, and later ones less and less often.
"""

import asyncio
from collections.abc import Sequence

from tornado_frontdoor.core.cooling_count import CoolingCount
from tornado_frontdoor.core.request import Ticket
from tornado_frontdoor.engines import kinds
from tornado_frontdoor.engines.base import EngineKind
from tornado_frontdoor.proxy.curl.client import Transfer, UpstreamClient, UpstreamFailed
from tornado_frontdoor.proxy.engine.counts import count_at
from tornado_frontdoor.proxy.gate_driver import GateDriver

FIRST_LOOK_S = 1.1
GAP_S = 0.25
"""Between the first looks; three of them tell something, at the soonest."""
LONGEST_GAP_S = 5.0
AT_WORK_S = 0.5
"""How long a request must have been sent to be in an engine's count for sure."""
LIMIT_BYTES = 1 << 20


class _Look:
    """What was known of one engine at the last look."""

    def __init__(self) -> None:
        self.count = CoolingCount()
        self.at_work: set[Transfer] = set()
        self.counted: int | None = None
        self.cooled: tuple[set[Ticket], set[Ticket]] = set(), set()
        """Whose slots cooled before the count before the last one, and before the last one."""


class CoolingLooks:
    """Looks at the engines of one gate, from when a slot has cooled for a while until none does."""

    def __init__(self, driver: GateDriver, client: UpstreamClient) -> None:
        self._driver = driver
        self._client = client
        self._kind: EngineKind | None = None
        self._api_key: str | None = None
        self._engines: tuple[str, ...] = ()
        """Their addresses; where there are several, they are replicas of those names."""
        self._looks: dict[str, _Look] = {}
        self._gap_s = GAP_S
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        driver.on_cooling = self._arm

    def know(
        self, kind: str, models: Sequence[str], engines: tuple[str, ...], api_key: str | None
    ) -> None:
        """Take what engines they are, where, and what they serve."""
        of_any, names = kinds()[kind], sorted(set(models))
        # Of several models no count tells for all: then the limit decides.
        self._kind = of_any.serving(names[0]) if len(names) == 1 else of_any
        self._engines = engines
        self._api_key = api_key

    async def close(self) -> None:
        """Look no more."""
        self._driver.on_cooling = lambda: None
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _arm(self, delay_s: float = FIRST_LOOK_S) -> None:
        if self._timer is None and self._task is None:
            self._timer = self._driver.loop.call_later(delay_s, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._driver.gate.cooling:
            self._task = self._driver.loop.create_task(self._look_at_all())
            self._task.add_done_callback(self._looked)
        else:
            self._looks.clear()
            self._gap_s = GAP_S

    def _looked(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if not task.cancelled():
            self._arm(self._gap_s)
            self._gap_s = min(LONGEST_GAP_S, 1.5 * self._gap_s)

    async def _look_at_all(self) -> None:
        for engine in self._engines:
            name = engine if len(self._engines) > 1 else None
            cooling = self._driver.cooling_at(name)
            if not cooling:
                self._looks.pop(engine, None)
                continue
            look = self._looks.setdefault(engine, _Look())
            at_work = self._at_work(engine)
            still = len(look.at_work & at_work)
            long = cooling & look.cooled[0]
            free = look.count.free(look.counted, still, sum(one.weight for one in long))
            if free:
                self._driver.count_free(free, long)
            look.at_work, look.cooled = at_work, (look.cooled[1], cooling)
            look.counted = await self._count(engine)

    def _at_work(self, engine: str) -> set[Transfer]:
        """Return the calls that one engine has had for a while and whose answers are read."""
        before_s = self._driver.loop.time() - AT_WORK_S
        return {
            one
            for one in self._client.under_way
            if one.lingers
            and not one.paused
            and one.sent_s is not None
            and one.sent_s < before_s
            and one.url.startswith(engine + "/")
        }

    async def _count(self, engine: str) -> int | None:
        if self._kind is None:
            return None
        key = self._api_key
        try:
            return await count_at(
                self._client, self._kind, engine, limit_bytes=LIMIT_BYTES, api_key=key
            )
        except UpstreamFailed:
            return None
