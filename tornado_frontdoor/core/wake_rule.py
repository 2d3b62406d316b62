"""Which of several engines that sleep are wanted awake: as many as those who wait need. Pure.

Rule 1: those count who may run at once: in order of the queue, as far as the cap leaves slots.
Rule 2: each is thought of on an engine where it fits as a whole: on the free slots of those that
        serve, then of those that are on their way, then of one more. That one is wanted.
Rule 3: one more is who is soonest awake, by how deep it sleeps; of equals who would be picked.
Rule 4: nobody passes: where one fits nowhere, the count ends with all wanted that may come back.

    waits | serve: free | on their way: free | asleep: free | wanted
    ------+-------------+--------------------+--------------+-----------------------------------
    1     | -           | -                  | 4, 4         | the first of those asleep
    1     | -           | 4                  | 4            | the one that is on its way
    5     | -           | 4                  | 4            | both
    2     | 2           | 4                  | 4            | nobody: who is on the way is let go
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple


class Stands(IntEnum):
    """How an engine stands; the order is that in which its slots are counted on."""

    SERVES = 0
    COMES = 1
    """On its way to be awake."""
    SLEEPS = 2
    LOST = 3
    """Nobody can tell when it will be awake: it is down, or its last wake failed a moment ago."""


class Candidate(NamedTuple):
    """One engine that may be sent requests once it is awake."""

    name: str
    free: float
    """Slots that nobody holds."""
    stands: Stands
    depth: int = 0
    """How deep it sleeps."""


def wanted(engines: Iterable[Candidate], weights: Iterable[int], room: float) -> set[str]:
    """Return whose wake is wanted; `engines` in the order in which they would be picked.

    `weights` are those of the queue, head first, who an engine is woken for; `room` is what the cap
    leaves.
    """
    # Sorting is stable, so that equals stay as they would be picked.
    ranked = sorted(engines, key=lambda one: (one.stands, one.depth))
    free = [one.free for one in ranked]
    found: set[str] = set()
    for weight in weights:
        room -= weight
        if room < 0:
            break
        place = _place(ranked, free, weight)
        if place is None:
            found.update(one.name for one in ranked if one.stands is Stands.LOST)
            break
        free[place] -= weight
        if ranked[place].stands is not Stands.SERVES:
            found.add(ranked[place].name)
    return found


def _place(ranked: Sequence[Candidate], free: Sequence[float], weight: int) -> int | None:
    """Return where it is thought of: engines that are wanted already come first, by their rank."""
    for place, one in enumerate(ranked):
        if one.stands is not Stands.LOST and weight <= free[place]:
            return place
    return None
