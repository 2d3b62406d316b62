"""One run of bin/loadtest cluster: the burst of the acceptance check, then each fault in turn."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from loadtests.harness import cluster_laws
from loadtests.harness.balancer import Balancer
from loadtests.harness.cluster import (
    CLIENTS,
    DOORS,
    SLOTS,
    ClusterRun,
    FaultCase,
    FaultSeen,
    requests_in,
)
from loadtests.harness.cluster_faults import FAULTS
from loadtests.harness.laws import Finding, of_the_burst
from loadtests.harness.processes import BrokenError, Stage
from loadtests.harness.redis_servers import find_program
from loadtests.harness.scenarios import SCENARIOS
from loadtests.lib.doors import write_doors

BURST = "burst"
BURST_TIMEOUT_S = 120.0
END_TIMEOUT_S = 60.0
NAMES = (BURST, *(case.name for case in FAULTS))


def chosen(text: str | None) -> list[str]:
    """Return the names of what is to be done, all without a list; raises ValueError."""
    names = [name.strip() for name in text.split(",")] if text else [*NAMES]
    for name in names:
        if name not in NAMES:
            raise ValueError(f"--faults: {name!r} is none of {', '.join(NAMES)}")
    return names


def run_cluster(
    folder: Path, console: Console, names: Sequence[str], hold: str, seconds: float
) -> list[Finding]:
    """Start everything, do what was chosen, judge, stop everything; raises BrokenError."""
    program = find_program(console.print)
    found: list[Finding] = []
    with Stage(folder) as stage:
        run = ClusterRun(stage, program, hold, seconds)
        if BURST in names:
            for slots in ((2 * SLOTS,), (SLOTS, SLOTS)):
                found += _burst(run, slots)
        cases = [case for case in FAULTS if case.name in names]
        if cases:
            found += _faults(run, console, cases)
    return found


def _burst(run: ClusterRun, slots: Sequence[int]) -> Iterator[Finding]:
    """Send 40 at once to three doors: 14 are served, 26 told when to come back."""
    scenario = SCENARIOS["verify"]
    [engine] = scenario.engines
    run.start_engines(slots)
    run.start_doors(DOORS, queue=engine.queue, lame_duck_s=0)
    run.wait_until_whole()
    path = run.folder / "burst-doors.json"
    write_doors(path, [door.public for door in run.doors])
    out = run.folder / f"burst-{len(slots)}"
    locust = run.clients("verify.py", path, scenario.users, out, hold=scenario.hold)
    code = run.stage.end_of(locust, BURST_TIMEOUT_S)
    summary = json.loads((out / "summary.json").read_text())
    where = f"burst at {len(slots)} engine{'s' if len(slots) > 1 else ''}"
    for law in of_the_burst(scenario, scenario.users, summary["models"]):
        yield dataclasses.replace(law, text=f"{where}: {law.text}")
    most = max(one.total for one in run.history())
    yield Finding(f"{where}: never more than {engine.cap} (most {most})", most <= (engine.cap or 0))
    yield Finding(f"{where}: {'; '.join(summary['complaints']) or 'no complaints'}", code == 0)
    run.retire_all()


def _faults(run: ClusterRun, console: Console, cases: Sequence[FaultCase]) -> Iterator[Finding]:
    run.start_engines((SLOTS, SLOTS))
    run.start_doors(DOORS)
    run.wait_until_whole()
    rows: list[FaultSeen] = []
    with Balancer(run.folder / "doors.json") as run.balancer:
        run.balancer.doors = [door.public for door in run.doors]
        locust = run.clients("cluster.py", run.balancer.path, CLIENTS, run.folder)
        for case in cases:
            console.print(f"{case.name} ...")
            run.said.clear()
            seen = run.play(case, lambda: requests_in(run.folder))
            if locust.ended:
                raise BrokenError(f"locust ended in the middle of it: {locust.log.read_text()}")
            rows.append(seen)
            yield from cluster_laws.of_a_fault(case, seen)
            yield from (Finding(f"{case.name}: {text}", holds) for text, holds in run.said)
    code = run.stage.end_of(locust, END_TIMEOUT_S)
    yield Finding(f"locust ended with {code}", code == 0)
    for door, code in run.retire_all():
        yield Finding(f"{door.name} ended with {code}", code == 0)
    console.print(cluster_laws.table(rows))
    document = [dataclasses.asdict(row) for row in rows]
    (run.folder / "cluster.json").write_text(json.dumps(document, indent=1) + "\n")
    (run.folder / "cluster.md").write_text(cluster_laws.markdown(rows))
