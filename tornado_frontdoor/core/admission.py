"""Admission to one upstream: one cap, one bounded queue in order of arrival, one wait limit.

Rule 1: every change of a ticket's state happens in this file.
Rule 2: this file knows no dialect, no socket, no engine and no wall clock.

    state      | arrive                    | grant     | expire, drain | cool    | finish
    -----------+---------------------------+-----------+---------------+---------+-------
    NEW        | IN_FLIGHT, QUEUED or GONE | -         | -             | no-op   | no-op
    QUEUED     | TicketError               | IN_FLIGHT | GONE          | GONE    | GONE
    IN_FLIGHT  | TicketError               | -         | -             | COOLING | GONE
    COOLING    | TicketError               | -         | GONE          | no-op   | GONE
    GONE       | TicketError               | -         | -             | no-op   | no-op

`adopt` takes a NEW ticket straight to IN_FLIGHT, whatever the cap: it runs already, because an
earlier owner of this gate let it in. Nobody else is let in while that is above the cap.

`finish` is the one exit: the driver need not know whether its ticket waits or is in flight, so a
ticket that is granted and given up in one instant cannot leak its slots. Finishing a ticket twice
changes nothing and is counted.

A request that was broken off is not yet over for its engine, which reads the close later. `cool`
says so: the ticket is not in flight any more and keeps its slots until `finish` tells that the
engine has let go, or until `cooling_limit_s` has passed, told as `Cooled`. A drain leaves it alone.

Where slots are shared by key (`fair_share.py`), "the head" below is who is next by that, and order
of arrival is that within a key. Limits come in order of arrival all the same.

While the controller is *paused* (its engine is not awake) capacity is 0: everyone waits, in the
same queue, under the same bound. Two clocks measure a wait, and only one of them runs at a time:
the time spent while paused counts against the pause limit, the rest against `queue_timeout_s`. A
pause limit is a promise: another one is for newcomers, and for those who were promised less. Where
all were promised the same the head is the first to expire, as both marks grow in order of arrival.

At one instant the order is: completions (also those by `cooling_limit_s`), departures, expiries,
arrivals. So whatever can free a slot (`finish`, `resume`, `change_limits`) leaves alone a waiter
whose limit falls on this very instant, as the slot may be for it; `expire` and `arrive` do not,
once those are let in whom a slot that has cooled makes room for.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import inf

from tornado_frontdoor.core.decisions import AdmissionEvent, Admit, Cooled, Reason, Rejected
from tornado_frontdoor.core.drain_rate import DrainRate
from tornado_frontdoor.core.fair_share import FairShare
from tornado_frontdoor.core.limits import AdmissionLimits
from tornado_frontdoor.core.replicas import Replicas
from tornado_frontdoor.core.request import Ticket, TicketError, TicketState

__all__ = ["AdmissionController", "AdmissionEvent", "AdmissionLimits", "Rejected", "TicketError"]

_NEW = TicketState.NEW
_QUEUED = TicketState.QUEUED
_IN_FLIGHT = TicketState.IN_FLIGHT
_COOLING = TicketState.COOLING
_GONE = TicketState.GONE

_NOTHING: tuple[AdmissionEvent, ...] = ()


class AdmissionController:
    """The queue before one upstream. Not thread-safe, never blocks.

    Each call and each event is O(1), but for `waiting`, `dismiss`, `change_limits` and another
    pause limit, which walk the queue; so do deadlines while those who wait were promised different
    ones.
    `now` is the instant of the call in monotonic seconds; it never goes back.
    """

    def __init__(self, limits: AdmissionLimits, replicas: Replicas | None = None) -> None:
        self._replicas = replicas
        self._queue: OrderedDict[int, Ticket] = OrderedDict()
        self._cooling: OrderedDict[int, Ticket] = OrderedDict()
        self._arrivals = 0
        self._used = 0
        self._used_cooling = 0
        self._draining = False
        self._paused = False
        self._pause_limit_s = inf
        self._promises_differ = False
        self._paused_since_s = 0.0
        self._paused_total_s = 0.0
        self._quiet_until_s = -inf  # nobody's limit is earlier: they come in order, head first
        self._changed_s = 0.0
        self._fair: FairShare | None = None
        self.drain_rate = DrainRate()
        self.duplicate_finishes = 0
        self.turned_away = 0
        self._take(limits)

    def __repr__(self) -> str:
        state = "paused" if self._paused else "draining" if self._draining else "open"
        limits = self.limits
        cap = "no cap" if limits.cap is None else f"cap {limits.cap}"
        return (
            f"<AdmissionController {state}, {cap}: {self.in_flight} in flight, "
            f"{self.cooling} cooling, {self.queued} of {limits.queue} queued>"
        )

    # What can be asked

    @property
    def in_flight(self) -> int:
        """Slots of requests that are under way now."""
        return self._used - self._used_cooling

    @property
    def cooling(self) -> int:
        """Slots of requests that were broken off, and that the engine may still work on."""
        return self._used_cooling

    @property
    def queued(self) -> int:
        """Tickets that wait now."""
        return len(self._queue)

    @property
    def paused(self) -> bool:
        """Whether capacity is 0 because the engine is not awake."""
        return self._paused

    @property
    def draining(self) -> bool:
        """Whether newcomers are refused because the front door is going away."""
        return self._draining

    @property
    def head(self) -> Ticket | None:
        """The one who has waited longest."""
        return next(iter(self._queue.values()), None)

    def full_for_s(self, now: float) -> float | None:
        """Return for how long all slots are taken since one was last given or came free."""
        if self._paused or (self._used < self._cap and not self._queue):
            return None
        return now - self._changed_s

    def ahead_of(self, newcomer: Ticket) -> int:
        """Return how many of those who wait are let in before a newcomer, at least."""
        if self._fair is None:
            return len(self._queue)
        return sum(waiter.key == newcomer.key for waiter in self._queue.values())

    def waiting(self) -> tuple[Ticket, ...]:
        """Return the queue, head first."""
        return tuple(self._queue.values())

    def next_deadline(self) -> float | None:
        """Return the instant at which `expire` has something to do; None: there is none."""
        deadline_s = inf
        if self._queue:
            deadline_s = self._deadline(self._first_to_go())
        if self._cooling:
            deadline_s = min(deadline_s, self._cool_s(next(iter(self._cooling.values()))))
        return None if deadline_s == inf else deadline_s

    # What can happen

    def arrive(
        self,
        ticket: Ticket,
        now: float,
        waited_s: float = 0.0,
        barred: Reason | None = None,
        kept: int = 0,
    ) -> Sequence[AdmissionEvent]:
        """Put a new ticket into flight, into the queue, or turn it away.

        `waited_s`: what it has waited in the queue of an earlier owner of this gate; those come
        first and in their order, so that nobody behind them has waited for longer. `barred`: why it
        is turned away in any case. `kept`: how many of the last places are not for it; while paused
        they are for everybody.
        """
        if ticket.state is not _NEW:
            raise TicketError(f"{ticket!r} has arrived before")
        events: list[AdmissionEvent] = []
        queue = self._queue
        if (queue and (now >= self._quiet_until_s or self._used < self._cap)) or self._cooling:
            self._let_time_pass(now, events)
        ticket.number = self._arrivals = self._arrivals + 1
        ticket.arrived_s = now - waited_s
        weight = ticket.weight
        plain = self._plain and barred is None and weight <= self._cap
        if not plain:
            barred = self._bar(weight, barred)
            if barred is not None:
                self._reject(ticket, barred, events)
                return events
        if not queue and self._used + weight <= self._cap and (plain or self._takes(ticket)):
            ticket.state = _IN_FLIGHT
            ticket.admitted_s = self._changed_s = now
            self._used += weight
            if self._fair is not None:
                self._fair.holds(ticket)
            events.append(Admit(ticket, waited_s, 0.0))
        elif len(queue) < (
            self.limits.queue - kept if plain else self._places_for(ticket, kept, now)
        ):
            ticket.state = _QUEUED
            if waited_s or self._promises_differ:
                self._quiet_until_s = -inf
            ticket.awake_mark_s = now - self._paused_total_s - waited_s
            ticket.paused_mark_s = self._paused_total_s
            ticket.promised_s = 0.0
            queue[ticket.number] = ticket
            if not plain:
                self._joined(ticket, now, waited_s, events)
        else:
            self._reject(ticket, Reason.QUEUE_FULL, events)
        return events

    def adopt(self, ticket: Ticket, now: float) -> None:
        """Count a new ticket as in flight: it runs already, let in by an earlier owner."""
        if ticket.state is not _NEW:
            raise TicketError(f"{ticket!r} has arrived before")
        self._arrivals += 1
        ticket.number = self._arrivals
        ticket.arrived_s = ticket.admitted_s = now
        ticket.state = _IN_FLIGHT
        self._used += ticket.weight
        if self._replicas is not None:
            self._replicas.adopt(ticket)
        if self._fair is not None:
            self._fair.holds(ticket)

    def finish(self, ticket: Ticket, now: float) -> Sequence[AdmissionEvent]:
        """End a ticket, wherever it is; returns whom that lets in."""
        state = ticket.state
        if state is _IN_FLIGHT:
            full = (self._used >= self._cap or self._queue) and not self._paused
            full_s = now - self._changed_s if full else None  # as `full_for_s`, without the call
            self.drain_rate.observe(now - ticket.admitted_s, full_s)
            self._used -= ticket.weight
            assert self._used >= 0
            self._changed_s = now
            if not self._plain:
                self._give_back(ticket)
        elif state is _QUEUED:
            del self._queue[ticket.number]
            ticket.paused_s = self._paused_s(now) - ticket.paused_mark_s
        elif state is _COOLING:
            self._let_go(ticket)
        else:
            self.duplicate_finishes += 1
            return _NOTHING
        ticket.state = _GONE
        if not self._queue and not self._cooling:
            return _NOTHING
        return self._free(now)

    def cool(self, ticket: Ticket, now: float) -> Sequence[AdmissionEvent]:
        """Take that a request was broken off, and that its engine has not let go of it yet.

        Whoever is not in flight has nothing to cool: then it is `finish`.
        """
        if ticket.state is _COOLING:
            return _NOTHING
        if ticket.state is not _IN_FLIGHT:
            return self.finish(ticket, now)
        self.drain_rate.observe(now - ticket.admitted_s, self.full_for_s(now))
        ticket.state = _COOLING
        ticket.cooling_since_s = now
        self._cooling[ticket.number] = ticket
        self._used_cooling += ticket.weight
        return self._free(now)

    def expire(self, now: float) -> Sequence[AdmissionEvent]:
        """End everything whose limit has come: slots that cool, then waiters."""
        if not self._queue and not self._cooling:
            return _NOTHING
        events: list[AdmissionEvent] = []
        self._let_time_pass(now, events)
        return events

    def pause(self, limit_s: float, now: float) -> Sequence[AdmissionEvent]:
        """Set capacity to 0 until `resume`; who waits may wait `limit_s` in all while paused.

        Calling it again changes that for newcomers, and for those who were promised less.
        """
        events: list[AdmissionEvent] = []
        self._cool_until(now, events)
        self._expire_before(now, events)  # by the clock that ran until now
        if not self._paused:
            self._paused = True
            self._look()
            self._paused_since_s = now
        self._promise(limit_s)
        self._quiet_until_s = -inf
        self._expire_until(now, events)
        return events

    def resume(self, now: float) -> Sequence[AdmissionEvent]:
        """Give the capacity back: the engine is proven awake."""
        if not self._paused:
            return _NOTHING
        events: list[AdmissionEvent] = []
        self._cool_until(now, events)
        self._expire_before(now, events)  # by the clock that ran until now
        self._paused_total_s += now - self._paused_since_s
        self._changed_s = now
        self._paused = False
        self._look()
        self._quiet_until_s = -inf
        self._expire_before(now, events)  # a shorter queue_timeout_s may have come meanwhile
        self._grant(now, events)
        return events

    def dismiss(
        self, whom: Callable[[Ticket], bool], reason: Reason, now: float
    ) -> Sequence[AdmissionEvent]:
        """Turn away those who wait and are not to; the others keep their places."""
        events: list[AdmissionEvent] = []
        for ticket in [waiter for waiter in self._queue.values() if whom(waiter)]:
            self._send_away(ticket, reason, now, events)
        return events

    def drain(self, now: float) -> Sequence[AdmissionEvent]:
        """Refuse the queue and every newcomer from now on; those in flight run to their end."""
        self._draining = True
        self._look()
        return self.dismiss(lambda _: True, Reason.DRAINING, now)

    def change_limits(self, limits: AdmissionLimits, now: float) -> Sequence[AdmissionEvent]:
        """Take new limits at once. Nobody in flight is touched, nobody who waits loses a place.

        Only a waiter that is now heavier than what fits is turned away: it could never run. To be
        called with the same limits when replicas have come, gone, or are drained no more.
        """
        self._take(limits)
        events: list[AdmissionEvent] = []
        self._cool_until(now, events)
        heaviest = self._heaviest
        for ticket in [waiter for waiter in self._queue.values() if waiter.weight > heaviest]:
            self._send_away(ticket, Reason.BAD_REQUEST, now, events)
        self._expire_before(now, events)
        self._grant(now, events)
        return events

    # How

    @property
    def _heaviest(self) -> float:
        """The greatest weight that can ever run."""
        return self._cap if self._replicas is None else min(self._cap, self._replicas.heaviest)

    def _bar(self, weight: int, barred: Reason | None) -> Reason | None:
        """Return why one of that weight is not let in at all, if so."""
        if self._draining:
            return Reason.DRAINING
        if barred is None and weight > self._heaviest:
            # It could never run, so it must not stand at the head and block everyone behind it.
            return Reason.BAD_REQUEST
        return barred

    def _takes(self, ticket: Ticket) -> bool:
        """Have an engine take a ticket that the cap has room for; False: none has, or may now."""
        return not self._paused and (self._replicas is None or self._replicas.place(ticket))

    def _give_back(self, ticket: Ticket) -> None:
        if self._replicas is not None:
            self._replicas.give_back(ticket)
        if self._fair is not None:
            self._fair.gave_back(ticket)

    def _take(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        self._quiet_until_s = -inf
        self._cap: float = inf if limits.cap is None else limits.cap
        if limits.fair_share is (self._fair is None):
            self._fair = FairShare() if limits.fair_share else None
        self._look()

    def _joined(
        self, ticket: Ticket, now: float, waited_s: float, events: list[AdmissionEvent]
    ) -> None:
        if self._paused:
            ticket.awake_mark_s = self._awake_s(now) - waited_s
            ticket.paused_mark_s = self._paused_s(now)
            ticket.promised_s = self._pause_limit_s
        if self._fair is not None:  # it may be next, and fit where another does not
            self._grant(now, events)

    def _places_for(self, newcomer: Ticket, kept: int, now: float) -> float:
        """Return how many may wait when a newcomer is to be the last: some places are others'."""
        places: float = self.limits.queue
        if self._paused:  # the slots that nobody can have are places too
            return places if self._cap == inf else places + max(0, self._cap - self._used)
        if self._fair is not None:
            others = self._fair.kept_from(newcomer, self._queue.values(), now)
            kept = 0 if others is None else max(kept, others)
        if self._replicas is not None:
            places += self._replicas.places_of_sleepers(self._cap, self._used)
        return places - kept

    def _look(self) -> None:
        """Note whether nothing but the cap and the places decides: then nothing else is asked."""
        self._plain = not (
            self._paused or self._draining or self._replicas is not None or self._fair is not None
        )

    def _reject(self, ticket: Ticket, reason: Reason, events: list[AdmissionEvent]) -> None:
        self.turned_away += 1
        ticket.state = _GONE
        events.append(Rejected(ticket, reason))

    def _let_go(self, ticket: Ticket) -> None:
        del self._cooling[ticket.number]
        self._used -= ticket.weight
        self._give_back(ticket)
        self._used_cooling -= ticket.weight
        assert self._used_cooling >= 0

    def _let_time_pass(self, now: float, events: list[AdmissionEvent]) -> None:
        """Carry out what is due, in the order of one instant."""
        if self._cooling and self._cool_until(now, events):
            self._expire_before(now, events)
            self._grant(now, events)
        if now >= self._quiet_until_s:
            self._expire_until(now, events)
        self._grant(now, events)

    def _free(self, now: float) -> Sequence[AdmissionEvent]:
        """Give on what has come free: a waiter whose limit is this very instant may get it."""
        events: list[AdmissionEvent] = []
        if self._cooling:
            self._cool_until(now, events)
        if now > self._quiet_until_s:
            self._expire_before(now, events)
        if self._used < self._cap:
            self._grant(now, events)
        return events

    def _cool_until(self, now: float, events: list[AdmissionEvent]) -> bool:
        """Free the slots whose limit is now or has passed; tells whether there were any."""
        cooling = self._cooling
        before = len(cooling)
        while cooling and self._cool_s(ticket := next(iter(cooling.values()))) <= now:
            self._let_go(ticket)
            ticket.state = _GONE
            events.append(Cooled(ticket))
        return len(cooling) < before

    def _grant(self, now: float, events: list[AdmissionEvent]) -> None:
        """Let the queue in, head first, until the head does not fit. Nobody overtakes it."""
        queue, plain, fair = self._queue, self._plain, self._fair
        while queue and self._used < self._cap:
            ticket = next(iter(queue.values())) if fair is None else fair.next_of(queue.values())
            weight = ticket.weight
            if self._used + weight > self._cap or not (plain or self._takes(ticket)):
                return
            del queue[ticket.number]
            ticket.state = _IN_FLIGHT
            ticket.admitted_s = self._changed_s = now
            self._used += weight
            if fair is not None:
                fair.holds(ticket)
            paused_s = self._paused_total_s - ticket.paused_mark_s
            events.append(Admit(ticket, now - ticket.arrived_s, paused_s))

    def _expire_until(self, now: float, events: list[AdmissionEvent]) -> None:
        """Turn away those whose limit is now or has passed."""
        queue = self._queue
        while queue and now >= self._quiet_until_s:
            ticket = self._first_to_go()
            deadline_s = self._deadline(ticket)
            if deadline_s > now:
                self._quiet_until_s = deadline_s
                return
            self._send_away(ticket, self._too_late(), now, events)

    def _expire_before(self, now: float, events: list[AdmissionEvent]) -> None:
        """Turn away those whose limit has passed: the timer was late, and a decision stands."""
        queue = self._queue
        while queue and now > self._quiet_until_s:
            ticket = self._first_to_go()
            deadline_s = self._deadline(ticket)
            if deadline_s >= now:
                self._quiet_until_s = deadline_s
                return
            self._send_away(ticket, self._too_late(), now, events)

    def _promise(self, limit_s: float) -> None:
        for ticket in self._queue.values():
            ticket.promised_s = max(ticket.promised_s, limit_s)
        self._promises_differ = any(one.promised_s > limit_s for one in self._queue.values())
        self._pause_limit_s = limit_s

    def _first_to_go(self) -> Ticket:
        """Return whose limit comes first; somebody waits."""
        waiters = self._queue.values()
        if self._paused and self._promises_differ:
            return min(waiters, key=self._deadline)
        return next(iter(waiters))

    def _too_late(self) -> Reason:
        """Return why one goes whose limit has come."""
        return Reason.MODEL_WAKING if self._paused else Reason.QUEUE_TIMEOUT

    def _send_away(
        self, ticket: Ticket, reason: Reason, now: float, events: list[AdmissionEvent]
    ) -> None:
        del self._queue[ticket.number]
        ticket.paused_s = self._paused_s(now) - ticket.paused_mark_s
        self._reject(ticket, reason, events)

    def _cool_s(self, ticket: Ticket) -> float:
        """Return when a ticket has cooled for long enough, whatever its engine says."""
        return ticket.cooling_since_s + self.limits.cooling_limit_s

    def _deadline(self, ticket: Ticket) -> float:
        # The one expression for a deadline: timers are armed at it and expiry is judged by it, so
        # that rounding can never make a timer fire too early and find nothing to do.
        if self._paused:
            left_s = ticket.paused_mark_s + ticket.promised_s - self._paused_total_s
            return self._paused_since_s + left_s
        return ticket.awake_mark_s + self.limits.queue_timeout_s + self._paused_total_s

    def _awake_s(self, now: float) -> float:
        """Return the reading of the clock that stands still while paused."""
        return (self._paused_since_s if self._paused else now) - self._paused_total_s

    def _paused_s(self, now: float) -> float:
        """Return the reading of the clock that runs only while paused."""
        return self._paused_total_s + (now - self._paused_since_s if self._paused else 0.0)
