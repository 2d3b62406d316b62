"""The cluster's times and limits; every time is a share of the lease.

A door is sure of what it may do for 0.7 leases after it *sent* what was answered; others count it
as gone a whole lease after they last *knew* it. So one stops before the others go on, however long
messages take, as long as no two monotonic clocks run at rates that differ by a third.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

VALID = 0.7
"""Leases for which an owner trusts its lease, and a member its owner."""
BEAT = 0.2
SPLIT = 2.0
"""Leases without contact before a door goes on by itself: its owner reserves its share by 1.7."""
QUIET = 1.3
"""Leases since it last said anything to an owner before a door uses its share: by then it is silent
to that owner, which reserves the share, however long the last message was on its way."""
LEARN = 0.5
"""Leases for which a new owner lets nobody in: grants of the old one are dead by 0.4."""
RELEARN = 1.5
"""As `LEARN`, where Redis has lost its memory, so that the old owner may not know yet: 1.4."""
SETTLED_S = 0.1
"""A request that was sent so long ago is in the engine's own count."""
SAMPLE_GAP_S = 0.1
"""Between two looks at an engine's own count."""
BLIND_S = 60.0
"""Slots of a silent door are given back after this where the engine tells no count of its own."""
FORGET_S = 60.0
"""A silent door of which nothing is known keeps its share reserved for so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRules:
    """One upstream's limits, as far as the cluster needs them."""

    cap: int | None
    sleeps: bool
    """Whether its engine is put to sleep: then nobody goes on without an owner."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """What each of several engines runs at once, by its address; empty: there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRules:
    """What all doors of a cluster agree upon. Raises ValueError for a lease that is no time."""

    gates: Mapping[str, GateRules]
    """By the upstream's address, that of its first engine, which is the same at every door."""
    lease_s: float = 2.0
    on_outage: Literal["split", "refuse"] = "split"

    def __post_init__(self) -> None:
        if not self.lease_s > 0:
            raise ValueError(f"lease_s must be above 0, not {self.lease_s}")

    def share(self, address: str, doors: int) -> int:
        """Return the slots that each of so many doors has to itself without an owner."""
        gate = self.gates.get(address)
        if gate is None or gate.cap is None or gate.sleeps or self.on_outage == "refuse":
            return 0
        whole = gate.cap // max(doors, 1)
        slots = self.slot_shares(address, doors)
        return min(whole, sum(slots.values())) if slots else whole

    def slot_shares(self, address: str, doors: int) -> dict[str, int]:
        """Return the slots that each of so many doors has at each of several engines."""
        gate = self.gates.get(address)
        slots = {} if gate is None else gate.slots
        return {engine: number // max(doors, 1) for engine, number in slots.items()}

    def engines(self, address: str) -> tuple[str, ...]:
        """Return the addresses of the engines behind an upstream."""
        gate = self.gates.get(address)
        return tuple(gate.slots) if gate is not None and gate.slots else (address,)

    def slots_of(self, address: str, engine: str) -> float:
        """Return what one of several engines runs at once; infinity: that is for the cap to say."""
        gate = self.gates.get(address)
        return inf if gate is None else gate.slots.get(engine, inf)
