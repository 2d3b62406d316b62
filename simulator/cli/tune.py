"""The command `tune`: which limits and idle times to set, as TOML that `frontdoor check` accepts.

Rule 1: stdout is one piece of TOML: the table to paste, and all words about it as comments.
        Progress goes to stderr, in words, also where it is no terminal.
Rule 2: what the traffic or the options do not say takes a value that is shown.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

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
from simulator.study.idle_times import IdleGrid, IdleSearch
from simulator.study.limits import fewest_requests
from simulator.study.observed import observed_metrics
from simulator.study.request import StudyRequest
from simulator.study.samples import at_the_peak, requests_of, sampled
from simulator.study.tune import MOST, QUEUES, Search, Tuned
from simulator.traffic.access_log import AccessLog
from simulator.traffic.servegen import Windows
from simulator.traffic.stretches import busiest
from simulator.traffic.workload import Arrivals, Closed, Replay

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
    command, queues, timeouts_s, idle, whole = tune_of(given)
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
        tuned = search.run() if idle is None else IdleSearch(search=search, grid=idle).run()
        if tuned.recommended is not None and not given.get("--busiest"):
            peak = at_the_peak(whole, tuned.recommended.scenario, plan, pool)
            tuned = replace(tuned, peak=peak)
    say(f"{tuned.simulated} requests simulated, {tuned.looked_at} points looked at.")
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


class TuneRequest(NamedTuple):
    """What `tune` is asked, and what to look through."""

    command: StudyRequest
    queues: list[int]
    timeouts_s: list[float]
    idle: IdleGrid | None
    """None: the engine never sleeps, or its idle times stay."""
    whole: Arrivals | Closed
    """All that comes, where replications are some of it."""


def tune_of(given: Mapping[str, Any]) -> TuneRequest:
    """Return what `tune` is asked; raises UsageError."""
    options = OptionParser(given)
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
    if (busiest_s := options.take("--busiest", parsers.above(0), 0.0)) > 0:
        command = _at_its_busiest(options, command, busiest_s)
    idle = _idle_of(options, command.scenarios[0])
    options.done()
    whole = command.scenarios[0].arrivals
    base, judged = sampled(command.scenarios[0], () if idle is None else idle.pairs)
    _verify_enough(options, base, command.slo)
    options.done()
    plan = replace(command.plan, driver="heap", replications=MOST)
    judged = "; ".join(filter(None, (command.judged, judged)))
    return TuneRequest(
        replace(command, scenarios=(base,), plan=plan, judged=judged),
        queues,
        timeouts_s,
        idle,
        whole,
    )


def _verify_enough(options: OptionParser, base: Scenario, slo: Mapping[str, float]) -> None:
    """Note a fault where so few requests come that no point could be seen to keep its limits."""
    coming = requests_of(base)
    needed, why = fewest_requests(slo, MOST if base.random else 1)
    if coming is None or coming >= needed:
        return
    (option, *_) = options.given_of("--busiest", "--burst", "--trace", "--log")
    told = "1 request is" if coming == 1 else f"{coming:.3g} requests are"
    options.fault(option, f"{told} too few to tell: {why} needs at least {needed}")


IDLE_FACTORS = (1 / 9, 1 / 3, 1.0, 3.0, 9.0)
MOST_IDLE_S = 365 * 86400.0
IDLE_PART = 10
"""Traffic that is not so many times as long as an idle time has too few such pauses to tell."""


def _idle_of(options: OptionParser, base: Scenario) -> IdleGrid | None:
    """Return which idle times to look through; a level that has none has none later either."""
    tiers, arrivals = base.tiers, base.arrivals
    sources = ("--sleep", "--config", "--apply")
    options.needs("--idle", *sources)
    if tiers is None:
        if "--idle" in options and options.given_of(*sources):
            options.fault("--idle", "the engine never sleeps: give --sleep")
        return None
    span_s = arrivals.span_s if isinstance(arrivals, Replay | Windows) else inf
    most_s = span_s / IDLE_PART
    first_s, second_s = (_ladder(idle_s, most_s) for idle_s in tiers.idle_s)
    usual: _Lists | None = (first_s, second_s)
    given = options.take("--idle", _idle_lists, usual)
    if given is None:
        return None
    grid = IdleGrid(given[0], given[1] or (tiers.idle_s[1],))
    if not grid.pairs:
        options.fault("--idle", "no time of level 2 is later than one of level 1")
    return grid


def _ladder(idle_s: float, most_s: float) -> tuple[float, ...]:
    """Return the steps around an idle time, none longer than that but itself, and never."""
    if not idle_s:
        return (0.0,)
    steps = {factor: float(f"{factor * idle_s:.3g}") for factor in IDLE_FACTORS}
    kept = (step for factor, step in steps.items() if factor == 1.0 or step <= most_s)
    return (*(min(step, MOST_IDLE_S) for step in kept), 0.0)


_Lists = tuple[tuple[float, ...], tuple[float, ...]]


def _idle_lists(text: str) -> _Lists | None:
    """Return lists of idle times by level, 0 for none; None: they stay as they are."""
    if text == "fixed":
        return None
    firsts, _, seconds = text.partition("/")
    return _idle_list(firsts), _idle_list(seconds) if seconds else ()


def _idle_list(text: str) -> tuple[float, ...]:
    times_s = parsers.timeouts(text)
    for time_s in times_s:
        if MOST_IDLE_S < time_s < inf:
            raise ValueError(f"must be at most a year, not {time_s:g} s")
    return tuple(time_s if time_s < inf else 0.0 for time_s in times_s)


def _at_its_busiest(options: OptionParser, command: StudyRequest, lasts_s: float) -> StudyRequest:
    base = command.scenarios[0]
    arrivals = base.arrivals
    if not isinstance(arrivals, Replay | Windows):
        options.fault("--busiest", "goes with recorded requests or rates only")
        return command
    if lasts_s > arrivals.span_s:
        options.fault("--busiest", f"is {lasts_s:g} s, but the traffic lasts {arrivals.span_s:g} s")
        return command
    stretch = busiest(arrivals, lasts_s)
    words = {**command.traffic, "busiest_s": stretch.lasts_s, "from_s": stretch.start_s}
    told = ""
    if isinstance(arrivals, Windows) and stretch.lasts_s != lasts_s:
        told = (
            f"the busiest {stretch.lasts_s:g} s, as rates come in windows of {arrivals.length_s:g} "
            f"s (--busiest asked for {lasts_s:g} s)"
        )
    base = replace(base, arrivals=stretch.arrivals)
    return replace(command, scenarios=(base,), traffic=words, judged=told)


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
    if command.judged:
        lines.append(f"judged by {command.judged}")
    return lines
