"""Memory and CPU of ten thousand connections on which nothing happens, beside Tornado's own server.

The clients are in this process; each has asked once, for `/health`, where a front door is asked.
"""

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path

from bench.harness import (
    PEERS,
    FrontDoor,
    Process,
    configuration,
    fine_cpu_s,
    free_port,
    rss_kib,
    running,
    start_listening,
)

TARGET_KIB = 4.0
"""What a connection may take more than one of Tornado's own server."""
QUIET_S = 5.0
AT_ONCE = 100
HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


async def connect(port: int, *, ask: bool) -> asyncio.StreamWriter:
    """Return a connection that has asked once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if ask:
        writer.write(HEALTH)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
    return writer


async def cost(process: Process, port: int, connections: int, *, ask: bool) -> tuple[float, float]:
    """Return KiB of each connection, and the share of a processor that all of them take."""
    warm = [await connect(port, ask=ask) for _ in range(AT_ONCE)]
    await asyncio.sleep(1)
    before_kib = rss_kib(process)
    writers = list(warm)
    for _ in range(connections // AT_ONCE):
        writers += await asyncio.gather(*(connect(port, ask=ask) for _ in range(AT_ONCE)))
    await asyncio.sleep(1)
    kib = (rss_kib(process) - before_kib) / connections
    before_s, began_s = fine_cpu_s(process), time.monotonic()
    await asyncio.sleep(QUIET_S)
    share = (fine_cpu_s(process) - before_s) / (time.monotonic() - began_s)
    for writer in writers:
        writer.close()
    return kib, share


def main() -> int:
    """Measure and print; returns 1 when the target is missed."""
    parser = argparse.ArgumentParser(prog="bin/bench idle", description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kib = {}
    with tempfile.TemporaryDirectory() as name, running() as processes:
        port = free_port()
        command = [sys.executable, str(PEERS / "tornado_server.py"), str(port)]
        tornado = start_listening("tornado", command, port, None)
        server = "max_connections = 20000"
        door = FrontDoor(Path(name), configuration("http://127.0.0.1:9", server=server))
        processes += [tornado, door.process]
        print(f"{options.connections} connections on which nothing happens")
        for who, process, at in (
            ("tornado", tornado, port),
            ("frontdoor", door.process, door.port),
        ):
            asked = who == "frontdoor"
            kib[who], share = asyncio.run(cost(process, at, options.connections, ask=asked))
            print(f"{who:12}{kib[who]:8.2f} KiB each{share * 100:8.2f} % of a processor")
    more = kib["frontdoor"] - kib["tornado"]
    met = more < TARGET_KIB
    print(f"above Tornado: {more:.2f} KiB (target < {TARGET_KIB:g}) {'ok' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
