"""What an engine's count tells of slots that cool: never more than is true of any engine."""

from random import Random

import pytest

from tornado_frontdoor.core.cooling_count import CoolingCount


@pytest.mark.parametrize(
    ("samples", "cooling", "free"),
    [
        ([(0, 0)], 2, 0),  # one count may lag
        ([(0, 0), (0, 0)], 2, 2),
        ([(2, 2), (2, 2)], 2, 2),  # two are known to run, and it runs no more
        ([(4, 2), (3, 2)], 2, 0),  # the larger of the two holds
        ([(3, 2), (3, 2)], 2, 1),
        ([(3, 2), (9, 2)], 2, 0),  # others use it too
        ([(0, 0), (None, 0), (0, 0)], 2, 0),  # it must tell twice in a row
        ([(0, 3), (0, 3)], 2, 2),
    ],
)
def test_slots_that_cool_are_free_above_what_may_be_theirs(
    samples: list[tuple[int | None, int]], cooling: int, free: int
) -> None:
    count = CoolingCount()
    told = [count.free(counted, at_work, cooling) for counted, at_work in samples]
    assert told == [0] * (len(samples) - 1) + [free]


def test_no_engine_ever_runs_more_than_is_left_to_it() -> None:
    """Requests come, end and are broken off; the engine's count lags behind by one look."""
    rng = Random(3)
    freed = 0
    for _ in range(300):
        count, slots, number = CoolingCount(), 6, 0
        at_work: set[int] = set()
        zombies: set[int] = set()  # broken off, and run on
        cooling: set[int] = set()
        lagging = before = set[int]()
        cooled = [set[int](), set[int]()]
        counted: int | None = None
        for _ in range(60):
            while len(at_work) + len(cooling) < slots and rng.random() < 0.6:
                number += 1
                at_work.add(number)
            for one in [*at_work]:
                if rng.random() < 0.15:
                    at_work.discard(one)
                    if rng.random() < 0.5:
                        zombies.add(one)
                        cooling.add(one)
            zombies -= {one for one in zombies if rng.random() < 0.2}
            long = cooling & cooled[0]
            free = count.free(counted, len(before & at_work), len(long))
            cooling -= set(sorted(long)[:free])
            freed += free
            assert len(zombies) <= len(cooling)
            # Who came since the last look is not in the count yet, and is not known to run either.
            before = at_work & lagging
            cooled = [cooled[1], set(cooling)]
            counted = len((at_work | zombies) & lagging)
            lagging = at_work | zombies
    assert freed > 1000
