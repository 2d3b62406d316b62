"""CPU of the whole front door for each request and each relayed chunk, beside minimal proxies.

The peers are aiohttp, FastAPI with httpx, a relay that reads nothing of what it passes on (what the
loop and the sockets alone cost a program in Python), and those of HAProxy, Envoy, vllm-router and
LiteLLM that are installed. All run in one go, in turn, against the same engine on this machine, so
that the ratios hold when the machine's speed drifts. CPU is user plus system time of the proxy's
process alone, all its threads.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from bench.harness import FrontDoor, Process, configuration, fine_cpu_s, running, start_engine
from bench.other_proxies import SHARE_OF_LOAD, peers, start_peer

TARGETS = {
    ("aiohttp", "request"): 0.85,
    ("fastapi", "request"): 0.2,
    ("aiohttp", "chunk"): 0.6,
    ("haproxy", "chunk"): 1.5,
}
"""What the front door may cost at most, as a share of a peer's cost."""
VIEWERS = """
import sys, threading, urllib.request
def look(url):
    with urllib.request.urlopen(url + "/admin/events") as stream:
        while stream.read1(65536):
            pass
for _ in range(int(sys.argv[2])):
    threading.Thread(target=look, args=[sys.argv[1]]).start()
"""
CHUNKS = 200
MESSAGE = "Tell me about the front door. " * 30


def request(stream: bool, model: str = "reasoning") -> bytes:
    """Return the request that is sent over and over."""
    body = json.dumps(
        {
            "model": model,
            "stream": stream,
            "messages": [{"role": "user", "content": MESSAGE}],
        }
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n"
        "Content-Type: application/json\r\nUser-Agent: OpenAI/Python\r\n"
        f"Authorization: Bearer none\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def read_answer(reader: asyncio.StreamReader) -> None:
    """Read one whole answer; whatever is not a 200 ends the bench."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith(b"http/1.1 200"):
        raise SystemExit(f"not served: {head!r}")
    if b"content-length:" in head:
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
    else:
        await reader.readuntil(b"\r\n0\r\n\r\n")


async def run_client(port: int, requests: int, payload: bytes, end: bytes) -> None:
    """Send `requests` one after another on one connection; each answer ends with `end`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    for _ in range(requests):
        writer.write(payload)
        if end:
            await reader.readuntil(end)
        else:
            await read_answer(reader)
    writer.close()
    await writer.wait_closed()


async def load(port: int, clients: int, each: int, stream: bool) -> None:
    """Run some clients at once."""
    end = b"[DONE]\n\n\r\n0\r\n\r\n" if stream else b""
    await asyncio.gather(*(run_client(port, each, request(stream), end) for _ in range(clients)))


def start(
    name: str, engine: int, folder: Path, beside: list[Process] | None = None
) -> tuple[Process, int]:
    """Start the front door, with a cap above what the load brings, or one of `peers`.

    One whose name ends in a number has as many viewers at its page, in a process put `beside`.
    """
    kind, _, viewers = name.partition(" + ")
    if kind != "frontdoor":
        return start_peer(name, engine, folder)
    # Where the machine stands still for a moment, requests are to wait and not to be refused.
    text = configuration(
        f"http://127.0.0.1:{engine}", admission=(65, 64, 4096, 30), surfaces="anthropic = false"
    )
    door = FrontDoor(folder, text)
    if viewers and beside is not None:
        beside.append(subprocess.Popen([sys.executable, "-c", VIEWERS, door.admin, viewers]))
    return door.process, door.port


def measure(
    names: list[str], rounds: int, requests: int, streams: int
) -> dict[str, dict[str, list[float]]]:
    """Return microseconds of CPU for each request and chunk, a value for each round."""
    results: dict[str, dict[str, list[float]]] = {n: {"request": [], "chunk": []} for n in names}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running() as processes:
            engine, engine_port = start_engine(CHUNKS, 4)
            processes.append(engine)
            proxies = {}
            for proxy in names:
                proxies[proxy] = start(proxy, engine_port, folder, processes)
                processes.append(proxies[proxy][0])
                asyncio.run(load(proxies[proxy][1], 4, 50, stream=False))  # warm up
                asyncio.run(load(proxies[proxy][1], 4, 1, stream=True))
            for _ in range(rounds):
                for proxy, (process, port) in proxies.items():
                    each = int(requests // 8 * SHARE_OF_LOAD.get(proxy, 1))
                    before = fine_cpu_s(process)
                    asyncio.run(load(port, 8, each, stream=False))
                    per_request = (fine_cpu_s(process) - before) / (each * 8)
                    before = fine_cpu_s(process)
                    asyncio.run(load(port, streams, 2, stream=True))
                    used = fine_cpu_s(process) - before - per_request * streams * 2
                    results[proxy]["request"].append(per_request * 1e6)
                    results[proxy]["chunk"].append(used / (streams * 2 * CHUNKS) * 1e6)
    return results


def main() -> int:
    """Measure and print; returns 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="bin/bench proxy", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=4000, help="for each proxy and round")
    parser.add_argument("--streams", type=int, default=24, help=f"at once, of {CHUNKS} chunks each")
    parser.add_argument("--viewers", type=int, default=0, help="once more with so many at its page")
    parser.add_argument("--only", help="measure this one alone")
    options = parser.parse_args()
    names = [options.only] if options.only else ["frontdoor", *peers()]
    if options.viewers:
        names.insert(1, f"frontdoor + {options.viewers}")
    results = measure(names, options.rounds, options.requests, options.streams)
    print(f"{'':15}{'request us':>12}{'chunk us':>12}   (median of {options.rounds} rounds)")
    for name, values in results.items():
        request_us, chunk_us = (statistics.median(values[kind]) for kind in ("request", "chunk"))
        print(f"{name:15}{request_us:12.1f}{chunk_us:12.1f}")
    if options.only:
        return 0
    ok = True
    for peer, kind in product(results, ("request", "chunk")):
        if peer == "frontdoor":
            continue
        pairs = zip(results["frontdoor"][kind], results[peer][kind], strict=True)
        ratio = statistics.median(ours / max(theirs, 0.1) for ours, theirs in pairs)
        target = TARGETS.get((peer, kind))
        if target is None:
            print(f"{kind} / {peer}: {ratio:.3g} (no target)")
            continue
        met = ratio <= target
        ok = ok and met
        print(f"{kind} / {peer}: {ratio:.2f} (target <= {target}) {'ok' if met else 'MISSED'}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
