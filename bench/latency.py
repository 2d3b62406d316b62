"""What each proxy adds to a short request while it is half busy.

The rate is half of what the front door serves at most here; requests come as a Poisson process and
are timed from the instant they were due. Added: percentile through the proxy less the percentile of
the engine asked directly, at the same rate.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench.harness import running, start_engine
from bench.other_proxies import SLOW, peers
from bench.proxy import load, read_answer, request, start

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PAYLOAD = request(stream=False)
TARGET = 1.0
"""What the front door may add at the median, as a share of what aiohttp adds."""


async def capacity(port: int, requests: int) -> float:
    """Return the requests a second that eight clients get at most."""
    started = time.monotonic()
    await load(port, 8, requests // 8, stream=False)
    return requests / (time.monotonic() - started)


async def times_s(port: int, rate: float, seconds: float, seed: int) -> list[float]:
    """Return how long each request took from when it was due."""
    rng = random.Random(seed)
    idle: list[Pair] = []
    took: list[float] = []

    async def one(due: float) -> None:
        pair = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
        reader, writer = pair
        writer.write(PAYLOAD)
        await read_answer(reader)
        took.append(time.monotonic() - due)
        idle.append(pair)

    due = time.monotonic()
    end = due + seconds
    async with asyncio.TaskGroup() as group:
        while due < end:
            due += rng.expovariate(rate)
            if due > time.monotonic():
                await asyncio.sleep(due - time.monotonic())
            group.create_task(one(due))
    for _, writer in idle:
        writer.close()
    return sorted(took[len(took) // 10 :])  # the first are warming up


def measure(
    names: list[str], rounds: int, seconds: float
) -> tuple[float, dict[str, list[Mapping[str, float]]]]:
    """Return the rate, and p50 and p99 in milliseconds of each round."""
    results: dict[str, list[Mapping[str, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running() as processes:
            engine, engine_port = start_engine(1, 1)
            processes.append(engine)
            ports = {"engine": engine_port}
            for proxy in names[1:]:
                process, ports[proxy] = start(proxy, engine_port, folder)
                processes.append(process)
            for port in ports.values():
                asyncio.run(capacity(port, 400))  # warm up
            rate = asyncio.run(capacity(ports["frontdoor"], 4000)) / 2
            for number in range(rounds):
                for proxy, port in ports.items():
                    took = asyncio.run(times_s(port, rate, seconds, number))
                    p50, p99 = (took[int(share * len(took))] * 1000 for share in (0.5, 0.99))
                    results[proxy].append({"p50": p50, "p99": p99})
    return rate, results


def main() -> int:
    """Measure and print; returns 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="bin/bench latency", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each proxy and round")
    options = parser.parse_args()
    fast = [peer for peer in peers() if peer not in SLOW]
    names = ["engine", "frontdoor", *fast]
    rate, results = measure(names, options.rounds, options.seconds)
    print(f"{rate:.0f} requests a second, half of the front door's capacity; ms, medians")
    print(f"{'':12}{'p50':>8}{'p99':>8}{'added p50':>12}{'added p99':>12}")
    added: dict[str, dict[str, list[float]]] = {}
    for name, rows in results.items():
        added[name] = {
            key: [
                row[key] - direct[key] for row, direct in zip(rows, results["engine"], strict=True)
            ]
            for key in ("p50", "p99")
        }
        p50, p99 = (statistics.median(row[key] for row in rows) for key in ("p50", "p99"))
        more = [statistics.median(added[name][key]) for key in ("p50", "p99")]
        print(f"{name:12}{p50:8.2f}{p99:8.2f}{more[0]:12.2f}{more[1]:12.2f}")
    pairs = zip(added["frontdoor"]["p50"], added["aiohttp"]["p50"], strict=True)
    ratio = statistics.median(ours / max(theirs, 0.01) for ours, theirs in pairs)
    met = ratio <= TARGET
    print(f"added p50 / aiohttp: {ratio:.2f} (target <= {TARGET}) {'ok' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
