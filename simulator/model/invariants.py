"""The laws of admission and waking as witnesses: told what happened, they speak up if it was wrong.

A witness keeps its own books and shares nothing with the machines it watches. Whoever drives a gate
(a test, the simulated model, the live proxy's observer) tells it each event and then each decision,
in their order; `settled` closes the event. `LawError.law` is the number of the law:

1. In flight and cooling never exceed the cap; inside never exceeds cap + queue.
2. Admission is in arrival order among those that did not leave or expire; where slots are shared
   by key, among those of one key.
3. Nobody waits beside a free slot of an awake engine; nobody is turned away as one too many beside
   a free slot or a free place, unless that is kept for one who is due.
4. Each ticket ends exactly once, with one outcome, and the books agree with the gauges.
5. Nobody waits past their deadline; nobody is sent away before it; so too for slots that cool.
6. At every rest, in flight + cooling + waiting = 0 and the engine's own running + waiting = 0.
7. Only an engine whose wake was proven sees a request; one wake at a time; no sleep while anyone is
   inside.
8. A refused, expired or departed request never reaches the engine.
9. Same seed, same version: the same trace, byte for byte (`digest`).
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from hashlib import sha256
from itertools import islice
from math import inf
from typing import NamedTuple

from tornado_frontdoor.core.decisions import (
    OUTCOME_OF,
    Admit,
    Cooled,
    Decision,
    Outcome,
    Reason,
    Refuse,
)


class LawError(AssertionError):
    """What happened breaks a law; `law` is its number in this module's list."""

    def __init__(self, law: int, what: str) -> None:
        super().__init__(f"law {law}: {what}")
        self.law = law


class _Waiter(NamedTuple):
    weight: int
    arrived_s: float
    awake_mark_s: float
    paused_mark_s: float
    promised_s: float
    """How long it may wait while capacity is 0."""
    key: str
    """Among whom it is in order of arrival."""


class QueueWitness:
    """Watches one gate: laws 1 to 6 and 8. Each call is O(1), but for `limits_changed`.

    Tickets are known by a number. One that cools has ended, and its slots are still taken.
    `tolerance_s` is how far a clock that is not exact may be off:
    0 in simulated time, a few milliseconds before a live proxy.
    """

    def __init__(
        self,
        cap: int | None,
        queue: int,
        queue_timeout_s: float,
        *,
        cooling_limit_s: float = inf,
        tolerance_s: float = 0.0,
    ) -> None:
        self.arrivals = 0
        self.ends: Counter[Outcome] = Counter()
        self.in_flight_max = 0
        self.queued_max = 0
        self._tolerance_s = tolerance_s
        self._cap: float = inf if cap is None else cap
        self._queue = queue
        self._timeout_s = queue_timeout_s
        self._queued: OrderedDict[int, _Waiter] = OrderedDict()
        self._in_flight: dict[int, int] = {}
        self._cooling: dict[int, tuple[int, float]] = {}
        self._cooling_limit_s = cooling_limit_s
        self._used = 0
        self._newcomer: int | None = None
        self._kept = self._least_kept = 0
        self._overdue: int | None = None
        self._slot_may_come_free = False
        self._somebody_expired = self._slot_has_cooled = False
        self._looks_at_cooling = True
        self._draining = False
        self._paused = False
        self._pause_limit_s = inf
        self._promised_before_s: dict[int, float] = {}
        """Of those who were promised more in the event that is being judged."""
        self._now = -inf
        self._awake_s = 0.0
        self._paused_s = 0.0

    # What happens to a gate

    def arrived(
        self,
        now: float,
        number: int,
        weight: int = 1,
        kept: int = 0,
        least_kept: int = 0,
        key: str = "",
    ) -> None:
        """Note a new ticket; its decision, if any, follows before `settled`.

        `kept` is how many of the last places may be kept from it, `least_kept` how many must be;
        `key` whose it is, where slots are shared by key.
        """
        self._pass(now)
        if number in self._queued or number in self._in_flight or number in self._cooling:
            raise LawError(4, f"ticket {number} arrives while it is inside")
        self.arrivals += 1
        self._newcomer = number
        self._kept, self._least_kept = kept, least_kept
        promised_s = self._pause_limit_s if self._paused else 0.0
        self._queued[number] = _Waiter(weight, now, self._awake_s, self._paused_s, promised_s, key)

    def ended(self, now: float, number: int, outcome: Outcome) -> None:
        """Note that the driver finished a ticket that waited or was in flight."""
        self._pass(now)
        if number in self._in_flight:
            self._used -= self._in_flight.pop(number)
        elif self._queued.pop(number, None) is None:
            raise LawError(4, f"ticket {number} ends and is not inside")
        self._slot_may_come_free = True
        self.ends[outcome] += 1

    def cools(self, now: float, number: int, outcome: Outcome) -> None:
        """Note that a ticket in flight was broken off, and its engine has not let go of it."""
        self._pass(now)
        if number not in self._in_flight:
            raise LawError(4, f"ticket {number} cools and is not in flight")
        self._cooling[number] = self._in_flight.pop(number), now
        self._slot_may_come_free = True  # that of another, which the driver is late to see
        self.ends[outcome] += 1

    def let_go(self, now: float, number: int) -> None:
        """Note the engine's sign that it has let go of a ticket that cooled."""
        self._pass(now)
        if number not in self._cooling:
            raise LawError(4, f"ticket {number} is let go of and does not cool")
        self._used -= self._cooling.pop(number)[0]
        self._slot_may_come_free = True

    def cooled(self, now: float, number: int) -> None:
        """Judge that a ticket has cooled for so long that no sign is awaited any more."""
        self._pass(now)
        if number not in self._cooling:
            raise LawError(4, f"ticket {number} has cooled and was not told to")
        weight, since_s = self._cooling.pop(number)
        self._used -= weight
        if now - since_s < self._cooling_limit_s - self._tolerance_s:
            raise LawError(5, f"ticket {number} has cooled before its limit")
        self._slot_has_cooled = True
        if self._somebody_expired:
            raise LawError(5, f"ticket {number} gives its slots back when waiters were sent away")

    def paused(self, now: float, limit_s: float) -> None:
        """Note that capacity is 0 from now on, and how long anyone may wait for that to end."""
        self._pass(now)
        self._note_overdue()
        self._pause_limit_s = limit_s
        already, self._paused = self._paused, True
        for number, waiter in self._queued.items():
            if waiter.promised_s < limit_s:
                if already:
                    self._promised_before_s[number] = waiter.promised_s
                self._queued[number] = waiter._replace(promised_s=limit_s)

    def resumed(self, now: float) -> None:
        """Note that the engine is proven awake."""
        self._pass(now)
        self._note_overdue()
        self._paused = False
        self._slot_may_come_free = True

    def drained(self, now: float) -> None:
        """Note that everyone who waits and all newcomers are to be refused."""
        self._pass(now)
        self._looks_at_cooling = False
        self._draining = True

    def limits_changed(
        self,
        now: float,
        cap: int | None,
        queue: int,
        queue_timeout_s: float,
        cooling_limit_s: float | None = None,
    ) -> None:
        """Note new limits; those inside may exceed them until they are gone."""
        self._pass(now)
        if cooling_limit_s is not None:
            self._cooling_limit_s = cooling_limit_s
        self._cap = inf if cap is None else cap
        self._queue = queue
        self._timeout_s = queue_timeout_s
        self._slot_may_come_free = True

    # What the gate decided

    def decided(self, now: float, decisions: Iterable[Decision]) -> None:
        """Judge decisions of the core in the order in which they were made."""
        for decision in decisions:
            if isinstance(decision, Admit):
                self.admitted(now, decision.ticket.number, decision.waited_s, decision.paused_s)
            elif isinstance(decision, Refuse):
                self.refused(now, decision.ticket.number, decision.refusal.reason)
            elif isinstance(decision, Cooled):
                self.cooled(now, decision.ticket.number)

    def admitted(
        self, now: float, number: int, waited_s: float | None = None, paused_s: float | None = None
    ) -> None:
        """Judge an admission and, where it is told, how long the ticket is said to have waited."""
        self._pass(now)
        if number not in self._queued:
            raise LawError(4, f"ticket {number} is admitted and does not wait")
        key = self._queued[number].key
        head = next(one for one, waiter in self._queued.items() if waiter.key == key)
        if number != head:
            raise LawError(2, f"ticket {number} is admitted before {head}, which came earlier")
        if self._paused or self._draining:
            raise LawError(7, f"ticket {number} is admitted while capacity is 0")
        waiter = self._queued.pop(number)
        self._judge_wait(number, waiter, now, waited_s, paused_s)
        if self._awake_s - waiter.awake_mark_s > self._timeout_s + self._tolerance_s:
            raise LawError(5, f"ticket {number} is admitted past its limit")
        self._in_flight[number] = waiter.weight
        self._used += waiter.weight
        self.in_flight_max = max(self.in_flight_max, self._used)
        if self._used > self._cap:
            raise LawError(1, f"{self._used} slots in flight, the cap is {self._cap}")

    def refused(self, now: float, number: int, reason: Reason) -> None:
        """Judge a refusal: whether the ticket waits, and whether the reason is true."""
        self._pass(now)
        waiter = self._queued.pop(number, None)
        if waiter is None:
            raise LawError(4, f"ticket {number} is refused and does not wait")
        match reason:
            case Reason.QUEUE_FULL:
                self._judge_full(number, waiter)
            case Reason.QUEUE_TIMEOUT:
                over_s = self._awake_s - waiter.awake_mark_s - self._timeout_s
                after_another = self._somebody_expired
                self._judge_expiry(number, over_s)
                if self._slot_has_cooled and over_s == 0 and not after_another:
                    self._judge_tie(number, waiter)
            case Reason.MODEL_WAKING | Reason.UPSTREAM_DOWN:
                promised_s = self._promised_before_s.get(number, waiter.promised_s)
                over_s = self._paused_s - waiter.paused_mark_s - promised_s
                self._judge_expiry(number, over_s)
            case Reason.DRAINING:
                if not self._draining:
                    raise LawError(4, f"ticket {number} is refused for a drain that is not on")
            case _:
                self._judge_bar(number, waiter, reason)
        self.ends[OUTCOME_OF[reason]] += 1

    def settled(self, now: float) -> None:
        """Judge what is left once all decisions of one event were made."""
        self._pass(now)
        newcomer, self._newcomer = self._newcomer, None
        overdue, self._overdue = self._overdue, None
        self._slot_may_come_free = self._somebody_expired = self._slot_has_cooled = False
        self._promised_before_s.clear()
        if self._looks_at_cooling:
            self._judge_cooling()
        self._looks_at_cooling = True
        queued = len(self._queued)
        self.queued_max = max(self.queued_max, queued)
        kept = 0 if self._paused else self._least_kept
        if newcomer in self._queued and queued > self._places() - kept:
            raise LawError(1, f"ticket {newcomer} waits, and the queue is longer than its limit")
        if overdue in self._queued or overdue in self._in_flight:
            raise LawError(5, f"ticket {overdue} was past its limit and is inside")
        if not queued:
            return
        if self._draining:
            raise LawError(4, f"{queued} tickets wait after a drain")
        number, head = next(iter(self._queued.items()))
        fits = not self._paused and self._used + head.weight <= self._cap
        if fits and self._all_heads_fit():
            raise LawError(3, f"ticket {number} waits beside a free slot")
        if head.weight > self._cap:
            raise LawError(3, f"ticket {number} can never run and keeps everyone behind it")
        for number, waiter in self._soonest():
            if self._overdue_s(waiter) > self._tolerance_s:
                raise LawError(5, f"ticket {number} waits past its limit")

    # What can be compared with the outside

    @property
    def inside(self) -> int:
        """Tickets in flight or waiting, by these books."""
        return len(self._queued) + len(self._in_flight)

    def agree(self, in_flight: int, queued: int, cooling: int = 0) -> None:
        """Compare the gate's gauges, and the sum of all ends, with these books."""
        cool = sum(weight for weight, _ in self._cooling.values())
        books = self._used - cool, len(self._queued), cool
        if (in_flight, queued, cooling) != books:
            raise LawError(
                4,
                f"gauges say {in_flight} in flight, {queued} queued, {cooling} cooling; "
                f"the books {books[0]}, {books[1]} and {books[2]}",
            )
        if self.arrivals != self.ends.total() + self.inside:
            raise LawError(4, f"{self.arrivals} arrived, {self.ends.total()} ended")

    def engine_saw(self, number: int) -> None:
        """Judge that a ticket's request reached the engine."""
        if number not in self._in_flight:
            raise LawError(8, f"the request of ticket {number} reached the engine")

    def at_rest(self, engine_running: int = 0, engine_waiting: int = 0) -> None:
        """Judge a moment at which nothing is meant to go on anywhere."""
        if self.inside or self._cooling or engine_running or engine_waiting:
            raise LawError(
                6,
                f"at rest {self.inside} tickets are inside and {len(self._cooling)} cool; "
                f"the engine runs {engine_running} and lets {engine_waiting} wait",
            )

    # How

    def _pass(self, now: float) -> None:
        if now == self._now:
            return
        if now < self._now:
            raise ValueError(f"time does not run backwards: {now} < {self._now}")
        if self._now > -inf:
            if self._paused:
                self._paused_s += now - self._now
            else:
                self._awake_s += now - self._now
        self._now = now

    def _places(self) -> float:
        """Return how many may wait now; slots that nobody can have while held are places too."""
        free = max(0, self._cap - self._used) if self._paused and self._cap < inf else 0
        return self._queue + free

    def _overdue_s(self, waiter: _Waiter) -> float:
        if self._paused:
            return self._paused_s - waiter.paused_mark_s - waiter.promised_s
        return self._awake_s - waiter.awake_mark_s - self._timeout_s

    def _note_overdue(self) -> None:
        """Remember a head that is past its limit by a clock that stops running now."""
        for number, waiter in self._soonest():
            if self._overdue_s(waiter) > self._tolerance_s:
                self._overdue = number
                return

    def _soonest(self) -> Iterable[tuple[int, _Waiter]]:
        """Return who may be the first past a limit: while paused anybody, else the head."""
        return self._queued.items() if self._paused else islice(self._queued.items(), 1)

    def _judge_cooling(self) -> None:
        for number, (_, since_s) in self._cooling.items():
            if self._now - since_s > self._cooling_limit_s + self._tolerance_s:
                raise LawError(5, f"ticket {number} cools past its limit")
            return  # it has cooled longest

    def _judge_expiry(self, number: int, over_s: float) -> None:
        self._somebody_expired = True
        if over_s < -self._tolerance_s:
            raise LawError(5, f"ticket {number} is sent away {-over_s} s before its limit")
        if over_s == 0 == self._tolerance_s and self._slot_may_come_free:
            raise LawError(5, f"ticket {number} is sent away in the instant a slot comes free")

    def _judge_tie(self, number: int, waiter: _Waiter) -> None:
        if self._used + waiter.weight <= self._cap:
            raise LawError(5, f"ticket {number} is sent away in the instant a slot has cooled")

    def _judge_full(self, number: int, waiter: _Waiter) -> None:
        if number != self._newcomer:
            raise LawError(4, f"ticket {number} lost its place in the queue")
        fits = not self._paused and not self._queued and self._used + waiter.weight <= self._cap
        if fits or len(self._queued) < self._places() - (0 if self._paused else self._kept):
            raise LawError(3, f"ticket {number} is refused as one too many, and there is room")

    def _judge_bar(self, number: int, waiter: _Waiter, reason: Reason) -> None:
        if reason is Reason.CLIENT_DEADLINE:
            if number != self._newcomer:
                raise LawError(4, f"ticket {number} lost its place in the queue")
            if not self._paused and not self._queued and self._used + waiter.weight <= self._cap:
                raise LawError(3, f"ticket {number} is refused beside a free slot")
        # Who wakes nobody may be refused at any time: the terms are not known here.
        elif waiter.weight <= self._cap and reason is not Reason.MODEL_ASLEEP:
            raise LawError(4, f"ticket {number} fits and is refused as {reason.value}")

    def _all_heads_fit(self) -> bool:
        heads: dict[str, int] = {}
        for waiter in self._queued.values():
            heads.setdefault(waiter.key, waiter.weight)
        return self._used + max(heads.values()) <= self._cap

    def _judge_wait(
        self,
        number: int,
        waiter: _Waiter,
        now: float,
        waited_s: float | None,
        paused_s: float | None,
    ) -> None:
        told = (
            (waited_s, now - waiter.arrived_s),
            (paused_s, self._paused_s - waiter.paused_mark_s),
        )
        for said_s, true_s in told:
            if said_s is not None and abs(said_s - true_s) > self._tolerance_s:
                raise LawError(5, f"ticket {number} waited {true_s} s, and {said_s} s are told")


def digest(trace: Iterable[str]) -> str:
    """Return the SHA-256 of a trace, for law 9: compare it between processes and drivers."""
    lines = sha256()
    for line in trace:
        lines.update(line.encode())
        lines.update(b"\n")
    return lines.hexdigest()
