"""Each of several engines behind one name, as `/admin/status` shows it."""

from typing import Any

from tornado_frontdoor.core.replicas import EngineReplica
from tornado_frontdoor.proxy.upstreams import Upstream


def replicas_of(upstream: Upstream) -> list[dict[str, Any]]:
    """Return each of several engines as it is now; none where there is one alone."""
    return [
        {
            "url": one.name,
            "slots": one.slots,
            "taken": one.used,
            "drained": one.drained,
            "state": one.state,
            **_sleep_of(upstream, one),
        }
        for one in upstream.engines()
        if upstream.settings.several
    ]


def _sleep_of(upstream: Upstream, one: EngineReplica) -> dict[str, Any]:
    """Return how one of several engines that sleep by themselves is."""
    sleep: dict[str, Any] | None = upstream.keeper.gate.sleep_of(one.name)
    if sleep is None:
        return {}
    return {**sleep, "state": "drained"} if one.drained and sleep["state"] == "awake" else sleep
