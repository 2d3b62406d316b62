"""When those who were refused come back, and the places that wait for them.

SDKs obey `Retry-After` to the second and add no jitter of their own, so one constant value brings
the whole crowd back in one instant. Each refusal is therefore promised an instant of its own, one
interval of the drain after the last one promised, and the book remembers what it has promised to
whom. Whoever comes back at that instant finds a place: the last places of the queue are kept from
others while somebody is due.

    a caller             | finds
    ---------------------+-----------------------------------------------------------------------
    not in the book      | the queue without its kept places
    too early            | the same; the promise stands, until one more makes it one of twins
    about when told      | the whole queue; the promise is over
    too late             | the queue without its kept places; the promise was over before
    one of twins         | the queue without its kept places; nobody is expected

Rule 1: a kept place is only the right to stand at the end of the queue. Nobody inside is passed.
Rule 2: as many places are kept as, by what was seen, will be taken up. Before the first caller came
        back when told that is none, so before clients that never do nothing is lost.
Rule 3: a caller is known by a token that only says "the same as before". The book may be lost at
        any time: then whoever comes back is a newcomer.
Rule 4: twins, who were sent away with one token, are told an instant each and are not expected:
        a second crowd that asks the same is no crowd that came back, and finds the whole queue.
"""

from bisect import bisect_right, insort
from collections.abc import Hashable
from math import inf
from typing import NamedTuple, Protocol

SHORTEST_S = 1.0
LONGEST_S = 59.0
"""OpenAI's older SDKs ignore more than 60 s, its newer ones give up above 120 s."""
BEYOND_S = 50.0
"""From here to `LONGEST_S` come back whom no instant can be promised any more."""
EARLY_S = 0.25
"""Clocks that run a little fast; who comes sooner than that comes unasked."""
LATE_S = 2.0
"""`Retry-After` in whole seconds takes up to one of these, a new connection the other."""
MOST_PROMISES = 4096
"""What the book remembers at most; whoever is sent away beyond that is a newcomer again."""

_WAKE_GAP_S = 0.1
"""Between two who come back for one wake: the queue takes them in, they need no slot each."""
_WEIGHT_OF_NEWEST = 1 / 32
"""Weight of the newest promise in the share of promises that are taken up."""


class Randomness(Protocol):
    """What pacing needs of a `random.Random`; the core draws no number of its own."""

    def uniform(self, a: float, b: float) -> float:
        """Return a number between `a` and `b`."""
        ...


class _Promise(NamedTuple):
    at_s: float
    number: int
    token: Hashable


class ReturnBook:
    """What one gate has promised, to whom, and how many of them came. Time never goes back.

    A promise is over when it is taken up, or `LATE_S` after its instant. Each call is O(log n) and
    a move of memory, with n at most `MOST_PROMISES`, and O(1) while nobody is expected.
    """

    def __init__(self, rng: Randomness) -> None:
        self._rng = rng
        self._numbers = 0
        self._last_s = -inf
        """The last instant of its own that was promised."""
        self._wake_last_s = -inf
        self.due: list[_Promise] = []
        """What is not over, in order of instants; the same list at all times, to be looked at."""
        self._of: dict[Hashable, _Promise] = {}
        """The same by caller."""
        self._twins: dict[Hashable, float] = {}
        """Tokens of more than one caller, and the instant from which they may be one's again."""
        self._taken_share = 0.0
        self.came_back = 0
        """Callers who came back about when they were told."""
        self.stayed_away = 0
        """Promises that nobody took up."""

    def __len__(self) -> int:
        return len(self.due)

    def __repr__(self) -> str:
        return f"<ReturnBook {len(self)} expected, {self._taken_share:.0%} of them will come>"

    def promise_s(
        self,
        token: Hashable,
        now: float,
        interval_s: float,
        queued: int,
        earliest_s: float = SHORTEST_S,
    ) -> float:
        """Promise the next free instant; returns the seconds until then, 1 to 59.

        It is no sooner than `earliest_s` from now, and than those can be served who are `queued`.
        Beyond 59 s no order can be kept: then it is the end of that time, at random. With a token
        None nobody is expected.
        """
        self._forget_until(now)
        drained_s = now + (queued + 1) * interval_s
        at_s = max(self._last_s + interval_s, drained_s, now + max(earliest_s, SHORTEST_S))
        if at_s - now > LONGEST_S:
            at_s = now + self._rng.uniform(BEYOND_S, LONGEST_S)
        else:
            self._last_s = at_s
        if token is not None and not self._is_one_of_twins(token, now, at_s + LATE_S):
            self._expect(token, at_s)
        # (now + 1.0) - now may come out a rounding below 1.0, and one second is the least.
        return max(at_s - now, SHORTEST_S)

    def take_up(self, token: Hashable, now: float) -> bool:
        """Tell whether a caller comes who is due now; that promise is over."""
        self._forget_until(now)
        promise = self._of.get(token)
        if promise is None or promise.at_s > now + EARLY_S:
            return False
        self._strike(promise)
        self.came_back += 1
        self._learn(1.0)
        return True

    def kept(self, now: float, interval_s: float, places: int) -> int:
        """Return how many of the last `places` are kept from newcomers now.

        That is one for each who is due by when as many as these places have been served, and who,
        by what was seen, will come.
        """
        self._forget_until(now)
        until_s = now + EARLY_S + places * interval_s
        due = bisect_right(self.due, until_s, key=_instant)
        return min(places, int(due * self._taken_share + 0.5))

    def wake_return_s(self, now: float, left_s: float) -> float:
        """Promise when one is to be back who was held in vain for a wake of which `left_s` is left.

        Each gets another instant, so that not all come at once who were sent away at once; at most
        59 seconds from `now`, as SDKs give up at more.
        """
        at_s = max(now + left_s, self._wake_last_s + _WAKE_GAP_S, now + SHORTEST_S)
        if at_s - now > LONGEST_S:
            return self._rng.uniform(max(LONGEST_S / 2, min(left_s, LONGEST_S - 5.0)), LONGEST_S)
        self._wake_last_s = at_s
        return max(at_s - now, SHORTEST_S)

    def _forget_until(self, now: float) -> None:
        """Strike what was not taken up, so that its place is others' again."""
        due = self.due
        if not due or due[0].at_s >= now - LATE_S:
            return
        over = [promise for promise in due if promise.at_s < now - LATE_S]
        del due[: len(over)]
        for promise in over:
            del self._of[promise.token]
            self.stayed_away += 1
            self._learn(0.0)

    def _expect(self, token: Hashable, at_s: float) -> None:
        if len(self.due) < MOST_PROMISES:
            self._numbers += 1
            promise = self._of[token] = _Promise(at_s, self._numbers, token)
            insort(self.due, promise, key=_instant)

    def _is_one_of_twins(self, token: Hashable, now: float, until_s: float) -> bool:
        """Tell whether there is more than one caller of this token; then none of them is due."""
        before = self._of.get(token)
        if before is not None:
            self._strike(before)
        elif self._twins.get(token, -inf) < now:
            self._twins.pop(token, None)
            return False
        if len(self._twins) >= MOST_PROMISES:
            self._twins = {one: end_s for one, end_s in self._twins.items() if end_s >= now}
        if len(self._twins) < MOST_PROMISES or token in self._twins:
            self._twins[token] = until_s
        return True

    def _strike(self, promise: _Promise) -> None:
        self.due.remove(promise)
        del self._of[promise.token]

    def _learn(self, came: float) -> None:
        weight = max(_WEIGHT_OF_NEWEST, 1 / (self.came_back + self.stayed_away))
        self._taken_share += weight * (came - self._taken_share)


def _instant(promise: _Promise) -> float:
    return promise.at_s
