"""One GPU that several stand-ins share: a wake for which there is no room in it fails, as CUDA's.

Only stand-ins of one process share one. What starts takes its part unasked: have them asleep first.
"""

from dataclasses import dataclass, field

FULL = "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:119"
"""What vLLM's sleep mode says (csrc/cumem_allocator.cpp)."""


@dataclass(slots=True)
class SharedGpu:
    """How much there is, and who takes how much of it."""

    memory_gib: float
    taken_gib: dict[int, float] = field(default_factory=dict)
    """By the number of each part."""
    refusals: int = 0
    """Wakes for which there was no room."""
    most_gib: float = 0.0
    """The most that was ever taken at once."""

    def part(self, weights_gib: float, kv_cache_gib: float, residual_gib: float) -> "GpuPart":
        """Return the part of another stand-in."""
        number = len(self.taken_gib)
        self.taken_gib[number] = 0.0
        return GpuPart(self, number, weights_gib, kv_cache_gib, residual_gib)


@dataclass(slots=True)
class GpuPart:
    """What one stand-in takes of it."""

    gpu: SharedGpu
    number: int
    weights_gib: float
    kv_cache_gib: float
    residual_gib: float
    """The CUDA context, and what sleep mode cannot free."""

    def fits(self, asleep: tuple[str, ...]) -> bool:
        """Tell whether there is room for it with those of its tags asleep; a no is counted."""
        others_gib = sum(self.gpu.taken_gib.values()) - self.gpu.taken_gib[self.number]
        fits = others_gib + self._gib(asleep) <= self.gpu.memory_gib + 1e-9
        self.gpu.refusals += not fits
        return fits

    def take(self, asleep: tuple[str, ...]) -> None:
        """Take what it needs with those of its tags asleep."""
        self.gpu.taken_gib[self.number] = self._gib(asleep)
        self.gpu.most_gib = max(self.gpu.most_gib, sum(self.gpu.taken_gib.values()))

    def leave(self) -> None:
        """Take nothing any more: the process is gone."""
        self.gpu.taken_gib[self.number] = 0.0

    def _gib(self, asleep: tuple[str, ...]) -> float:
        weights_gib = 0.0 if "weights" in asleep else self.weights_gib
        kv_cache_gib = 0.0 if "kv_cache" in asleep else self.kv_cache_gib
        return self.residual_gib + weights_gib + kv_cache_gib
