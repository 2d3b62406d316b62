"""What every bench and tryout runs on: an engine, a front door, and what a process has used.

Rule 1: each is a process of its own on a free port of loopback, and is there once it accepts.
Rule 2: what was started within `running` is stopped with it, however that ends.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Self

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "bench" / "peers"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 40.0
"""Longer than a front door drains."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") / 1024

Process = subprocess.Popen[bytes]


# A front door


def configuration(
    url: str,
    model: str = "reasoning",
    *,
    admission: tuple[int, int, int, float] | None = None,
    upstream: str = "",
    server: str = "",
    surfaces: str = "",
    models: str = "",
) -> str:
    """Return a configuration with one engine, named `engine`.

    `admission` is slots, cap, queue and queue_timeout_s; the other texts are lines for the tables
    of these names, and may go on with tables of their own.
    """
    lines = [
        *("[server]", server, "[surfaces]", surfaces),
        *("[upstreams.engine]", f'url = "{url}"', upstream),
    ]
    if admission is not None:
        slots, cap, queue, queue_timeout_s = admission
        lines += [
            *("[upstreams.engine.admission]", f"slots = {slots}", f"cap = {cap}"),
            *(f"queue = {queue}", f"queue_timeout_s = {queue_timeout_s}"),
        ]
    lines += [f'[models."{model}"]', 'upstream = "engine"', models]
    return "\n".join(line for line in lines if line) + "\n"


class FrontDoor:
    """A front door in a process of its own; it can be stopped, killed and started again.

    `within` are the words of a Python script that runs it.
    """

    def __init__(
        self,
        folder: Path,
        text: str,
        environment: Mapping[str, str] = ENVIRONMENT,
        within: Sequence[str] = (),
    ) -> None:
        self._environment = environment
        self._within = within
        self.log = folder / "frontdoor.log"
        self._file = folder / "frontdoor.toml"
        self._file.write_text(text)
        self.start()

    def start(self) -> None:
        """Start it, and wait until it listens; what it logs is added to `log`."""
        with self.log.open("ab") as log:
            self.process: Process = subprocess.Popen(
                [
                    *(sys.executable, *self._within, "-m", "tornado_frontdoor.cli", "serve"),
                    *("--config", str(self._file)),
                    *("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"),
                ],
                cwd=ROOT,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline().decode().split() for _ in range(2)]
        if not all(lines):
            self.process.kill()
            self.process.communicate()
            raise SystemExit(f"the front door did not start: {self.log.read_text()[-2000:]}")
        self.public, self.admin = (line[-1] for line in lines)

    @property
    def port(self) -> int:
        """Its public port."""
        return int(self.public.rpartition(":")[2])

    def stop(self) -> int:
        """End it as an operator does, unless it ended already; returns its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=STOP_TIMEOUT_S)
        return self.process.returncode

    def kill(self) -> None:
        """End it without a chance to say anything."""
        self.process.kill()
        self.process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


# The engine of the benches, and whatever else listens


def start_engine(chunks: int, gap_ms: float) -> tuple[Process, int]:
    """Start the engine of the benches; returns it and its port once it accepts."""
    port = free_port()
    command = [str(PEERS / "engine.py"), str(port), str(chunks), str(gap_ms)]
    return start_listening("the engine", [sys.executable, *command], port, None), port


def start_listening(name: str, command: Sequence[str], port: int, log: Path | None) -> Process:
    """Start what listens on a port that it was told; returns it once it accepts."""
    with (log or Path(os.devnull)).open("wb") as errors:
        process: Process = subprocess.Popen(
            command,
            cwd=ROOT,
            # Without the last one LiteLLM fetches a list of prices from the network as it starts.
            env=ENVIRONMENT | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            stdout=subprocess.DEVNULL,
            stderr=errors if log else None,
        )
    if accepts(port, process):
        return process
    process.kill()
    process.wait()
    raise SystemExit(f"{name} did not start{': ' + log.read_text() if log else ''}")


@contextmanager
def running() -> Iterator[list[Process]]:
    """Yield a list for what is started; all of it is stopped at the end, whatever that is."""
    before = signal.signal(signal.SIGTERM, _end)
    processes: list[Process] = []
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate()
        signal.signal(signal.SIGTERM, before)


def _end(_: int, __: FrameType | None) -> None:
    raise SystemExit(143)  # so that what was started is stopped


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts(port: int, process: Process) -> bool:
    """Wait until a process listens on its port; tells whether it does, in time."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.05)
    return False


# What a process has used


def cpu_s(process: Process) -> float:
    """Return the CPU seconds of a process so far, user and system, in ticks of the kernel."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def fine_cpu_s(process: Process) -> float:
    """Return the CPU seconds of a process's threads so far, to the nanosecond."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def rss_kib(process: Process) -> float:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * PAGE_KIB
