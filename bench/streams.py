"""Thousands of streams at once: how late their chunks come, what a chunk and a stream cost.

The engine writes a chunk a second to each stream. Lateness is by how much two chunks are further
apart than that for the client; read beside the engine asked directly it is the proxy's.
"""

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.harness import FrontDoor, configuration, cpu_s, rss_kib, running, start_engine
from bench.other_proxies import start_peer
from bench.proxy import request

CHUNKS, GAP_S = 12, 1.0
LATE_TARGET_S = 0.25
PAYLOAD = request(stream=True)


class StreamReader(asyncio.Protocol):
    """One client; counts chunks and keeps their distances."""

    def __init__(self, gaps: list[float], done: Callable[[bool], None]) -> None:
        self._gaps, self._done = gaps, done
        self._last = 0.0
        self._tail = b""
        self.complete = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(PAYLOAD)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        now = time.monotonic()
        if b"data: {" in data:
            if self._last:
                self._gaps.append(now - self._last)
            self._last = now
        self._tail = (self._tail + data)[-32:]
        if self._tail.endswith(b"[DONE]\n\n\r\n0\r\n\r\n"):
            self.complete = True
            self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        """Say how it ended."""
        self._done(self.complete)


async def read_all(port: int, streams: int) -> tuple[int, list[float]]:
    """Read some streams at once; returns how many were whole, and the distances of chunks."""
    loop = asyncio.get_running_loop()
    gaps: list[float] = []
    whole, left = 0, streams
    over = loop.create_future()

    def done(complete: bool) -> None:
        nonlocal whole, left
        whole, left = whole + complete, left - 1
        if left == 0:
            over.set_result(None)

    for number in range(streams):
        await loop.create_connection(lambda: StreamReader(gaps, done), "127.0.0.1", port)
        if number % 20 == 19:
            await asyncio.sleep(0.01)  # spread over a second, as the chunks will be
    await asyncio.wait_for(over, 120)
    return whole, sorted(gaps)


def main() -> int:
    """Measure and print; returns 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="bin/bench streams", description=__doc__)
    parser.add_argument("--streams", type=int, default=2000)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    ok, direct_ms = True, 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running() as processes:
            engine, engine_port = start_engine(CHUNKS, GAP_S * 1000)
            processes.append(engine)
            print(f"{options.streams} streams of {CHUNKS} chunks, one each {GAP_S:.0f} s")
            print(
                f"{'':12}{'whole':>8}{'late p50 ms':>14}{'late p99 ms':>14}"
                f"{'chunk us':>10}{'KiB':>8}"
            )
            for proxy in ("engine", "frontdoor", "aiohttp"):
                process, port = engine, engine_port
                if proxy == "frontdoor":
                    door = FrontDoor(folder, configuration(f"http://127.0.0.1:{engine_port}"))
                    process, port = door.process, door.port
                elif proxy != "engine":
                    process, port = start_peer(proxy, engine_port, folder)
                if process is not engine:
                    processes.append(process)
                cpu, memory = cpu_s(process), rss_kib(process)
                whole, gaps = asyncio.run(read_all(port, options.streams))
                chunk_us = (cpu_s(process) - cpu) / (options.streams * CHUNKS) * 1e6
                kib = (rss_kib(process) - memory) / options.streams
                late = [(gaps[int(share * len(gaps))] - GAP_S) * 1000 for share in (0.5, 0.99)]
                print(
                    f"{proxy:12}{whole:8}{late[0]:14.1f}{late[1]:14.1f}{chunk_us:10.1f}{kib:8.1f}"
                )
                if proxy == "engine":
                    direct_ms = late[1]
                if proxy == "frontdoor":
                    ok = whole == options.streams and late[1] <= direct_ms + LATE_TARGET_S * 1000
    print("chunk us: CPU of that process, opening and ending the streams included")
    print(f"all whole, p99 not {LATE_TARGET_S} s later than direct: {'ok' if ok else 'MISSED'}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
