"""What the cluster wants of each upstream of its door."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from tornado_frontdoor.core.decisions import Answered, Refusal
from tornado_frontdoor.proxy.gate_driver import GateDriver


class Share(NamedTuple):
    """What a door without an owner has to itself."""

    cap: int
    slots: Mapping[str, int]
    """At each of several engines."""


class UpstreamGate(Protocol):
    """What an upstream does for the cluster, by its address."""

    def open(self, share: Share | None, journal: Mapping[str, str]) -> GateDriver:
        """Make a fresh gate of this upstream; with `share` instead of its cap, and no engine."""
        ...

    def begin(self) -> None:
        """Let the gate look at its engine."""
        ...

    def close_gate(self) -> None:
        """Drop the gate."""
        ...

    def view(self) -> Mapping[str, Any]:
        """Return the gate as other doors show it."""
        ...

    async def sample(self, engine: str) -> int | None:
        """Return how many sequences an engine runs and keeps waiting; None: it does not tell."""
        ...

    def engine_lost(self, replica: str, why: str) -> None:
        """Take that nobody answers at its engine, or at that one of several: the gate is here."""
        ...

    def drain_replica(self, replica: str, *, undo: bool) -> None:
        """Send nobody new to one of several engines, or send them again: the gate is here."""
        ...

    async def grant_wish(self, level: int, replica: str) -> Answered:
        """Wake the engine (level 0) or put it to sleep, here where its gate is."""
        ...

    def granted(self, number: int, waited_s: float, paused_s: float, replica: str) -> None:
        """Take that a request of this door may start, on that one of several engines."""
        ...

    def refused(self, number: int, refusal: Refusal) -> None:
        """Take that a request of this door is gone."""
        ...
