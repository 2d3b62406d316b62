"""What of an engine's GPU memory is mapped, and whether the weights in it mean anything.

Rule 1: what an engine says of its memory (answers, gauge) is kept apart from what is true of it.
Rule 2: no time, no scheduler and no request here; `engine.py` has those.

Facts: vLLM's `executor/abstract.py`, `device_allocator`, `worker/gpu_worker.py`; the release
differences are in `profiles.py`.
"""

from enum import Enum, auto

from simulator.standin.releases import VllmRelease

TAGS = ("weights", "kv_cache")
WEIGHTS_SHARE = 0.9
"""Part of a wake's time that the tag `weights` takes; `kv_cache` takes the rest. A model's choice:
mapping an empty cache is quick beside filling weights."""

GAUGES = ("awake", "weights_offloaded", "discard_all")


class Woken(Enum):
    """What came of a wake."""

    DONE = auto()
    NOTHING = auto()
    """A tag was unknown or not asleep: the whole call did nothing, and says it went well."""
    CRASH = auto()
    """Illegal memory access."""


class GpuMemory:
    """The two tags of one engine, how deep each sleeps, and the truth about the weights."""

    def __init__(self, profile: VllmRelease) -> None:
        self._profile = profile
        self._depth: dict[str, int] = {}  # of each sleeping tag
        self.weights_valid = True
        self.prefixes_stale = False
        self.gauge: dict[str, int] = dict.fromkeys(GAUGES, 0) | {"awake": 1}
        """`vllm:engine_sleep_state`, true or not."""

    @property
    def asleep(self) -> tuple[str, ...]:
        """The sleeping tags."""
        return tuple(tag for tag in TAGS if tag in self._depth)

    @property
    def depth(self) -> int:
        """The true level: 0 awake, 1 weights in host memory, 2 weights gone."""
        return max(self._depth.values(), default=0)

    @property
    def garbage(self) -> bool:
        """Whether text computed now means nothing."""
        return not self.weights_valid or self.prefixes_stale

    def sleeps(self, level: int) -> bool:
        """Tell whether `sleep(level)` would reach the workers at all."""
        if level < 1:
            return False
        if self._profile.sleeps_after_partial_wake:
            return len(self._depth) < len(TAGS)
        return not self._depth

    def sleep(self, level: int) -> None:
        """Put to sleep what is awake, where the release does that; the gauge believes anything."""
        if self.sleeps(level):
            for tag in TAGS:
                # What sleeps already keeps its depth: "cannot change the policy".
                self._depth.setdefault(tag, min(level, 2))
            self.prefixes_stale = not self._profile.clears_prefix_cache
        self._tell("awake" if level < 1 else GAUGES[min(level, 2)])
        if level < 1:
            self.gauge["awake"] = 0  # paused: none of the three

    def wake_share(self, tags: tuple[str, ...] | None) -> float:
        """Return the part of a whole wake's time that waking `tags` takes."""
        share = {"weights": WEIGHTS_SHARE, "kv_cache": 1 - WEIGHTS_SHARE}
        return sum(share[tag] for tag in self._chosen(tags))

    def left_asleep(self, tags: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return the tags that would sleep on after a wake of `tags`."""
        chosen = self._chosen(tags)
        return tuple(tag for tag in self.asleep if tag not in chosen)

    def wake(self, tags: tuple[str, ...] | None) -> Woken:
        """Map `tags` again (None: whatever sleeps)."""
        chosen = self._chosen(tags)
        if (
            chosen == ("kv_cache",)
            and self._depth.get("weights") == 2
            and not self._profile.kv_first_is_safe
        ):
            return Woken.CRASH
        for tag in chosen:
            if self._depth.pop(tag) == 2 and tag == "weights":
                self.weights_valid = False
        if not self._depth or not self._profile.honest_gauge:
            self._tell("awake")
        return Woken.DONE if chosen else Woken.NOTHING

    def reload(self) -> bool:
        """Read the checkpoint into the weights; False when they are not mapped: a crash."""
        if "weights" in self._depth:
            return False
        self.weights_valid = True
        return True

    def _chosen(self, tags: tuple[str, ...] | None) -> tuple[str, ...]:
        if tags is None:
            return self.asleep
        wanted = tuple(tag for tag in tags if tag != "scheduling")
        return wanted if all(tag in self._depth for tag in wanted) else ()

    def _tell(self, state: str) -> None:
        self.gauge = dict.fromkeys(GAUGES, 0) | {state: 1}
