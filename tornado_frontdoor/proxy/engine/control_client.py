"""Carries out the wake machine's steps over HTTP, and reports what came of each. Decides nothing.

Each step is one bounded call, as the engine's kind says it. A time limit that passes means "busy",
not "gone": engines answer a probe only between two transitions, and a sleep whose caller gave up
still happens.
"""

import asyncio
import logging
from collections.abc import Callable

from tornado_frontdoor.core.decisions import Perform
from tornado_frontdoor.core.printable import printable
from tornado_frontdoor.engines.base import (
    PROBE,
    Call,
    EngineKind,
    ProcessCall,
    Report,
    Role,
    StepResult,
    first_token,
    without_logprobs,
)
from tornado_frontdoor.proxy.curl.client import (
    TransferEnd,
    UpstreamAnswer,
    UpstreamClient,
    UpstreamFailed,
)
from tornado_frontdoor.proxy.engine.counts import credentials
from tornado_frontdoor.proxy.engine.process import EngineProcess
from tornado_frontdoor.proxy.engine.prometheus_text import read_samples

LOG = logging.getLogger("frontdoor")

BESIDE_S = 1.0
"""For what a probe asks beside the state, which an engine answers at once also while it is busy."""
METRICS_LIMIT_BYTES = 8 << 20


class EngineControlClient:
    """The hands of one engine's wake machine."""

    def __init__(
        self,
        client: UpstreamClient,
        url: str,
        kind: EngineKind,
        canary: tuple[str, str],
        report: Callable[[Report], None],
    ) -> None:
        """`canary` is its path and the served name of a model; `report` is called for each step."""
        self._client = client
        self._url = url
        self._kind = kind
        self.canary = canary
        self.report = report
        self.process: EngineProcess | None = None
        """Of an engine that is started and stopped."""
        self.api_key: str | None = None
        """What the engine asks for, if we know it."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def loads_by_name(self) -> bool:
        """Whether the engine is told which of its models to load."""
        return self._kind.serving("") is not self._kind

    def tells_it_sleeps(self, status: int, body: bytes) -> bool:
        """Tell whether an answer to a request says that the engine is not awake."""
        return self._kind.tells_it_sleeps(UpstreamAnswer(status, [], body))

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
        if self.process is not None:
            await self.process.close()

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
        self.report(report)

    async def _carry_out(self, command: Perform) -> Report:
        step = command.step
        if step.probes:
            return await self._probe(command)
        call = self._kind.canary(*self.canary) if step.role is Role.CANARY else step.call
        assert call is not None, f"a {step.role.value} step without a call"
        if isinstance(call, ProcessCall):
            assert self.process is not None, "its kind has a process, and its settings none"
            result, detail = await self.process.carry_out(call)
            return Report(command.number, result, detail=detail)
        answer = await self._ask(call, command.timeout_s)
        if step.role is Role.CANARY:
            if answer.status in (400, 422) and (plain := without_logprobs(call)) is not None:
                answer = await self._ask(plain, command.timeout_s)
            token = first_token(answer.body) if answer.status == 200 else None
            result = self._kind.result(step, answer)
            return Report(command.number, result, detail=_detail(answer), token=token)
        return Report(command.number, self._kind.result(step, answer), detail=_detail(answer))

    async def _probe(self, command: Perform) -> Report:
        kind = self._kind
        answer = await self._ask(kind.state, command.timeout_s)
        result = kind.result(command.step, answer)
        if result is not StepResult.DONE:
            return Report(command.number, result, detail=_detail(answer))
        wanted = [*kind.beside, *([kind.metrics] if kind.metrics else ())]
        bodies = await asyncio.gather(*(self._beside(call) for call in wanted))
        metrics = bodies.pop() if kind.metrics else b""
        seen = kind.read_state(answer.body, bodies, read_samples(metrics, kind.gauges))
        if isinstance(seen, str):
            return Report(command.number, StepResult.FAILED, detail=seen)
        return Report(command.number, StepResult.DONE, seen)

    async def _beside(self, call: Call) -> bytes:
        """Return what is behind a path, or nothing where that cannot be had at once."""
        try:
            answer = await self._client.ask(
                call.method,
                self._url + call.path,
                timeout_s=BESIDE_S,
                headers=credentials(self.api_key),
                limit_bytes=METRICS_LIMIT_BYTES,
            )
        except UpstreamFailed:
            return b""
        return answer.body if answer.status == 200 else b""

    async def answers(self) -> StepResult:
        """Tell whether anybody answers at the address, and whether it is ready."""
        try:
            answer = await self._ask(self._kind.state, BESIDE_S)
        except UpstreamFailed as failed:
            silent = failed.end is TransferEnd.SILENT
            return StepResult.TIMED_OUT if silent else StepResult.LOST
        return self._kind.result(PROBE, answer)

    async def _ask(self, call: Call, timeout_s: float) -> UpstreamAnswer:
        headers = [("Content-Type", "application/json")] if call.body else []
        headers += credentials(self.api_key)
        return await self._client.ask(
            call.method,
            self._url + call.path,
            timeout_s=timeout_s,
            body=call.body.encode(),
            headers=headers,
        )


def _detail(answer: UpstreamAnswer) -> str:
    if answer.status == 200:
        return ""
    return f"status {answer.status}: {printable(answer.body[:200].decode('utf-8', 'replace'))}"
