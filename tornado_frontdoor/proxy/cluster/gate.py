"""The gate of one upstream wherever it is: here, at another door, or, for a while, nowhere.

Behind its face, that of a `DistantGate`, is the cluster. While this door owns the gates there is a
real one here, and the tickets of all doors are in it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tornado_frontdoor.core.decisions import Answered, Verdict
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.proxy.cluster.door import ClusterDoor
from tornado_frontdoor.proxy.cluster.ports import Share
from tornado_frontdoor.proxy.distant_gate import DistantGate, GateView, view_of
from tornado_frontdoor.proxy.gate_driver import AdmissionLimits, GateDriver

_NOTHING: Mapping[str, Any] = {}


class SharedGate(DistantGate):
    """One upstream at one door of the cluster.

    `build` makes the gate that this door drives while it owns it; `count` asks the engine how much
    it runs; `wish` does at the gate here what an operator wants.
    """

    def __init__(
        self,
        door: ClusterDoor,
        address: str,
        key: UpstreamKey,
        limits: Callable[[], AdmissionLimits],
        build: Callable[[Share | None, Mapping[str, str]], tuple[GateDriver, Callable[[], None]]],
        count: Callable[[str], Any],
        wish: Callable[[int, str], Any],
    ) -> None:
        super().__init__(door, address, key, limits)
        self.driver: GateDriver | None = None
        self._build = build
        self._drop: Callable[[], None] = _nothing
        self.on_refused: Callable[[str, str], None] = _ignore
        """Takes that nobody listens at one of several engines, while the gate is here."""
        self._count = count
        self._wish = wish
        self._split = False
        door.gates[address] = self

    @property
    def gate(self) -> Any:
        """The gate as this door knows it: its own, or what the owner shows."""
        if self.driver is not None and not self._split:
            return self.driver.gate
        view = _NOTHING if self._split else self._way.views.get(self.address, _NOTHING)
        shown = GateView(self.key, self._limits(), view)
        if self.driver is not None:
            own = self.driver.gate
            shown.in_flight, shown.queued, shown.state = own.in_flight, own.queued, own.state
        return shown

    # What the cluster wants

    def open(self, share: Share | None, journal: Mapping[str, str]) -> GateDriver:
        """Make a fresh gate; with `share` instead of the cap, and no engine."""
        self._split = share is not None
        shown = self.gate.replicas or ()
        self.driver, self._drop = self._build(share, journal)
        for one in shown:  # what an operator wanted of the owner before holds on
            if one.drained:
                self.drain_replica(one.name, undo=False)
        return self.driver

    def begin(self) -> None:
        """Let the gate look at its engine."""
        if self.driver is not None:
            self.driver.begin()

    def close_gate(self) -> None:
        """Drop the gate; nothing of it has any effect any more."""
        if self.driver is not None:
            self.driver.close()
            self._drop()
        self.driver, self._drop, self._split = None, _nothing, False
        self.on_refused = _ignore

    def view(self) -> Mapping[str, Any]:
        """Return the gate as other doors show it."""
        if self.driver is None:
            return _NOTHING
        return view_of(self.driver.gate)

    async def sample(self, engine: str) -> int | None:
        """Return how many sequences an engine runs and keeps waiting; None: it does not tell."""
        busy: int | None = await self._count(engine)
        return busy

    def drain_replica(self, replica: str, *, undo: bool) -> None:
        """Send nobody new to one of several engines, or send them again: the gate is here."""
        if self.driver is not None and replica in (self.driver.gate.replicas or ()):
            self.driver.drain_engine(replica, undo=undo)

    def engine_lost(self, replica: str, why: str) -> None:
        """Take that nobody answers at the engine, or at that one of several: the gate is here."""
        if self.driver is not None:
            self.on_refused(replica or self.address, why)

    async def grant_wish(self, level: int, replica: str) -> Answered:
        """Do what an operator wants of the engine, here where its gate is."""
        if self.driver is None:
            return Answered("", Verdict.FAILED, "the gates have just gone to another front door")
        answered: Answered = await self._wish(level, replica)
        return answered

    # What the proxy wants of any gate

    def close(self) -> None:
        """Drop the gate."""
        self.close_gate()


def _nothing() -> None:
    """Do nothing."""


def _ignore(_: str, __: str) -> None:
    """Do nothing."""
