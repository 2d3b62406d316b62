"""Front doors that share one gate, at full load, and every fault in turn.

Three doors, two engines with 4 slots behind one name, cap 6, and Locust over all doors. Each door's
way to Redis can be cut, slowed and closed. Judged by the engines' own histories, by what became of
each request, and by what is held when all is at rest.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from loadtests.harness import cluster_history as histories
from loadtests.harness.balancer import Balancer
from loadtests.harness.cluster_history import EndedRequest, Instant
from loadtests.harness.processes import (
    FRONTDOOR,
    LOCUST,
    ROOT,
    BrokenError,
    Child,
    Stage,
    fetch,
    wait_for,
)
from loadtests.harness.redis_servers import RedisServer
from loadtests.harness.redis_way import RedisWay

CAP = 6
SLOTS = 4
"""At each of two engines."""
DOORS = 3
LEASE_S = 1.0
CLIENTS = 18
LAME_DUCK_S = 1.0
RECOVER_TIMEOUT_S = 90.0
"""Longer than the share of a door that is gone for good is kept."""

CONFIGURATION = """
[server]
state_dir = "{folder}"
lame_duck_s = {lame_duck_s}
[cluster]
redis = "redis://127.0.0.1:{redis}/0"
lease_s = {lease_s}
[upstreams.reasoning]
{engines} # at one address, or at several
[upstreams.reasoning.admission]
{slots}
cap = {cap}
queue = {queue}
queue_timeout_s = 30
[models.reasoning]
upstream = "reasoning"
"""


class FaultCase(NamedTuple):
    """One fault: what is done, and what must hold of it beside the laws for all."""

    name: str
    play: "Callable[[ClusterRun], None]"
    full_s: float | None = None
    """The time within which all slots must be in use again."""
    outage: bool = False
    """Whether a door may know too little to use its share, and refuse."""
    graceful: bool = False
    """Whether nobody may be refused, moved or cut."""


@dataclass(slots=True)
class FaultSeen:
    """What was seen of one fault."""

    fault: str
    began_s: float = 0.0
    whole_s: float = 0.0
    most: int = 0
    most_at_one: int = 0
    full_again_s: float | None = None
    ended: Mapping[str, int] = field(default_factory=dict)
    longest_lack_s: float = 0.0
    late_s: list[float] = field(default_factory=list)
    """By how much each was late that was let in after one that came later."""
    lost_slots: int = 0
    held_s: float | None = None
    """How long slots were held with nothing running; None: still."""
    killed: int = 0
    """How many doors were killed."""
    strays: int = 0
    """Requests that broke off at doors that were not killed."""


@dataclass(frozen=True, slots=True)
class RunningDoor:
    """A front door that runs."""

    name: str
    child: Child
    way: RedisWay
    configuration: Path
    public: str
    admin: str

    @property
    def role(self) -> str:
        """What it is in the cluster."""
        try:
            role: str = fetch(f"{self.admin}/admin/status")["cluster"]["role"]
        except (OSError, TypeError):
            return "gone"
        return role


class ClusterRun:
    """Doors, engines and Redis on a stage; `seconds` of load before and after each fault."""

    def __init__(self, stage: Stage, redis_program: str, hold: str, seconds: float) -> None:
        self.stage = stage
        self.folder = stage.folder
        self.hold = hold
        self.seconds = seconds
        self.doors: list[RunningDoor] = []
        self.engines: list[str] = []
        self.killed: set[str] = set()
        """Public addresses of doors that were killed: what was there is lost."""
        self.troubled: set[str] = set()
        """Of those that may not keep the order of arrival during this fault."""
        self.fault_s = 0.0
        """When the fault began."""
        self.said: list[tuple[str, bool]] = []
        """What a fault itself has to say, and whether it held."""
        self._program = redis_program
        self._epoch_s = datetime.now(UTC).timestamp() - time.monotonic()
        self._numbers: Counter[str] = Counter()
        self.redis = self.start_redis()
        self.balancer: Balancer | None = None

    # The stage

    def name(self, what: str) -> str:
        """Return a name for another one of these."""
        self._numbers[what] += 1
        return f"{what}-{self._numbers[what]}"

    def start_redis(self, follows: int | None = None) -> RedisServer:
        """Start another Redis, perhaps as a replica."""
        return RedisServer(self.stage, self.name("redis"), self._program, follows)

    def start_engines(self, slots: Sequence[int]) -> None:
        """Start stand-ins behind one name, instead of those that there were."""
        options = ("--port", "0", "--model", "reasoning", "--slots")
        self.engines = [
            self.stage.stand_in(self.name("engine"), [*options, str(number)]) for number in slots
        ]

    def start_doors(
        self, count: int, environment: Sequence[str] = (), **limits: Any
    ) -> list[RunningDoor]:
        """Start so many doors at once; `environment` as env(1) takes it."""
        ways = [RedisWay(self.redis.port) for _ in range(count)]
        begun = []
        for way in ways:
            name = self.name("door")
            path = self.configure(name, way, **limits)
            begun.append((name, self.start_door(name, path, environment), way, path))
        started = [
            RunningDoor(name, child, way, path, *child.listening(2)[:2])
            for name, child, way, path in begun
        ]
        self.doors += started
        return started

    def configure(self, name: str, way: RedisWay, **limits: Any) -> Path:
        """Write a door's configuration."""
        values: dict[str, Any] = {
            "folder": self.folder / "state" / name,
            "redis": way.port,
            "lease_s": LEASE_S,
            "lame_duck_s": LAME_DUCK_S,
            "cap": CAP,
            "queue": 64,
            "engines": f'url = "{self.engines[0]}"',
            "slots": "slots = 8",
        }
        if len(self.engines) > 1:
            several = (f'{{ url = "{url}", slots = {SLOTS} }}' for url in self.engines)
            values |= {"engines": f"replicas = [{', '.join(several)}]", "slots": ""}
        path = self.folder / f"{name}.toml"
        path.write_text(CONFIGURATION.format(**values | limits))
        return path

    def start_door(
        self, name: str, path: Path, environment: Sequence[str] = (), *options: str
    ) -> Child:
        """Begin to start one door."""
        listen = ("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
        command = [*FRONTDOOR, "serve", "--config", str(path), *listen, *options]
        return self.stage.start(name, ["env", *environment, *command] if environment else command)

    def clients(
        self, locustfile: str, doors: Path, users: int, out: Path, hold: str | None = None
    ) -> Child:
        """Start Locust over the doors that are listed in a file."""
        out.mkdir(exist_ok=True)
        return self.stage.start(
            f"locust-{Path(locustfile).stem}-{out.name}",
            [
                *(*LOCUST, "--locustfile", str(ROOT / "loadtests" / locustfile)),
                *("--config", str(ROOT / "conf" / "locust.conf")),
                *("--doors", str(doors), "--out", str(out), "--hold", hold or self.hold),
                *("--users", str(users), "--spawn-rate", str(users)),
                *("--headless", "--only-summary", "--csv", str(out / "locust")),
                *("--html", str(out / "report.html")),
            ],
        )

    # Doors

    def find(self, role: str) -> RunningDoor:
        """Return a front door that is that now; raises BrokenError."""
        found: list[RunningDoor] = []

        def look() -> bool:
            found[:] = [door for door in self.doors if door.role == role]
            return bool(found)

        if not wait_for(look, RECOVER_TIMEOUT_S):
            raise BrokenError(f"no front door is {role}: {[door.role for door in self.doors]}")
        return found[0]

    def retire(self, door: RunningDoor) -> int:
        """Tell a door to stop; returns its exit code, once all that it serves is over."""
        self.doors.remove(door)
        code = self.stage.stop(door.child)
        self.tell_balancer()
        return code

    def retire_all(self) -> list[tuple[RunningDoor, int]]:
        """Tell all doors to stop at once; returns their exit codes."""
        doors, self.doors = self.doors, []
        with ThreadPoolExecutor(max_workers=len(doors)) as pool:
            codes = pool.map(lambda door: self.stage.stop(door.child), doors)
            return [*zip(doors, codes, strict=True)]

    def add(self, count: int = 1, environment: Sequence[str] = ()) -> list[RunningDoor]:
        """Have so many more doors, of which the balancer knows."""
        started = self.start_doors(count, environment)
        self.tell_balancer()
        return started

    def tell_balancer(self) -> None:
        """Have it look at the doors that there are."""
        if self.balancer is not None:
            self.balancer.doors = [one.public for one in self.doors]

    def wait_until_whole(self) -> None:
        """Wait until one owns the gates and all others are its members; raises BrokenError."""

        def whole() -> bool:
            shown = [fetch_cluster(door) for door in self.doors]
            roles = sorted(str(one.get("role")) for one in shown)
            known = all(len(one.get("doors", ())) == len(self.doors) for one in shown)
            return known and roles == ["member"] * (len(self.doors) - 1) + ["owner"]

        if not wait_for(whole, RECOVER_TIMEOUT_S):
            raise BrokenError(f"the doors are {[fetch_cluster(door) for door in self.doors]}")

    # One fault

    def play(self, case: FaultCase, requests: "Callable[[], list[EndedRequest]]") -> FaultSeen:
        """Do one fault at full load and look at it until all is at rest."""
        balancer = self.balancer
        assert balancer is not None
        self.killed.clear()
        self.troubled.clear()
        for url in self.engines:
            fetch(f"{url}/stand-in/reset", post={})
        begun_s = time.monotonic()
        balancer.rests = False
        if not wait_for(lambda: len(balancer.listed) == DOORS, RECOVER_TIMEOUT_S):
            raise BrokenError(f"{balancer.listed} are healthy before: {case.name}")
        if not wait_for(lambda: self.running() >= CAP, RECOVER_TIMEOUT_S):
            raise BrokenError(f"{self.running()} of {CAP} slots are used before: {case.name}")
        time.sleep(self.seconds)
        seen = FaultSeen(case.name)
        self.begins()
        case.play(self)
        seen.began_s = self.fault_s
        self.wait_until_whole()
        seen.whole_s = time.monotonic()
        time.sleep(self.seconds)
        end_s = time.monotonic()
        balancer.rests = True
        self._rest(seen)
        history = self.history()
        ended = [one for one in requests() if one.ended_s >= begun_s]
        self._look(seen, history, ended, end_s)
        return seen

    def begins(self) -> None:
        """Take that the fault begins now, and all before was to prepare it."""
        self.fault_s = time.monotonic()

    def _rest(self, seen: FaultSeen) -> None:
        """Wait until nothing is under way or held."""
        if not wait_for(lambda: not self.running() and not self.waiting(), RECOVER_TIMEOUT_S):
            raise BrokenError(f"{seen.fault}: {self.running()} still run, {self.waiting()} wait")
        idle_s = time.monotonic()
        if wait_for(lambda: not self.held(), RECOVER_TIMEOUT_S):
            seen.held_s = time.monotonic() - idle_s

    def _look(
        self, seen: FaultSeen, history: list[Instant], ended: list[EndedRequest], end_s: float
    ) -> None:
        seen.most = histories.most_of(history)
        seen.most_at_one = histories.most_at_one(history)
        seen.full_again_s = histories.full_again_s(history, seen.began_s, end_s, CAP)
        after = histories.between(history, seen.whole_s, end_s)
        seen.lost_slots = max(0, CAP - histories.most_of(after))
        seen.killed = len(self.killed)
        seen.ended = dict(Counter(one.kind for one in ended))
        seen.strays = sum(
            one.kind in {"lost", "cut", "failed"} and one.door not in self.killed for one in ended
        )
        lacks = histories.lacks(history, seen.began_s, end_s, CAP)
        seen.longest_lack_s = max((until_s - from_s for from_s, until_s in lacks), default=0.0)
        came_s = {one.request_id: one.came_s(self._epoch_s) for one in ended if one.request_id}
        waited_s = {one.request_id: one.waited_s for one in ended}
        seen.late_s = histories.late_s(history, came_s, waited_s, self._excused(seen, ended))
        path = self.folder / f"{seen.fault.replace(' ', '-')}.json"
        path.write_text(json.dumps({"history": history, "came_s": came_s, "waited_s": waited_s}))

    def _excused(self, seen: FaultSeen, ended: list[EndedRequest]) -> Collection[str]:
        """Return those that were at a door in trouble while it was."""
        return {
            one.request_id
            for one in ended
            if one.door in self.troubled
            and one.sent_s <= seen.whole_s
            and one.ended_s >= seen.began_s
        }

    # What is seen

    def history(self) -> list[Instant]:
        """Return what the engines have run since they were last reset."""
        told = [fetch(f"{url}/stand-in/history")["changes"] for url in self.engines]
        return histories.merge(told)

    def running(self) -> int:
        """Return how many sequences the engines count now."""
        told = (fetch(f"{url}/stand-in/stats") for url in self.engines)
        return sum(int(one["sequences"]) for one in told)

    def waiting(self) -> int:
        """Return how many wait at the doors, as the owner of the gates tells."""
        return self._gates("queued")

    def held(self) -> int:
        """Return how many slots the owner of the gates, or a door, believes to be taken."""
        return self._gates("in_flight")

    def _gates(self, what: str) -> int:
        shown = (fetch(f"{door.admin}/admin/status")["upstreams"] for door in self.doors)
        return max(int(upstreams["reasoning"][what]) for upstreams in shown)


def fetch_cluster(door: RunningDoor) -> Mapping[str, Any]:
    """Return what a door tells of the cluster; nothing where it does not answer."""
    try:
        found: Mapping[str, Any] = fetch(f"{door.admin}/admin/status")["cluster"]
    except (OSError, TypeError):
        return {}
    return found


def requests_in(folder: Path) -> list[EndedRequest]:
    """Return all requests that clients have written down."""
    texts = [path.read_text() for path in folder.glob("requests-*.jsonl")]
    lines = [line for text in texts for line in text.splitlines(keepends=True)]
    return histories.read_requests(json.loads(line) for line in lines if line[-1] == "\n")
