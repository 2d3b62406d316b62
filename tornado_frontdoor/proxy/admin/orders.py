"""What operators order for longer than at once: `pin`, `unpin`, `keep`, `sleep` until a time."""

import json
from collections.abc import Mapping
from datetime import datetime
from math import inf
from typing import Any

from tornado_frontdoor.core.printable import printable, quoted
from tornado_frontdoor.core.standing import OrderKind, OrderOwner, Said, StandingOrder
from tornado_frontdoor.engines.base import STOPPED
from tornado_frontdoor.proxy.engine_handles import EngineHandle
from tornado_frontdoor.proxy.standing_orders import utc_text
from tornado_frontdoor.proxy.upstreams import Upstream
from tornado_frontdoor.surfaces.base import Document
from tornado_frontdoor.surfaces.keep_alive import duration_s

LONGEST_S = 10 * 366 * 86400.0
"""An order for more than ten years is a slip of the finger, and no instant for a calendar."""
BY_LENGTH = 100

Query = Mapping[str, str]


class Unfit(Exception):  # noqa: N818 - said to an operator as it stands
    """What an operator asks for makes no sense; the message says why."""


def order(verb: str, upstream: Upstream, query: Query, address: str) -> Document:
    """Carry out `pin`, `unpin`, `keep` or, where it has an end, `sleep`; for all or one replica."""
    key = upstream.settings.key
    if upstream.orders is None:
        why = "has no sleep table"
        if upstream.settings.sleep is not None:
            why = "is in a cluster, where nobody keeps standing orders yet"
        return _json(501, {"error": f"{key} {why}"})
    targets = upstream.sleepers.targets(query.get("replica"))
    if not targets:
        return unknown_replica(upstream, query)
    if any(one.orders is None or one.orders.closed for one in targets):
        return _json(409, {"error": "the front door is shutting down: tell the next one"})
    by = printable(query.get("by") or address)[:BY_LENGTH]
    if verb == "unpin":
        if not any(_ends_by_unpin(one) for target in targets for one in target.held()):
            why = "is neither pinned nor kept awake by an operator: nothing to end"
            return _json(409, {"error": f"{key} {why}"})
        said, new = Said.UNPIN, None
    else:
        said = Said.ORDER
        try:
            new = _new(verb, targets[0], query, by)
        except Unfit as error:
            return _json(400, {"error": str(error)})
    for target in targets:
        assert target.orders is not None
        target.orders.say(said, new)
    return _json(200, {**described(upstream), "orders": orders_of(upstream)})


def woken(upstream: Upstream, query: Query, address: str) -> None:
    """Take that an operator wants an engine awake: no order of his keeps it asleep any more."""
    by = printable(query.get("by") or address)[:BY_LENGTH]
    for one in upstream.sleepers.targets(query.get("replica")):
        if one.orders is not None:
            one.orders.say(Said.WAKE, StandingOrder(OrderKind.KEEP, OrderOwner.OPERATOR, by))


def unknown_replica(upstream: Upstream, query: Query) -> Document:
    """Answer that there is no replica of that address."""
    there_are = ", ".join(upstream.settings.urls)
    what = f"{upstream.settings.key} has no replica {quoted(query.get('replica', ''))}"
    return _json(404, {"error": f"{what}; there are {there_are}"})


def described(upstream: Upstream) -> dict[str, Any]:
    """Return which upstream it is, and how its engine is."""
    return {"upstream": upstream.settings.key, "state": upstream.state}


def orders_of(upstream: Upstream) -> list[dict[str, Any]]:
    """Return what holds an engine awake or asleep, by rank: what callers want comes last.

    Of several engines each has its own, one after the other, with `replica`.
    """
    several = bool(upstream.settings.replicas)
    return [
        {**held, "replica": one.url} if several else held
        for one in upstream.sleepers
        for held in _orders_of(one)
    ]


def _orders_of(engine: EngineHandle) -> list[dict[str, Any]]:
    if engine.orders is None:
        return []
    now = engine.orders.wall()
    held = [
        _shown(one.kind.value, one.owner.value, one.by, one.until_s, one.until_s - now)
        for one in engine.held()
    ]
    keep = engine.keep_alive
    if keep is not None:
        left_s = keep.until_s - engine.loop.time()
        by = f"{keep.by}, request {keep.request_id}"
        held.append(_shown("keep", "keep_alive", by, now + left_s, left_s))
    return held


def _shown(kind: str, owner: str, by: str, until_s: float, left_s: float) -> dict[str, Any]:
    ends = until_s != inf
    return {
        "kind": kind,
        "owner": owner,
        "by": by or None,
        "until": utc_text(until_s) if ends else None,
        "left_s": round(left_s, 1) if ends else None,
    }


def _ends_by_unpin(one: StandingOrder) -> bool:
    return one.owner is OrderOwner.OPERATOR and one.kind is not OrderKind.ASLEEP


def _new(verb: str, engine: EngineHandle, query: Query, by: str) -> StandingOrder:
    assert engine.orders is not None
    until_s = _until(query, engine.orders.wall())
    if verb == "pin":
        return StandingOrder(OrderKind.PIN, OrderOwner.OPERATOR, by, until_s)
    if until_s == inf:
        raise Unfit(f"{verb} needs an end: for=DURATION or until=TIME")
    if verb == "keep":
        return StandingOrder(OrderKind.KEEP, OrderOwner.OPERATOR, by, until_s)
    level = query.get("level")
    gate = engine.known
    if gate.sleep_support is False and STOPPED not in gate.sleep_levels:
        raise Unfit(f"{engine.key} cannot sleep")
    if level is not None and (not level.isdecimal() or int(level) not in gate.sleep_levels):
        there_are = ", ".join(map(str, sorted(gate.sleep_levels)))
        raise Unfit(f"level must be one of {there_are}, not {quoted(level)}")
    return StandingOrder(
        OrderKind.ASLEEP, OrderOwner.OPERATOR, by, until_s, None if level is None else int(level)
    )


def _until(query: Query, now: float) -> float:
    """Return when an order ends; infinity where nobody says so."""
    lasts, until = query.get("for"), query.get("until")
    if lasts is not None and until is not None:
        raise Unfit("for and until cannot both be given")
    if lasts is None and until is None:
        return inf
    try:
        until_s = now + duration_s(lasts) if lasts is not None else _instant(until or "")
    except (ValueError, OverflowError) as error:
        raise Unfit(f"{quoted(lasts or until or '')}: {error}") from None
    if not now < until_s < now + LONGEST_S:
        raise Unfit(f"{quoted(lasts or until or '')} is not ahead, or more than ten years")
    return until_s


def _instant(text: str) -> float:
    ends = datetime.fromisoformat(text)
    if ends.tzinfo is None:
        raise ValueError("it needs a time zone, such as 2026-12-01T08:00:00Z")
    return ends.timestamp()


def _json(status: int, value: object) -> Document:
    return Document(status, [("Content-Type", "application/json")], json.dumps(value).encode())
