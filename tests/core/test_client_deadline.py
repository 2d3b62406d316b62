"""Who would leave before their turn is refused at once, and only where that is known well."""

from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_frontdoor.core.clock import ManualClock
from tornado_frontdoor.core.decisions import Outcome, Reason, Refusal, Refuse
from tornado_frontdoor.core.gate import AdmissionLimits, Gate
from tornado_frontdoor.core.request import CallerFacts, Ticket, TicketState, UpstreamKey


class Scene:
    """A gate of one slot that has drained one request each second, and is full."""

    def __init__(self, queue: int = 20, *, seen: int = 40, heeds: bool = True) -> None:
        self.clock = ManualClock()
        limits = AdmissionLimits(
            cap=1, queue=queue, queue_timeout_s=1e6, return_places=0, heeds_patience=heeds
        )
        self.gate = Gate(UpstreamKey("reasoning"), limits, self.clock, Random(1))
        self.inside = [self.come()]
        for _ in range(seen):
            self.end_one()
        self.come()

    def come(self, patience_s: float = inf) -> Ticket:
        """Bring somebody who waits for that long."""
        ticket = Ticket()
        ticket.caller = CallerFacts(None, patience_s)
        self.refusal: Refusal | None = None
        for decision in self.gate.arrive(ticket):
            if isinstance(decision, Refuse):
                self.refusal = decision.refusal
        return ticket

    def end_one(self) -> None:
        """Let a second pass, after which the next one is let in."""
        self.inside.append(self.come())
        self.clock.advance(1.0)
        self.gate.finish(self.inside.pop(0), Outcome.SERVED)

    def line_up(self, count: int) -> None:
        """Let some wait who wait for ever."""
        for _ in range(count):
            self.come()


def test_who_would_leave_before_their_turn_is_refused_at_once() -> None:
    scene = Scene()
    scene.line_up(15)
    assert scene.come(3.0).state is TicketState.GONE
    assert scene.refusal is not None
    assert scene.refusal.reason is Reason.CLIENT_DEADLINE
    assert "3 s" in scene.refusal.detail
    assert scene.refusal.retry_after_s == pytest.approx(18.0, rel=0.1)
    assert scene.come(30.0).state is TicketState.QUEUED
    assert scene.come().state is TicketState.QUEUED


def test_who_can_just_make_it_may_wait() -> None:
    scene = Scene()
    scene.line_up(7)  # the ninth in line waits 9 s, and 6 s with one chance in six
    assert scene.come(7.0).state is TicketState.QUEUED
    assert scene.come(5.0).state is TicketState.GONE


def test_a_free_slot_is_for_whoever_comes() -> None:
    scene = Scene()
    for ticket in [*scene.gate.waiting(), *scene.inside]:
        if ticket.state is not TicketState.GONE:
            scene.gate.finish(ticket, Outcome.SERVED)
    assert (scene.gate.in_flight, scene.gate.queued) == (0, 0)
    assert scene.come(0.001).state is TicketState.IN_FLIGHT


def test_a_full_queue_is_called_full() -> None:
    scene = Scene(queue=4)
    scene.line_up(4)
    scene.come(0.001)
    assert scene.refusal is not None
    assert scene.refusal.reason is Reason.QUEUE_FULL


def test_where_slots_are_shared_by_key_only_its_own_line_is_before_it() -> None:
    scene = Scene()
    limits = replace(scene.gate.limits, fair_share=True)
    scene.gate.change_limits(limits)
    scene.line_up(15)
    for key, refused in (("", True), ("b", False)):
        ticket = Ticket()
        ticket.caller = CallerFacts(None, 3.0, key)
        decisions = scene.gate.arrive(ticket)
        assert any(isinstance(one, Refuse) for one in decisions) is refused


@pytest.mark.parametrize(("seen", "refused"), [(0, False), (5, False), (40, True)])
def test_nobody_is_refused_by_an_estimate_that_is_young(seen: int, *, refused: bool) -> None:
    scene = Scene(seen=seen)
    scene.line_up(15)
    scene.come(0.001)
    assert (scene.refusal is not None) is refused


def test_it_can_be_turned_off() -> None:
    scene = Scene(heeds=False)
    scene.line_up(15)
    assert scene.come(0.001).state is TicketState.QUEUED


@given(st.integers(0, 19), st.floats(0.001, 100.0), st.integers(0, 60))
def test_only_those_are_refused_who_would_wait_too_long_and_nobody_else_is_touched(
    ahead: int, patience_s: float, seen: int
) -> None:
    scene = Scene(queue=25, seen=seen)
    scene.line_up(ahead)
    before = scene.gate.waiting()
    expected_s = (len(before) + 1) * scene.gate.drain_interval_s
    ticket = scene.come(patience_s)
    if ticket.state is TicketState.GONE:
        assert expected_s > patience_s
        assert scene.refusal is not None
        assert scene.refusal.retry_after_s is not None
        assert scene.refusal.retry_after_s >= min(expected_s - patience_s, 50.0)
        assert scene.gate.waiting() == before
    else:
        assert scene.gate.waiting() == (*before, ticket)
