"""Several engines on the same GPUs: one ledger, a gate and a wake machine for each, as in serving.

Rule 1: nothing is decided here. Gates are driven as the proxy's gate driver does it, on a clock of
        simulated time, and engines answer the steps that their kinds ask for.
Rule 2: looks, canaries and the journal take no time. Falling asleep and waking take what the world
        says, by level; a request runs at a speed that falls with those beside it.
Rule 3: who is refused does not come back. Shares served are so those of first tries.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any, NamedTuple

from simulator.engine_model.kv_memory import PagedReplica
from simulator.engine_model.replica import What
from simulator.model.replicas import Work, chances_of, new_replica, start_in_detail
from simulator.traffic.service_profiles import ServiceProfile
from simulator.traffic.streams import Streams
from tornado_frontdoor.core.clock import ManualClock
from tornado_frontdoor.core.decisions import (
    Admit,
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
    WakeEnded,
)
from tornado_frontdoor.core.gate import AdmissionLimits, Gate, SleepConfig, SleepPolicy
from tornado_frontdoor.core.gpu_ledger import GpuLedger
from tornado_frontdoor.core.gpu_occupant import RoomLimits
from tornado_frontdoor.core.replica_gate import ReplicaGate
from tornado_frontdoor.core.replicas import Engines
from tornado_frontdoor.core.request import Ticket, UpstreamKey
from tornado_frontdoor.engines.base import (
    STOPPED,
    EngineKind,
    ProcessCall,
    Report,
    Role,
    Seen,
    Step,
    StepResult,
)

_COMPLETION, _EXPIRY, _ARRIVAL = 0, 2, 3
_UNBOUNDED = 512
"""Slots of an engine without a cap."""
VERSION = "0.33.0"


class WorldReplica(NamedTuple):
    """One of several engines behind an upstream."""

    name: str
    slots: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldModel:
    """One upstream, and what comes to it. Triples are by level: 1, 2, stopped."""

    key: str
    limits: AdmissionLimits
    policy: SleepPolicy
    kind: EngineKind
    arrivals_s: Sequence[float]
    service_s: Sequence[float]
    """How long each takes alone; with a `profile`, its tokens."""
    prompts: Sequence[float] = ()
    """Tokens, with a `profile`."""
    profile: ServiceProfile | None = None
    slots: int | None = None
    slowdown: float = 0.0
    fall_s: tuple[float, float, float] = (10.0, 1.0, 5.0)
    wake_s: tuple[float, float, float] = (3.0, 45.0, 90.0)
    level: int | None = None
    """Where it is at first; None: as deep as it can sleep."""
    replicas: Sequence[WorldReplica] = ()
    """The engines behind it, each of which sleeps by itself; none: there is one."""

    def speed(self, batch: int) -> float:
        """Return how fast each of so many requests runs."""
        if self.profile is not None:
            return self.profile.speed(batch)
        return 1 / (1 + self.slowdown * (batch - 1))


@dataclass(slots=True)
class ModelRecords:
    """What one upstream has met."""

    arrivals: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    """`served`, or why not."""
    waits_s: list[float] = field(default_factory=list)
    """Of those who were admitted."""
    wakes: int = 0
    wake_failures: int = 0
    sleeps: Counter[str] = field(default_factory=Counter)
    """By reason."""
    evicted_for: Counter[str] = field(default_factory=Counter)
    awake_s: float = 0.0
    preemptions: int = 0
    kv_usage_max: float = 0.0


class _Engine:
    """Answers steps. `level` is the truth: 0 is awake."""

    def __init__(self, model: WorldModel, level: int) -> None:
        self._model = model
        self.level = level

    def takes_s(self, step: Step) -> float:
        model = self._model
        if step.role is Role.SLEEP:
            return model.fall_s[self._goes_to(step) - 1]
        if step.call is ProcessCall.START:
            return model.wake_s[STOPPED - 1]
        reloads = any(one.role is Role.LOAD_WEIGHTS for one in model.kind.wake_steps(VERSION, 2))
        if step.role is Role.LOAD_WEIGHTS:
            return model.wake_s[1]
        if step.role is Role.WAKE and self.level and not (self.level == 2 and reloads):
            return model.wake_s[self.level - 1]
        return 0.0

    def done(self, number: int, step: Step, running: int) -> Report:
        if step.role is Role.SLEEP:
            self.level = self._goes_to(step)
        elif step.role is Role.WAKE:
            self.level = 0
        if not step.probes:
            return Report(number, StepResult.DONE)
        if self.level == STOPPED:
            return Report(number, StepResult.LOST)
        awake = self.level == 0
        seen = Seen(not awake, self.level, running, 0, VERSION, "simulated", loaded=awake)
        return Report(number, StepResult.DONE, seen)

    def _goes_to(self, step: Step) -> int:
        if step.call is ProcessCall.STOP:
            return STOPPED
        levels = self._model.kind.levels
        return 1 if 1 in levels and step.label.endswith("_1") else 2


class _Seat:
    """One engine of an upstream, and who is in it."""

    def __init__(self, model: WorldModel, slots: int) -> None:
        deepest = max(model.kind.levels, default=0)
        self.engine = _Engine(model, deepest if model.level is None else model.level)
        self.batch = new_replica(slots, model.speed, model.profile)
        self.next_s = inf
        self.awake_since_s: float | None = None

    def nap(self, model: WorldModel, owner: str, gpus: GpuLedger) -> SleepConfig:
        level = self.engine.level
        memory = JournalEntry(level=level, trusted=level != 2, process="simulated")
        limits = model.policy
        for one in model.replicas:
            if one.name == owner:
                limits = replace(limits, devices=one.devices)
        return SleepConfig(kind=model.kind, limits=limits, gpus=gpus, owner=owner, memory=memory)


class _Site:
    """One upstream: its gate, its engines, and who is inside."""

    def __init__(self, run: "WorldRun", number: int, model: WorldModel) -> None:
        self.model = model
        self.records = ModelRecords()
        self.chances = chances_of(
            model.profile, Streams(run.seed, (run.replication << 16) + number)
        )
        self.tickets: dict[int, tuple[Ticket, int]] = {}
        """The ticket of each inside, and which request it is of."""
        self.timer_s = inf
        rng = Random(f"{run.seed} {number}")
        key, limits = UpstreamKey(model.key), model.limits
        self.seats: dict[str | None, _Seat] = {}
        if model.replicas:
            self.seats = {one.name: _Seat(model, one.slots) for one in model.replicas}
            naps = {
                one.name: self.seats[one.name].nap(model, one.name, run.ledger)
                for one in model.replicas
            }
            engines = Engines({one.name: one.slots for one in model.replicas})
            self.gate: Gate = ReplicaGate(key, limits, run.clock, rng, engines, naps)
        else:
            seat = self.seats[None] = _Seat(model, model.slots or _UNBOUNDED)
            nap = seat.nap(model, model.key, run.ledger)
            self.gate = Gate(key, limits, run.clock, rng, nap)

    @property
    def owners(self) -> dict[str, str | None]:
        """The engines as the ledger calls them."""
        return {self.model.key if name is None else name: name for name in self.seats}

    def work_on(self, ticket: Ticket, now: float) -> None:
        """Let the engine begin with an admitted request."""
        model, index = self.model, self.tickets[id(ticket)][1]
        batch = self.seats[ticket.replica if model.replicas else None].batch
        prompt = model.prompts[index] if model.prompts else 0.0
        if self.chances is None:
            batch.start(id(ticket), model.service_s[index], now, prompt=prompt)
            return
        work = Work(index, prompt, model.service_s[index])
        start_in_detail(batch, id(ticket), work, now, self.chances)


class WorldRun:
    """One run, from engines that all sleep to the last end; `records` has what came of it."""

    def __init__(
        self, models: Sequence[WorldModel], room: RoomLimits, seed: int = 1, replication: int = 0
    ) -> None:
        self.seed = seed
        self.replication = replication
        self.clock = ManualClock()
        self.ledger = GpuLedger(room)
        self._heap: list[tuple[float, int, int, Callable[[Any], None], Any]] = []
        self._pushed = 0
        self._sites = {model.key: _Site(self, number, model) for number, model in enumerate(models)}
        self._owners = {
            owner: (site, name)
            for site in self._sites.values()
            for owner, name in site.owners.items()
        }
        self._open = sum(len(model.arrivals_s) for model in models)
        self.most_gib: dict[int | str, float] = {}
        """The most that the ledger counted on each GPU."""

    @property
    def records(self) -> dict[str, ModelRecords]:
        """What each upstream has met."""
        return {key: site.records for key, site in self._sites.items()}

    def run(self) -> float:
        """Carry it out; returns how long it took, in simulated seconds."""
        for site in self._sites.values():
            self._take(site, site.gate.expire())
            for index, at_s in enumerate(site.model.arrivals_s):
                self._at(at_s, _ARRIVAL, self._arrive, (site, index))
        while self._open and self._heap:
            at_s, _, _, do, what = heappop(self._heap)
            self.clock.set(at_s)
            do(what)
        now = self.clock.now()
        for site in self._sites.values():
            for seat in site.seats.values():
                self._count_awake(site, seat, awake=False)
                if isinstance(seat.batch, PagedReplica) and site.model.profile is not None:
                    room = site.model.profile.details.kv_tokens
                    most = min(1.0, seat.batch.most_held / room)
                    site.records.kv_usage_max = max(site.records.kv_usage_max, most)
        return now

    def _at(self, at_s: float, order: int, do: Callable[[Any], None], what: Any) -> None:
        self._pushed += 1
        heappush(self._heap, (max(at_s, self.clock.now()), order, self._pushed, do, what))

    # What happens

    def _arrive(self, what: tuple[_Site, int]) -> None:
        site, index = what
        site.records.arrivals += 1
        ticket = Ticket()
        site.tickets[id(ticket)] = ticket, index
        self._take(site, site.gate.arrive(ticket))

    def _expire(self, site: _Site) -> None:
        if site.timer_s <= self.clock.now():
            site.timer_s = inf
            self._take(site, site.gate.expire())

    def _work(self, what: tuple[_Site, str | None]) -> None:
        """Take what an engine has finished by now."""
        site, name = what
        seat = site.seats[name]
        seat.next_s = inf
        for event, job, _ in seat.batch.moments(self.clock.now()):
            if event is What.FINISHED:
                ticket, _ = site.tickets[job]  # type: ignore[index] # ours are numbers
                self._end(site, ticket, "served")
                self._take(site, site.gate.finish(ticket, Outcome.SERVED))
            site.records.preemptions += event is What.PREEMPTED
        self._arm(site)

    def _report(self, what: tuple[_Site, str | None, int, Step]) -> None:
        site, name, number, step = what
        seat = site.seats[name]
        report = seat.engine.done(number, step, seat.batch.running)
        self._take(site, site.gate.report(report, name))

    def _written(self, what: tuple[_Site, str | None, int]) -> None:
        site, name, number = what
        self._take(site, site.gate.report(Report(number, StepResult.DONE), name))

    def _hear(self, what: tuple[_Site, str | None]) -> None:
        site, name = what
        self._take(site, site.gate.hear_ledger(name))

    # What is decided

    def _take(self, site: _Site, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            self._carry_out(site, decision)
        for name, seat in site.seats.items():
            awake = site.gate.sleeper(name).state is EngineState.AWAKE
            self._count_awake(site, seat, awake=awake)
        self._arm(site)

    def _carry_out(self, site: _Site, decision: Decision) -> None:
        match decision:
            case Admit(ticket=ticket):
                site.records.waits_s.append(decision.waited_s)
                site.work_on(ticket, self.clock.now())
            case Refuse(ticket=ticket):
                self._end(site, ticket, decision.refusal.reason.value)
            case RoomDecided(owner=owner):
                self._at(self.clock.now(), _COMPLETION, self._hear, self._owners[owner])
            case OfReplica(replica=name, what=what):
                self._engine_does(site, name, what)
            case _:
                self._engine_does(site, None, decision)

    def _engine_does(self, site: _Site, name: str | None, what: Decision) -> None:
        now, records = self.clock.now(), site.records
        match what:
            case Perform(step=step, number=number):
                at_s = now + site.seats[name].engine.takes_s(step)
                self._at(at_s, _COMPLETION, self._report, (site, name, number, step))
            case Remember(number=number) if number:
                self._at(now, _COMPLETION, self._written, (site, name, number))
            case FellAsleep():
                records.sleeps[what.reason.value] += 1
                if what.room_for:
                    records.evicted_for[what.room_for] += 1
            case WakeEnded():
                records.wakes += what.succeeded
                records.wake_failures += not what.succeeded
            case _:
                pass

    def _end(self, site: _Site, ticket: Ticket, how: str) -> None:
        del site.tickets[id(ticket)]
        site.records.ends[how] += 1
        self._open -= 1

    def _arm(self, site: _Site) -> None:
        deadline_s = site.gate.next_deadline()
        if deadline_s is not None and deadline_s < site.timer_s:
            site.timer_s = deadline_s
            self._at(deadline_s, _EXPIRY, self._expire, site)
        for name, seat in site.seats.items():
            next_s = seat.batch.next_event()
            if next_s < seat.next_s:
                seat.next_s = next_s
                self._at(next_s, _COMPLETION, self._work, (site, name))

    def _count_awake(self, site: _Site, seat: _Seat, *, awake: bool) -> None:
        """Count how long engines are awake: of several, on average."""
        now = self.clock.now()
        if awake == (seat.awake_since_s is not None):
            return
        if awake:
            seat.awake_since_s = now
            self._look_at_room()
        elif seat.awake_since_s is not None:
            site.records.awake_s += (now - seat.awake_since_s) / len(site.seats)
            seat.awake_since_s = None

    def _look_at_room(self) -> None:
        occupants = self.ledger.occupants()
        for device in self.ledger.limits.device_gib:
            gib = sum(one.gib for one in occupants if device in one.devices)
            self.most_gib[device] = max(self.most_gib.get(device, 0.0), gib)
