"""How fast a full gate drains, by what was seen while it was full."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_frontdoor.core.clock import ManualClock
from tornado_frontdoor.core.decisions import Outcome
from tornado_frontdoor.core.drain_rate import DrainRate
from tornado_frontdoor.core.gate import AdmissionLimits, Gate
from tornado_frontdoor.core.request import Ticket, UpstreamKey


def test_nothing_seen_yet_means_a_second_for_each_slot() -> None:
    assert DrainRate().interval_s(6) == 1.0


def test_before_the_gate_was_ever_full_slots_are_held_in_turn() -> None:
    rate = DrainRate()
    for slot_s in (2.0, 4.0):
        rate.observe(slot_s, None)
    assert rate.interval_s(1) == 3.0
    assert rate.interval_s(6) == pytest.approx(0.5)


def test_what_was_seen_while_it_was_full_soon_outweighs_that() -> None:
    rate = DrainRate()
    for _ in range(100):
        rate.observe(60.0, 0.5)  # in turn that would be 10 s at a cap of 6
    assert rate.interval_s(6) == pytest.approx(0.5, rel=1.3)
    assert rate.interval_s(6) < 1.2


def test_the_newest_32_ends_count() -> None:
    rate = DrainRate()
    for _ in range(200):
        rate.observe(1.0, 10.0)
    for _ in range(200):
        rate.observe(1.0, 1.0)
    assert rate.interval_s(1) == pytest.approx(1.0, rel=0.05)


def test_an_engine_that_ends_nothing_is_believed_slower_by_the_minute() -> None:
    rate = DrainRate()
    assert rate.interval_s(6) < rate.interval_s(6, 30.0) < rate.interval_s(6, 300.0)


def _gate(cap: int, queue: int) -> tuple[Gate, ManualClock]:
    clock = ManualClock()
    limits = AdmissionLimits(cap=cap, queue=queue, queue_timeout_s=1e6)
    return Gate(UpstreamKey("reasoning"), limits, clock, Random(1)), clock


def test_a_gate_counts_only_the_time_for_which_all_slots_are_taken() -> None:
    gate, clock = _gate(cap=2, queue=0)
    for _ in range(200):
        first, second = Ticket(), Ticket()
        gate.arrive(first)
        clock.advance(50.0)  # one slot is free: this says nothing of a full gate
        gate.arrive(second)
        clock.advance(4.0)
        gate.finish(first, Outcome.SERVED)
        clock.advance(50.0)
        gate.finish(second, Outcome.SERVED)
    assert gate.drain_interval_s == pytest.approx(4.0, rel=0.8)
    assert gate.drain_interval_s < 8.0  # by the slots it would be 27 s


@given(st.integers(1, 8), st.floats(0.01, 100.0), st.integers(0, 6))
def test_a_full_gate_drains_at_the_rate_at_which_it_does(
    cap: int, slot_s: float, queue: int
) -> None:
    gate, clock = _gate(cap, queue + 1)
    inside = [Ticket() for _ in range(cap + queue + 1)]
    for number, ticket in enumerate(inside):
        gate.arrive(ticket)
        if number < cap:
            clock.advance(slot_s / cap)
    for number in range(300):
        gate.finish(inside[number], Outcome.SERVED)
        inside.append(Ticket())
        gate.arrive(inside[-1])
        clock.advance(slot_s / cap)
    assert gate.drain_interval_s == pytest.approx(slot_s / cap, rel=0.1)
