"""The engines behind one upstream: which of them takes a ticket, and which are there at all. Pure.

Rule 1: no replica holds more slots than it has; a ticket that fits in none waits in the one queue.
Rule 2: a ticket keeps its replica until it is gone, or is moved before anything of it was sent.
Rule 3: one that is down, drained by hand or removed is picked for nobody; who is on it stays.

    state | refused | answered
    ------+---------+---------
    UP    | DOWN    | UP
    DOWN  | DOWN    | UP

`least` picks the replica with the smallest share of its slots taken, the first of equals.
`affinity` gives one key to one replica, for the sake of its prefix cache, by rendezvous hashing:
when a replica comes or goes only its own keys move. No replica takes more than `LOAD_BOUND` times
its share of the whole load that way; then the key's next choice does.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil, inf
from typing import Literal, NamedTuple

from tornado_frontdoor.core.request import Ticket

Pick = Literal["least", "affinity"]

LOAD_BOUND = 1.25
"""How far above its share of the load affinity may take a replica."""
PROBE_UP_S = 2.0
"""Between two looks at one that is up: with a look's own limit a dead one shows within 5 s."""
PROBE_DOWN_S = 1.0
"""Between two looks at one that is down."""


class Engines(NamedTuple):
    """The engines behind one upstream, as an operator sets them."""

    slots: Mapping[str, float]
    """What each runs at once, by its address; infinite where that is for the cap to say."""
    pick: Pick = "least"
    hold_down_s: float = 0.0
    """How long callers wait while none of them is there."""
    probe_up_s: float = PROBE_UP_S
    """Between two looks at one that is up; infinite: it is only seen to be down by requests."""


@dataclass(slots=True, eq=False)
class EngineReplica:
    """One engine behind the upstream; `name` is its address, `slots` what it runs at once."""

    name: str
    slots: float
    used: int = 0
    """Slots that are taken, in flight or cooling."""
    up: bool = True
    drained: bool = False
    removed: bool = False
    probe_s: float = 0.0
    """When it is to be looked at next."""
    why: str = ""
    """What it was last seen to be down by."""

    def take(self, weight: int) -> None:
        """Have so many slots more taken, or less."""
        self.used += weight
        assert self.used >= 0

    def look_later(self, at_s: float) -> None:
        """Be looked at next at that instant."""
        self.probe_s = at_s

    def seen(self, *, up: bool, why: str) -> None:
        """Be there, or not, and why not."""
        self.up, self.why = up, "" if up else why

    def drain(self, *, undo: bool) -> None:
        """Take nobody new, or do again."""
        self.drained = not undo

    def keep(self, slots: float) -> None:
        """Be one of the engines, with so many slots."""
        self.slots, self.removed = slots, False

    def remove(self) -> None:
        """Be one of them no more."""
        self.removed = True

    @property
    def available(self) -> bool:
        """Whether it may be picked."""
        return self.up and not self.drained and not self.removed

    @property
    def state(self) -> str:
        """`up`, `down` or `drained`, as in `/admin/status`."""
        if not self.up:
            return "down"
        return "drained" if self.drained else "up"


class Replicas:
    """All engines behind one upstream. Each call is linear in their number, which is small."""

    def __init__(self, engines: Engines, now: float, *, woken: bool = False) -> None:
        self._woken = woken
        """Whether those that are not up are woken for who waits."""
        self._all: dict[str, EngineReplica] = {}
        self.heaviest: float = 0
        """The greatest weight that any of them could ever take."""
        self.change(engines, now)

    # What can be asked

    def __iter__(self) -> Iterator[EngineReplica]:
        return iter([replica for replica in self._all.values() if not replica.removed])

    def __contains__(self, name: object) -> bool:
        return any(replica.name == name for replica in self)

    @property
    def nobody_up(self) -> bool:
        """Whether all of them are down."""
        return not any(replica.up for replica in self)

    def by_preference(self, ticket: Ticket | None) -> list[EngineReplica]:
        """Return all of them as they would be picked for a ticket if each had room, best first."""
        ranked = sorted(self, key=lambda one: (one.used / one.slots, one.used))
        if self.engines.pick != "affinity" or ticket is None or ticket.affinity is None:
            return ranked
        key = ticket.affinity
        return sorted(ranked, key=lambda one: _score(key, one.name), reverse=True)

    @property
    def nobody_available(self) -> bool:
        """Whether none of them may be picked."""
        return not any(replica.available for replica in self)

    @property
    def all_drained(self) -> bool:
        """Whether none of them takes anybody new until an operator says so."""
        return all(replica.drained for replica in self)

    def places_of_sleepers(self, cap: float, used: int) -> float:
        """Return how many may wait for slots that only those have who are to be woken."""
        if not self._woken:
            return 0
        awake = max(used, sum(one.slots for one in self if one.available))
        if awake >= cap:
            return 0
        free = sum(one.slots - one.used for one in self if not one.up and not one.drained)
        return min(cap - awake, free)

    def next_probe_s(self) -> float:
        """Return when one of them is to be looked at."""
        return min((replica.probe_s for replica in self), default=inf)

    # What can happen

    def change(self, engines: Engines, now: float) -> None:
        """Have these engines; those that are dropped go once nobody is on them."""
        self.engines = engines
        for name, number in engines.slots.items():
            replica = self._all.setdefault(name, EngineReplica(name, number))
            replica.keep(number)
            replica.look_later(now + self._period_s(up=replica.up))
        for replica in [one for one in self._all.values() if one.name not in engines.slots]:
            replica.remove()
            self._forget(replica)
        self.heaviest = max((replica.slots for replica in self), default=0)

    def place(self, ticket: Ticket) -> bool:
        """Have the replica take a ticket that is best for it; False: none has room."""
        replica = self._picked(ticket)
        if replica is None:
            return False
        ticket.replica = replica.name
        replica.take(ticket.weight)
        return True

    def adopt(self, ticket: Ticket) -> None:
        """Count a ticket that runs already, on the replica that an earlier owner picked for it."""
        replica = self._all.get(ticket.replica or "")
        if replica is None:
            ticket.replica = None  # no engine of ours: it takes of the cap alone
        else:
            replica.take(ticket.weight)

    def named(self, name: str | None) -> EngineReplica | None:
        """Return the one of that address, also where it was removed and somebody is on it yet."""
        return self._all.get(name or "")

    def give_back(self, ticket: Ticket) -> None:
        """Take the ticket's slots back; does nothing where it has none."""
        replica = self._all.get(ticket.replica or "")
        if replica is not None:
            replica.take(-ticket.weight)
            if replica.removed:
                self._forget(replica)

    def move(self, ticket: Ticket) -> bool:
        """Give a ticket of which nothing was sent to another replica; False: none has room."""
        other = self._picked(ticket, other_than=ticket.replica)
        if other is None:
            return False
        self.give_back(ticket)
        ticket.replica = other.name
        other.take(ticket.weight)
        return True

    def seen(self, name: str, now: float, *, up: bool, why: str = "") -> None:
        """Take that one has answered, or that nobody listens there."""
        replica = self._all.get(name)
        if replica is not None:
            replica.seen(up=up, why=why)
            replica.look_later(now + self._period_s(up=up))

    def drain(self, name: str, *, undo: bool = False) -> None:
        """Let nobody new on it, or let them again."""
        self._all[name].drain(undo=undo)

    def due(self, now: float) -> list[str]:
        """Return whom to look at now; each is looked at again after its period."""
        due = [replica for replica in self if replica.probe_s <= now]
        for replica in due:
            replica.look_later(now + self._period_s(up=replica.up))
        return [replica.name for replica in due]

    # How

    def _period_s(self, *, up: bool) -> float:
        return self.engines.probe_up_s if up else PROBE_DOWN_S

    def _forget(self, replica: EngineReplica) -> None:
        if replica.removed and not replica.used:
            self._all.pop(replica.name, None)

    def _picked(self, ticket: Ticket, other_than: str | None = None) -> EngineReplica | None:
        weight = ticket.weight
        fit = [
            one
            for one in self._all.values()
            if one.available and one.used + weight <= one.slots and one.name != other_than
        ]
        if len(fit) < 2:  # as mostly: there is nothing to choose
            return fit[0] if fit else None
        if self.engines.pick == "affinity" and ticket.affinity is not None:
            load = weight + sum(one.used for one in self)
            whole = sum(one.slots for one in self if one.available)
            below = [
                one
                for one in fit
                if one.used + weight <= max(weight, ceil(LOAD_BOUND * load * one.slots / whole))
            ]
            return max(below or fit, key=lambda one: _score(ticket.affinity, one.name))
        return min(fit, key=lambda one: (one.used / one.slots, one.used))


def could_not_connect(why: str) -> str:
    """Return why an engine is down that a request could not be sent to."""
    return f"a request could not connect{f': {why}' if why else ''}"


def _score(key: bytes | None, name: str) -> bytes:
    return blake2b(name.encode(), key=(key or b"")[:64], digest_size=8).digest()
