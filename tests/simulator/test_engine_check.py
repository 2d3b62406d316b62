"""`validate --engine`: what was fitted to one run of an engine, held against another run of it."""

import json

import pytest
from made_logs import benchmark, logged
from scenes import scene

from simulator.traffic.distributions import Distribution
from simulator.traffic.service import Service
from simulator.traffic.service_profiles import ServiceProfile, TokenTimes
from simulator.traffic.workload import Renewal
from tornado_frontdoor.cli.main import main

ENGINE = ServiceProfile(
    name="engine",
    source="made up",
    token=TokenTimes(first_s=0.02, per_sequence_s=0.002),
    prompt_token_s=0.0001,
    prompt_overhead_s=0.015,
)
SLOWER = ServiceProfile(name="slower", source="made up", token=TokenTimes(first_s=0.05))


@pytest.fixture
def runs(tmp_path):
    """Runs of one engine before cap 3 and 7, and one of another engine."""
    found = []
    for name, engine, cap in (("a", ENGINE, 3), ("b", ENGINE, 7), ("c", SLOWER, 7)):
        folder = tmp_path / name
        folder.mkdir()
        found.append(
            benchmark(folder, engine, cap=cap, rate=0.3, requests=150, prompt=800.0, seed=cap)
        )
    return found


def values(capsys):
    return {each["name"]: each for each in json.loads(capsys.readouterr().out)["values"]}


def test_engine_fitted_at_a_small_cap_foretells_a_larger_one(runs, capsys):
    fitted, foretold, _ = map(str, runs)
    line = ["validate", "--engine", fitted, "--against", foretold, "--slots", "7", "--reps", "8"]
    assert main([*line, "--jobs", "1", "--json"]) == 0
    found = values(capsys)
    for name in ("latency, p50", "latency, p95", "a further token, p50"):
        assert found[name]["simulated"] == pytest.approx(found[name]["measured"], rel=0.1)


def test_another_engine_is_not_taken_for_it(runs, capsys):
    fitted, _, other = map(str, runs)
    line = ["validate", "--engine", fitted, "--against", other, "--slots", "7", "--reps", "6"]
    assert main([*line, "--jobs", "1"]) == 1
    assert "wrong" in capsys.readouterr().out


@pytest.fixture
def logs(tmp_path):
    """Logs of one engine before cap 2 and 6, and of another before cap 6."""
    found = []
    for name, engine, cap, rate in (
        ("cap2", ENGINE, 2, 0.6),
        ("cap6", ENGINE, 6, 1.6),
        ("other", SLOWER, 6, 1.6),
    ):
        folder = tmp_path / name
        folder.mkdir()
        service = Service(
            profile=engine, prompt=Distribution("exp", 300.0), output=Distribution("exp", 100.0)
        )
        arrivals = Renewal(rate=rate)
        world = scene(
            cap=cap, service=service, arrivals=arrivals, requests=400, warmup=0, timeout_s=30.0
        )
        found.append(str(logged(folder, world, seed=cap)[0]))
    return found


BEFORE_CAP_6 = ["--slots", "8", "--cap", "6", "--queue", "8", "--reps", "8", "--jobs", "1"]


def test_log_of_a_small_cap_foretells_losses_and_waits_of_a_larger_one(logs, capsys):
    small, large, _ = logs
    assert main(["validate", "--engine", small, "--against", large, *BEFORE_CAP_6, "--json"]) == 0
    found = values(capsys)
    assert found["latency, p50"]["simulated"] == pytest.approx(
        found["latency, p50"]["measured"], rel=0.2
    )
    assert found["latency, p95"]["low"] < found["latency, p95"]["measured"]
    assert found["latency, p95"]["measured"] < found["latency, p95"]["high"]


def test_log_of_another_engine_is_not_taken_for_it(logs, capsys):
    small, _, other = logs
    assert main(["validate", "--engine", small, "--against", other, *BEFORE_CAP_6]) == 1
    told = capsys.readouterr().out
    assert "lost" in told
    assert "Fitted to access.log, held against access.log." in told


def test_limits_go_with_logs_and_logs_with_limits(logs, runs, capsys):
    small, large, _ = logs
    for line, said in (
        (["--engine", small, "--against", large, "--slots", "8"], "give --cap and --queue"),
        (["--engine", str(runs[0]), *BEFORE_CAP_6], "met no front door"),
        (["--engine", small, "--slots", "8", "--cap", "6"], "one needs the other"),
    ):
        assert main(["validate", *line]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--slots", "4"], "--slots: goes with --engine only"),
        (["--engine", "nowhere.jsonl", "--slots", "4"], "cannot read nowhere.jsonl"),
        (["--engine", "nowhere.jsonl"], "--engine: needs --slots"),
        (["--engine", "x", "--slots", "4", "--cap", "999999999"], "--cap: must be at most 100000"),
        (["--engine", "x", "--slots", "4", "--queue", "100001"], "--queue: must be at most 100000"),
    ],
)
def test_option_that_cannot_work_is_named(more, told, capsys):
    assert main(["validate", *more]) == 2
    assert told in capsys.readouterr().err
