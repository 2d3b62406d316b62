"""The owner's book: every ticket of every door, where it stands, and what the gates are told of it.

Rule: while `learning`, nothing goes to a gate. Then what runs is brought, then those who wait, in
the order of the owner before us; of two that nobody has given a place, who waits longer is first.
"""

from collections.abc import Callable
from math import inf

from tornado_frontdoor.cluster.actions import Action, GateAdopt, GateArrive, GateFinish, Key
from tornado_frontdoor.cluster.messages import (
    Admitted,
    AnyBody,
    Join,
    Queued,
    Running,
    TurnedAway,
    Waiting,
)
from tornado_frontdoor.cluster.rules import ClusterRules
from tornado_frontdoor.core.decisions import Outcome, Reason, Refusal

NOBODY = ""
"""The door of slots of which nobody knows whose they are."""
GONE = Outcome.CLIENT_GONE_QUEUED
ENDED = Outcome.CLIENT_GONE_STREAMING


class Booked:
    """One ticket at the owner."""

    __slots__ = (
        *("address", "affinity", "arrived_s", "at_gate", "place", "replica", "running"),
        *("silent_s", "terms", "told", "weight"),
    )

    def __init__(self, address: str, weight: int, arrived_s: float, *, running: bool) -> None:
        self.address = address
        self.weight = weight
        self.arrived_s = arrived_s
        self.running = running
        self.affinity = ""
        self.terms = ""
        self.replica = ""
        """On which of several engines it runs."""
        self.place = 0
        """Its number in the line, over all owners; 0: none was given yet."""
        self.told = False
        """Whether its door was told its place."""
        self.at_gate = False
        self.silent_s: float | None = None
        """Since when nobody hears of it; None: its door is heard."""

    @property
    def engine(self) -> str:
        """The address of the engine on which it runs."""
        return self.replica or self.address


class Book:
    """Tickets by door and number. `tell` speaks to a door; `out` takes what gates are to do."""

    def __init__(
        self,
        me: str,
        rules: ClusterRules,
        tell: Callable[[str, AnyBody], None],
        out: list[Action],
    ) -> None:
        self.learning = True
        self.table: dict[Key, Booked] = {}
        self._me = me
        self._rules = rules
        self._tell = tell
        self._out = out
        self._places = 0
        self._strangers = 0
        self._fresh: list[Key] = []

    # What doors say

    def declare(self, door: str, join: Join, now: float) -> None:
        """Take all that a door has; what it does not name of what we had, has ended."""
        for running in join.running:  # first: what is given back next may be what they hold
            self._declare_running(door, running, now)
        numbers = {one.number for one in join.running} | {one.number for one in join.waiting}
        for key in [key for key in self.table if key[0] == door and key[1] not in numbers]:
            self.finish(key, ENDED)

    def declare_line(self, door: str, join: Join, now: float) -> None:
        """Take those of a door who wait, once all its slots are known."""
        for one in join.waiting:
            key = (door, one.number)
            entry = self.table.get(key)
            if entry is None:
                self.arrive(key, one, now)
            elif entry.running:  # granted, and the news did not reach it in time
                entry.silent_s = None
                self._tell(door, Admitted(one.number, one.waited_s, 0.0, entry.replica))
            else:
                entry.told = False
                self._fresh.append(key)

    def _declare_running(self, door: str, one: Running, now: float) -> None:
        key = (door, one.number)
        entry = self.table.get(key)
        if entry is not None and entry.running:
            entry.silent_s = None
            return
        if entry is not None:
            self.finish(key, GONE)
        entry = self.table[key] = Booked(one.address, one.weight, now, running=True)
        entry.replica = one.replica
        if not self.learning:
            self._adopt(key, entry)

    def arrive(self, key: Key, one: Waiting, now: float) -> None:
        """Take a ticket of any door."""
        if one.address not in self._rules.gates:
            detail = f"The door that owns the gates has no upstream at {one.address}"
            self._tell(key[0], TurnedAway(key[1], Refusal(Reason.CLUSTER_OUTAGE, detail)))
            return
        entry = Booked(one.address, one.weight, now - one.waited_s, running=False)
        entry.place = one.place
        entry.affinity, entry.terms = one.affinity, one.terms
        self.table[key] = entry
        if not self.learning:
            self._to_gate(key, entry, one.waited_s)

    def finish(self, key: Key, outcome: Outcome) -> None:
        """End a ticket, wherever it is; again it does nothing."""
        entry = self.table.pop(key, None)
        if entry is not None and entry.at_gate:
            self._out.append(GateFinish(key, outcome))

    def take_slot(self, address: str, silent_s: float | None, engine: str = "") -> Key:
        """Take one slot for nobody that is known, at that one of several engines."""
        self._strangers += 1
        key = (NOBODY, self._strangers)
        entry = self.table[key] = Booked(address, 1, 0.0, running=True)
        entry.replica = engine if engine != address or self._rules.gates[address].slots else ""
        entry.silent_s = silent_s
        self._adopt(key, entry)
        return key

    def _to_gate(self, key: Key, entry: Booked, waited_s: float) -> None:
        self._places += 1
        entry.place = self._places
        entry.at_gate = True
        self._fresh.append(key)
        more = entry.affinity, entry.terms
        self._out.append(GateArrive(key, entry.address, entry.weight, waited_s, *more))

    def _adopt(self, key: Key, entry: Booked) -> None:
        entry.at_gate = True
        self._out.append(GateAdopt(key, entry.address, entry.weight, entry.replica))

    # What gates decide

    def decided(self, key: Key, told: Admitted | Refusal) -> bool:
        """Take what its gate decided of a ticket; tells whether it was still known."""
        return self.refused(key, told) if isinstance(told, Refusal) else self.admitted(key, told)

    def admitted(self, key: Key, told: Admitted) -> bool:
        """Take that a ticket is in flight; tells whether it is still known."""
        entry = self.table.get(key)
        if entry is None:
            return False
        entry.running = True
        entry.replica = told.replica
        if key[0] != self._me:
            self._tell(key[0], told)
        return True

    def refused(self, key: Key, refusal: Refusal) -> bool:
        """Take that a ticket is gone; tells whether it was still known."""
        known = self.table.pop(key, None) is not None
        if known and key[0] != self._me:
            self._tell(key[0], TurnedAway(key[1], refusal))
        return known

    def tell_places(self) -> None:
        """Tell doors the places of those of theirs that wait."""
        for key in self._fresh:
            entry = self.table.get(key)
            if entry is not None and not entry.running and not entry.told and key[0] != self._me:
                entry.told = True
                self._tell(key[0], Queued(key[1], entry.place))
        self._fresh.clear()

    # The end of learning

    def adopt_running(self) -> dict[str, int]:
        """Let the gates count what runs; returns the slots that it takes, by engine."""
        self.learning = False
        taken: dict[str, int] = {}
        for key, entry in self.table.items():
            if entry.running:
                self._adopt(key, entry)
                taken[entry.engine] = taken.get(entry.engine, 0) + entry.weight
        return taken

    def line_up(self, now: float) -> None:
        """Bring those who waited to the gates, in the order of the owner before us."""
        waiting = [key for key, entry in self.table.items() if not entry.running]
        waiting.sort(key=self._order)
        self._places = max((self.table[key].place for key in waiting), default=0)
        shortest_s: dict[str, float] = {}
        for key in waiting:
            entry = self.table[key]
            waited_s = min(now - entry.arrived_s, shortest_s.get(entry.address, inf))
            shortest_s[entry.address] = waited_s
            self._to_gate(key, entry, waited_s)

    def _order(self, key: Key) -> tuple[bool, float]:
        entry = self.table[key]
        return entry.place == 0, entry.place or entry.arrived_s
