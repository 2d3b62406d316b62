"""Intervals of predictions from fitted logs: they hold the truth as often as they say."""

import random
from dataclasses import replace

import pytest
from made_logs import benchmark, logged
from scenes import result_of, scene

from simulator.study.calibrate import calibrate
from simulator.study.experiment import Plan, experiment
from simulator.traffic.distributions import Distribution
from simulator.traffic.service import Service
from simulator.traffic.service_profiles import MeasuredSeconds, ServiceProfile, TokenTimes
from simulator.traffic.workload import Renewal

METRICS = ("wait_p95_s", "lost_share", "latency_p95_s")
SHARE = 0.95
REPLICATIONS = 16


def of_seconds(folder, rng):
    """An engine of seconds, logged at a small cap: the fit, the engine, and a rate it can serve."""
    slowdown, sigma = rng.uniform(0.0, 0.35), rng.uniform(0.3, 0.9)
    engine = Service(seconds=Distribution("lognormal", 2.0, sigma), slowdown=slowdown)
    cap = rng.choice((2, 3, 4))
    rate = 0.7 * cap / (1 + slowdown * (cap - 1)) / 2.0
    world = scene(cap=cap, service=engine, arrivals=Renewal(rate=rate), requests=600, warmup=0)
    path, _ = logged(folder, world, seed=rng.randrange(1 << 20))
    fit = calibrate([path], "mine", None).profile
    assert isinstance(fit, MeasuredSeconds)
    fitted = Service(
        seconds=fit.seconds,
        slowdown=fit.slowdown,
        slowdown_error=fit.slowdown_error,
        slowdown_draws=fit.slowdown_draws,
        level_error=fit.seconds_error,
        fitted_batch=fit.in_service_mean,
        seen_batch=fit.seen_batch,
    )
    return fitted, engine, 0.8 * 6 / (1 + 5 * slowdown) / 2.0


def of_tokens(folder, rng):
    """The same for an engine of tokens, of which a benchmark was logged."""
    truth = ServiceProfile(
        name="truth",
        source="made up",
        token=TokenTimes(first_s=0.02, per_sequence_s=rng.uniform(0.0, 0.004)),
        prompt_token_s=rng.uniform(0.00005, 0.0002),
        prompt_overhead_s=0.015,
    )
    path = benchmark(
        folder,
        truth,
        rate=rng.uniform(0.2, 0.4),
        requests=150,
        prompt=1000.0,
        cap=rng.choice((2, 3, 4)),
        seed=rng.randrange(1 << 20),
    )
    fit = calibrate([path], "mine", None).profile
    assert isinstance(fit, ServiceProfile)
    sizes = {"prompt": Distribution("exp", 1000.0), "output": Distribution("lognormal", 250.0, 0.6)}
    step_s = truth.token.at(6) + 6 * truth.prompt_token_s * 1000 / 250
    return Service(profile=fit, **sizes), Service(profile=truth, **sizes), 0.8 * 6 / (250 * step_s)


def covered(fitted, engine, rate):
    """Whether the intervals for cap 6 hold what the engine itself comes to, metric by metric."""
    world = scene(cap=6, timeout_s=20.0, arrivals=Renewal(rate=rate), requests=600, warmup=60)
    predicted = result_of(replace(world, service=fitted), replications=REPLICATIONS)
    (made,) = experiment(
        [replace(world, service=engine)],
        Plan(driver="heap", replications=2 * REPLICATIONS),
        first=1000,
    )
    for metric in METRICS:
        interval, truth = predicted.estimate(metric), made.estimate(metric).mean
        yield interval.low <= truth <= interval.high


@pytest.mark.parametrize("kind", [of_seconds, of_tokens])
def test_interval_of_another_cap_holds_the_truth(kind, tmp_path):
    assert all(covered(*kind(tmp_path, random.Random(4))))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [of_seconds, of_tokens])
def test_intervals_hold_the_truth_in_95_of_100_cases(kind, tmp_path):
    """Two processor minutes each."""
    hits = [list(covered(*kind(tmp_path, random.Random(1000 + n)))) for n in range(200)]
    for number, metric in enumerate(METRICS):
        share = sum(hit[number] for hit in hits) / len(hits)
        print(f"{kind.__name__} {metric}: {share:.0%} of {len(hits)} cases")
        assert share >= SHARE - 0.03  # 200 cases know a share of 95 % to 3 %
