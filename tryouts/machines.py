"""A sweep over two machines that know nothing but an address: network namespaces with a bridge.

Four namespaces of their own: one with the Dask scheduler, two with a worker each, one where the
command is given. What they print is held to what one process prints, to the last byte: with both
workers, with one that is killed amid the run, and where there is no scheduler or no worker.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

import psutil

from bench.harness import ENVIRONMENT

HUB, FIRST, SECOND, USER = "hub", "first", "second", "user"
ADDRESS_OF = {HUB: "10.77.0.1", FIRST: "10.77.0.2", SECOND: "10.77.0.3", USER: "10.77.0.4"}
PORT = 8786
SCHEDULER = f"tcp://{ADDRESS_OF[HUB]}:{PORT}"
NOBODY = "tcp://10.77.0.99:8786"
"""An address on that network that no machine has: nothing refuses, nothing answers."""
SWEEP = (
    *(sys.executable, "-m", "tornado_frontdoor.cli", "sweep", "--json", "--driver", "heap"),
    *("--cap", "5..7", "--queue", "0,4,8,16", "--timeout", "5", "--rate", "2.4"),
    *("--service", "lognormal:2,0.5"),
)
SIZE = ("--requests", "5000")
FEW, MANY = 4, 12
"""Replications: enough to look at, and enough to be killed in."""
START_S, RUN_S = 90.0, 600.0
WORKED_S = 0.3
"""CPU after which a worker is taken to be in the midst of it."""
SOON_S = 20.0
"""Beyond what a start takes here."""


class _Say(Protocol):
    """Tells what was seen, and whether it is as it should be."""

    def __call__(self, what: str, *, holds: bool | None = None) -> None:
        """Tell it."""
        ...


def try_machines(say: _Say) -> None:
    """Carry it all out; needs root, and iproute2."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        say("network namespaces need root, and `ip` of iproute2", holds=False)
        return
    with ExitStack() as stack:
        network = stack.enter_context(_network())
        _try_without_scheduler(say, network)
        stack.enter_context(network.started(HUB, *_dask("scheduler", "--port", str(PORT))))
        _try_without_worker(say, network)
        workers = [
            stack.enter_context(network.started(machine, *_dask("worker", SCHEDULER)))
            for machine in (FIRST, SECOND)
        ]
        _try_both(say, network, workers)
        _try_killed(say, network, workers)


def _dask(part: str, *more: str) -> tuple[str, ...]:
    alone = ("--no-nanny", "--nthreads", "1") if part == "worker" else ()
    module = f"distributed.cli.dask_{part}"
    return (sys.executable, "-m", module, *more, *alone, "--no-dashboard")


class _Network:
    """Namespaces by the part that each plays."""

    def __init__(self, name: str) -> None:
        self._name = name

    def inside(self, machine: str, *command: str) -> list[str]:
        """Return a command as it is given inside a namespace."""
        return ["ip", "netns", "exec", f"{self._name}-{machine}", *command]

    @contextmanager
    def started(self, machine: str, *command: str) -> Iterator[psutil.Process]:
        """Have a process run there; it is ended with the block."""
        child = subprocess.Popen(
            self.inside(machine, *command),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
        )
        try:
            yield psutil.Process(child.pid)  # `ip` becomes the command it is given
        finally:
            child.kill()
            child.wait()

    def swept(self, replications: int, *more: str) -> subprocess.CompletedProcess[str]:
        """Give the command at the user's machine and wait for what it prints."""
        return subprocess.run(
            self.inside(USER, *SWEEP, "--reps", str(replications), *more),
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
            timeout=RUN_S,
            check=False,
        )


@contextmanager
def _network() -> Iterator[_Network]:
    """Give four namespaces that reach each other, and nothing else."""
    name = f"fd{os.getpid()}"
    spaces = {machine: f"{name}-{machine}" for machine in ADDRESS_OF}
    try:
        for space in spaces.values():
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
        _ip("-n", spaces[HUB], "link", "add", "bridge0", "type", "bridge")
        _ip("-n", spaces[HUB], "link", "set", "bridge0", "up")
        _ip("-n", spaces[HUB], "address", "add", f"{ADDRESS_OF[HUB]}/24", "dev", "bridge0")
        for machine, space in spaces.items():
            if machine == HUB:
                continue
            pair = ("type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "add", machine, "netns", spaces[HUB], *pair)
            _ip("-n", spaces[HUB], "link", "set", machine, "master", "bridge0", "up")
            _ip("-n", space, "address", "add", f"{ADDRESS_OF[machine]}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
        yield _Network(name)
    finally:
        for space in spaces.values():
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _try_without_scheduler(say: _Say, network: _Network) -> None:
    began_s = time.monotonic()
    network.swept(1, "--jobs", "1", "--requests", "100")
    start_s = time.monotonic() - began_s
    for address, what in ((SCHEDULER, "nobody listens"), (NOBODY, "no machine has the address")):
        began_s = time.monotonic()
        done = network.swept(1, *SIZE, "--dask", address)
        took_s = time.monotonic() - began_s
        lines = done.stderr.strip().splitlines()
        holds = done.returncode == 2 and "no Dask scheduler" in done.stderr and len(lines) == 1
        told = f"{what}: {lines[-1:]} after {took_s:.1f} s, a start takes {start_s:.1f} s"
        say(told, holds=holds and took_s < 2 * start_s + SOON_S)


def _try_without_worker(say: _Say, network: _Network) -> None:
    done = network.swept(1, *SIZE, "--dask", SCHEDULER)
    last = done.stderr.strip().splitlines()[-1:]
    say(f"a scheduler alone: {last}", holds=done.returncode == 2 and "has no worker" in done.stderr)


def _try_both(say: _Say, network: _Network, workers: list[psutil.Process]) -> None:
    here = network.swept(FEW, *SIZE, "--jobs", "1")
    before_s = [_cpu_s(worker) for worker in workers]
    there = network.swept(FEW, *SIZE, "--dask", SCHEDULER)
    spent_s = [_cpu_s(worker) - s for worker, s in zip(workers, before_s, strict=True)]
    points = len(json.loads(here.stdout)["points"])
    say(f"{points} points by one process, {len(here.stdout)} bytes", holds=here.returncode == 0)
    say("the same bytes by both workers", holds=there.stdout == here.stdout)
    told = " and ".join(f"{each:.1f} s" for each in spent_s)
    say(f"the workers spent {told} of CPU", holds=min(spent_s) > max(spent_s) / 4)


def _try_killed(say: _Say, network: _Network, workers: list[psutil.Process]) -> None:
    here = network.swept(MANY, *SIZE, "--jobs", "1")
    before_s = _cpu_s(workers[0])
    running = subprocess.Popen(
        network.inside(USER, *SWEEP, *SIZE, "--reps", str(MANY), "--dask", SCHEDULER),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        amid = _wait_until(
            lambda: running.poll() is not None or _cpu_s(workers[0]) - before_s > WORKED_S
        )
        alive = running.poll() is None
        workers[0].send_signal(signal.SIGKILL)
        told, complaint = running.communicate(timeout=RUN_S)
    finally:
        running.kill()
        running.wait()
    say("a worker was killed amid the run", holds=amid and alive)
    say(f"the other one made the same bytes {complaint[-200:]}", holds=told == here.stdout)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _wait_until(condition: Callable[[], bool]) -> bool:
    ends_s = time.monotonic() + RUN_S
    while not condition():
        if time.monotonic() > ends_s:
            return False
        time.sleep(0.05)
    return True
