"""The values of a weekly schedule: its lines, and whose clocks they speak of."""

from tornado_frontdoor.config.fields import Text
from tornado_frontdoor.config.schedule import TimeZone, parse_rule


class ScheduleRule(Text):
    """One line of a weekly schedule."""

    kind = "a text of the form 'awake mon-fri 08:00-18:00' or 'asleep daily 22:00-06:00'"

    def accept(self, value: object) -> object:
        """Take what `core/schedule.py` reads."""
        text = super().accept(value)
        if isinstance(text, str):
            parse_rule(text)
        return text


class ZoneName(Text):
    """The name of a time zone."""

    kind = "the name of a time zone, such as Europe/Berlin"

    def accept(self, value: object) -> object:
        """Take those that the system knows."""
        text = super().accept(value)
        if isinstance(text, str):
            TimeZone(text)
        return text
