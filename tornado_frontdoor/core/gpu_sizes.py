"""What an engine was seen to take of each of its GPUs, beside what the settings say. A value."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

STEP_GIB = 0.5
"""What is held to have been missing, at the least, where a wake ran out of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSizes:
    """What was learned of one engine, in GiB of each of its GPUs."""

    needs_gib: float = 0.0
    """What it needs to wake, since a wake ran out of memory; 0: none has."""
    counted_gib: float = 0.0
    """What the settings gave it then: where they give another number now, theirs holds."""

    awake_seen_gib: float | None = None
    """What was measured."""
    sleeping_seen_gib: float | None = None
    offloaded_seen_gib: float | None = None

    @classmethod
    def learned(cls, told: Mapping[str, float]) -> "GpuSizes":
        """Return what `export` gave; what makes no sense in it is passed over."""
        known = {
            name: gib for name, gib in told.items() if name in cls.__slots__ and 0 <= gib < inf
        }
        return cls(**known)

    def export(self) -> dict[str, float]:
        """Return what is to be kept for the next front door."""
        return {name: gib for name in self.__slots__ if (gib := getattr(self, name))}

    def seen_gib(self, level: int) -> float | None:
        """Return what was measured at a level (0: awake); None: nothing was."""
        return (self.awake_seen_gib, self.sleeping_seen_gib, self.offloaded_seen_gib)[level]

    def seen(self, level: int, gib: float) -> "GpuSizes":
        """Return it after a measurement."""
        if level == 0:
            return replace(self, awake_seen_gib=gib)
        return replace(self, **{("sleeping_seen_gib", "offloaded_seen_gib")[level - 1]: gib})

    def awake_gib(self, set_gib: float, *, measured: bool = False) -> float:
        """Return what it takes awake, as far as is known, where the settings say `set_gib`.

        `measured`: what was measured counts in place of that.
        """
        known_gib = set_gib
        if measured and self.awake_seen_gib is not None:
            known_gib = self.awake_seen_gib
        return max(self.needs_gib, known_gib) if self.counted_gib == set_gib else known_gib

    def ran_out(
        self, before_gib: float, set_gib: float, free_gib: float, more_gib: float
    ) -> "GpuSizes":
        """Return it after a wake of `before_gib` beside which `free_gib` was left: not enough.

        `more_gib` is what others can free yet. Where that is nothing, it is not the sums that are
        wrong, but the settings of the engine or somebody else on the GPU: nothing is learned.
        """
        short_gib = min(STEP_GIB, more_gib)
        if short_gib <= 0:
            return self
        needs_gib = before_gib + max(free_gib, 0.0) + short_gib
        return replace(self, needs_gib=needs_gib, counted_gib=set_gib)
