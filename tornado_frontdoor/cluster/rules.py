"""The cluster's times and limits; every time is a share of the lease.

A door is sure of what it may do for 0.7 leases after it *sent* what was answered; others count it
as gone a whole lease after they last *knew* it. So one stops before the others go on, however long
messages take, as long as no two monotonic clocks run at rates that differ by a third.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRules:
    """What all doors of a cluster agree upon. Raises ValueError for a lease that is no time."""

    gates: Mapping[str, GateRules]
    """By the engine's address, which is the same at every door."""
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
        return gate.cap // max(doors, 1)
