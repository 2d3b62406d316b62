"""One upstream as the proxy holds it: its settings, its gate, and how a request gets to its engine.

Beside the gate stands a side door for what an engine answers without a sequence slot (`/tokenize`):
a small line of its own, so that a crowd of token counts takes no slot and does not bury the engine.
"""

from collections.abc import Mapping
from math import inf
from random import Random

from tornado_frontdoor.config import UpstreamSettings
from tornado_frontdoor.core.request import CanonicalRequest, UpstreamKey
from tornado_frontdoor.proxy.gatekeeper import AdmissionLimits, Gatekeeper, Lease
from tornado_frontdoor.proxy.telemetry import GateReading
from tornado_frontdoor.proxy.upstream import Receiver, Transfer, UpstreamCall, UpstreamClient

_SIDE_LIMITS = AdmissionLimits(cap=8, queue=512, queue_timeout_s=60.0)
"""Claude Code counts tokens 14 at a time; 8 at once keep an engine's tokenizer busy enough."""


class Upstream:
    """One address: one gate, whatever route or dialect a request came by."""

    def __init__(self, settings: UpstreamSettings, client: UpstreamClient, rng: Random) -> None:
        self._client = client
        self.settings = settings
        self.keeper = Gatekeeper(settings.key, limits_of(settings), rng)
        self.side_door = Gatekeeper(UpstreamKey(f"{settings.key} (no slot)"), _SIDE_LIMITS, rng)

    @property
    def state(self) -> str:
        """The engine's state, as in `/admin/status`."""
        return "awake"

    @property
    def sleep_depth(self) -> str | None:
        """How deep it sleeps; None while it does not."""
        return None

    @property
    def idle(self) -> bool:
        """Whether nobody is inside."""
        gates = (self.keeper.gate, self.side_door.gate)
        return not any(gate.in_flight or gate.queued for gate in gates)

    def enter(self, request: CanonicalRequest) -> Lease:
        """Bring a request to the gate it has to pass."""
        keeper = self.keeper if request.takes_slot else self.side_door
        return keeper.enter(request.weight)

    def start(self, request: CanonicalRequest, request_id: str, receiver: Receiver) -> Transfer:
        """Ask the engine. Its time limits start now, not when the request arrived."""
        settings = self.settings
        call = UpstreamCall(
            url=settings.url + request.path,
            method="POST",
            body=request.body,
            headers=[
                ("Content-Type", request.content_type),
                ("X-Request-Id", request_id),
                *request.headers,
            ],
            connect_timeout_s=settings.connect_timeout_s,
            read_timeout_s=settings.read_timeout_s,
            chunk_timeout_s=settings.chunk_timeout_s,
        )
        return self._client.start(call, receiver)

    def change(self, settings: UpstreamSettings) -> None:
        """Put new settings in force; everyone inside stays inside."""
        self.settings = settings
        self.keeper.change_limits(limits_of(settings))

    def drain(self) -> None:
        """Refuse the lines and all newcomers."""
        self.keeper.drain()
        self.side_door.drain()

    def close(self) -> None:
        """Stop the timers."""
        self.keeper.close()
        self.side_door.close()

    def reading(self) -> GateReading:
        """Return the gate as it is now, for gauges."""
        gate = self.keeper.gate
        limits = gate.limits
        return GateReading(
            self.settings.key, gate.in_flight, limits.cap, gate.queued, limits.queue, self.state
        )


def limits_of(settings: UpstreamSettings) -> AdmissionLimits:
    """Return the limits of a gate; an uncapped upstream's line is only for waiting on a wake."""
    admission = settings.admission
    if admission is None:
        waiting = settings.sleep.max_waiting if settings.sleep else None
        return AdmissionLimits(cap=None, queue=waiting or 0, queue_timeout_s=inf)
    return AdmissionLimits(
        cap=admission.cap, queue=admission.queue, queue_timeout_s=admission.queue_timeout_s
    )


def apply_settings(
    current: Mapping[str, Upstream],
    wanted: Mapping[str, UpstreamSettings],
    client: UpstreamClient,
    rng: Random,
) -> dict[str, Upstream]:
    """Return the upstreams that `wanted` describes; an address that stays keeps its gate.

    What is identified by its address keeps its counts, also under a new name.
    """
    by_url = {upstream.settings.url: upstream for upstream in current.values()}
    upstreams = {}
    for key, settings in wanted.items():
        upstream = by_url.get(settings.url)
        if upstream is not None and upstream.settings.key == key:
            upstream.change(settings)
        else:
            upstream = Upstream(settings, client, rng)
        upstreams[key] = upstream
    return upstreams
