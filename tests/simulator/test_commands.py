"""The commands as people and scripts meet them: pages, JSON, pictures, exit codes."""

import json

import pytest
from docopt import docopt

from simulator.cli import commands
from simulator.cli.commands import COMMANDS, UsageError
from simulator.cli.usage import SUMMARY, USAGE
from simulator.exact.validate import cases
from simulator.reports.json_document import LISTED


def run(text, capsys):
    """Run a command line; returns its exit code and what it printed."""
    words = text.split()
    code = COMMANDS[words[0]](docopt(USAGE[words[0]], argv=words))
    return code, capsys.readouterr().out


SMALL = "--requests 400 --reps 3 --jobs 1"


def test_every_command_has_its_help():
    assert set(COMMANDS) | {"tune"} == set(USAGE) == set(SUMMARY)
    for name, text in USAGE.items():
        assert f"frontdoor {name} " in text
        assert max(map(len, text.splitlines())) <= 100


def test_page_tells_every_parameter_and_the_exact_values(capsys):
    code, page = run(f"simulate --cap 6 --queue 8 {SMALL}", capsys)
    assert code == 0
    for word in ("rate_per_s", "rho", "exp:2", "replications", "exact", "98.13 %", "20 % higher"):
        assert word in page
    assert "±" in page
    assert "█" in page


def test_page_of_a_burst_tells_when(capsys):
    _, page = run("simulate --cap 6 --queue 8 --burst 40 --service hold:2 --timeout 3", capsys)
    assert "queue_timeout" in page
    assert "3.000 s" in page
    assert "nothing in this is random" in page
    assert "exact" not in page


def test_page_tells_what_each_key_met(capsys):
    _, page = run(f"simulate --cap 6 --queue 8 --keys A=9,B=1 --fair-share {SMALL}", capsys)
    rows = page[page.index("By key") : page.index("How requests ended")].splitlines()
    assert [row.split()[0] for row in rows if row.strip()[:2] in {"A ", "B "}] == ["A", "B"]
    assert all(row.count("±") == 3 for row in rows if row.strip()[:2] in {"A ", "B "})
    assert "exact" not in page  # theory is of order of arrival


def test_hidden_wait_is_pointed_out(capsys):
    _, page = run(f"simulate --cap 12 --queue 8 {SMALL}", capsys)
    assert "the cap of 12 is above the engine's 8 slots" in page


def test_profile_is_shown_with_its_source(capsys):
    _, page = run(f"simulate --cap 6 --queue 8 --service profile:moe-a3b-fast {SMALL}", capsys)
    assert "Calibrate before use" in " ".join(page.split())
    assert "first token" in page


def test_json_of_simulate_has_what_the_contract_lists(capsys):
    _, printed = run(f"simulate --cap 6 --queue 8 --json {SMALL}", capsys)
    document = json.loads(printed)
    assert document["replications"] == 3
    assert {"offered", "served", "queue_full", "queue_timeout", "left"} <= set(document["counts"])
    assert set(LISTED) <= set(document["metrics"])
    assert all(set(value) == {"mean", "ci95"} for value in document["metrics"].values())
    assert "timeline" not in document


def test_json_has_the_exact_values_where_theory_has_them(capsys):
    line = f"simulate --cap 1 --queue 0 --rate 0.5 --service exp:2 --timeout none --json {SMALL}"
    exact = json.loads(run(line, capsys)[1])["exact"]
    assert exact["rejected_share"] == pytest.approx(0.5)  # Erlang B of load 1 on one slot
    assert exact["goodput_per_s"] == pytest.approx(0.25)
    assert "exact" not in json.loads(run(line.replace("exp:2", "hold:2"), capsys)[1])


def test_json_of_a_burst_has_a_timeline(capsys):
    line = "simulate --cap 6 --queue 8 --burst 40 --service hold:2 --timeout 1 --json"
    document = json.loads(run(line, capsys)[1])
    assert document["timeline"] == [
        [0, "queue_full", 26],
        [1, "queue_timeout", 8],
        [2, "served", 6],
    ]
    counts = document["counts"]
    assert (counts["served"], counts["queue_full"], counts["queue_timeout"]) == (6, 26, 8)


def test_sweep_marks_and_recommends(capsys):
    line = f"sweep --cap 4,6 --queue 4,8 --timeout 5 --rate 2 --slo lost_share=0.05 {SMALL}"
    code, page = run(line, capsys)
    assert code == 0
    assert "Recommended: cap 6" in page
    document = json.loads(run(f"{line} --json", capsys)[1])
    assert len(document["points"]) == 4
    assert document["recommended"]["cap"] == 6
    assert document["why"]
    assert any(point["pareto"] for point in document["points"])


def test_sweep_says_which_limit_is_the_least_there_must_be(capsys):
    line = f"sweep --cap 4 --queue 4 --timeout 5 --rate 1 --headroom 0 {SMALL}"
    _, page = run(f"{line} --slo utilization=0.99,lost_share=0.5", capsys)
    told = " ".join(page.split())
    assert "misses at least 0.99; the best lost_share" in told
    assert "keeps 0.5." in told
    _, page = run(f"{line} --slo served_share=0.5", capsys)
    assert "keeps at least 0.5" in " ".join(page.split())


def test_limit_on_an_unknown_metric_is_a_fault(capsys):
    line = f"sweep --cap 4 --queue 4 --timeout 5 --slo waiting_s=1 {SMALL}"
    with pytest.raises(UsageError, match="'waiting_s' is not one of"):
        run(line, capsys)


@pytest.mark.parametrize(("ending", "begins"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_run_can_be_drawn(tmp_path, capsys, ending, begins):
    path = tmp_path / f"run.{ending}"
    run(f"simulate --cap 6 --queue 8 --json {SMALL} --plot {path}", capsys)
    assert path.read_bytes().startswith(begins)


def test_picture_says_which_part_of_a_long_run_it_shows(tmp_path, capsys):
    path = tmp_path / "run.svg"
    line = "simulate --cap 6 --queue 8 --json --reps 1 --rate 3 --service exp:2"
    for requests, told in ((6000, True), (600, False)):
        run(f"{line} --requests {requests} --plot {path}", capsys)
        assert ("are shown" in path.read_text(encoding="utf-8")) is told


def test_sweep_can_be_drawn_as_a_page(tmp_path, capsys):
    path = tmp_path / "sweep.html"
    run(f"sweep --cap 4,6 --queue 4 --timeout 5 --json {SMALL} --plot {path}", capsys)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "<svg" in text


@pytest.mark.parametrize("some", [6, pytest.param(None, marks=pytest.mark.slow)])
def test_validate_passes_and_says_so(capsys, monkeypatch, some):
    monkeypatch.setattr(commands, "cases", lambda *had, **how: cases(*had, **how)[:some])
    code, page = run("validate --requests 1000 --reps 5 --jobs 1", capsys)
    assert code == 0
    assert "all within 4 sigma" in page


def test_validate_fails_when_the_simulator_is_wrong(capsys, monkeypatch):
    def wrong(requests, *, full):
        first = cases(requests, full=full)[0]
        return [type(first)(first.name, first.scenario, {"utilization": 0.5})]

    monkeypatch.setattr(commands, "cases", wrong)
    code, printed = run("validate --requests 1000 --reps 8 --jobs 1 --json", capsys)
    assert code == 1
    document = json.loads(printed)
    assert document["passed"] is False
    assert document["findings"][0]["metric"] == "utilization"


def access_log(tmp_path):
    lines = []
    for second in range(60):
        waited_s = 0.5 * (second % 2)
        outcome = "queue_full" if second % 20 == 19 else "served"
        entry = {
            "time": f"2026-01-05T00:{second:02}:00.000+00:00",
            "upstream": "reasoning",
            "outcome": outcome,
            "waited_s": waited_s if outcome == "served" else 0.0,
            "first_byte_s": waited_s + 0.2,
            "total_s": waited_s + 2.0 + second % 3 if outcome == "served" else 0.001,
            "weight": 1,
        }
        lines.append(json.dumps(entry))
    path = tmp_path / "access.log"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_replay_shows_what_was_beside_what_would_have_been(tmp_path, capsys):
    path = access_log(tmp_path)
    code, page = run(f"replay {path} --cap 2,6 --queue 0 --reps 2 --jobs 1", capsys)
    assert code == 0
    assert "60 requests" in page
    assert "5.00 %" in page  # as it was
    document = json.loads(run(f"replay {path} --cap 6 --queue 0 --json --jobs 1", capsys)[1])
    assert document["observed"]["rejected_share"] == pytest.approx(0.05)
    assert document["points"][0]["metrics"]["lost_share"]["mean"] == 0


def test_calibrated_profile_can_be_simulated(tmp_path, capsys):
    path, profile = access_log(tmp_path), tmp_path / "mine.json"
    code, page = run(f"calibrate {path} --out {profile}", capsys)
    assert code == 0
    assert "slowdown" in page
    _, page = run(f"simulate --cap 6 --queue 8 --service profile:{profile} {SMALL}", capsys)
    assert "calibrated from 57 served requests of access.log" in page
    document = json.loads(run(f"calibrate {path} --json", capsys)[1])
    assert document["profile"]["name"] == "access"
    assert document["facts"]["served"] == 57


def test_calibrate_names_what_is_wrong(tmp_path, capsys):
    with pytest.raises(UsageError, match="LOG: cannot read"):
        run(f"calibrate {tmp_path}/nowhere", capsys)
    with pytest.raises(UsageError, match="--out: cannot write"):
        run(f"calibrate {access_log(tmp_path)} --out {tmp_path}/no/folder.json", capsys)
