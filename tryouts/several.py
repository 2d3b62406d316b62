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
from loadtests.harness.processes import FRONTDOOR, Child, Stage, fetch, wait_for
from tryouts.witness import RealEngine

SLOTS, CAP, CLIENTS = 4, 6, 12
TOKENS = 48
LOAD_S = 10.0
"""Before and after the kill."""
CONFIGURATION = """
[server]
state_dir = "{folder}/state"
[cluster]
redis = "redis://127.0.0.1:{redis}/0"
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
    """The most that each engine has run or kept waiting, by its own gauges."""

    def __init__(self, engines: list[RealEngine]) -> None:
        self.most = [0] * len(engines)
        self.waited = 0
        self._engines = engines
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.is_set():
            for index, engine in enumerate(self._engines):
                gauges = engine.gauges()
                self.most[index] = max(self.most[index], int(gauges["num_requests_running"]))
                self.waited = max(self.waited, int(gauges["num_requests_waiting"]))
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
            connection = http.client.HTTPConnection(urlsplit(doors[number % len(doors)]).netloc)
            try:
                connection.request("POST", "/v1/chat/completions", self._body, _JSON)
                answer = connection.getresponse()
                whole = b"data: [DONE]" in answer.read()
                self.ended["served" if whole else f"refused {answer.status}"] += 1
            except (OSError, http.client.HTTPException):
                self.ended["broken"] += 1
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
        doors[killed].send(signal.SIGKILL)
        clients.doors = [public for public in doors if public != killed]
        time.sleep(LOAD_S)
        after = clients.ended - before
    finally:
        clients.end()
        rested = wait_for(lambda: not any(e.gauges()["num_requests_running"] for e in engines), 60)
        watch.end()
    findings = {
        f"all {CAP} slots were used, at both engines {watch.most}": full and all(watch.most),
        f"no engine ran more than its {SLOTS} slots": max(watch.most) <= SLOTS,
        f"before: {dict(before)}": set(before) == {"served"},
        f"since the owner of the gates was killed amid streams: {dict(after)}": (
            after["served"] > 0 and set(after) <= {"served", "broken"}
        ),
        "in the end the engines run nothing": rested,
    }
    say(f"waiting in an engine, as it took them in: {watch.waited} at most")
    for said, holds in findings.items():
        say(said, holds=bool(holds))
