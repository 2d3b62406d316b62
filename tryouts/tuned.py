"""What `frontdoor tune` recommends, pasted into a configuration, served, and measured by Locust.

Rule 1: the engine is the stand-in, as fast as the profile that `tune` was given or fitted: what is
        tried is the recommendation and the prediction, not the profile.
Rule 2: what is sent is a stretch of the recording itself, from its middle, as it came and as much
        faster as the headroom says; where a trace has rates only, requests drawn by another seed.
Rule 3: one run is one sample. It is held to the objectives, and to the interval in which 95 of 100
        simulated runs of the same length lie; beside it stands what was foretold of these very
        requests.
"""

import csv
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from docopt import docopt

from loadtests.harness.processes import FRONTDOOR, ROOT, Stage
from simulator.cli.tune import tune_of
from simulator.cli.usage import USAGE
from simulator.model.scenario import Scenario
from simulator.standin import server as stand_in
from simulator.study.experiment import Plan, arrivals_of, replicate
from simulator.traffic.service import Rows
from simulator.traffic.service_profiles import (
    PROFILES,
    MeasuredSeconds,
    profile_document,
    read_profile,
)
from simulator.traffic.workload import Replay, Request


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
SHOWN = ("lost_share", "wait_p95_s", "latency_p95_s")
NOWHERE = "http://127.0.0.1:9"
REST = """\
[server]
state_dir = "var"
[upstreams.reasoning]
url = "{url}"
[models.reasoning]
upstream = "reasoning"
"""
LIMITS = """\
[upstreams.reasoning.admission]
slots = 8
cap = 1
queue = 0
queue_timeout_s = 1
"""
"""Without any merit: they are to be replaced."""
Say = Callable[..., None]
Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Traffic:
    """One traffic to be tuned for."""

    name: str
    options: tuple[str, ...]
    """Of `tune`: the traffic and how fast it is played."""
    faster: float = 10.0
    """How much faster than the named profile its engine is."""


@dataclass(frozen=True, slots=True)
class Recommended:
    """What was recommended, the limits that it is to keep, and with how much more traffic."""

    world: Scenario
    slo: Mapping[str, float]
    borne: float


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
    options = [*traffic.options, "--slo", SLO, *COARSE]
    if "--log" not in options:
        options += ["--service", f"profile:{profile}"]
    answer = _answer(say, options, folder)
    if answer is None:
        say(f"{traffic.name}: nothing keeps {SLO}", holds=None)
        return
    for pace in (1.0, 1.0 + answer.borne):
        world = answer.world.stressed(rate=pace)
        ends = hasattr(world.arrivals, "rows") or hasattr(world.arrivals, "windows")
        world = replace(world, requests=None if ends else 10**9, warmup=0)
        sent = _sent(world, seconds)
        _judge(
            say,
            f"{traffic.name}, x {pace:g}",
            answer,
            len(sent),
            measured=_measured(answer, sent, folder, seconds),
            foretold=_foretold(world, sent),
            runs=_simulated(world, seconds),
        )


def _judge(
    say: Say,
    name: str,
    answer: Recommended,
    count: int,
    *,
    measured: Metrics,
    foretold: Metrics,
    runs: Mapping[str, list[float]],
) -> None:
    """Tell one run: measured, foretold, what simulated runs scatter over, and whether it holds."""
    world = answer.world
    limits = f"cap {world.cap}, queue {world.queue}, timeout {world.timeout_s:g} s"
    say(f"{name}: {limits}; {count} requests")
    for metric, values in runs.items():
        low, high = np.quantile(values, (0.025, 0.975))
        value, expected = measured[metric], foretold[metric]
        slack = ROUNDED_S if metric.endswith("_s") else 0.5 / count
        inside = low - slack <= value <= high + slack
        limit = answer.slo.get(metric)
        kept = limit is not None and value <= limit
        told = "" if limit is None else f", limit {limit:g}"
        say(
            f"{name}: {metric} measured {value:.4f}{told}; of these requests foretold "
            f"{expected:.4f} (off by {value - expected:+.4f}), of 95 in 100 such runs "
            f"{low:.4f} to {high:.4f}{'' if inside else ', which it is outside of'}",
            holds=None if limit is None else kept or inside,
        )


def _answer(say: Say, options: Sequence[str], folder: Path) -> Recommended | None:
    """Tune by the command, see that its answer can be applied and pasted alike, and return it."""
    applied, pasted = folder / "applied.toml", folder / "pasted.toml"
    applied.write_text(REST.format(url=NOWHERE) + LIMITS, encoding="utf-8")
    command = [*FRONTDOOR, "tune", *options, "--apply", str(applied), "--json"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    document = json.loads(ended.stdout)
    best = document["recommended"]
    if best is None:
        return None
    pasted.write_text(REST.format(url=NOWHERE) + document["toml"], encoding="utf-8")
    codes = [
        subprocess.run(
            [*FRONTDOOR, "check", "--config", str(path)], stdout=subprocess.DEVNULL, check=False
        ).returncode
        for path in (applied, pasted)
    ]
    same = tomllib.loads(applied.read_text()) == tomllib.loads(pasted.read_text())
    say(f"the answer applied and pasted: check ends with {codes}", holds=same and not any(codes))
    asked = tune_of(docopt(USAGE["tune"], argv=["tune", *options])).command
    return Recommended(
        world=asked.scenarios[0].at(best["cap"], best["queue"], best["timeout_s"]),
        slo=asked.slo,
        borne=document["headroom"] if document["holds_with_headroom"] else 0.0,
    )


def _sent(world: Scenario, seconds: float) -> list[Request]:
    """Return the requests of a stretch from the middle of a recording, or of another seed."""
    arrivals = world.arrivals
    if isinstance(arrivals, Replay):
        at_s = arrivals.rows.at_s * arrivals.stretch
        start_s = max(0.0, (float(at_s[-1]) - seconds) / 2)
        which = (at_s >= start_s) & (at_s <= start_s + seconds)
        rows = arrivals.rows.taken(which)._replace(at_s=at_s[which] - start_s)
        world = replace(world, arrivals=Replay(rows=rows))
    drawn = arrivals_of(world, SEED, 0)
    return list(takewhile(lambda one: one.at_s <= seconds, drawn))


def _foretold(world: Scenario, sent: Sequence[Request]) -> Metrics:
    """Return what is simulated of these very requests: the mean, of engines not known well."""
    at_s, work, prompt = (
        np.array([float(getattr(one, name)) for one in sent]) for name in ("at_s", "work", "prompt")
    )
    tokens = world.service.profile is not None
    rows = Rows(at_s, prompt, work) if tokens else Rows(at_s, service_s=work)
    same = replace(world, arrivals=Replay(rows=rows), requests=len(sent))
    runs = range(20 if world.service.uncertain else 1)
    found = [replicate(same, Plan(seed=SEED, driver="heap"), run).metrics() for run in runs]
    return {name: fmean(each[name] or 0.0 for each in found) for name in SHOWN}


def _simulated(world: Scenario, seconds: float) -> Mapping[str, list[float]]:
    """Return what simulated runs of the same length come to."""
    found: dict[str, list[float]] = {name: [] for name in SHOWN}
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
    answer: Recommended, sent: Sequence[Request], folder: Path, seconds: float
) -> Metrics:
    """Serve the requests before an engine of that speed, behind a front door with those limits."""
    service = answer.world.service
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
        configuration = (folder / "pasted.toml").read_text(encoding="utf-8")
        _, public, admin = stage.front_door(configuration.replace(NOWHERE, url))
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
        "wait_p95_s": summary["waits"]["reasoning"].get("p95", 0.0),
        "latency_p95_s": summary["exact"]["reasoning openai"]["total"]["p95"],
    }


def _engine_document(answer: Recommended) -> Mapping[str, Any]:
    """Return the engine's speed: that of the profile, or how much company slows it down."""
    service = answer.world.service
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
