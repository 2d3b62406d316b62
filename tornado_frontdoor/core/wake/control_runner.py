"""The calls to one engine: one at a time, each with its time limit, in the order of a run.

Rule 1: what comes of an earlier call than the one under way has no effect.
Rule 2: what is about to be done is remembered before the first step of it is carried out.
Rule 3: a run begins with the GPU granted, and with a look. Until it is committed it can be dropped.
Rule 4: this file tells what happened; what that means for the engine's state `wake.py` says.
"""

from enum import Enum, auto
from math import inf

from tornado_frontdoor.core.decisions import Command, EngineState, Perform, Remember, SleepDepth
from tornado_frontdoor.core.wake.observed import EngineEvent, ObservedEngine
from tornado_frontdoor.core.wake.sequence import NextAction, Transition
from tornado_frontdoor.engines.base import PROBE, Report, Role, Step, StepResult

RETRY_S = 1.0
"""Before a failed step is tried once more, and before another look at an engine that is busy."""


_TOLD = {NextAction.PUT_OFF: EngineEvent.NOT_DUE, NextAction.GIVE_UP: EngineEvent.FAILED}
"""Turns that are events by themselves; after the others the look says what happened."""


class Gpu(Enum):
    """What is wanted of the engine's devices; the gate sees to it."""

    ASK = auto()
    """`granted` is to be called once they are granted."""
    FREE = auto()
    """Give them back, or ask no longer."""


WakeOrder = Command | Gpu


class ControlRunner:
    """What one engine is asked, and what came of it. Each method that tells an event is O(1)."""

    def __init__(self, belief: ObservedEngine, now: float, *, unsure: bool) -> None:
        self._belief = belief
        self._number = 0
        self._step: Step | None = None  # the call that is under way
        self._until_s = inf
        self._gpu: bool | None = None  # whether it is granted; None: not asked for
        self._unsure = unsure  # whether a call may be under way in the engine that nobody waits for
        self.run: Transition | None = None
        self.next_s = now
        """When the run goes on; without a run, when to look again."""
        self.why = ""
        """Why the last run did not get where it was going."""
        self.orders: list[WakeOrder] = []
        if unsure:
            self._ask_gpu()
        self.canary = True
        self.wakes_begun = 0

    @property
    def at(self) -> str | None:
        """Where the run is: its step's label, or `gpu` while it waits for that."""
        if self.run is None:
            return None
        return "gpu" if self._waits_for_gpu else self.run.step.label

    def deadline(self) -> float:
        """Return when the call under way is given up, or when the next one is due."""
        if self._step is not None:
            return self._until_s
        return inf if self._waits_for_gpu else self.next_s

    @property
    def _waits_for_gpu(self) -> bool:
        return self.run is not None and self._gpu is False

    # Runs begin and end

    def begin(self, run: Transition, now: float) -> None:
        """Ask for the GPU; the run starts when it is granted."""
        self.run = run
        self._step = None
        if self._gpu:
            self._perform(run.step, now)
        else:
            self._ask_gpu()

    def _ask_gpu(self) -> None:
        self._gpu = False
        self.orders.append(Gpu.ASK)

    def prove(self, run: Transition, now: float) -> EngineEvent | None:
        """Start a run that only has to plan its proof: no memory is moved, no GPU is needed."""
        self.run = run
        self._step = None
        run.plan(EngineEvent.FOUND_AWAKE, self._belief, canary=self.canary)
        return self._advance(run, now, wanted=False)

    def granted(self, now: float) -> None:
        """Take the GPU that was asked for."""
        if self._gpu is not False:
            return
        self._gpu = True
        if self.run is not None:
            if self.run.depth is not SleepDepth.RESTARTING:
                self.run.began_s = now  # waiting for the GPU is no part of a wake's time
            self._perform(self.run.step, now)

    def end(self) -> None:
        """Forget the run and the call under way.

        The GPU is kept while that call may yet have an effect: until a look tells that it is over,
        or that nobody is there any more.
        """
        self._unsure |= self._step is not None and self._step.changes
        self.run = None
        self._step = None
        self._free_gpu()

    def _free_gpu(self) -> None:
        if self._gpu is not None and self.run is None and not self._unsure:
            self._gpu = None
            self.orders.append(Gpu.FREE)

    # Calls begin and end

    def tick(self, now: float, *, wanted: bool) -> EngineEvent | None:
        """Give up the call that takes too long, or make the one that is due."""
        if self._step is not None:
            if now < self._until_s:
                return None
            return self._ended(Report(self._number, StepResult.TIMED_OUT), now, wanted)
        if now < self.next_s or self._waits_for_gpu:
            return None
        step = PROBE if self.run is None else self.run.step
        if step.role is Role.SLEEP and wanted:
            return self._somebody_came()
        self._perform(step, now)
        return None

    def _somebody_came(self) -> EngineEvent:
        """Do not put to sleep what is wanted; no sleep is under way at this point."""
        self.why = "somebody came"
        return EngineEvent.WANTED

    def report(self, report: Report, now: float, *, wanted: bool) -> EngineEvent | None:
        """Take what came of a step."""
        if self._step is None or report.number != self._number:
            return None
        return self._ended(report, now, wanted)

    def _perform(self, step: Step, now: float) -> None:
        timeout_s = step.timeout_s * self._belief.patience if step.probes else step.timeout_s
        self._number += 1
        self._step = step
        self._until_s = now + timeout_s
        self.orders.append(Perform(self._number, step, timeout_s))

    def _ended(self, report: Report, now: float, wanted: bool) -> EngineEvent | None:
        step, self._step = self._step, None
        assert step is not None
        event = self._belief.read(report) if step.probes else None
        blind = report.ending in (StepResult.TIMED_OUT, StepResult.LOST)
        if step.probes and event is not EngineEvent.FOUND_BUSY:
            self._unsure = False  # it runs behind all else, so all else is over
            self._free_gpu()
        elif blind and step.changes:
            self._unsure = True
        run = self.run
        if report.ending is StepResult.LOST:
            self.why = f"{step.label}: {report.detail or 'nobody is there'}"
            return EngineEvent.LOST
        if run is None:
            return event
        turn, self.why = run.judge(report, event, self._belief)
        if turn is NextAction.NEXT:
            return self._done(run, event, now, wanted)
        if turn is NextAction.AGAIN:
            self.next_s = now + RETRY_S
            return None
        if turn is NextAction.GIVE_UP:
            self._belief.give_up(run.steps, run.index, self.why)
        elif turn is not NextAction.ARRIVED:
            self.end()
        return _TOLD.get(turn, event)

    def _done(
        self, run: Transition, event: EngineEvent | None, now: float, wanted: bool
    ) -> EngineEvent | None:
        if run.step.role is Role.PROBE:
            assert event is not None
            run.plan(event, self._belief, canary=self.canary)
        elif run.step.role is Role.VERIFY_AWAKE:
            if run.loads_weights:
                self._belief.loaded()
            self._remember(run)
        return self._advance(run, now, wanted=wanted)

    def _advance(self, run: Transition, now: float, *, wanted: bool) -> EngineEvent | None:
        """Go to the next step, or tell that there is none or that it must not be."""
        if not run.advance():
            return EngineEvent.PROVEN
        if run.step.role is Role.SLEEP and run.committed and wanted:
            return self._somebody_came()
        begins = not run.committed and not run.step.probes
        if run.step.role is Role.SLEEP:
            self._belief.falls(run.level)
        if run.step.role is Role.SLEEP or (begins and run.moves_memory):
            self._remember(run)
        run.committed |= begins
        self.wakes_begun += begins and run.wakes and run.moves_memory
        self._perform(run.step, now)
        return EngineEvent.DUE if begins and not run.wakes else None

    def _remember(self, run: Transition) -> None:
        going = EngineState.WAKING if run.wakes else EngineState.FALLING_ASLEEP
        self.orders.append(Remember(self._belief.memory(going)))
