"""Profiles from logs: what a simulated front door did must be found again in its log."""

import json
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from made_logs import START, benchmark, logged
from scenes import result_of, scene

from simulator.reports.json_document import estimate_document
from simulator.study.calibrate import calibrate
from simulator.study.observed import observed_metrics
from simulator.study.occupancy import Occupancy
from simulator.study.token_fit import REDRAWN
from simulator.traffic.access_log import read_access_log
from simulator.traffic.distributions import Distribution
from simulator.traffic.service import Rows, Service
from simulator.traffic.service_profiles import (
    MeasuredSeconds,
    ServiceProfile,
    TokenTimes,
    profile_document,
    read_profile,
)
from simulator.traffic.tables import TraceError
from simulator.traffic.workload import Renewal, Replay


def test_seconds_and_slowdown_are_found_again(tmp_path):
    service = Service(seconds=Distribution("lognormal", 2.0, 0.5), slowdown=0.1)
    path, _ = logged(tmp_path, scene(service=service, requests=20_000, warmup=0, timeout_s=30.0))
    fit = calibrate([path], "mine", None)
    assert isinstance(fit.profile, MeasuredSeconds)
    assert fit.profile.slowdown == pytest.approx(0.1, rel=0.2)
    assert fit.profile.seconds.mean == pytest.approx(2.0, rel=0.05)
    log_deviation = np.log(fit.profile.seconds.values).std()
    assert log_deviation == pytest.approx(0.5, rel=0.1)


def test_constant_speed_is_not_taken_for_a_slowdown(tmp_path):
    path, _ = logged(tmp_path, scene(requests=5000, warmup=0))
    fit = calibrate([path], "mine", None)
    assert fit.profile.slowdown <= fit.facts["slowdown_ci95"] < 0.1
    assert fit.profile.seconds.mean == pytest.approx(2.0, rel=0.05)


def test_log_says_of_itself_what_happened(tmp_path):
    world = scene(timeout_s=3.0, arrivals=Renewal(rate=3.6), requests=3000, warmup=0)
    path, records = logged(tmp_path, world)
    observed = observed_metrics(read_access_log(path))
    truth = records.metrics()
    for name in ("rejected_share", "timed_out_share", "served_share", "wait_mean_s", "wait_p95_s"):
        assert observed[name] == pytest.approx(truth[name], abs=2e-6), name


def replayed(path, cap, timeout_s=3.0, replications=4):
    """What `replay` says of a log before a cap, and of the log itself."""
    from simulator.cli.options import replay_of

    given = {"LOG": str(path), "--cap": str(cap), "--queue": "8", "--timeout": str(timeout_s)}
    command = replay_of({**given, "--jobs": "1"})
    (point,) = command.scenarios
    return result_of(point, replications=replications), observed_metrics(command.log)


ENDS = ("served_share", "rejected_share", "timed_out_share", "left_share", "lost_share")


@pytest.mark.parametrize("slowdown", [0.0, 0.15])
@pytest.mark.parametrize("leaving", [{}, {"patience": Distribution("exp", 4.0), "hang_up": 0.1}])
def test_replay_before_the_same_limits_tells_what_happened(tmp_path, slowdown, leaving):
    """Those who leave the queue are lost, those who leave their slot are not: in both rows."""
    engine = Service(seconds=Distribution("lognormal", 2.0, 0.7), slowdown=slowdown)
    rate = 3.4 / (1 + 5 * slowdown)
    world = scene(timeout_s=3.0, service=engine, arrivals=Renewal(rate=rate), **leaving)
    path, _ = logged(tmp_path, replace(world, requests=1500, warmup=0))
    made, observed = replayed(path, 6)
    for name in ENDS:
        assert made.estimate(name).mean == pytest.approx(observed[name], abs=0.01), name
    for name in ("wait_p50_s", "wait_p95_s", "latency_p50_s", "latency_p95_s"):
        assert made.estimate(name).mean == pytest.approx(observed[name], rel=0.05, abs=0.05), name


@pytest.mark.parametrize("kind", ["gone", "refused"])
def test_each_line_of_a_log_is_in_one_end_only(tmp_path, kind):
    leaving = {"patience": Distribution("exp", 1.0)} if kind == "gone" else {}
    world = scene(timeout_s=3.0, arrivals=Renewal(rate=4.5), requests=600, warmup=0, **leaving)
    path, records = logged(tmp_path, world)
    made, observed = replayed(path, 6, replications=2)
    truth = records.metrics()
    for name in ENDS:
        assert observed[name] == pytest.approx(truth[name], abs=1e-9), name
    for values in (observed, {name: made.estimate(name).mean for name in ENDS}):
        assert sum(values[name] for name in ENDS[:4]) == pytest.approx(1.0)
        assert sum(values[name] for name in ENDS[1:4]) == pytest.approx(values["lost_share"])
    assert observed["left_share" if kind == "gone" else "timed_out_share"] > 0.05


def test_company_is_the_mean_number_in_service_meanwhile():
    begins, ends = np.array([0.0, 1.0, 5.0]), np.array([4.0, 3.0, 6.0])
    occupancy = Occupancy(begins, ends)
    assert occupancy.company(begins, ends) == pytest.approx([1.5, 2.0, 1.0])
    assert occupancy.at(begins).tolist() == [1, 2, 1]
    assert occupancy.work(begins, ends, 1.0) == pytest.approx([3.0, 1.0, 1.0])


TRUTH = ServiceProfile(
    name="truth",
    source="made up",
    token=TokenTimes(first_s=0.0255, per_sequence_s=0.0004),
    prompt_token_s=0.00014,
    prompt_overhead_s=0.015,
)


def test_token_and_prompt_times_are_found_again(tmp_path):
    fit = calibrate([benchmark(tmp_path, TRUTH)], "mine", None)
    assert isinstance(fit.profile, ServiceProfile)
    assert fit.profile.token.at(1) == pytest.approx(0.0255, rel=0.03)
    assert fit.profile.token.at(7) == pytest.approx(TRUTH.token.at(7), rel=0.03)
    assert fit.profile.prompt_token_s == pytest.approx(0.00014, rel=0.15)
    assert fit.profile.seen_batch == pytest.approx(7, abs=0.6)
    assert len(fit.profile.draws) == REDRAWN


def test_others_prompts_are_not_paid_for_twice(tmp_path):
    """Fitted apart, the prompts of others go into the token time, and the model adds them again."""
    fit = calibrate([benchmark(tmp_path, TRUTH, rate=2.0, requests=300)], "mine", None)
    whole = fit.profile.token.at(7) * 250 / 7 + fit.profile.prompt_token_s * 2000
    truth = TRUTH.token.at(7) * 250 / 7 + TRUTH.prompt_token_s * 2000 + TRUTH.prompt_overhead_s
    assert whole + fit.profile.prompt_overhead_s == pytest.approx(truth, rel=0.03)


def test_experts_that_slow_down_by_a_power_are_followed(tmp_path):
    experts = replace(TRUTH, token=TokenTimes(first_s=0.006, power=0.5))
    fit = calibrate([benchmark(tmp_path, experts, rate=0.8, prompt=100.0)], "mine", None)
    for batch in (2, 4, 7):
        assert fit.profile.token.at(batch) == pytest.approx(experts.token.at(batch), rel=0.06)


def test_two_logs_of_two_caps_tell_more_than_one(tmp_path):
    service = Service(seconds=Distribution("lognormal", 2.0, 0.5), slowdown=0.3)
    logs = []
    for cap, rate in ((2, 0.6), (6, 1.6)):
        world = scene(cap=cap, service=service, arrivals=Renewal(rate=rate), requests=500, warmup=0)
        folder = tmp_path / str(cap)
        folder.mkdir()
        logs.append(logged(folder, world)[0])
    alone, both = (calibrate(each, "mine", None) for each in (logs[:1], logs))
    assert both.profile.slowdown_error < 0.5 * alone.profile.slowdown_error
    assert both.profile.slowdown == pytest.approx(0.3, abs=3 * both.profile.slowdown_error)
    assert both.facts["served"] > alone.facts["served"]


def test_vague_slowdown_makes_wide_intervals(tmp_path):
    """What a log of a small cap cannot tell is in the interval of every prediction."""
    service = Service(seconds=Distribution("lognormal", 2.0, 0.5), slowdown=0.3)
    world = scene(cap=3, service=service, arrivals=Renewal(rate=0.9), requests=300, warmup=0)
    path, _ = logged(tmp_path, world)
    fit = calibrate([path], "mine", None)
    assert fit.profile_is_vague
    known = {"seconds": fit.profile.seconds, "slowdown": fit.profile.slowdown}
    told = Service(**known, slowdown_error=fit.profile.slowdown_error, fitted_batch=2.0)
    wider = scene(cap=6, arrivals=Renewal(rate=1.6), requests=600, warmup=50)
    sure, unsure = (
        result_of(replace(wider, service=each), replications=12)
        for each in (Service(**known), told)
    )
    assert unsure.uncertain_engine
    assert unsure.estimate("wait_p95_s").ci95 > 2 * sure.estimate("wait_p95_s").ci95
    lopsided = estimate_document(unsure.estimate("wait_p95_s"))
    assert lopsided["low"] < lopsided["mean"] < lopsided["high"]
    assert set(estimate_document(sure.estimate("wait_p95_s"))) == {"mean", "ci95"}


@pytest.mark.parametrize("cap", [2, 6])
def test_replay_at_another_cap_is_another_speed(tmp_path, cap):
    """Were seconds as recorded, cap 2 would lose nearly twice as many as it does."""
    service = Service(seconds=Distribution("lognormal", 2.0, 0.5), slowdown=0.15)
    world = scene(cap=4, timeout_s=20.0, service=service, arrivals=Renewal(rate=1.1))
    world = replace(world, requests=1500, warmup=0)
    path, _ = logged(tmp_path, world)
    foretold, _ = replayed(path, cap, timeout_s=20.0, replications=8)
    truth = result_of(replace(world, cap=cap), replications=4)
    for name in ("lost_share", "wait_p95_s", "latency_p50_s"):
        interval = foretold.estimate(name)
        assert interval.low <= truth.estimate(name).mean <= interval.high, name
    assert foretold.estimate("latency_p50_s").mean == pytest.approx(
        truth.estimate("latency_p50_s").mean, rel=0.15
    )


def test_access_log_with_tokens_gives_token_times(tmp_path):
    path = benchmark(tmp_path, TRUTH)
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(text)
        begun = entry["scheduled_ts"]
        took_s = entry["last_token_ts"] - begun
        line = {
            "time": (START + timedelta(seconds=begun + took_s)).isoformat(timespec="milliseconds"),
            "upstream": "reasoning",
            "outcome": "served",
            "stream": True,
            "waited_s": 0.0,
            "first_byte_s": entry["first_token_ts"] - begun,
            "total_s": took_s,
            "weight": 1,
            "tokens_in": int(entry["input_toks"]),
            "tokens_out": round(entry["output_toks"]),
        }
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines[:150]), encoding="utf-8")
    fit = calibrate([path], "mine", None)
    assert isinstance(fit.profile, ServiceProfile)
    assert fit.profile.token.at(7) == pytest.approx(TRUTH.token.at(7), rel=0.05)


# Facts of recorded runs on real GPUs, where they are at hand: FRONTDOOR_TRACES names their folder.

TRACES = Path(os.environ.get("FRONTDOOR_TRACES", "nowhere"))


@pytest.mark.skipif(not TRACES.is_dir(), reason="FRONTDOOR_TRACES names no folder")
@pytest.mark.parametrize(
    ("run", "slots"), [("qwen3-32b", 128), ("qwen3-30b-a3b-instruct-2507", 256)]
)
def test_recorded_gpu_run_is_predicted_within_five_percent(run, slots):
    path = TRACES / "calibration" / f"vllm019_rtxpro6000_{run}_requests.jsonl"
    profile = calibrate([path], "mine", None).profile
    rows = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    rows.sort(key=lambda row: row["queued_ts"])
    at_s, prompt, output, last_s = (
        np.array([row[key] for row in rows], dtype=float)
        for key in ("queued_ts", "input_toks", "output_toks", "last_token_ts")
    )
    arrivals = Replay(rows=Rows(at_s - at_s[0], prompt, output))
    service = Service(profile=replace(profile, draws=()))
    world = scene(cap=slots, slots=slots, queue=1000, service=service, arrivals=arrivals)
    result = result_of(replace(world, requests=None, warmup=0), replications=1)
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        measured = np.quantile(last_s - at_s, share)
        predicted = result.estimate(f"latency_{name}_s").mean
        print(f"{run} {name}: measured {measured:.2f} s, predicted {predicted:.2f} s")
        assert predicted == pytest.approx(measured, rel=0.05), name


def test_profiles_survive_a_file(tmp_path):
    path = benchmark(tmp_path, TRUTH, requests=60)
    tokens = calibrate([path], "mine", None).profile
    seconds = MeasuredSeconds(
        name="s",
        source="here",
        seconds=Distribution("empirical", 2.0, 0.0, (1.0, 3.0)),
        slowdown=0.05,
    )
    for profile in (tokens, seconds):
        kept = tmp_path / "profile.json"
        kept.write_text(json.dumps(profile_document(profile)), encoding="utf-8")
        assert read_profile(kept) == profile


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not JSON"),
        ("[]", "no JSON object"),
        ("{}", "token_s is missing"),
        ('{"token_s": 0}', "token_s must be above 0"),
        ('{"token_s": "fast"}', "token_s must be a number"),
        ('{"token_s": 0.1, "colour": 1}', "unknown key colour"),
        ('{"seconds": []}', "seconds must be a list"),
        ('{"seconds": [1, "x"]}', "seconds must be a list of numbers"),
        ('{"seconds": [1], "slowdown": -1}', "at least 0"),
    ],
)
def test_fault_of_a_profile_is_named(tmp_path, text, complaint):
    path = tmp_path / "profile.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=complaint):
        read_profile(path)


def test_too_few_requests_are_no_fit(tmp_path):
    path, _ = logged(tmp_path, scene(requests=10, warmup=0))
    with pytest.raises(TraceError, match="a fit needs 20"):
        calibrate([path], "mine", None)
