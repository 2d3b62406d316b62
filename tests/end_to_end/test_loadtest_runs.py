"""bin/loadtest as users run it: small, green, red when it should be, and nothing left behind."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from stopwatch import PATIENCE_S

from loadtests.harness.__main__ import main

ROOT = Path(__file__).parents[2]
TIMEOUT_S = PATIENCE_S

SMALL = {
    "verify": ["--hold", "0.3"],
    "mixed": ["--hold", "exp:0.2", "--rate", "20", "--seconds", "2", "--predict"],
    "streaming": ["--users", "6", "--seconds", "1"],
    "wake-storm": ["--users", "24"],
    "disconnects": ["--hold", "exp:0.1", "--seconds", "2"],
    "restart": ["--users", "12", "--seconds", "6"],
    "soak": ["--hold", "exp:0.1", "--rate", "8", "--seconds", "2"],
}
ALWAYS = ("mixed", "wake-storm")
"""Between them they use every part of the harness; each takes some seconds to start."""


def loadtest(out: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "loadtests.harness", *arguments, "--out", str(out)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    with process:
        try:
            said, _ = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.terminate()
    return process.returncode, said


def processes_of(folder: Path) -> list[str]:
    """Return the commands that still run with a file of this folder open as their output."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder) in os.readlink(process / "fd" / "1"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def summary_of(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "summary.json").read_text()))


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(name, marks=() if name in ALWAYS else pytest.mark.slow, id=name)
        for name in SMALL
    ],
)
def test_a_small_run_keeps_all_laws(scenario: str, tmp_path: Path) -> None:
    code, said = finish(loadtest(tmp_path / "out", scenario, *SMALL[scenario]))
    assert code == 0, said
    assert "FAIL" not in said
    reports = tmp_path / "out" / "level-2" if scenario == "wake-storm" else tmp_path / "out"
    for name in ("report.html", "locust_stats.csv", "exact.csv", "summary.json"):
        assert (reports / name).stat().st_size > 0
    assert processes_of(tmp_path) == []
    if "--predict" in SMALL[scenario]:
        line = next(line for line in said.splitlines() if "wait_p95_s" in line)
        measured, predicted, error, _, exact = (float(cell) for cell in line.split("│")[2:7])
        assert measured == pytest.approx(predicted, abs=4 * error)
        assert exact == pytest.approx(0.155219, abs=1e-6)  # M/M/6/14 at 20/s, 0.2 s, by hand


FAULTS = [
    pytest.param("owner killed", id="owner killed"),
    pytest.param("", id="all", marks=pytest.mark.slow),
]


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
@pytest.mark.parametrize("faults", FAULTS)
def test_front_doors_that_share_a_gate_keep_all_laws_under_faults(
    faults: str, tmp_path: Path
) -> None:
    """A machine that is busy may take twice the time to full use; all else holds on any."""
    chosen = ["--faults", faults] if faults else []
    small = ["--seconds", "0.5", "--hold", "0.2"]
    with loadtest(tmp_path / "out", "cluster", *small, *chosen) as process:
        said, _ = process.communicate(timeout=150 if faults else 900)
    broken = [line for line in said.splitlines() if line.startswith("FAIL")]
    assert [line for line in broken if "full use again after" not in line] == [], said
    assert process.returncode == (1 if broken else 0), said
    rows = json.loads((tmp_path / "out" / "cluster.json").read_text())
    for row in rows:
        assert row["most"] == 6
        if "killed" in row["fault"] and "Redis" not in row["fault"]:
            assert row["full_again_s"] < 4, row
    assert processes_of(tmp_path) == []


def test_workers_bring_all_requests_to_the_master_and_a_missed_objective_is_the_exit_code(
    tmp_path: Path,
) -> None:
    # All forty have asked before the first six are through: on a busy machine, too.
    run = ("verify", "--hold", "2", "--processes", "2", "--slo", "refused_share=0.6")
    code, said = finish(loadtest(tmp_path, *run))
    assert code == 1, said
    assert "refused_share is 0.65, not <= 0.6" in said
    assert summary_of(tmp_path)["models"] == {"reasoning": {"served": 14, "refused": 26}}


def test_workers_elsewhere_share_the_rate_that_the_master_was_told(tmp_path: Path) -> None:
    # Nobody listens: what counts is how many requests were due.
    locust = [sys.executable, "-m", "locust", "-f", "loadtests/mixed.py", "--headless"]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    master = [
        *("--master", "--master-bind-port", port, "--expect-workers", "2", "--users", "4"),
        *("--spawn-rate", "4", "--host", "http://127.0.0.1:9", "--out", str(tmp_path)),
        *("--rate", "8", "--seconds", "5"),  # workers report every 3 s, and in the end if they can
    ]
    worker = ["--worker", "--master-port", port]
    processes = [
        subprocess.Popen([*locust, *options], cwd=ROOT, stderr=subprocess.DEVNULL)
        for options in (master, worker, worker)
    ]
    try:
        assert processes[0].wait(TIMEOUT_S) == 1
    finally:
        for process in processes:
            process.terminate()
            process.wait(TIMEOUT_S)
    offered = summary_of(tmp_path)["offered"]
    assert 60 < offered["due"] < 200  # of 120; four that do not share would make it 480
    assert offered["behind_share"] == 0


def test_arrivals_are_those_of_the_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s\n" + "\n".join(str(5 + n / 50) for n in range(60)))
    arguments = ("mixed", "--trace", str(trace), "--seconds", "2", "--hold", "0.01")
    code, said = finish(loadtest(tmp_path / "out", *arguments))
    assert code == 0, said
    summary = summary_of(tmp_path / "out")
    assert summary["offered"]["due"] == 60
    assert sum(sum(counts.values()) for counts in summary["models"].values()) == 60


@pytest.mark.parametrize(
    "signals",
    [
        [signal.SIGINT],
        pytest.param([signal.SIGHUP], marks=pytest.mark.slow),
        pytest.param([signal.SIGINT] * 2, marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_stops_everything(signals: list[signal.Signals], tmp_path: Path) -> None:
    run = loadtest(tmp_path, "soak", "--seconds", "60")
    deadline = time.monotonic() + TIMEOUT_S
    while len(processes_of(tmp_path)) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(processes_of(tmp_path)) == 5  # three engines, front door, Locust
    for number in signals:
        run.send_signal(number)
        time.sleep(0.05)  # else the kernel may make one signal of two
    code, said = finish(run)
    assert (code, said) == (130, "")
    assert processes_of(tmp_path) == []


def test_files_of_others_are_never_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").touch()
    code = main(["verify", "--out", str(tmp_path)])
    said = capsys.readouterr().err
    assert (code, "holds other files" in said) == (2, True), said
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["storm"], "no scenario is named 'storm'"),
        (["verify", "--users", "0"], "--users must be a number above 0"),
        (["verify", "--slo", "fast=1"], "is not NAME=MOST"),
        (["verify", "--predict"], "--predict is for mixed"),
        (["mixed", "--trace", "nowhere.csv"], "nowhere.csv"),
        (["verify", "--hold", "exp:0"], "--hold: 'exp:0' is not S or exp:S"),
        (["mixed", "--seed", "x"], "--seed: 'x' is not a whole number"),
        (["mixed", "--rate", "nan"], "--rate must be a number above 0"),
        (["mixed", "--thin", "2"], "--thin: 2 is not a share"),
        (["verify", "--processes", "0"], "--processes: '0' is not a whole number from 1 on"),
    ],
)
def test_wrong_usage_is_told_before_anything_starts(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([*arguments, "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert (code, complaint in said) == (2, True), said
    assert not (tmp_path / "out").exists()


def test_a_locustfile_runs_by_plain_locust(tmp_path: Path) -> None:
    # Nobody listens: every request fails, and the exit code says so.
    run = subprocess.run(
        [
            *(sys.executable, "-m", "locust", "--config", "conf/locust.conf"),
            *("-f", "loadtests/verify.py", "--host", "http://127.0.0.1:9", "--users", "2"),
            *("--out", str(tmp_path)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 1, run.stderr
