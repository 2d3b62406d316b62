"""A model engine with a clock in the test's hand."""

import itertools
import math
from typing import Any

from simulator.standin.engine import (
    ControlAnswer,
    ControlCall,
    EngineModel,
    Kind,
    ModelEvent,
    Times,
)
from simulator.standin.releases import profile_of

RELEASES = ("0.16", "0.23", "0.30", "0.33")
TIMES = Times(sleep_s=(10.0, 1.0), wake_s=(2.0, 5.0), reload_s=20.0, restart_s=60.0)


class Bench:
    """An engine with a clock in the test's hand."""

    def __init__(self, version: str = "0.33", slots: int = 2, times: Times = TIMES) -> None:
        self.engine = EngineModel(slots, profile=profile_of(version), times=times)
        self.now = 0.0
        self.events: list[ModelEvent] = []
        self._numbers = itertools.count()

    def submit(self, job: str, work: float = 4.0, **more: Any) -> None:
        """Let a request come."""
        self.engine.submit(job, work, self.now, **more)
        self.run(0.0)

    def call(self, name: str, **more: Any) -> int:
        """Begin a control call; return its number."""
        number = next(self._numbers)
        self.engine.call(ControlCall(id=number, name=name, **more), self.now)
        self.run(0.0)
        return number

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.events += self.engine.advance(self.now)

    def finish(self, number: int) -> Any:
        """Let time pass until a call is answered; return the answer's value, or the failure."""
        while (answer := self.answer(number)) is None:
            deadline = self.engine.next_deadline()
            assert deadline < math.inf, "the call is never answered"
            self.run(deadline - self.now)
        return answer.value if answer.ok else answer

    def do(self, name: str, **more: Any) -> Any:
        """Make a control call and wait for its answer."""
        return self.finish(self.call(name, **more))

    def answer(self, number: int) -> ControlAnswer | None:
        """Return the answer of a call, if it has come."""
        for event in self.events:
            if event.kind is Kind.ANSWERED and event.key == number:
                assert isinstance(event.value, ControlAnswer)
                return event.value
        return None

    def became(self, job: str) -> list[str]:
        """Return what happened to a sequence, in order; `!` marks garbage."""
        return [
            event.kind.name.lower() + "!" * (event.value is True)
            for event in self.events
            if event.key == job
        ]

    def is_sleeping(self) -> bool:
        """Ask the engine."""
        answer = self.do("is_sleeping")
        assert isinstance(answer, bool)
        return answer


def staged(bench: Bench) -> None:
    """Wake in the staged order."""
    bench.do("wake_up", tags=("weights",))
    bench.do("collective_rpc", method="reload_weights")
    bench.do("wake_up", tags=("kv_cache",))
