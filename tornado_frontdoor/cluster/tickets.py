"""A door's own requests, as the cluster knows them."""

from enum import Enum, auto
from math import inf

from tornado_frontdoor.cluster.actions import Grant
from tornado_frontdoor.cluster.messages import Arrive, Join, Running, Waiting
from tornado_frontdoor.cluster.rules import SETTLED_S


class OwnStage(Enum):
    """Where a request of this door stands."""

    WAITING = auto()
    GRANTED = auto()
    """It may start, and has not yet."""
    RUNNING = auto()


class Own:
    """One request of this door, from its arrival to the end of its transfer."""

    __slots__ = (
        *("address", "affinity", "entered_s", "granted_s", "number", "paused_s", "place"),
        *("replica", "stage", "stalled", "terms", "waited_s", "weight", "wire_s"),
    )

    def __init__(
        self,
        number: int,
        address: str,
        weight: int,
        now: float,
        affinity: str = "",
        terms: str = "",
    ) -> None:
        self.number = number
        self.address = address
        self.weight = weight
        self.affinity = affinity
        self.terms = terms
        self.replica = ""
        """Which of several engines was picked for it."""
        self.entered_s = now
        self.stage = OwnStage.WAITING
        self.place = 0
        """Its number in the line of the last owner that took it; 0: none has told."""
        self.stalled = False
        """Whether it was granted, and could not start because the grant was too old."""
        self.granted_s = 0.0
        self.waited_s = 0.0
        self.paused_s = 0.0
        self.wire_s = 0.0
        """When its engine was asked."""

    def arrival(self) -> Arrive:
        """Return what an owner is told of it when it comes."""
        return Arrive(self.number, self.address, self.weight, self.affinity, self.terms)

    def start(self) -> Grant:
        """Return what the request is told once it may start."""
        return Grant(self.number, self.waited_s, self.paused_s, self.replica)

    def grant(self, waited_s: float, paused_s: float, replica: str, now: float) -> None:
        """Take that it may start, and where."""
        self.replica = replica
        self.stage = OwnStage.GRANTED
        self.granted_s = now
        self.waited_s = waited_s
        self.paused_s = paused_s


class OwnTickets(dict[int, Own]):
    """All requests of one door, by number."""

    def declare(self, doors: tuple[str, ...], now: float) -> Join:
        """Return all that this door has, for an owner that knows nothing of it."""
        waiting = [own for own in self.values() if own.stage is OwnStage.WAITING]
        waiting.sort(key=lambda own: own.place or inf)
        running = [own for own in self.values() if own.stage is OwnStage.RUNNING]
        return Join(
            tuple(
                Waiting(
                    number=own.number,
                    address=own.address,
                    weight=own.weight,
                    waited_s=now - own.entered_s,
                    place=own.place,
                    affinity=own.affinity,
                    terms=own.terms,
                )
                for own in waiting
            ),
            tuple(Running(own.number, own.address, own.weight, own.replica) for own in running),
            doors,
        )

    def on_wire(self, now: float) -> tuple[int, ...]:
        """Return those that an engine must have in its count by now."""
        return tuple(
            own.number
            for own in self.values()
            if own.stage is OwnStage.RUNNING and now - own.wire_s >= SETTLED_S
        )

    def unsettle(self) -> None:
        """Put back into the line what was granted and has not started."""
        for own in self.values():
            if own.stage is OwnStage.GRANTED:
                own.stage = OwnStage.WAITING
            own.stalled = False

    def stalled(self) -> list[Own]:
        """Return those that could not start when they were told, once."""
        stalled = [own for own in self.values() if own.stalled]
        for own in stalled:
            own.stalled = False
        return stalled
