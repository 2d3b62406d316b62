"""Who is in the memory of the GPUs now, who wants in, who was told to go: one for all gates.

Rule 1: gates tell facts; what is to be done `gpu_room.plan` decides, anew from all facts.
Rule 2: what was ordered counts as done at once. A grant that is still on its way to its gate can
        be given to nobody else.
Rule 3: one transition at a time on each GPU; two crash it (vllm#36753). That holds without any
        number of GiB too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from tornado_frontdoor.core.gpu_occupant import (
    Granted,
    MakeRoom,
    Moving,
    NeverFits,
    Occupant,
    RoomLimits,
    RoomOrder,
    StayAwake,
)
from tornado_frontdoor.core.gpu_room import plan, room_of

RESTS_S = 10.0
"""How long one is left alone that could not make room: it had work of somebody else, or failed."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is known of one engine: `facts` are its gate's, the rest is the ledger's own."""

    facts: Callable[[], Occupant]
    asks: Moving | None = None
    asks_since_s: float = inf
    moving: Moving | None = None
    falls_to: int | None = None
    """The level of the sleep that it asks for, or that is under way."""
    told: int | None = None
    """The level that it was told to go to, to make room."""
    room_for: str = ""
    """The name of the one that it makes, or made last, room for."""
    rests_until_s: float = -inf
    impossible: str = ""

    @property
    def calm(self) -> bool:
        """Whether nothing is going on with this engine."""
        nothing = self.asks is None and self.moving is None and self.told is None
        return nothing and not self.impossible

    @property
    def undecided(self) -> bool:
        """Whether a plan may have something to say of this engine: it asks, or was told to go."""
        told = self.told is not None or (self.falls_to is not None and self.moving is None)
        return self.asks is not None or told

    def occupant(self) -> Occupant:
        """Return the whole of it, for a plan."""
        facts = self.facts()
        first_s = facts.oldest_waiter_s
        return replace(
            facts,
            asks=self.asks,
            asks_since_s=self.asks_since_s if first_s == inf else first_s,
            moving=self.moving,
            goes_to=self.told if self.falls_to is None else self.falls_to,
            rests_until_s=self.rests_until_s,
        )


@dataclass(slots=True)
class GpuLedger:
    """The memory of all GPUs. Never blocks; a plan over all engines where anybody wants anything.

    An engine is known by its `owner`: the address of it, which outlives its name.
    """

    limits: RoomLimits = field(default_factory=lambda: RoomLimits(device_gib={}))
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _waits_for: Mapping[str, str] = field(default_factory=dict)
    _next_s: float = inf
    _undecided: bool = False
    calm: bool = True
    """Whether nobody asks for anything, moves, or was told anything: then nobody need look here."""

    # What gates tell

    def join(self, owner: str, facts: Callable[[], Occupant]) -> None:
        """Have an engine in the ledger; `facts` returns it as it is now."""
        self._entries[owner] = _Entry(facts)
        self._look()

    def forget(self, owner: str) -> None:
        """Strike out an engine that is no longer ours."""
        self._entries.pop(owner, None)
        self._look()

    def ask_to_wake(self, owner: str, since_s: float) -> None:
        """Ask for room and a turn, since now; where somebody waits for it, since the first came."""
        assert not self.holds(owner), f"{owner} holds its devices"
        self._put(owner, asks=Moving.WAKING, asks_since_s=since_s)

    def ask_to_sleep(self, owner: str, level: int) -> None:
        """Ask for a turn to fall to a level."""
        assert not self.holds(owner), f"{owner} holds its devices"
        self._put(owner, asks=Moving.SLEEPING, falls_to=level)

    def release(self, owner: str) -> None:
        """Take the end of a transition, or that it is not wanted any more."""
        self._put(owner, asks=None, moving=None, falls_to=None, asks_since_s=inf, impossible="")

    def left(self, owner: str) -> None:
        """Take that what it was told to free is free, in whatever way that came."""
        self._put(owner, told=None)

    def cannot_leave(self, owner: str, now: float) -> None:
        """Take that it could not make room: somebody else has to, and it is left alone a while."""
        self._put(owner, told=None, rests_until_s=now + RESTS_S)

    def ran_out(self, owner: str) -> tuple[float, float]:
        """Return what was left by the sums as its wake ran out, and what others can free yet.

        In GiB of the one of its devices that has least.
        """
        occupants = self.occupants()
        one = next(other for other in occupants if other.upstream == owner)
        return room_of(one, occupants, self.limits)

    def _put(self, owner: str, **changes: Any) -> None:
        self._entries[owner] = replace(self._entries[owner], **changes)
        self._look()

    def _look(self) -> None:
        entries = self._entries.values()
        self.calm = all(entry.calm for entry in entries)
        self._undecided = not self.calm and any(entry.undecided for entry in entries)

    # What can be asked

    def holds(self, owner: str) -> bool:
        """Tell whether it may move now."""
        entry = self._entries.get(owner)
        return entry is not None and entry.moving is not None

    def told(self, owner: str) -> int | None:
        """Return the level that it was told to go to, to make room, if it was."""
        return self._entries[owner].told

    def room_for(self, owner: str) -> str:
        """Return the name of the one that it makes, or made last, room for."""
        return self._entries[owner].room_for

    def impossible(self, owner: str) -> str:
        """Say why what it asked for can never be, if so."""
        return self._entries[owner].impossible

    def waits_for(self, owner: str) -> str | None:
        """Say what keeps it from waking, if the GPUs do."""
        return self._waits_for.get(owner)

    def next_deadline(self) -> float:
        """Return when time alone will change who may do what; infinity: never."""
        return self._next_s

    def occupants(self) -> tuple[Occupant, ...]:
        """Return everybody as they are, in the order in which they were first noted."""
        return tuple(entry.occupant() for entry in self._entries.values())

    # Decisions

    def settle(self, now: float) -> tuple[str, ...]:
        """Decide anew; return the owners about whom something was decided, each once."""
        if not self._undecided:
            self._waits_for, self._next_s = {}, inf
            return ()
        decided: dict[str, None] = {}
        while True:
            made = plan(self.occupants(), self.limits, now)
            self._waits_for, self._next_s = made.waits_for, made.next_s
            for order in made.orders:
                self._apply(order)
                decided[order.upstream] = None
            if not made.orders:
                return tuple(decided)

    def _apply(self, order: RoomOrder) -> None:
        match order:
            case Granted():
                self._put(order.upstream, moving=self._entries[order.upstream].asks, asks=None)
            case MakeRoom():
                asking = self._entries[order.for_upstream].facts().told_name
                self._put(order.upstream, told=order.level, room_for=asking)
            case StayAwake():
                self._put(order.upstream, told=None)
            case NeverFits():
                self._put(order.upstream, asks=None, impossible=order.detail)
