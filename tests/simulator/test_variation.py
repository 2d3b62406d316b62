"""How an engine's speed varies by itself is found in its logs, and goes into predictions."""

import json

import numpy as np
import pytest
from made_logs import benchmark, slowness, varying, varying_log
from scenes import result_of, scene

from simulator.cli.commands import COMMANDS
from simulator.study.calibrate import calibrate
from simulator.study.variation import LogTimes, Variation, variation_of
from simulator.traffic.distributions import Distribution
from simulator.traffic.pace import STEADY, EnginePace
from simulator.traffic.service import Service
from simulator.traffic.service_profiles import (
    ServiceProfile,
    TokenTimes,
    profile_document,
    read_profile,
)
from simulator.traffic.streams import Purpose, Streams
from simulator.traffic.workload import Renewal

LINES = [np.arange(400.0), np.arange(300.0)]


def measured(rng, of_times, of_logs, logs=LINES):
    """What requests took that only an engine's speed and their own length make."""
    times = LogTimes.of(logs)
    length = rng.uniform(1.0, 3.0, len(times.of_request))
    slower = Variation(of_times, of_logs).drawn(rng, times)[times.of_request]
    return length * slower + rng.normal(0.0, 0.1, len(length)), length[:, None], length


@pytest.mark.parametrize("of_times", [0.0, 0.1, 0.3])
def test_deviation_of_times_is_found_again(of_times):
    found = [
        variation_of(*measured(np.random.default_rng(seed), of_times, 0.0), LINES).typical
        for seed in range(8)
    ]
    assert np.mean([each.of_times for each in found]) == pytest.approx(of_times, abs=0.02, rel=0.25)
    assert found[0].noise == pytest.approx(0.1, rel=0.15)


def test_deviation_of_logs_is_found_where_there_are_several():
    logs = [np.arange(60.0)] * 12
    found = [
        variation_of(*measured(np.random.default_rng(seed), 0.0, 0.2, logs), logs).typical.of_logs
        for seed in range(8)
    ]
    assert np.mean(found) == pytest.approx(0.2, rel=0.3)


def test_one_log_says_of_others_what_its_own_quarters_do():
    log = [np.arange(600.0)]
    steady, varied = (
        variation_of(*measured(np.random.default_rng(1), deviation, 0.0, log), log).typical.of_logs
        for deviation in (0.0, 0.3)
    )
    assert steady < 0.03
    assert 0.1 < varied < 0.6


def test_what_is_whitened_is_independent():
    """Columns with the parts of their time and log, so that only the noise is left of them."""
    rng, times = np.random.default_rng(2), LogTimes.of(LINES)
    by = Variation(0.3, 0.2, noise=0.5)
    scale = rng.uniform(1.0, 3.0, len(times.of_request))
    drawn = np.column_stack(
        [
            scale * (np.log(by.drawn(rng, times)))[times.of_request]
            + rng.normal(0.0, by.noise, len(scale))
            for _ in range(300)
        ]
    )
    rest = by.whitened(drawn, scale, times)
    assert drawn.std() > 1.3 * by.noise
    assert rest.std() == pytest.approx(by.noise, rel=0.01)
    same = times.of_request == 0
    sums = rest[same].sum(0) / np.sqrt(same.sum())
    assert sums.std() == pytest.approx(by.noise, rel=0.15)


def test_logs_are_cut_into_times_of_about_as_many():
    times = LogTimes.of([np.arange(95.0)[::-1], np.arange(5.0), np.arange(3000.0)])
    assert np.bincount(times.of_request).tolist() == [32, 32, 31, 5, *[150] * 20]
    assert times.log_of.tolist() == [0] * 3 + [1] + [2] * 20
    assert times.of_request[0] == 2  # the last to begin


def test_slow_times_are_slow_for_all_who_come_then():
    pace = EnginePace(deviation=0.4, time_s=10.0).drawn(Streams(1, 0).of(Purpose.PACE))
    slower = pace.at(np.array([0.0, 9.9, 10.0, 10.0 * 1024, 5.0]))
    assert slower[0] == slower[1] == slower[3] == slower[4] != slower[2]
    everything = np.array(pace.slower)
    assert everything.mean() == pytest.approx(1.0, abs=0.04)
    assert everything.std() == pytest.approx(0.4, abs=0.05)
    assert STEADY.drawn(Streams(1, 0).of(Purpose.PACE)) == STEADY


def test_speed_that_varies_within_runs_lengthens_waits():
    seconds = Distribution("const", 2.0)
    steady, varied = (
        result_of(scene(service=Service(seconds=seconds, pace=pace)), replications=8)
        for pace in (STEADY, EnginePace(deviation=0.4, time_s=60.0))
    )
    assert varied.uncertain_engine
    for metric in ("wait_p95_s", "lost_share"):
        assert varied.estimate(metric).mean > 1.5 * steady.estimate(metric).mean


TRUTH = ServiceProfile(name="t", source="made up", token=TokenTimes(first_s=0.02))


@pytest.fixture
def drifting(tmp_path):
    """A benchmark of an engine whose speed drifts by 30 %, while its requests are all sizes."""
    laws = (Distribution("exp", 300.0), 1.0), (Distribution("exp", 100.0), 2.0)
    rng = np.random.default_rng(3)
    service = Service(profile=TRUTH)
    world = scene(cap=3, queue=10_000, service=service, arrivals=Renewal(rate=1.0), requests=300)
    world, factor = varying(world, laws, lambda at_s: slowness(rng, at_s, of_times=0.3), rng)
    return varying_log(tmp_path / "drifting.jsonl", world, factor)


def test_profile_of_a_drifting_engine_says_so_and_survives_a_file(drifting, tmp_path, capsys):
    profile = calibrate([drifting], "mine", None).profile
    assert profile.pace.deviation == pytest.approx(0.3, abs=0.15)
    kept = tmp_path / "profile.json"
    kept.write_text(json.dumps(profile_document(profile)), encoding="utf-8")
    assert read_profile(kept) == profile
    given = {"LOG": [str(drifting)], "--upstream": None, "--name": None, "--out": None}
    assert COMMANDS["calibrate"]({**given, "--json": False}) == 0
    assert "varied by itself" in " ".join(capsys.readouterr().out.split())


def test_steady_engine_is_not_said_to_vary(tmp_path):
    path = benchmark(tmp_path, TRUTH, prompt=300.0, requests=300)
    assert calibrate([path], "mine", None).profile.pace.deviation < 0.03
