"""Carries out the wake machine's steps over HTTP, and reports what came of each. Decides nothing.

Each step is one bounded call. A time limit that passes means "busy", not "gone": vLLM answers
`/is_sleeping` only between two transitions, and a `/sleep` whose caller gave up still happens.
"""

import asyncio
import json
import logging
import re
from collections.abc import Callable
from math import isfinite
from typing import Any

from tornado_frontdoor.core.decisions import Perform
from tornado_frontdoor.core.printable import printable
from tornado_frontdoor.engines.vllm import Report, Seen, Step, StepResult
from tornado_frontdoor.proxy.curl.client import (
    TransferEnd,
    UpstreamAnswer,
    UpstreamClient,
    UpstreamFailed,
)

LOG = logging.getLogger("frontdoor")

SIDE_LOOK_S = 1.0
"""For `/metrics` and `/version`, which an engine answers at once also while it is busy."""
METRICS_LIMIT_BYTES = 8 << 20
SLEEP_LEVELS = {"awake": 0, "weights_offloaded": 1, "discard_all": 2}

_GAUGE = re.compile(r"^(\w+:?\w*)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_STATE = re.compile(r'sleep_state="(\w+)"')

CANARIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "1 2 3", "max_tokens": 1},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "1 2 3"}],
        "max_tokens": 1,
    },
    "/v1/embeddings": {"input": "1 2 3"},
}


class EngineControlClient:
    """The hands of one engine's wake machine."""

    def __init__(
        self,
        client: UpstreamClient,
        url: str,
        canary: tuple[str, str],
        report: Callable[[Report], None],
    ) -> None:
        """`canary` is its path and the served name of a model; `report` is called for each step."""
        self._client = client
        self._url = url
        self._canary = canary
        self._report = report
        self._tasks: set[asyncio.Task[None]] = set()

    def perform(self, command: Perform) -> None:
        """Begin a step; its report comes later, on a turn of its own."""
        task = asyncio.get_running_loop().create_task(self._perform(command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Abandon what is under way: what its end would have been is for the next start to find."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _perform(self, command: Perform) -> None:
        try:
            report = await self._carry_out(command)
        except UpstreamFailed as failed:
            ending = StepResult.TIMED_OUT if failed.end is TransferEnd.SILENT else StepResult.LOST
            report = Report(command.number, ending, detail=failed.detail)
        except Exception:
            # Without a report the machine would wait for its time limit, and nobody would know why.
            LOG.exception("%s: step %s failed in an unforeseen way", self._url, command.step.label)
            report = Report(command.number, StepResult.FAILED, detail="see the log")
        self._report(report)

    async def _carry_out(self, command: Perform) -> Report:
        step = command.step
        if step.looks:
            return await self._look(command)
        path, body = step.path, (step.body or "").encode()
        if step is Step.CANARY:
            path, model = self._canary
            body = json.dumps({"model": model, **CANARIES[path]}).encode()
        answer = await self._ask(step.method, path, command.timeout_s, body)
        return Report(command.number, _ending(step, answer), detail=_detail(answer))

    async def _look(self, command: Perform) -> Report:
        answer = await self._ask("GET", command.step.path, command.timeout_s)
        if answer.status != 200:
            return Report(command.number, _ending(command.step, answer), detail=_detail(answer))
        try:
            sleeping = bool(json.loads(answer.body)["is_sleeping"])
        except (ValueError, KeyError, TypeError):
            return Report(command.number, StepResult.FAILED, detail="no is_sleeping in its answer")
        version, metrics = await asyncio.gather(self._side("/version"), self._side("/metrics"))
        return Report(command.number, StepResult.DONE, read_look(sleeping, version, metrics))

    async def _side(self, path: str) -> bytes:
        """Return what is behind a path, or nothing where that cannot be had at once."""
        try:
            answer = await self._client.ask(
                "GET", self._url + path, timeout_s=SIDE_LOOK_S, limit_bytes=METRICS_LIMIT_BYTES
            )
        except UpstreamFailed:
            return b""
        return answer.body if answer.status == 200 else b""

    async def _ask(
        self, method: str, path: str, timeout_s: float, body: bytes = b""
    ) -> UpstreamAnswer:
        headers = [("Content-Type", "application/json")] if body else []
        return await self._client.ask(
            method, self._url + path, timeout_s=timeout_s, body=body, headers=headers
        )


def _ending(step: Step, answer: UpstreamAnswer) -> StepResult:
    if answer.status in (404, 405, 501):
        return StepResult.UNSUPPORTED
    if answer.status != 200:
        return StepResult.FAILED
    if step is Step.RESET_PREFIXES and b"false" in answer.body:
        return StepResult.FAILED  # blocks are still held: it says so with a 200
    return StepResult.DONE


def _detail(answer: UpstreamAnswer) -> str:
    if answer.status == 200:
        return ""
    return f"status {answer.status}: {printable(answer.body[:200].decode('utf-8', 'replace'))}"


def read_look(sleeping: bool, version: bytes, metrics: bytes) -> Seen:
    """Put together what three answers of an engine say; empty ones say nothing."""
    gauges: dict[str, float] = {}
    level: int | None = None
    for name, labels, text in _GAUGE.findall(metrics.decode("utf-8", "replace")):
        try:
            value = float(text)
        except ValueError:
            continue
        if not isfinite(value):
            continue
        if name == "vllm:engine_sleep_state":
            state = _STATE.search(labels)
            if state and value == 1 and state[1] in SLEEP_LEVELS:
                level = SLEEP_LEVELS[state[1]]
        else:
            gauges[name] = gauges.get(name, 0.0) + value
    running = gauges.get("vllm:num_requests_running")
    waiting = gauges.get("vllm:num_requests_waiting")
    started = gauges.get("process_start_time_seconds")
    return Seen(
        sleeping=sleeping,
        level=level,
        running=None if running is None else int(running),
        waiting=None if waiting is None else int(waiting),
        version=_version(version),
        process=None if started is None else f"{started:.2f}",
    )


def _version(body: bytes) -> str | None:
    try:
        return str(json.loads(body)["version"])
    except (ValueError, KeyError, TypeError):
        return None
