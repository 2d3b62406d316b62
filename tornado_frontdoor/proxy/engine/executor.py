"""One engine that sleeps, in the hands of its gate: commands carried out, reports brought back.

The gate commands in an order that matters: what must be on the disk first is written before its
step is commanded. An operator's request waits here for the gate's answer.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from tornado_frontdoor.config import ProcessSettings
from tornado_frontdoor.core.decisions import (
    Answered,
    CanaryEnded,
    Changed,
    Command,
    EngineState,
    FellAsleep,
    Measured,
    Note,
    Notice,
    OutOfMemory,
    Perform,
    Remember,
    RoomDecided,
    SleepReason,
    Verdict,
    WakeEnded,
)
from tornado_frontdoor.core.engine_reader import EngineReader
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.engines.base import Report, StepResult
from tornado_frontdoor.proxy.engine.control_client import EngineControlClient
from tornado_frontdoor.proxy.engine.gpu_meter import CannotMeasureError, GpuMeter
from tornado_frontdoor.proxy.engine.journal import Journal
from tornado_frontdoor.proxy.telemetry import Telemetry

LOG = logging.getLogger("frontdoor")

HISTORY = 50
"""Happenings of each engine that are kept for operators."""
WHY_ASLEEP = {
    SleepReason.IDLE: "as nobody asked for it",
    SleepReason.OPERATOR: "as an operator wanted it",
    SleepReason.SCHEDULE: "by its schedule",
    SleepReason.KEEP_ALIVE: "as its last caller wanted it",
    SleepReason.ROOM: "to make room for another engine",
    SleepReason.OUT_OF_BAND: "and not through us",
}


_MEASURED = (EngineState.AWAKE, EngineState.SLEEPING, EngineState.OFFLOADED)


def _nobody(gib: float) -> None:
    """Take nothing."""


def _nothing() -> None:
    """Do nothing."""


class EngineExecutor:
    """Carries out what a gate commands. `granted` passes a GPU on to another gate."""

    def __init__(
        self,
        key: UpstreamKey,
        address: str,
        control: EngineControlClient,
        journal: Journal,
        telemetry: Telemetry,
        granted: Callable[[str], None],
        gate: EngineReader,
    ) -> None:
        """`gate` is only asked what was learned."""
        self._key = key
        self.one_of_several = False
        """Whether its upstream is in a state that is not this engine's alone."""
        self._address = address
        self._control = control
        self._journal = journal
        self._telemetry = telemetry
        self._granted = granted
        self._gate = gate
        self.meter: GpuMeter | None = None
        """Where what the engine takes of its GPUs is to be measured."""
        self.measured: Callable[[float], None] = _nobody
        """Takes what was measured."""
        self.suspect: Callable[[], None] = _nothing
        """Has the gate look at the engine."""
        self._measuring: asyncio.Task[None] | None = None
        self._why_not_measured = self._why_unproven = ""
        self.history: deque[tuple[str, str]] = deque(maxlen=HISTORY)
        """What happened lately, oldest first: the instant (UTC) and words for a person."""
        self._requests: dict[tuple[str, int | None], list[asyncio.Future[Answered]]] = {}

    def change(
        self,
        key: UpstreamKey,
        canary: tuple[str, str],
        api_key: str | None,
        process: ProcessSettings | None = None,
    ) -> None:
        """Take another name, canary, key and commands; the engine is the one at its address."""
        self._key = key
        known = self._control.process
        if (known is None) != (process is None) or (
            known is not None and process is not None and not known.change(process)
        ):
            LOG.warning(
                "upstreams.%s.process: all but other commands changes with the next start", key
            )
        if canary[1] != self._control.canary[1] and self._control.loads_by_name:
            LOG.warning("%s: the served name of its model changes with the next start", key)
            canary = canary[0], self._control.canary[1]
        self._control.canary = canary
        self._control.api_key = api_key

    def command(self, decision: Command | Notice) -> None:
        """Carry out one command, or tell one notice."""
        match decision:
            case Perform():
                self._control.perform(decision)
            case Remember():
                self._remember(decision)
            case RoomDecided():
                self._granted(decision.owner)
            case Changed():
                self._changed(decision)
            case FellAsleep():
                self._fell_asleep(decision)
            case CanaryEnded() | Measured() | OutOfMemory():
                self._learned(decision)
            case WakeEnded():
                self._telemetry.wake_ended(self._key, decision)
                how = "is over" if decision.succeeded else "failed"
                depth, took_s = decision.depth.value, decision.took_s
                self._remind(f"its wake from {depth} {how} after {took_s:.1f} s")
                writing = self._journal.learn(self._address, self._gate.learned_s)
                writing.add_done_callback(self._complain)
            case Answered():
                self._answer(decision)
            case Note():
                LOG.warning("%s: %s", self._name, decision.text)
                self._remind(decision.text)

    @property
    def _name(self) -> str:
        return f"{self._key} at {self._address}" if self.one_of_several else self._key

    def tell_state(self, state: EngineState) -> None:
        """Tell whoever looks that the upstream is in another state."""
        self._telemetry.engine_changed(self._key, state)

    def refused(self, status: int, body: bytes) -> None:
        """Take how the engine refused a request: perhaps as it does not serve any more."""
        if self._control.tells_it_sleeps(status, body):
            self.suspect()

    def request(self, name: str, level: int | None = None) -> "asyncio.Future[Answered]":
        """Return what will be the answer to an operator; ask before the gate is told."""
        future = asyncio.get_running_loop().create_future()
        self._requests.setdefault((name, level), []).append(future)
        return future

    async def close(self) -> None:
        """Stop; whoever still waits is told that nothing came of it."""
        for name, level in [*self._requests]:
            why = "the front door is shutting down"
            self._answer(Answered(name, Verdict.FAILED, why, level))
        if self._measuring is not None:
            self._measuring.cancel()
            await asyncio.gather(self._measuring, return_exceptions=True)
        await self._control.close()

    def _measure(self, state: EngineState) -> None:
        """Look what it takes now that it is at rest."""
        if self.meter is None or state not in _MEASURED:
            return
        if self._measuring is not None:
            self._measuring.cancel()
        task = self._look_at_gpus(self.meter)
        self._measuring = asyncio.get_running_loop().create_task(task)

    async def _look_at_gpus(self, meter: GpuMeter) -> None:
        try:
            gib = await meter.measure_gib()
        except CannotMeasureError as error:
            if str(error) != self._why_not_measured:
                text = f"what it takes of its GPUs cannot be measured, and is assumed: {error}"
                LOG.warning("%s: %s", self._name, text)
                self._remind(text)
            self._why_not_measured = str(error)
            return
        self._why_not_measured = ""
        self.measured(gib)

    def _changed(self, changed: Changed) -> None:
        told = f"{changed.state.value}{f', for {changed.by}' if changed.by else ''}"
        LOG.info("%s is %s", self._name, told)
        self._remind(f"it is {told}")
        if not self.one_of_several:
            self.tell_state(changed.state)
        self._measure(changed.state)

    def _fell_asleep(self, asleep: FellAsleep) -> None:
        self._telemetry.fell_asleep(self._key, asleep)
        why = WHY_ASLEEP[asleep.reason]
        if asleep.room_for:
            why = f"to make room for {asleep.room_for}"
        elif asleep.by:
            why += f" ({asleep.by})"
        LOG.info("%s fell asleep at level %d, %s", self._name, asleep.level, why)
        self._remind(f"it fell asleep at level {asleep.level}, {why}")

    def _learned(self, learned: CanaryEnded | Measured | OutOfMemory) -> None:
        if isinstance(learned, CanaryEnded):
            self._canary_ended(learned)
        else:
            self._learn_size(learned)

    def _canary_ended(self, ended: CanaryEnded) -> None:
        self._telemetry.canary_ended(self._key, ended.result)
        if ended.result == "garbage":
            text = (
                f"quarantined: {ended.detail}. It is tried again after a pause; if it is right as "
                f"it is, say so: POST /admin/believe/{self._key}"
            )
            LOG.error("%s: %s", self._name, text)
            self._remind(text)
        elif ended.result == "unproven" and ended.detail != self._why_unproven:
            text = f"it is taken for awake, and its answers were not proven: {ended.detail}"
            LOG.warning("%s: %s", self._name, text)
            self._remind(text)
        self._why_unproven = ended.detail if ended.result == "unproven" else ""

    def _learn_size(self, learned: Measured | OutOfMemory) -> None:
        if isinstance(learned, Measured):
            depth = ("awake", "at level 1", "at level 2")[learned.level]
            text = f"it takes {learned.gib:.1f} GiB of each of its GPUs {depth}"
            LOG.info("%s: %s", self._name, text)
        else:
            self._telemetry.out_of_memory(self._key)
            text = "a GPU was full as it woke"
            if learned.needs_gib > learned.counted_gib:
                text += (
                    f", although there was room for {learned.counted_gib:.1f} GiB: from now on it "
                    f"is taken to need {learned.needs_gib:.1f} GiB"
                )
            elif learned.needs_gib:
                text += ", and nobody else can make room: its own size, or somebody else's, is not "
                text += "as set"
            LOG.warning("%s: %s", self._name, text)
        writing = self._journal.learn_sizes(self._address, self._gate.learned_gib)
        writing.add_done_callback(self._complain)
        self._remind(text)

    def _remind(self, text: str) -> None:
        """Keep for operators what happened lately."""
        self.history.append((datetime.now(UTC).isoformat(timespec="milliseconds"), text))

    def _remember(self, command: Remember) -> None:
        writing = self._journal.remember(self._address, command.memory)
        if not command.number:
            writing.add_done_callback(self._complain)
            return

        def written(done: "asyncio.Future[None]") -> None:
            error = None if done.cancelled() else done.exception()
            result = StepResult.DONE if error is None else StepResult.FAILED
            self._control.report(Report(command.number, result, detail=str(error or "")))

        writing.add_done_callback(written)

    def _complain(self, done: "asyncio.Future[None]") -> None:
        """Say that nothing depends on it, but that the next start will know less."""
        if not done.cancelled() and (error := done.exception()):
            LOG.warning("%s: the next start will not know how it stands: %s", self._name, error)

    def _answer(self, answered: Answered) -> None:
        key = (answered.request, answered.level)
        waiting: Iterable[asyncio.Future[Answered]] = self._requests.pop(key, ())
        for future in waiting:
            if not future.done():
                future.set_result(answered)
