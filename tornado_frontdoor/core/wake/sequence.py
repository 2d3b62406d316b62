"""One transition under way: which step comes next, and what each report means for it.

Rule 1: until a run is committed nothing was done to the engine, and it can be dropped.
Rule 2: a step that failed is tried once more; a call that timed out never is, as it may yet happen.
        Only a canary is: after a look, as an engine that another hand put to sleep holds it in
        silence.
Rule 3: a run decides nothing about the engine's state; `wake.py` does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from tornado_frontdoor.core.decisions import SleepDepth, WakeEnded
from tornado_frontdoor.core.wake.observed import EngineEvent, ObservedEngine
from tornado_frontdoor.engines.base import (
    CANARY,
    PROBE,
    PROBE_IDLE,
    VERIFY_ASLEEP,
    VERIFY_AWAKE,
    EngineKind,
    Report,
    Role,
    Seen,
    Step,
    StepResult,
)

_WAKES = (Role.WAKE, Role.WAKE_WEIGHTS)
_NOT_ASLEEP = (EngineEvent.FOUND_AWAKE, EngineEvent.FOUND_DOUBTFUL)
_LEVEL_FOUND: Mapping[EngineEvent, int] = {
    EngineEvent.FOUND_AWAKE: 0,
    EngineEvent.FOUND_SLEEPING: 1,
}


CANARIES = 6
"""How many may go unanswered: on new weights a first token can take most of a minute."""


def wake_steps(
    kind: EngineKind, version: str | None, level: int, *, canary: bool
) -> tuple[Step, ...]:
    """Return how to wake from level 1, from level 2 (or one that nobody knows), or from 0.

    From level 0 only the canary is left: a probe has just shown it awake.
    """
    end = (CANARY,) if canary else ()
    if level == 0:
        return end
    return (*kind.wake_steps(version, level), VERIFY_AWAKE, *end)


def sleep_steps(
    kind: EngineKind, version: str | None, level: int, *, asleep: bool
) -> tuple[Step, ...]:
    """Return how to put an engine to sleep; `asleep`: it sleeps at level 1 and must go deeper."""
    *first, sleep = kind.sleep_steps(version, level, asleep=asleep)
    # Awake for a moment, it may have begun what another hand left inside it.
    again = (PROBE_IDLE,) if any(step.role is Role.WAKE for step in first) else ()
    return (PROBE_IDLE, *first, *again, sleep, VERIFY_ASLEEP)


class NextAction(Enum):
    """How a run goes on after a report."""

    NEXT = auto()
    """With its next step."""
    ARRIVED = auto()
    """Not at all: what the look found is where it was going."""
    AGAIN = auto()
    """With the same step, after a second."""
    PUT_OFF = auto()
    """Not now; nothing was done."""
    ELSEWHERE = auto()
    """Not at all: the engine is not where the run began. What the look found counts."""
    GIVE_UP = auto()
    """Not at all: it failed."""


@dataclass(slots=True, kw_only=True)
class Transition:
    """A sequence that wakes or puts to sleep, and how far it is."""

    wakes: bool
    began_s: float
    steps: tuple[Step, ...]
    depth: SleepDepth | None = None
    """Of a wake: from where, as callers are told."""
    level: int = 0
    """Of a sleep: where to."""
    asleep: bool = False
    """Of a sleep: whether the engine sleeps already, and only has to go deeper."""
    index: int = 0
    tries: int = 0
    silences: int = 0
    committed: bool = False
    optional: bool = False
    """A wake that is called off when nobody wants it any more."""
    by_operator: bool = False

    @property
    def step(self) -> Step:
        """The step it is at."""
        return self.steps[self.index]

    @property
    def moves_memory(self) -> bool:
        """Whether it is more than looks and a canary."""
        return any(step.changes for step in self.steps)

    @property
    def loads_weights(self) -> bool:
        """Whether it loads them, after which awake means something."""
        return any(step.role is Role.LOAD_WEIGHTS for step in self.steps)

    def ended(self, now: float, *, succeeded: bool) -> tuple[WakeEnded, ...]:
        """Return what there is to tell of its end; nothing of a proof alone."""
        if self.depth is None or not (self.moves_memory or self.depth is SleepDepth.RESTARTING):
            return ()
        return (WakeEnded(self.depth, succeeded, now - self.began_s),)

    def advance(self) -> bool:
        """Go to the next step; False: there is none."""
        self.index += 1
        self.tries = 0
        return self.index < len(self.steps)

    def plan(self, event: EngineEvent, belief: ObservedEngine, *, canary: bool) -> None:
        """Choose a wake's steps by what its first look found."""
        level = _LEVEL_FOUND.get(event, 2)
        self.steps = wake_steps(belief.kind, belief.version, level, canary=canary)
        self.index = -1
        if level and self.depth is not SleepDepth.RESTARTING:
            self.depth = SleepDepth.SLEEPING if level == 1 else SleepDepth.OFFLOADED

    def judge(
        self, report: Report, event: EngineEvent | None, belief: ObservedEngine
    ) -> tuple[NextAction, str]:
        """Tell how it goes on after what came of its step, and why.

        `event` is what a look means. Nothing here is LOST: then there is nothing to judge.
        """
        step, ending = self.step, report.ending
        if event is not None:
            return self._judge_look(step, report.seen, event, belief)
        if ending is StepResult.DONE:
            return NextAction.NEXT, ""
        if step.role is Role.CANARY:
            return self._judge_canary(report)
        if ending is not StepResult.FAILED or (
            step.role in _WAKES and not belief.kind.retries_wakes(belief.version)
        ):
            return NextAction.GIVE_UP, self._describe(report)
        return self._once_more(report)

    def _judge_canary(self, report: Report) -> tuple[NextAction, str]:
        if report.ending is StepResult.UNSUPPORTED:
            return (
                NextAction.NEXT,
                "",
            )  # an engine that cannot be asked this way is taken at its word
        if report.ending is not StepResult.TIMED_OUT:
            return self._once_more(report)
        self.silences += 1
        if self.silences == CANARIES:
            return NextAction.GIVE_UP, self._describe(report)
        self.steps += (VERIFY_AWAKE, CANARY)
        return NextAction.NEXT, ""

    def _judge_look(
        self, step: Step, seen: Seen | None, event: EngineEvent, belief: ObservedEngine
    ) -> tuple[NextAction, str]:
        awake = event in _NOT_ASLEEP
        if event is EngineEvent.FOUND_BUSY:
            # No try is lost: it is busy with what it was asked for.
            again = self.wakes or self.committed
            return (NextAction.AGAIN, "") if again else (NextAction.PUT_OFF, "the engine is busy")
        if step.role is Role.PROBE_IDLE:
            return self._judge_idleness(seen, awake)
        proven = event is EngineEvent.FOUND_AWAKE or (awake and self.loads_weights)
        if step.role is Role.PROBE or (step.role is Role.VERIFY_AWAKE and proven):
            return NextAction.NEXT, ""
        if step.role is Role.VERIFY_AWAKE or awake:
            return self._once_more(Report(0, StepResult.FAILED, None, event.name.lower()))
        if seen is not None and seen.level not in (None, self.level):
            told = f"its gauge says level {seen.level} after a sleep at level {self.level}"
            belief.notes.append(told)
        return NextAction.ARRIVED, ""

    def _judge_idleness(self, seen: Seen | None, awake: bool) -> tuple[NextAction, str]:
        if awake is (self.asleep and not self.committed):
            return NextAction.ELSEWHERE, "another hand was quicker"
        if seen is None or seen.running is None or seen.waiting is None:
            # `/sleep` would cut off whoever is in there; an operator may know better.
            if self.by_operator:
                return NextAction.NEXT, ""
            return NextAction.PUT_OFF, "its gauges do not tell whether it has work of somebody else"
        work = seen.running + seen.waiting
        if work == 0:
            return NextAction.NEXT, ""
        detail = f"it has {work} requests of somebody else"
        return (NextAction.GIVE_UP if self.committed else NextAction.PUT_OFF), detail

    def _once_more(self, report: Report) -> tuple[NextAction, str]:
        self.tries += 1
        if self.tries == 1:
            return NextAction.AGAIN, ""
        return NextAction.GIVE_UP, self._describe(report)

    def _describe(self, report: Report) -> str:
        detail = f": {report.detail}" if report.detail else ""
        return f"{self.step.label} {report.ending.value}{detail}"


def wake_run(depth: SleepDepth, now: float) -> Transition:
    """Return a wake that looks first; what that finds decides about the rest."""
    return Transition(wakes=True, began_s=now, steps=(PROBE,), depth=depth)


def sleep_run(belief: ObservedEngine, level: int, now: float, *, asleep: bool) -> Transition:
    """Return a fall to `level`, from awake or from where it sleeps."""
    steps = sleep_steps(belief.kind, belief.version, level, asleep=asleep)
    return Transition(wakes=False, began_s=now, steps=steps, level=level, asleep=asleep)
