"""The door that owns the gates: who is silent, and which slots are not free.

Rule 1: before `_serve` nobody is let in: what runs already is declared by doors that join, and what
        an engine runs beyond that is a stranger's and takes slots too.
Rule 2: a door that is silent loses its places; its slots are free when the engine's own count
        says so, or when the door itself comes back and says so.
Rule 3: a silent door may go on by itself where `on_outage` is `split`. Its share stays reserved
        until its lifeline, the connection on which it reads, is seen to be gone.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tornado_frontdoor.cluster.actions import (
    Action,
    BeatAnswer,
    CountEngine,
    Forget,
    GateDrain,
    GateLost,
    GatesReady,
    GateWish,
    Key,
    LookForDoors,
    OpenGates,
    Say,
)
from tornado_frontdoor.cluster.book import ENDED, GONE, Book
from tornado_frontdoor.cluster.evidence import Evidence, RoundStep
from tornado_frontdoor.cluster.members import Members
from tornado_frontdoor.cluster.messages import (
    AnyBody,
    Arrive,
    Count,
    DrainReplica,
    Finish,
    Join,
    Lost,
    OnWire,
    OperatorTold,
    OperatorWants,
    Packet,
    Waiting,
)
from tornado_frontdoor.cluster.rules import BLIND_S, FORGET_S, LEARN, RELEARN, ClusterRules


class GateOwner:
    """The owner's half of the protocol. `out` takes what is to be done, in order."""

    def __init__(
        self,
        me: str,
        rules: ClusterRules,
        answer: BeatAnswer,
        doors: Iterable[str],
        now: float,
        out: list[Action],
        on_wire: Callable[[float], Iterable[int]],
    ) -> None:
        self.me = me
        self.epoch = answer.epoch
        self.rules = rules
        self.sure_s = now
        """When the beat was sent that last renewed our lease."""
        self.members = Members(me, answer.epoch, rules.lease_s, out)
        self.book = Book(me, rules, self.members.tell, out)
        self.doors = {*doors, me}
        self.views: dict[str, Mapping[str, Any]] = {}
        self.lifelines: set[str] = set()
        """Doors whose lifeline was seen open in this run of Redis."""
        self._awaited = self.doors - {me, answer.before}
        self._same_run = answer.same_run
        self._began_s = now
        self._on_wire = on_wire
        self._silent: dict[str, tuple[float, int]] = {}
        """Since when, and of how many doors its share may be."""
        self._reserved: dict[str, list[Key]] = {}
        self._evidence = Evidence()
        self._out = out
        out.append(OpenGates())

    @property
    def learning(self) -> bool:
        """Whether nobody is let in yet."""
        return self.book.learning

    @property
    def waits_for_silent(self) -> bool:
        """Whether slots are kept for doors that are not heard."""
        return bool(self._silent)

    # What doors say

    def arrive(self, door: str, one: Arrive, now: float) -> None:
        """Take a new ticket of any door."""
        waiting = Waiting(*one[:3], 0.0, 0, one.affinity, one.terms)
        self.book.arrive((door, one.number), waiting, now)

    def declare(self, door: str, join: Join, now: float) -> None:
        """Take all that a door has; what it does not name of what we had, has ended."""
        self.doors.update(join.doors, (door,))
        self.book.declare(door, join, now)
        self._unsilence(door)
        self.book.declare_line(door, join, now)

    def packet(self, packet: Packet, now: float) -> None:
        """Take a packet of a member."""
        for body in self.members.take(packet, now):
            self._hear(packet.sender, body, now)

    def _hear(self, door: str, body: AnyBody, now: float) -> None:
        match body:
            case Arrive():
                self.arrive(door, body, now)
            case Finish():
                self.book.finish((door, body.number), body.outcome)
            case OnWire():
                if self._evidence.counted(door, body.round, body.numbers):
                    self._look(now)
            case Join():
                self._evidence.restart(now)
                self._out.append(LookForDoors())
                self.declare(door, body, now)
            case Lost():
                self._out.append(GateLost(*body))
            case DrainReplica():
                self._out.append(GateDrain(*body))
            case OperatorWants():
                self._out.append(GateWish((door, body.number), *body[1:]))
            case _:  # what only an owner says
                pass

    def wished(self, key: Key, verdict: str, detail: str) -> None:
        """Take what came of an operator's wish at a member."""
        self.members.tell(key[0], OperatorTold(key[1], verdict, detail))

    # Time

    def tick(self, now: float) -> None:
        """Let time pass: who is silent, whether all is learned, the next round of evidence."""
        for door, doors_told in self.members.drop_silent(now):
            self._silence(door, doors_told or len(self.doors), now)
        for door, (since_s, _) in [*self._silent.items()]:
            if door not in self.lifelines and now - since_s > FORGET_S:
                self._forget(door)
        if not (self.learning and self._may_wait(now)):
            self._look(now)

    def _may_wait(self, now: float) -> bool:
        """Tell whether a door may yet come that starts by a grant of the owner before us."""
        waited_s = now - self._began_s
        if not self._same_run:
            return waited_s < RELEARN * self.rules.lease_s
        all_here = self._awaited <= {*self.members.joined}
        return waited_s < LEARN * self.rules.lease_s and not all_here

    def seen(self, lifelines: Iterable[str]) -> None:
        """Take whose lifeline is open in Redis."""
        present = {*lifelines}
        for door in [*self._silent]:
            if door in self.lifelines and door not in present:
                self._forget(door)

    def beat(self, now: float) -> None:
        """Tell every member that we live, who is there and how the gates are."""
        self.members.beat(tuple(sorted(self.doors)), self.views, now)
        if self._silent and self.rules.on_outage == "split":
            self._out.append(LookForDoors())

    def flush(self, now: float, *, timer: bool) -> None:
        """Send what there is to be sent."""
        self.book.tell_places()
        self.members.flush(now, timer=timer)

    # Silence

    def _silence(self, door: str, doors: int, now: float) -> None:
        self._evidence.restart(now)
        if door in self._silent or door not in self.doors:
            return  # it tried to join, and was not heard again
        self._out.append(Say(f"door {door} is silent"))
        for key in [key for key in self.book.table if key[0] == door]:
            entry = self.book.table[key]
            if entry.running:
                entry.silent_s = now
            else:
                self.book.finish(key, GONE)
        self._silent[door] = (now, doors)
        if not self.learning:
            self._keep_share(door, doors)

    def _keep_share(self, door: str, doors: int) -> None:
        keys = self._reserved.setdefault(door, [])
        for address in self.rules.gates:
            left = self.rules.share(address, doors)
            several = self.rules.slot_shares(address, doors) if left else {}
            shares = several or {address: left}
            for engine, share in shares.items():
                # At every engine, as nobody knows on which of them that door uses its share.
                keys += [self.book.take_slot(address, None, engine) for _ in range(share)]

    def _unsilence(self, door: str) -> None:
        self._silent.pop(door, None)
        for key in self._reserved.pop(door, ()):
            self.book.finish(key, ENDED)

    def _forget(self, door: str) -> None:
        self._unsilence(door)
        self.doors.discard(door)
        self._out.append(Forget(door))

    # Evidence

    def _look(self, now: float) -> None:
        """Go on with the round of evidence as far as it goes."""
        evidence = self._evidence
        wanted = self._wanted()
        if self.learning and not wanted:
            self._serve({}, now)
            return
        if evidence.step is RoundStep.REST and wanted and now >= evidence.due_s:
            self._count(now)
        if evidence.step is RoundStep.BEFORE and evidence.complete:
            evidence.sample(wanted)
            self._out.extend(CountEngine(address, evidence.round) for address in wanted)
        elif evidence.step is RoundStep.AFTER and evidence.complete:
            self._conclude(now)

    def _wanted(self) -> list[str]:
        if self.learning:
            capped = [address for address, gate in self.rules.gates.items() if gate.cap is not None]
            return [engine for address in capped for engine in self.rules.engines(address)]
        return sorted({e.engine for e in self.book.table.values() if e.silent_s is not None})

    def _count(self, now: float) -> None:
        members = self.members.joined
        number = self._evidence.ask([*members, self.me])
        for door in members:
            self.members.tell(door, Count(number))
        self._evidence.counted(self.me, number, self._on_wire(now))

    def sampled(self, sample: CountEngine, busy: int | None, now: float) -> None:
        """Take an engine's own count."""
        if sample.round == self._evidence.round and self._evidence.sampled(sample.address, busy):
            self._count(now)
            self._look(now)

    def _conclude(self, now: float) -> None:
        tickets = {
            key: entry.engine
            for key, entry in self.book.table.items()
            if entry.running and entry.silent_s is None
        }
        bounds = self._evidence.conclude(tickets, now)
        if self._evidence.rounds < 2:
            return
        if self.learning:
            self._serve(bounds, now)
            return
        for engine, bound in bounds.items():
            self._free(engine, bound, now)

    def _free(self, engine: str, bound: int | None, now: float) -> None:
        """Give back what the engine no longer runs for those that are silent."""
        silent = [
            (entry.silent_s, key, entry.weight)
            for key, entry in self.book.table.items()
            if entry.engine == engine and entry.silent_s is not None
        ]
        spare = sum(weight for _, _, weight in silent) - (bound or 0)
        for since_s, key, weight in sorted(silent):
            if bound is None:
                if now - since_s >= BLIND_S:
                    self.book.finish(key, ENDED)
            elif weight <= spare:
                spare -= weight
                self.book.finish(key, ENDED)

    def _serve(self, bounds: Mapping[str, int | None], now: float) -> None:
        """Fill the gates with all that is known, and let people in from now on."""
        taken = self.book.adopt_running()
        for address, gate in self.rules.gates.items():
            if gate.cap is None:
                continue
            for engine in self.rules.engines(address):
                most = int(min(gate.cap, self.rules.slots_of(address, engine)))
                bound = bounds.get(engine)
                if bound is None:
                    bound = most - taken.get(engine, 0)
                for _ in range(min(bound, most)):
                    self.book.take_slot(address, now, engine)
        for door in self.doors - {self.me, *self.members.joined, *self._silent}:
            self._silent[door] = (now, len(self.doors))
        for door, (_, doors) in self._silent.items():
            self._keep_share(door, doors)
        self._evidence.restart(now)
        self._out.append(Say(f"owns the gates, epoch {self.epoch}"))
        self.book.line_up(now)
        self._out.append(GatesReady())
