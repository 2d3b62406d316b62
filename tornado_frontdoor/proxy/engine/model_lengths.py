"""How long a context each engine's models have, asked of the engines where nobody wrote it down.

Rule 1: an engine is asked for its list of models and for nothing else: that wakes nobody, and a
        sleeping engine answers it.
Rule 2: what was learned once stays known while the engine does not answer.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.proxy.curl.client import UpstreamClient, UpstreamFailed
from tornado_frontdoor.proxy.engine.counts import credentials
from tornado_frontdoor.proxy.engine.model_list import read_model_list

LOG = logging.getLogger("frontdoor")

TIMEOUT_S = 2.0
AGAIN_S = 300.0
"""An engine may come back with another `--max-model-len`."""
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0

Lengths = Mapping[tuple[UpstreamKey, str], int]
"""By upstream and the name that its engine serves."""


@dataclass(slots=True)
class _Asking:
    """When an engine is asked next, and how long to wait when it does not answer then."""

    due_s: float = 0.0
    retry_s: float = FIRST_RETRY_S


class ModelLengths:
    """Learns lengths in the background. Must be made within a running loop."""

    def __init__(self, client: UpstreamClient, changed: Callable[[], None]) -> None:
        """`changed` is called when `known` has something new."""
        self.known: dict[tuple[UpstreamKey, str], int] = {}
        self._client = client
        self._changed = changed
        self._engines: Mapping[UpstreamKey, str] = {}
        self._api_keys: Mapping[str, str] = {}
        self._askings: dict[str, _Asking] = {}
        self._task: asyncio.Task[None] | None = None

    def watch(
        self, engines: Mapping[UpstreamKey, str], api_keys: Mapping[str, str] | None = None
    ) -> None:
        """Learn the lengths of these upstreams, each with its URL, from now on; forget others.

        `api_keys` has, by URL, the keys of those that ask for one.
        """
        self._api_keys = api_keys or {}
        self._engines = engines
        self._askings = {url: self._askings.get(url, _Asking()) for url in engines.values()}
        self.known = {key: length for key, length in self.known.items() if key[0] in engines}
        if engines and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._ask_whoever_is_due()
            await asyncio.sleep(FIRST_RETRY_S)

    async def _ask_whoever_is_due(self) -> None:
        now = asyncio.get_running_loop().time()
        due = [(k, url) for k, url in self._engines.items() if self._askings[url].due_s <= now]
        await asyncio.gather(*(self._learn(key, url) for key, url in due))

    async def _learn(self, key: UpstreamKey, url: str) -> None:
        asking = self._askings[url]
        lengths = await self._ask(url)
        now = asyncio.get_running_loop().time()
        if lengths is None:
            asking.due_s = now + asking.retry_s
            asking.retry_s = min(2 * asking.retry_s, LAST_RETRY_S)
            return
        asking.due_s, asking.retry_s = now + AGAIN_S, FIRST_RETRY_S
        news = {(key, name): length for name, length in lengths.items() if length is not None}
        if key in self._engines and not news.items() <= self.known.items():
            self.known |= news
            self._changed()

    async def _ask(self, url: str) -> dict[str, int | None] | None:
        try:
            headers = credentials(self._api_keys.get(url))
            answer = await self._client.ask(
                "GET", f"{url}/v1/models", timeout_s=TIMEOUT_S, headers=headers
            )
            return read_model_list(answer.body) if answer.status == 200 else None
        except (UpstreamFailed, ValueError):
            return None
        except Exception:
            LOG.exception("%s: its models could not be read", url)
            return None
