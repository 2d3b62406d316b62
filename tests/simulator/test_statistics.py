"""Tallies, intervals and sigmas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.model.tally import EXACT_VALUES, Tally
from simulator.study.statistics import estimate, paired, sigmas


def tally_of(values):
    tally = Tally()
    for value in values:
        tally.add(value)
    return tally


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99]))
def test_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values, share):
    (found,) = tally_of(values).percentiles([share])
    assert found == np.quantile(values, share, method="inverted_cdf")


def test_lost_requests_count_as_infinite():
    tally = tally_of([1.0] * 94)
    assert tally.percentiles([0.5, 0.95], lost=6) == [1.0, None]
    assert tally.percentiles([0.5, 0.95], lost=5) == [1.0, None]
    assert tally.percentiles([0.5, 0.94], lost=6) == [1.0, 1.0]


def test_no_values_have_no_mean_and_no_percentile():
    tally = Tally()
    assert tally.mean is None
    assert tally.percentiles([0.5]) == [None]


def test_many_values_are_folded_within_half_a_thousandth():
    rng = np.random.default_rng(7)
    values = np.concatenate([np.zeros(EXACT_VALUES // 2), rng.exponential(2.0, 2 * EXACT_VALUES)])
    rng.shuffle(values)
    tally = Tally()
    for start in range(0, len(values), 4096):
        for value in values[start : start + 4096].tolist():
            tally.add(value)
        tally.settle()
    shares = [0.1, 0.5, 0.95, 0.99]
    assert tally.percentiles(shares) == pytest.approx(np.quantile(values, shares), rel=6e-4)
    assert tally.percentiles([0.1]) == [0.0]
    assert tally.mean == pytest.approx(values.mean(), rel=1e-12)
    assert sum(array.nbytes for array in tally._exact) == 0


def test_interval_is_students_t_over_replications():
    found = estimate([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.ci95 == pytest.approx(4.302653 * 1 / 3**0.5, rel=1e-6)


def test_one_replication_has_no_interval():
    assert estimate([1.5]).ci95 is None


def test_replication_without_a_value_leaves_none():
    assert estimate([1.0, None, 2.0]).mean is None


def test_paired_difference_forgets_what_both_share():
    noise = [0.0, 10.0, -5.0, 3.0]
    first, second = noise, [value + 1 for value in noise]
    assert paired(second, first).mean == 1
    assert paired(second, first).ci95 == 0
    assert estimate(first).ci95 > 5


def test_sigmas_mean_the_same_for_few_replications_as_for_many():
    few = [0.0, 1.0, 2.0]
    # t = 1.732 with 2 degrees: a chance of 0.1127 on one side, 1.2125 sigmas of a normal law.
    assert sigmas(few, 0.0) == pytest.approx(1.2125, abs=1e-3)
    assert sigmas(few, 2.0) == pytest.approx(-1.2125, abs=1e-3)


def test_sigmas_are_infinite_where_a_constant_is_wrong():
    assert sigmas([1.0, 1.0], 1.0) == 0
    assert abs(sigmas([1.0, 1.0], 1.1)) == float("inf")


def test_wild_values_are_far_out_in_sigmas():
    assert sigmas([10.0, 10.1, 9.9, 10.05], 0.0) > 4
    assert sigmas([-10.0, -10.1, -9.9, -10.05], 0.0) < -4
