"""The admin listener: status for people, metrics for Prometheus. Never on the public port."""

import hmac
import json
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from tornado_frontdoor import __version__
from tornado_frontdoor.core.catalog import Catalog
from tornado_frontdoor.proxy.client import Client
from tornado_frontdoor.proxy.telemetry import Telemetry
from tornado_frontdoor.proxy.upstreams import Upstream
from tornado_frontdoor.surfaces.base import Document
from tornado_frontdoor.surfaces.paths import normalise


class Admin:
    """Serves the admin listener. What it shows can be exchanged while it runs."""

    max_body_bytes = 64 * 1024
    write_stall_timeout_s = 30.0

    def __init__(self, telemetry: Telemetry, token: str | None) -> None:
        self._telemetry = telemetry
        self._token = token
        self._started_s = monotonic()
        self.catalog = Catalog(())
        self.upstreams: Mapping[str, Upstream] = {}

    def turn_away(self, client: Client) -> Document | None:
        """Refuse who has not the token, and what is not here."""
        if self._token is not None:
            given = client.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
                headers = [("WWW-Authenticate", "Bearer")]
                return _json(401, {"error": "the admin token is missing or wrong"}, headers)
        if self._answer_of(client) is None:
            return _json(404, {"error": f"there is nothing at {client.method} {client.target}"})
        return None

    def too_large(self, client: Client) -> Document:  # noqa: ARG002 - the listener's protocol
        """Refuse a body that no call here needs."""
        return _json(413, {"error": "no call here takes such a body"})

    def serve(self, client: Client) -> None:
        """Answer a call."""
        answer = self._answer_of(client)
        assert answer is not None
        client.send(answer())

    def _answer_of(self, client: Client) -> Callable[[], Document] | None:
        normal = normalise(client.target)
        if normal is None:
            return None
        answers = {
            ("GET", "/admin/status"): self._status,
            ("GET", "/metrics"): self._metrics,
        }
        return answers.get((client.method, normal[0]))

    def _status(self) -> Document:
        upstreams = {key: self._describe(upstream) for key, upstream in self.upstreams.items()}
        uptime_s = round(monotonic() - self._started_s, 3)
        return _json(200, {"version": __version__, "uptime_s": uptime_s, "upstreams": upstreams})

    def _describe(self, upstream: Upstream) -> dict[str, Any]:
        gate = upstream.keeper.gate
        key = upstream.settings.key
        return {
            "url": upstream.settings.url,
            "models": [t.model for t in self.catalog.targets if t.upstream == key],
            "state": upstream.state,
            "sleep_depth": upstream.sleep_depth,
            "running": True,
            "sleeping": False,
            "wake_in_progress": False,
            "wake_step": None,
            "last_activity_s": None,
            "sleep_support": False,
            "in_flight": gate.in_flight,
            "cap": gate.limits.cap,
            "queued": gate.queued,
            "queue": gate.limits.queue if gate.limits.cap is not None else None,
            "wakes_total": 0,
            "estimated_wake_seconds": {"sleeping": None, "offloaded": None},
        }

    def _metrics(self) -> Document:
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        return Document(200, [("Content-Type", content_type)], self._telemetry.scrape())


def _json(status: int, value: object, headers: list[tuple[str, str]] | None = None) -> Document:
    body = json.dumps(value).encode()
    return Document(status, [("Content-Type", "application/json"), *(headers or [])], body)
