"""Profiles from logs: what a simulated front door did must be found again in its log."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from scenes import result_of, scene

from simulator.cli.commands import observed_metrics
from simulator.model.event_loop import HeapDriver
from simulator.model.run import SimulatedRun, new_gate
from simulator.study.calibrate import Occupancy, calibrate
from simulator.traffic.access_log import read_access_log
from simulator.traffic.distributions import Distribution
from simulator.traffic.service_profiles import (
    MeasuredSeconds,
    ServiceProfile,
    profile_document,
    read_profile,
)
from simulator.traffic.streams import Streams
from simulator.traffic.tables import TraceError
from simulator.traffic.workload import Renewal, Service

START = datetime(2026, 1, 5, tzinfo=UTC)


class _Logging(SimulatedRun):
    """A run that writes the line the front door would write at the end of each request."""

    def __init__(self, *given):
        super().__init__(*given)
        self.lines = []

    def _served(self, attempt):
        super()._served(attempt)
        self._log(attempt, "served", attempt.admitted_s - attempt.arrived_s)

    def _refused(self, attempt, refusal):
        super()._refused(attempt, refusal)
        self._log(attempt, refusal.reason.value, self._loop.time_s - attempt.arrived_s)

    def _log(self, attempt, outcome, waited_s):
        now = self._loop.time_s
        entry = {
            "time": (START + timedelta(seconds=now)).isoformat(timespec="milliseconds"),
            "upstream": "reasoning",
            "outcome": outcome,
            "waited_s": round(waited_s, 6),
            "first_byte_s": None,
            "total_s": round(now - attempt.arrived_s, 6),
            "weight": attempt.weight,
        }
        self.lines.append(json.dumps(entry))


def logged(tmp_path, world):
    """Return an access log of a world, and the world's metrics."""
    streams, loop = Streams(3, 0), HeapDriver()
    run = _Logging(world, streams, loop, new_gate(world, loop, streams))
    records = run.run()
    path = tmp_path / "access.log"
    path.write_text("\n".join(run.lines), encoding="utf-8")
    return path, records


def test_seconds_and_slowdown_are_found_again(tmp_path):
    service = Service(seconds=Distribution("lognormal", 2.0, 0.5), slowdown=0.1)
    path, _ = logged(tmp_path, scene(service=service, requests=20_000, warmup=0, timeout_s=30.0))
    fit = calibrate(path, "mine", None)
    assert isinstance(fit.profile, MeasuredSeconds)
    assert fit.profile.slowdown == pytest.approx(0.1, rel=0.2)
    assert fit.profile.seconds.mean == pytest.approx(2.0, rel=0.05)
    log_deviation = np.log(fit.profile.seconds.values).std()
    assert log_deviation == pytest.approx(0.5, rel=0.1)


def test_constant_speed_is_not_taken_for_a_slowdown(tmp_path):
    path, _ = logged(tmp_path, scene(requests=5000, warmup=0))
    fit = calibrate(path, "mine", None)
    assert fit.profile.slowdown == 0
    assert 0 < fit.facts["slowdown_ci95"] < 0.1
    assert fit.profile.seconds.mean == pytest.approx(2.0, rel=0.05)


def test_log_says_of_itself_what_happened(tmp_path):
    world = scene(timeout_s=3.0, arrivals=Renewal(rate=3.6), requests=3000, warmup=0)
    path, records = logged(tmp_path, world)
    observed = observed_metrics(read_access_log(path))
    truth = records.metrics()
    for name in ("rejected_share", "timed_out_share", "served_share", "wait_mean_s", "wait_p95_s"):
        assert observed[name] == pytest.approx(truth[name], abs=2e-6), name


def test_replay_before_the_same_limits_tells_what_happened(tmp_path):
    from simulator.cli.options import replay_of

    world = scene(timeout_s=3.0, arrivals=Renewal(rate=3.6), requests=3000, warmup=0)
    path, records = logged(tmp_path, world)
    given = {"LOG": str(path), "--cap": "6,12", "--queue": "8", "--timeout": "3", "--reps": "6"}
    command = replay_of({**given, "--jobs": "1"})
    same, wider = (result_of(point, replications=6) for point in command.scenarios)
    truth = records.metrics()
    assert same.estimate("lost_share").mean == pytest.approx(truth["lost_share"], abs=0.01)
    assert same.estimate("wait_mean_s").mean == pytest.approx(truth["wait_mean_s"], rel=0.03)
    assert wider.estimate("lost_share").mean < 0.5 * truth["lost_share"]


def test_company_is_the_mean_number_in_service_meanwhile():
    begins, ends = np.array([0.0, 1.0, 5.0]), np.array([4.0, 3.0, 6.0])
    occupancy = Occupancy(begins, ends)
    assert occupancy.company(begins, ends) == pytest.approx([1.5, 2.0, 1.0])
    assert occupancy.at(begins).tolist() == [1, 2, 1]
    assert occupancy.work(begins, ends, 1.0) == pytest.approx([3.0, 1.0, 1.0])


def benchmark(tmp_path, token_s, prompt_token_s, overhead_s):
    rng = np.random.default_rng(4)
    at_s, lines = 0.0, []
    ends = []
    for _ in range(400):
        at_s += rng.exponential(1.5)
        inside = 1 + sum(end > at_s for end in ends)
        prompt, output = int(rng.integers(100, 8000)), int(rng.integers(50, 400))
        first = at_s + overhead_s + prompt * prompt_token_s
        last = first + (output - 1) * token_s(inside)
        ends.append(last)
        entry = {"input_toks": prompt, "output_toks": output, "scheduled_ts": at_s}
        lines.append(json.dumps({**entry, "first_token_ts": first, "last_token_ts": last}))
    path = tmp_path / "bench.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_token_and_prompt_times_are_found_again(tmp_path):
    path = benchmark(tmp_path, lambda inside: 0.02 + 0.001 * (inside - 1), 0.0002, 0.02)
    fit = calibrate(path, "mine", None)
    assert isinstance(fit.profile, ServiceProfile)
    assert fit.profile.token.at(1) == pytest.approx(0.02, rel=0.1)
    assert fit.profile.token.at(6) == pytest.approx(0.025, rel=0.1)
    assert fit.profile.prompt_token_s == pytest.approx(0.0002, rel=0.05)
    assert fit.profile.prompt_overhead_s == pytest.approx(0.02, rel=0.5)


def test_profiles_survive_a_file(tmp_path):
    path = benchmark(tmp_path, lambda _: 0.02, 0.0002, 0.02)
    tokens = calibrate(path, "mine", None).profile
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
        calibrate(path, "mine", None)
