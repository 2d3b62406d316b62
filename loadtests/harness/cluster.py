"""Three front doors that share one gate, at full load, and every fault in turn.

Judged by the engine's own count, by the clients, and by what is held when all is over. The doors,
Redis and the engine are processes of their own; faults are signals to them.
"""

import json
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from loadtests.harness import laws
from loadtests.harness.cluster_clients import ClientCrowd, EndedRequest
from loadtests.harness.processes import (
    FRONTDOOR,
    BrokenError,
    Child,
    Stage,
    fetch,
    wait_for,
)
from loadtests.harness.redis_way import RedisWay

CAP = 6
SLOTS = 8
DOORS = 3
LEASE_S = 1.0
CLIENTS = 18
TOKENS = 8
START_TIMEOUT_S = 90.0
RECOVER_TIMEOUT_S = 60.0
FULL_AGAIN_S = 2.0
"""After a kill of the owner, with this lease; twice that is let pass on a machine that is busy."""
WATCH_S = 6.0
GAP_S = 0.2
ORDER_S = 0.25
"""Two requests whose sending is no further apart may reach the gate in any order."""

CONFIGURATION = """
[server]
state_dir = "{folder}"
[cluster]
redis = "redis://127.0.0.1:{redis}/0"
lease_s = {lease_s}
[upstreams.reasoning]
url = "{engine}"
[upstreams.reasoning.admission]
slots = {slots}
cap = {cap}
queue = 64
queue_timeout_s = 30
[models.reasoning]
upstream = "reasoning"
"""


class FaultRow(NamedTuple):
    """What one fault did."""

    fault: str
    most: int
    full_again_s: float | None
    ended: Mapping[str, int]
    disorder: int


class RunningDoor(NamedTuple):
    """A front door that runs."""

    child: Child
    way: RedisWay
    public: str
    admin: str

    @property
    def role(self) -> str:
        """What it is in the cluster."""
        try:
            role: str = fetch(f"{self.admin}/admin/status")["cluster"]["role"]
        except OSError:
            return "gone"
        return role


class FaultTimes(NamedTuple):
    """When a fault began, and how long after that all slots were in use again; None: never."""

    began_s: float
    full_again_s: float | None


class ClusterRun:
    """One run of all faults; `seconds` of load before each of them."""

    def __init__(self, folder: Path, console: Console, hold: str, seconds: float) -> None:
        self.folder = folder
        self.console = console
        self.hold_s = float(hold)
        self.seconds = seconds
        self.rows: list[FaultRow] = []
        self.laws: list[laws.Finding] = []
        self.doors: list[RunningDoor] = []
        self._number = 0
        self._port = _free_port()

    def run(self, faults: "Sequence[Fault]") -> list[laws.Finding]:
        """Start everything, do every fault, judge; raises BrokenError."""
        if shutil.which("redis-server") is None:
            raise BrokenError("redis-server is not installed: apt-get install redis-server")
        with Stage(self.folder) as stage:
            self.stage = stage
            self.redis = self.start_redis()
            self.engine = stage.stand_in("reasoning", self._engine_options())
            self.doors = self._start_doors(DOORS)
            self.wait_until_whole()
            with ClientCrowd([door.public for door in self.doors], CLIENTS) as self.crowd:
                for fault in faults:
                    self._one(fault.__name__.strip("_").replace("_", " "), fault)
            self._judge_rest()
        self.console.print(self._table())
        (self.folder / "cluster.json").write_text(json.dumps([r._asdict() for r in self.rows]))
        return self.laws

    # The stage

    def _engine_options(self) -> list[str]:
        gap_ms = 1000 * self.hold_s / TOKENS
        return [
            *("--port", "0", "--model", "reasoning", "--slots", str(SLOTS)),
            *("--tokens", str(TOKENS), "--gap-ms", f"{gap_ms:g}"),
        ]

    def start_redis(self) -> Child:
        """Start a Redis that is empty."""
        self._number += 1
        command = ["redis-server", "--port", str(self._port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self.folder)]
        child = self.stage.start(f"redis-{self._number}", command)
        if not wait_for(lambda: _answers(self._port), START_TIMEOUT_S):
            raise BrokenError("redis-server did not start")
        return child

    def _start_doors(self, count: int) -> list[RunningDoor]:
        listen = ("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
        started = []
        for _ in range(count):
            self._number += 1
            way = RedisWay(self._port)
            path = self.folder / f"cluster-{self._number}.toml"
            path.write_text(
                CONFIGURATION.format(
                    folder=self.folder / "state",
                    redis=way.port,
                    engine=self.engine,
                    lease_s=LEASE_S,
                    slots=SLOTS,
                    cap=CAP,
                )
            )
            command = [*FRONTDOOR, "serve", "--config", str(path), *listen]
            started.append((self.stage.start(f"door-{self._number}", command), way))
        return [RunningDoor(child, way, *child.listening(2)[:2]) for child, way in started]

    def find(self, role: str) -> RunningDoor:
        """Return a front door that is that now; raises BrokenError."""
        found = [door for door in self.doors if door.role == role]
        if not found:
            raise BrokenError(f"no front door is {role}: {[door.role for door in self.doors]}")
        return found[0]

    def replace(self, old: RunningDoor) -> None:
        """Have another front door instead of one that is gone."""
        new = self._start_doors(1)[0]
        self.doors = [door for door in self.doors if door is not old] + [new]
        self.crowd.doors = [door.public for door in self.doors]

    def wait_until_whole(self) -> None:
        """Wait until one owns the gates and all others are its members; raises BrokenError."""

        def whole() -> bool:
            roles = sorted(door.role for door in self.doors)
            return roles == ["member"] * (DOORS - 1) + ["owner"]

        if not wait_for(whole, RECOVER_TIMEOUT_S):
            raise BrokenError(f"the doors are {[door.role for door in self.doors]}")

    # One fault

    def _one(self, name: str, fault: "Fault") -> None:
        fetch(f"{self.engine}/stand-in/reset", post={})
        began_s = time.monotonic()
        if not wait_for(lambda: self._running() >= CAP, RECOVER_TIMEOUT_S):
            raise BrokenError(f"only {self._running()} of {CAP} slots are used before {name}")
        time.sleep(self.seconds)
        disorder = disorder_of(self._stats()["order"], self.crowd.outcomes, began_s)
        fault_s, full_s = fault(self)
        time.sleep(self.seconds)
        self.wait_until_whole()
        stats = self._stats()
        row = FaultRow(name, stats["max_sequences"], full_s, self.crowd.since(fault_s), disorder)
        self.rows.append(row)
        self._judge(row)

    def time_to_full(self, fault_s: float) -> float | None:
        """Return when the longest lack of work after a fault ended, since it; None: it did not.

        What runs at the engine hides a fault for a while, so it is looked at for some leases. Two
        slots may be between two requests at any time, and a short lack is none.
        """
        longest_s, ended_s, low_s = GAP_S, fault_s, None
        while (now := time.monotonic()) - fault_s < RECOVER_TIMEOUT_S:
            if self._running() < CAP - 1:
                low_s = low_s or now
            else:
                if low_s is not None and now - low_s > longest_s:
                    longest_s, ended_s = now - low_s, now
                low_s = None
                if now - fault_s >= WATCH_S:
                    return ended_s - fault_s
            time.sleep(0.01)
        return None

    def _judge(self, row: FaultRow) -> None:
        said = f"{row.fault}: never more than {CAP} at the engine (most {row.most})"
        self.laws.append(laws.Finding(said, row.most <= CAP))
        self.laws.append(
            laws.Finding(f"{row.fault}: all slots in use again", row.full_again_s is not None)
        )
        said = f"{row.fault}: order of arrival before it, over all doors"
        self.laws.append(laws.Finding(said, row.disorder == 0))
        if row.fault == "rolling restart":
            lost = sum(n for kind, n in row.ended.items() if kind not in {"served", "moved"})
            said = f"{row.fault}: nobody refused, no stream cut ({lost})"
            self.laws.append(laws.Finding(said, lost == 0))
        if row.fault == "kill the owner" and row.full_again_s is not None:
            said = f"{row.fault}: full use again in {row.full_again_s:.1f} s, at most 4"
            self.laws.append(laws.Finding(said, row.full_again_s <= 2 * FULL_AGAIN_S))

    def _judge_rest(self) -> None:
        def at_rest() -> bool:
            shown = [fetch(f"{door.admin}/admin/status")["upstreams"] for door in self.doors]
            gates = [upstreams["reasoning"] for upstreams in shown]
            return not any(gate["in_flight"] or gate["queued"] for gate in gates)

        held = not wait_for(at_rest, RECOVER_TIMEOUT_S) or self._running()
        self.laws.append(laws.Finding("at rest no slot and no place is held", not held))

    def _stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = fetch(f"{self.engine}/stand-in/stats")
        return stats

    def _running(self) -> int:
        return int(self._stats()["sequences"])

    def _table(self) -> Table:
        title = f"cap {CAP}, {DOORS} front doors, {CLIENTS} clients, lease {LEASE_S:g} s"
        table = Table(title=title, title_justify="left")
        for heading in ("fault", "most at the engine", "full again", "ended since", "disorder"):
            table.add_column(heading)
        for row in self.rows:
            full = "never" if row.full_again_s is None else f"{row.full_again_s:.2f} s"
            ended = ", ".join(f"{n} {kind}" for kind, n in sorted(row.ended.items()))
            table.add_row(row.fault, str(row.most), full, ended, str(row.disorder))
        return table


Fault = Callable[[ClusterRun], FaultTimes]


def disorder_of(order: list[str], outcomes: list[EndedRequest], since_s: float) -> int:
    """Return how many reached the engine after one that was sent clearly later."""
    sent = {one.request_id: one.sent_s for one in [*outcomes] if one.sent_s >= since_s}
    latest_s, found = 0.0, 0
    for request_id in order:
        sent_s = sent.get(request_id)
        if sent_s is None:
            continue
        found += sent_s < latest_s - ORDER_S
        latest_s = max(latest_s, sent_s)
    return found


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
