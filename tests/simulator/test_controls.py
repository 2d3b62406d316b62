"""Means freed of what came too much by chance, and chances where replications are lopsided."""

from math import fsum

import pytest
from scenes import result_of, scene

from simulator.exact.known import exact_metrics
from simulator.study.calibrate import _left_open
from simulator.study.controls import corrected, surplus_of
from simulator.study.experiment import Replication, Result, arrivals_of
from simulator.study.limits import judge
from simulator.study.statistics import chance_at_most, estimate_of_one, sample_of
from simulator.traffic.distributions import Distribution
from simulator.traffic.service import Service
from simulator.traffic.streams import Purpose, Streams
from simulator.traffic.workload import Burst, Modulated


def test_surplus_is_what_the_requests_themselves_had_too_much_of():
    world = scene(requests=300, warmup=40)
    for number in (0, 5):
        gap, work = surplus_of(world, Streams(1, number))
        made = arrivals_of(world, 1, number)
        span_s = made[-1].at_s - made[39].at_s
        assert gap == pytest.approx(span_s / 260 * world.arrivals.rate - 1)
        assert work == pytest.approx(fsum(each.work for each in made[40:]) / 260 / 2.0 - 1)


@pytest.mark.parametrize(
    "world",
    [
        scene(arrivals=Burst(count=5)),
        scene(requests=200, warmup=400),
        scene(arrivals=Modulated(rate=1.0, ratio=4.0, high_s=9.0, low_s=9.0)),
        scene(service=Service(seconds=Distribution("exp", 2.0), slowdown_error=0.1)),
    ],
)
def test_where_a_mean_is_not_known_there_is_no_surplus(world):
    assert surplus_of(world, Streams(1, 0)) == ()


def test_mean_is_freed_of_what_goes_with_the_surplus():
    surpluses = [(0.01 * n, 0.02 * (n % 3)) for n in range(12)]
    values = [3.0 - 2 * gap + 5 * work for gap, work in surpluses]
    assert corrected(values, surpluses).mean == pytest.approx(3.0)
    assert corrected(values, surpluses).error == pytest.approx(0.0, abs=1e-9)
    assert corrected(values[:9], surpluses[:9]) == sample_of(values[:9])
    assert corrected(values, [()] * 12) == sample_of(values)


def test_freed_mean_stays_within_what_was_seen():
    surpluses = [(0.5 + 0.01 * n,) for n in range(12)]
    values = [0.001 * n for n in range(12)]
    assert corrected(values, surpluses).mean == min(values)


def test_freed_means_are_nearer_to_theory():
    """The same requests at all points are the same luck at all points."""
    world = scene(cap=4, queue=4, requests=3000, warmup=300)
    made, exact = result_of(world, replications=24), exact_metrics(world)
    for metric, by in (("lost_share", 1.8), ("wait_mean_s", 1.2)):
        freed, plain = made.sample(metric), sample_of(made.values(metric))
        assert freed.error * by < plain.error
        assert abs(freed.mean - exact[metric]) < 4 * freed.error
        assert made.estimate(metric).ci95 == freed.ci95


RARE = [0.0] * 16 + [0.004, 0.005, 0.011, 0.02]


def test_too_few_rare_losses_are_not_taken_for_a_certain_mean():
    """The mean is 0.002; most such samples of a true 0.006 have missed the large ones."""
    found = sample_of(RARE)
    assert found.skewness > 2
    assert found.chance_at_most(0.006) < 0.99
    assert sample_of([0.002 + (value - 0.002) * -1 for value in RARE]).chance_at_most(0.006) > 0.995


def test_percentile_is_not_known_better_than_its_replications_are_long():
    """A percentile of a short replication is off in all of them alike."""
    values = [2.0 + 1e-4 * n for n in range(12)]
    made = Result(
        tuple(Replication({"offered": 1000}, {"wait_p95_s": each}, []) for each in values)
    )
    (near,) = judge(made, {"wait_p95_s": 2.05}, {})
    (far,) = judge(made, {"wait_p95_s": 2.5}, {})
    assert near.chance < 0.95
    assert far.chance > 0.999


def test_interval_of_one_engine_is_as_lopsided_as_the_engines_are():
    values = [1.0 + 0.1 * n for n in range(15)] + [9.0]
    made = estimate_of_one(values, shares=False)
    assert made.low < 1.0
    assert made.high >= 9.0
    assert made.high - made.mean == made.ci95 > made.mean - made.low
    share = estimate_of_one([0.0, 0.0, 0.01, 0.5], shares=True)
    assert share.low == 0.0
    assert 0.5 < share.high <= 1.0


def test_chance_is_never_surer_than_the_engines_that_were_tried():
    assert chance_at_most([1.0] * 9 + [50.0], 60.0, shares=False) <= 1.0
    assert chance_at_most([1.0] * 9 + [50.0], 49.0, shares=False) <= 10 / 11
    assert chance_at_most([1.0, 1.1, 1.05, 5.0], 0.99, shares=False) <= 1 / 5


def test_replications_take_turns_over_all_that_an_engine_may_be():
    points = [Streams(3, number).spread(Purpose.MODEL) for number in range(16)]
    assert sorted(int(16 * first) for first, _ in points) == list(range(16))
    assert len({int(9 * second) for _, second in points[:9]}) == 9
    assert [Streams(3, n).turn(Purpose.MODEL) % 40 for n in range(3)] == [
        (Streams(3, 0).turn(Purpose.MODEL) + n) % 40 for n in range(3)
    ]


def test_slowdowns_left_open_are_those_that_the_moment_does_not_rule_out():
    def moments(slowdown):
        return 0.3 - slowdown, 0.1

    draws = _left_open(moments)
    assert list(draws) == sorted(draws)
    assert draws[len(draws) // 2] == pytest.approx(0.3, abs=0.01)
    assert sum(each == 0.0 for each in draws) == 0
    assert draws[6] == pytest.approx(0.2, abs=0.01)  # one standard error below
    # Of a log that cannot tell it from 0, some draws are 0 and some are not.
    open_to_both = _left_open(lambda slowdown: (-0.02 - slowdown, 0.1))
    assert open_to_both[0] == open_to_both[20] == 0.0
    assert open_to_both[-1] > 0.1
