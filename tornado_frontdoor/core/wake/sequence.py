"""One transition under way: which step comes next, and what each report means for it.

A value: its methods return the next one, and change nothing.

Rule 1: until a transition is committed nothing was done to the engine, and it can be dropped.
Rule 2: a step that failed is tried once more; a call that timed out never is, as it may yet happen.
        Only a canary is: after a probe, as an engine that was put to sleep out of band holds it in
        silence.
Rule 3: a transition decides nothing about the engine's state; `machine.py` does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NamedTuple

from tornado_frontdoor.core.decisions import SleepDepth, SleepReason, WakeEnded
from tornado_frontdoor.core.wake.known_good import KnownGood
from tornado_frontdoor.core.wake.observed import EngineEvent, ObservedEngine
from tornado_frontdoor.engines.base import (
    CANARY,
    PROBE,
    PROBE_IDLE,
    STOPPED,
    VERIFY_ASLEEP,
    VERIFY_AWAKE,
    EngineKind,
    ProcessCall,
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
    EngineEvent.FOUND_STOPPED: STOPPED,
}


DEPTH_OF: Mapping[int, SleepDepth] = {1: SleepDepth.SLEEPING, STOPPED: SleepDepth.STOPPED}
"""Any other level is one from which weights must be read again."""


def depth_of(engine: ObservedEngine) -> SleepDepth:
    """Return from how deep a wake would have to begin.

    One that was awake when last known, or of which nothing is known yet, has only to show it.
    """
    if engine.level == 0 and engine.trusted:
        return SleepDepth.SLEEPING
    return DEPTH_OF.get(engine.level, SleepDepth.OFFLOADED)


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
    # Awake for a moment, it may have begun what was left inside it out of band.
    again = (PROBE_IDLE,) if any(step.role is Role.WAKE for step in first) else ()
    return (PROBE_IDLE, *first, *again, sleep, VERIFY_ASLEEP)


class NextAction(Enum):
    """How a transition goes on after a report."""

    NEXT = auto()
    """With its next step."""
    ARRIVED = auto()
    """Not at all: what the probe found is where it was going."""
    AGAIN = auto()
    """With the same step, after a second."""
    PUT_OFF = auto()
    """Not now; nothing was done."""
    ELSEWHERE = auto()
    """Not at all: the engine is not where it began. What the probe found counts."""
    GIVE_UP = auto()
    """Not at all: it failed."""


class Judgement(NamedTuple):
    """What a report means for a transition."""

    transition: "Transition"
    action: NextAction
    why: str = ""
    note: str = ""
    """What an operator should read, if anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A sequence that wakes or puts to sleep, and how far it is."""

    wakes: bool
    began_s: float
    steps: tuple[Step, ...]
    depth: SleepDepth | None = None
    """Of a wake: from where it began."""
    found: SleepDepth | None = None
    """Of a wake of one that was down: how deep it sleeps, now that it is back."""
    found_s: float = 0.0
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
    reason: SleepReason = SleepReason.IDLE
    """Of a sleep: why, and who wants it."""
    by: str = ""
    full: bool = False
    """Whether it was given up as a GPU was full."""

    @property
    def step(self) -> Step:
        """The step it is at."""
        return self.steps[self.index]

    @property
    def begins(self) -> bool:
        """Whether its step is the first that does something."""
        return not self.committed and not self.step.probes

    @property
    def moves_memory(self) -> bool:
        """Whether it is more than probes and a canary."""
        return any(step.changes for step in self.steps)

    def fresh(self, kind: EngineKind) -> bool:
        """Tell whether weights are now as the engine itself has loaded them."""
        starts = any(step.call is ProcessCall.START for step in self.steps)
        return kind.loads_afresh or starts or not self.moves_memory

    @property
    def loads_weights(self) -> bool:
        """Whether it loads them, after which awake means something."""
        return any(step.role is Role.LOAD_WEIGHTS for step in self.steps)

    @property
    def must_be_written(self) -> bool:
        """Whether its step may be made only when it has been written down."""
        return self.step.role is Role.SLEEP or (self.begins and self.moves_memory)

    def ended(self, now: float, *, succeeded: bool) -> tuple[WakeEnded, ...]:
        """Return what there is to tell of its end; nothing of a proof alone."""
        if self.depth is None or not (self.moves_memory or self.depth is SleepDepth.RESTARTING):
            return ()
        return (WakeEnded(self.depth, succeeded, now - self.began_s),)

    def advanced(self) -> "Transition | None":
        """Return it at its next step; None: there is none."""
        if self.index + 1 == len(self.steps):
            return None
        return replace(self, index=self.index + 1, tries=0)

    @property
    def from_depth(self) -> SleepDepth | None:
        """From where it wakes, as callers are told."""
        return self.depth if self.found is None else self.found

    @property
    def since_s(self) -> float:
        """Since when it wakes from there."""
        return self.began_s if self.found is None else self.found_s

    def planned(
        self,
        event: EngineEvent,
        engine: ObservedEngine,
        kind: EngineKind,
        now: float,
        *,
        canary: bool,
    ) -> "Transition":
        """Return a wake before its first step, chosen by what its first probe found."""
        level = _LEVEL_FOUND.get(event, 2)
        steps = wake_steps(kind, engine.version, level, canary=canary)
        planned = replace(self, steps=steps, index=-1)
        if not level:
            return planned
        found = DEPTH_OF.get(level, SleepDepth.OFFLOADED)
        if self.depth is SleepDepth.RESTARTING:
            return replace(planned, found=found, found_s=now)
        return replace(planned, depth=found)

    def judge(
        self, report: Report, event: EngineEvent | None, engine: ObservedEngine, kind: EngineKind
    ) -> Judgement:
        """Tell how it goes on after what came of its step, and why.

        `event` is what a probe means. Nothing here is LOST: then there is nothing to judge.
        """
        step, ending = self.step, report.ending
        if event is not None:
            return self._judge_probe(report.seen, event, kind)
        if step.role is Role.CANARY:
            return self._judge_canary(report, engine.proof)
        if ending is StepResult.DONE:
            return Judgement(self, NextAction.NEXT)
        if ending is StepResult.NO_MEMORY:
            full = replace(self, full=True)
            return Judgement(full, NextAction.GIVE_UP, self._describe(report))
        final = step.role in _WAKES and not kind.retries_wakes(engine.version)
        if ending is not StepResult.FAILED or final:
            return Judgement(self, NextAction.GIVE_UP, self._describe(report))
        return self._once_more(report)

    def _judge_canary(self, report: Report, proof: KnownGood) -> Judgement:
        if proof.quarantined:
            return Judgement(self, NextAction.GIVE_UP, proof.detail)
        if report.ending in (StepResult.DONE, StepResult.UNSUPPORTED):
            return Judgement(self, NextAction.NEXT)  # what is not proven is told in its place
        if report.ending is not StepResult.TIMED_OUT:
            return self._once_more(report)
        silences = self.silences + 1
        if silences == CANARIES:
            return Judgement(self, NextAction.GIVE_UP, self._describe(report))
        again = replace(self, silences=silences, steps=(*self.steps, VERIFY_AWAKE, CANARY))
        return Judgement(again, NextAction.NEXT)

    def _judge_probe(self, seen: Seen | None, event: EngineEvent, kind: EngineKind) -> Judgement:
        role, awake = self.step.role, event in _NOT_ASLEEP
        if event is EngineEvent.FOUND_BUSY:
            # No try is lost: it is busy with what it was asked for.
            if self.wakes or self.committed:
                return Judgement(self, NextAction.AGAIN)
            return Judgement(self, NextAction.PUT_OFF, "the engine is busy")
        if role is Role.PROBE_IDLE:
            return self._judge_idleness(seen, awake)
        proven = event is EngineEvent.FOUND_AWAKE or (awake and self.loads_weights)
        if role is Role.PROBE or (role is Role.VERIFY_AWAKE and proven):
            return Judgement(self, NextAction.NEXT)
        if role is Role.VERIFY_AWAKE or awake:
            looks = kind.sleep_looks if role is Role.VERIFY_ASLEEP else 2
            return self._once_more(Report(0, StepResult.FAILED, None, event.name.lower()), looks)
        told = ""
        if seen is not None and seen.level not in (None, self.level):
            told = f"its gauge says level {seen.level} after a sleep at level {self.level}"
        return Judgement(self, NextAction.ARRIVED, note=told)

    def _judge_idleness(self, seen: Seen | None, awake: bool) -> Judgement:
        if awake is (self.asleep and not self.committed):
            return Judgement(self, NextAction.ELSEWHERE, "it was woken or put to sleep out of band")
        if seen is None or seen.running is None or seen.waiting is None:
            # A sleep would cut off whoever is in there; an operator may know better.
            if self.reason is SleepReason.OPERATOR:
                return Judgement(self, NextAction.NEXT)
            why = "its gauges do not tell whether it has work of somebody else"
            return Judgement(self, NextAction.PUT_OFF, why)
        work = seen.running + seen.waiting
        if work == 0:
            return Judgement(self, NextAction.NEXT)
        action = NextAction.GIVE_UP if self.committed else NextAction.PUT_OFF
        return Judgement(self, action, f"it has {work} requests of somebody else")

    def _once_more(self, report: Report, limit: int = 2) -> Judgement:
        tried = replace(self, tries=self.tries + 1)
        if tried.tries < limit:
            return Judgement(tried, NextAction.AGAIN)
        return Judgement(tried, NextAction.GIVE_UP, self._describe(report))

    def _describe(self, report: Report) -> str:
        detail = f": {report.detail}" if report.detail else ""
        return f"{self.step.label} {report.ending.value}{detail}"


def wake_run(depth: SleepDepth, now: float, *, optional: bool = False) -> Transition:
    """Return a wake that probes first; what that finds decides about the rest."""
    return Transition(wakes=True, began_s=now, steps=(PROBE,), depth=depth, optional=optional)


def sleep_run(
    kind: EngineKind,
    engine: ObservedEngine,
    level: int,
    now: float,
    *,
    asleep: bool,
    reason: SleepReason,
    by: str = "",
) -> Transition:
    """Return a fall to `level`, from awake or from where it sleeps."""
    return Transition(
        wakes=False,
        began_s=now,
        steps=sleep_steps(kind, engine.version, level, asleep=asleep),
        level=level,
        asleep=asleep,
        reason=reason,
        by=by,
    )
