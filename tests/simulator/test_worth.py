"""What a point is worth: what each is to get, seconds a token, cost of a thousand; if asked."""

import json
from dataclasses import replace
from math import exp

import pytest
from scenes import result_of, scene

from simulator.cli.options import UsageError, simulate_of
from simulator.model.scenario import EachRequest
from simulator.traffic.distributions import Distribution
from simulator.traffic.service import Service
from simulator.traffic.service_profiles import ServiceProfile, TokenTimes
from simulator.traffic.workload import Renewal
from tornado_frontdoor.cli.main import main


def test_latency_that_each_is_to_get_is_kept_as_often_as_theory_says():
    """A free slot for everybody: latency is the service, exponential with mean 2 s."""
    world = scene(cap=60, slots=61, queue=0, requests=20_000, each=EachRequest(latency_s=3.0))
    result = result_of(world, replications=4)
    kept = result.estimate("kept_share")
    assert kept.mean == pytest.approx(1 - exp(-1.5), abs=3 * (kept.ci95 or 0))
    assert result.estimate("kept_per_s").mean == pytest.approx(2.4 * kept.mean, rel=0.05)


def test_lost_request_got_nothing():
    world = scene(cap=2, queue=0, requests=6000, each=EachRequest(wait_s=1e9))
    result = result_of(world, replications=3)
    assert result.estimate("kept_share").mean == result.estimate("served_share").mean < 0.5


SIZES = {"prompt": Distribution("const", 1000.0), "output": Distribution("const", 101.0)}
ENGINE = ServiceProfile(
    name="one",
    source="made up",
    token=TokenTimes(first_s=0.02),
    prompt_token_s=0.0001,
    prompt_overhead_s=0.01,
)


def test_token_times_are_those_of_the_engine_where_nobody_else_is():
    rare = Renewal(rate=0.01)
    each = EachRequest(first_token_s=0.2, token_s=0.021)
    service = Service(profile=ENGINE, **SIZES)
    world = scene(cap=1, arrivals=rare, service=service, requests=300, warmup=0, each=each)
    result = result_of(world, replications=2)
    # One iteration makes the first token, after 1,000 tokens of a prompt and its overhead.
    assert result.estimate("first_token_p50_s").mean == pytest.approx(0.11 + 0.02)
    assert result.estimate("tpot_p95_s").mean == pytest.approx(0.02)
    assert result.estimate("kept_share").mean > 0.9
    slower = replace(world, each=replace(each, token_s=0.019))
    assert result_of(slower, replications=2).estimate("kept_share").mean == 0.0


def test_cost_of_a_thousand_is_the_hours_they_take():
    world = scene(requests=4000, gpu_cost_per_h=3.6)
    result = result_of(world, replications=2)
    for replication in result.replications:
        rate = replication.metrics["goodput_per_s"]
        assert replication.metrics["cost_per_thousand"] == pytest.approx(1.0 / rate)


def test_what_was_not_asked_is_not_counted():
    metrics = result_of(scene(requests=500, warmup=0), replications=1).replications[0].metrics
    assert not {"kept_share", "cost_per_thousand", "tpot_p50_s"} & set(metrics)


@pytest.mark.parametrize(
    ("each", "told"),
    [
        ("speed=1", "'speed' is not one of wait_s, first_token_s, token_s, latency_s"),
        ("latency_s=0", "latency_s must be above 0"),
        ("token_s=0.1", "need a --service profile of tokens"),
    ],
)
def test_limit_that_nobody_can_keep_is_named(each, told):
    given = {"--cap": "4", "--queue": "4", "--each": each}
    with pytest.raises(UsageError, match=told):
        simulate_of(given)


def test_kept_share_can_be_a_limit_and_is_printed(capsys):
    line = ["sweep", "--cap", "6", "--queue", "8", "--timeout", "5", "--each", "latency_s=8"]
    more = ["--slo", "kept_share=0.8", "--gpu-cost", "2", "--requests", "800", "--reps", "3"]
    assert main([*line, *more, "--jobs", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["points"][0]["metrics"]["cost_per_thousand"]["mean"] > 0
    assert document["recommended"]["cap"] == 6
