"""Runs load against a front door of its own, with engine stand-ins behind it, and judges it.

Usage:
  bin/loadtest SCENARIO [options]
  bin/loadtest (-h | --help)

Scenarios:
  verify       A burst of 40 on 6 slots and 8 places: 14 served, 26 told when to come back.
  mixed        Poisson arrivals in both dialects and embeddings, capped and uncapped.
  streaming    First token, first visible token, gaps, whole answers.
  wake-storm   All engines asleep and a crowd for three models, at sleep level 1, then 2.
  disconnects  Clients that leave the line, a silent engine, a stream.
  cluster      Three front doors that share a gate, two engines, Redis, each fault at full load.
  restart      Streams at one front door, whose place others take three times.
  soak         Everything for half an hour: memory, descriptors, slots and places stay flat.

Options:
  --users N      Users; sources of arrivals in mixed.
  --seconds S    How long requests are begun.
  --rate R       Requests a second of each kind (mixed, soak).
  --hold S       Seconds an engine holds a request; exp:S draws them.
  --trace FILE   Arrivals from a CSV file instead of a Poisson process (mixed, soak).
  --thin P       Share of the trace that is kept. [default: 1]
  --slo LIST     Objectives, as in waited_p95_s=2.5,refused_share=0.02.
  --processes N  Locust as one master and N workers.
  --predict      Beside it what frontdoor simulate predicts for the capped engine (mixed).
  --faults LIST  Only these (cluster), as in "burst,owner killed,rolling restart".
  --seed N       Of everything that is drawn. [default: 1]
  --out DIR      Reports; else var/loadtests/SCENARIO.
  -h --help      Show this text.

A run of less than 30 s is not judged by growth; order of arrival is judged to 250 ms.

Reports: report.html and locust*.csv are Locust's, which rounds percentiles to two digits;
summary.json and exact.csv have them exactly. Logs of all processes are beside them.

Exit codes: 0 all laws held and objectives were met, 1 not so, 2 wrong usage, 130 Ctrl-C.
"""

import dataclasses
import json
import math
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from docopt import DocoptExit, docopt
from rich.console import Console

from loadtests.harness import cluster_run, laws, prediction, report
from loadtests.harness.processes import (
    LOCUST,
    ROOT,
    SIGNALS,
    STOP_TIMEOUT_S,
    BrokenError,
    Child,
    Stage,
    fetch,
    outcomes_of,
    statistics,
    wait_for,
)
from loadtests.harness.scenarios import SCENARIOS, LoadScenario
from loadtests.harness.watch import Watch
from loadtests.lib import checks

Arguments = Mapping[str, Any]

WIDTH = 132
"""Where nobody looks on: a log should not break lines for a narrow screen."""
CLUSTER = "cluster"
MARK = ".loadtest"
"""Is in every folder of reports, so that none but these is ever emptied."""
REST_TIMEOUT_S = 5.0
SETTLE_TIMEOUT_S = 30.0
SPARE_S = 120.0
"""Beyond the time of the run, for what is under way to end."""


def main(argv: list[str] | None = None) -> int:
    """Run one scenario; returns the exit code."""
    try:
        arguments = docopt(__doc__ or "", argv)
    except DocoptExit as usage:
        print(usage, file=sys.stderr)
        return 2
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    try:
        scenario = _scenario(arguments)
    except ValueError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 2
    for number in SIGNALS:
        signal.signal(number, _interrupt)
    try:
        if arguments["SCENARIO"] == CLUSTER:
            return _run_cluster(arguments, console)
        return _Run(arguments, scenario, console).run()
    except KeyboardInterrupt:
        return 130
    except (BrokenError, OSError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 1


def _run_cluster(arguments: Arguments, console: Console) -> int:
    """Run the faults of a cluster, all under one Locust that goes from door to door."""
    names = cluster_run.chosen(arguments["--faults"])
    folder = _empty(_folder(arguments))
    hold, seconds = arguments["--hold"] or "0.5", float(arguments["--seconds"] or 2)
    found = cluster_run.run_cluster(folder, console, names, hold, seconds)
    return _conclude(console, found, folder)


def _conclude(console: Console, found: list[laws.Finding], folder: Path) -> int:
    """Show what held and what did not; returns the exit code."""
    report.show_laws(console, found)
    broken = sum(not law.holds for law in found)
    console.print(f"reports and logs: {folder}")
    if broken:
        console.print(f"[bold red]{broken} of {len(found)} laws broken[/]")
    return 1 if broken else 0


def _empty(folder: Path) -> Path:
    """Make the folder of the reports anew."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    return folder


def _interrupt(_: int, __: FrameType | None) -> None:
    for number in SIGNALS:
        signal.signal(number, _hurry)
    raise KeyboardInterrupt


def _hurry(_: int, __: FrameType | None) -> None:
    Child.kill_all()


def _scenario(arguments: Arguments) -> LoadScenario:
    """Return the scenario with what was asked for instead of its own; raises ValueError."""
    name = arguments["SCENARIO"]
    names = [*SCENARIOS, CLUSTER]
    if name not in names:
        raise ValueError(f"no scenario is named {name!r}; there are {', '.join(names)}")
    if mistake := checks.mistake(arguments, CHECKS):
        raise ValueError(mistake)
    if arguments["--faults"] and name != CLUSTER:
        raise ValueError("--faults is for cluster")
    cluster_run.chosen(arguments["--faults"])
    if arguments["--predict"] and name != "mixed":
        raise ValueError("--predict is for mixed: the others have no arrivals to simulate")
    if arguments["--predict"] and arguments["--trace"]:
        raise ValueError("--predict simulates Poisson arrivals, not a trace")
    changes: dict[str, Any] = {
        key: _number(arguments, f"--{key}", kind)
        for key, kind in (("users", int), ("seconds", float), ("rate", float))
        if arguments[f"--{key}"] is not None
    }
    if arguments["--hold"] is not None:
        changes["hold"] = arguments["--hold"]
    folder = _folder(arguments)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise ValueError(f"--out: {folder} holds other files; name an empty folder or a new one")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out: {folder} is no folder")
    return dataclasses.replace(SCENARIOS.get(name, SCENARIOS["verify"]), **changes)


def _number(arguments: Arguments, option: str, kind: type[int] | type[float]) -> float:
    try:
        value = kind(arguments[option])
    except ValueError:
        value = 0
    if not 0 < value < math.inf:
        raise ValueError(f"{option} must be a number above 0, not {arguments[option]!r}")
    return value


def _whole(text: str, least: int) -> None:
    if not (text.isdecimal() and int(text) >= least):
        raise ValueError(f"{text!r} is not a whole number from {least} on")


CHECKS = checks.CHECKS | {
    "--seed": lambda text: _whole(text, 0),
    "--processes": lambda text: _whole(text, 1),
}


def _folder(arguments: Arguments) -> Path:
    """Return where the reports go."""
    usual = ROOT / "var" / "loadtests" / arguments["SCENARIO"]
    return Path(arguments["--out"] or usual).absolute()


class _Run:
    """One call of bin/loadtest."""

    def __init__(self, arguments: Arguments, scenario: LoadScenario, console: Console) -> None:
        self.arguments = arguments
        self.scenario = scenario
        self.console = console
        self.folder = _folder(arguments)
        self.engines: dict[str, str] = {}
        self.public = self.admin = ""
        self.door: Child
        self.laws: list[laws.Finding] = []

    def run(self) -> int:
        """Start everything, run, judge, stop everything."""
        _empty(self.folder)
        with Stage(self.folder) as stage:
            for engine in self.scenario.engines:
                self.engines[engine.model] = stage.stand_in(engine.model, engine.stand_in())
            self.door, self.public, self.admin = stage.front_door(
                self.scenario.configuration(self.engines)
            )
            for level in self.scenario.levels:
                self._one(stage, level)
            status = fetch(f"{self.admin}/admin/status")
            outcomes = outcomes_of(f"{self.admin}/metrics")
            exit_code = stage.stop(self.door)
            self.laws += laws.of_the_door(status, self.door.log.read_text(), exit_code)
            if self.arguments["SCENARIO"] == "disconnects":
                self.laws += laws.of_departures(outcomes["reasoning"])
        return _conclude(self.console, self.laws, self.folder)

    def _one(self, stage: Stage, level: int) -> None:
        """Run Locust once and judge what it and the engines saw."""
        name = f"level-{level}" if level else "."
        out = self.folder / name
        out.mkdir(exist_ok=True)
        # Engines that can sleep are tried when the front door starts: not a part of the run.
        if not wait_for(self._settled, SETTLE_TIMEOUT_S):
            raise BrokenError("the front door and its engines did not come to rest to begin with")
        for engine in self.scenario.engines:
            url = self.engines[engine.model]
            fetch(f"{url}/stand-in/reset", post={})
            fetch(f"{url}/stand-in/faults", post={"spec": engine.faults})
        wakes = self._wakes()
        with Watch(self.door.process.pid, self.admin) as watch:
            locust = stage.start("locust", [*LOCUST, *self._locust_options(level, out)])
            self._restart(stage, watch)
            exit_code = stage.end_of(locust, self.scenario.seconds + 2 * SPARE_S)
            if self.door.ended:
                code, log = self.door.process.returncode, _tail(self.door.log)
                raise BrokenError(f"the front door ended with {code} in the middle of it: {log}")
        summary_path = out / "summary.json"
        if not summary_path.exists():
            raise BrokenError(
                f"locust ended with {exit_code}: {_tail(stage.folder / 'locust.log')}"
            )
        summary = json.loads(summary_path.read_text())
        title = f"{self.arguments['SCENARIO']}{f', sleep level {level}' if level else ''}"
        self.console.print(report.summary_table(title, summary))
        self._judge(summary, exit_code, wakes, level)
        self.laws += laws.of_the_looks(self.scenario, watch.looks, watch.in_vain)
        if self.arguments["--predict"]:
            self._predict(summary)

    def _restart(self, stage: Stage, watch: Watch) -> None:
        """Have other processes take the front door's place, as often as the scenario has it."""
        restarts = self.scenario.restarts
        if restarts and not wait_for(lambda: not self._all_at_rest(), SETTLE_TIMEOUT_S):
            raise BrokenError("no load came to the front door")
        for number in range(1, restarts + 1):
            time.sleep(self.scenario.seconds / (restarts + 1))
            old, self.door = self.door, stage.successor(f"successor-{number}")
            watch.pid = self.door.process.pid
            code = stage.end_of(old, STOP_TIMEOUT_S)
            self.laws.append(laws.Finding(f"the one before ended with {code}", code == 0))

    def _judge(
        self, summary: Mapping[str, Any], exit_code: int, wakes: Mapping[str, int], level: int
    ) -> None:
        wait_for(self._all_at_rest, REST_TIMEOUT_S)
        outcomes = outcomes_of(f"{self.admin}/metrics")
        woken = {model: count - wakes[model] for model, count in self._wakes().items()}
        for engine in self.scenario.engines:
            self.laws += laws.at_engine(
                engine,
                statistics(self.engines)[engine.model],
                summary["models"].get(engine.model, {}),
                leaves=self.scenario.leaves,
                canaries=woken[engine.model],
                left_in_line=outcomes[engine.model]["client_gone_queued"],
            )
            if level and self._sleeps(engine.model):
                text = f"{engine.model}: woken {woken[engine.model]} time(s) from level {level}"
                self.laws.append(laws.Finding(text, woken[engine.model] == 1))
            elif level:
                self.console.print(
                    f"[yellow]{engine.model} could not be put to sleep: not a wake storm[/]"
                )
        if self.arguments["SCENARIO"] == "verify":
            self.laws += laws.of_the_burst(self.scenario, self.scenario.users, summary["models"])
        complaints = "; ".join(summary["complaints"][:5])
        text = f"locust: requests, objectives and offered load as they should be {complaints}"
        self.laws.append(laws.Finding(text.strip(), exit_code == 0))

    def _predict(self, summary: Mapping[str, Any]) -> None:
        capped = next(engine for engine in self.scenario.engines if engine.cap is not None)
        try:
            rows = prediction.predict(
                capped,
                self.scenario.rate,
                self.scenario.hold,
                int(self.arguments["--seed"]),
                summary,
                outcomes_of(f"{self.admin}/metrics")[capped.model],
            )
        except prediction.UnavailableError as reason:
            self.console.print(f"[yellow]no prediction: {reason}[/]")
            return
        self.console.print(report.prediction_table(rows))
        self.laws += [
            laws.Finding(f"{row.name} is {row.errors:+.2f} errors from the prediction", row.agrees)
            for row in rows
        ]

    def _locust_options(self, level: int, out: Path) -> list[str]:
        scenario, arguments = self.scenario, self.arguments
        options = {
            "--locustfile": ROOT / "loadtests" / scenario.locustfile,
            "--config": ROOT / "conf" / "locust.conf",
            "--host": self.public,
            "--admin": self.admin,
            "--users": scenario.users,
            "--spawn-rate": scenario.users,
            "--run-time": f"{int(scenario.seconds + SPARE_S)}s",
            "--seconds": scenario.seconds,
            "--rate": scenario.rate,
            "--hold": scenario.hold,
            "--level": level or 1,
            "--seed": arguments["--seed"],
            "--slo": arguments["--slo"],
            "--trace": arguments["--trace"],
            "--thin": arguments["--thin"],
            "--processes": arguments["--processes"],
            "--out": out,
            "--csv": out / "locust",
            "--html": out / "report.html",
        }
        flat = [str(x) for pair in options.items() if pair[1] not in {None, ""} for x in pair]
        return [*flat, "--headless", "--only-summary", "--csv-full-history"]

    def _all_at_rest(self) -> bool:
        stats = statistics(self.engines).values()
        upstreams = fetch(f"{self.admin}/admin/status")["upstreams"].values()
        return not any(one["in_flight"] for one in (*stats, *upstreams))

    def _settled(self) -> bool:
        upstreams = fetch(f"{self.admin}/admin/status")["upstreams"]
        known = all(
            upstreams[engine.model]["state"] != "unknown"
            for engine in self.scenario.engines
            if engine.sleeps and upstreams[engine.model]["sleep_support"] is not False
        )
        return known and self._all_at_rest()

    def _wakes(self) -> dict[str, int]:
        upstreams = fetch(f"{self.admin}/admin/status")["upstreams"]
        return {model: upstreams[model]["wakes_total"] for model in self.engines}

    def _sleeps(self, model: str) -> bool:
        return bool(fetch(f"{self.admin}/admin/status")["upstreams"][model]["sleep_support"])


def _tail(path: Path) -> str:
    return path.read_text()[-2000:]


if __name__ == "__main__":
    sys.exit(main())
