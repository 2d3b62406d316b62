"""CPU of the Anthropic dialect, and of the OpenAI surface beside it, without any socket.

For each request its body is read and translated; for each chunk one event of an engine's stream is.
The floor of any translation is to read the same bytes as JSON and to write them again.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable

from tornado_frontdoor.core.catalog import Catalog, Target
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.surfaces.anthropic import AnthropicSurface
from tornado_frontdoor.surfaces.base import Surface, SurfaceRequest
from tornado_frontdoor.surfaces.openai import OpenAISurface

TURNS, CHUNKS, TOOLS = 20, 2000, 10
TEXT = "The quick brown fox jumps over the lazy dog. " * 20
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
EVENT_STREAM = [("Content-Type", "text/event-stream; charset=utf-8")]
TARGETS = {"request": 4.0, "chunk": 4.0}
CHUNK = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [
            {"index": 0, "delta": {"content": " word"}, "logprobs": None, "finish_reason": None}
        ],
    }
).encode()
FRAME = b"data: " + CHUNK + b"\n\n"


def anthropic_body() -> bytes:
    """Return a conversation as a coding assistant sends it: turns and tools."""
    messages = [{"role": ("user", "assistant")[n % 2], "content": TEXT} for n in range(TURNS)]
    tools = [
        {"name": f"tool_{n}", "description": TEXT, "input_schema": SCHEMA} for n in range(TOOLS)
    ]
    body = {"model": "m", "max_tokens": 512, "stream": True, "system": TEXT, "tools": tools}
    return json.dumps(body | {"messages": [*messages, {"role": "user", "content": TEXT}]}).encode()


def openai_body() -> bytes:
    """Return the same conversation to the other surface."""
    messages = [{"role": ("user", "assistant")[n % 2], "content": TEXT} for n in range(TURNS + 1)]
    return json.dumps({"model": "m", "stream": True, "messages": messages}).encode()


def microseconds(run: Callable[[], None], times: int, rounds: int) -> float:
    """Return the median CPU time of one of `times` that `run` does."""
    took = []
    for _ in range(rounds):
        started = time.process_time()
        run()
        took.append((time.process_time() - started) / times * 1e6)
    return statistics.median(took)


def measure(surface: Surface, path: str, body: bytes, rounds: int) -> dict[str, float]:
    """Return microseconds for each request and chunk through a surface."""
    catalog = Catalog([Target(model="m", upstream=UpstreamKey("m"), served_name="m")])
    call = SurfaceRequest(surface.route("POST", path), "", {}, body, "r1")
    requests = 200

    def decode() -> None:
        for _ in range(requests):
            surface.decode(call, catalog)

    def relay() -> None:
        one = surface.decode(call, catalog).relay
        one.head(200, EVENT_STREAM)
        for _ in range(CHUNKS):
            one.data(FRAME)

    return {
        "request": microseconds(decode, requests, rounds),
        "chunk": microseconds(relay, CHUNKS, rounds),
    }


def floor(body: bytes, rounds: int) -> dict[str, float]:
    """Return microseconds to read and write the same bytes as JSON."""

    def run(data: bytes, times: int) -> Callable[[], None]:
        def read_and_write() -> None:
            for _ in range(times):
                json.dumps(json.loads(data)).encode()

        return read_and_write

    return {
        "request": microseconds(run(body, 200), 200, rounds),
        "chunk": microseconds(run(CHUNK, CHUNKS), CHUNKS, rounds),
    }


def main() -> int:
    """Measure and print; returns 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="bin/bench translate", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    ids = itertools.count()
    anthropic = AnthropicSurface(529, lambda: f"{next(ids):024}")
    body = anthropic_body()
    results = {
        "json": floor(body, rounds),
        "anthropic": measure(anthropic, "/llm/v1/messages", body, rounds),
        "openai": measure(OpenAISurface(), "/v1/chat/completions", openai_body(), rounds),
    }
    print(f"{'':12}{'request us':>12}{'chunk us':>12}   ({len(body)} bytes, {rounds} rounds)")
    for name, values in results.items():
        print(f"{name:12}{values['request']:12.1f}{values['chunk']:12.2f}")
    ok = True
    for kind, target in TARGETS.items():
        ratio = results["anthropic"][kind] / results["json"][kind]
        ok = ok and ratio <= target
        mark = "ok" if ratio <= target else "MISSED"
        print(f"{kind}: anthropic / json {ratio:.2f} (target <= {target}) {mark}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
