"""What translating costs: CPU of the whole front door on /llm over the same work on /v1.

Both surfaces are asked in turn, round after round, of one front door before one engine, so that
their difference holds when the machine's speed drifts. CPU is that of the front door's process
alone. Beside it the pure parts are timed, without any socket.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from timeit import repeat
from typing import Any

from bench.harness import FrontDoor, configuration, fine_cpu_s, running, start_engine
from bench.proxy import CHUNKS, read_answer
from tornado_frontdoor.core.catalog import Catalog, Target
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.surfaces.anthropic import AnthropicSurface
from tornado_frontdoor.surfaces.base import ResponseTranslator, Route, RouteKind, SurfaceRequest

V1, LLM = "/v1/chat/completions", "/llm/v1/messages"
MOST_US_A_CHUNK = 5.0
MOST_MS_A_REQUEST = 0.2
LARGE_BYTES = 78_000
"""What Claude Code sends to say hello: mostly the descriptions of two dozen tools."""
DELTA = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"reasoning",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)


def small_body(stream: bool) -> dict[str, Any]:
    """Return a short question, the same in both dialects."""
    content = "Tell me about the front door. " * 30
    message = {"role": "user", "content": content}
    return {"model": "reasoning", "max_tokens": 1000, "stream": stream, "messages": [message]}


def large_body(path: str) -> dict[str, Any]:
    """Return a question of `LARGE_BYTES`, in the dialect of `path`."""
    words = "Use it when it helps, and say what you did with it and why.\n"
    schema = {
        "type": "object",
        "properties": {name: {"type": "string", "description": words} for name in "abcdef"},
        "required": ["a", "b"],
    }
    system = words * 200
    body = small_body(stream=False)
    tools: list[dict[str, Any]] = [
        {"name": f"tool_{number}", "description": "", "input_schema": schema}
        for number in range(24)
    ]
    body["tools"] = tools
    body["system"] = [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}]
    left = LARGE_BYTES - len(json.dumps(body))
    for tool in tools:
        tool["description"] = (words * 200)[: left // 24]
    if path == V1:
        body["messages"].insert(0, {"role": "system", "content": system})
        del body["system"]
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool["description"],
                    "parameters": schema,
                },
            }
            for tool in tools
        ]
    return body


def request(path: str, body: dict[str, Any]) -> bytes:
    """Return one HTTP request."""
    raw = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


async def client(port: int, payload: bytes, times: int) -> None:
    """Send `payload` some times on one connection and read each answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    for _ in range(times):
        writer.write(payload)
        await read_answer(reader)
    writer.close()
    await writer.wait_closed()


def spent(door: FrontDoor, payload: bytes, clients: int, each: int) -> float:
    """Return the CPU seconds of the front door for each of `clients` x `each` requests."""

    async def load() -> None:
        await asyncio.gather(*(client(door.port, payload, each) for _ in range(clients)))

    before = fine_cpu_s(door.process)
    asyncio.run(load())
    return (fine_cpu_s(door.process) - before) / (clients * each)


def one_round(door: FrontDoor, streams: int) -> dict[str, float]:
    """Measure both surfaces once; seconds for each chunk, small and large request."""
    found = {}
    for path in (V1, LLM):
        small = spent(door, request(path, small_body(stream=False)), 8, 100)
        whole = spent(door, request(path, small_body(stream=True)), streams, 2)
        found[f"chunk {path}"] = (whole - small) / CHUNKS
        found[f"small {path}"] = small
        found[f"large {path}"] = spent(door, request(path, large_body(path)), 8, 25)
    return found


def measure(rounds: int, streams: int) -> list[dict[str, float]]:
    """Return what each round has measured."""
    with tempfile.TemporaryDirectory() as name, running() as processes:
        engine, port = start_engine(CHUNKS, 4)
        processes.append(engine)
        text = configuration(f"http://127.0.0.1:{port}", admission=(65, 64, 64, 30))
        door = FrontDoor(Path(name), text)
        processes.append(door.process)
        one_round(door, 4)  # warm up
        return [one_round(door, streams) for _ in range(rounds)]


# Without sockets


def decode(body: bytes) -> ResponseTranslator:
    """Return the relay for a request on /llm."""
    surface = AnthropicSurface(529, lambda: "0" * 24)
    target = Target(model="reasoning", served_name="reasoning", upstream=UpstreamKey("reasoning"))
    call = SurfaceRequest(Route(RouteKind.ENGINE, LLM), "", {}, body, "0")
    return surface.decode(call, Catalog([target])).relay


def best_s(function: Callable[[], object], number: int) -> float:
    """Return the CPU seconds of one call, the best of twenty series."""
    return min(repeat(function, timer=process_time, number=number, repeat=20)) / number


def pure() -> tuple[float, float]:
    """Return the seconds to translate one chunk and one large request."""
    relay = decode(json.dumps(small_body(stream=True)).encode())
    relay.head(200, [("Content-Type", "text/event-stream")])
    relay.data(DELTA)
    large = json.dumps(large_body(LLM)).encode()
    return best_s(lambda: relay.data(DELTA), 2_000), best_s(lambda: decode(large), 20)


def main() -> int:
    """Measure and print; returns 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="bin/bench llm", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--streams", type=int, default=24, help=f"at once, of {CHUNKS} chunks each")
    options = parser.parse_args()
    rounds = measure(options.rounds, options.streams)
    print(f"{'':18}{'/v1':>10}{'/llm':>10}{'over':>10}   (median of {options.rounds} rounds)")
    over = {}
    for kind in ("chunk", "small", "large"):
        ours = statistics.median(found[f"{kind} {LLM}"] for found in rounds) * 1e6
        plain = statistics.median(found[f"{kind} {V1}"] for found in rounds) * 1e6
        differences = [found[f"{kind} {LLM}"] - found[f"{kind} {V1}"] for found in rounds]
        over[kind] = statistics.median(differences) * 1e6
        print(f"{kind + ', us':18}{plain:10.1f}{ours:10.1f}{over[kind]:10.1f}")
    chunk_s, large_s = pure()
    print(
        f"without sockets: {chunk_s * 1e6:.1f} us a chunk, {large_s * 1e3:.2f} ms a large request"
    )
    met = True
    for what, found, most, unit in (
        ("chunk over /v1", over["chunk"], MOST_US_A_CHUNK, "us"),
        ("request of 78 KB over /v1", over["large"] / 1e3, MOST_MS_A_REQUEST, "ms"),
    ):
        holds = found < most
        met = met and holds
        print(f"{what}: {found:.2f} {unit} (target < {most:g}) {'ok' if holds else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
