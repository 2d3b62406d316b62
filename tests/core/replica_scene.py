"""Several engines that sleep, before one gate: a small world in which each law can be judged.

Engines answer by their own memory and clock, and count what they are sent; the scene asks the gate
for nothing but decisions.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import inf
from random import Random

from simulator.model.engine_invariants import EngineWitness
from tornado_frontdoor.core.clock import ManualClock
from tornado_frontdoor.core.decisions import (
    Admit,
    Answered,
    Changed,
    Cooled,
    Decision,
    EngineState,
    FellAsleep,
    JournalEntry,
    OfReplica,
    Outcome,
    Perform,
    Refuse,
    Remember,
    RoomDecided,
)
from tornado_frontdoor.core.gate import AdmissionLimits, SleepConfig, SleepPolicy
from tornado_frontdoor.core.gpu_ledger import GpuLedger
from tornado_frontdoor.core.replica_gate import ReplicaGate
from tornado_frontdoor.core.replicas import Engines
from tornado_frontdoor.core.request import Ticket, TicketState, UpstreamKey
from tornado_frontdoor.engines import vllm
from tornado_frontdoor.engines.base import Report, Seen, Step, StepResult

POLICY = SleepPolicy(
    idle_sleep_s=10.0,
    idle_offload_s=0.0,
    hold_sleeping_s=30.0,
    hold_offloaded_s=180.0,
    hold_restarting_s=300.0,
    retry_after_sleeping_s=10,
    retry_after_offloaded_s=60,
    retry_after_restarting_s=600,
    canary=True,
)
TO_LEVEL = {vllm.SLEEP_1: 1, vllm.SLEEP_1_PLAIN: 1, vllm.SLEEP_2: 2, vllm.SLEEP_2_PLAIN: 2}
TAKES_S = {vllm.WAKE: 2.0, vllm.RELOAD: 20.0, **dict.fromkeys(TO_LEVEL, 1.0)}


def has_room(replicas, weight):
    """Whether one of them can take so many slots now."""
    return any(one.available and one.used + weight <= one.slots for one in replicas)


class Engine:
    """One engine: how deep it sleeps, who is in it, which of its steps are under way."""

    def __init__(self, level: int) -> None:
        self.level = level
        self.dead = False
        self.process = 1
        self.inside = 0
        self.most = 0
        self.busy = 0
        """Calls under way that change its memory."""
        self.steps: list[str] = []
        self.witness = EngineWitness()

    def begin(self, step: Step) -> None:
        """Take a step in."""
        self.steps.append(step.label)
        if not step.changes or self.dead:
            return
        assert not self.busy, "two transitions of one engine at once"
        self.busy += 1
        if step in TO_LEVEL:
            assert not self.inside, "put to sleep while somebody holds a slot"

    def end(self, step: Step, process: int) -> tuple[StepResult, Seen | None]:
        """Be done with a step; returns what is reported of it."""
        if self.dead or process != self.process:
            return StepResult.LOST, None
        self.busy -= step.changes
        if step in TO_LEVEL:
            self.level = TO_LEVEL[step]
        elif step in (vllm.WAKE, vllm.WAKE_KV_CACHE):
            self.level = 0
        if not step.probes:
            return StepResult.DONE, None
        seen = Seen(self.level > 0, self.level, self.inside, 0, "0.33.0", f"process {self.process}")
        return StepResult.DONE, seen

    def changed(self, state: EngineState) -> None:
        """Judge where its machine goes."""
        if state is EngineState.WAKING:
            self.witness.wake_began()
        elif state is EngineState.AWAKE:
            self.witness.wake_ended(proven=True)
        elif state is EngineState.FALLING_ASLEEP:
            self.witness.sleep_began(self.inside)
        else:
            self.witness.lost()

    def die(self) -> None:
        """Be gone, with all that is in it."""
        self.dead, self.busy, self.inside = True, 0, 0

    def come_back(self) -> None:
        """Be there again, as a new process that is awake."""
        self.dead, self.level, self.process = False, 0, self.process + 1


class Scene:
    """A gate, its engines, and time."""

    def __init__(
        self,
        slots: Sequence[int] = (4, 4),
        levels: Sequence[int] = (1, 1),
        *,
        cap: int | None = None,
        queue: int = 40,
        policy: SleepPolicy = POLICY,
        devices: Sequence[tuple[int, ...]] = (),
        pick: str = "least",
        gpus: GpuLedger | None = None,
        memories: Sequence[JournalEntry] = (),
    ) -> None:
        self.clock = ManualClock(0.0)
        self.engines = {name: Engine(level) for name, level in zip("abcdef", levels, strict=False)}
        self.slots = dict(zip("abcdef", slots, strict=False))
        self.cap = sum(slots) - 1 if cap is None else cap
        self.written: dict[str, list[JournalEntry]] = {name: [] for name in self.engines}
        self.fell: list[tuple[str, FellAsleep]] = []
        self.changes: list[tuple[str, EngineState]] = []
        self.answers: list[tuple[str, Answered]] = []
        self.inside: list[Ticket] = []
        self.waiting: list[Ticket] = []
        self.refused: list[Refuse] = []
        self.ends: Counter[str] = Counter()
        self.meddled: set[str] = set()
        self.slow = 1.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        gpus = gpus or GpuLedger()
        naps = {}
        for index, name in enumerate(self.engines):
            own = policy
            if devices:
                own = replace(policy, devices=devices[index])
            memory = memories[index] if memories else None
            naps[name] = SleepConfig(limits=own, kind=vllm.KIND, gpus=gpus, memory=memory)
        limits = AdmissionLimits(cap=self.cap, queue=queue, queue_timeout_s=60.0)
        engines = Engines(self.slots, pick)  # type: ignore[arg-type]
        self.gate = ReplicaGate(UpstreamKey("up"), limits, self.clock, Random(1), engines, naps)
        self.take(self.gate.expire())

    # What can happen

    def come(self, weight: int = 1, affinity: bytes | None = None) -> Ticket:
        """Bring a request."""
        ticket = Ticket(weight)
        ticket.affinity = affinity
        self.waiting.append(ticket)
        self.take(self.gate.arrive(ticket))
        return ticket

    def end(self, ticket: Ticket, outcome: Outcome = Outcome.SERVED) -> None:
        """End a request, wherever it is."""
        if ticket in self.inside:
            self.inside.remove(ticket)
            engine = self.engines[ticket.replica or ""]
            engine.inside = max(0, engine.inside - ticket.weight)
        elif ticket in self.waiting:
            self.waiting.remove(ticket)
        self.ends[outcome.label] += 1
        self.take(self.gate.finish(ticket, outcome))

    def pass_time(self, seconds: float) -> None:
        """Let time go by, with all that is due in it."""
        until_s = self.clock.now() + seconds
        for _ in range(10_000):
            deadline_s = self.gate.next_deadline()
            due_s = min(inf if deadline_s is None else deadline_s, self._next_s())
            if due_s > until_s:
                self.clock.set(until_s)
                return
            self.clock.set(max(due_s, self.clock.now()))
            if self._heap and self._heap[0][0] <= self.clock.now():
                heappop(self._heap)[2]()
            else:
                self.take(self.gate.expire())
        raise AssertionError("it never comes to rest")

    def kill(self, name: str) -> None:
        """Have an engine die; those in it are told."""
        self.engines[name].die()
        for ticket in [one for one in self.inside if one.replica == name]:
            self.end(ticket, Outcome.UPSTREAM_ERROR)
        self.take(self.gate.lost("", name))

    def meddle(self, name: str, level: int) -> None:
        """Have somebody else put an engine to sleep, or wake it; the gate finds it by itself."""
        engine = self.engines[name]
        if level and engine.level == 0:
            engine.level = level
            self.meddled.add(name)

    # What comes of it

    def take(self, decisions: Sequence[Decision]) -> None:
        """Carry out what was decided, and judge it."""
        for decision in decisions:
            match decision:
                case Admit(ticket=ticket):
                    self._admitted(ticket)
                case Refuse(ticket=ticket):
                    self.waiting.remove(ticket)
                    self.refused.append(decision)
                case OfReplica(replica=name, what=what):
                    self._carry_out(name, what)
                case Changed(state=state):
                    self.changes.append(("", state))
                case Cooled() | RoomDecided():
                    pass
                case _:
                    raise AssertionError(f"{decision} is of no replica")
        self.judge()

    def judge(self) -> None:
        """Hold what is now against the laws."""
        gate, now = self.gate, self.clock.now()
        assert gate.in_flight == sum(one.weight for one in self.inside) <= self.cap
        assert gate.queued == len(self.waiting)
        taken = Counter[str]()
        for ticket in self.inside:
            taken[ticket.replica or ""] += ticket.weight
        for replica in gate.replicas:
            assert replica.used == taken[replica.name] <= self.slots[replica.name]
        deadline_s = gate.next_deadline()
        head = next(iter(self.waiting), None)
        if head is not None and (deadline_s is None or deadline_s > now):
            assert not has_room(gate.replicas, head.weight) or (
                gate.in_flight + gate.cooling + head.weight > self.cap
            ), "waits beside a free slot"

    def state(self, name: str) -> EngineState:
        """Return what the gate knows of an engine."""
        return self.gate.sleeper(name).state

    def states(self) -> str:
        """Return the states of all, in order."""
        return " ".join(self.state(name).value for name in self.engines)

    def _admitted(self, ticket: Ticket) -> None:
        self.waiting.remove(ticket)
        self.inside.append(ticket)
        assert ticket.state is TicketState.IN_FLIGHT
        engine = self.engines[ticket.replica or ""]
        engine.witness.saw_request()
        if engine.dead:
            return  # nobody knows yet
        asleep = engine.level > 0 and (ticket.replica or "") not in self.meddled
        assert not asleep, "a request went to an engine that sleeps"
        engine.inside += ticket.weight
        engine.most = max(engine.most, engine.inside)

    def _carry_out(self, name: str, what: object) -> None:
        engine = self.engines[name]
        match what:
            case Perform():
                engine.begin(what.step)
                process = engine.process
                takes_s = 0.0 if engine.dead else self.slow * TAKES_S.get(what.step, 0.1)

                def done() -> None:
                    ending, seen = engine.end(what.step, process)
                    self.take(self.gate.report(Report(what.number, ending, seen), name))

                self._at(takes_s, done)
            case Remember():
                self.written[name].append(what.memory)
                if what.number:
                    report = Report(what.number, StepResult.DONE)
                    self._at(0.0, lambda: self.take(self.gate.report(report, name)))
            case Changed():
                self.changes.append((name, what.state))
                engine.changed(what.state)
            case FellAsleep():
                self.fell.append((name, what))
            case Answered():
                self.answers.append((name, what))
            case _:
                pass

    def _at(self, in_s: float, what: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._heap, (self.clock.now() + in_s, self._count, what))

    def _next_s(self) -> float:
        return self._heap[0][0] if self._heap else inf
