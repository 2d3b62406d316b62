"""What operators ask for, each answered once: by what came of it, or at once. Values only.

An engine that is silent for longer than any probe may take is an answer, too.
"""

from collections.abc import Set
from typing import NamedTuple

from tornado_frontdoor.core.decisions import Answered, EngineState, Verdict
from tornado_frontdoor.core.wake.observed import EngineEvent, ObservedEngine
from tornado_frontdoor.core.wake.sequence import Transition
from tornado_frontdoor.engines.base import STOPPED

_ASLEEP = (EngineState.SLEEPING, EngineState.OFFLOADED, EngineState.STOPPED)
_BROKEN = (EngineEvent.FAILED, EngineEvent.LOST)

SILENT = "the engine does not answer when asked for its state: some call blocks it, or it is hung"
"""Told when even a probe of the longest limit was not answered: what comes of it is not known."""


class OperatorRequests(NamedTuple):
    """The requests that wait for their answer."""

    wake: bool = False
    sleep: int | None = None
    """The level that is wanted; None: nobody wants it asleep."""

    def after(
        self, event: EngineEvent, state: EngineState, run: Transition | None, why: str
    ) -> tuple["OperatorRequests", tuple[Answered, ...]]:
        """Return what still waits now that `event` has led to `state`, and who is answered."""
        left, answers = self, []
        if self.wake and state is EngineState.AWAKE:
            answers.append(Answered("wake", Verdict.DONE))
        elif self.wake and event in _BROKEN:
            answers.append(Answered("wake", Verdict.FAILED, why))
        if answers:
            left = left._replace(wake=False)
        falling = run is not None and not run.wakes
        if self.sleep is not None and not falling:
            if event in _BROKEN:
                verdict = Verdict.FAILED
            else:
                verdict = Verdict.DONE if state in _ASLEEP else Verdict.BUSY
            told = "" if verdict is Verdict.DONE else why
            answers.append(Answered("sleep", verdict, told, self.sleep))
            left = left._replace(sleep=None)
        return left, tuple(answers)


def sleep_answer(
    level: int,
    state: EngineState,
    engine: ObservedEngine,
    run: Transition | None,
    busy: str,
    levels: Set[int],
) -> Answered | None:
    """Return the answer to a request for sleep that need not be tried; None: it has to be.

    `busy` says what speaks against it from outside, if anything; `levels` are those of its kind.
    """
    other = run is not None and (run.wakes or run.committed) and run.level != level
    if level not in levels or (level != STOPPED and engine.support is False):
        lacks = f"level {level}" if level not in levels else "sleep mode"
        return Answered("sleep", Verdict.UNSUPPORTED, f"the engine has no {lacks}", level)
    if busy:
        return Answered("sleep", Verdict.BUSY, busy, level)
    if other or state in (EngineState.UNKNOWN, EngineState.DOWN):
        return Answered("sleep", Verdict.BUSY, f"the engine is {state.value}", level)
    if state in _ASLEEP and run is None and engine.level >= level:
        return Answered("sleep", Verdict.DONE, "", level)
    if level == 2 and engine.reload_fault is not None:
        return Answered("sleep", Verdict.FAILED, engine.reload_fault, level)
    return None
