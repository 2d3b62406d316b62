"""The line before one upstream: every move of a ticket, every tie, both budgets, by hand."""

import heapq
from collections import Counter
from math import inf, nextafter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_line import Seen, seen

from tornado_frontdoor.core.admission import AdmissionController, AdmissionLimits, TicketError
from tornado_frontdoor.core.decisions import Admit, Reason
from tornado_frontdoor.core.request import Ticket, TicketState

QUEUED, IN_FLIGHT, GONE = TicketState.QUEUED, TicketState.IN_FLIGHT, TicketState.GONE


def line(cap: int | None = 1, queue: int = 8, timeout_s: float = 2.0) -> AdmissionController:
    return AdmissionController(limits(cap, queue, timeout_s))


def limits(cap: int | None = 1, queue: int = 8, timeout_s: float = 2.0) -> AdmissionLimits:
    return AdmissionLimits(cap=cap, queue=queue, queue_timeout_s=timeout_s)


def come(line: AdmissionController, now: float, weight: int = 1) -> Ticket:
    ticket = Ticket(weight)
    line.arrive(ticket, now)
    return ticket


def admitted(number: int, waited_s: float = 0.0, paused_s: float = 0.0) -> Seen:
    return Seen(number, None, waited_s, paused_s)


class TestEveryMoveOfATicket:
    """The table of `core/admission.py`, state by state."""

    def test_arrives_into_flight_the_line_or_nowhere(self) -> None:
        full = line(cap=1, queue=1)
        assert [come(full, 0.0).state for _ in range(3)] == [IN_FLIGHT, QUEUED, GONE]

    @pytest.mark.parametrize("state", [QUEUED, IN_FLIGHT, GONE])
    def test_arriving_twice_is_the_drivers_bug_and_changes_nothing(
        self, state: TicketState
    ) -> None:
        full = line(cap=1, queue=1)
        ticket = next(t for t in [come(full, 0.0) for _ in range(3)] if t.state is state)
        with pytest.raises(TicketError, match="arrived before"):
            full.arrive(ticket, 1.0)
        assert (ticket.state, full.in_flight, full.queued) == (state, 1, 1)

    @pytest.mark.parametrize(
        ("state", "after", "decided", "duplicates"),
        [
            (TicketState.NEW, TicketState.NEW, [], 1),
            (QUEUED, GONE, [], 0),
            (IN_FLIGHT, GONE, [admitted(2, 1.0)], 0),
            (GONE, GONE, [], 1),
        ],
    )
    def test_finish_is_the_one_exit_from_anywhere(
        self, state: TicketState, after: TicketState, decided: list[Seen], duplicates: int
    ) -> None:
        """F25, F31: one way out for every end; a second time changes nothing and is counted."""
        full = line(cap=1, queue=1)
        tickets = [Ticket(), *(come(full, 0.0) for _ in range(3))]
        ticket = next(t for t in tickets if t.state is state)
        assert seen(full.finish(ticket, 1.0)) == decided
        assert ticket.state is after
        assert full.duplicate_finishes == duplicates

    @pytest.mark.parametrize(
        ("event", "decided"),
        [
            ("resume", [admitted(2, 1.0, 1.0)]),
            ("expire", [Seen(2, Reason.MODEL_WAKING)]),
            ("drain", [Seen(2, Reason.DRAINING)]),
        ],
    )
    def test_what_happens_to_all_touches_only_those_who_wait(
        self, event: str, decided: list[Seen]
    ) -> None:
        """F19: whoever is in flight stays there, however long it takes."""
        held = line(cap=2, queue=1)
        flying = come(held, 0.0)
        held.pause(1.0, 0.0)
        waiting, gone = come(held, 0.0), come(held, 0.0, weight=3)
        if event == "drain":
            moves = held.drain(7.0)
        else:
            moves = held.resume(1.0) if event == "resume" else held.expire(1.0)
        assert seen(moves) == decided
        assert (flying.state, gone.state) == (IN_FLIGHT, GONE)
        assert waiting.state is (IN_FLIGHT if event == "resume" else GONE)

    def test_a_flight_is_never_aged_out(self) -> None:
        """F19, F1: time alone frees no slot, so nobody else gets one."""
        busy = line(cap=1, queue=1, timeout_s=1e9)
        come(busy, 0.0)
        come(busy, 0.0)
        assert seen(busy.expire(864_000.0)) == []
        assert (busy.in_flight, busy.queued) == (1, 1)

    def test_a_refused_ticket_takes_nothing(self) -> None:
        """F12, F30: gauges are read from what is there, also while everyone is refused."""
        full = line(cap=1, queue=0)
        first = come(full, 0.0)
        for _ in range(100):
            assert come(full, 0.0).state is GONE
        assert (full.in_flight, full.queued) == (1, 0)
        full.finish(first, 1.0)
        assert (full.in_flight, full.queued) == (0, 0)


class TestOneInstant:
    """Completions, departures, expiries, arrivals: in this order."""

    def test_a_slot_that_comes_free_on_the_limit_is_for_the_waiter(self) -> None:
        """F28: either it is admitted or it is expired, and one place decides which."""
        busy = line(timeout_s=2.0)
        flying, _ = come(busy, 0.0), come(busy, 0.0)
        assert seen(busy.finish(flying, 2.0)) == [admitted(2, 2.0)]
        assert seen(busy.expire(2.0)) == []

    def test_a_slot_that_comes_free_after_the_limit_is_not(self) -> None:
        """F28, F32: the timer is late, the limit holds."""
        busy = line(timeout_s=2.0)
        flying, _ = come(busy, 0.0), come(busy, 0.0)
        assert seen(busy.finish(flying, 2.5)) == [Seen(2, Reason.QUEUE_TIMEOUT)]

    def test_an_arrival_on_the_limit_comes_after_the_expiry(self) -> None:
        full = line(queue=1, timeout_s=2.0)
        come(full, 0.0)
        come(full, 0.0)
        newcomer = Ticket()
        assert seen(full.arrive(newcomer, 2.0)) == [Seen(2, Reason.QUEUE_TIMEOUT)]
        assert newcomer.state is QUEUED

    def test_a_departure_on_the_limit_is_a_departure(self) -> None:
        """F22: nobody is refused who went away."""
        busy = line(timeout_s=2.0)
        come(busy, 0.0)
        waiting = come(busy, 0.0)
        assert seen(busy.finish(waiting, 2.0)) == []
        assert seen(busy.expire(2.0)) == []

    @pytest.mark.parametrize("how", ["resume", "more slots", "heavy head evicted"])
    def test_whatever_frees_a_slot_on_the_limit_frees_it_for_the_waiter(self, how: str) -> None:
        busy = line(cap=1 if how == "more slots" else 3, timeout_s=2.0)
        if how == "resume":
            busy.pause(2.0, 0.0)
            come(busy, 0.0)
            assert seen(busy.resume(2.0)) == [admitted(1, 2.0, 2.0)]
            return
        come(busy, 0.0)
        if how == "heavy head evicted":
            come(busy, 0.0, weight=3)
        come(busy, 0.0)
        changed = seen(busy.change_limits(limits(cap=2), 2.0))
        assert changed[-1].reason is None
        assert changed[-1].waited_s == 2.0

    def test_time_that_frees_the_head_comes_before_the_newcomer(self) -> None:
        """F61: the expiry of a heavy head makes way, and then there is a place in the queue."""
        busy = line(cap=2, queue=2, timeout_s=2.0)
        come(busy, 0.0)
        come(busy, 0.0, weight=2)
        come(busy, 1.0)
        newcomer = Ticket()
        assert seen(busy.arrive(newcomer, 2.0)) == [Seen(2, Reason.QUEUE_TIMEOUT), admitted(3, 1.0)]
        assert newcomer.state is QUEUED

    def test_granted_and_given_up_in_one_instant_loses_no_slot(self) -> None:
        """F44, F45: the driver finishes whom it has, wherever the gate has put it by then."""
        busy = line()
        first, second, third = come(busy, 0.0), come(busy, 0.0), come(busy, 0.0)
        assert seen(busy.finish(first, 1.0)) == [admitted(2, 1.0)]
        assert seen(busy.finish(second, 1.0)) == [admitted(3, 1.0)]
        assert busy.finish(third, 1.0) == ()
        assert (busy.in_flight, busy.queued) == (0, 0)


class TestOrder:
    """First come, first admitted, by weight."""

    def test_one_freed_slot_admits_one(self) -> None:
        """F5, F24: counted when granted, so the next look sees it taken."""
        busy = line()
        tickets = [come(busy, 0.0) for _ in range(4)]
        assert seen(busy.finish(tickets[0], 1.0)) == [admitted(2, 1.0)]
        assert (busy.in_flight, busy.queued) == (1, 2)

    def test_a_newcomer_passes_nobody_even_where_it_fits(self) -> None:
        """F53: order is arrival, from the first to the last."""
        busy = line(cap=2)
        first = come(busy, 0.0)
        come(busy, 0.0, weight=2)
        small = come(busy, 0.0)
        assert small.state is QUEUED
        assert seen(busy.finish(first, 1.0)) == [admitted(2, 1.0)]
        assert [ticket.number for ticket in busy.waiting()] == [3]

    def test_a_heavy_head_waits_for_all_its_slots(self) -> None:
        """F42: a request for many sequences takes as many slots."""
        busy = line(cap=3)
        flying = [come(busy, 0.0) for _ in range(3)]
        come(busy, 0.0, weight=2)
        assert seen(busy.finish(flying[0], 1.0)) == []
        assert seen(busy.finish(flying[1], 1.0)) == [admitted(4, 1.0)]
        assert busy.in_flight == 3

    def test_a_heavy_end_lets_several_in(self) -> None:
        """F26: the head fits, so it goes, in the same step, and so does the next."""
        busy = line(cap=3)
        heavy = come(busy, 0.0, weight=3)
        for _ in range(4):
            come(busy, 0.0)
        assert [one.number for one in seen(busy.finish(heavy, 1.0))] == [2, 3, 4]

    def test_a_heavy_leaver_makes_way_for_those_behind_it(self) -> None:
        """F26: also when it only waited."""
        busy = line(cap=2)
        come(busy, 0.0)
        heavy, _ = come(busy, 0.0, weight=2), come(busy, 0.0)
        assert seen(busy.finish(heavy, 1.0)) == [admitted(3, 1.0)]

    def test_heavier_than_the_cap_is_refused_at_once(self) -> None:
        empty = line(cap=2)
        assert seen(empty.arrive(Ticket(3), 0.0)) == [Seen(1, Reason.BAD_REQUEST)]

    def test_without_a_cap_nobody_waits_for_a_slot(self) -> None:
        endless = line(cap=None, queue=0)
        assert all(come(endless, 0.0, weight=5).state is IN_FLIGHT for _ in range(50))
        assert endless.in_flight == 250

    def test_a_line_without_places_still_admits(self) -> None:
        assert come(line(queue=0), 0.0).state is IN_FLIGHT

    def test_leaving_from_the_middle_gives_the_place_back_at_once(self) -> None:
        """F25: no zombie is counted."""
        full = line(queue=3)
        come(full, 0.0)
        middle = [come(full, 0.0) for _ in range(3)][1]
        full.finish(middle, 0.0)
        assert come(full, 0.0).state is QUEUED
        assert [ticket.number for ticket in full.waiting()] == [2, 4, 5]


class TestTwoBudgets:
    """One line, two clocks, one of them running."""

    def test_the_time_of_a_hold_is_not_counted_against_the_queue_timeout(self) -> None:
        busy = line(timeout_s=2.0)
        come(busy, 0.0)
        come(busy, 0.0)
        busy.pause(30.0, 1.0)
        assert seen(busy.expire(21.0)) == []
        assert seen(busy.resume(21.0)) == []
        assert busy.next_deadline() == 22.0
        assert seen(busy.expire(22.0)) == [Seen(2, Reason.QUEUE_TIMEOUT)]

    def test_time_awake_is_not_counted_against_the_hold_limit(self) -> None:
        busy = line(timeout_s=5.0)
        come(busy, 0.0)
        come(busy, 0.0)
        busy.pause(3.0, 4.0)
        assert busy.next_deadline() == 7.0

    def test_several_holds_add_up(self) -> None:
        busy = line(timeout_s=5.0)
        flying = come(busy, 0.0)
        come(busy, 0.0)
        for start_s in (1.0, 3.0):
            busy.pause(3.0, start_s)
            busy.resume(start_s + 1.0)
        busy.pause(3.0, 5.0)
        assert busy.next_deadline() == 6.0
        busy.resume(5.5)
        assert seen(busy.finish(flying, 5.5)) == [admitted(2, 5.5, 2.5)]

    def test_a_newcomer_owes_nothing_for_the_time_before_it(self) -> None:
        held = line()
        held.pause(10.0, 0.0)
        come(held, 4.0)
        assert held.next_deadline() == 14.0
        held.resume(6.0)
        late = come(held, 6.5)
        assert held.next_deadline() == 8.5
        assert (held.in_flight, late.state) == (1, QUEUED)

    def test_a_hold_ends_for_those_who_wait_when_its_limit_comes(self) -> None:
        """F16: nobody waits for ever for an engine that does not come."""
        held = line(cap=2, queue=2)
        held.pause(30.0, 0.0)
        for start_s in (0.0, 0.0, 10.0):
            come(held, start_s)
        assert held.next_deadline() == 30.0
        assert [one.number for one in seen(held.expire(30.0))] == [1, 2]
        assert held.next_deadline() == 40.0

    @pytest.mark.parametrize(("limit_s", "deadline_s"), [(300.0, 300.0), (inf, None)])
    def test_a_longer_hold_is_for_those_who_wait_too(
        self, limit_s: float, deadline_s: float | None
    ) -> None:
        held = line()
        held.pause(30.0, 0.0)
        come(held, 0.0)
        held.pause(limit_s, 3.0)
        assert held.next_deadline() == deadline_s

    def test_who_leaves_in_a_hold_is_known_to_have_been_held(self) -> None:
        busy, caller = line(), Ticket()
        come(busy, 0.0)
        busy.arrive(caller, 1.0)
        busy.pause(30.0, 3.0)
        busy.finish(caller, 7.0)
        assert caller.paused_s == 4.0

    def test_whom_a_drain_or_another_cap_sends_away_is_known_to_have_been_held(self) -> None:
        held, light, heavy = line(cap=4, queue=9), Ticket(), Ticket(3)
        held.pause(30.0, 1.0)
        for ticket in (light, heavy):
            held.arrive(ticket, 2.0)
        held.change_limits(AdmissionLimits(cap=2, queue=9, queue_timeout_s=30), 5.0)
        held.drain(8.0)
        assert (heavy.paused_s, light.paused_s) == (3.0, 6.0)

    def test_a_shorter_hold_is_for_newcomers_and_who_waits_keeps_what_was_promised(self) -> None:
        held = line(cap=2, queue=2)
        held.pause(25.0, 0.0)
        come(held, 0.0)
        held.pause(2.0, 5.0)
        come(held, 6.0)
        assert held.next_deadline() == 8.0
        assert seen(held.expire(8.0)) == [Seen(2, Reason.MODEL_WAKING)]
        come(held, 9.0)
        assert [one.number for one in seen(held.expire(11.0))] == [3]
        assert held.next_deadline() == 25.0

    def test_what_was_used_up_by_earlier_holds_is_used_up(self) -> None:
        busy = line(timeout_s=30.0)
        come(busy, 0.0)
        come(busy, 0.0)
        busy.pause(3.0, 0.0)
        busy.resume(2.5)
        busy.pause(2.0, 5.0)
        assert busy.next_deadline() == 5.5, "three were promised"

    def test_holding_settles_by_the_clock_that_ran_until_then(self) -> None:
        """The timer is late: who was past the limit goes, and does not wait out a hold as well."""
        busy = line(timeout_s=2.0)
        come(busy, 0.0)
        come(busy, 0.0)
        come(busy, 1.0)
        assert seen(busy.pause(30.0, 2.5)) == [Seen(2, Reason.QUEUE_TIMEOUT)]
        assert busy.queued == 1

    def test_resuming_settles_by_the_clock_that_ran_until_then(self) -> None:
        held = line(cap=2)
        held.pause(3.0, 0.0)
        come(held, 0.0)
        come(held, 1.0)
        assert seen(held.resume(3.5)) == [Seen(1, Reason.MODEL_WAKING), admitted(2, 2.5, 2.5)]

    def test_a_shorter_queue_timeout_set_during_a_hold_holds_after_it(self) -> None:
        busy = line(cap=1, timeout_s=5.0)
        come(busy, 0.0)
        come(busy, 0.0)
        busy.pause(30.0, 2.0)
        busy.change_limits(limits(cap=2, timeout_s=1.0), 3.0)
        assert seen(busy.resume(4.0)) == [Seen(2, Reason.QUEUE_TIMEOUT)]

    def test_resuming_what_is_not_held_does_nothing(self) -> None:
        busy = line()
        come(busy, 0.0)
        come(busy, 0.0)
        assert busy.resume(1.0) == ()
        assert busy.next_deadline() == 2.0


class TestHeld:
    """Capacity 0: everyone waits."""

    def test_everyone_waits_under_the_same_bound(self) -> None:
        """F37, F40: one limit for all states of an engine."""
        held = line(cap=6, queue=8)
        held.pause(30.0, 0.0)
        tickets = [come(held, 0.0) for _ in range(40)]
        assert Counter(ticket.state for ticket in tickets) == {QUEUED: 14, GONE: 26}
        assert [one.number for one in seen(held.resume(2.0))] == [1, 2, 3, 4, 5, 6]
        assert (held.in_flight, held.queued) == (6, 8)

    def test_the_slots_of_those_still_in_flight_are_no_places(self) -> None:
        held = line(cap=2, queue=1)
        flying = come(held, 0.0)
        held.pause(30.0, 0.0)
        assert [come(held, 0.0).state for _ in range(3)] == [QUEUED, QUEUED, GONE]
        assert seen(held.finish(flying, 1.0)) == []
        assert [come(held, 1.0).state for _ in range(2)] == [QUEUED, GONE]

    def test_without_a_cap_the_line_is_the_bound(self) -> None:
        held = line(cap=None, queue=3)
        held.pause(30.0, 0.0)
        assert [come(held, 0.0).state for _ in range(4)] == [QUEUED, QUEUED, QUEUED, GONE]
        assert len(held.resume(1.0)) == 3

    def test_a_departure_lets_nobody_in(self) -> None:
        held = line()
        held.pause(30.0, 0.0)
        first = come(held, 0.0)
        come(held, 0.0)
        assert seen(held.finish(first, 1.0)) == []
        assert held.in_flight == 0

    def test_says_that_it_is(self) -> None:
        held = line()
        told = [held.paused]
        held.pause(1.0, 0.0)
        told.append(held.paused)
        held.resume(0.5)
        assert [*told, held.paused] == [False, True, False]


class TestDrain:
    """The front door goes away."""

    def test_refuses_the_line_in_its_order_and_every_newcomer(self) -> None:
        busy = line()
        flying = come(busy, 0.0)
        come(busy, 0.0)
        come(busy, 0.0)
        assert seen(busy.drain(9.0)) == [Seen(2, Reason.DRAINING), Seen(3, Reason.DRAINING)]
        assert busy.draining
        assert seen(busy.arrive(Ticket(), 1.0)) == [Seen(4, Reason.DRAINING)]
        assert flying.state is IN_FLIGHT
        assert seen(busy.finish(flying, 5.0)) == []
        assert seen(busy.arrive(Ticket(), 6.0)) == [Seen(5, Reason.DRAINING)]


class TestNewLimits:
    """An operator changes the configuration."""

    def test_fewer_slots_end_nobody_and_admit_nobody_until_they_fit(self) -> None:
        """F14, F27: in force at once, and the counts are those of the same tickets."""
        busy = line(cap=3)
        flying = [come(busy, 0.0) for _ in range(3)]
        come(busy, 0.0)
        assert seen(busy.change_limits(limits(cap=1), 1.0)) == []
        assert busy.in_flight == 3
        assert seen(busy.finish(flying[0], 1.0)) == []
        assert seen(busy.finish(flying[1], 1.0)) == []
        assert seen(busy.finish(flying[2], 1.0)) == [admitted(4, 1.0)]

    def test_more_slots_are_given_out_at_once(self) -> None:
        """F14."""
        busy = line(cap=1)
        for _ in range(4):
            come(busy, 0.0)
        assert [one.number for one in seen(busy.change_limits(limits(cap=3), 1.0))] == [2, 3]

    def test_a_shorter_line_takes_nobodys_place(self) -> None:
        busy = line(queue=3)
        flying = come(busy, 0.0)
        for _ in range(3):
            come(busy, 0.0)
        assert seen(busy.change_limits(limits(queue=1), 1.0)) == []
        assert busy.queued == 3
        busy.finish(flying, 1.0)
        assert come(busy, 1.0).state is GONE

    def test_who_can_never_run_any_more_goes(self) -> None:
        busy = line(cap=3)
        flying = [come(busy, 0.0) for _ in range(3)]
        come(busy, 0.0, weight=3)
        come(busy, 0.0)
        assert seen(busy.change_limits(limits(cap=2), 1.0)) == [Seen(4, Reason.BAD_REQUEST)]
        busy.finish(flying[0], 1.0)
        assert seen(busy.finish(flying[1], 1.0)) == [admitted(5, 1.0)]

    def test_a_shorter_timeout_counts_from_the_arrival(self) -> None:
        busy = line(timeout_s=30.0)
        come(busy, 0.0)
        come(busy, 0.0)
        come(busy, 4.0)
        moves = seen(busy.change_limits(limits(timeout_s=3.0), 5.0))
        assert moves == [Seen(2, Reason.QUEUE_TIMEOUT)]
        assert busy.next_deadline() == 7.0

    @pytest.mark.parametrize(
        ("cap", "queue", "timeout_s"), [(0, 8, 1.0), (-1, 8, 1.0), (1, -1, 1.0), (1, 8, 0.0)]
    )
    def test_limits_that_cannot_work_are_not_taken(
        self, cap: int, queue: int, timeout_s: float
    ) -> None:
        """F35: a cap of 0 is no way to stop; a hold is."""
        with pytest.raises(ValueError, match="must be"):
            limits(cap, queue, timeout_s)

    def test_a_timeout_that_is_no_number_is_not_taken(self) -> None:
        with pytest.raises(ValueError, match="queue_timeout_s"):
            limits(timeout_s=float("nan"))


INSTANT_S = st.floats(0, 1e7, allow_nan=False)
SPAN_S = st.floats(1e-6, 1e4, allow_nan=False)


class TestNextDeadline:
    """What the one timer is armed at."""

    def test_is_none_while_nobody_waits(self) -> None:
        assert line().next_deadline() is None

    @given(INSTANT_S, SPAN_S, SPAN_S, SPAN_S, st.lists(SPAN_S, max_size=4))
    def test_is_the_first_instant_at_which_there_is_something_to_do(
        self, start_s: float, timeout_s: float, hold_s: float, gap_s: float, holds: list[float]
    ) -> None:
        """F32: with 2.0 + 1.0 in one place and 3.0000000000000004 in another a timer would spin."""
        busy = line(timeout_s=timeout_s)
        come(busy, start_s)
        now = start_s
        for span_s in holds:
            now += gap_s
            busy.pause(inf, now)
            now += span_s
            busy.resume(now)
        come(busy, now)
        come(busy, now + gap_s / 2)
        if hold_s > gap_s:
            busy.pause(hold_s, now + gap_s / 2)
        queued = busy.queued
        while queued:
            deadline_s = busy.next_deadline()
            assert deadline_s is not None
            assert seen(busy.expire(nextafter(deadline_s, -inf))) == []
            assert busy.expire(deadline_s)
            assert busy.queued < queued
            queued = busy.queued

    @given(INSTANT_S, SPAN_S, st.lists(SPAN_S, min_size=1, max_size=6))
    def test_never_goes_back_along_the_line(
        self, start_s: float, timeout_s: float, gaps: list[float]
    ) -> None:
        busy = line(timeout_s=timeout_s)
        come(busy, start_s)
        now = start_s
        for gap_s in gaps:
            come(busy, now)
            now = min(now + gap_s, start_s + timeout_s / 2)
        deadlines: list[float] = []
        for ticket in busy.waiting():
            deadline_s = busy.next_deadline()
            assert deadline_s is not None
            deadlines.append(deadline_s)
            busy.finish(ticket, now)
        assert deadlines == sorted(deadlines)


def burst(timeout_s: float, hold_s: float = 2.0, size: int = 40) -> dict[float, Counter[str]]:
    """Return what happened when, after `size` requests came at 0 that run `hold_s` each.

    Completions come first in an instant, then expiries.
    """
    gate = line(cap=6, queue=8, timeout_s=timeout_s)
    happened: dict[float, Counter[str]] = {}
    ends: list[tuple[float, int, Ticket]] = []

    def note(now: float, ticket: Ticket, moves: list[Seen], tickets: dict[int, Ticket]) -> None:
        tickets[ticket.number] = ticket
        for one in moves:
            if one.reason is None:
                heapq.heappush(ends, (now + hold_s, one.number, tickets[one.number]))
            else:
                happened.setdefault(now, Counter())["503"] += 1

    tickets: dict[int, Ticket] = {}
    for _ in range(size):
        ticket = Ticket()
        note(0.0, ticket, seen(gate.arrive(ticket, 0.0)), tickets)
    while ends or gate.queued:
        deadline_s = gate.next_deadline()
        if ends and (deadline_s is None or ends[0][0] <= deadline_s):
            now, _, ticket = heapq.heappop(ends)
            happened.setdefault(now, Counter())["200"] += 1
            note(now, ticket, seen(gate.finish(ticket, now)), tickets)
        else:
            assert deadline_s is not None
            note(deadline_s, ticket, seen(gate.expire(deadline_s)), tickets)
        assert gate.in_flight <= 6
        assert gate.queued <= 8
    return happened


@pytest.mark.parametrize(
    ("timeout_s", "happened"),
    [
        (1.0, {0.0: {"503": 26}, 1.0: {"503": 8}, 2.0: {"200": 6}}),
        (2.0, {0.0: {"503": 26}, 2.0: {"200": 6, "503": 2}, 4.0: {"200": 6}}),
        (3.0, {0.0: {"503": 26}, 2.0: {"200": 6}, 3.0: {"503": 2}, 4.0: {"200": 6}}),
        (4.0, {0.0: {"503": 26}, 2.0: {"200": 6}, 4.0: {"200": 6}, 6.0: {"200": 2}}),
        (5.0, {0.0: {"503": 26}, 2.0: {"200": 6}, 4.0: {"200": 6}, 6.0: {"200": 2}}),
        (30.0, {0.0: {"503": 26}, 2.0: {"200": 6}, 4.0: {"200": 6}, 6.0: {"200": 2}}),
    ],
)
def test_forty_at_once_before_six_slots_and_eight_places(
    timeout_s: float, happened: dict[float, dict[str, int]]
) -> None:
    """F1: two seconds each; worked out by hand, with a slot before a limit in one instant."""
    assert burst(timeout_s) == happened


def test_tells_how_long_a_ticket_waited_and_how_much_of_it_was_held() -> None:
    busy = line(timeout_s=10.0)
    flying = come(busy, 1.0)
    come(busy, 2.0)
    busy.pause(30.0, 3.0)
    busy.resume(7.0)
    (move,) = busy.finish(flying, 8.0)
    assert isinstance(move, Admit)
    assert (move.waited_s, move.paused_s) == (6.0, 4.0)
    assert move.ticket.admitted_s == 8.0


# A gate that is taken over from an earlier owner


def test_what_is_adopted_takes_its_slots_even_above_the_cap() -> None:
    controller = AdmissionController(AdmissionLimits(cap=2, queue=4, queue_timeout_s=30))
    running = [Ticket() for _ in range(3)]
    for ticket in running:
        controller.adopt(ticket, 0.0)
    waiter = Ticket()
    assert controller.arrive(waiter, 0.0) == []
    assert controller.in_flight == 3
    assert controller.finish(running[0], 1.0) == []
    [admitted] = controller.finish(running[1], 2.0)
    assert admitted.ticket is waiter
    with pytest.raises(TicketError):
        controller.adopt(running[2], 3.0)


def test_what_was_waited_elsewhere_counts_against_the_limit_and_is_told() -> None:
    controller = AdmissionController(AdmissionLimits(cap=1, queue=4, queue_timeout_s=30))
    holder = Ticket()
    controller.adopt(holder, 100.0)
    first, second = Ticket(), Ticket()
    controller.arrive(first, 100.0, waited_s=25.0)
    controller.arrive(second, 100.0, waited_s=10.0)
    assert controller.next_deadline() == 105.0
    [refused] = controller.expire(105.0)
    assert refused.ticket is first
    [admitted] = controller.finish(holder, 106.0)
    assert (admitted.ticket, admitted.waited_s) == (second, 16.0)
