"""Worlds of gates that sleep and wake, drawn whole from one source of randomness, judged throughout.

One to three engines share GPUs or not; callers come in bursts and leave as they like; operators and
other hands meddle; engines die; the front door is killed and comes back with what it wrote down.
Half the worlds run on a coarse grid, so that arrivals, reports, limits and idle tiers meet in one
instant. What is asked of every world:

- the laws, by the witnesses of `simulator.invariants`;
- no caller is sent to an engine that would not answer it, or answer it with garbage (what other
  hands do between two looks excepted);
- no transition on a GPU while another engine's transition is under way there;
- `expire` at `next_deadline` leaves nothing for that instant;
- once the faults end everything comes to rest, and a last caller is served.

Run as a script it prints the digest of the traces of a range of seeds: `wake_worlds.py 0-19`.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any

from simulator.engine import Scheduler
from simulator.engine_values import Call, Times
from simulator.invariants import EngineWitness, LineWitness, digest
from wake_engines import VERSIONS, Doorstep, Manners
from walks import parse_seeds

from tornado_frontdoor.core.clock import ManualClock
from tornado_frontdoor.core.decisions import (
    Admit,
    Answered,
    Changed,
    Decision,
    EngineState,
    GpuGranted,
    Memory,
    Outcome,
    Perform,
    Refuse,
    Remember,
    WakeEnded,
)
from tornado_frontdoor.core.gate import AdmissionLimits, Gate, Nap, WakeLimits
from tornado_frontdoor.core.gpus import GpuLocks
from tornado_frontdoor.core.request import Ticket, TicketState, UpstreamKey
from tornado_frontdoor.core.wake_steps import Ending, Report, Step

FALLING = {Step.SLEEP_1, Step.SLEEP_2, Step.SLEEP_1_PLAIN, Step.SLEEP_2_PLAIN}


class Caller(Ticket):
    """A ticket, and how long its request holds a slot of the engine."""

    def __init__(self, hold_s: float) -> None:
        super().__init__()
        self.hold_s = hold_s


class Site:
    """One upstream: its engine, its gate, and everyone who is inside."""

    def __init__(self, world: "World", index: int) -> None:
        self.world = world
        self.key = UpstreamKey(f"up{index}")
        rng = world.rng
        self.limits = AdmissionLimits(
            cap=rng.choice((1, 2, 3, None)),
            queue=rng.choice((1, 2, 6)),
            queue_timeout_s=rng.choice((2.0, 20.0)),
        )
        idle_s = rng.choice((0.0, 5.0, 20.0))
        self.wake_limits = WakeLimits(
            idle_sleep_s=idle_s,
            idle_offload_s=rng.choice((0.0, idle_s, idle_s + 15.0)),
            hold_sleeping_s=rng.choice((1.0, 30.0)),
            hold_offloaded_s=rng.choice((60.0, 180.0)),
            hold_restarting_s=rng.choice((10.0, 300.0)),
            retry_after_sleeping_s=10,
            retry_after_offloaded_s=60,
            retry_after_restarting_s=600,
            canary=rng.random() < 0.8,
            devices=rng.choice(((), (0,), (0, 1), (1,))),
        )
        self.door = Doorstep(
            world.draw_manners(), rng, world.at, self.report, self.transfer_ended
        )
        self.memory: Memory | None = None
        self.learned_s: dict[str, float] = {}
        self.inside: dict[int, Caller] = {}
        self.meddled = False
        """Another hand did something, so what is true may differ from what can be known."""
        self.ends: Counter[str] = Counter()
        self.states: Counter[EngineState] = Counter()
        self.open()

    def open(self) -> None:
        """A front door starts, with what an earlier one left."""
        nap = Nap(
            limits=self.wake_limits,
            gpus=self.world.gpus,
            memory=self.memory,
            learned_s=self.learned_s,
        )
        self.gate = Gate(self.key, self.limits, self.world.clock, Random(1), nap)
        limits = self.limits
        self.line = LineWitness(
            limits.cap, limits.queue, limits.queue_timeout_s, tolerance_s=1e-6
        )
        self.engine = EngineWitness()
        self._spy(self.gate)

    def _spy(self, gate: Gate) -> None:
        """Hear of holds and resumes, which are between the gate's two machines."""
        line = gate._admission
        hold, resume = line.hold, line.resume
        self.line.held(self.world.now, gate._hold_s)

        def spy_hold(limit_s: float, now: float) -> Any:
            self.line.held(now, limit_s)
            return hold(limit_s, now)

        def spy_resume(now: float) -> Any:
            if line.held:
                self.line.resumed(now)
            return resume(now)

        line.hold = spy_hold  # type: ignore[method-assign]
        line.resume = spy_resume  # type: ignore[method-assign]

    # What a driver does

    def arrive(self, hold_s: float) -> None:
        caller = Caller(hold_s)
        self._call(lambda: self.gate.arrive(caller), arrives=caller)

    def finish(self, ticket: Ticket, outcome: Outcome) -> None:
        self.inside.pop(ticket.number)
        self.ends[outcome.label] += 1
        self.line.ended(self.world.now, ticket.number, outcome)
        self._call(lambda: self.gate.finish(ticket, outcome))

    def report(self, report: Report) -> None:
        self._call(lambda: self.gate.report(report))

    def expire(self) -> None:
        self._call(self.gate.expire)
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

    def transfer_ended(self, job: Any, ending: Ending, garbage: bool) -> None:
        """The engine is done with a request."""
        if not self.meddled:
            assert not garbage, f"{job[0]} got garbage"
        if job[0] != "ticket" or job[1] != self.world.lives or job[2] not in self.inside:
            return
        ticket = self.inside[job[2]]
        if not self.meddled:
            assert ending is Ending.DONE, "the engine was put to sleep with a caller inside"
        served = ending is Ending.DONE
        self.finish(ticket, Outcome.SERVED if served else Outcome.UPSTREAM_ERROR)

    def engine_died(self) -> None:
        """All transfers are cut."""
        for ticket in [*self.inside.values()]:
            if ticket.state is TicketState.IN_FLIGHT:
                self.finish(ticket, Outcome.UPSTREAM_ERROR)

    def _call(
        self, call: Callable[[], Sequence[Decision]], arrives: Caller | None = None
    ) -> None:
        now = self.world.now
        if arrives is not None:
            self.line.arrived(now, self.gate._admission._arrivals + 1, 1)
        decisions = call()
        if arrives is not None:
            self.inside[arrives.number] = arrives
        self.world.trace.append(f"{now:.6f} {self.key} {[*map(_word, decisions)]}")
        self.line.decided(now, decisions)
        self.line.settled(now)
        self.line.agree(self.gate.in_flight, self.gate.queued)
        held = self.gate._admission.held
        assert held is (self.gate.state is not EngineState.AWAKE), "capacity 0 unless awake"
        for decision in decisions:
            self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        now = self.world.now
        match decision:
            case Admit(ticket=Caller() as caller):
                self._start(caller)
            case Refuse(ticket=ticket):
                del self.inside[ticket.number]
                self.ends[decision.refusal.reason.value] += 1
            case Perform(step=step):
                self._watch(step)
                self.door.perform(decision, now)
            case Remember(memory=memory):
                self.memory = memory
                self.learned_s = self.gate.learned_s
            case Changed(state=state):
                self._changed(state)
            case GpuGranted(upstream=upstream):
                other = next(site for site in self.world.sites if site.key == upstream)
                self.world.at(now, lambda: other._call(other.gate.granted))
            case Answered():
                self.ends[f"{decision.wish} {decision.verdict.value}"] += 1
            case WakeEnded():
                assert decision.took_s >= 0

    def _start(self, ticket: Caller) -> None:
        self.line.engine_saw(ticket.number)
        engine = self.door.engine
        self.door.collect()
        if engine.dead:
            # Nobody listens: the gate hears of it first, then the request comes back as a new one.
            self._call(self.gate.lost)
            self.finish(ticket, Outcome.UPSTREAM_ERROR)
            self.world.at(self.world.now, lambda: self.arrive(ticket.hold_s))
            return
        self.engine.saw_request()
        if not self.meddled:
            asleep = engine.memory.asleep or engine.scheduler is not Scheduler.RUNNING
            assert not (asleep or engine.memory.garbage or self.door.transitions), (
                "a request meets an engine that would not answer it, or not with sense"
            )
        engine.submit(self._job(ticket), ticket.hold_s, self.world.now)

    def _job(self, ticket: Ticket) -> tuple[Any, ...]:
        return ("ticket", self.world.lives, ticket.number)

    def _watch(self, step: Step) -> None:
        """See that no two transitions meet on one GPU, and that nobody is inside a falling one."""
        if step.looks or step is Step.CANARY:
            return
        if step in FALLING:
            self.engine.sleep_began(self.gate.in_flight + self.gate.queued)
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


class World:
    """One world; `run` raises an AssertionError (or whatever a bug raises) when it was not legal."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.clock = ManualClock()
        self.trace: list[str] = []
        self.lives = 0
        self.foreigners = 0
        self.gpus = GpuLocks()
        self.grid_s = rng.choice((1.0, 0.5, None))
        self.faults = rng.choice((0.0, 0.0, 0.1, 0.3, 0.6))
        self.meddling = rng.random() < 0.3
        self.mortal = rng.random() < 0.6
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.sites: list[Site] = []
        for index in range(rng.choice((1, 1, 2, 3))):
            self.sites.append(Site(self, index))

    @property
    def now(self) -> float:
        """The instant."""
        return self.clock.now()

    def at(self, at_s: float, what: Callable[[], None]) -> None:
        """Let something happen then, after all that was to happen then already."""
        self._count += 1
        heappush(self._heap, (at_s, self._count, what))

    def draw_manners(self) -> Manners:
        rng = self.rng
        whole = self.grid_s is not None
        return Manners(
            version=rng.choice(VERSIONS),
            delay_s=rng.choice((0.0, 0.5)) if whole else rng.uniform(0.0, 0.9),
            fault=self.faults,
            tells_process=rng.random() < 0.7,
            tells_level=rng.random() < 0.8,
            supports_sleep=rng.random() < 0.95,
            times=Times(
                sleep_s=(rng.choice((0.0, 4.0)), rng.choice((0.0, 0.5))),
                wake_s=(rng.choice((0.0, 2.0)), rng.choice((0.0, 3.0))),
                reload_s=rng.choice((0.0, 20.0)),
                restart_s=rng.choice((1.0, 60.0)),
            ),
        )

    def run(self, events: int = 40) -> "World":
        """Let `events` things happen, then peace, then a last caller."""
        until_s = 0.0
        for _ in range(events):
            until_s += self._draw_pause()
            self._run_until(until_s)
            self._meddle(self.rng.choice(self.sites))
        self._peace()
        return self

    def _draw_pause(self) -> float:
        if self.grid_s is None:
            return self.rng.expovariate(self.rng.choice((0.05, 0.5, 5.0)))
        return self.grid_s * self.rng.choice((0, 0, 0, 1, 1, 2, 5, 20, 60))

    def _run_until(self, until_s: float) -> None:
        for _ in range(100_000):
            deadlines = [(site.gate.next_deadline(), site) for site in self.sites]
            gate_s = min((at_s for at_s, _ in deadlines if at_s is not None), default=inf)
            engine_s = min(site.door.engine.next_deadline() for site in self.sites)
            heap_s = self._heap[0][0] if self._heap else inf
            at_s = min(gate_s, engine_s, heap_s)
            if at_s > until_s:
                break
            self._move(max(at_s, self.now))
            self._engines()
            # Only one thing at a time, as each may change what comes next.
            if self._heap and self._heap[0][0] <= self.now:
                heappop(self._heap)[2]()
            elif engine_s > self.now:
                for deadline_s, site in deadlines:
                    if deadline_s is not None and deadline_s <= self.now:
                        site.expire()
                        break
            self._engines()
        else:
            raise AssertionError("it does not come to an end")
        self._move(max(until_s, self.now))

    def _move(self, now: float) -> None:
        self.clock.set(now)
        for site in self.sites:
            site.door.now = now

    def _engines(self) -> None:
        for site in self.sites:
            for event in site.door.take_events():
                site.door.happened(event)
                if event.kind.name == "DIED":
                    site.engine_died()

    # What happens

    def _meddle(self, site: Site) -> None:
        names = ["arrive"] * 12 + ["leave"] * 3 + ["operator"] * 2 + ["burst"] * 2
        if self.mortal:
            names += ["die", "restart"]
        if self.meddling:
            names += ["hand"]
        name = self.rng.choice(names)
        getattr(self, f"_{name}")(site)
        self._engines()

    def _arrive(self, site: Site) -> None:
        site.arrive(self.rng.choice((0.0, 1.0, 5.0, 50.0)))

    def _burst(self, site: Site) -> None:
        for _ in range(self.rng.choice((2, 5, 12))):
            self._arrive(site)

    def _leave(self, site: Site) -> None:
        if site.inside:
            site.leave(self.rng.choice([*site.inside.values()]))

    def _operator(self, site: Site) -> None:
        wish = self.rng.choice((0, 1, 2))
        gate = site.gate
        site._call(gate.wake_now if wish == 0 else lambda: gate.sleep_now(wish))

    def _die(self, site: Site) -> None:
        site.door.engine.kill(self.now)

    def _hand(self, site: Site) -> None:
        """Another hand: it puts to sleep, or asks for a sequence."""
        site.meddled = True
        engine = site.door.engine
        if self.rng.random() < 0.5 and site.door.manners.supports_sleep:
            engine.call(Call(id=("hand", 0), name="sleep", level=self.rng.choice((1, 2))), self.now)
        elif not engine.dead:
            self.foreigners += 1
            engine.submit(("foreign", self.foreigners), 5.0, self.now)

    def _restart(self, _: Site) -> None:
        """The front door is killed, and another one starts at once."""
        for site in self.sites:
            site.door.forget()
            site.inside.clear()
        self.lives += 1
        self.gpus = GpuLocks()
        for site in self.sites:
            site.open()

    def _peace(self) -> None:
        """End all faults, restart what hangs for ever, and see everything come to rest."""
        for site in self.sites:
            site.door.manners = site.door.manners._replace(fault=0.0)
            for ticket in [*site.inside.values()]:
                site.leave(ticket)
            engine = site.door.engine
            if engine.next_deadline() == inf and engine.busy:
                engine.kill(self.now)
            for job in engine.replica.jobs():
                engine.abort(job, self.now)
        self._engines()
        self._run_until(self.now + 700.0)
        for site in self.sites:
            assert site.gate.state.value in ("awake", "sleeping", "offloaded"), site.gate.state
            site.line.at_rest(*site.door.engine.reported_load)
        for site in self.sites:
            site.meddled = site.meddled and not site.gate.state.value == "awake"
            served = site.ends["served"]
            site.arrive(1.0)
            self._run_until(self.now + 200.0)
            refused = [*site.inside.values()] or site.ends["served"] == served
            if refused and site.wake_limits.hold_sleeping_s > 1.0:
                raise AssertionError(f"the last caller of {site.key} was not served")


def world(seed: int) -> World:
    """Return the world of a seed, run to its end."""
    return World(Random(seed)).run()


if __name__ == "__main__":
    print(digest(line for seed in parse_seeds(sys.argv[1]) for line in world(seed).trace))
