"""What `frontdoor tune` recommends, pasted into a configuration, served, and measured by Locust.

Rule 1: the engine is the stand-in, as fast as the profile that `tune` was given or fitted: what is
        tried is the recommendation and the prediction, not the profile.
Rule 2: the requests that are sent are none of those that `tune` simulated: another seed's.
Rule 3: one run is one sample. It is held to the objectives, and to the interval in which 95 of 100
        simulated runs of the same length lie.
"""

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from docopt import docopt

from loadtests.harness.processes import ROOT, Stage
from simulator.cli.tune import Recommendation, tune
from simulator.cli.usage import USAGE
from simulator.model.scenario import Scenario
from simulator.reports.tune_text import toml_text
from simulator.standin import server as stand_in
from simulator.study.experiment import Plan, arrivals_of, replicate
from simulator.traffic.service_profiles import (
    PROFILES,
    MeasuredSeconds,
    profile_document,
    read_profile,
)
from simulator.traffic.workload import Request


def engine(faster: float) -> dict[str, Any]:
    """Return a profile so many times as fast as one there is, so that minutes are enough."""
    base = PROFILES["dense-32b-2xa100"]
    return {
        "name": f"dense-32b-2xa100, {faster:g} times as fast",
        "source": "made up for this tryout",
        "token_s": base.token.first_s / faster,
        "token_per_sequence_s": base.token.per_sequence_s / faster,
        "prompt_token_s": base.prompt_token_s / faster,
        "prompt_overhead_s": base.prompt_overhead_s / faster,
    }


SLO = "lost_share=0.02,wait_p95_s=1"
COARSE = ("--requests", "1500", "--queue", "2,4,8,16,32", "--timeout", "2,4", "--jobs", "1")
"""Of `tune`: a coarse grid, so that trying takes minutes."""
SIMULATED = 100
"""Runs of the same length, from an empty start: their spread is that of one run."""
SEED = 77
ROUNDED_S = 0.05
"""What a busy machine and a wait told in whole milliseconds may add to a p95 wait."""
Say = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Traffic:
    """One traffic to be tuned for."""

    name: str
    options: tuple[str, ...]
    """Of `tune`: the traffic and how fast it is played."""
    faster: float = 10.0
    """How much faster than the named profile its engine is."""


def traffics(traces: Path | None, log: Path | None) -> list[Traffic]:
    """Return what there is to try."""
    sample = ROOT / "simulator" / "data" / "sample_trace.csv"
    found = [Traffic("the shipped sample", ("--trace", str(sample), "--stretch", "0.8"))]
    if traces is not None:
        azure = traces / "azure_llm_2023_conv.csv"
        servegen = traces / "servegen_reason_client48_rates.csv"
        found.append(Traffic("Azure, conversation", ("--trace", str(azure))))
        found.append(Traffic("ServeGen, client 48", ("--trace", str(servegen)), 60.0))
    if log is not None:
        options = ("--log", str(log), "--upstream", "reasoning")
        found.append(Traffic("a log of bin/loadtest mixed", options))
    return found


def try_tuned(say: Say, seconds: float, traces: Path | None, log: Path | None) -> None:
    """Tune for each traffic, serve what comes of it, and measure."""
    out = ROOT / "var" / "tryouts" / "tuned"
    out.mkdir(parents=True, exist_ok=True)
    for traffic in traffics(traces, log):
        folder = out / re.sub(r"[^a-z0-9]+", "-", traffic.name.lower())
        folder.mkdir(exist_ok=True)
        _try(say, traffic, folder, seconds)


def _try(say: Say, traffic: Traffic, folder: Path, seconds: float) -> None:
    profile = folder / "profile.json"
    profile.write_text(json.dumps(engine(traffic.faster)), encoding="utf-8")
    options = [*traffic.options, "--slo", SLO, "--slots", "8", *COARSE]
    if "--log" not in options:
        options += ["--service", f"profile:{profile}"]
    with (folder / "answer.toml").open("w", encoding="utf-8") as file:
        answer = _answer(options, file)
    best = answer.tuned.recommended
    if best is None:
        say(f"{traffic.name}: nothing keeps {SLO}", holds=None)
        return
    world = replace(best.scenario, requests=None if _ends(best.scenario) else 10**9, warmup=0)
    sent = list(takewhile(lambda one: one.at_s <= seconds, _requests(world)))
    measured = _measured(answer, sent, folder, seconds)
    predicted = _predicted(world, seconds)
    limits = f"cap {world.cap}, queue {world.queue}, timeout {world.timeout_s:g} s"
    for name, limit in answer.command.slo.items():
        low, high = np.quantile(predicted[name], (0.025, 0.975))
        value = measured[name]
        slack = ROUNDED_S if name.endswith("_s") else 0.5 / len(sent)
        inside = low - slack <= value <= high + slack
        say(
            f"{traffic.name}: {limits}; {len(sent)} requests in {seconds:g} s: {name} {value:.4f}, "
            f"limit {limit:g}, of simulated runs 95 % in {low:.4f} to {high:.4f}"
            f"{'' if value <= limit else ' (the objective was missed in this run)'}",
            holds=inside or value <= limit,
        )


def _answer(options: Sequence[str], file: Any) -> Recommendation:
    before, sys.stdout = sys.stdout, file
    try:
        return tune(docopt(USAGE["tune"], argv=["tune", *options]))
    finally:
        sys.stdout = before


def _ends(world: Scenario) -> bool:
    return hasattr(world.arrivals, "rows") or hasattr(world.arrivals, "windows")


def _requests(world: Scenario) -> list[Request]:
    return arrivals_of(world, SEED, 0)


def _predicted(world: Scenario, seconds: float) -> Mapping[str, list[float]]:
    """Return what simulated runs of the same length come to."""
    found: dict[str, list[float]] = {"lost_share": [], "wait_p95_s": []}
    for number in range(1, SIMULATED + 1):
        requests = sum(1 for one in arrivals_of(world, SEED, number) if one.at_s <= seconds)
        if not requests:
            continue
        plan = Plan(seed=SEED, driver="heap")
        metrics = replicate(replace(world, requests=requests), plan, number).metrics()
        for name, values in found.items():
            values.append(metrics[name] or 0.0)
    return found


def _measured(
    answer: Recommendation, sent: Sequence[Request], folder: Path, seconds: float
) -> Mapping[str, float]:
    """Serve the requests before an engine of that speed, behind a front door with those limits."""
    assert answer.tuned.recommended is not None
    service = answer.tuned.recommended.scenario.service
    table = folder / "requests.csv"
    tokens = service.profile is not None
    with table.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("at_s", "prompt_tokens", "output_tokens", "hold_s"))
        for one in sent:
            sizes = (round(one.prompt), round(one.work), 0) if tokens else (0, 0, one.work)
            rows.writerow((f"{one.at_s:.6f}", *sizes))
    engine = folder / "engine.json"
    engine.write_text(json.dumps(_engine_document(answer)), encoding="utf-8")
    with Stage(folder) as stage:
        command = [sys.executable, "-m", "tryouts.tuned", str(engine)]
        url = stage.start("engine", command).listening(1)[0]
        limits = toml_text(answer.tuned, answer.command, answer.to)
        rest = (
            f'[server]\nstate_dir = "var"\n[upstreams.reasoning]\nurl = "{url}"\n'
            '[models.reasoning]\nupstream = "reasoning"\n'
        )
        _, public, admin = stage.front_door(rest + limits)
        given = {
            "--locustfile": ROOT / "loadtests" / "recorded.py",
            "--config": ROOT / "conf" / "locust.conf",
            "--host": public,
            "--admin": admin,
            "--users": 1,
            "--run-time": f"{int(seconds + 120)}s",
            "--seconds": seconds,
            "--trace": table,
            "--out": folder,
            "--html": folder / "report.html",
        }
        stage.locust([str(part) for pair in given.items() for part in pair], seconds + 180)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    counts = summary["models"]["reasoning"]
    return {
        "lost_share": 1 - counts.get("served", 0) / sum(counts.values()),
        "wait_p95_s": summary["waits"]["reasoning"]["p95"],
    }


def _engine_document(answer: Recommendation) -> Mapping[str, Any]:
    """Return the engine's speed: that of the profile, or how much company slows it down."""
    assert answer.tuned.recommended is not None
    service = answer.tuned.recommended.scenario.service
    if service.profile is not None:
        return profile_document(service.profile)
    return {"name": "seconds", "seconds": [1.0], "slowdown": service.slowdown}


def serve(path: Path) -> int:
    """Run the engine of a profile until it is stopped."""
    profile = read_profile(path)
    if isinstance(profile, MeasuredSeconds):
        options = stand_in.StandInOptions(models=("reasoning",), slowdown=profile.slowdown)
    else:
        options = stand_in.StandInOptions(
            models=("reasoning",), speed=profile.speed, prefill=profile.prefill
        )
    return stand_in.run(options)


def mixed_log(seconds: float) -> Path:
    """Return the log that the front door of `bin/loadtest mixed` wrote."""
    out = ROOT / "var" / "loadtests" / "for-tune"
    command = ["-m", "loadtests.harness", "mixed", "--seconds", f"{seconds:g}", "--out", str(out)]
    subprocess.run([sys.executable, *command, "--hold", "exp:0.5", "--rate", "9"], check=False)
    return out / "frontdoor.log"


if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[1])))
