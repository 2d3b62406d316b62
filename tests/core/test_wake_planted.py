"""The tests of the wake machine are tested: each bug of `planted_wake.py` is caught by one."""

import importlib
import inspect
from collections.abc import Callable

import pytest
from planted_wake import PLANTED, Patch, broken
from wake_scenes import Scene


def test_named(name: str) -> Callable[[], None]:
    """Return a test of this room by its name, ready to be run on a scene of its own."""
    module, *path = name.split(".")
    found = importlib.import_module(module)
    owner = None
    for part in path:
        owner, found = found, getattr(found, part)
    run = getattr(owner(), path[-1]) if inspect.isclass(owner) else found
    wanted = [name for name in inspect.signature(run).parameters if name == "scene"]
    return lambda: run(*(Scene() for _ in wanted))


test_named.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch = PLANTED[bug]
    judge = test_named(patch.caught_by)
    judge()
    method = broken(patch)
    monkeypatch.setattr(patch.owner, patch.method, method)
    with pytest.raises(Exception):  # noqa: B017, PT011 - an assertion of ours, or what a bug raises
        judge()


def test_there_are_enough_of_them() -> None:
    assert len(PLANTED) >= 40


def test_a_place_that_is_not_there_is_told() -> None:
    with pytest.raises(ValueError, match="not found once"):
        broken(next(iter(PLANTED.values()))._replace(old="nowhere"))
    assert isinstance(next(iter(PLANTED.values())), Patch)
