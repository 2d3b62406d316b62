"""The numbers of waking and sleeping, what idleness asks for, and pauses after failures.

Field names are the settings of `[upstreams.X.sleep]`, where their meaning and defaults are.
"""

from collections.abc import Set
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from tornado_frontdoor.core.decisions import SleepDepth, SleepReason
from tornado_frontdoor.core.request import WakeTerms
from tornado_frontdoor.core.standing import OrderOwner, StandingOrder

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 300.0
"""Storage that comes back is noticed within this time, without a request from an operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepPolicy:
    """When to sleep, how long to hold, what to tell. A tier of 0 s means never.

    Raises ValueError for limits that cannot work.
    """

    idle_sleep_s: float
    idle_offload_s: float
    hold_sleeping_s: float
    hold_offloaded_s: float
    hold_restarting_s: float
    retry_after_sleeping_s: float
    retry_after_offloaded_s: float
    retry_after_restarting_s: float
    canary: bool
    pinned: bool = False
    """Neither idleness nor the needs of others put it to sleep."""
    devices: tuple[int, ...] = ()
    """GPUs on which no other transition may run meanwhile."""
    groups: tuple[str, ...] = ()
    """Of each of which one engine is awake at a time."""
    awake_gib: float = 0.0
    """What it takes of each device while it is awake; `core/gpu_room.py` uses these."""
    asleep_gib: float = 0.0
    measures_awake: bool = False
    """Whether what was measured counts in place of `awake_gib`, once anything was."""
    measures_asleep: bool = False
    weights_gib: float = 0.0
    priority: int = 0
    idle_stop_s: float = 0.0
    max_keep_alive_s: float = 86400.0
    """The most that a caller may want it kept awake for; 0: callers have no say in it."""
    probe_period_s: float = 5.0
    """Between probes of an engine at rest: how long what is done out of band stays unnoticed."""

    def __post_init__(self) -> None:
        for name in ("idle_sleep_s", "idle_offload_s", "idle_stop_s"):
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        for name in ("hold_sleeping_s", "hold_offloaded_s", "hold_restarting_s", "probe_period_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")

    def hold_s(self, depth: SleepDepth) -> float:
        """Return how long anyone is held for an engine of that depth.

        One that is stopped has to start, as one that restarts.
        """
        if depth is SleepDepth.SLEEPING:
            return self.hold_sleeping_s
        return self.hold_offloaded_s if depth is SleepDepth.OFFLOADED else self.hold_restarting_s

    def retry_after_s(self, depth: SleepDepth) -> float:
        """Return when who was held in vain should come back."""
        if depth is SleepDepth.SLEEPING:
            return self.retry_after_sleeping_s
        if depth in (SleepDepth.OFFLOADED, SleepDepth.STOPPED):
            return self.retry_after_offloaded_s
        return self.retry_after_restarting_s

    def tiers(self, level: int, levels: Set[int]) -> tuple[tuple[float, int], ...]:
        """Return the (idle seconds, level) that an engine at `level` has before it, deepest first.

        `levels` are those that it may be put to; where 1 or 2 is none of them, the other stands in.
        """
        if self.pinned:
            return ()
        sleep, offload = 1 if 1 in levels else 2, 2 if 2 in levels else 1
        tiers = ((self.idle_stop_s, 3), (self.idle_offload_s, offload), (self.idle_sleep_s, sleep))
        return tuple(
            (idle_s, to) for idle_s, to in tiers if idle_s > 0 and to > level and to in levels
        )


class KeepAlive(NamedTuple):
    """How long a caller wants an engine kept awake."""

    until_s: float
    by: str
    request_id: str


class Due(NamedTuple):
    """When idleness will want an engine asleep or deeper asleep, how deep, and why."""

    at_s: float
    level: int
    reason: SleepReason = SleepReason.IDLE
    by: str = ""
    """Who wants it, where that is known."""


NEVER = Due(inf, 0)


def due_by(order: StandingOrder, usable: Set[int], not_before_s: float) -> Due:
    """Return when an engine that is awake has to sleep by an order: at once."""
    level = order.level if order.level in usable else min(usable)
    operator = order.owner is OrderOwner.OPERATOR
    reason = SleepReason.OPERATOR if operator else SleepReason.SCHEDULE
    return Due(not_before_s, level or 0, reason, order.by)


@dataclass(frozen=True, slots=True)
class Idleness:
    """Since when nobody has used an engine, and how long a caller wants it kept awake after that.

    A value: `used` and `ended` return the next one. Rules of `keep_alive`:

    1. What a request says takes the place of the first idle tier, be it longer or shorter, until
       the next use; it does so only where there is a tier. The deeper tiers stay as they are.
    2. Whoever uses the engine after that has all of the idle tier, and what was said still holds.
    3. Of two callers the one counts who wants it longer; only who said a thing can shorten it.
    4. Once the engine sleeps, whoever wanted that, it is over.
    """

    from_s: float
    keep: KeepAlive | None = None
    last_word: bool = False
    """Whether nobody has used it since that was said."""

    def used(self, now: float) -> "Idleness":
        """Return it after a request came, or ended, that said nothing."""
        return Idleness(now, self.keep)

    def slept(self) -> "Idleness":
        """Return it once the engine sleeps."""
        return Idleness(self.from_s)

    def ended(self, now: float, terms: WakeTerms | None, most_s: float) -> "Idleness":
        """Return it after a request was served that may have said something."""
        if terms is None or terms.keep_alive_s is None or most_s == 0:
            return self.used(now)
        until_s = now + min(terms.keep_alive_s, most_s)
        before = self.keep
        if before is not None and before.by != terms.by and before.until_s > until_s:
            return self.used(now)
        return Idleness(now, KeepAlive(until_s, terms.by, terms.request_id), last_word=True)

    def due(self, policy: SleepPolicy, level: int, usable: Set[int], not_before_s: float) -> Due:
        """Return what comes next for an engine at `level`; `usable` are its levels."""
        tiers = policy.tiers(level, usable)
        if not tiers:
            return NEVER
        idle_s, to = min(tiers)
        first_s, reason, by = self.from_s + idle_s, SleepReason.IDLE, ""
        if self.keep is not None and level == 0:
            if self.last_word:
                first_s, reason = self.keep.until_s, SleepReason.KEEP_ALIVE
                by = f"{self.keep.by}, request {self.keep.request_id}"
            else:
                first_s = max(first_s, self.keep.until_s)
        due_s = max(first_s, not_before_s)
        reached = (to for idle_s, to in tiers if self.from_s + idle_s <= due_s)
        return Due(due_s, max(reached, default=to), reason, by)


@dataclass(frozen=True, slots=True)
class Backoff:
    """A pause that doubles with each failure in a row: nothing is tried again before its end.

    A value: each method returns the next one. A new one is no pause at all.
    """

    failures: int = 0
    until_s: float = -inf

    def failed(self, now: float, first_s: float | None = None) -> "Backoff":
        """Return it after a failure: from 2 s (or `first_s`) after the first up to 300 s."""
        # Beyond 2^10 the longest pause has long been reached.
        pause_s = FIRST_PAUSE_S * 2 ** min(self.failures, 10)
        if first_s is not None and not self.failures:
            pause_s = first_s
        return Backoff(self.failures + 1, now + min(pause_s, LONGEST_PAUSE_S))

    def put_off(self, until_s: float) -> "Backoff":
        """Return it with a wait that is no failure."""
        return Backoff(self.failures, max(self.until_s, until_s))

    def on(self, now: float) -> bool:
        """Tell whether it is still to be waited for."""
        return now < self.until_s
