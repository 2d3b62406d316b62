"""Clients that leave a real engine while others wait: the cap holds, by the engine's own count."""

import asyncio
import json
import re
import socket
import statistics
import struct
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.harness import FrontDoor, configuration

CAP = 2
ROUNDS = 100
SLOT = re.compile(r"(launch_slot_|release): id +(\d+) \|")
FREE_WITHIN_MS = 15.0
Say = Callable[..., None]
"""`say(what, holds=...)` of tryouts/engine.py."""


def fetch(url: str) -> Any:
    """Return the JSON behind a URL."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.loads(answer.read())


class VllmCount:
    """What a vLLM with `tryouts.vllm_requests` counts within itself."""

    def __init__(self, url: str) -> None:
        self._url = url
        fetch(f"{url}/inside?reset")

    def now(self) -> int:
        """Return how many requests it holds."""
        return int(max(fetch(f"{self._url}/inside")["now"].values()))

    def told(self) -> tuple[int, str]:
        """Return the most that its engine has held since this was last asked, and words for it."""
        told = fetch(f"{self._url}/inside?reset")
        most = told["most"]
        return most["engine"], (
            f"at most {most['engine']} in its engine, {most['http']} in its HTTP server, where "
            f"newcomers were so many times the n-th: {told['levels']}"
        )


class LlamaCount:
    """What llama-server writes of its slots; to ask it would keep it from its looks at clients."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._at = log.stat().st_size
        self._busy: set[str] = set()
        self._most = 0

    def now(self) -> int:
        """Return how many slots are at work."""
        with self._log.open("rb") as file:
            file.seek(self._at)
            text = file.read()
        whole = text.rpartition(b"\n")[0]
        self._at += len(whole)
        for what, slot in SLOT.findall(whole.decode(errors="replace")):
            if what == "release":
                self._busy.discard(slot)
            else:
                self._busy.add(slot)
                self._most = max(self._most, len(self._busy))
        return len(self._busy)

    def told(self) -> tuple[int, str]:
        """Return the most that were at work since this was last asked, and words for it."""
        busy, most = self.now(), self._most
        self._most = busy
        return most, f"at most {most} slots at work"


class Departing:
    """One request on a connection of its own, which can leave at any moment."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def begin(cls, public: str, model: str, *, stream: bool) -> "Departing":
        """Ask for a long story."""
        host, port = public.removeprefix("http://").split(":")
        body = json.dumps(
            {
                "model": model,
                "messages": [{"role": "user", "content": "Write a long story."}],
                "max_tokens": 3000,
                "stream": stream,
                "ignore_eos": True,
            }
        ).encode()
        caller = cls(*await asyncio.open_connection(host, int(port)))
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        caller.writer.write(head.encode() + body)
        await caller.writer.drain()
        return caller

    async def head(self) -> float:
        """Wait for the head of the answer; return the instant."""
        assert b" 200 " in await self.reader.readline()
        return time.monotonic()

    def leave(self) -> None:
        """Reset the connection."""
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()


class Scene:
    """A front door before the engine, and what is seen of it."""

    def __init__(self, public: str, admin: str, model: str, count: VllmCount | LlamaCount) -> None:
        self._public, self._admin, self._model = public, admin, model
        self._count = count

    def inside(self) -> tuple[int, int, int]:
        """Return in flight, cooling and queued, by the front door."""
        status = fetch(f"{self._admin}/admin/status")["upstreams"]["engine"]
        return status["in_flight"], status["cooling"], status["queued"]

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for it; raises OSError after 30 s."""
        ends_s = time.monotonic() + 30
        while not await asyncio.to_thread(condition):
            if time.monotonic() > ends_s:
                raise OSError(
                    f"never came true: {what}; {self.inside()}; {self._count.now()} at the engine"
                )
            await asyncio.sleep(0.005)

    async def round(self, *, stream: bool) -> list[float]:
        """Two at work leave in one instant while two wait; return how long those waited then."""
        first = [
            await Departing.begin(self._public, self._model, stream=stream) for _ in range(CAP)
        ]
        await self.until(lambda: self._count.now() == CAP, "two are at work")
        waiting = [
            await Departing.begin(self._public, self._model, stream=True) for _ in range(CAP)
        ]
        await self.until(lambda: self.inside() == (CAP, 0, CAP), "two wait")
        left_s = time.monotonic()
        for caller in first:
            caller.leave()
        heads = await asyncio.gather(*(caller.head() for caller in waiting))
        for caller in waiting:
            caller.leave()
        await self.until(lambda: self.inside() == (0, 0, 0), "nobody is inside")
        await self.until(lambda: self._count.now() == 0, "the engine is idle")
        return [head_s - left_s for head_s in heads]


async def play(say: Say, scene: Scene, count: VllmCount | LlamaCount) -> None:
    """Play the rounds for both kinds of requests."""
    for stream in (True, False):
        waits: list[float] = []
        for _ in range(ROUNDS):
            waits += await scene.round(stream=stream)
        kind = "streaming" if stream else "silent"
        most, text = await asyncio.to_thread(count.told)
        say(
            f"{ROUNDS} rounds in which {CAP} {kind} clients left at once while {CAP} waited: "
            f"{text}; the cap is {CAP}",
            holds=most <= CAP,
        )
        median_ms, worst_ms = statistics.median(waits) * 1000, max(waits) * 1000
        say(
            f"who waited had the head of its answer {median_ms:.1f} ms later (median), "
            f"{worst_ms:.0f} ms (most)",
            holds=median_ms <= FREE_WITHIN_MS if isinstance(count, VllmCount) else None,
        )


def try_cooling(say: Say, url: str, model: str, limit_s: str, log: str | None) -> None:
    """Run all of it; `log` is llama-server's, where the engine is one."""
    count = LlamaCount(Path(log)) if log else VllmCount(url)
    with tempfile.TemporaryDirectory() as folder:
        upstream = f"cooling_limit_s = {limit_s}"
        text = configuration(url, model, admission=(4, CAP, CAP, 60), upstream=upstream)
        door = FrontDoor(Path(folder), text)
        try:
            scene = Scene(door.public, door.admin, model, count)
            asyncio.run(play(say, scene, count))
        finally:
            code = door.stop()
            say(f"the front door drained and ended with {code}", holds=code == 0)
