"""Lines of a weekly schedule, and the clocks of the zone that they speak of."""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tornado_frontdoor.core.schedule import DAY_MINUTES, DAYS, Rule

_RULE = re.compile(r"(awake|asleep) ([a-z,-]+) (\d\d:\d\d)-(\d\d:\d\d)")
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)|24:00")


class TimeZone:
    """A zone by its name, such as `Europe/Berlin`; raises ValueError where it is unknown."""

    def __init__(self, name: str) -> None:
        try:
            self._zone = ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError("is no time zone that this system knows") from error

    def day_of(self, instant_s: float) -> int:
        """Return the day that it is there, counted as `datetime.toordinal` does."""
        return datetime.fromtimestamp(instant_s, self._zone).toordinal()

    def instant_of(self, day: int, minute: int) -> float:
        """Return when clocks there show that minute of the day.

        What they show twice is the first of the two, what they skip is as if they had not:
        `fold` 0 of PEP 495.
        """
        shown = datetime.fromordinal(day) + timedelta(minutes=minute)
        return shown.replace(tzinfo=self._zone).timestamp()


def parse_rule(text: str) -> Rule:
    """Read `awake mon-fri 08:00-18:00`; raises ValueError with what is wrong."""
    found = _RULE.fullmatch(text)
    if found is None:
        raise ValueError("must be of the form 'awake mon-fri 08:00-18:00' or 'asleep daily …'")
    begin, end = _minute(found[3]), _minute(found[4])
    if begin == DAY_MINUTES:
        raise ValueError("24:00 can only be an end")
    return Rule(found[1] == "awake", frozenset(_days(found[2])), begin, end, text)


def _minute(text: str) -> int:
    if _TIME.fullmatch(text) is None:
        raise ValueError(f"{text} is no time of a day")
    return int(text[:2]) * 60 + int(text[3:])


def _days(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if part == "daily":
            yield from range(7)
        elif first not in DAYS or (dash and last not in DAYS):
            known = ", ".join(("daily", *DAYS))
            raise ValueError(f"{part} is none of {known}, nor a range such as mon-fri")
        else:
            begin, end = DAYS.index(first), DAYS.index(last if dash else first)
            yield from (day % 7 for day in range(begin, end + (7 if end < begin else 0) + 1))
