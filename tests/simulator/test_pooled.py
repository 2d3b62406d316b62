"""Percentiles of short replications: of all their values, which short ones alone have too low."""

from math import inf

import numpy as np
import pytest
from scenes import burst, result_of, scene

from simulator.exact.known import exact_metrics
from simulator.model.tally import SHORT, Tally
from simulator.study.pooled import pseudo_values
from simulator.study.statistics import estimate
from simulator.traffic.workload import Renewal


def tally_of(values):
    tally = Tally()
    for value in values:
        tally.add(value)
    return tally


def test_pooled_percentile_is_that_of_all_values():
    rng = np.random.default_rng(1)
    each = [rng.exponential(size=100) for _ in range(3)]
    spreads = [{"wait": tally_of(values).spread()} for values in each]

    def p95(some):
        return tally_of(np.concatenate(some)).percentiles((0.95,))[0]

    others = [p95(each[:n] + each[n + 1 :]) for n in range(3)]
    expected = [3 * p95(each) - 2 * other for other in others]
    assert pseudo_values("wait_p95_s", spreads) == pytest.approx(expected)
    assert pseudo_values("wait_mean_s", spreads) is None
    assert pseudo_values("latency_p95_s", spreads) is None


def test_spread_of_many_values_has_their_percentiles():
    values = np.random.default_rng(2).exponential(size=SHORT)
    spread = tally_of(values).spread()
    assert len(spread.values) <= 300
    assert spread.weights.sum() == SHORT
    for share, near in ((0.5, 0.02), (0.95, 0.004), (0.99, 0.004)):
        middles = np.cumsum(spread.weights) - spread.weights / 2
        found = np.interp(share * SHORT, middles, spread.values)
        assert found == pytest.approx(np.quantile(values, share), rel=near)
    assert tally_of([*values, 1.0]).spread() is None
    assert tally_of([]).spread() is None


def test_lost_requests_count_as_infinite():
    spread = tally_of([1.0, 2.0]).spread(2)
    assert (spread.values.tolist(), spread.weights.sum()) == ([1.0, 2.0, inf, inf], 4)


def test_near_saturation_short_replications_are_far_less_wrong_together():
    world = scene(queue=64, arrivals=Renewal(rate=2.85), requests=4000, warmup=200)
    made, exact = result_of(world, replications=32, seed=3), exact_metrics(world)
    for metric in ("wait_p95_s", "wait_p99_s"):
        alone = estimate(made.values(metric)).mean / exact[metric] - 1
        together = made.estimate(metric).mean / exact[metric] - 1
        # What both have of chance is the same: the difference is what each alone has too low.
        assert alone < together - 0.04
        assert abs(together) < abs(alone)
        assert abs(made.estimate(metric).mean - exact[metric]) < 2 * made.estimate(metric).ci95


def test_crowd_is_taken_each_by_itself():
    made = result_of(burst(retry=scene().retry), replications=2)
    assert all(not one.spreads for one in made.replications)
