"""What operators order for longer than at once: `pin`, `unpin`, `keep`, `sleep` until a time."""

import json
from collections.abc import Mapping
from datetime import datetime
from math import inf
from typing import Any

from tornado_frontdoor.core.printable import printable, quoted
from tornado_frontdoor.core.standing import OrderKind, OrderOwner, Said, StandingOrder
from tornado_frontdoor.engines.base import STOPPED
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
    """Carry out `pin`, `unpin`, `keep` or, where it has an end, `sleep`."""
    orders = upstream.orders
    if orders is None:
        why = "has no sleep table"
        if upstream.settings.sleep is not None:
            why = "is in a cluster, where nobody keeps standing orders yet"
        return _json(501, {"error": f"{upstream.settings.key} {why}"})
    if orders.closed:
        return _json(409, {"error": "the front door is shutting down: tell the next one"})
    by = printable(query.get("by") or address)[:BY_LENGTH]
    if verb == "unpin":
        if not any(_ends_by_unpin(one) for one in upstream.held()):
            why = "is neither pinned nor kept awake by an operator: nothing to end"
            return _json(409, {"error": f"{upstream.settings.key} {why}"})
        orders.say(Said.UNPIN)
    else:
        try:
            new = _new(verb, upstream, query, by, orders.wall())
        except Unfit as error:
            return _json(400, {"error": str(error)})
        orders.say(Said.ORDER, new)
    return _json(200, {**described(upstream), "orders": orders_of(upstream)})


def woken(upstream: Upstream, query: Query, address: str) -> None:
    """Take that an operator wants an engine awake: no order of his keeps it asleep any more."""
    if upstream.orders is not None:
        by = printable(query.get("by") or address)[:BY_LENGTH]
        upstream.orders.say(Said.WAKE, StandingOrder(OrderKind.KEEP, OrderOwner.OPERATOR, by))


def described(upstream: Upstream) -> dict[str, Any]:
    """Return which upstream it is, and how its engine is."""
    return {"upstream": upstream.settings.key, "state": upstream.state}


def orders_of(upstream: Upstream) -> list[dict[str, Any]]:
    """Return what holds an engine awake or asleep, by rank: what callers want comes last."""
    orders = upstream.orders
    if orders is None:
        return []
    now = orders.wall()
    held = [
        _shown(one.kind.value, one.owner.value, one.by, one.until_s, one.until_s - now)
        for one in upstream.held()
    ]
    keep = upstream.keeper.gate.keep_alive
    if keep is not None:
        left_s = keep.until_s - upstream.keeper.loop.time()
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


def _new(verb: str, upstream: Upstream, query: Query, by: str, now: float) -> StandingOrder:
    until_s = _until(query, now)
    if verb == "pin":
        return StandingOrder(OrderKind.PIN, OrderOwner.OPERATOR, by, until_s)
    if until_s == inf:
        raise Unfit(f"{verb} needs an end: for=DURATION or until=TIME")
    if verb == "keep":
        return StandingOrder(OrderKind.KEEP, OrderOwner.OPERATOR, by, until_s)
    level = query.get("level")
    gate = upstream.keeper.gate
    if gate.sleep_support is False and STOPPED not in gate.sleep_levels:
        raise Unfit(f"{upstream.settings.key} cannot sleep")
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
