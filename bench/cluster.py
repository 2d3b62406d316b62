"""What asking a remote owner costs: grants through a real Redis, one at a time and many at once.

Two processes share one gate that is never full; the one that does not own it asks for slots and
gives them back. Nothing else of a request is done: this is the protocol, Redis and redis-py.

What a second holds depends on who else is on the machine, by a factor of ten on two busy cores;
what a grant takes of processors hardly does. So both are told: grants by the clock, and how many a
second the busiest of the three processes has processor time for.
"""

import argparse
import asyncio
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from bench.harness import fine_cpu_s, free_port, running, start_listening
from tornado_frontdoor.cluster.rules import ClusterRules, GateRules
from tornado_frontdoor.core.decisions import Outcome
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.proxy.cluster.door import ClusterDoor
from tornado_frontdoor.proxy.cluster.gate import SharedGate
from tornado_frontdoor.proxy.cluster.ports import Share
from tornado_frontdoor.proxy.gate_driver import AdmissionLimits, GateDriver

ADDRESS = "http://engine"
LIMITS = AdmissionLimits(cap=512, queue=512, queue_timeout_s=30.0)
P50_TARGET_S = 0.0015
GRANTS_TARGET_PER_S = 2000
START_TIMEOUT_S = 30.0
SINGLE, AT_ONCE, EACH = 2000, 64, 200


def door(url: str) -> tuple[ClusterDoor, SharedGate]:
    """Return a door of the cluster with one upstream whose engine is idle."""
    rules = ClusterRules(gates={ADDRESS: GateRules(cap=LIMITS.cap, sleeps=False)}, lease_s=2.0)
    one = ClusterDoor(url, rules)
    key = UpstreamKey("bench")

    def build(_: Share | None, __: Mapping[str, str]) -> tuple[GateDriver, Any]:
        return GateDriver(key, LIMITS, Random(1)), lambda: None

    async def count(_: str) -> int:
        return 0

    gate = SharedGate(one, ADDRESS, key, lambda: LIMITS, build, count, lambda *_: None)
    one.start()
    return one, gate


async def own(url: str) -> None:
    """Own the gates until killed."""
    owner, _ = door(url)
    while owner.node.owner is None or owner.node.owner.learning:  # noqa: ASYNC110 - polls twice
        await asyncio.sleep(0.05)
    print("owns", flush=True)
    await asyncio.Event().wait()


async def grant(gate: SharedGate) -> float:
    """Take a slot and give it back; returns how long the grant took."""
    began_s = time.perf_counter()
    lease = gate.enter()
    if lease.decision is None:
        granted = asyncio.get_running_loop().create_future()
        lease.on_decision = granted.set_result
        await granted
    assert lease.may_start()
    took_s = time.perf_counter() - began_s
    lease.close(Outcome.SERVED)
    return took_s


class Cost(NamedTuple):
    """What many grants took: seconds by the clock, and of processors."""

    grants: int
    took_s: float
    cpu_s: Mapping[str, float]
    """By whose it was."""

    def __str__(self) -> str:
        us = {name: 1e6 * cpu_s / self.grants for name, cpu_s in self.cpu_s.items()}
        each = ", ".join(f"{name} {spent:.0f} µs" for name, spent in us.items())
        return f"{self.grants / self.took_s:,.0f} grants/s, each {each}"


async def ask(
    url: str, rounds: int, spent: Callable[[], Mapping[str, float]]
) -> tuple[list[float], list[Cost]]:
    """Return what single grants took, and the cost of those, then of many at once, by round.

    `spent` tells what each process has spent of processors so far.
    """
    member, gate = door(url)
    while member.node.role != "member" or not member.node.views:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    for _ in range(200):
        await grant(gate)
    single_s: list[float] = []

    def cost(grants: int, began_s: float, before: Mapping[str, float]) -> Cost:
        cpu_s = {name: now_s - before[name] for name, now_s in spent().items()}
        return Cost(grants, time.perf_counter() - began_s, cpu_s)

    before, began_s = spent(), time.perf_counter()
    for _ in range(SINGLE):
        single_s.append(await grant(gate))  # noqa: PERF401 - one after the other
    costs = [cost(SINGLE, began_s, before)]
    for _ in range(rounds):
        before, began_s = spent(), time.perf_counter()
        await asyncio.gather(*(_many(gate, EACH) for _ in range(AT_ONCE)))
        costs.append(cost(AT_ONCE * EACH, began_s, before))
    await member.close()
    return single_s, costs


async def _many(gate: SharedGate, count: int) -> None:
    for _ in range(count):
        await grant(gate)


def main() -> int:
    """Measure and print; returns 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="bin/bench cluster", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--own", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.own:
        asyncio.run(own(options.own))
        return 0
    if shutil.which("redis-server") is None:
        print("redis-server is not installed: nothing is measured")
        return 1
    with running() as processes, tempfile.TemporaryDirectory() as folder:
        port = free_port()
        url = f"redis://127.0.0.1:{port}/0"
        command = ["redis-server", "--port", str(port), "--save", "", "--dir", folder]
        redis = start_listening("redis-server", command, port, Path(folder, "log"))
        processes.append(redis)
        owner = subprocess.Popen(
            [sys.executable, "-m", "bench.cluster", "--own", url], stdout=subprocess.PIPE
        )
        processes.append(owner)
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"owns\n"

        def spent() -> Mapping[str, float]:
            own_s = time.process_time()
            return {"asker": own_s, "owner": fine_cpu_s(owner), "Redis": fine_cpu_s(redis)}

        single_s, costs = asyncio.run(ask(url, options.rounds, spent))
    p50_s = statistics.median(single_s)
    p95_s = statistics.quantiles(single_s, n=20)[-1]
    print(f"one at a time: p50 {p50_s * 1000:.2f} ms (target {P50_TARGET_S * 1000:g}), ", end="")
    print(f"p95 {p95_s * 1000:.2f} ms")
    alone, *costs = costs
    print(f"one at a time: {alone}")
    for cost in costs:
        print(f"{AT_ONCE} at once: {cost}")
    rate = statistics.median(cost.grants / cost.took_s for cost in costs)
    held = statistics.median(cost.grants / max(cost.cpu_s.values()) for cost in costs)
    print(f"{rate:,.0f} grants/s by the clock, {held:,.0f} by processor time ", end="")
    print(f"(target {GRANTS_TARGET_PER_S:,})")
    return int(p50_s > P50_TARGET_S or held < GRANTS_TARGET_PER_S)


if __name__ == "__main__":
    sys.exit(main())
