"""How fast a gate drains: from what was seen to end."""

_FIRST_INTERVAL_S = 1.0
"""Assumed between two free slots until the first one was seen to come free."""
_WEIGHT_OF_NEWEST = 0.1
"""Share of the newest observation in the moving mean, once ten were made."""
_MANY = 10
_KEPT_OF_ENDS = 1 - 1 / 32
_GUESS_COUNTS = 2.0
"""For so many ends counts what was guessed before any was seen."""
ENDS_KNOWN = 10.0
"""Of so many ends on, the rate is known well enough to refuse by it."""


class DrainRate:
    """How fast a full house empties: what ended while every slot was taken, over that time.

    Of the newest 32 ends or so; the time since the last of them counts too, so that an engine that
    ends nothing is believed slower by the minute. Before anything was seen end, the mean time for
    which slots were held stands in for it.
    """

    def __init__(self) -> None:
        self._observed = 0
        self._mean_slot_s = 0.0
        self.ends = 0.0
        """Those that count, the newest in full."""
        self._full_s = 0.0

    def observe(self, slot_s: float, full_s: float | None) -> None:
        """Take the time for which a slot was held that comes free.

        `full_s`: for how long every slot was taken since the last of them was given or came free;
        None: there was a free one.
        """
        share = _WEIGHT_OF_NEWEST
        if self._observed < _MANY:
            self._observed += 1
            share = 1 / self._observed
        self._mean_slot_s += share * (slot_s - self._mean_slot_s)
        if full_s is not None:
            self.ends = self.ends * _KEPT_OF_ENDS + 1.0
            self._full_s = self._full_s * _KEPT_OF_ENDS + full_s

    def interval_s(self, cap: int, full_s: float = 0.0) -> float:
        """Return the mean time between two ends while all `cap` slots are taken.

        `full_s` is how long that has lasted now, since the last end or grant.
        """
        guess_s = self._mean_slot_s / cap if self._observed else _FIRST_INTERVAL_S
        seen_s, ends = _GUESS_COUNTS * guess_s + self._full_s, _GUESS_COUNTS + self.ends
        # What it would be if the next end came now, where that is already more.
        return max(seen_s / ends, (seen_s + full_s) / (ends + 1.0))
