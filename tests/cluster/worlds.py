"""Worlds of doors that share gates, drawn whole from one seed, and judged all the while.

Two to four doors, whose clocks differ by an hour and run a little faster or slower, stand before
one or two engines. Callers come at every door and leave as they like. Doors are killed, paused and
cut off; Redis is slow, loses its memory, falls back to a replica that is behind; messages are lost,
late, repeated and reordered. Every engine counts for itself and asserts that it never runs more
than its cap. Once the faults end, all must come to rest with nothing held, and then run full again.

Run as a script it prints the digest of the traces of a range of seeds: `worlds.py 0-19`.
"""

import sys
from collections.abc import Callable
from hashlib import sha256
from heapq import heappop, heappush
from math import inf
from random import Random

from depth import parse_seeds
from sim_redis import Redis

from tornado_frontdoor.cluster.actions import (
    Action,
    Beat,
    CloseGates,
    CountEngine,
    Forget,
    GateAdopt,
    GateArrive,
    GateFinish,
    Grant,
    Key,
    LookForDoors,
    OpenGates,
    Release,
    Say,
    Send,
    TurnAway,
)
from tornado_frontdoor.cluster.alone import Alone
from tornado_frontdoor.cluster.messages import Packet
from tornado_frontdoor.cluster.node import Node
from tornado_frontdoor.cluster.rules import ClusterRules, GateRules
from tornado_frontdoor.cluster.tickets import Own
from tornado_frontdoor.core.decisions import Admit, Decision, Outcome, Reason
from tornado_frontdoor.core.gate import AdmissionLimits, Gate
from tornado_frontdoor.core.replicas import Engines, Pick, Replicas
from tornado_frontdoor.core.request import Ticket, UpstreamKey

LEASE_S = 1.0
TICK_S = 0.05
SETTLE_S = 10.0
REST_S = 70.0
"""Longer than a silent door of which nothing is known keeps its share."""


class Engine:
    """One engine, which counts for itself; `behind`: all of its upstream, whose cap they share."""

    def __init__(
        self, world: "World", address: str, cap: int, slots: int, behind: "list[Engine]"
    ) -> None:
        self.world = world
        self.address = address
        self.cap = cap
        self.slots = slots
        self.behind = behind
        behind.append(self)
        self.running: dict[tuple[str, int], int] = {}
        self.most = 0
        self.tells = True

    def start(self, site: "Site", own: Own, hold_s: float) -> None:
        key = (site.name, own.number)
        assert key not in self.running, f"{key} reached the engine twice"
        self.running[key] = own.weight
        busy = sum(self.running.values())
        of_all = sum(sum(one.running.values()) for one in self.behind)
        self.behind[0].most = max(self.behind[0].most, of_all)
        self.world.say(f"{self.address} runs {busy}: {key}")
        assert busy <= self.slots, f"{self.address} runs {busy} of {self.slots}: {self.running}"
        assert of_all <= self.cap, f"{self.address} and others run {of_all} of {self.cap}"
        self.world.after(hold_s, lambda: self.end(site, own.number))

    def end(self, site: "Site", number: int) -> None:
        if self.running.pop((site.name, number), None) is not None:
            self.world.after(0.001, lambda: site.when_awake(lambda: site.ended(number)))

    def abort(self, site: "Site", number: int) -> None:
        self.running.pop((site.name, number), None)

    @property
    def busy(self) -> int | None:
        return sum(self.running.values()) if self.tells else None


class Site:
    """One door's process: its node, its gates while it has some, its requests."""

    def __init__(self, world: "World", name: str) -> None:
        rng = world.rng
        self.world = world
        self.name = name
        self.offset_s = rng.uniform(-3600, 3600)
        self.rate = rng.uniform(0.97, 1.03)
        self.joined_run = ""
        self.open = False
        self.alive = True
        self.paused = False
        self.deferred: list[Callable[[], None]] = []
        self.gates: dict[str, Gate] = {}
        self.tickets: dict[Key, Ticket] = {}
        self.keys: dict[Ticket, Key] = {}
        self.addresses: dict[Ticket, str] = {}
        self.started: set[int] = set()
        self.numbers = 0
        self.waiting: set[int] = set()
        self.node = Node(name, world.rules, self.clock())
        self.node.puts_off = world.puts_off
        self.flushes = False
        self.turned_away: tuple[Alone | None, bool] | None = None
        """While alone in which way somebody was last refused who could have been let in."""
        self.world.after(rng.uniform(0, TICK_S), self.tick)

    # Time and what interrupts it

    def clock(self) -> float:
        return self.offset_s + self.rate * self.world.now

    def now(self) -> float:
        """Be the clock of this door's gates."""
        return self.clock()

    def when_awake(self, what: Callable[[], None]) -> None:
        if not self.alive:
            return
        if self.paused:
            self.deferred.append(what)
        else:
            what()

    def resume(self) -> None:
        self.paused = False
        deferred, self.deferred = self.deferred, []
        # What has piled up comes in any order of its kinds: sockets, timers, packets.
        if self.world.rng.random() < 0.5:
            deferred.reverse()
        for what in deferred:
            self.when_awake(what)

    def kill(self) -> None:
        self.alive = False
        self.world.redis.lifelines.discard(self.name)
        for engine in self.world.engines.values():
            for key in [key for key in engine.running if key[0] == self.name]:
                self.world.after(
                    self.world.rng.uniform(0, 0.05), lambda k=key, e=engine: e.running.pop(k, None)
                )

    def lifeline_broke(self) -> None:
        self.node.connected(self.clock(), is_open=False)
        self.open = False

    def tick(self) -> None:
        if not self.alive:
            return
        if self.paused:
            self.deferred.append(self.tick)
            return
        self.do(lambda: self.node.tick(self.clock()))
        for gate in [*self.gates.values()]:
            if (gate.next_deadline() or 1e18) <= self.clock():
                self.decide(gate.expire())
        self.world.after(TICK_S / self.rate, self.tick)

    # The shell

    def do(self, what: Callable[[], object]) -> None:
        what()
        self.carry_out()

    def carry_out(self) -> None:
        while self.node.out:
            actions, self.node.out[:] = [*self.node.out], []
            for action in actions:
                self.act(action)
        if self.node.has_news and not self.flushes:
            self.flushes = True
            self.world.after(0.0, lambda: self.when_awake(self.flush))

    def flush(self) -> None:
        self.flushes = False
        self.do(lambda: self.node.flush(self.clock()))

    def act(self, action: Action) -> None:  # noqa: C901, PLR0912, PLR0915 - one branch an action
        world, node = self.world, self.node
        match action:
            case Beat():
                sent_s = self.clock()
                world.redis.beat(
                    self.name,
                    action.campaigns,
                    action.epoch,
                    lambda told: self.when_awake(lambda: self.beat_answered(sent_s, told)),
                    lambda: self.when_awake(
                        lambda: self.do(lambda: node.beat_failed(self.clock(), refused=True))
                    ),
                )
            case Release():
                world.redis.release(self.name, action.epoch)
            case Send():
                world.redis.send(action.packet)
            case OpenGates():
                assert not self.gates, "gates are opened twice"
                if action.shares is not None:
                    now = node.alone, node.redis_refuses
                    assert self.turned_away != now, f"{self.name} refused, and uses its share"
                for address, rules in world.rules.gates.items():
                    cap = rules.cap if action.shares is None else action.shares.get(address)
                    if action.shares is None or cap:
                        limits = AdmissionLimits(cap=cap, queue=8, queue_timeout_s=world.patience_s)
                        slots = rules.slots
                        if action.shares is not None:
                            slots = world.rules.slot_shares(address, len(node.doors))
                        several = Replicas(Engines(slots, world.pick, 0.0, inf), self.clock())
                        self.gates[address] = Gate(
                            *(UpstreamKey(address), limits, self, world.rng),
                            replicas=several if slots else None,
                        )
            case CloseGates():
                self.gates.clear()
                self.tickets.clear()
                self.keys.clear()
            case GateAdopt():
                ticket = self.ticket(action.key, action.address, action.weight)
                ticket.replica = action.replica or None
                self.decide(self.gates[action.address].adopt(ticket))
            case GateArrive():
                ticket = self.ticket(action.key, action.address, action.weight)
                ticket.affinity = bytes.fromhex(action.affinity)
                self.decide(self.gates[action.address].arrive(ticket, action.waited_s))
            case GateFinish():
                ticket = self.tickets.pop(action.key, None)
                if ticket is not None:
                    gate = self.gates[self.addresses[ticket]]
                    self.decide(gate.finish(ticket, action.outcome))
            case Grant():
                number = action.number
                world.after(0.0001, lambda: self.when_awake(lambda: self.connect(number)))
            case TurnAway():
                self.waiting.discard(action.number)
                if action.refusal.reason is Reason.CLUSTER_OUTAGE:
                    self.turned_away = node.alone, node.redis_refuses
                world.say(f"{self.name} refuses {action.number}: {action.refusal.reason.value}")
                world.refused += 1
            case CountEngine():
                engine = world.engines[action.address]

                def answer(busy: int | None) -> None:
                    self.when_awake(
                        lambda: self.do(lambda: node.sampled(action, busy, self.clock()))
                    )

                world.after(0.003, lambda: world.after(0.002, lambda b=engine.busy: answer(b)))
            case LookForDoors():
                world.redis.look(
                    self.name,
                    lambda present: self.when_awake(
                        lambda: self.do(lambda: node.seen(present, self.clock()))
                    ),
                )
            case Forget():
                world.redis.forget(self.name, action.door)
            case Say():
                world.say(f"{self.name}: {action.text}")

    def ticket(self, key: Key, address: str, weight: int) -> Ticket:
        assert key not in self.tickets, f"{key} comes twice"
        ticket = self.tickets[key] = Ticket(weight)
        self.addresses[ticket] = address
        self.keys[ticket] = key
        return ticket

    def decide(self, decisions: "list[Decision] | tuple[Decision, ...]") -> None:
        for decision in decisions:
            key = self.keys[decision.ticket]
            told = decision if isinstance(decision, Admit) else decision.refusal
            if not isinstance(decision, Admit):
                self.tickets.pop(key, None)
            self.node.decided(key, told, self.clock())

    def beat_answered(self, sent_s: float, told) -> None:
        if not self.open and self.world.redis.alive:
            self.open = True
            self.node.connected(self.clock(), is_open=True)
        self.do(lambda: self.node.beat_answered(sent_s, told, self.clock()))

    def packet(self, packet: Packet) -> None:
        self.when_awake(lambda: self.do(lambda: self.node.packet(packet, self.clock())))

    # Requests

    def come(self, address: str, weight: int, hold_s: float, patience_s: float | None) -> None:
        self.numbers += 1
        number = self.numbers
        own = Own(number, address, weight, self.clock(), self.world.rng.choice(("aa", "bb")))
        self.world.holds[self.name, number] = hold_s
        self.waiting.add(number)
        self.world.offered += 1
        self.do(lambda: self.node.enter(own, self.clock()))
        if patience_s is not None:
            self.world.after(patience_s, lambda: self.when_awake(lambda: self.leave(number)))

    def leave(self, number: int) -> None:
        own = self.node.own.get(number)
        if own is None:
            return
        self.waiting.discard(number)
        self.world.engines[own.replica or own.address].abort(self, number)
        self.do(lambda: self.node.finish(number, Outcome.CLIENT_GONE_QUEUED, self.clock()))

    def connect(self, number: int) -> None:
        own = self.node.own.get(number)
        if own is None or number in self.started:
            return
        may = self.node.may_start(number, self.clock())
        self.carry_out()
        if not may:
            return
        self.waiting.discard(number)
        self.started.add(number)
        hold_s = self.world.holds[self.name, number]
        engine = self.world.engines[own.replica or own.address]

        def reach() -> None:
            if self.alive and number in self.node.own:
                engine.start(self, own, hold_s)
            elif self.alive:
                return

        self.world.after(0.001, reach)

    def ended(self, number: int) -> None:
        self.world.served += 1
        self.do(lambda: self.node.finish(number, Outcome.SERVED, self.clock()))


class World:
    """One world; `run` raises an AssertionError, or what a bug raises, when it was not legal."""

    def __init__(self, seed: int, *, short: bool = False) -> None:
        self.rng = rng = Random(seed)
        self.lasts_s = 4.0 if short else 12.0
        self.as_bytes = not short or seed % 8 == 0
        """Whether packets are written down and read on their way, which costs the most."""
        self.puts_off = seed % 2 == 0
        """Whether doors say all that happens at one instant in one packet, as the real one does."""
        self.now = 0.0
        self.trace: list[str] = []
        self.holds: dict[Key, float] = {}
        self.offered = self.served = self.refused = self.in_trouble = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.patience_s = rng.choice((2.0, 10.0, 30.0))
        self.pick: Pick = rng.choice(("least", "affinity"))
        self.engines: dict[str, Engine] = {}
        gates = {}
        for i in range(rng.choice((1, 1, 2))):
            address, cap = f"http://engine-{i}", rng.choice((2, 3, 6))
            tails = ("", "b", "c")[: rng.choice((1, 2, 3))]
            slots = {address + tail: rng.choice((2, cap // 2 + 1)) for tail in tails}
            several = len(slots) > 1 and sum(slots.values()) > cap
            gates[address] = GateRules(cap=cap, sleeps=False, slots=slots if several else {})
            behind: list[Engine] = []
            for engine, number in slots.items() if several else [(address, cap)]:
                self.engines[engine] = Engine(self, engine, cap, number, behind)
        self.rules = ClusterRules(
            gates=gates,
            lease_s=LEASE_S,
            on_outage=rng.choice(("split", "refuse")),
        )
        self.redis = Redis(self, rng, LEASE_S)
        self.sites: dict[str, Site] = {}
        for _ in range(rng.choice((2, 3, 3, 4))):
            self.open_door()
        self.troubles = rng.choice((1, 1, 2, 3) if short else (0, 1, 3, 8))
        self.redis.loss = rng.choice((0.0, 0.0, 0.02, 0.2))
        self.redis.repeats = rng.choice((0.0, 0.1))
        self.redis.jitter_s = rng.choice((0.001, 0.01, 0.1))
        self.hold_s = rng.choice((0.1, 0.5, 3.0))

    def say(self, text: str) -> None:
        self.trace.append(f"{self.now:9.4f} {text}")

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._heap, (self.now + delay_s, self._count, what))

    def pass_time(self, until_s: float) -> None:
        while self._heap and self._heap[0][0] <= until_s:
            self.now, _, what = heappop(self._heap)
            what()
        self.now = until_s

    def pass_until(self, until_s: float, over: Callable[[], bool]) -> None:
        """Let time pass until it is over, and as much again as messages may be under way."""
        while self.now < until_s and not over():
            self.pass_time(min(until_s, self.now + 0.5))
        self.pass_time(min(until_s, self.now + 1.0))

    def is_quiet(self) -> bool:
        """Whether one owner holds nothing for anybody, and all others are its members."""
        owners = [site.node.owner for site in self.alive if site.node.owner is not None]
        if len(owners) != 1 or owners[0].learning or owners[0].waits_for_silent:
            return False
        if owners[0].book.table or any(site.node.own or site.waiting for site in self.alive):
            return False
        return {site.node.role for site in self.alive} <= {"owner", "member"}

    def open_door(self) -> Site:
        name = f"door-{len(self.sites)}"
        site = self.sites[name] = Site(self, name)
        return site

    @property
    def alive(self) -> list[Site]:
        return [site for site in self.sites.values() if site.alive]

    # Callers

    def callers(self, until_s: float) -> None:
        """Let callers come at every door, more than the engines can serve."""
        rng = self.rng
        if self.now >= until_s:
            return
        site = rng.choice([*self.sites.values()])
        if site.alive and not site.paused:
            address = rng.choice([*self.rules.gates])
            weight = 1 if rng.random() < 0.9 else 2
            patience_s = rng.choice((None, None, rng.expovariate(1.0)))
            site.come(address, weight, min(5.0, rng.expovariate(1 / self.hold_s)), patience_s)
        total = sum(rules.cap or 0 for rules in self.rules.gates.values())
        self.after(rng.expovariate(total / self.hold_s), lambda: self.callers(until_s))

    # Faults

    def trouble(self) -> None:
        rng = self.rng
        if not self.alive:
            return
        kind = rng.choice(
            "kill pause pause cut cut stall one-way lag empty behind stop leave reset".split()
        )
        site = self.owner() if rng.random() < 0.5 else rng.choice(self.alive)
        site = site or rng.choice(self.alive)
        lasts_s = rng.choice((0.2, 0.6, 1.2, 3.0, 8.0))
        self.say(f"trouble: {kind} {site.name} {lasts_s}")
        self.in_trouble += 1
        self.after(lasts_s, self.trouble_is_over)
        getattr(self, f"_{kind.replace('-', '_')}")(site, lasts_s)

    def trouble_is_over(self) -> None:
        self.in_trouble -= 1

    def owner(self) -> Site | None:
        owners = [site for site in self.alive if site.node.owner is not None]
        return owners[0] if owners else None

    def _kill(self, site: Site, _: float) -> None:
        site.kill()
        self.after(self.rng.choice((0.0, 0.5, 3.0)), self.open_door)

    def _pause(self, site: Site, lasts_s: float) -> None:
        if not site.paused:
            site.paused = True
            self.after(lasts_s, site.resume)

    def _cut(self, site: Site, lasts_s: float) -> None:
        way = self.redis.way(site.name)
        way.up = way.down = False
        self.after(lasts_s, lambda: self.redis.heal(site.name))

    def _stall(self, site: Site, lasts_s: float) -> None:
        way = self.redis.way(site.name)
        way.up = way.down = False
        way.stalls = True
        self.after(lasts_s, lambda: self.redis.heal_stalled(site.name))

    def _one_way(self, site: Site, lasts_s: float) -> None:
        way = self.redis.way(site.name)
        if self.rng.random() < 0.5:
            way.up = False
        else:
            way.down = False
        self.after(lasts_s, lambda: self.redis.heal(site.name))

    def _reset(self, site: Site, lasts_s: float) -> None:
        """The way breaks so that both ends see it; what listens there does not refuse."""
        self._cut(site, lasts_s)
        self.redis.lifelines.discard(site.name)
        site.when_awake(site.lifeline_broke)

    def _lag(self, site: Site, lasts_s: float) -> None:
        self.redis.way(site.name).lag_s = self.rng.choice((0.05, 0.3, 0.9))
        self.after(lasts_s, lambda: self.redis.heal(site.name))

    def _empty(self, _: Site, lasts_s: float) -> None:
        self.redis.stop()
        self.after(lasts_s, lambda: self.redis.start(empty=True))

    def _stop(self, _: Site, lasts_s: float) -> None:
        self.redis.stop()
        self.after(lasts_s, lambda: self.redis.start(empty=False))

    def _behind(self, _: Site, lasts_s: float) -> None:
        snapshot = self.redis.snapshot()
        self.after(min(lasts_s, 1.5), lambda: self.redis.fail_over(snapshot))

    def _leave(self, site: Site, _: float) -> None:
        site.when_awake(lambda: site.do(lambda: site.node.leave(site.clock())))
        self.open_door()

    # The whole of it

    def run(self) -> "World":
        until_s = self.now + self.lasts_s
        self.callers(until_s)
        for _ in range(self.troubles):
            self.after(self.rng.uniform(1.5, self.lasts_s - 1.0), self.trouble)
        self.pass_time(until_s)
        # The longest trouble lasts 8 s; where nothing goes wrong any more it need not be awaited.
        self.pass_until(until_s + 10.0, lambda: not self.in_trouble)
        self.faults_end()
        self.pass_until(self.now + SETTLE_S + self.patience_s, self.is_quiet)
        if any(site.node.owner and site.node.owner.waits_for_silent for site in self.alive):
            self.pass_until(self.now + REST_S, self.is_quiet)
        self.at_rest()
        self.full_again()
        return self

    def faults_end(self) -> None:
        redis = self.redis
        redis.loss = redis.repeats = 0.0
        redis.jitter_s = 0.001
        if not redis.alive:
            redis.start(empty=False)
        for site in self.alive:
            if site.paused:
                site.resume()
            redis.heal_stalled(site.name)

    def at_rest(self) -> None:
        owners = [site for site in self.alive if site.node.owner is not None]
        assert len(owners) == 1, f"{len(owners)} owners at rest"
        [owner] = owners
        for site in self.alive:
            assert not site.node.own, f"{site.name} still has {site.node.own}"
            assert not site.waiting, f"{site.name}: {site.waiting} were never decided"
        assert owner.node.owner is not None
        assert not owner.node.owner.book.table, owner.node.owner.book.table
        for gate in owner.gates.values():
            assert (gate.in_flight, gate.queued) == (0, 0)
            assert gate.duplicate_finishes == 0
        for engine in self.engines.values():
            assert not engine.running

    def full_again(self) -> None:
        """After all faults every slot is used again, from every door."""
        served = self.served
        for engine in self.engines.values():
            engine.most = 0
        doors = self.alive
        assert doors
        count = 0
        for address in self.rules.gates:
            engine = self.engines[address]
            for index in range(engine.cap + 4):
                doors[index % len(doors)].come(address, 1, 0.2, None)
                count += 1
        self.pass_until(self.now + 10.0, lambda: self.served >= served + count)
        assert self.served == served + count, f"{self.served - served} of {count} were served"
        for address in self.rules.gates:
            engine = self.engines[address]
            assert engine.most == engine.cap, f"{address} ran {engine.most} of {engine.cap}"


def digest(world: World) -> str:
    return sha256("\n".join(world.trace).encode()).hexdigest()[:16]


if __name__ == "__main__":
    for seed in parse_seeds(sys.argv[1]):
        world = World(seed)
        try:
            world.run()
        except BaseException:
            print("\n".join(world.trace[-60:]))
            print("seed", seed)
            raise
        print(seed, digest(world), world.served, world.refused, world.offered)
