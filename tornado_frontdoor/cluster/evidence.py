"""How many sequences an engine runs for doors that nobody hears of: from its own count.

A slot of a door that is silent must not be given away while the engine still runs its request: a
door that was paused, or cut off from Redis, is not dead. One round asks every door what it has on
the wire, then the engine for its count, then every door again. What a door named both times was in
the engine's count for all of that time, so what the engine counts above those may be a stranger's.
The larger of two rounds in a row holds, since a count may lag behind.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, auto

from tornado_frontdoor.cluster.rules import SAMPLE_GAP_S


class RoundStep(Enum):
    """What a round waits for."""

    REST = auto()
    BEFORE = auto()
    SAMPLES = auto()
    AFTER = auto()


class Evidence:
    """Rounds of one owner over all engines that it wants to know of."""

    def __init__(self) -> None:
        self.step = RoundStep.REST
        self.round = 0
        self.rounds = 0
        """Whole rounds since the last `restart`."""
        self.due_s = 0.0
        self._missing: set[str] = set()
        self._counts: dict[str, frozenset[int]] = {}
        self._before: dict[str, frozenset[int]] = {}
        self._samples: dict[str, int | None] = {}
        self._last: dict[str, int | None] = {}

    def restart(self, now: float) -> None:
        """Begin anew: somebody came or went, so that what was asked means nothing any more."""
        self.step = RoundStep.REST
        self.rounds = 0
        self.due_s = now
        self._last = {}

    def ask(self, doors: Iterable[str]) -> int:
        """Begin to count; returns the number to ask these doors with."""
        self.step = RoundStep.AFTER if self.step is RoundStep.SAMPLES else RoundStep.BEFORE
        self.round += 1
        self._missing = set(doors)
        self._counts = {}
        return self.round

    def counted(self, door: str, number: int, numbers: Iterable[int]) -> bool:
        """Take what a door has on the wire; tells whether all have answered."""
        if number == self.round and self.step in (RoundStep.BEFORE, RoundStep.AFTER):
            self._missing.discard(door)
            self._counts[door] = frozenset(numbers)
        return not self._missing

    @property
    def complete(self) -> bool:
        """Whether the count under way is complete."""
        return self.step in (RoundStep.BEFORE, RoundStep.AFTER) and not self._missing

    def sample(self, addresses: Iterable[str]) -> None:
        """Begin to ask these engines."""
        self.step = RoundStep.SAMPLES
        self._before = self._counts
        self._missing = set(addresses)
        self._samples = {}

    def sampled(self, address: str, busy: int | None) -> bool:
        """Take an engine's count, None where it tells none; tells whether all have answered."""
        if self.step is not RoundStep.SAMPLES:
            return False
        self._missing.discard(address)
        self._samples[address] = busy
        return not self._missing

    def conclude(self, tickets: Mapping[tuple[str, int], str], now: float) -> dict[str, int | None]:
        """End a round: return the most that each engine may run for strangers; None: unknown.

        `tickets`: the upstream of each that the owner counts as in flight at a door it hears of.
        """
        known: dict[str, int] = {}
        for door, before in self._before.items():
            for number in before & self._counts.get(door, frozenset()):
                address = tickets.get((door, number))
                if address is not None:
                    known[address] = known.get(address, 0) + 1
        bounds: dict[str, int | None] = {}
        for address, busy in self._samples.items():
            bound = None if busy is None else max(0, busy - known.get(address, 0))
            last = self._last.get(address, bound)
            bounds[address] = bound if bound is None or last is None else max(bound, last)
            self._last[address] = bound
        self.step = RoundStep.REST
        self.rounds += 1
        self.due_s = now + SAMPLE_GAP_S
        return bounds
