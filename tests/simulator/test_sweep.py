"""Choosing among points: the stated rule, the Pareto set, and what cannot be told apart."""

import json

import pytest
from scenes import EXP_2, scene

from simulator.cli.options import sweep_of
from simulator.reports.json_document import sweep_document
from simulator.study.experiment import Plan, Replication, Result, experiment
from simulator.study.sweep import choose
from simulator.traffic.service import Service
from simulator.traffic.workload import Renewal

SLO = {"wait_p95_s": 2.5, "lost_share": 0.02}


def made(lost, latency, wait=(1.0, 1.1, 0.9)):
    """A result with these values by replication."""
    return Result(
        tuple(
            Replication({}, {"lost_share": a, "latency_p95_s": b, "wait_p95_s": c}, [])
            for a, b, c in zip(lost, latency, wait, strict=True)
        )
    )


def at(cap, queue, timeout_s=5.0):
    return scene(cap=cap, queue=queue, timeout_s=timeout_s)


def chosen(points, slo):
    return choose([scenario for scenario, _ in points], [result for _, result in points], slo)


GOOD = made((0.010, 0.012, 0.011), (5.0, 5.1, 4.9))
BETTER = made((0.001, 0.003, 0.002), (4.0, 4.1, 3.9))


def test_smallest_cap_then_shortest_line_then_shortest_timeout_is_recommended():
    points = [(at(8, 4), BETTER), (at(6, 8), GOOD), (at(6, 16), GOOD), (at(6, 8, 30.0), GOOD)]
    choice = chosen(points, {"lost_share": 0.02})
    assert choice.recommended is choice.points[1]


def test_point_that_misses_a_limit_is_not_recommended():
    points = [(at(4, 8), made((0.2, 0.2, 0.2), (5, 5, 5))), (at(6, 8), GOOD)]
    assert chosen(points, {"lost_share": 0.02}).recommended.scenario.cap == 6


def test_larger_is_better_for_goodput():
    def goodput(value):
        metrics = {"lost_share": 0.1, "latency_p95_s": 1.0, "wait_p95_s": 1.0}
        return Result((Replication({}, {**metrics, "goodput_per_s": value}, []),))

    points = [(at(4, 8), goodput(1.0)), (at(6, 8), goodput(2.0))]
    assert chosen(points, {"goodput_per_s": 1.5}).recommended.scenario.cap == 6


def test_nothing_is_recommended_where_nothing_keeps_the_limits():
    choice = chosen([(at(6, 8), GOOD)], {"lost_share": 0.001})
    assert choice.recommended is None
    assert "misses" in choice.why


def test_point_is_dominated_only_when_the_paired_interval_says_so():
    noisy = made((0.010, 0.012, 0.011), (5.0, 5.4, 4.4))
    points = [(at(6, 8), GOOD), (at(7, 8), BETTER), (at(5, 8), noisy)]
    choice = chosen(points, {"lost_share": 0.02})
    assert [point.pareto for point in choice.points] == [False, True, False]
    alone = chosen([(at(6, 8), GOOD), (at(5, 8), noisy)], {"lost_share": 0.02})
    assert [point.pareto for point in alone.points] == [True, True]


def test_points_that_cannot_be_told_apart_are_named():
    points = [(at(6, 8), GOOD), (at(6, 16), made((0.011, 0.0115, 0.0115), (5.0, 5.1, 4.9)))]
    choice = chosen(points, {"lost_share": 0.02})
    assert [point.alike for point in choice.points] == [False, True]
    assert "cap 6 queue 16" in choice.why


def test_limit_within_the_noise_is_admitted():
    choice = chosen([(at(6, 8), GOOD)], {"lost_share": 0.0115})
    assert choice.recommended is not None
    assert "Uncertain: the chance" in choice.why


def test_sweep_of_the_reference_traffic_recommends_cap_6_queue_8():
    points = [at(cap, queue) for cap in (4, 5, 6, 8) for queue in (4, 8, 16)]
    results = experiment(points, Plan(driver="heap", replications=8))
    choice = choose(points, results, SLO)
    assert (choice.recommended.scenario.cap, choice.recommended.scenario.queue) == (6, 8)
    # 4 slots serve less than 6 and later, whatever the line: the interval is in no doubt.
    assert not any(point.pareto for point in choice.points if point.scenario.cap == 4)
    assert any(point.pareto for point in choice.points)


@pytest.mark.slow
def test_full_sweep_recommends_cap_6_queue_8():
    given = {
        "--cap": "4..8",
        "--queue": "0,4,8,16",
        "--timeout": "5",
        "--rate": "2.4",
        "--slo": "wait_p95_s=2.5,lost_share=0.02",
    }
    command = sweep_of(given)
    choice = choose(command.scenarios, experiment(command.scenarios, command.plan), command.slo)
    document = json.loads(json.dumps(sweep_document(command, choice)))
    assert document["recommended"] == {"cap": 6, "queue": 8, "timeout_s": 5.0}
    assert len(document["points"]) == 20
    assert {"cap", "queue", "timeout_s", "metrics", "pareto"} <= set(document["points"][0])


def test_more_slots_serve_more_although_each_slows_the_others_down():
    slowed = Service(seconds=EXP_2.seconds, slowdown=0.5)
    points = [
        scene(cap=cap, queue=8, timeout_s=5.0, service=slowed, arrivals=Renewal(rate=0.7))
        for cap in (2, 8)
    ]
    small, large = experiment(points, Plan(driver="heap", replications=6))
    assert small.estimate("utilization").mean > large.estimate("utilization").mean
    assert small.estimate("goodput_per_s").mean < large.estimate("goodput_per_s").mean
