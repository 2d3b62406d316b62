"""The rules of admission once more, as plainly as they can be said: the judge of the real one.

Written from the rules and not from `core/admission.py`. It keeps lists, scans all of them each
time, and adds up for each waiter how long it waited, second by second. It shares no idea with the
controller that could be wrong in both: no marks, no running totals, no "the head is the first".

On a grid of binary fractions all its sums are exact, so that ties are ties.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from tornado_frontdoor.core.admission import AdmissionEvent
from tornado_frontdoor.core.decisions import Admit, Cooled, Reason


class Seen(NamedTuple):
    """One decision as both tell it: `reason` None is an admission."""

    number: int
    reason: Reason | None
    waited_s: float = 0.0
    paused_s: float = 0.0
    cooled: bool = False
    """Neither: it has cooled for long enough, and its slots are free."""


def seen(moves: Sequence[AdmissionEvent]) -> list[Seen]:
    """Return a controller's moves in the words of this module."""
    told = []
    for move in moves:
        if isinstance(move, Admit):
            told.append(Seen(move.ticket.number, None, move.waited_s, move.paused_s))
        elif isinstance(move, Cooled):
            told.append(Seen(move.ticket.number, None, cooled=True))
        else:
            told.append(Seen(move.ticket.number, move.reason))
    return told


@dataclass
class Waiter:
    """One who waits, and for how long it has, by either clock."""

    number: int
    weight: int
    awake_s: float = 0.0
    paused_s: float = 0.0
    promised_s: float = 0.0
    """How long it may wait while paused, as it was last told."""


class NaiveLine:
    """One cap, one line, two budgets, by the book."""

    def __init__(
        self, cap: int | None, queue: int, timeout_s: float, cooling_limit_s: float = 2.0
    ) -> None:
        self.cap = inf if cap is None else cap
        self.queue = queue
        self.timeout_s = timeout_s
        self.cooling_limit_s = cooling_limit_s
        self.pause_limit_s = inf
        self.paused = False
        self.draining = False
        self.now = 0.0
        self.arrivals = 0
        self.flying: list[tuple[int, int]] = []
        self.cooling: list[tuple[int, int, float]] = []
        self.waiting: list[Waiter] = []

    # What happens

    def arrive(self, weight: int, now: float, kept: int = 0) -> list[Seen]:
        """What is due comes first; what that frees goes to the line; then comes the new one.

        The last `kept` places are not for it, unless the engine is not awake.
        """
        self._let_time_pass(now)
        told = self._due()
        self.arrivals += 1
        number = self.arrivals
        if self.draining:
            return [*told, Seen(number, Reason.DRAINING)]
        if weight > self.cap:
            return [*told, Seen(number, Reason.BAD_REQUEST)]
        promised_s = self.pause_limit_s if self.paused else 0.0
        self.waiting.append(Waiter(number, weight, promised_s=promised_s))
        let_in = self._let_in()
        room = self.queue if self.paused else self.queue - kept
        if self.paused and self.cap < inf:
            room += max(0, int(self.cap) - self.used)
        if not let_in and len(self.waiting) > room:
            self.waiting.pop()
            return [*told, Seen(number, Reason.QUEUE_FULL)]
        return told + let_in

    def finish(self, number: int, now: float) -> list[Seen]:
        """Completions and departures come before expiries of the same instant."""
        self._let_time_pass(now)
        if number not in self.numbers():
            return []
        self.flying = [flying for flying in self.flying if flying[0] != number]
        self.cooling = [cooling for cooling in self.cooling if cooling[0] != number]
        self.waiting = [waiter for waiter in self.waiting if waiter.number != number]
        return self._cool() + self._expire(now_counts=False) + self._let_in()

    def cool(self, number: int, now: float) -> list[Seen]:
        """A departure, after which the slots of one in flight are still taken for a while."""
        self._let_time_pass(now)
        if number in [cooling[0] for cooling in self.cooling]:
            return []
        weights = [weight for flying, weight in self.flying if flying == number]
        if not weights:
            return self.finish(number, now)
        self.flying = [flying for flying in self.flying if flying[0] != number]
        self.cooling.append((number, weights[0], now))
        return self._cool() + self._expire(now_counts=False) + self._let_in()

    def expire(self, now: float) -> list[Seen]:
        """Whoever has used up the budget whose clock runs is sent away."""
        self._let_time_pass(now)
        return self._due()

    def pause(self, limit_s: float, now: float) -> list[Seen]:
        """Those who were overdue already go by the clock that ran; then the other one counts."""
        self._let_time_pass(now)
        told = self._cool() + self._expire(now_counts=False)
        self.paused = True
        self.pause_limit_s = limit_s
        for waiter in self.waiting:
            waiter.promised_s = max(waiter.promised_s, limit_s)
        return told + self._expire(now_counts=True)

    def resume(self, now: float) -> list[Seen]:
        """As for `hold`; then there is capacity again, for those who are not overdue by now."""
        self._let_time_pass(now)
        if not self.paused:
            return []
        told = self._cool() + self._expire(now_counts=False)
        self.paused = False
        return told + self._expire(now_counts=False) + self._let_in()

    def drain(self) -> list[Seen]:
        """The whole line goes, in its order."""
        self.draining = True
        gone, self.waiting = self.waiting, []
        return [Seen(waiter.number, Reason.DRAINING) for waiter in gone]

    def change_limits(
        self,
        cap: int | None,
        queue: int,
        timeout_s: float,
        now: float,
        cooling_limit_s: float = 2.0,
    ) -> list[Seen]:
        """Who can never run any more goes; a slot that comes free comes before expiries."""
        self._let_time_pass(now)
        self.cap = inf if cap is None else cap
        self.queue = queue
        self.timeout_s = timeout_s
        self.cooling_limit_s = cooling_limit_s
        cooled = self._cool()
        too_heavy = [waiter for waiter in self.waiting if waiter.weight > self.cap]
        self.waiting = [waiter for waiter in self.waiting if waiter.weight <= self.cap]
        told = [Seen(waiter.number, Reason.BAD_REQUEST) for waiter in too_heavy]
        return cooled + told + self._expire(now_counts=False) + self._let_in()

    # What can be asked

    @property
    def used(self) -> int:
        """Slots that nobody else can have."""
        return self.in_flight + self.slots_cooling

    @property
    def in_flight(self) -> int:
        """Slots in flight."""
        return sum(weight for _, weight in self.flying)

    @property
    def slots_cooling(self) -> int:
        """Slots whose engine has not let go yet."""
        return sum(weight for _, weight, _ in self.cooling)

    def numbers(self) -> list[int]:
        """Everyone who can be finished, in order of arrival."""
        return sorted(
            [number for number, _ in self.flying]
            + [number for number, _, _ in self.cooling]
            + [waiter.number for waiter in self.waiting]
        )

    def next_deadline(self) -> float | None:
        """The soonest instant at which anyone's budget is used up, or a slot has cooled."""
        instants = [self.now + self._left_s(waiter) for waiter in self.waiting]
        instants += [since_s + self.cooling_limit_s for _, _, since_s in self.cooling]
        soonest = min(instants, default=inf)
        return None if soonest == inf else soonest

    def copy(self) -> "NaiveLine":
        """Return another one in the same state."""
        other = NaiveLine.__new__(NaiveLine)
        other.__dict__.update(self.__dict__)
        other.flying = list(self.flying)
        other.cooling = list(self.cooling)
        other.waiting = [replace(waiter) for waiter in self.waiting]
        return other

    # How

    def _let_time_pass(self, now: float) -> None:
        for waiter in self.waiting:
            if self.paused:
                waiter.paused_s += now - self.now
            else:
                waiter.awake_s += now - self.now
        self.now = now

    def _left_s(self, waiter: Waiter) -> float:
        if self.paused:
            return waiter.promised_s - waiter.paused_s
        return self.timeout_s - waiter.awake_s

    def _due(self) -> list[Seen]:
        """Completions, those whom they let in, then expiries, and whom those let in."""
        told = self._cool()
        if told:
            told += self._expire(now_counts=False) + self._let_in()
        return told + self._expire(now_counts=True) + self._let_in()

    def _cool(self) -> list[Seen]:
        over = [one for one in self.cooling if one[2] + self.cooling_limit_s <= self.now]
        self.cooling = [one for one in self.cooling if one not in over]
        return [Seen(number, None, cooled=True) for number, _, _ in over]

    def _expire(self, *, now_counts: bool) -> list[Seen]:
        reason = Reason.MODEL_WAKING if self.paused else Reason.QUEUE_TIMEOUT
        gone = [
            waiter
            for waiter in self.waiting
            if self._left_s(waiter) < 0 or (now_counts and self._left_s(waiter) == 0)
        ]
        self.waiting = [waiter for waiter in self.waiting if waiter not in gone]
        return [Seen(waiter.number, reason) for waiter in sorted(gone, key=self._left_s)]

    def _let_in(self) -> list[Seen]:
        told = []
        while self.waiting and not self.paused:
            head = self.waiting[0]
            if self.used + head.weight > self.cap:
                break
            self.waiting.pop(0)
            self.flying.append((head.number, head.weight))
            told.append(Seen(head.number, None, head.awake_s + head.paused_s, head.paused_s))
        return told
