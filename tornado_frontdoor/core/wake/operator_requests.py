"""What operators ask for, each wish answered once: by what came of it, or at once."""

from tornado_frontdoor.core.decisions import Answered, EngineState, Verdict
from tornado_frontdoor.core.wake.control_runner import ControlRunner
from tornado_frontdoor.core.wake.observed import EngineEvent, ObservedEngine

_ASLEEP = (EngineState.SLEEPING, EngineState.OFFLOADED)
_BROKEN = (EngineEvent.FAILED, EngineEvent.LOST)


class OperatorRequests:
    """The wishes that wait for their answer: to wake, and to sleep at a level."""

    def __init__(self, calls: ControlRunner, *, wake: bool) -> None:
        self._calls = calls
        self.wake = wake
        self.sleep: int | None = None

    def answer_wake(self, verdict: Verdict, why: str = "") -> None:
        """Answer who wants it awake, if anyone does."""
        if self.wake:
            self.wake = False
            self._calls.orders.append(Answered("wake", verdict, why))

    def answer_sleep(self, verdict: Verdict, why: str = "") -> None:
        """Answer who wants it asleep, if anyone does."""
        if self.sleep is not None:
            self.sleep = None
            self._calls.orders.append(Answered("sleep", verdict, why))

    def hear(self, event: EngineEvent, state: EngineState) -> None:
        """Answer what is decided now that `event` has led to `state`."""
        if state is EngineState.AWAKE:
            self.answer_wake(Verdict.DONE)
        elif event in _BROKEN:
            self.answer_wake(Verdict.FAILED, self._calls.why)
        run = self._calls.run
        if run is not None and not run.wakes:
            return  # it is still on its way to sleep
        if event in _BROKEN:
            self.answer_sleep(Verdict.FAILED, self._calls.why)
        elif state in _ASLEEP:
            self.answer_sleep(Verdict.DONE)
        else:
            self.answer_sleep(Verdict.BUSY, self._calls.why)

    def may_sleep(self, level: int, state: EngineState, belief: ObservedEngine, busy: str) -> bool:
        """Take a wish for sleep and tell whether it has to be tried; if not, answer it at once.

        `busy` says what speaks against it from outside, if anything.
        """
        run = self._calls.run
        under_way = run is not None and (run.wakes or run.committed) and run.level != level
        if belief.support is False:
            answer = Answered("sleep", Verdict.UNSUPPORTED, "the engine has no sleep mode")
        elif busy:
            answer = Answered("sleep", Verdict.BUSY, busy)
        elif under_way or state in (EngineState.UNKNOWN, EngineState.DOWN):
            answer = Answered("sleep", Verdict.BUSY, f"the engine is {state.value}")
        elif state in _ASLEEP and run is None and belief.level >= level:
            answer = Answered("sleep", Verdict.DONE)
        elif level == 2 and belief.reload_fault is not None:
            answer = Answered("sleep", Verdict.FAILED, belief.reload_fault)
        else:
            self.sleep = level
            return True
        # An earlier wish that is under way is not answered by this.
        self._calls.orders.append(answer)
        return False
