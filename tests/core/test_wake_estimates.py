"""How long a wake takes: learned by depth, kept, and told."""

import pytest

from tornado_frontdoor.core.decisions import SleepDepth
from tornado_frontdoor.core.retry_after import FIRST_GUESSES_S, WakeEstimates
from tornado_frontdoor.core.return_book import SHORTEST_S

DEEP = SleepDepth.OFFLOADED


def test_nothing_is_learned_before_a_wake_and_a_guess_is_told():
    estimates = WakeEstimates()
    assert estimates.learned_s(DEEP) is None
    assert estimates.expected_s(DEEP) == FIRST_GUESSES_S[DEEP]
    assert estimates.export() == {}


def test_the_first_wake_counts_whole_and_later_ones_move_the_mean():
    estimates = WakeEstimates()
    estimates.observe(DEEP, 40.0)
    assert estimates.learned_s(DEEP) == 40.0
    estimates.observe(DEEP, 50.0)
    assert estimates.learned_s(DEEP) == pytest.approx(43.0)
    assert estimates.learned_s(SleepDepth.SLEEPING) is None


def test_what_has_passed_of_a_wake_is_no_longer_to_come():
    estimates = WakeEstimates()
    estimates.observe(DEEP, 40.0)
    assert estimates.expected_s(DEEP, 15.0) == 25.0
    assert estimates.expected_s(DEEP, 39.5) == SHORTEST_S
    assert estimates.expected_s(DEEP, 400.0) == 360.0, "overdue is not ready: as long as it is late"
    assert (estimates.late_s(DEEP, 15.0), estimates.late_s(DEEP, 400.0)) == (-25.0, 360.0)


def test_what_was_learned_survives():
    first = WakeEstimates()
    first.observe(DEEP, 40.0)
    first.observe(SleepDepth.RESTARTING, 200.0)
    second = WakeEstimates(first.export())
    assert second.export() == first.export() == {"offloaded": 40.0, "restarting": 200.0}


def test_what_makes_no_sense_is_passed_over():
    kept = {"sleeping": -1.0, "offloaded": float("nan"), "restarting": float("inf"), "other": 3.0}
    assert WakeEstimates(kept).export() == {}
