"""Any engine whose process is started and stopped: asleep is not running, and takes no memory.

So are slept engines that have no sleep mode (llama.cpp, Ollama, TGI), and those that have one when
it is not deep enough: `Stoppable` adds level 3 to any kind.

Rule 1: whoever answers nobody is stopped, not down: it can be started.
Rule 2: a plain `process` does not tell how many requests it runs. Nobody but the front door may use
        it, or is cut off by its idle tier.
"""

from collections.abc import Sequence

from tornado_frontdoor.engines.base import (
    STOPPED,
    Answer,
    Call,
    EngineKind,
    ProcessCall,
    Role,
    Sample,
    Seen,
    Step,
    StepResult,
)

READY_PATH = "/health"


class Process(EngineKind):
    """An engine of which is known only where it says that it is ready."""

    name = "process"
    levels = frozenset[int]()

    def __init__(self, ready_path: str = READY_PATH) -> None:
        self.state = Call("GET", ready_path)

    def at(self, ready_path: str) -> EngineKind:
        """Return the kind for an engine that is ready when that path answers 200."""
        return Process(ready_path)

    def read_state(
        self, state: bytes, beside: Sequence[bytes], samples: Sequence[Sample]
    ) -> Seen | str:
        """Take an answer for awake, and for idle: see rule 2."""
        return Seen(sleeping=False, level=0, running=0, waiting=0)

    def wake_steps(self, version: str | None, level: int) -> tuple[Step, ...]:
        """Return no step: it only starts and stops."""
        return ()

    def sleep_steps(self, version: str | None, level: int, *, asleep: bool) -> tuple[Step, ...]:
        """Return no step: it only starts and stops."""
        return ()


class Stoppable(EngineKind):
    """A kind whose engines can be stopped and started, too."""

    stops = True

    def __init__(self, kind: EngineKind, start_timeout_s: float, stop_timeout_s: float) -> None:
        self._kind = kind
        self.name = kind.name
        self.state = kind.state
        self.beside = kind.beside
        self.metrics = kind.metrics
        self.gauges = kind.gauges
        self.sleep_looks = kind.sleep_looks
        self.loads_afresh = kind.loads_afresh
        self.levels = kind.levels | {STOPPED}
        self._start = Step(Role.WAKE, "start", start_timeout_s, ProcessCall.START)
        self._stop = Step(Role.SLEEP, "stop", stop_timeout_s, ProcessCall.STOP)

    def read_state(
        self, state: bytes, beside: Sequence[bytes], samples: Sequence[Sample]
    ) -> Seen | str:
        """Read it as the kind does."""
        return self._kind.read_state(state, beside, samples)

    def result(self, step: Step, answer: Answer) -> StepResult:
        """Judge it as the kind does; while it starts, an engine may well answer 503."""
        if step.probes and answer.status == 503:
            return StepResult.TIMED_OUT
        return self._kind.result(step, answer)

    def wake_steps(self, version: str | None, level: int) -> tuple[Step, ...]:
        """Return how to start it, or how the kind wakes it."""
        return (self._start,) if level == STOPPED else self._kind.wake_steps(version, level)

    def sleep_steps(self, version: str | None, level: int, *, asleep: bool) -> tuple[Step, ...]:
        """Return how to stop it, or how the kind puts it to sleep."""
        if level == STOPPED:
            return (self._stop,)
        return self._kind.sleep_steps(version, level, asleep=asleep)

    def tells_it_sleeps(self, answer: Answer) -> bool:
        """Tell what the kind tells."""
        return self._kind.tells_it_sleeps(answer)

    def retries_wakes(self, version: str | None) -> bool:
        """Tell what the kind tells."""
        return self._kind.retries_wakes(version)

    def sleeps_half_awake(self, version: str | None) -> bool:
        """Tell what the kind tells."""
        return self._kind.sleeps_half_awake(version)

    def canary(self, path: str, model: str) -> Call:
        """Ask as the kind does."""
        return self._kind.canary(path, model)


KIND = Process()
