"""What is known of an engine on the GPUs, and what can be decided about it. Values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import NamedTuple

from tornado_frontdoor.engines.base import STOPPED

Place = int | str
"""A GPU by its number, or a group by its name: in that there is room for one that is awake."""


class Moving(Enum):
    """A transition under way; its end is not known yet, so the larger footprint counts."""

    WAKING = "waking"
    SLEEPING = "sleeping"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomLimits:
    """What there is, and how turns are taken."""

    device_gib: Mapping[Place, float]
    """What all engines may take together on each GPU."""
    whole_gib: Mapping[Place, float] = field(default_factory=dict)
    """The memory of each GPU: one that fits beside nothing else may take of it, beyond the limit,
    what sleepers leave. Where it is not given, the limit holds for all."""
    host_gib: float = inf
    """What the weights of all sleepers at level 1 may take together in the host."""
    stay_factor: float = 3.0
    max_turn_wait_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """One engine as it is now. Memory is for each of its devices, instants in monotonic seconds."""

    upstream: str
    """What it is known by: unique."""
    devices: tuple[int, ...]
    awake_gib: float
    name: str = ""
    """For people; empty: `upstream`."""
    groups: tuple[str, ...] = ()
    """Those of which it is the one that is awake, while it is."""
    asleep_gib: float = 0.0
    """What is left at level 1 or 2: the CUDA context, and what sleep mode cannot free."""
    offloaded_gib: float | None = None
    """What is left at level 2, where that is known to be another."""
    weights_gib: float = 0.0
    """What it takes of the host at level 1."""
    levels: tuple[int, ...] = (1, 2)
    """To which it can be put."""
    pinned: bool = False
    priority: int = 0
    """The lower make room first."""
    level: int = 0
    """Where it is; one that nobody knows counts as awake."""
    known: bool = True
    """Whether it is known where it is: else it cannot be told to make room yet."""
    moving: Moving | None = None
    in_flight: int = 0
    oldest_waiter_s: float = inf
    """When the first of its queue arrived; infinity: nobody waits."""
    woke_s: float = -inf
    active_s: float = -inf
    """When a request last came or ended."""
    switch_cost_s: float = 0.0
    """How long it takes to fall asleep and to be awake again, as observed."""
    asks: Moving | None = None
    """The transition that it wants to begin."""
    asks_since_s: float = inf
    """When the oldest of those came who want it awake: turns are taken in this order."""
    rests_until_s: float = -inf
    """It could not make room when it was told to; before that it is not told again."""
    goes_to: int | None = None
    """The level it was told to go to, to make room, or is on its way to."""

    @property
    def told_name(self) -> str:
        """How people call it."""
        return self.name or self.upstream

    @property
    def idle(self) -> bool:
        """Whether it has no work, neither begun nor waiting."""
        return self.in_flight == 0 and self.oldest_waiter_s == inf

    @property
    def must_wake_to_fall(self) -> bool:
        """Whether it wants to sleep deeper, for which its weights come back for a moment."""
        return self.level != 0 and self.goes_to not in (None, 0, STOPPED)

    @property
    def told(self) -> bool:
        """Whether it was told to make room and has not begun."""
        return self.goes_to is not None and self.moving is None and self.asks is None

    @property
    def places(self) -> tuple[Place, ...]:
        """Where it needs room."""
        return (*self.devices, *self.groups) if self.groups else self.devices

    @property
    def gib(self) -> float:
        """What it takes of each of its devices now."""
        return self.gib_at(self._counts_as)

    def gib_in(self, place: Place) -> float:
        """Return what it takes of a place of its own now; of a group 1, or nothing."""
        return self.gib_at(self._counts_as, place)

    def gib_at(self, level: int, place: Place = 0) -> float:
        """Return what it would take at that level of each of its devices, or of a group."""
        if isinstance(place, str):
            return float(level == 0)
        if level == 0:
            return self.awake_gib
        if level == STOPPED:
            return 0.0
        known = level == 2 and self.offloaded_gib is not None
        return self.offloaded_gib or 0.0 if known else self.asleep_gib

    @property
    def _counts_as(self) -> int:
        """The level whose memory it takes now."""
        if self.moving is None or (self.level != 0 and self.goes_to == STOPPED):
            return self.level
        return 0  # also from level 1 to 2, for which weights come back for a moment


class Granted(NamedTuple):
    """There is room, and no other transition on its devices: the one it asked for may begin."""

    upstream: str


class MakeRoom(NamedTuple):
    """Admit nobody any more, and sleep at `level` once those in flight have ended."""

    upstream: str
    level: int
    for_upstream: str


class StayAwake(NamedTuple):
    """Nobody needs the room any more that it was to make."""

    upstream: str


class NeverFits(NamedTuple):
    """It cannot be awake beside what may not make room; `detail` has the sum."""

    upstream: str
    detail: str


RoomOrder = Granted | MakeRoom | StayAwake | NeverFits
