"""What was learned of the memory that an engine takes."""

from dataclasses import replace

import pytest
from test_gpu_room import ONE_GPU, A, B, C, asks, engine

from tornado_frontdoor.core.gpu_ledger import GpuLedger
from tornado_frontdoor.core.gpu_occupant import Moving, Occupant
from tornado_frontdoor.core.gpu_room import room_of
from tornado_frontdoor.core.gpu_sizes import STEP_GIB, GpuSizes


def waking(key, **facts: object) -> Occupant:
    return engine(key, moving=Moving.WAKING, level=1, **facts)


def test_a_wake_that_ran_out_needs_more_than_was_left_beside_it():
    sizes = GpuSizes().ran_out(8.0, 8.0, free_gib=4.0, more_gib=8.0)
    assert sizes.awake_gib(8.0) == 8.0 + 4.0 + STEP_GIB
    again = sizes.ran_out(12.5, 8.0, free_gib=-1.0, more_gib=8.0)
    assert again.awake_gib(8.0) == 8.0 + 4.0 + 2 * STEP_GIB


def test_nothing_is_learned_where_nobody_else_could_make_room():
    assert GpuSizes().ran_out(8.0, 8.0, free_gib=12.0, more_gib=0.0) == GpuSizes()


def test_another_number_in_the_settings_is_believed():
    sizes = GpuSizes().ran_out(8.0, 8.0, free_gib=4.0, more_gib=8.0)
    assert sizes.awake_gib(9.0) == 9.0


def test_it_is_kept_as_numbers_and_nonsense_is_passed_over():
    sizes = GpuSizes().ran_out(8.0, 8.0, free_gib=4.0, more_gib=8.0)
    assert GpuSizes.learned(sizes.export()) == sizes
    nonsense = {"needs_gib": float("nan"), "counted_gib": -1.0, "other": 3.0}
    assert GpuSizes.learned(nonsense) == GpuSizes()


def test_what_others_can_free_yet_leaves_out_the_pinned_and_what_sleepers_leave():
    idle, pinned = engine(A, asleep_gib=1.0), engine(B, pinned=True, awake_gib=3.0)
    free_gib, more_gib = room_of(waking(C), [idle, pinned, waking(C)], ONE_GPU)
    assert free_gib == pytest.approx(20 - 8 - 8 - 3)
    one = waking(C)
    free_gib, more_gib = room_of(one, [idle, pinned, one], ONE_GPU)
    assert (free_gib, more_gib) == (pytest.approx(1.0), pytest.approx(7.0))


def test_the_next_wake_makes_one_more_go():
    """The sums said that both fit: what was learned is as much as sends the other away."""
    ledger = GpuLedger(ONE_GPU)
    first, second = engine(A), waking(B)
    ledger.join(A, lambda: first)
    ledger.join(B, lambda: second)
    ledger.ask_to_wake(B, 1.0)
    assert ledger.settle(1.0) == (B,)
    sizes = GpuSizes().ran_out(8.0, 8.0, *ledger.ran_out(B))
    ledger.release(B)
    second = replace(asks(B, 1.0), awake_gib=sizes.awake_gib(8.0))
    ledger.ask_to_wake(B, 2.0)
    assert ledger.settle(2.0) == (A,)
    assert (ledger.told(A), ledger.holds(B)) == (1, False)
