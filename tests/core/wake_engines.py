"""A model engine as the wake machine's driver sees it: steps go in, reports come out.

The engine is `simulator.standin.engine`: it is unkind where vLLM is. Between it and the gate lies a
network with delays, and faults befall calls by chance: an error, a silent no-op, a slow or a hung
call, a connection that is cut although the call goes on, a death in the middle.
"""

from collections.abc import Callable
from math import inf
from random import Random
from typing import Any, NamedTuple

from simulator.standin.engine import EngineModel
from simulator.standin.engine_values import ControlAnswer, ControlCall, Kind, ModelEvent, Times
from simulator.standin.releases import profile_of
from tornado_frontdoor.core.decisions import Perform
from tornado_frontdoor.engines import vllm
from tornado_frontdoor.engines.base import CANARY, ProcessCall, Report, Role, Seen, Step, StepResult

VERSIONS = ("0.16", "0.22", "0.24", "0.27", "0.30", "0.31", "0.33")
LEVELS = {"awake": 0, "weights_offloaded": 1, "discard_all": 2}

CALLS: dict[Step, dict[str, Any]] = {
    vllm.SLEEP_1: {"name": "sleep", "level": 1},
    vllm.SLEEP_2: {"name": "sleep", "level": 2},
    vllm.SLEEP_1_PLAIN: {"name": "sleep", "level": 1},
    vllm.SLEEP_2_PLAIN: {"name": "sleep", "level": 2},
    vllm.WAKE: {"name": "wake_up"},
    vllm.WAKE_WEIGHTS: {"name": "wake_up", "tags": ("weights",)},
    vllm.WAKE_KV_CACHE: {"name": "wake_up", "tags": ("kv_cache",)},
    vllm.RELOAD: {"name": "collective_rpc"},
    vllm.RESET_PREFIXES: {"name": "reset_prefix_cache"},
}
WAKE_BY_START = Step(Role.WAKE, "start", 600.0, ProcessCall.START)
CHANGES_MEMORY = {*CALLS} - {vllm.RESET_PREFIXES}


Id = tuple[int, int]
"""A step's number, after the number of the front door's life in which it was sent."""


class Manners(NamedTuple):
    """How an engine and the way to it behave."""

    version: str = "0.33"
    delay_s: float = 0.01
    fault: float = 0.0
    """Chance that something befalls a step."""
    tells_process: bool = True
    tells_level: bool = True
    supports_sleep: bool = True
    shows_work: bool = True
    stoppable: bool = False
    """Whether its process can be started and stopped."""
    times: Times = Times(sleep_s=(4.0, 0.5), wake_s=(2.0, 3.0), reload_s=20.0, restart_s=60.0)


class Doorstep:
    """One engine and the network before it. `at` schedules; `tell` takes reports."""

    def __init__(
        self,
        manners: Manners,
        rng: Random,
        at: Callable[[float, Callable[[], None]], None],
        tell: Callable[[Report], None],
        ended: Callable[[Any, StepResult, bool], None],
    ) -> None:
        self.manners = manners
        self.engine = EngineModel(4, profile=profile_of(manners.version), times=manners.times)
        self.steps: list[str] = []
        """What reached the engine, in order, for tests to look at."""
        self.rule: Callable[[Step], str] | None = None
        """What is to befall a step, in place of chance."""
        self.transitions: dict[Id, Step] = {}
        """Calls in the engine that change its memory, whether anybody waits for them or not."""
        self._rng = rng
        self._at = at
        self._tell = tell
        self._ended = ended
        self._asked: dict[Id, Step] = {}
        self._lives = 0
        self._events: list[ModelEvent] = []

    def perform(self, order: Perform, now: float) -> None:
        """Send a step on its way."""
        life = self._lives
        self._at(now + self._delay(), lambda: self._arrive((life, order.number), order.step))

    def forget(self) -> None:
        """The front door is gone: nobody waits for an answer, what was sent goes on."""
        self.collect()
        self._asked.clear()
        self._lives += 1
        for job in [job for job in self.engine.replica.jobs() if job[0] != "foreign"]:
            self.engine.abort(job, self.now)
            self.collect()

    def _delay(self) -> float:
        return self.manners.delay_s * self._rng.choice((0, 1, 1, 2))

    def _fault(self, step: Step) -> str:
        if self.rule is not None:
            return self.rule(step)
        if self._rng.random() >= self.manners.fault:
            return ""
        faults = ("fails", "noop", "slow", "hang", "die", "die_after", "cut")
        fault = self._rng.choice(faults)
        # What nobody could notice does not befall: a look that is cut while the engine lives (it
        # is not told apart from a death), weights that are said to be loaded and are not.
        hidden = (fault == "cut" and step.probes) or (fault == "noop" and step is vllm.RELOAD)
        return "" if hidden else fault

    now = 0.0

    def _arrive(self, key: Id, step: Step) -> None:
        self.collect()
        self.steps.append(step.label)
        self._asked[key] = step
        if step.call is ProcessCall.START:
            self._start(key)
            return
        if self.engine.dead:
            self._answer(key, StepResult.LOST)
            return
        if step.call is ProcessCall.STOP:
            self._answer(key, StepResult.DONE)
            self.engine.kill(self.now, restart_s=inf)
            return
        fault = self._fault(step)
        if fault == "cut":
            self._answer(key, StepResult.LOST)
        if step is CANARY:
            self._canary(key, fault)
        elif step.probes and not self.manners.supports_sleep:
            self._answer(key, StepResult.UNSUPPORTED)
        else:
            self._control(key, step, fault)

    def _start(self, key: Id) -> None:
        """Start its process; it is ready after its restart time, unless it dies again."""
        engine, ready_s = self.engine, self.now
        gone = engine.dead and engine.next_deadline() == inf
        if gone and self._rng.random() < self.manners.fault:
            self._answer(key, StepResult.FAILED, detail="it cannot be started")
            return
        if engine.dead:
            ready_s = min(engine.next_deadline(), self.now + self.manners.times.restart_s)
            engine.restart_at(ready_s)
            self.transitions[key] = WAKE_BY_START

        def ready() -> None:
            self.collect()
            self.transitions.pop(key, None)
            dead = engine.dead
            self._answer(key, StepResult.FAILED if dead else StepResult.DONE)

        self._at(ready_s, ready)

    def _control(self, key: Id, step: Step, fault: str) -> None:
        if step in CHANGES_MEMORY:
            self.transitions[key] = step
        call = ControlCall(
            id=("step", key),
            slow_s={"slow": self._rng.choice((3.0, 30.0)), "hang": inf}.get(fault, 0.0),
            fails=fault == "fails",
            noop=fault == "noop",
            die={"die": "before", "die_after": "after"}.get(fault, ""),  # type: ignore[arg-type]
            **({"name": "is_sleeping"} if step.probes else CALLS[step]),
        )
        self.engine.call(call, self.now)

    def _canary(self, key: Id, fault: str) -> None:
        if fault in ("die", "die_after"):
            self.engine.kill(self.now)
        elif fault == "fails":
            self._answer(key, StepResult.FAILED, detail="500")
        elif fault == "unsupported":
            self._answer(key, StepResult.UNSUPPORTED)
        elif fault != "noop":  # that one is never answered
            work = {"slow": 5.0, "hang": 10**6}.get(fault, 0.5)
            self.engine.submit(("canary", key), work, self.now)

    def _answer(
        self, key: Id, ending: StepResult, seen: Seen | None = None, detail: str = ""
    ) -> None:
        """Send what came of a step back, unless that was told already or nobody is there."""
        if self._asked.pop(key, None) is None:
            return
        report = Report(key[1], ending, seen, detail)

        def arrive() -> None:
            if key[0] == self._lives:
                self._tell(report)

        self._at(self.now + self._delay(), arrive)

    def collect(self) -> None:
        """Let the engine come to this instant; what happened is told by `take_events`."""
        self._events += self.engine.advance(self.now)

    def take_events(self) -> list[ModelEvent]:
        """Return what happened since this was last asked."""
        self.collect()
        events, self._events = self._events, []
        return events

    def happened(self, event: ModelEvent) -> None:
        """Make reports and ends of what the engine did."""
        key: Any = event.key
        if event.kind is Kind.DIED:
            self.transitions.clear()
            for asked in [*self._asked]:
                self._answer(asked, StepResult.LOST)
        elif event.kind is Kind.ANSWERED and key[0] == "step":
            assert isinstance(event.value, ControlAnswer)
            self.transitions.pop(key[1], None)
            self._answered(key[1], event.value)
        elif event.kind in (Kind.FINISHED, Kind.ABORTED):
            ending = StepResult.DONE if event.kind is Kind.FINISHED else StepResult.FAILED
            if key[0] == "canary":
                self._answer(key[1], ending)
            self._ended(key, ending, bool(event.value))

    def _answered(self, key: Id, answer: ControlAnswer) -> None:
        step = self._asked.get(key)
        if step is None:
            return
        if answer.value in ("the engine is dead", "the engine died"):
            self._answer(key, StepResult.LOST)
        elif not answer.ok:
            self._answer(key, StepResult.FAILED, detail="500")
        elif step.probes:
            self._answer(key, StepResult.DONE, self._seen(bool(answer.value)))
        elif step is vllm.RESET_PREFIXES and not answer.value:
            told = self.engine.profile.reset_tells_success
            self._answer(key, StepResult.FAILED if told else StepResult.DONE)
        else:
            self._answer(key, StepResult.DONE)

    def _seen(self, sleeping: bool) -> Seen:
        level = None
        if self.manners.tells_level and self.engine.profile.gauge:
            shown = [name for name, value in self.engine.memory.gauge.items() if value]
            level = LEVELS[shown[0]] if shown else None
        load = self.engine.reported_load if self.manners.shows_work else (None, None)
        process = str(self.engine.deaths) if self.manners.tells_process else None
        return Seen(sleeping, level, *load, self.engine.profile.version, process)
