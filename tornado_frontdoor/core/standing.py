"""Standing orders: what holds an engine awake or asleep for longer than a request. Values.

Who decides, by rank; the first that holds counts, and one that holds it awake takes none of what a
lower one adds to that:

    rank          | order  | woken by requests | idle tiers | other's room | beside
    --------------+--------+-------------------+------------+--------------+-----------------------
    operator      | pin    | yes               | no         | never        |
                  | keep   | yes               | no         | makes it     |
                  | asleep | no: 503           | -          | -            | sleeps when it is idle
    schedule      | pin    | yes               | no         | never        | woken ahead of time
                  | asleep | no: 503           | -          | -            | sleeps when it is idle
    configuration | pin    | yes               | no         | never        |
    keep_alive    | -      | yes               | not yet    | makes it     | `Idleness`
    idle tiers    | -      | yes               | yes        | makes it     | `SleepPolicy.tiers`

What becomes of an operator's order by what operators say (`after`):

    the order | pin, keep, asleep | unpin | wake        | sleep, and it does
    ----------+-------------------+-------+-------------+-------------------
    none      | the new one       | none  | none, or *  | none
    pin, keep | the new one       | none  | stays       | none
    asleep    | the new one       | stays | none, or *  | stays

`*`: where the schedule wants it asleep, `keep` until that changes. Every order ends by itself at
its `until_s`; then what is below it counts again.
"""

from collections.abc import Sequence
from enum import Enum, auto
from math import inf
from typing import NamedTuple

from tornado_frontdoor.core.schedule import Wish


class OrderKind(Enum):
    """What an order makes of an engine; the value is what status and metrics show."""

    PIN = "pin"
    """Neither idleness nor another engine's need puts it to sleep."""
    KEEP = "keep"
    """Idleness does not."""
    ASLEEP = "asleep"
    """It sleeps as soon as nobody is inside, and no request wakes it."""


class OrderOwner(Enum):
    """Whose order it is, by rank."""

    OPERATOR = "operator"
    SCHEDULE = "schedule"
    CONFIGURATION = "configuration"


class StandingOrder(NamedTuple):
    """One order; instants in seconds, by whatever clock the holder has."""

    kind: OrderKind
    owner: OrderOwner
    by: str = ""
    """Who gave it: an operator's name, or the line of a schedule."""
    until_s: float = inf
    """Infinity: until told otherwise."""
    level: int | None = None
    """Of ASLEEP: how deep; None: the shallowest."""
    ends: str = ""
    """`until_s` for people."""


class Standing(NamedTuple):
    """All orders that hold at an instant, by rank, and what they come to."""

    orders: tuple[StandingOrder, ...] = ()
    asleep: StandingOrder | None = None
    """The order by which it sleeps and stays asleep, if that is the highest."""
    pinned: bool = False
    kept: bool = False
    next_s: float = inf
    """When that changes by itself."""

    def moved(self, by_s: float) -> "Standing":
        """Return it by a clock that is ahead by so much."""
        return self._replace(
            orders=tuple(order._replace(until_s=order.until_s + by_s) for order in self.orders),
            asleep=self.asleep and self.asleep._replace(until_s=self.asleep.until_s + by_s),
            next_s=self.next_s + by_s,
        )


NOTHING = Standing()


def standing(
    operator: StandingOrder | None, wish: Wish, *, pinned: bool, instant_s: float
) -> Standing:
    """Return what holds at an instant; `pinned` is the configuration's."""
    orders: list[StandingOrder] = []
    if operator is not None and instant_s < operator.until_s:
        orders.append(operator)
    if wish.awake is not None:
        kind = OrderKind.PIN if wish.awake else OrderKind.ASLEEP
        orders.append(StandingOrder(kind, OrderOwner.SCHEDULE, wish.rule, wish.until_s))
    if pinned:
        orders.append(StandingOrder(OrderKind.PIN, OrderOwner.CONFIGURATION))
    next_s = min([wish.until_s, *(order.until_s for order in orders)])
    return _joined(orders, next_s)


def _joined(orders: Sequence[StandingOrder], next_s: float) -> Standing:
    if orders and orders[0].kind is OrderKind.ASLEEP:
        return Standing(tuple(orders), orders[0], next_s=next_s)
    awake = set()
    for order in orders:
        if order.kind is OrderKind.ASLEEP:
            break
        awake.add(order.kind)
    return Standing(
        tuple(orders),
        pinned=OrderKind.PIN in awake,
        kept=OrderKind.KEEP in awake,
        next_s=next_s,
    )


class Said(Enum):
    """What an operator may say."""

    ORDER = auto()
    """`pin`, `keep`, or `sleep` until a time."""
    UNPIN = auto()
    WAKE = auto()
    SLEEP = auto()
    """And it fell asleep."""


def after(
    before: StandingOrder | None, said: Said, wish: Wish, new: StandingOrder | None = None
) -> StandingOrder | None:
    """Return the operator's order after what was said; `new` is that of ORDER, or who says WAKE."""
    asleep = before is not None and before.kind is OrderKind.ASLEEP
    match said:
        case Said.ORDER:
            return new
        case Said.WAKE if asleep or before is None:
            if wish.awake is not False or new is None:
                return None
            return new._replace(kind=OrderKind.KEEP, until_s=wish.until_s, ends="", level=None)
        case Said.WAKE:
            return before
        case Said.UNPIN | Said.SLEEP:
            return before if asleep else None
