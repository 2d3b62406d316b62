"""CPU of the whole front door for each request and each relayed chunk, beside minimal proxies.

The peers are aiohttp, FastAPI with httpx, and, where they are on the PATH, HAProxy (C, one thread)
and LiteLLM (one worker). All run in one go, in turn, against the same engine on this machine, so
that the ratios hold when the machine's speed drifts. CPU is user plus system time of the proxy's
process alone.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "bench" / "peers"
HAPROXY = shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin")
LITELLM = shutil.which("litellm")
SHARE_OF_LOAD = {"litellm": 0.05}
"""What needs milliseconds for a request is measured by fewer of them."""
START_TIMEOUT_S = 90.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CHUNKS = 200
MESSAGE = "Tell me about the front door. " * 30


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_s(process: subprocess.Popen[bytes]) -> float:
    """Return the CPU seconds that a process has used so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


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


def configuration(folder: Path, engine: int) -> Path:
    """Write the front door's configuration; the cap is above what the load brings."""
    path = folder / "bench.toml"
    path.write_text(
        f"""[server]
[surfaces]
anthropic = false
[upstreams.reasoning]
url = "http://127.0.0.1:{engine}"
[upstreams.reasoning.admission]
slots = 65
cap = 64
queue = 64
queue_timeout_s = 30
[models.reasoning]
upstream = "reasoning"
"""
    )
    return path


def haproxy_file(folder: Path, port: int, engine: int) -> Path:
    """Write HAProxy's configuration: one thread, connections kept on both sides."""
    path = folder / "haproxy.cfg"
    path.write_text(
        f"""global
    nbthread 1
    maxconn 9000
defaults
    mode http
    timeout connect 5s
    timeout client 900s
    timeout server 900s
    http-reuse always
frontend public
    bind 127.0.0.1:{port}
    default_backend engine
backend engine
    server engine 127.0.0.1:{engine}
"""
    )
    return path


def litellm_file(folder: Path, engine: int) -> Path:
    """Write LiteLLM's configuration: the engine as a vLLM server, no key, nothing switched on."""
    path = folder / "litellm.yaml"
    path.write_text(
        f"""model_list:
  - model_name: reasoning
    litellm_params:
      model: hosted_vllm/reasoning
      api_base: http://127.0.0.1:{engine}/v1
      api_key: none
general_settings:
  dangerously_permit_weak_or_unset_master_key: true
"""
    )
    return path


def peers() -> list[str]:
    """Return what the front door is measured beside."""
    found = [name for name, path in (("haproxy", HAPROXY), ("litellm", LITELLM)) if path]
    return ["aiohttp", "fastapi", *found]


def start(
    name: str, engine: int, folder: Path, config: Path | None = None, admin: int = 0
) -> tuple[subprocess.Popen[bytes], int]:
    """Start one proxy; returns its process and port once it accepts."""
    port = free_port()
    url = f"http://127.0.0.1:{engine}"
    if name == "frontdoor":
        command = [
            *(sys.executable, "-m", "tornado_frontdoor.cli", "serve"),
            *("--config", str(config or configuration(folder, engine))),
            *("--listen", f"127.0.0.1:{port}", "--admin-listen", f"127.0.0.1:{admin}"),
        ]
    elif name == "haproxy":
        command = [HAPROXY or "haproxy", "-db", "-f", str(haproxy_file(folder, port, engine))]
    elif name == "litellm":
        command = [
            *(LITELLM or "litellm", "--config", str(litellm_file(folder, engine))),
            *("--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"),
        ]
    else:
        command = [sys.executable, str(PEERS / f"{name}_proxy.py"), str(port), url]
    # Without the last one LiteLLM fetches a list of prices from the network as it starts.
    environment = {"PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=(folder / f"{name}.log").open("wb"),
    )
    if accepts(port, process):
        return process, port
    process.kill()
    raise SystemExit(f"{name} did not start: {(folder / f'{name}.log').read_text()}")


def start_engine(port: int, chunks: int, gap_ms: float) -> subprocess.Popen[bytes]:
    """Start the engine of the benches; returns once it accepts."""
    command = [sys.executable, str(PEERS / "engine.py"), str(port), str(chunks), str(gap_ms)]
    process = subprocess.Popen(command)
    if accepts(port, process):
        return process
    process.kill()
    raise SystemExit("the engine of the benches did not start")


@contextmanager
def running() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield a list for what is started; all of it is stopped at the end, whatever that is."""
    signal.signal(signal.SIGTERM, _end)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def _end(_: int, __: FrameType | None) -> None:
    raise SystemExit(143)  # so that what was started is stopped


def accepts(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a process listens on its port; tells whether it does, in time."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.05)
    return False


def measure(
    names: list[str], rounds: int, requests: int, streams: int
) -> dict[str, dict[str, list[float]]]:
    """Return microseconds of CPU for each request and chunk, a value for each round."""
    results: dict[str, dict[str, list[float]]] = {n: {"request": [], "chunk": []} for n in names}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engine_port = free_port()
        with running() as processes:
            processes.append(start_engine(engine_port, CHUNKS, 4))
            proxies = {}
            for proxy in names:
                proxies[proxy] = start(proxy, engine_port, folder)
                processes.append(proxies[proxy][0])
                asyncio.run(load(proxies[proxy][1], 4, 50, stream=False))  # warm up
                asyncio.run(load(proxies[proxy][1], 4, 1, stream=True))
            for _ in range(rounds):
                for proxy, (process, port) in proxies.items():
                    each = int(requests // 8 * SHARE_OF_LOAD.get(proxy, 1))
                    before = cpu_s(process)
                    asyncio.run(load(port, 8, each, stream=False))
                    per_request = (cpu_s(process) - before) / (each * 8)
                    before = cpu_s(process)
                    asyncio.run(load(port, streams, 2, stream=True))
                    used = cpu_s(process) - before - per_request * streams * 2
                    results[proxy]["request"].append(per_request * 1e6)
                    results[proxy]["chunk"].append(used / (streams * 2 * CHUNKS) * 1e6)
    return results


def main() -> int:
    """Measure and print; returns 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="bin/bench proxy", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=4000, help="for each proxy and round")
    parser.add_argument("--streams", type=int, default=24, help=f"at once, of {CHUNKS} chunks each")
    parser.add_argument("--only", help="measure this one alone")
    options = parser.parse_args()
    names = [options.only] if options.only else ["frontdoor", *peers()]
    results = measure(names, options.rounds, options.requests, options.streams)
    print(f"{'':12}{'request us':>12}{'chunk us':>12}   (median of {options.rounds} rounds)")
    for name, values in results.items():
        request_us, chunk_us = (statistics.median(values[kind]) for kind in ("request", "chunk"))
        print(f"{name:12}{request_us:12.1f}{chunk_us:12.1f}")
    if options.only:
        return 0
    ok = True
    for peer, kind, target in (
        ("aiohttp", "request", 1.6),
        ("fastapi", "request", 0.3),
        ("aiohttp", "chunk", 1.0),
    ):
        pairs = zip(results["frontdoor"][kind], results[peer][kind], strict=True)
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        met = ratio <= target
        ok = ok and met
        print(f"{kind} / {peer}: {ratio:.2f} (target <= {target}) {'ok' if met else 'MISSED'}")
    for peer, why in (
        ("haproxy", "C, and no line, dialect or journal"),
        ("litellm", "keys, budgets, many providers"),
    ):
        for kind in ("request", "chunk") if peer in results else ():
            pairs = zip(results["frontdoor"][kind], results[peer][kind], strict=True)
            ratio = statistics.median(ours / max(theirs, 0.1) for ours, theirs in pairs)
            print(f"{kind} / {peer}: {ratio:.3g} ({why}: no target)")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
