"""Admission to one upstream: one cap, one bounded line in order of arrival, one wait limit.

Rule 1: every change of a ticket's state happens in this file.
Rule 2: this file knows no dialect, no socket, no engine and no wall clock.

    state      | arrive                    | grant     | expire, drain | finish
    -----------+---------------------------+-----------+---------------+-------
    NEW        | IN_FLIGHT, QUEUED or GONE | -         | -             | no-op
    QUEUED     | TicketError               | IN_FLIGHT | GONE          | GONE
    IN_FLIGHT  | TicketError               | -         | -             | GONE
    GONE       | TicketError               | -         | -             | no-op

`adopt` takes a NEW ticket straight to IN_FLIGHT, whatever the cap: it runs already, because an
earlier owner of this gate let it in. Nobody else is let in while that is above the cap.

`finish` is the one exit: the driver need not know whether its ticket waits or is in flight, so a
ticket that is granted and given up in one instant cannot leak its slots. Finishing a ticket twice
changes nothing and is counted.

While the controller is *held* (its engine is not awake) capacity is 0: everyone waits, in the same
line, under the same bound. Two clocks measure a wait, and only one of them runs at a time: the time
spent while held counts against the hold limit, the rest against `queue_timeout_s`. Both marks grow
in order of arrival, so the head of the line is always the first to expire.

At one instant the order is: completions, departures, expiries, arrivals. So whatever can free a
slot (`finish`, `resume`, `change_limits`) leaves alone a waiter whose limit falls on this very
instant, as the slot may be for it; `expire` and `arrive` do not.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from tornado_frontdoor.core.decisions import Admit, Reason
from tornado_frontdoor.core.request import Ticket, TicketState

_NEW = TicketState.NEW
_QUEUED = TicketState.QUEUED
_IN_FLIGHT = TicketState.IN_FLIGHT
_GONE = TicketState.GONE


class TicketError(Exception):
    """A bug of the driver: a ticket was put into a line for a second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """What one gate may hold. No field has a default: a silent limit is a surprise.

    With `cap` None nothing is limited while the engine is awake, and `queue` bounds those who wait
    for it to wake. Raises ValueError for limits that cannot work.
    """

    cap: int | None
    """Slots that may be in flight (>= 1)."""
    queue: int
    """Places in the line (>= 0)."""
    queue_timeout_s: float
    """Longest wait for a slot of an awake engine (> 0)."""

    def __post_init__(self) -> None:
        if self.cap is not None and self.cap < 1:
            raise ValueError(f"cap must be at least 1, not {self.cap}")
        if self.queue < 0:
            raise ValueError(f"queue must be at least 0, not {self.queue}")
        if not self.queue_timeout_s > 0:
            raise ValueError(f"queue_timeout_s must be above 0, not {self.queue_timeout_s}")


class Rejected(NamedTuple):
    """A ticket that is gone without having been in flight, and why."""

    ticket: Ticket
    reason: Reason


AdmissionEvent = Admit | Rejected
_NOTHING: tuple[AdmissionEvent, ...] = ()


class AdmissionController:
    """The line before one upstream. Not thread-safe, never blocks.

    Each call and each move is O(1), but for `waiting` and `change_limits`, which walk the line.
    `now` is the instant of the call in monotonic seconds; it never goes back.
    """

    def __init__(self, limits: AdmissionLimits) -> None:
        self._line: OrderedDict[int, Ticket] = OrderedDict()
        self._arrivals = 0
        self._used = 0
        self._draining = False
        self._held = False
        self._hold_limit_s = inf
        self._held_since_s = 0.0
        self._held_total_s = 0.0
        self.duplicate_finishes = 0
        self._take(limits)

    # What can be asked

    @property
    def in_flight(self) -> int:
        """Slots taken now."""
        return self._used

    @property
    def queued(self) -> int:
        """Tickets that wait now."""
        return len(self._line)

    @property
    def held(self) -> bool:
        """Whether capacity is 0 because the engine is not awake."""
        return self._held

    @property
    def draining(self) -> bool:
        """Whether newcomers are refused because the front door is going away."""
        return self._draining

    def waiting(self) -> tuple[Ticket, ...]:
        """Return the line, head first."""
        return tuple(self._line.values())

    def next_deadline(self) -> float | None:
        """Return the instant at which `expire` has something to do, or None while nobody waits."""
        if not self._line:
            return None
        deadline_s = self._deadline(next(iter(self._line.values())))
        return None if deadline_s == inf else deadline_s

    # What can happen

    def arrive(self, ticket: Ticket, now: float, waited_s: float = 0.0) -> Sequence[AdmissionEvent]:
        """Put a new ticket into flight, into the line, or turn it away.

        `waited_s`: what it has waited in the line of an earlier owner of this gate; those come
        first and in their order, so that nobody behind them has waited for longer.
        """
        if ticket.state is not _NEW:
            raise TicketError(f"{ticket!r} has arrived before")
        moves: list[AdmissionEvent] = []
        if self._line:
            self._expire_until(now, moves)
            self._grant(now, moves)
        self._arrivals += 1
        ticket.number = self._arrivals
        ticket.arrived_s = now - waited_s
        weight = ticket.weight
        if self._draining:
            self._turn(ticket, Reason.DRAINING, moves)
        elif weight > self._cap:
            # It could never run, so it must not stand at the head and block everyone behind it.
            self._turn(ticket, Reason.BAD_REQUEST, moves)
        elif not self._held and not self._line and self._used + weight <= self._cap:
            ticket.state = _IN_FLIGHT
            ticket.admitted_s = now
            self._used += weight
            moves.append(Admit(ticket, waited_s, 0.0))
        elif len(self._line) < self._places():
            ticket.state = _QUEUED
            ticket.awake_mark_s = self._awake_s(now) - waited_s
            ticket.held_mark_s = self._held_s(now)
            self._line[ticket.number] = ticket
        else:
            self._turn(ticket, Reason.QUEUE_FULL, moves)
        return moves

    def adopt(self, ticket: Ticket, now: float) -> None:
        """Count a new ticket as in flight: it runs already, let in by an earlier owner."""
        if ticket.state is not _NEW:
            raise TicketError(f"{ticket!r} has arrived before")
        self._arrivals += 1
        ticket.number = self._arrivals
        ticket.arrived_s = ticket.admitted_s = now
        ticket.state = _IN_FLIGHT
        self._used += ticket.weight

    def finish(self, ticket: Ticket, now: float) -> Sequence[AdmissionEvent]:
        """End a ticket, wherever it is; returns whom that lets in."""
        if ticket.state is _IN_FLIGHT:
            self._used -= ticket.weight
            assert self._used >= 0
        elif ticket.state is _QUEUED:
            del self._line[ticket.number]
        else:
            self.duplicate_finishes += 1
            return _NOTHING
        ticket.state = _GONE
        if not self._line:
            return _NOTHING
        moves: list[AdmissionEvent] = []
        self._expire_before(now, moves)
        self._grant(now, moves)
        return moves

    def expire(self, now: float) -> Sequence[AdmissionEvent]:
        """Turn away everyone whose limit has come; returns them and whom that lets in."""
        if not self._line:
            return _NOTHING
        moves: list[AdmissionEvent] = []
        self._expire_until(now, moves)
        self._grant(now, moves)
        return moves

    def hold(self, limit_s: float, now: float) -> Sequence[AdmissionEvent]:
        """Set capacity to 0 until `resume`; the line may wait `limit_s` in all while held.

        Calling it again while held changes the limit, for those who wait already too.
        """
        moves: list[AdmissionEvent] = []
        self._expire_before(now, moves)  # by the clock that ran until now
        if not self._held:
            self._held = True
            self._held_since_s = now
        self._hold_limit_s = limit_s
        self._expire_until(now, moves)
        return moves

    def resume(self, now: float) -> Sequence[AdmissionEvent]:
        """Give the capacity back: the engine is proven awake."""
        if not self._held:
            return _NOTHING
        moves: list[AdmissionEvent] = []
        self._expire_before(now, moves)  # by the clock that ran until now
        self._held_total_s += now - self._held_since_s
        self._held = False
        self._expire_before(now, moves)  # a shorter queue_timeout_s may have come meanwhile
        self._grant(now, moves)
        return moves

    def drain(self) -> Sequence[AdmissionEvent]:
        """Refuse the line and every newcomer from now on; those in flight run to their end."""
        self._draining = True
        moves: list[AdmissionEvent] = []
        while self._line:
            _, ticket = self._line.popitem(last=False)
            self._turn(ticket, Reason.DRAINING, moves)
        return moves

    def change_limits(self, limits: AdmissionLimits, now: float) -> Sequence[AdmissionEvent]:
        """Take new limits at once. Nobody in flight is touched, nobody who waits loses a place.

        Only a waiter that is now heavier than the cap is turned away: it could never run.
        """
        self._take(limits)
        moves: list[AdmissionEvent] = []
        for ticket in [waiter for waiter in self._line.values() if waiter.weight > self._cap]:
            del self._line[ticket.number]
            self._turn(ticket, Reason.BAD_REQUEST, moves)
        self._expire_before(now, moves)
        self._grant(now, moves)
        return moves

    # How

    def _take(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        self._cap: float = inf if limits.cap is None else limits.cap

    def _places(self) -> float:
        """Return how many tickets may wait now: the slots that nobody can have are places too."""
        if not self._held or self._cap == inf:
            return self.limits.queue
        return self.limits.queue + max(0, self._cap - self._used)

    def _turn(self, ticket: Ticket, reason: Reason, moves: list[AdmissionEvent]) -> None:
        ticket.state = _GONE
        moves.append(Rejected(ticket, reason))

    def _grant(self, now: float, moves: list[AdmissionEvent]) -> None:
        """Let the line in, head first, until the head does not fit. Nobody overtakes it."""
        if self._held:
            return
        line = self._line
        while line:
            ticket = next(iter(line.values()))
            if self._used + ticket.weight > self._cap:
                return
            del line[ticket.number]
            ticket.state = _IN_FLIGHT
            ticket.admitted_s = now
            self._used += ticket.weight
            held_s = self._held_total_s - ticket.held_mark_s
            moves.append(Admit(ticket, now - ticket.arrived_s, held_s))

    def _expire_until(self, now: float, moves: list[AdmissionEvent]) -> None:
        """Turn away those whose limit is now or has passed."""
        reason = Reason.MODEL_WAKING if self._held else Reason.QUEUE_TIMEOUT
        line = self._line
        while line:
            ticket = next(iter(line.values()))
            if self._deadline(ticket) > now:
                return
            del line[ticket.number]
            ticket.held_s = self._held_s(now) - ticket.held_mark_s
            self._turn(ticket, reason, moves)

    def _expire_before(self, now: float, moves: list[AdmissionEvent]) -> None:
        """Turn away those whose limit has passed: the timer was late, and a decision stands."""
        line = self._line
        while line:
            ticket = next(iter(line.values()))
            if self._deadline(ticket) >= now:
                return
            del line[ticket.number]
            reason = Reason.MODEL_WAKING if self._held else Reason.QUEUE_TIMEOUT
            ticket.held_s = self._held_s(now) - ticket.held_mark_s
            self._turn(ticket, reason, moves)

    def _deadline(self, ticket: Ticket) -> float:
        # The one expression for a deadline: timers are armed at it and expiry is judged by it, so
        # that rounding can never make a timer fire too early and find nothing to do.
        if self._held:
            left_s = ticket.held_mark_s + self._hold_limit_s - self._held_total_s
            return self._held_since_s + left_s
        return ticket.awake_mark_s + self.limits.queue_timeout_s + self._held_total_s

    def _awake_s(self, now: float) -> float:
        """Return the reading of the clock that stands still while held."""
        return (self._held_since_s if self._held else now) - self._held_total_s

    def _held_s(self, now: float) -> float:
        """Return the reading of the clock that runs only while held."""
        return self._held_total_s + (now - self._held_since_s if self._held else 0.0)
