"""The standing orders of one upstream: kept, timed, and told to its gate.

What holds at an instant is a function of `core/standing.py` and `core/schedule.py`; here are the
operator's order, the clock on the wall and the one timer. The wall is looked at again every half
minute, so that a clock that was set, or a night with another hour, is noticed.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from time import monotonic, time_ns
from typing import Any, Protocol

from tornado_frontdoor.core.decisions import Answered, EngineState, Verdict
from tornado_frontdoor.core.schedule import Rule, Wish, Zone, wish_at
from tornado_frontdoor.core.standing import (
    NOTHING,
    OrderKind,
    OrderOwner,
    Said,
    Standing,
    StandingOrder,
    after,
    standing,
)
from tornado_frontdoor.core.wake.policy import KeepAlive

LOG = logging.getLogger("frontdoor")

LOOK_S = 30.0
"""Between looks at the wall."""
SLACK_S = 0.005
"""A timer of the loop may be early by less than this, by the clock on the wall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderRules:
    """What the configuration says of an engine's standing orders."""

    pinned: bool
    rules: Sequence[Rule] = ()
    zone: Zone | None = None


class Held(Protocol):
    """The engine that orders hold awake or asleep, in the hands of its gate."""

    loop: asyncio.AbstractEventLoop

    @property
    def key(self) -> str:
        """Its name for people."""
        ...

    @property
    def state(self) -> EngineState:
        """How it is."""
        ...

    @property
    def keep_alive(self) -> KeepAlive | None:
        """How long a caller wants it kept awake."""
        ...

    def expected_wait_s(self, place: int, /) -> float:
        """Return how long it takes until it is awake."""
        ...

    def stand(self, standing: Standing) -> None:
        """Tell the gate which orders hold from now on."""
        ...


class StandingOrders:
    """Keeps the orders of one engine; `keep` writes the operator's down, `wake` wakes it."""

    def __init__(
        self,
        engine: Held,
        rules: OrderRules,
        operator: StandingOrder | None,
        keep: "Callable[[StandingOrder | None], asyncio.Future[None]]",
        wake: Callable[[str], Coroutine[Any, Any, Answered]],
    ) -> None:
        self.wall: Callable[[], float] = lambda: time_ns() / 1e9
        """Seconds since 1970."""
        self._engine = engine
        self._rules = rules
        self._operator = operator
        self._keep = keep
        self._wake = wake
        self._told = NOTHING
        self._ahead_of_wall_s = 0.0
        self._wish = Wish()
        self._woken_until_s = 0.0
        """The end of the span for which the schedule has had it woken."""
        self._waking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the front door is going away: what is said now is for the next one to hear."""
        return self._closed

    @property
    def standing(self) -> Standing:
        """What holds now, by the clock on the wall."""
        return self._told

    def change(self, rules: OrderRules) -> None:
        """Put another configuration in force."""
        self._rules = rules
        self.refresh()

    def say(self, said: Said, new: StandingOrder | None = None) -> None:
        """Take what an operator says, unless the front door is going away."""
        if self._closed:
            return
        self.refresh()  # what has expired is no order any more
        if new is not None:
            new = new._replace(ends=ends_text(new.until_s))
        self._put(after(self._operator, said, self._wish, new))

    def refresh(self) -> None:
        """Look at the wall: tell the gate what holds now, and have it woken ahead of its time."""
        if self._closed:
            return
        now = self.wall()
        if self._operator is not None and now >= self._operator.until_s:
            LOG.info("%s: the operator's %s is over", self._name, self._operator.kind.value)
            self._put(None)
            return
        ahead_s = self._ahead_s()
        self._wish = self._wish_at(now, ahead_s)
        held = standing(self._operator, self._wish, pinned=self._rules.pinned, instant_s=now)
        ahead_of_wall_s = monotonic() - now
        if held.orders != self._told.orders:
            told = "; ".join(order_text(order) for order in held.orders)
            LOG.info("%s: %s", self._name, told or self._nothing_ordered())
            self._tell(held, ahead_of_wall_s)
        elif held.orders and abs(ahead_of_wall_s - self._ahead_of_wall_s) > 1:
            self._tell(held, ahead_of_wall_s)  # the clock on the wall was set
        if self._wish.awake and not held.asleep and self._wish.until_s != self._woken_until_s:
            self._have_it_woken(self._wish.until_s)
        begins_s = inf if self._wish.awake else self._wish.until_s - ahead_s
        next_s = min(held.next_s, begins_s if begins_s > now else inf, now + LOOK_S)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._engine.loop.call_later(next_s - now + SLACK_S, self.refresh)

    def close(self) -> None:
        """Stop."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._waking is not None:
            self._waking.cancel()

    # How

    @property
    def _name(self) -> str:
        return str(self._engine.key)

    def _nothing_ordered(self) -> str:
        keep = self._engine.keep_alive
        if keep is None:
            return "nothing holds it awake or asleep"
        wall_s = self.wall() + keep.until_s - self._engine.loop.time()
        return f"no order holds it any more, but a caller ({keep.by}): awake {ends_text(wall_s)}"

    def _ahead_s(self) -> float:
        """Return how long before its span an engine has to be woken."""
        engine = self._engine
        return 0.0 if engine.state is EngineState.AWAKE else engine.expected_wait_s(0)

    def _wish_at(self, now: float, ahead_s: float) -> Wish:
        rules = self._rules
        if rules.zone is None:
            return Wish()
        wish = wish_at(rules.rules, rules.zone, now)
        soon = wish if wish.awake else wish_at(rules.rules, rules.zone, now + ahead_s)
        wish = soon if soon.awake else wish
        if wish.awake is None:
            return wish._replace(rule="")
        return wish

    def _tell(self, held: Standing, ahead_of_wall_s: float) -> None:
        """Tell the gate, whose clock is another one."""
        self._told, self._ahead_of_wall_s = held, ahead_of_wall_s
        dated = tuple(order._replace(ends=ends_text(order.until_s)) for order in held.orders)
        asleep = dated[0] if held.asleep is not None else None
        here = held._replace(orders=dated, asleep=asleep).moved(ahead_of_wall_s)
        self._engine.stand(here)

    def _put(self, order: StandingOrder | None) -> None:
        if order != self._operator:
            self._operator = order
            self._keep(order).add_done_callback(self._complain)
        self.refresh()

    def _complain(self, done: "asyncio.Future[None]") -> None:
        if not done.cancelled() and (error := done.exception()):
            LOG.warning("%s: its order will not outlive a restart: %s", self._name, error)

    def _have_it_woken(self, until_s: float) -> None:
        if self._waking is not None and not self._waking.done():
            return

        async def wake() -> None:
            answered = await self._wake("its schedule")
            if answered.verdict is Verdict.DONE:
                self._woken_until_s = until_s
            else:  # tried again at the next look
                LOG.warning("%s: its schedule cannot wake it: %s", self._name, answered.detail)

        self._waking = self._engine.loop.create_task(wake())


def ends_text(until_s: float) -> str:
    """Return the end of an order for people: `until 2026-12-01T08:00:00Z`."""
    if until_s == inf:
        return "until told otherwise"
    return f"until {utc_text(until_s)}"


def utc_text(instant_s: float) -> str:
    """Return an instant as RFC 3339 has it."""
    return f"{datetime.fromtimestamp(instant_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def order_text(order: StandingOrder) -> str:
    """Return an order in words."""
    what = {
        OrderKind.PIN: "it is pinned",
        OrderKind.KEEP: "idle tiers leave it awake",
        OrderKind.ASLEEP: "it is kept asleep",
    }[order.kind]
    whose = f"{order.owner.value}{f' ({order.by})' if order.by else ''}"
    ends = "" if order.owner is OrderOwner.CONFIGURATION else f", {ends_text(order.until_s)}"
    return f"{what} by {whose}{ends}"
