"""Memory of the front door for each client that waits in its queue, and for each open stream.

Resident memory of its process before, and with all clients there; the clients are in this process.
Open streams are measured in aiohttp's bare proxy, too.
"""

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from bench.harness import FrontDoor, Process, rss_kib, running, start_engine
from bench.other_proxies import start_peer
from bench.proxy import MESSAGE, request

TARGETS_KIB = {"queued client": 64.0, "open stream": 128.0}
MOST_OF_AIOHTTPS = 1.0
"""What an open stream may take at most, as a share of what it takes in aiohttp's proxy."""
SETTLE_S = 1.0
CONFIGURATION = """[server]
[surfaces]
[upstreams.held]
url = "http://127.0.0.1:{held}"
[upstreams.held.admission]
slots = 2
cap = 1
queue = 10000
queue_timeout_s = 600
[upstreams.open]
url = "http://127.0.0.1:{open}"
[models.reasoning]
upstream = "held"
[models.streamer]
upstream = "open"
"""


def upstreams_of(admin: str) -> Any:
    """Return what the front door says of its upstreams."""
    with urllib.request.urlopen(f"{admin}/admin/status") as status:
        return json.load(status)["upstreams"]


async def crowd(
    port: int, clients: int, payload: bytes, *, answered: bool
) -> list[asyncio.StreamWriter]:
    """Let some clients ask; with `answered` each has got its first byte when this returns."""
    writers = []
    for _ in range(clients):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(payload)
        writers.append((reader, writer))
    for reader, _ in writers if answered else ():
        await asyncio.wait_for(reader.readuntil(b"data:"), 60)
    return [writer for _, writer in writers]


async def cost_kib(
    process: Process, port: int, clients: int, payload: bytes, *, admin: str, answered: bool
) -> float:
    """Return the memory for each client while all are there; `admin` empty: it has no status."""
    warm = await crowd(port, 50, payload, answered=answered)
    await asyncio.sleep(SETTLE_S)
    before = rss_kib(process)
    writers = await crowd(port, clients, payload, answered=answered)
    await asyncio.sleep(SETTLE_S)
    grown = rss_kib(process) - before
    if admin:
        upstreams = await asyncio.to_thread(upstreams_of, admin)
        there = upstreams["open"]["in_flight"] if answered else upstreams["held"]["queued"]
        if there < clients:
            raise SystemExit(f"only {there} of {clients} clients are there: {upstreams}")
    for writer in (*warm, *writers):
        writer.close()
    await asyncio.sleep(SETTLE_S)
    return grown / clients


def measure(clients: int, payload: bytes, *, answered: bool) -> float:
    """Return the memory for each client of a front door that has seen no other."""
    with tempfile.TemporaryDirectory() as name, running() as processes:
        ports = []
        for gap_ms in (600_000, 2000):
            engine, port = start_engine(1000, gap_ms)
            processes.append(engine)
            ports.append(port)
        held, streaming = ports
        door = FrontDoor(Path(name), CONFIGURATION.format(held=held, open=streaming))
        processes.append(door.process)
        return asyncio.run(
            cost_kib(door.process, door.port, clients, payload, admin=door.admin, answered=answered)
        )


def measure_aiohttp(clients: int, payload: bytes) -> float:
    """Return the memory for each open stream of aiohttp's proxy that has seen no other client."""
    with tempfile.TemporaryDirectory() as name, running() as processes:
        engine, streaming = start_engine(1000, 2000)
        processes.append(engine)
        process, port = start_peer("aiohttp", streaming, Path(name))
        processes.append(process)
        return asyncio.run(cost_kib(process, port, clients, payload, admin="", answered=True))


def main() -> int:
    """Measure and print; returns 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="bin/bench memory", description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    waiting, stream = request(stream=True), request(stream=True, model="streamer")
    queued = measure(options.clients, waiting, answered=False)
    opened = measure(options.clients, stream, answered=True)
    ok = True
    for what, kib in (("queued client", queued), ("open stream", opened)):
        met = kib <= TARGETS_KIB[what]
        ok = ok and met
        print(
            f"{options.clients} x {what}: {kib:.1f} KiB each, of a body of {len(MESSAGE)} bytes "
            f"(target <= {TARGETS_KIB[what]:.0f} KiB) {'ok' if met else 'MISSED'}"
        )
    theirs = measure_aiohttp(options.clients, request(stream=True))
    ratio = opened / theirs
    met = ratio <= MOST_OF_AIOHTTPS
    print(
        f"the same with aiohttp: {theirs:.1f} KiB each; front door / aiohttp {ratio:.2f} "
        f"(target <= {MOST_OF_AIOHTTPS:g}) {'ok' if met else 'MISSED'}"
    )
    return 0 if ok and met else 1


if __name__ == "__main__":
    sys.exit(main())
