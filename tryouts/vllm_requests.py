"""Counts what a real vLLM holds, from within it; imports nothing, as it runs in vLLM's process.

    PYTHONPATH=. vllm serve MODEL ... --middleware tryouts.vllm_requests.CountRequests

`GET /inside` tells how many requests its HTTP server and its engine hold now, the most of both
since the last `GET /inside?reset`, and how often a newcomer was the first, the second and so on.
The engine's own gauges are scraped values, tens of milliseconds old; these are exact.
"""

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class CountRequests:
    """ASGI middleware around vLLM's application."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._http = 0
        self._most = {"http": 0, "engine": 0}
        self._levels: Counter[int] = Counter()
        self._states: Mapping[str, Any] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        """Pass on, and count what is an inference request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._states is None:
            self._states = self._look_into(scope["app"].state.engine_client.output_processor)
        if scope["path"] == "/inside":
            await self._tell(scope, send, len(self._states))
            return
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        self._http += 1
        self._most["http"] = max(self._most["http"], self._http)
        self._levels[self._http] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._http -= 1

    def _look_into(self, processor: Any) -> Mapping[str, Any]:
        states: Mapping[str, Any] = processor.request_states
        add_request = processor.add_request

        def counted(*args: Any, **kwargs: Any) -> None:
            add_request(*args, **kwargs)
            self._most["engine"] = max(self._most["engine"], len(states))

        processor.add_request = counted
        return states

    async def _tell(self, scope: Any, send: Send, engine: int) -> None:
        now = {"http": self._http, "engine": engine}
        body = json.dumps({"now": now, "most": self._most, "levels": self._levels}).encode()
        if scope["query_string"] == b"reset":
            self._most = dict(now)
            self._levels.clear()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
