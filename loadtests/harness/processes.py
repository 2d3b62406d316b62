"""Engine stand-ins, the front door and Locust, each a process of its own on a free port.

Rule 1: every child leads a process group of its own, so that Ctrl-C on a terminal reaches only us,
        and the children are stopped in order: clients first, engines last.
Rule 2: nothing is left behind, however it ends; who does not stop when asked is killed, and a
        second Ctrl-C kills them all.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIGURATION = "frontdoor.toml"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 40.0
"""Longer than the front door drains."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a run."""


class BrokenError(Exception):
    """A process did not start, or ended when it should not."""


class Child:
    """One process; what it says goes to files."""

    alive: ClassVar[list["Child"]] = []
    """All that were started and not stopped."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self.name = name
        self.out, self.log = folder / f"{name}.out", folder / f"{name}.log"
        with self.out.open("wb") as out, self.log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own commands
                command,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )
        self.alive.append(self)

    def listening(self, count: int) -> list[str]:
        """Return the URLs that it says it listens on, once it has said so `count` times."""

        def urls() -> list[str]:
            lines = self.out.read_text().splitlines(keepends=True)
            return [x.split()[-1] for x in lines if x.startswith("listening ") and x[-1] == "\n"]

        if not wait_for(lambda: len(urls()) >= count or self.ended, START_TIMEOUT_S) or self.ended:
            raise BrokenError(f"{self.name} did not start: {self.log.read_text()[-2000:]}")
        return urls()

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.process.poll() is not None

    def stop(self) -> int:
        """Ask it to stop, with all that it started; returns its exit code."""
        self.send(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT_S)
        self.send(signal.SIGKILL)  # also whatever it left behind in its group
        code = self.process.wait()
        self.alive.remove(self)
        return code

    @classmethod
    def kill_all(cls) -> None:
        """Kill every child with all that it started: who stops them finds them ended."""
        for child in cls.alive:
            child.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it and to all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class Stage:
    """The processes of one run of bin/loadtest; leaving the context stops them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        while self._children:
            self._children.pop().stop()

    def start(self, name: str, command: Sequence[str]) -> Child:
        """Start a process that lives until the end."""
        with uninterrupted():
            child = Child(name, command, self.folder)
            self._children.append(child)
        return child

    def stop(self, child: Child) -> int:
        """Stop one of them before the end; returns its exit code."""
        self._children.remove(child)
        return child.stop()

    def stand_in(self, name: str, options: Sequence[str]) -> str:
        """Start an engine stand-in; returns its URL."""
        return self.start(name, [*FRONTDOOR, "stand-in", *options]).listening(1)[0]

    def front_door(self, configuration: str) -> tuple[Child, str, str]:
        """Start the front door; returns it, its public and its admin URL."""
        (self.folder / CONFIGURATION).write_text(configuration)
        child = self.start("frontdoor", self._serve())
        public, admin = child.listening(2)[:2]
        return child, public, admin

    def successor(self, name: str) -> Child:
        """Start the front door that takes the place of the one that serves now."""
        child = self.start(name, [*self._serve(), "--take-over"])
        child.listening(2)
        return child

    def _serve(self) -> list[str]:
        path = self.folder / CONFIGURATION
        listen = ("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
        return [*FRONTDOOR, "serve", "--config", str(path), *listen]

    def locust(self, options: Sequence[str], timeout_s: float) -> int:
        """Run Locust to its end; returns its exit code."""
        return self.end_of(self.start("locust", [*LOCUST, *options]), timeout_s)

    def end_of(self, child: Child, timeout_s: float) -> int:
        """Wait until a process has ended by itself; returns its exit code."""
        if not wait_for(lambda: child.ended, timeout_s):
            raise BrokenError(f"{child.name} was still running after {timeout_s:.0f} s")
        return self.stop(child)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let signals take effect after the block.

    Between a fork and our note of it, one would leave a process that nobody stops.
    """
    came: list[int] = []
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in came:
            signal.raise_signal(one)


FRONTDOOR = (sys.executable, "-m", "tornado_frontdoor.cli")
LOCUST = (sys.executable, "-m", "locust")


def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Return whether a condition came true in time."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def fetch(url: str, *, post: Mapping[str, Any] | None = None) -> Any:
    """Return the JSON behind a URL of ours; None where there is none."""
    data = None if post is None else json.dumps(post).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - ours
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - ours
        body = answer.read()
    try:
        return json.loads(body)
    except ValueError:
        return None


def metrics_of(url: str) -> dict[str, float]:
    """Return what is behind a Prometheus URL, by name with labels as they are written."""
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - ours
        text = answer.read().decode()
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
    return {name: float(value) for name, value in lines}


def outcomes_of(url: str) -> defaultdict[str, Counter[str]]:
    """Return how many requests of each upstream ended how, by the front door's own count."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, value in metrics_of(url).items():
        if name.startswith("frontdoor_requests_total{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', name))
            counts[labels["upstream"]][labels["outcome"]] += int(value)
    return counts


def statistics(engines: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the counters of every engine stand-in, by model."""
    return {model: fetch(f"{url}/stand-in/stats") for model, url in engines.items()}
