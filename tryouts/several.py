"""Two real vLLM behind one name, three front doors before them, one killed amid streams."""

import http.client
import json
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from bench.harness import free_port
from loadtests.harness.cluster_history import Instant, lacks
from loadtests.harness.processes import FRONTDOOR, Child, Stage, fetch, wait_for
from tryouts.witness import RealEngine

SLOTS, CAP, CLIENTS = 4, 6, 12
TOKENS = 200
LOAD_S = 10.0
"""Before and after the kill."""
CONFIGURATION = """
[server]
state_dir = "{folder}/state"
[cluster]
redis = "redis://127.0.0.1:{redis}/0"
lease_s = 1
[upstreams.engine]
replicas = [{replicas}]
[upstreams.engine.admission]
cap = {cap}
queue = 64
queue_timeout_s = 300
[models."{model}"]
upstream = "engine"
"""


class GaugeWatch:
    """What each engine ran and kept waiting, by its own gauges, all the while."""

    def __init__(self, engines: list[RealEngine]) -> None:
        self.most = [0] * len(engines)
        self.waited = 0
        self.history: list[Instant] = []
        self._engines = engines
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.is_set():
            told = [engine.gauges() for engine in self._engines]
            running = tuple(int(one["num_requests_running"]) for one in told)
            self.history.append(Instant(time.monotonic(), running, ""))
            self.most = [max(pair) for pair in zip(self.most, running, strict=True)]
            self.waited = max(self.waited, *(int(one["num_requests_waiting"]) for one in told))
            time.sleep(0.02)

    def end(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()


class StreamCrowd:
    """Clients that stream all the time, each at one of the doors."""

    def __init__(self, doors: list[str], model: str) -> None:
        self.doors = doors
        self.ended: Counter[str] = Counter()
        self.killed = ""
        """The door that was killed."""
        message = {"role": "user", "content": "Tell me of doors."}
        fields = {"model": model, "messages": [message], "stream": True, "max_tokens": TOKENS}
        self._body = json.dumps(fields | {"ignore_eos": True}).encode()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._one, args=(n,)) for n in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let what is under way end."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _one(self, number: int) -> None:
        while not self._over.is_set():
            doors = self.doors
            door = doors[number % len(doors)]
            connection = http.client.HTTPConnection(urlsplit(door).netloc)
            try:
                connection.request("POST", "/v1/chat/completions", self._body, _JSON)
                answer = connection.getresponse()
                whole = b"data: [DONE]" in answer.read()
                self.ended["served" if whole else f"refused {answer.status}"] += 1
            except (OSError, http.client.HTTPException):
                self.ended["broken" if door == self.killed else "broken elsewhere"] += 1
            finally:
                connection.close()


_JSON = {"Content-Type": "application/json"}


def _start(stage: Stage, folder: Path, urls: list[str], model: str) -> dict[str, Child]:
    """Start Redis and three front doors; returns these by their public address."""
    redis = free_port()
    stage.start("redis", ["redis-server", "--port", str(redis), "--save", "", "--dir", str(folder)])
    replicas = ", ".join(f'{{ url = "{url}", slots = {SLOTS} }}' for url in urls)
    path = folder / "several.toml"
    path.write_text(
        CONFIGURATION.format(folder=folder, redis=redis, replicas=replicas, cap=CAP, model=model)
    )
    listen = ("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
    command = [*FRONTDOOR, "serve", "--config", str(path), *listen]
    doors = [stage.start(f"door-{number}", command) for number in range(3)]
    return {door.listening(2)[0]: door for door in doors}


def _role(admin: str) -> str:
    role: str = fetch(f"{admin}/admin/status")["cluster"]["role"]
    return role


def try_several(say: Callable[..., None], urls: list[str], model: str) -> None:
    """Run all of it."""
    if shutil.which("redis-server") is None:
        say("redis-server is not installed: nothing was tried", holds=False)
        return
    with tempfile.TemporaryDirectory() as folder, Stage(Path(folder)) as stage:
        _play(say, stage, Path(folder), urls, model)


def _play(
    say: Callable[..., None], stage: Stage, folder: Path, urls: list[str], model: str
) -> None:
    engines = [RealEngine(url, model) for url in urls]
    doors = _start(stage, folder, urls, model)
    admin = {public: door.listening(2)[1] for public, door in doors.items()}
    watch = GaugeWatch(engines)
    clients = StreamCrowd(list(doors), model)
    try:
        full = wait_for(lambda: sum(watch.most) >= CAP, 120)
        time.sleep(LOAD_S)
        before = Counter(clients.ended)
        killed = next(public for public, url in admin.items() if _role(url) == "owner")
        clients.killed = killed
        doors[killed].send(signal.SIGKILL)
        killed_s = time.monotonic()
        clients.doors = [public for public in doors if public != killed]
        time.sleep(LOAD_S)
        lacked = [*lacks(watch.history, killed_s, time.monotonic(), CAP)]
        after = clients.ended - before
    finally:
        clients.end()
        rested = wait_for(lambda: not any(e.gauges()["num_requests_running"] for e in engines), 60)
        watch.end()
    again_s = lacked[0][1] - killed_s if lacked else 0.0
    findings = {
        f"all {CAP} slots were used, at both engines {watch.most}": full and all(watch.most),
        f"no engine ran more than its {SLOTS} slots": max(watch.most) <= SLOTS,
        f"before: {dict(before)}": set(before) == {"served"},
        f"since the owner of the gates was killed amid streams: {dict(after)}": (
            after["served"] > 0 and set(after) == {"served", "broken"}
        ),
        f"all {CAP} slots are in use again after {again_s:.2f} s": again_s < LOAD_S,
        "in the end the engines run nothing": rested,
    }
    say(f"waiting in an engine, as it took them in: {watch.waited} at most")
    for said, holds in findings.items():
        say(said, holds=bool(holds))
