"""`validate --engine`: what was fitted to runs of an engine, held against another run of it."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from simulator.cli import option_parser as parsers
from simulator.cli.option_parser import OptionParser, UsageError
from simulator.reports.json_document import as_json
from simulator.reports.terminal import number
from simulator.study.calibrate import Fit, calibrate
from simulator.study.engine_check import EngineValue, LimitsOfLog, check_engine, check_log
from simulator.study.experiment import Plan
from simulator.traffic.access_log import read_access_log
from simulator.traffic.benchmarks import read_benchmark
from simulator.traffic.service import Service
from simulator.traffic.service_profiles import MeasuredSeconds, ServiceProfile
from simulator.traffic.tables import TraceError

USUAL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class EngineTest:
    """What is fitted, what is foretold, and before which limits that was measured."""

    fitted: Sequence[Path]
    foretold: Path
    slots: int
    limits: LimitsOfLog | None


def engine_options(options: OptionParser) -> EngineTest | None:
    """Return what `--engine` asks for, or None where it was not given."""
    for option in ("--against", "--slots", "--cap", "--queue", "--timeout"):
        options.needs(option, "--engine")
    nothing: list[Path] = []
    fitted = options.take(
        "--engine", lambda text: [Path(part) for part in text.split(",")], nothing
    )
    slots = options.take("--slots", parsers.places(1), 0)
    cap = options.take("--cap", parsers.places(1), 0)
    queue = options.take("--queue", parsers.places(0), 0)
    timeout_s = options.take("--timeout", parsers.timeout, USUAL_TIMEOUT_S)
    if not fitted:
        return None
    if "--slots" not in options:
        options.fault("--engine", "needs --slots: how many may run at once")
    if bool(cap) != ("--queue" in options):
        options.fault("--cap", "and --queue are what the front door had, so one needs the other")
    foretold = options.take("--against", Path, fitted[0])
    return EngineTest(
        fitted,
        foretold,
        slots,
        LimitsOfLog(cap=cap, queue=queue, timeout_s=timeout_s) if cap else None,
    )


def validate_engine(test: EngineTest, plan: Plan, *, json: bool) -> int:
    """Hold a fitted engine against a run of it; returns 1 when a value is wrong, else 0."""
    fit, found = fit_and_compare(test, plan)
    if json:
        print(as_json({"values": [asdict(value) for value in found], "fitted": fit.facts}))
    else:
        _page(found, test, fit)
    return 0 if all(value.right for value in found) else 1


def fit_and_compare(test: EngineTest, plan: Plan) -> tuple[Fit, list[EngineValue]]:
    """Return the fit and what it foretells beside what was measured; raises UsageError."""
    try:
        fit = calibrate(test.fitted, test.fitted[0].stem, None)
        return fit, _compared(fit, test, plan)
    except TraceError as error:
        raise UsageError([f"--engine: {error}"]) from None


def _compared(fit: Fit, test: EngineTest, plan: Plan) -> list[EngineValue]:
    run = read_benchmark(test.foretold)
    if run is not None:
        if test.limits is not None:
            raise UsageError(["--cap: the result of a benchmark met no front door"])
        if not isinstance(fit.profile, ServiceProfile):
            raise UsageError(["--engine: tokens are held against tokens: give a log that has them"])
        return check_engine(fit.profile, run.timings, test.slots, plan)
    log = read_access_log(test.foretold)
    if test.limits is None:
        raise UsageError(["--engine: a log is held against its limits: give --cap and --queue"])
    rows = log.rows._replace(service_s=None)
    if isinstance(fit.profile, MeasuredSeconds):
        rows = rows._replace(prompt=None, output=None)
    return check_log(Service.of(fit.profile), log, rows, test.limits, test.slots, plan)


def _page(found: Sequence[EngineValue], test: EngineTest, fit: Fit) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(show_edge=False)
    for column in ("", "measured", "simulated", "off by", "95 % of what the fit leaves open"):
        table.add_column(column, justify="right" if column else "left")
    for value in found:
        unit = "lost_share" if value.name == "lost" else "wait_s"
        cells = (number(unit, each) for each in (value.measured, value.simulated))
        interval = f"{number(unit, value.low)} to {number(unit, value.high)}"
        off = f"{value.off:+.1%}" if value.measured else ""
        table.add_row(value.name, *cells, off, interval, style="" if value.right else "red")
    fitted = ", ".join(path.name for path in test.fitted)
    console.print(f"Fitted to {fitted}, held against {test.foretold.name}.", highlight=False)
    console.print(table)
    wrong = sum(not value.right for value in found)
    most = fit.facts["in_service_max"]
    console.print(f"{len(found)} values, {wrong} wrong; at most {most:.0f} ran in the fitted one.")
