"""How fast a gate drains and how long a wake takes: from what was observed."""

from collections.abc import Mapping
from math import inf

from tornado_frontdoor.core.decisions import SleepDepth

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
        self._observed = observed = self._observed + 1
        share = _WEIGHT_OF_NEWEST if observed >= _MANY else 1 / observed
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


FIRST_GUESSES_S: Mapping[SleepDepth, float] = {
    SleepDepth.SLEEPING: 6.0,
    SleepDepth.OFFLOADED: 60.0,
    SleepDepth.STOPPED: 120.0,
    SleepDepth.RESTARTING: 600.0,
}
"""Told until a wake from that depth was seen: the long end of what a 35B model took elsewhere."""

_WEIGHT_OF_NEWEST_WAKE = 0.3


class WakeEstimates:
    """How long an engine takes to be awake again, by depth, learned from its wakes.

    `learned` is what `export` gave an earlier one; what makes no sense in it is passed over.
    """

    def __init__(self, learned: Mapping[str, float] | None = None) -> None:
        self._mean_s: dict[SleepDepth, float] = {}
        for depth in SleepDepth:
            mean_s = (learned or {}).get(depth.value)
            if mean_s is not None and 0 <= mean_s < inf:
                self._mean_s[depth] = mean_s

    def observe(self, depth: SleepDepth, took_s: float) -> None:
        """Take the time that a wake took which succeeded."""
        mean_s = self._mean_s.get(depth, took_s)
        self._mean_s[depth] = mean_s + _WEIGHT_OF_NEWEST_WAKE * (took_s - mean_s)

    def switch_cost_s(self) -> float:
        """Return what it takes to fall asleep and be awake again, as far as it is known."""
        known = self._mean_s.keys() - {SleepDepth.RESTARTING} or {SleepDepth.SLEEPING}
        return max(self.expected_s(depth) for depth in known)

    def learned_s(self, depth: SleepDepth) -> float | None:
        """Return the moving mean; None until one was seen."""
        return self._mean_s.get(depth)

    def expected_s(self, depth: SleepDepth, since_s: float = 0.0) -> float:
        """Return what is left of a wake that began `since_s` ago; at least one second.

        Of one that is overdue nobody knows; it is expected to take as long again as it is late.
        """
        late_s = self.late_s(depth, since_s)
        return max(-late_s, late_s, 1.0)

    def late_s(self, depth: SleepDepth, since_s: float) -> float:
        """Return by how much a wake that began `since_s` ago is overdue; below 0: it is not."""
        return since_s - self._mean_s.get(depth, FIRST_GUESSES_S[depth])

    def export(self) -> dict[str, float]:
        """Return what was learned, for the next front door."""
        return {depth.value: mean_s for depth, mean_s in self._mean_s.items()}
