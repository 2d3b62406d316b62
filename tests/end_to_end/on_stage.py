"""The command line as real processes, each ended with its test whatever happens."""

import contextlib
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stopwatch import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent
CONFIGURATION = """
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
drain_timeout_s = {drain_timeout_s}

[surfaces]

[upstreams.reasoning]
url = "http://127.0.0.1:{engine}"

[upstreams.reasoning.admission]
slots = 8
cap = {cap}
queue = {queue}
queue_timeout_s = {queue_timeout_s}

[models.reasoning]
upstream = "reasoning"
"""


class Process:
    """A running `frontdoor`; its stdout comes line by line, its stderr goes to a file."""

    def __init__(self, arguments: Sequence[str], errors: Path) -> None:
        self._errors = errors
        with errors.open("wb") as stderr:
            self.popen = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "tornado_frontdoor.cli", *arguments],
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                text=True,
            )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        with contextlib.suppress(ValueError):  # closed under us at the end
            for line in self.popen.stdout:
                self._lines.put(line.rstrip("\n"))

    @property
    def errors(self) -> str:
        """All of stderr so far."""
        return self._errors.read_text()

    def line(self) -> str:
        """Return the next line of stdout; fails when none comes."""
        try:
            return self._lines.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise AssertionError(f"no line on stdout; stderr: {self.errors}") from None

    def port(self, kind: str) -> int:
        """Return the port of the next line, which must say that `kind` listens."""
        line = self.line()
        match = re.fullmatch(rf"listening {kind} http://127\.0\.0\.1:(\d+)", line)
        assert match, line
        return int(match[1])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.popen.send_signal(number)

    def code(self, within_s: float = PATIENCE_S) -> int:
        """Wait for the end; return the exit code."""
        return self.popen.wait(within_s)

    def end(self) -> None:
        """Make sure that it is over."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
        self._reader.join(1)
        assert self.popen.stdout is not None
        self.popen.stdout.close()


class Stage:
    """Starts processes for one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[Process] = []

    def start(self, *arguments: str) -> Process:
        """Start `frontdoor` with these arguments."""
        errors = self.folder / f"stderr-{len(self._processes)}"
        process = Process(arguments, errors)
        self._processes.append(process)
        return process

    def engine(self, *options: str) -> tuple[Process, int]:
        """Start a stand-in that serves `reasoning`; return it and its port."""
        process = self.start("stand-in", "--port", "0", *options)
        return process, process.port("stand-in")

    def configure(self, name: str = "frontdoor.toml", **values: object) -> Path:
        """Write a configuration file."""
        path = self.folder / name
        defaults: dict[str, object] = {
            "cap": 6,
            "queue": 8,
            "queue_timeout_s": 30,
            "drain_timeout_s": 10,
            "engine": 9,
        }
        path.write_text(CONFIGURATION.format_map(defaults | values))
        return path

    def serve(self, *options: str, **values: Any) -> tuple[Process, int, int]:
        """Start a front door; return it and its ports (public, admin)."""
        path = self.configure(**values)
        process = self.start("serve", "--config", str(path), *options)
        return process, process.port("public"), process.port("admin")


@contextlib.contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    """End every process of a test with it."""
    made = Stage(folder)
    try:
        yield made
    finally:
        for process in made._processes:
            process.end()


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `frontdoor` to its end."""
    # Tornado leaves a socket that it could not bind to the garbage collector.
    warnings = ["-W", "error", "-W", "ignore::ResourceWarning"]
    return subprocess.run(
        [sys.executable, *warnings, "-m", "tornado_frontdoor.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )


def is_free(port: int) -> bool:
    """Tell whether a port can be bound on all addresses."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
