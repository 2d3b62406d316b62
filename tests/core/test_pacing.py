"""Return times: within what clients obey, one slot interval apart, and from no dice of its own."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_frontdoor.core.retry_after import LONGEST_S, SHORTEST_S, RetryAfterEstimator


class Dice:
    """A source of randomness that tells how often it was asked."""

    def __init__(self) -> None:
        self.rolls = 0

    def uniform(self, a: float, b: float) -> float:
        self.rolls += 1
        return (a + b) / 2


def test_nothing_observed_yet_means_a_second_for_each_slot() -> None:
    pacer = RetryAfterEstimator(Dice())
    assert [pacer.retry_after_s(0.0, cap=6, queued=0) for _ in range(3)] == [1.0, 2.0, 3.0]


def test_the_first_observations_count_in_full_and_later_ones_a_tenth() -> None:
    pacer = RetryAfterEstimator(Dice())
    for slot_s in (2.0, 4.0):
        pacer.observe(slot_s)
    assert pacer.interval_s(1) == 3.0
    for _ in range(8):
        pacer.observe(3.0)
    assert pacer.interval_s(1) == pytest.approx(3.0)
    pacer.observe(13.0)
    assert pacer.interval_s(1) == pytest.approx(4.0)
    assert pacer.interval_s(4) == pytest.approx(1.0)


def test_nobody_is_called_back_before_the_line_can_have_drained() -> None:
    pacer = RetryAfterEstimator(Dice())
    pacer.observe(6.0)
    assert pacer.retry_after_s(100.0, cap=2, queued=8) == 27.0


def test_a_promise_of_long_ago_binds_nobody() -> None:
    pacer = RetryAfterEstimator(Dice())
    pacer.observe(2.0)
    for _ in range(10):
        pacer.retry_after_s(0.0, cap=1, queued=0)
    assert pacer.retry_after_s(1000.0, cap=1, queued=0) == 2.0


def test_beyond_what_clients_obey_the_crowd_is_spread_over_the_later_half() -> None:
    pacer = RetryAfterEstimator(Random(3))
    pacer.observe(30.0)
    times = [pacer.retry_after_s(0.0, cap=1, queued=0) for _ in range(200)]
    assert times[0] == 30.0
    assert all(29.5 <= time_s <= 59.0 for time_s in times[1:])
    assert len(set(times)) > 190


def test_dice_are_rolled_only_beyond_that() -> None:
    dice = Dice()
    pacer = RetryAfterEstimator(dice)
    pacer.observe(20.0)
    for _ in range(2):
        pacer.retry_after_s(0.0, cap=1, queued=0)
    before = dice.rolls
    assert pacer.retry_after_s(0.0, cap=1, queued=0) == (LONGEST_S / 2 + LONGEST_S) / 2
    assert (before, dice.rolls) == (0, 1)


def test_those_who_come_back_for_a_wake_come_one_after_another() -> None:
    pacer = RetryAfterEstimator(Dice())
    pacer.observe(30.0)  # how long slots are held does not matter: the queue takes them in
    times = [pacer.wake_return_s(100.0, left_s=38.0) for _ in range(50)]
    assert times[0] == pytest.approx(38.0)
    assert len({round(time_s * 1000) for time_s in times}) == 50
    assert times[-1] == pytest.approx(38.0 + 49 * 0.1)


def test_a_long_wake_is_waited_for_as_long_as_clients_obey() -> None:
    pacer = RetryAfterEstimator(Random(3))
    times = [pacer.wake_return_s(0.0, left_s=300.0) for _ in range(50)]
    assert all(54.0 <= time_s <= 59.0 for time_s in times)
    assert len(set(times)) == 50


def test_a_second_is_a_second_at_any_time_of_day() -> None:
    now = 0.4
    assert (now + 1.0) - now < 1.0
    pacer = RetryAfterEstimator(Dice())
    pacer.observe(0.001)
    assert pacer.retry_after_s(now, cap=1, queued=0) == 1.0


REFUSALS = st.lists(
    st.tuples(
        st.floats(0, 40, allow_nan=False),
        st.one_of(st.none(), st.floats(0, 500, allow_nan=False)),
        st.integers(1, 64),
        st.integers(0, 200),
    ),
    max_size=60,
)


@given(st.floats(0, 1e7, allow_nan=False), REFUSALS)
def test_promises_are_within_a_minute_and_an_interval_apart(
    start_s: float, story: list[tuple[float, float | None, int, int]]
) -> None:
    """F23: between 1 and 59 seconds, whatever was seen and however late it is."""
    dice = Dice()
    pacer = RetryAfterEstimator(dice)
    now = start_s
    last_s: float | None = None
    for pause_s, slot_s, cap, queued in story:
        now += pause_s
        if slot_s is not None:
            pacer.observe(slot_s)
        rolls = dice.rolls
        retry_s = pacer.retry_after_s(now, cap, queued)
        assert SHORTEST_S <= retry_s <= LONGEST_S
        if dice.rolls > rolls:
            continue
        promise_s = now + retry_s
        if last_s is not None:
            assert promise_s - last_s >= pacer.interval_s(cap) - 1e-6
        last_s = promise_s
