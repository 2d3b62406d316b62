"""Weekly schedules: when an engine is to be awake or asleep, by the clocks of a time zone.

`wish_at` is a function of rules, zone and instant alone. Instants are seconds since 1970 (UTC).

Rule 1: of several rules that hold at an instant the first one written counts.
Rule 2: a span whose end is not after its begin ends on the next day, and belongs to the day on
        which it begins.
Rule 3: what clocks show twice when summer time ends means the first time; what they skip when it
        begins means the same moment as if they had not. A span that this leaves empty is none.
"""

from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple, Protocol

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 1440


class Zone(Protocol):
    """The clocks of a time zone."""

    def day_of(self, instant_s: float) -> int:
        """Return the day that it is there; day 1 is a Monday, and they are counted."""
        ...

    def instant_of(self, day: int, minute: int) -> float:
        """Return when clocks show that minute of the day, by the third rule above."""
        ...


class Rule(NamedTuple):
    """One line of a schedule."""

    awake: bool
    days: frozenset[int]
    """Of the week, Monday is 0: those on which the span begins."""
    begin: int
    """Minutes after midnight."""
    end: int
    text: str
    """As it is written."""


class Wish(NamedTuple):
    """What a schedule wants at an instant, and until when that stays so."""

    awake: bool | None = None
    """None: it wants nothing."""
    until_s: float = inf
    rule: str = ""


def wish_at(rules: Sequence[Rule], zone: Zone, instant_s: float) -> Wish:
    """Return what the rules want at an instant, and when that changes; infinity: never."""
    if not rules:
        return Wish()
    today = zone.day_of(instant_s)
    spans = [(rule, *span) for rule in rules for span in _spans(rule, zone, today)]
    holds = _holding(spans, instant_s)
    awake = None if holds is None else holds.awake
    # After a week and a day all has been there once.
    horizon_s = zone.instant_of(today + 8, 0)
    edges = {edge_s for _, *span in spans for edge_s in span if instant_s < edge_s <= horizon_s}
    for edge_s in sorted(edges):
        later = _holding(spans, edge_s)
        if (None if later is None else later.awake) is not awake:
            return Wish(awake, edge_s, holds.text if holds else "")
    return Wish(awake, inf, holds.text if holds else "")


def _spans(rule: Rule, zone: Zone, today: int) -> Iterator[tuple[float, float]]:
    """Yield when it begins and ends, from yesterday to the day after the next week."""
    for day in range(today - 1, today + 9):
        if (day - 1) % 7 in rule.days:
            begin_s = zone.instant_of(day, rule.begin)
            end_s = zone.instant_of(day if rule.end > rule.begin else day + 1, rule.end)
            if begin_s < end_s:
                yield begin_s, end_s


def _holding(spans: Sequence[tuple[Rule, float, float]], instant_s: float) -> Rule | None:
    return next((rule for rule, begin_s, end_s in spans if begin_s <= instant_s < end_s), None)
