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


def shown_of(upstream: Upstream) -> dict[str, Any]:
    """Return which upstream it is, and its replicas."""
    return {"upstream": upstream.settings.key, "replicas": replicas_of(upstream)}


def is_drained(upstream: Upstream, url: str, *, undo: bool) -> bool:
    """Tell whether one is drained by hand, or is not any more, as far as is known here."""
    return any(one.name == url and one.drained is not undo for one in upstream.engines())


def _sleep_of(upstream: Upstream, one: EngineReplica) -> dict[str, Any]:
    """Return how one of several engines that sleep by themselves is."""
    sleep: dict[str, Any] | None = upstream.keeper.gate.sleep_of(one.name)
    if sleep is None:
        return {}
    return {**sleep, "state": "drained"} if one.drained and sleep["state"] == "awake" else sleep
