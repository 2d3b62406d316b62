"""Why an engine is as it is, what a request now would set going, and what keeps it from that."""

from collections.abc import Sequence
from math import isfinite
from operator import itemgetter
from typing import Any

from tornado_frontdoor.core.decisions import EngineState
from tornado_frontdoor.proxy.admin.orders import orders_of
from tornado_frontdoor.proxy.upstreams import Upstream

_IS = {
    EngineState.UNKNOWN: "nobody has been able to tell yet how it is",
    EngineState.AWAKE: "it is awake and serves",
    EngineState.FALLING_ASLEEP: "it is falling asleep",
    EngineState.SLEEPING: "it sleeps, and its weights are in the memory of the host",
    EngineState.OFFLOADED: "it sleeps, and its weights must be read again",
    EngineState.STOPPED: "its process is ended",
    EngineState.WAKING: "it is waking",
    EngineState.DOWN: "nobody answers at its address",
}
_ALL_DRAINED = "every replica is drained by hand"
_FULL = "would be refused: all places in its queue are taken"


def explain(upstream: Upstream, since_s: float | None) -> dict[str, Any]:
    """Return what `GET /admin/explain/X` answers. Times are UTC, the latest comes last."""
    gate = upstream.keeper.gate
    happenings = [
        (time, f"{one.url}: {text}" if upstream.settings.replicas else text)
        for one in upstream.sleepers
        for time, text in one.executor.history
    ]
    happenings.sort(key=itemgetter(0))
    return {
        "upstream": upstream.settings.key,
        "state": upstream.state,
        "since_s": since_s,
        "what": _what(upstream),
        "held_by": _held(orders_of(upstream)),
        "blocked_by": _blocked(upstream),
        "a_request_now": _request_now(upstream),
        "expected_wait_s": 0.0
        if gate.standing.asleep or _down_for_good(upstream) or _drained(upstream)
        else round(gate.expected_wait_s(gate.queued + 1), 1),
        "takes_gib": gate.takes_gib,
        "canary": gate.proof,
        "in_flight": gate.in_flight,
        "queued": gate.queued,
        "history": [{"time": time, "text": text} for time, text in happenings],
    }


def _what(upstream: Upstream) -> str:
    gate = upstream.keeper.gate
    if gate.makes_room:
        return _IS[gate.state] + " for now: it makes room"
    is_so = (gate.state is EngineState.DOWN and gate.down_why) or _IS[gate.state]
    if not _drained(upstream):
        return is_so
    if gate.state is EngineState.AWAKE:
        return f"it is awake and serves nobody new: {_ALL_DRAINED}"
    return f"{is_so}; {_ALL_DRAINED}"


def _down_for_good(upstream: Upstream) -> bool:
    """Whether it is down and nothing here can wake it: somebody else has to."""
    return upstream.settings.sleep is None and upstream.keeper.gate.state is EngineState.DOWN


def _drained(upstream: Upstream) -> bool:
    """Whether an operator has drained every replica."""
    replicas = upstream.engines()
    return bool(replicas) and all(one.drained for one in replicas)


def _held(orders: Sequence[dict[str, Any]]) -> list[str]:
    """Return what holds it in words, by rank; what counts for nothing is said to be overruled.

    That is all below the first that keeps it asleep, and that one too unless it is the highest.
    """
    told, overruled = [], False
    for order in orders:
        overruled |= order["kind"] == "asleep" and order is not orders[0]
        why = f", overruled by {orders[0]['owner']}" if overruled else ""
        told.append(_held_text(order) + why)
        overruled |= order["kind"] == "asleep"
    return told


def _held_text(order: dict[str, Any]) -> str:
    """Return one of what holds it awake or asleep in words."""
    what = {"pin": "it is pinned", "keep": "it is kept awake", "asleep": "it is kept asleep"}
    by = f" ({order['by']})" if order["by"] else ""
    ends = f" until {order['until']}" if order["until"] else ""
    return f"{what[order['kind']]} by {order['owner']}{by}{ends}"


def _blocked(upstream: Upstream) -> str | None:
    gate = upstream.keeper.gate
    if _drained(upstream):
        undo = f"`frontdoor drain {upstream.settings.key} --replica URL --undo`"
        down = ", and they are down besides" if gate.state is EngineState.DOWN else ""
        return f"{_ALL_DRAINED}: nobody new is sent there and none is woken until {undo}{down}"
    if gate.waits_for:
        return f"it waits for {gate.waits_for}"
    if gate.makes_room:
        return "it lets those in flight end and then sleeps, so that another engine can wake"
    return gate.wake_trouble()


def _request_now(upstream: Upstream) -> str:
    gate = upstream.keeper.gate
    order = gate.standing.asleep
    if order is not None:
        return f"would be refused: it is to stay asleep {order.ends}"
    stuck = _nobody_serves(upstream)
    if stuck:
        return stuck
    limits = gate.limits
    taken = gate.in_flight + gate.cooling
    if gate.state is EngineState.AWAKE and not gate.makes_room:
        if limits.cap is None or (taken < limits.cap and not gate.queued):
            return "would be sent to the engine at once"
        what = "would wait for a slot"
    elif gate.queued or gate.state in (EngineState.WAKING, EngineState.FALLING_ASLEEP):
        what = "would wait until it is awake"
    else:
        what = "would wake it"
    full = gate.queued >= limits.queue
    return _FULL if full else f"{what}, at place {gate.queued + 1} of its queue"


def _nobody_serves(upstream: Upstream) -> str:
    """Say what a request gets where no wake helps it; empty: one does, or need not."""
    gate = upstream.keeper.gate
    limits, down = gate.limits, _down_for_good(upstream)
    if not down and not _drained(upstream):
        return ""
    hold_s = upstream.settings.hold_restarting_s if down else limits.queue_timeout_s
    if not hold_s:
        why = "its engine is down" if down else _ALL_DRAINED
        why += f", and {_ALL_DRAINED}" if down and _drained(upstream) else ""
        return f"would be refused at once with 503: {why}"
    if gate.queued >= limits.queue:
        return _FULL
    place = f"at place {gate.queued + 1}"
    what = "wait for a replica that is used again"
    if down:
        what = "be held for its engine" + (
            " to be back and used again" if _drained(upstream) else ""
        )
    longest = f" for at most {hold_s:g} s, {place}, then 503" if isfinite(hold_s) else f" {place}"
    return f"would {what}{longest}"
