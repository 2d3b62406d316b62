"""Simulated requests a second of `frontdoor simulate`, beside ciw on the same queue.

Cap 6, a line of 8, Poisson arrivals at load 0.8, exponential service of 2 s. ciw is an independent
simulator of queueing networks; it knows no wait limit and no wake, which cost nothing here.
"""

import argparse
import json
import random
import subprocess
import sys
import time

import ciw

TARGET = 1.0
COMMAND = (
    *(sys.executable, "-m", "tornado_frontdoor.cli", "simulate", "--cap", "6", "--queue", "8"),
    *("--rho", "0.8", "--service", "exp:2", "--jobs", "1", "--json"),
)


def ours(requests: int, reps: int) -> float:
    """Return the seconds of one call."""
    options = ("--requests", str(requests), "--reps", str(reps))
    started = time.monotonic()
    answer = subprocess.run([*COMMAND, *options], capture_output=True, text=True, check=True)
    took_s = time.monotonic() - started
    assert json.loads(answer.stdout)["replications"] == reps
    return took_s


def theirs(requests: int) -> float:
    """Return ciw's requests a second."""
    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Exponential(2.4)],
        service_distributions=[ciw.dists.Exponential(0.5)],
        number_of_servers=[6],
        queue_capacities=[8],
    )
    random.seed(1)
    ciw.seed(1)
    started = time.monotonic()
    ciw.Simulation(network).simulate_until_max_customers(requests, method="Arrive")
    return requests / (time.monotonic() - started)


def main() -> int:
    """Measure and print; returns 1 when the target is missed."""
    parser = argparse.ArgumentParser(prog="bin/bench simulate", description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--reps", type=int, default=5)
    options = parser.parse_args()
    # The best of three: the first start reads the libraries from the disk.
    least = min(ours(100, 1) for _ in range(3))
    whole = min(ours(options.requests, options.reps) for _ in range(3))
    rate = options.requests * options.reps / max(whole - least, 0.01)
    peer = theirs(options.requests)
    ratio = rate / peer
    print(f"simulate: {rate:,.0f} requests a second on one core (and {least:.2f} s to start)")
    print(f"ciw:      {peer:,.0f} requests a second")
    print(f"ratio: {ratio:.2f} (target >= {TARGET}) {'ok' if ratio >= TARGET else 'MISSED'}")
    print(flush=True)
    drivers = subprocess.run([sys.executable, "-m", "bench.event_loops"], check=False)
    return 0 if ratio >= TARGET and drivers.returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
