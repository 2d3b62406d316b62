"""Steady states against exact theory: some of each kind always, all of them in the slow test."""

from dataclasses import replace

import pytest
from scenes import HOLD_2, result_of, scene

from simulator.exact.validate import LIMIT, Case, cases, findings
from simulator.study.experiment import Plan, cores, experiment
from simulator.traffic.distributions import Distribution
from simulator.traffic.service import Service
from simulator.traffic.workload import Renewal

QUICK = list(cases(4000, full=False))


LONG = ("idle tiers, 0.5 requests an hour",)
"""Thousands of hours of sleeping and waking: the slow test has it, among others, at full size."""
SHORTER = {"idle tiers, 2 requests an hour": {"requests": 800, "warmup": 50}}
"""Where each request takes a simulated half hour: 6,000 tell 58 or 64 % that find the engine asleep
from the true 61 % (4 sigmas are 2.5 %)."""


@pytest.mark.parametrize(
    "case", [case for case in QUICK if case.name not in LONG], ids=lambda case: case.name
)
def test_simulation_agrees_with_theory(case):
    scenario = replace(case.scenario, **SHORTER.get(case.name, {}))
    found = findings(case, result_of(scenario, replications=8))
    assert [finding for finding in found if finding.wrong] == []


@pytest.mark.slow
def test_every_case_agrees_at_full_size():
    every = cases(20_000, full=True)
    plan = Plan(replications=20, driver="heap", jobs=cores())
    results = experiment([case.scenario for case in every], plan)
    found = [f for case, result in zip(every, results, strict=True) for f in findings(case, result)]
    assert len(found) > 200
    assert [finding for finding in found if finding.wrong] == []
    # Rare events are known less well than 3 %; 4 sigmas judge them, and nothing else can.
    common = [f for f in found if f.exact > 0.05 and f.case.startswith(("M/M/6/14", "Erlang"))]
    assert len(common) > 100
    assert [f for f in common if abs(f.relative) > 0.03] == []


def test_a_wrong_answer_is_beyond_the_limit():
    (case,) = [case for case in QUICK if case.name == "M/M/6/14, load 0.8, no timeout"]
    slower = result_of(scene(service=Service(seconds=Distribution("exp", 2.2))), replications=8)
    assert any(abs(finding.sigmas) > LIMIT for finding in findings(case, slower))


@pytest.mark.parametrize(("exact", "wrong"), [(2e-6, False), (0.01, True)])
def test_what_never_happens_is_wrong_only_where_it_should_have_happened(exact, wrong):
    never = scene(queue=1000, requests=2000, warmup=0)
    case = Case("never", never, {"rejected_share": exact})
    (finding,) = findings(case, result_of(never, replications=5))
    assert finding.simulated == 0
    assert finding.wrong is wrong


def test_overload_saturates_at_slots_over_service_time():
    # 8 slots of 2 s can serve 4 a second, however many come and whatever the cap.
    result = result_of(
        scene(cap=16, queue=4, slots=8, arrivals=Renewal(rate=8.0), service=HOLD_2),
        replications=2,
    )
    assert result.estimate("goodput_per_s").mean == pytest.approx(4.0, rel=0.01)
    assert result.estimate("hidden_wait_mean_s").mean == pytest.approx(2.0, rel=0.02)


def test_request_slows_down_when_others_join_it():
    import numpy as np

    from simulator.traffic.service import Rows
    from simulator.traffic.workload import Replay

    pair = Replay(rows=Rows(np.array([0.0, 1.0])))
    slowed = Service(seconds=Distribution("const", 2.0), slowdown=1.0)
    result = result_of(
        scene(arrivals=pair, service=slowed, requests=None, warmup=0), replications=1
    )
    # Alone for 1 s, then both at half speed: the first ends at 3, the second, alone again, at 4.
    assert result.estimate("latency_p50_s").mean == 3.0
    assert result.estimate("latency_p99_s").mean == 3.0
    both = result.replications[0].metrics
    assert both["utilization"] is not None


def test_in_flight_and_line_reach_their_limits_and_no_further():
    result = result_of(scene(arrivals=Renewal(rate=6.0)), replications=2)
    assert result.values("in_flight_max") == [6.0, 6.0]
    assert result.values("queue_depth_max") == [8.0, 8.0]


def test_littles_law_holds_in_each_replication():
    result = result_of(scene(arrivals=Renewal(rate=2.85), requests=20_000), replications=4)
    for replication in result.replications:
        metrics = replication.metrics
        through = metrics["queue_length_mean"] / metrics["goodput_per_s"]
        assert through == pytest.approx(metrics["wait_mean_s"], rel=0.01)
