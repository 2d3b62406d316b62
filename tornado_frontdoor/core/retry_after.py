"""How long a wake takes: from what was observed."""

from collections.abc import Mapping
from math import inf

from tornado_frontdoor.core.decisions import SleepDepth

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
