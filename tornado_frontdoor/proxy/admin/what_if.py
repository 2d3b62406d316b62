"""What the last requests would have met with other limits: the simulator, asked beside the proxy.

It runs in a process of its own, at low priority and for a bounded time, one at a time: who
is served meanwhile does not notice. The simulator is an extra; without it the answer says so.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections import deque
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import tornado_frontdoor
from tornado_frontdoor.proxy.upstreams import Upstream

REQUESTS_KEPT = 10_000
"""Of all upstreams together; a few hundred bytes each."""
FEWEST = 20
"""Requests below which a replay tells nothing."""
CPU_LIMIT_S = 60
LIMIT_S = 120.0
REPLICATIONS = 5
_NEEDED = (
    *("time", "outcome", "upstream", "waited_s", "total_s", "weight", "first_byte_s", "stream"),
    *("tokens_in", "tokens_out"),
)
"""Of an access line, what the simulator reads."""
_needed_of = attrgetter(*_NEEDED)
_START = f"""
import os, resource, sys
os.nice(10)
resource.setrlimit(resource.RLIMIT_CPU, ({CPU_LIMIT_S}, {CPU_LIMIT_S}))
from tornado_frontdoor.cli.main import main
sys.exit(main(sys.argv[1:]))
"""

Fields = dict[str, Any]


class Unanswerable(Exception):  # noqa: N818 - said to an operator as it stands
    """There is no answer; `status` is that of HTTP."""

    def __init__(self, status: int, told: str) -> None:
        super().__init__(told)
        self.status = status


class Limits(NamedTuple):
    """What can be tried; the timeout in seconds."""

    cap: int
    queue: int
    timeout_s: float


class WhatIf:
    """Keeps the last requests of all upstreams, and replays them when asked."""

    def __init__(self) -> None:
        self._kept: deque[tuple[Any, ...]] = deque(maxlen=REQUESTS_KEPT)
        self._running: asyncio.subprocess.Process | None = None
        self._busy = False

    def heard(self, kind: str, told: Any) -> None:
        """Keep what the simulator needs of a request that ended."""
        if kind == "request" and told.upstream is not None:
            self._kept.append(_needed_of(told))

    async def ask(self, upstream: Upstream, asked: Limits) -> Fields:
        """Return what was, and two replays: with the limits in force, and with others.

        Raises Unanswerable.
        """
        limits = upstream.keeper.gate.limits
        if limits.cap is None:
            raise Unanswerable(409, "this upstream has no cap: there are no limits to try")
        lines = self._lines_of(upstream.settings.key)
        if len(lines) < FEWEST:
            told = f"{len(lines)} requests are recorded since the start, {FEWEST} are the least"
            raise Unanswerable(409, told)
        if self._busy:
            raise Unanswerable(409, "another replay is under way: try again when it is over")
        self._busy, began_s = True, monotonic()
        in_force = Limits(limits.cap, limits.queue, limits.queue_timeout_s)
        try:
            log = "\n".join(lines).encode()
            was = await self._replay(upstream, in_force, log)
            other = was if asked == in_force else await self._replay(upstream, asked, log)
        finally:
            self._busy = False
        return {
            "upstream": upstream.settings.key,
            "requests": len(lines),
            "since": json.loads(lines[0])["time"],
            "took_s": round(monotonic() - began_s, 1),
            "observed": was["observed"],
            "in_force": {"limits": in_force._asdict(), "metrics": _means(was)},
            "asked": {"limits": asked._asdict(), "metrics": _means(other)},
        }

    def close(self) -> None:
        """End a replay that is under way."""
        if self._running is not None and self._running.returncode is None:
            self._running.kill()

    # How

    def _lines_of(self, upstream: str) -> list[str]:
        at = _NEEDED.index("upstream")
        own = (values for values in self._kept if values[at] == upstream)
        return [json.dumps(dict(zip(_NEEDED, values, strict=True))) for values in own]

    async def _replay(self, upstream: Upstream, limits: Limits, log: bytes) -> Fields:
        words = [
            *("simulate", "--log", "-", "--upstream", upstream.settings.key, "--json"),
            *("--cap", str(limits.cap), "--queue", str(limits.queue)),
            *("--timeout", f"{limits.timeout_s:g}", *_slots_of(upstream)),
            *("--reps", str(REPLICATIONS), "--jobs", "1"),
        ]
        code, out, err = await self._run(words, log)
        if code == 0:
            told: Fields = json.loads(out)
            return told
        text = err.decode("utf-8", "replace").strip()
        if "not installed here" in text:
            raise Unanswerable(501, text.removeprefix("frontdoor simulate: "))
        if code < 0:
            raise Unanswerable(503, f"the replay was ended: it may take {CPU_LIMIT_S} s of CPU")
        first = next(iter(text.splitlines()), f"the simulator ended with {code}")
        raise Unanswerable(422, first.removeprefix("frontdoor simulate: "))

    async def _run(self, words: Sequence[str], log: bytes) -> tuple[int, bytes, bytes]:
        """Run a command of ours on a log; returns its exit code and what it said."""
        ours = str(Path(tornado_frontdoor.__file__).parents[1])
        paths = [path for path in (os.environ.get("PYTHONPATH"), ours) if path]
        alone = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        process = self._running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", _START, *words),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env={**os.environ, **alone, "PYTHONPATH": os.pathsep.join(paths)},
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                out, err = await process.communicate(log)
        except TimeoutError:
            raise Unanswerable(503, f"the replay took longer than {LIMIT_S:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return process.returncode, out, err


def _slots_of(upstream: Upstream) -> list[str]:
    """Return what the simulator is told of the engine's slots, where they are known."""
    settings = upstream.settings
    sizes = {one.slots for one in settings.replicas}
    if len(sizes) == 1:
        return ["--replicas", f"{len(settings.replicas)}x{sizes.pop()}"]
    return ["--slots", str(settings.admission.slots)] if settings.admission else []


def _means(document: Fields) -> Fields:
    return {name: estimate["mean"] for name, estimate in document["metrics"].items()}


def limits_of(query: Mapping[str, str]) -> Limits:
    """Read what is to be tried; raises Unanswerable."""
    try:
        limits = Limits(int(query["cap"]), int(query["queue"]), float(query["timeout_s"]))
    except (KeyError, ValueError):
        raise Unanswerable(400, "cap, queue and timeout_s must be given, as numbers") from None
    if not (1 <= limits.cap <= 4096 and 0 <= limits.queue <= 100_000 and limits.timeout_s > 0):
        raise Unanswerable(400, "cap is from 1 to 4096, queue from 0 to 100000, timeout_s above 0")
    return limits
