"""`validate --engine`: what was fitted to one run of an engine, held against another run of it."""

import json

import pytest
from made_logs import benchmark

from simulator.traffic.service_profiles import ServiceProfile, TokenTimes
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


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--slots", "4"], "--slots: goes with --engine only"),
        (["--engine", "nowhere.jsonl", "--slots", "4"], "cannot read nowhere.jsonl"),
        (["--engine", "nowhere.jsonl"], "--engine: needs --slots"),
    ],
)
def test_option_that_cannot_work_is_named(more, told, capsys):
    assert main(["validate", *more]) == 2
    assert told in capsys.readouterr().err
