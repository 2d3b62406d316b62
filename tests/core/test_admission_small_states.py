"""Everything that can happen within a few events in a small line, and the planted bugs again."""

import pytest
from planted import PLANTED, planted
from small_states import explore


def test_every_story_of_seven_events_goes_by_the_rules() -> None:
    found = explore(depth=7)
    print(f"{found.states} states, {found.transitions} transitions")
    assert found.states > 20_000
    assert found.transitions > 150_000


@pytest.mark.slow
def test_every_story_of_ten_events_goes_by_the_rules() -> None:
    found = explore(depth=10)
    print(f"{found.states} states, {found.transitions} transitions")


@pytest.mark.parametrize("bug", PLANTED)
def test_six_events_are_enough_for(bug: str) -> None:
    """Also for F61, which random walks meet only after a hundred tries."""
    with pytest.raises(AssertionError, match=r"cap \d, queue \d"):
        explore(depth=6, controller=planted(bug))
