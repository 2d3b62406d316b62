"""The commands `simulate`, `sweep`, `validate`, `replay`, `calibrate`: options in, exit code out.

Rule 1: results go to stdout, progress and complaints to stderr.
Rule 2: a wrong option raises UsageError; whoever parsed the command line prints it and ends with 2.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from simulator.cli import option_parser as parsers
from simulator.cli.engine_validation import engine_options, validate_engine
from simulator.cli.option_parser import OptionParser
from simulator.cli.options import UsageError, replay_of, simulate_of, sweep_of
from simulator.exact.known import exact_metrics
from simulator.exact.validate import LIMIT, Finding, cases, findings
from simulator.model.scenario import Scenario
from simulator.reports.json_document import (
    as_json,
    observed_document,
    simulate_document,
    sweep_document,
)
from simulator.reports.terminal import (
    as_it_was,
    asked_columns,
    number,
    progress,
    simulate_page,
    sweep_page,
)
from simulator.study.calibrate import Fit, calibrate
from simulator.study.cluster import ClusterError
from simulator.study.experiment import (
    Plan,
    Result,
    cores,
    executor,
    experiment,
    observe,
)
from simulator.study.observed import observed_metrics
from simulator.study.request import StudyRequest
from simulator.study.spending import Spending
from simulator.study.sweep import Choice, choose
from simulator.traffic.access_log import RAN
from simulator.traffic.service_profiles import profile_document
from simulator.traffic.tables import TraceError

__all__ = ["COMMANDS", "UsageError", "calibrate_log", "replay", "simulate", "sweep", "validate"]

Given = Mapping[str, Any]

STRESS = 0.2
"""The sensitivity line: so much more and less rate and work."""
STRESS_REQUESTS = 4000
STRESS_REPLICATIONS = 5


def simulate(given: Given) -> int:
    """Carry out `simulate`; returns 0."""
    command = simulate_of(given)
    console = Console(stderr=True)
    with progress(console, "simulating") as on_progress, _workers(command) as pool:
        (result,) = experiment(command.scenarios, command.plan, on_progress, pool)
    if command.json:
        document = simulate_document(command, result)
        if command.log is not None:
            document = {"observed": observed_document(observed_metrics(command.log)), **document}
        print(as_json(document))
    else:
        console = Console()
        simulate_page(console, command, result, _stressed(command))
        _print_told(console, command)
        if command.log is not None:
            console.print(as_it_was(observed_metrics(command.log)), highlight=False)
            console.print(f"Left out of the log: {command.log.left_out}.", highlight=False)
    if command.plot is not None:
        _plot_run(command)
    return 0


def sweep(given: Given) -> int:
    """Carry out `sweep`; returns 0."""
    command = sweep_of(given)
    choice = _choice(command)
    if command.json:
        print(as_json(sweep_document(command, choice)))
    else:
        console = _wide(command)
        sweep_page(console, command, choice)
        _print_told(console, command)
    _plot_choice(command, choice)
    return 0


def replay(given: Given) -> int:
    """Carry out `replay`; returns 0."""
    command = replay_of(given)
    assert command.log is not None
    observed = observed_metrics(command.log)
    choice = _choice(command)
    if command.json:
        document = sweep_document(command, choice)
        print(as_json({"observed": observed_document(observed), **document}))
    else:
        log = command.log
        console = _wide(command)
        console.print(
            f"{len(log.outcomes)} requests read; left out: {log.left_out}.", highlight=False
        )
        if count := sum(outcome in RAN - {"served"} for outcome in log.outcomes):
            console.print(
                f"{count} left or failed while they held a slot; they count as served in all rows.",
                highlight=False,
            )
        sweep_page(console, command, choice, observed)
    _plot_choice(command, choice)
    return 0


def validate(given: Given) -> int:
    """Carry out `validate`; returns 1 when a value is beyond the limit, else 0."""
    options = OptionParser(given)
    full = options.flag("--full")
    requests = options.take("--requests", parsers.whole(1000), 20_000 if full else 5_000)
    plan = Plan(
        seed=options.take("--seed", parsers.whole(0), 1),
        replications=options.take("--reps", parsers.whole(5), 20),
        jobs=options.take("--jobs", parsers.jobs, cores()),
        driver=options.take("--driver", parsers.one_of("simpy", "heap"), "heap"),
    )
    engine = engine_options(options)
    options.done()
    if engine is not None:
        return validate_engine(engine, plan, json=options.flag("--json"))
    wanted = cases(requests, full=full)
    with progress(Console(stderr=True), "validating") as on_progress:
        results = experiment([case.scenario for case in wanted], plan, on_progress)
    found = [
        finding
        for case, result in zip(wanted, results, strict=True)
        for finding in findings(case, result)
    ]
    wrong = [finding for finding in found if finding.wrong]
    if options.flag("--json"):
        print(as_json(_validate_document(plan, found)))
    else:
        _validate_page(found)
    return 1 if wrong else 0


def calibrate_log(given: Given) -> int:
    """Carry out `calibrate`; returns 0."""
    paths = [Path(text) for text in given["LOG"]]
    name = given.get("--name") or paths[0].stem
    try:
        fit = calibrate(paths, name, given.get("--upstream"))
    except TraceError as error:
        raise UsageError([f"LOG: {error}"]) from None
    return tell_fit(fit, given)


def tell_fit(fit: Fit, given: Given) -> int:
    """Print a fit, and write its profile where that was asked; returns 0. Raises UsageError."""
    document = profile_document(fit.profile)
    out = given.get("--out")
    if out:
        try:
            Path(out).write_text(as_json(document) + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError([f"--out: cannot write {out}: {error.strerror}"]) from None
    if given.get("--json"):
        print(as_json({"profile": document, "facts": fit.facts}))
    else:
        _calibrate_page(fit, out)
    return 0


COMMANDS: dict[str, Callable[[Given], int]] = {
    "simulate": simulate,
    "sweep": sweep,
    "validate": validate,
    "replay": replay,
    "calibrate": calibrate_log,
}


# How


def _print_told(console: Console, command: StudyRequest) -> None:
    if command.told:
        console.print(f"Read: {command.told}.", highlight=False)


@contextmanager
def _workers(command: StudyRequest) -> Iterator[Executor | None]:
    """Give what carries out a whole command, so that nothing is started or connected twice."""
    plan = command.plan
    try:
        with executor(plan, plan.replications * len(command.scenarios)) as pool:
            yield pool
    except ClusterError as error:
        raise UsageError([f"--dask: {error}"]) from None


def _choice(command: StudyRequest) -> Choice:
    with _workers(command) as pool:
        return _chosen(command, pool)


def _chosen(command: StudyRequest, pool: Executor | None) -> Choice:
    plan = command.plan
    with progress(Console(stderr=True), "sweeping") as on_progress:
        results = experiment(command.scenarios, plan, on_progress, pool)
    with progress(Console(stderr=True), "with more traffic") as on_progress:

        def stress(scenarios: Sequence[Scenario]) -> list[Result]:
            return experiment(scenarios, plan, on_progress, pool)

        def further(scenario: Scenario, first: int, count: int) -> Result:
            more = replace(plan, replications=count)
            (result,) = experiment([scenario], more, pool=pool, first=first)
            return result

        budget = command.plan.replications * len(command.scenarios)
        return choose(
            command.scenarios,
            results,
            command.slo,
            exact=exact_metrics,
            stress=stress,
            headroom=command.headroom,
            spending=Spending(further, budget),
        )


def _wide(command: StudyRequest) -> Console:
    """Return a console that does not fold tables when nobody looks at them in a terminal."""
    width = 140 + 12 * len(asked_columns(command))
    return Console(width=None if sys.stdout.isatty() else width)


def _stressed(command: StudyRequest) -> list[tuple[str, Result]]:
    """Return the scenario with more and less rate and work: a look at what an error would do."""
    base = command.scenarios[0]
    if base.requests is not None and not base.terminating:
        requests = min(base.requests, STRESS_REQUESTS)
        base = replace(base, requests=requests, warmup=min(base.warmup, requests // 20))
    plan = replace(
        command.plan,
        replications=min(command.plan.replications, STRESS_REPLICATIONS),
        driver="heap",
        jobs=1,
        check=False,
        dask=None,
    )
    stresses: list[tuple[str, Scenario]] = [
        ("If the rate is 20 % higher", base.stressed(rate=1 + STRESS)),
        ("If the rate is 20 % lower", base.stressed(rate=1 - STRESS)),
        ("If service takes 20 % longer", base.stressed(service=1 + STRESS)),
        ("If service takes 20 % less", base.stressed(service=1 - STRESS)),
    ]
    results = experiment([scenario for _, scenario in stresses], plan)
    return [(label, result) for (label, _), result in zip(stresses, results, strict=True)]


def _plot_run(command: StudyRequest) -> None:
    from simulator.reports.plot import draw_run

    assert command.plot is not None
    scenario = command.scenarios[0]
    records, journal = observe(scenario, command.plan)
    title = (
        f"cap {scenario.cap}, queue {scenario.queue}, timeout {scenario.timeout_s:g} s, "
        f"first replication of seed {command.plan.seed}"
    )
    draw_run(command.plot, records, journal, scenario.cap, title)
    print(f"drawn: {command.plot}", file=sys.stderr)


def _plot_choice(command: StudyRequest, choice: Choice) -> None:
    if command.plot is None:
        return
    from simulator.reports.plot import draw_sweep

    draw_sweep(command.plot, choice, command.slo, f"{len(choice.points)} points")
    print(f"drawn: {command.plot}", file=sys.stderr)


def _validate_document(plan: Plan, found: list[Finding]) -> dict[str, object]:
    return {
        "seed": plan.seed,
        "replications": plan.replications,
        "limit_sigmas": LIMIT,
        "passed": not any(finding.wrong for finding in found),
        "findings": [
            {
                "case": finding.case,
                "metric": finding.metric,
                "exact": finding.exact,
                "simulated": finding.simulated,
                "sigmas": finding.sigmas if abs(finding.sigmas) < 1e9 else None,
            }
            for finding in found
        ],
    }


def _validate_page(found: list[Finding]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(show_edge=False)
    for column in ("case", "metric", "exact", "simulated", "off by", "sigmas"):
        table.add_column(column, justify="left" if column in {"case", "metric"} else "right")
    last = ""
    for finding in found:
        off = "" if finding.relative is None else f"{100 * finding.relative:+.2f} %"
        table.add_row(
            "" if finding.case == last else finding.case,
            finding.metric,
            f"{finding.exact:.6f}",
            "-" if finding.simulated is None else f"{finding.simulated:.6f}",
            off,
            f"{finding.sigmas:+.2f}",
            style="red" if finding.wrong else "",
        )
        last = finding.case
    console.print(table)
    wrong = sum(finding.wrong for finding in found)
    verdict = f"{wrong} beyond {LIMIT:g} sigma" if wrong else f"all within {LIMIT:g} sigma"
    console.print(f"{len(found)} values: {verdict}.", highlight=False)


VARIES = 0.05
"""A deviation of the speed from which on it is told."""


def _calibrate_page(fit: Fit, out: str | None) -> None:
    console = Console()
    table = Table(show_header=False, show_edge=False)
    for name, value in fit.facts.items():
        table.add_row(name, number("", value))
    for name, part in profile_document(fit.profile).items():
        if not isinstance(part, list | dict):
            table.add_row(name, f"{part:.6g}" if isinstance(part, float) else str(part))
    console.print(table)
    most = fit.facts["in_service_max"]
    print(f"Never more than {most:.0f} were in service: for larger caps this is a guess.")
    if fit.profile_is_vague:
        print(
            "How speed falls with the batch is not known well: predictions are as wide. A log of "
            "another cap, given together with this one, tells most."
        )
    if (pace := fit.profile.pace).deviation > VARIES:
        print(
            f"Its speed varied by itself, by {pace.deviation:.0%} from one {pace.time_s:.3g} s to "
            "the next: predictions are as wide. Log where it has its machine to itself."
        )
    if fit.facts.get("in_service_min", 1.0) > 2:
        fewest = fit.facts["in_service_min"]
        print(f"Never fewer than {fewest:.0f} were in service: for smaller caps this is a guess.")
    if out:
        print(f"written: {out}; use it with --service profile:{out}")
    else:
        print("--out FILE writes the profile for --service profile:FILE.")
