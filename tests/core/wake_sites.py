"""One upstream of a simulated world: a gate, its engine, its driver, and witnesses of all three.

A site does what a driver does with what the gate decides, and judges it while it does so:

- the laws, by the witnesses of `simulator.model.invariants`;
- no caller is sent to an engine that would not answer it, or answer it with garbage (what other
  hands do between two looks excepted);
- no transition on a GPU while another engine's transition is under way there;
- `expire` at `next_deadline` leaves nothing for that instant.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

from wake_engines import Doorstep, Manners

from simulator.model.engine_invariants import EngineWitness
from simulator.model.invariants import QueueWitness
from simulator.standin.engine import Scheduler
from tornado_frontdoor.core.clock import ManualClock
from tornado_frontdoor.core.decisions import (
    Admit,
    Answered,
    Changed,
    Decision,
    EngineState,
    JournalEntry,
    Outcome,
    Perform,
    Refuse,
    Remember,
    RoomDecided,
    SleepReason,
    WakeEnded,
)
from tornado_frontdoor.core.gate import AdmissionLimits, Gate, SleepConfig, SleepPolicy
from tornado_frontdoor.core.gpu_ledger import GpuLedger
from tornado_frontdoor.core.request import Ticket, TicketState, UpstreamKey, WakeTerms
from tornado_frontdoor.engines import vllm
from tornado_frontdoor.engines.base import CANARY, EngineKind, Report, Role, Step, StepResult
from tornado_frontdoor.engines.process import Stoppable


class Surroundings(Protocol):
    """What a site needs of its world."""

    rng: Random
    clock: ManualClock
    gpus: GpuLedger
    lives: int
    trace: list[str]
    sites: "list[Site]"

    @property
    def now(self) -> float:
        """The instant."""
        ...

    def at(self, at_s: float, what: Callable[[], None]) -> None:
        """Let something happen then."""
        ...


class Caller(Ticket):
    """A ticket, and how long its request holds a slot of the engine."""

    def __init__(self, hold_s: float) -> None:
        super().__init__()
        self.hold_s = hold_s


class Site:
    """One upstream: its engine, its gate, and everyone who is inside."""

    def __init__(
        self,
        world: Surroundings,
        key: str,
        limits: AdmissionLimits,
        wake_limits: SleepPolicy,
        manners: Manners,
    ) -> None:
        self.world = world
        self.key = UpstreamKey(key)
        self.limits = limits
        self.wake_limits = wake_limits
        self.door = Doorstep(manners, world.rng, world.at, self.report, self.transfer_ended)
        self.kind: EngineKind = vllm.KIND
        if manners.stoppable:
            self.kind = Stoppable(vllm.KIND, 600.0, 30.0)
        self.memory: JournalEntry | None = None
        self.learned_s: dict[str, float] = {}
        self.inside: dict[int, Caller] = {}
        self.disk_full = False
        self.meddled = False
        """Another hand did something: what is true may differ from what can be known."""
        self.decisions: list[Decision] = []
        self.ends: Counter[str] = Counter()
        self.states: Counter[EngineState] = Counter()
        self.open()

    def open(self) -> None:
        """A front door starts, with what an earlier one left."""
        nap = SleepConfig(
            kind=self.kind,
            limits=self.wake_limits,
            gpus=self.world.gpus,
            memory=self.memory,
            learned_s=self.learned_s,
        )
        self.gate = Gate(self.key, self.limits, self.world.clock, Random(1), nap)
        limits = self.limits
        self.line = QueueWitness(limits.cap, limits.queue, limits.queue_timeout_s, tolerance_s=1e-6)
        self.engine = EngineWitness()
        self._spy(self.gate)

    def _spy(self, gate: Gate) -> None:
        """Hear of pauses and resumes, which are between the gate's two machines.

        Decisions are told at the end of a call; a pause counts after those that came before it.
        """
        line = gate._admission
        pause, resume = line.pause, line.resume
        self.line.paused(self.world.now, gate._hold_s)
        self._pause_s: float | None = None

        def spy_pause(limit_s: float, now: float) -> Any:
            self._pause_s = limit_s
            return pause(limit_s, now)

        def spy_resume(now: float) -> Any:
            if line.paused and self._pause_s is None:
                self.line.resumed(now)
            self._pause_s = None
            return resume(now)

        line.pause = spy_pause  # type: ignore[method-assign]
        line.resume = spy_resume  # type: ignore[method-assign]

    # What a driver does

    def arrive(self, hold_s: float, terms: WakeTerms | None = None) -> None:
        caller = Caller(hold_s)
        caller.terms = terms
        self.call(lambda: self.gate.arrive(caller), arrives=caller)

    def finish(self, ticket: Ticket, outcome: Outcome) -> None:
        self.inside.pop(ticket.number)
        self.ends[outcome.label] += 1
        self.line.ended(self.world.now, ticket.number, outcome)
        self.call(lambda: self.gate.finish(ticket, outcome))

    def report(self, report: Report) -> None:
        self.call(lambda: self.gate.report(report))

    def expire(self) -> None:
        self.call(self.gate.expire)
        deadline_s = self.gate.next_deadline()
        assert deadline_s is None or deadline_s > self.world.now, "it leaves nothing for now"

    def leave(self, ticket: Ticket) -> None:
        """A client goes away, wherever it is."""
        if ticket.number in self.inside:
            flying = ticket.state is TicketState.IN_FLIGHT
            if flying:
                self.door.collect()
                self.door.engine.abort(self._job(ticket), self.world.now)
            gone = Outcome.CLIENT_GONE_STREAMING if flying else Outcome.CLIENT_GONE_QUEUED
            self.finish(ticket, gone)

    def transfer_ended(self, job: Any, ending: StepResult, garbage: bool) -> None:
        """The engine is done with a request."""
        if not self.meddled:
            assert not garbage, f"{job[0]} got garbage"
        if job[0] != "ticket" or job[1] != self.world.lives or job[2] not in self.inside:
            return
        ticket = self.inside[job[2]]
        if not self.meddled:
            assert ending is StepResult.DONE, "the engine was put to sleep with a caller inside"
        served = ending is StepResult.DONE
        self.finish(ticket, Outcome.SERVED if served else Outcome.UPSTREAM_ERROR)

    def engine_died(self) -> None:
        """All transfers are cut."""
        for ticket in [*self.inside.values()]:
            if ticket.state is TicketState.IN_FLIGHT:
                self.finish(ticket, Outcome.UPSTREAM_ERROR)

    def call(self, call: Callable[[], Sequence[Decision]], arrives: Caller | None = None) -> None:
        now = self.world.now
        if arrives is not None:
            self.line.arrived(now, self.gate._admission._arrivals + 1, 1)
        decisions = call()
        if arrives is not None:
            self.inside[arrives.number] = arrives
        self.world.trace.append(f"{now:.6f} {self.key} {[*map(_word, decisions)]}")
        self.line.decided(now, decisions)
        if self._pause_s is not None:
            self.line.paused(now, self._pause_s)
            self._pause_s = None
        self.line.settled(now)
        self.line.agree(self.gate.in_flight, self.gate.queued)
        held = self.gate._admission.paused
        closed = self.gate.state is not EngineState.AWAKE or self.gate.makes_room
        closed |= self.gate.standing.asleep is not None
        assert held is closed, "capacity 0 unless awake, and for us"
        self.decisions += decisions
        for decision in decisions:
            self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        now = self.world.now
        match decision:
            case Admit(ticket=Caller() as caller):
                assert self.gate.standing.asleep is None, "let in to one that is to sleep"
                self._start(caller)
            case Refuse(ticket=ticket):
                del self.inside[ticket.number]
                self.ends[decision.refusal.reason.value] += 1
            case Perform(step=step):
                self._watch(step)
                self.door.perform(decision, now)
            case Remember(memory=memory, number=number):
                self._write_down(memory, number)
            case Changed(state=state):
                self._changed(state)
            case RoomDecided(owner=owner):
                other = next(site for site in self.world.sites if site.key == owner)
                self.world.at(now, lambda: other.call(other.gate.hear_ledger))
            case Answered():
                self.ends[f"{decision.request} {decision.verdict.value}"] += 1
            case WakeEnded():
                assert decision.took_s >= 0

    def _write_down(self, memory: JournalEntry, number: int) -> None:
        """Have it on the disk at once, or not at all, and tell so on a turn of its own."""
        full = self.disk_full or self.world.rng.random() < self.door.manners.fault
        if not full:
            self.memory = memory
            self.learned_s = self.gate.learned_s
        ending = StepResult.FAILED if full else StepResult.DONE
        life = self.world.lives

        def written() -> None:
            if number and life == self.world.lives:
                self.report(Report(number, ending, detail="the disk is full" if full else ""))

        self.world.at(self.world.now, written)

    def _start(self, ticket: Caller) -> None:
        self.line.engine_saw(ticket.number)
        engine = self.door.engine
        self.door.collect()
        if engine.dead:
            # Nobody listens: the gate hears of it first, then the request comes back as a new one.
            self.call(self.gate.lost)
            self.finish(ticket, Outcome.UPSTREAM_ERROR)
            self.world.at(self.world.now, lambda: self.arrive(ticket.hold_s))
            return
        self.engine.saw_request()
        if not self.meddled:
            asleep = engine.memory.asleep or engine.scheduler is not Scheduler.RUNNING
            assert not asleep, "a request meets an engine that would not answer it"
            assert not engine.memory.garbage, "a request meets an engine full of garbage"
            assert not self.door.transitions, "a request meets a transition"
        engine.submit(self._job(ticket), ticket.hold_s, self.world.now)

    def _job(self, ticket: Ticket) -> tuple[Any, ...]:
        return ("ticket", self.world.lives, ticket.number)

    def _watch(self, step: Step) -> None:
        """See that no two transitions meet on one GPU, and that nobody is inside a falling one."""
        if step.probes or step is CANARY:
            return
        wake = self.gate._wake
        assert wake is not None
        run = wake.transition
        if step.role is Role.SLEEP and run is not None and not run.asleep:
            operator = run.reason is SleepReason.OPERATOR
            assert operator or not wake.pinned, "a pinned engine is put to sleep"
        if step.role is Role.SLEEP:
            waiting = 0 if self.gate.makes_room else self.gate.queued
            self.engine.sleep_began(self.gate.in_flight + waiting)
        for other in self.world.sites:
            shared = set(other.wake_limits.devices) & set(self.wake_limits.devices)
            if other is not self and shared:
                assert not other.door.transitions, f"{other.key} is under way on GPU {shared}"

    def _changed(self, state: EngineState) -> None:
        self.states[state] += 1
        if state is EngineState.WAKING:
            self.engine.wake_began()
        elif state is EngineState.AWAKE:
            self.engine.wake_ended(proven=True)
        else:
            self.engine.lost()


def _word(decision: Decision) -> str:
    match decision:
        case Admit(ticket=ticket):
            return f"admit {ticket.number}"
        case Refuse(ticket=ticket, refusal=refusal):
            return f"{refusal.reason.value} {ticket.number}"
        case Perform(number=number, step=step):
            return f"{step.label}#{number}"
        case Changed(state=state):
            return state.value.upper()
        case _:
            return str(decision)
