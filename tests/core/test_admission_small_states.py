"""Everything that can happen within a few events in a small line, and the planted bugs again."""

import pytest
from planted import PLANTED, planted
from small_states import explore


@pytest.mark.parametrize(
    ("depth", "states", "transitions"),
    [
        (6, 10_000, 80_000),
        pytest.param(7, 20_000, 150_000, marks=pytest.mark.slow),
        pytest.param(10, 20_000, 150_000, marks=pytest.mark.slow),
    ],
)
def test_every_story_of_so_many_events_goes_by_the_rules(
    depth: int, states: int, transitions: int
) -> None:
    found = explore(depth=depth)
    print(f"{found.states} states, {found.transitions} transitions")
    assert found.states > states
    assert found.transitions > transitions


@pytest.mark.parametrize("bug", PLANTED)
def test_six_events_are_enough_for(bug: str) -> None:
    """Also for F61, which random walks meet only after a hundred tries."""
    with pytest.raises(AssertionError, match=r"cap \d, queue \d"):
        explore(depth=6, controller=planted(bug))
