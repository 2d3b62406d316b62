"""The command `tune`: which cap, queue and timeout to set, as TOML that `frontdoor check` accepts.

Rule 1: stdout is one piece of TOML: the table to paste, and all words about it as comments.
        Progress goes to stderr, in words, also where it is no terminal.
Rule 2: what the traffic or the options do not say takes a value that is shown.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from simulator.cli import option_parser as parsers
from simulator.cli.option_parser import OptionParser, UsageError
from simulator.cli.options import logged, scenario_of
from simulator.exact.known import exact_metrics
from simulator.model.scenario import Scenario
from simulator.reports.html_report import html_report
from simulator.reports.json_document import as_json
from simulator.reports.tune_text import Destination, toml_text, traffic_text, tune_document
from simulator.study.capacity import load_of
from simulator.study.experiment import executor, observe
from simulator.study.observed import observed_metrics
from simulator.study.request import StudyRequest
from simulator.study.tune import MOST, QUEUES, Search, Tuned
from simulator.traffic.access_log import AccessLog
from simulator.traffic.workload import Replay

REQUESTS = 5000
"""In one replication: enough for a p99, few enough to spend them where there is doubt."""
WARMUP = 250
USUAL_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What was found, for whom, and from what."""

    tuned: Tuned
    command: StudyRequest
    to: Destination


def tune(given: Mapping[str, Any], to: Destination | None = None) -> Recommendation:
    """Carry out `tune` and print its answer; raises UsageError.

    `to`: what a configuration has already, where there is one.
    """
    command, queues, timeouts_s = tune_of(given)
    base = command.scenarios[0]
    say = partial(print, file=sys.stderr, flush=True)
    for line in _opening(command):
        say(line)
    slots = base.replicas * base.slots
    plan = command.plan
    with executor(plan, plan.jobs) as pool:
        search = Search(
            base=base,
            plan=plan,
            caps=range(1, slots),
            queues=queues,
            timeouts_s=timeouts_s,
            slo=command.slo,
            headroom=command.headroom,
            exact=exact_metrics,
            say=say,
            pool=pool,
        )
        tuned = search.run()
    say(f"{tuned.simulated} requests simulated, {len(tuned.trials)} points looked at.")
    if to is None:
        to = Destination(upstream=_upstream(given, command.log), slots=slots)
    page = given.get("--html")
    if page:
        _write_page(Path(str(page)), tuned, command, to)
    if command.json:
        print(as_json(tune_document(tuned, command, to)))
    else:
        print(toml_text(tuned, command, to), end="")
    return Recommendation(tuned, command, to)


def _write_page(path: Path, tuned: Tuned, command: StudyRequest, to: Destination) -> None:
    best = tuned.recommended
    run = None if best is None else observe(best.scenario, command.plan)
    observed = None if command.log is None else observed_metrics(command.log)
    try:
        path.write_text(html_report(tuned, command, to, run, observed), encoding="utf-8")
    except OSError as error:
        raise UsageError([f"--html: cannot write {path}: {error.strerror}"]) from None
    print(f"written: {path}", file=sys.stderr)


def _upstream(given: Mapping[str, Any], log: AccessLog | None) -> str:
    if named := given.get("--upstream"):
        return str(named)
    return log.upstream if log is not None else "reasoning"


def tune_of(given: Mapping[str, Any]) -> tuple[StudyRequest, list[int], list[float]]:
    """Return what `tune` is asked, and which queues and timeouts to look through."""
    options = OptionParser(_with_tokens(given))
    log = logged(options)
    command = scenario_of(options, log)
    queues = options.take("--queue", parsers.wholes(0), list(QUEUES))
    limits = [limit for name, limit in command.slo.items() if name.startswith("wait_")]
    wait_s = max(1.0, min(limits, default=USUAL_WAIT_S))
    timeouts_s = options.take("--timeout", parsers.timeouts, [wait_s, 2 * wait_s, 6 * wait_s])
    if not all(map(isfinite, timeouts_s)):
        options.fault("--timeout", "the configuration has no queue_timeout_s of none")
    if command.scenarios[0].replicas * command.scenarios[0].slots < 2:
        options.fault("--slots", "a cap must be below the slots, so there must be 2 or more")
    options.done()
    base = _sampled(command.scenarios[0])
    plan = replace(command.plan, driver="heap", replications=MOST)
    return replace(command, scenarios=(base,), plan=plan), queues, timeouts_s


def _with_tokens(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with `--tokens P,O` as the laws that it stands for."""
    tokens = given.get("--tokens")
    if tokens is None:
        return given
    prompt, _, output = str(tokens).partition(",")
    return {**given, "--prompt": f"exp:{prompt}", "--output": f"exp:{output}"}


def _sampled(base: Scenario) -> Scenario:
    """Return the scenario in replications of a size to be spent piecemeal."""
    if base.terminating:
        return base
    requests = REQUESTS if base.requests is None else min(base.requests, REQUESTS)
    arrivals = base.arrivals
    if isinstance(arrivals, Replay):
        if not arrivals.random:
            arrivals = replace(arrivals, bootstrap_s=_block_s(float(arrivals.rows.at_s[-1])))
        return replace(base, arrivals=arrivals, requests=requests, warmup=0)
    return replace(base, requests=requests, warmup=min(WARMUP, requests // 20))


def _block_s(span_s: float) -> float:
    """Return the length of blocks in random order: long enough for bursts, and many."""
    return max(span_s / 500, min(600.0, span_s / 20), 1e-3)


def _opening(command: StudyRequest) -> list[str]:
    base = command.scenarios[0]
    lines = []
    if command.log is not None:
        log = command.log
        lines.append(f"read {len(log.outcomes)} requests; left out: {log.left_out}")
    if command.told:
        lines.append(f"read {command.told}")
    lines.append(f"traffic: {traffic_text(command)}")
    full = replace(base, cap=max(1, base.replicas * base.slots - 1))
    load = load_of(full)
    if load.offered_per_s is not None and load.served_at_most_per_s:
        lines.append(
            f"{load.offered_per_s:.3g} requests a second are offered; with {full.cap} of "
            f"{base.replicas * base.slots} slots this engine serves at most "
            f"{load.served_at_most_per_s:.3g}"
        )
    limits = ", ".join(f"{name}={limit:g}" for name, limit in command.slo.items())
    lines.append(f"limits: {limits}, with {command.headroom:.0%} more traffic too")
    return lines
