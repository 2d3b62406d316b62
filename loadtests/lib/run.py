"""One run inside Locust: its options, what is written down, its end and its exit code.

Rule 1: a run ends when every user has done its part, so that nothing under way is lost; Locust's
        own `--run-time` is a last resort.
Rule 2: workers report their samples with Locust's statistics; the files are the master's.
Rule 3: the exit code is the gate: 1 when a request failed, an objective was missed, the offered
        load fell behind, a user was cut short or a worker got lost.
"""

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gevent
from locust import events
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadtests.lib import arrivals, checks, doors, objectives
from loadtests.lib.hooks import fire, on
from loadtests.lib.samples import Samples, digest

log = logging.getLogger("loadtests")

samples = Samples()
"""What this process measured; on a master, what all its workers did."""
_finished = 0
_lookout: gevent.Greenlet | None = None


@on(events.init_command_line_parser)
def add_options(parser: Any) -> None:
    """Add what a scenario needs to know beside Locust's own options."""
    add = parser.add_argument_group("scenario").add_argument
    add("--seconds", type=float, default=30.0, help="how long requests are begun")
    add("--rate", type=float, default=2.4, help="open loop: requests a second of each kind")
    add("--hold", default="exp:2", help="seconds an engine holds a request; exp:S draws them")
    add("--trace", default="", help="open loop: take the arrivals from this CSV file")
    add("--thin", type=float, default=1.0, help="share of the trace's rows that is kept")
    add("--seed", type=int, default=1, help="of everything that is drawn")
    add("--real", action="store_true", help="engines are no stand-ins: do not count their tokens")
    add("--admin", default="http://127.0.0.1:8010", help="the front door's admin listener")
    add("--doors", default="", help="file with a JSON list of front doors, instead of --host")
    add("--level", type=int, default=1, help="wake-storm: how deep the engines sleep at first")
    add("--slo", default="", help="objectives, as in waited_p95_s=2.5,refused_share=0.02")
    add("--out", default="", help="folder for summary.json and exact.csv")


@on(events.init)
def set_up(environment: Environment, **_: Any) -> None:
    """Join the run's processes together."""
    options = environment.parsed_options
    runner = environment.runner
    if options is None or runner is None:
        return
    if mistake := _mistake(options):  # told before anything starts
        print(f"locust: {mistake}", file=sys.stderr)
        raise SystemExit(2)
    if isinstance(runner, WorkerRunner):
        on(environment.events.report_to_master)(_report)
    else:
        on(environment.events.worker_report)(_take_report)
        runner.register_message("part-done", _part_done)


def _mistake(options: Any) -> str | None:
    given = {option: getattr(options, option.removeprefix("--")) for option in CHECKS}
    return checks.mistake(given, CHECKS)


def _make_folder(path: str) -> None:
    Path(path).mkdir(parents=True, exist_ok=True)


CHECKS = checks.CHECKS | {"--out": _make_folder, "--doors": doors.read_doors}


def _report(data: dict[str, Any], **_: Any) -> None:
    data["samples"] = samples.take()


def _take_report(data: Mapping[str, Any], **_: Any) -> None:
    samples.add(data["samples"])


@on(events.test_start)
def forget(environment: Environment, **_: Any) -> None:
    """Begin anew: on the web page a run may follow a run."""
    global _finished, _lookout  # noqa: PLW0603 - one run in a process
    _finished = 0
    samples.take()
    environment.process_exit_code = None
    options, runner = environment.parsed_options, environment.runner
    if options is not None and runner is not None and not isinstance(runner, WorkerRunner):
        # Workers are sent it with the options of ours, but not how many users were asked for.
        options.all_users = runner.target_user_count
    if isinstance(runner, MasterRunner) and not _lookout:
        _lookout = gevent.spawn(_look_after_workers, environment)


def _look_after_workers(environment: Environment) -> None:
    """End the run when a worker is gone: what it was doing will never be reported."""
    runner = environment.runner
    while isinstance(runner, MasterRunner):
        gevent.sleep(1)
        if runner.clients.missing:
            samples.failures["worker gone, with what it measured"] = len(runner.clients.missing)
            _end(environment)
            return


def done(environment: Environment) -> None:
    """Say that one user has done its part, and send along what was measured up to there.

    A run ends with the last of these, and Locust then waits half a second for its own reports:
    on a busy machine those of the last requests came too late.
    """
    if environment.runner is not None:
        environment.runner.send_message("part-done", samples.take())


def _part_done(environment: Environment, msg: Any, **_: Any) -> None:
    global _finished  # noqa: PLW0603 - see forget
    samples.add(msg.data)
    _finished += 1
    runner = environment.runner
    if runner is not None and _finished == runner.target_user_count:
        gevent.spawn(_end, environment)


def _end(environment: Environment) -> None:
    runner, options = environment.runner, environment.parsed_options
    if runner is None or options is None:
        return
    if options.headless:
        runner.quit()
    else:
        runner.stop()


@on(events.quitting)
def judge(environment: Environment, **_: Any) -> None:
    """Write the files and set the exit code."""
    options, runner = environment.parsed_options, environment.runner
    if options is None or runner is None or isinstance(runner, WorkerRunner):
        return
    mistake = _mistake(options)  # on the web page they may be changed
    summary = summarise("" if mistake else options.slo)
    summary["complaints"] += [mistake] if mistake else []
    unfinished = getattr(options, "all_users", 0) - _finished
    if unfinished > 0:
        summary["complaints"].append(f"{unfinished} of {options.all_users} users were cut short")
    for complaint in summary["complaints"]:
        log.error(complaint)
    if options.out:
        _write(Path(options.out), summary)
    sound = not summary["complaints"] and not runner.exceptions
    environment.process_exit_code = 0 if sound else 1


def summarise(slo: str) -> dict[str, Any]:
    """Return everything that was counted and measured, and what is wrong with it."""
    verdicts = [objectives.judge(objective, samples) for objective in objectives.parse(slo)]
    behind = arrivals.behind_share(samples.offered["due"], samples.offered["begun"])
    complaints = [f"{count} x {failure}" for failure, count in samples.failures.items()]
    complaints += [
        f"{verdict.objective.name} is {verdict.value}, not <= {verdict.objective.most}"
        for verdict in verdicts
        if not verdict.met
    ]
    if behind > arrivals.BEHIND_ALLOWED:
        complaints.append(
            f"the offered load fell behind: {samples.offered['begun']} of "
            f"{samples.offered['due']} due requests began in time"
        )
    if not samples.models:
        complaints.append("no request was made")
    return {
        "outcomes": {group: dict(counts) for group, counts in sorted(samples.outcomes.items())},
        "models": {model: dict(counts) for model, counts in sorted(samples.models.items())},
        "exact": {
            group: {name: digest(values) for name, values in sorted(named.items())}
            for group, named in sorted(samples.values.items())
        },
        "waits": {model: digest(_waits(model)) for model in sorted(samples.models)},
        "offered": {**samples.offered, "behind_share": behind},
        "objectives": [
            {
                "name": verdict.objective.name,
                "most": verdict.objective.most,
                "value": verdict.value,
                "met": verdict.met,
            }
            for verdict in verdicts
        ],
        "complaints": complaints,
    }


def _waits(model: str) -> list[float]:
    groups = [group for group in samples.values if group.split(" ")[0] == model]
    return samples.together("waited", groups)


def _write(folder: Path, summary: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    columns = ("count", "mean", "p50", "p95", "p99", "max")
    lines = [",".join(("group", "value", *columns))]
    for group, named in summary["exact"].items():
        for name, values in named.items():
            numbers = (f"{values.get(column, 0):.6g}" for column in columns)
            lines.append(",".join((group, f"{name}_s", *numbers)))
    (folder / "exact.csv").write_text("\n".join(lines) + "\n")


def show(
    environment: Environment, kind: str, name: str, seconds: float, length: int, error: str | None
) -> None:
    """Show one value on Locust's own pages."""
    fire(
        environment.events.request,
        request_type=kind,
        name=name,
        response_time=seconds * 1000,
        response_length=length,
        exception=RuntimeError(error) if error else None,
        response=None,
        context={},
    )
