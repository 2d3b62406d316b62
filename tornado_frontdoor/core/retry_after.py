"""When a refused client should come back, and how long a wake takes: from what was observed.

SDKs obey `Retry-After` to the second and add no jitter of their own, so one constant value brings
the whole crowd back in one instant. Each refusal therefore gets a return time of its own, one mean
slot interval after the last one promised, no sooner than the queue as it stands can have drained.
"""

from collections.abc import Mapping
from math import inf
from typing import Protocol

from tornado_frontdoor.core.decisions import SleepDepth

SHORTEST_S = 1.0
LONGEST_S = 59.0
"""OpenAI's older SDKs ignore more than 60 s, its newer ones give up above 120 s."""

_FIRST_INTERVAL_S = 1.0
"""Assumed between two free slots until the first one was seen to come free."""
_WAKE_GAP_S = 0.1
"""Between two who come back for one wake: the queue takes them in, they need no slot each."""
_WEIGHT_OF_NEWEST = 0.1
"""Share of the newest observation in the moving mean, once ten were made."""
_MANY = 10


class Randomness(Protocol):
    """What pacing needs of a `random.Random`; the core draws no number of its own."""

    def uniform(self, a: float, b: float) -> float:
        """Return a number between `a` and `b`."""
        ...


class RetryAfterEstimator:
    """Observes how long slots are held; promises return times. One for each gate."""

    def __init__(self, rng: Randomness) -> None:
        self._rng = rng
        self._observed = 0
        self._mean_slot_s = 0.0
        self._promised_s = 0.0
        self._wake_promised_s = 0.0

    def observe(self, slot_s: float) -> None:
        """Take the time for which a slot was held that has just come free."""
        self._observed = observed = self._observed + 1
        share = _WEIGHT_OF_NEWEST if observed >= _MANY else 1 / observed
        self._mean_slot_s += share * (slot_s - self._mean_slot_s)

    def interval_s(self, cap: int) -> float:
        """Return the mean time between two slots coming free when all `cap` are taken."""
        return self._mean_slot_s / cap if self._observed else _FIRST_INTERVAL_S

    def retry_after_s(self, now: float, cap: int, queued: int) -> float:
        """Promise the next return time; 1 to 59 seconds from `now`.

        Beyond 59 s no order can be kept, so the rest is spread at random over the later half.
        """
        interval_s = self.interval_s(cap)
        line_drained_s = now + (queued + 1) * interval_s
        promise_s = max(self._promised_s + interval_s, line_drained_s, now + SHORTEST_S)
        if promise_s - now > LONGEST_S:
            return self._rng.uniform(LONGEST_S / 2, LONGEST_S)
        self._promised_s = promise_s
        # (now + 1.0) - now may come out a rounding below 1.0, and one second is the least.
        return max(promise_s - now, SHORTEST_S)

    def wake_return_s(self, now: float, left_s: float) -> float:
        """Promise when one is to be back who was held in vain for a wake of which `left_s` is left.

        Each gets another instant, so that not all come at once who were sent away at once; at most
        59 seconds from `now`, as SDKs give up at more.
        """
        promise_s = max(now + left_s, self._wake_promised_s + _WAKE_GAP_S, now + SHORTEST_S)
        if promise_s - now > LONGEST_S:
            return self._rng.uniform(max(LONGEST_S / 2, min(left_s, LONGEST_S - 5.0)), LONGEST_S)
        self._wake_promised_s = promise_s
        return max(promise_s - now, SHORTEST_S)


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
        return max(-late_s, late_s, SHORTEST_S)

    def late_s(self, depth: SleepDepth, since_s: float) -> float:
        """Return by how much a wake that began `since_s` ago is overdue; below 0: it is not."""
        return since_s - self._mean_s.get(depth, FIRST_GUESSES_S[depth])

    def export(self) -> dict[str, float]:
        """Return what was learned, for the next front door."""
        return {depth.value: mean_s for depth, mean_s in self._mean_s.items()}
