"""The burst of 40 in rows: what ends when, ties included, whichever driver runs it."""

import pytest
from scenes import EXP_2, burst, result_of

from simulator.exact.closed_form import burst_served
from simulator.study.statistics import sigmas
from simulator.traffic.retries import Retry

ROWS = [
    (1.0, [(0, "queue_full", 26), (1, "queue_timeout", 8), (2, "served", 6)]),
    (
        2.0,  # the slots that come free at 2 go to those whose limit falls on 2
        [(0, "queue_full", 26), (2, "served", 6), (2, "queue_timeout", 2), (4, "served", 6)],
    ),
    (
        3.0,
        [(0, "queue_full", 26), (2, "served", 6), (3, "queue_timeout", 2), (4, "served", 6)],
    ),
    (4.0, [(0, "queue_full", 26), (2, "served", 6), (4, "served", 6), (6, "served", 2)]),
    (5.0, [(0, "queue_full", 26), (2, "served", 6), (4, "served", 6), (6, "served", 2)]),
    (30.0, [(0, "queue_full", 26), (2, "served", 6), (4, "served", 6), (6, "served", 2)]),
]


@pytest.mark.parametrize("driver", ["simpy", "heap"])
@pytest.mark.parametrize(("timeout_s", "timeline"), ROWS)
def test_burst_of_40_ends_in_these_rows(timeout_s, timeline, driver):
    result = result_of(burst(timeout_s=timeout_s), driver=driver, replications=1, check=True)
    assert result.replications[0].timeline == timeline
    counts = result.counts()
    assert counts["served"] == sum(n for _, how, n in timeline if how == "served")
    assert counts["offered"] == 40
    assert result.estimate("in_flight_max").mean == 6
    assert result.estimate("queue_depth_max").mean == 8


@pytest.mark.parametrize(("timeout_s", "served"), [(1, 6), (3, 12), (5, 14), (30, 14)])
def test_burst_serves_what_every_other_driver_of_the_gate_serves(timeout_s, served):
    result = result_of(burst(timeout_s=float(timeout_s)), replications=1)
    assert result.counts()["served"] == served


@pytest.mark.parametrize("timeout_s", [1.0, 3.0, 5.0, 30.0])
def test_burst_of_exponential_requests_serves_what_theory_says(timeout_s):
    result = result_of(burst(timeout_s=timeout_s, service=EXP_2), replications=400)
    exact = burst_served(40, 6, 8, 2.0, timeout_s) / 40
    assert abs(sigmas(result.values("served_share"), exact)) < 4


@pytest.mark.parametrize(
    ("pause_s", "attempts", "last_s"), [(2, 110, 14), (5, 80, 16), (10, 78, 24)]
)
def test_burst_that_comes_back_is_served_in_the_end(pause_s, attempts, last_s):
    retry = Retry(kind="fixed", pause_s=float(pause_s), times=99)
    result = result_of(burst(retry=retry, return_places=0), replications=1, check=True)
    counts = result.counts()
    assert (counts["served"], counts["attempts"]) == (40, attempts)
    assert result.replications[0].timeline[-1][0] == last_s


def test_clients_that_give_up_are_lost_once_however_often_they_came():
    retry = Retry(kind="fixed", pause_s=1.0, times=1)
    result = result_of(burst(retry=retry), replications=1, check=True)
    counts = result.counts()
    assert (counts["offered"], counts["attempts"]) == (40, 66)
    assert counts["served"] + counts["queue_full"] == 40


def test_utilization_of_a_burst_runs_to_its_last_end():
    result = result_of(burst(), replications=1)
    assert result.estimate("utilization").mean == pytest.approx((6 + 6 + 2) * 2 / (6 * 6))
    assert result.estimate("goodput_per_s").mean == pytest.approx(14 / 6)
