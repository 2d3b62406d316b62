"""One engine that sleeps, in the hands of its gate: commands carried out, reports brought back.

The gate commands in an order that matters: what is to be remembered is on the disk before the call
that it speaks of is made. An operator's wish waits here for the gate's answer.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from tornado_frontdoor.core.decisions import (
    Answered,
    Changed,
    Command,
    GpuGranted,
    Note,
    Perform,
    Remember,
    Verdict,
    WakeEnded,
)
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.proxy.engine.control_client import EngineControlClient
from tornado_frontdoor.proxy.engine.journal import Journal
from tornado_frontdoor.proxy.telemetry import Telemetry

LOG = logging.getLogger("frontdoor")


class EngineExecutor:
    """Carries out what a gate commands. `granted` passes a GPU on to another gate."""

    def __init__(
        self,
        key: UpstreamKey,
        address: str,
        waker: EngineControlClient,
        journal: Journal,
        telemetry: Telemetry,
        granted: Callable[[UpstreamKey], None],
        learned: Callable[[], dict[str, float]],
    ) -> None:
        self._key = key
        self._address = address
        self._waker = waker
        self._journal = journal
        self._telemetry = telemetry
        self._granted = granted
        self._learned = learned
        self._wishes: dict[str, list[asyncio.Future[Answered]]] = {}

    def command(self, command: Command) -> None:
        """Carry out one command."""
        match command:
            case Perform():
                self._waker.perform(command)
            case Remember():
                self._journal.remember(self._address, command.memory)
            case Changed():
                LOG.info("%s is %s", self._key, command.state.value)
            case WakeEnded():
                self._telemetry.wake_ended(self._key, command)
                self._journal.learn(self._address, self._learned())
            case Answered():
                self._answer(command)
            case Note():
                LOG.warning("%s: %s", self._key, command.text)
            case GpuGranted():
                self._granted(command.upstream)

    def wish(self, name: str) -> "asyncio.Future[Answered]":
        """Return what will be the answer to an operator's wish; ask before the gate is told."""
        future = asyncio.get_running_loop().create_future()
        self._wishes.setdefault(name, []).append(future)
        return future

    async def close(self) -> None:
        """Stop; whoever still waits is told that nothing came of it."""
        for name in [*self._wishes]:
            self._answer(Answered(name, Verdict.FAILED, "the front door is shutting down"))
        await self._waker.close()

    def _answer(self, answered: Answered) -> None:
        waiting: Iterable[asyncio.Future[Answered]] = self._wishes.pop(answered.wish, ())
        for future in waiting:
            if not future.done():
                future.set_result(answered)
