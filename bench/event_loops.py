"""Simulated requests a second through the real gate, by driver, and the memory of millions.

    python -m bench.event_loops [--rounds N] [--requests N] [--most N]

One core, load 0.8 on cap 6 and queue 8 (M/M/6/14). A yardstick runs beside it: a bare heap with the
same number of events and nothing else. The best of some rounds counts, in CPU seconds, so that what
else runs here disturbs little.
"""

import argparse
import os
import random
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from heapq import heappop, heappush
from multiprocessing import get_context

from simulator.model.event_loop import DRIVERS
from simulator.model.scenario import Scenario
from simulator.study.experiment import Plan, replicate
from simulator.traffic.distributions import Distribution
from simulator.traffic.service import Service
from simulator.traffic.workload import Renewal

TARGETS = {"heap": 300_000, "simpy": 220_000}
"""Arrivals a second on one core."""
FLAT_MIB = 4.0
"""What the most requests may take beyond what the fewest take."""
LINEAR = 1.2
"""How much dearer each of the most requests may be than each of the fewest."""


def scenario(requests: int) -> Scenario:
    """Return the reference traffic."""
    return Scenario(
        cap=6,
        queue=8,
        timeout_s=30.0,
        arrivals=Renewal(rate=2.4),
        service=Service(seconds=Distribution("exp", 2.0)),
        requests=requests,
        warmup=1000,
    )


def arrivals_per_s(driver: str, requests: int) -> float:
    """Return how many arrivals a second one replication makes."""
    began_s = time.process_time()
    replicate(scenario(requests), Plan(driver=driver), 0)
    return requests / (time.process_time() - began_s)


def bare_heap_per_s(requests: int) -> float:
    """Return the same for a loop that only pushes and pops an arrival and an end for each."""
    rng = random.Random(1)
    heap: list[tuple[float, int, int]] = [(0.0, 0, 0)]
    began_s = time.process_time()
    count = 0
    while heap:
        now, order, _ = heappop(heap)
        if order == 0:
            count += 1
            heappush(heap, (now + rng.expovariate(0.5), 1, count))
            if count < requests:
                heappush(heap, (now + rng.expovariate(2.4), 0, count))
    return requests / (time.process_time() - began_s)


def grown(requests: int) -> tuple[float, float]:
    """Return CPU seconds and MiB that so many requests take; run in a process of its own."""
    replicate(scenario(5000), Plan(driver="heap"), 0).metrics()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began_s = time.process_time()
    replicate(scenario(requests), Plan(driver="heap"), 0).metrics()
    spent_s = time.process_time() - began_s
    return spent_s, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024


def speed(rounds: int, requests: int) -> bool:
    """Print what each driver does; returns whether both are fast enough."""
    bare = max(bare_heap_per_s(requests) for _ in range(rounds))
    print(f"bare heap       {bare:10,.0f} arrivals/s")
    good = True
    for driver in DRIVERS:
        best = max(arrivals_per_s(driver, requests) for _ in range(rounds))
        enough = best >= TARGETS[driver]
        good &= enough
        print(
            f"{driver:15} {best:10,.0f} arrivals/s, {bare / best:.1f} times the bare heap's cost; "
            f"target {TARGETS[driver]:,}: {'met' if enough else 'MISSED'}"
        )
    return good


def growth(most: int) -> bool:
    """Print time and memory by number of requests; returns whether they grow as they should."""
    counts = [250_000, 1_000_000, *((most,) if most > 1_000_000 else ())]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        measured = [pool.submit(grown, count).result() for count in counts]
    for count, (spent_s, mib) in zip(counts, measured, strict=True):
        each_us = 1e6 * spent_s / count
        print(f"{count:10,} requests: {spent_s:6.1f} s, {each_us:.2f} µs each, {mib:.1f} MiB")
    flat = all(mib < measured[0][1] + FLAT_MIB for _, mib in measured)
    each = [spent_s / count for count, (spent_s, _) in zip(counts, measured, strict=True)]
    linear = each[-1] < LINEAR * each[0]
    print(f"memory: {'flat' if flat else 'GROWS'}; time: {'linear' if linear else 'NOT LINEAR'}")
    return flat and linear


def main() -> int:
    """Run the benchmark; returns 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.event_loops", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=50_000, help="in each round")
    parser.add_argument("--most", type=int, default=1_000_000, help="for growth, e.g. 10000000")
    given = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores")
    fast = speed(given.rounds, given.requests)
    steady = growth(given.most)
    return 0 if fast and steady else 1


if __name__ == "__main__":
    sys.exit(main())
