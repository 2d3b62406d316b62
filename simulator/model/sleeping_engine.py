"""An engine that can sleep, as the gate's wake machine meets it: calls that take time, and looks.

The wake machine of production decides when to sleep and how to wake; this file only answers it.
Looks and canaries take no time here. What takes time is falling asleep, at either level, and what a
wake is made of: `/wake_up` from level 1, the reload of the weights from level 2. The first request
after a wake is as fast as any, which a real engine's is not.
"""

from collections.abc import Callable

from simulator.model.event_loop import EventLoop, Order
from simulator.model.scenario import Tiers
from tornado_frontdoor.core.decisions import Changed, EngineState, Perform, SleepDepth, WakeEnded
from tornado_frontdoor.engines import vllm
from tornado_frontdoor.engines.base import Report, Seen, Step, StepResult

VERSION = "0.33.0"
"""A release that falls from level 1 to 2 without waking in between."""

_COMPLETION = int(Order.COMPLETION)
_TO_LEVEL = {vllm.SLEEP_1: 1, vllm.SLEEP_1_PLAIN: 1, vllm.SLEEP_2: 2, vllm.SLEEP_2_PLAIN: 2}


class SleepingEngine:
    """Carries out steps and reports them; `running` tells how many requests are in the engine."""

    def __init__(
        self,
        tiers: Tiers,
        loop: EventLoop,
        report: Callable[[Report], None],
        running: Callable[[], int],
    ) -> None:
        self._tiers = tiers
        self._loop = loop
        self._report = report
        self._running = running
        self.level = 0

    def perform(self, asked: Perform) -> None:
        """Begin a step; it is reported when its time is over."""
        at_s = self._loop.time_s + self._takes_s(asked.step)
        self._loop.at(at_s, _COMPLETION, self._done, asked)

    def _takes_s(self, step: Step) -> float:
        if step in _TO_LEVEL:
            return self._tiers.fall_s[_TO_LEVEL[step] - 1]
        if step is vllm.WAKE:
            return self._tiers.wake_s[0] if self.level == 1 else 0.0
        return self._tiers.wake_s[1] if step is vllm.RELOAD else 0.0

    def _done(self, asked: Perform) -> None:
        step = asked.step
        if step in _TO_LEVEL:
            self.level = _TO_LEVEL[step]
        elif step in {vllm.WAKE, vllm.WAKE_KV_CACHE}:
            self.level = 0
        seen = None
        if step.probes:
            asleep = self.level > 0
            seen = Seen(asleep, self.level, self._running(), 0, VERSION, "simulated")
        self._report(Report(asked.number, StepResult.DONE, seen))


class StateTimes:
    """How long engines were in each state, on average, and how often they woke from where."""

    def __init__(self, engines: int = 1) -> None:
        self.wakes: dict[SleepDepth, int] = {}
        self.seconds: dict[EngineState, float] = {}
        self.changes: list[tuple[float, EngineState]] = []
        """When they became what, as a whole: that is as the best of them."""
        self._share = 1 / engines
        self._states: dict[str | None, EngineState] = {}
        self._since_s: dict[str | None, float] = {}
        self._unseen = engines
        """Engines that nobody has told of yet, since the start."""
        self._closed = False

    def became(self, change: Changed, now: float) -> None:
        """Note that they are in another state as a whole."""
        self.changes.append((now, change.state))

    def changed(self, engine: str | None, change: Changed, now: float) -> None:
        """Note that an engine's state is another one."""
        self._unseen -= engine not in self._states
        self._add(engine, now)
        self._states[engine] = change.state

    def woke(self, wake: WakeEnded) -> None:
        """Note the end of a wake."""
        if wake.succeeded and not self._closed:
            self.wakes[wake.depth] = self.wakes.get(wake.depth, 0) + 1

    def close(self, now: float) -> None:
        """Note that what comes later is not measured."""
        for engine in [*self._states]:
            self._add(engine, now)
        if self._unseen and not self._closed:
            self._spend(EngineState.UNKNOWN, self._unseen * now)
        self._closed = True

    def _add(self, engine: str | None, now: float) -> None:
        if not self._closed:
            state = self._states.get(engine, EngineState.UNKNOWN)
            self._spend(state, now - self._since_s.get(engine, 0.0))
            self._since_s[engine] = now

    def _spend(self, state: EngineState, seconds: float) -> None:
        self.seconds[state] = self.seconds.get(state, 0.0) + self._share * seconds
