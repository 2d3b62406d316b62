"""Random walks by seed, and the proof that walks and laws find the bugs planted for them.

Replay what failed with `FRONTDOOR_SEEDS=17 pytest tests/core/test_admission_walks.py`; more of them
with `FRONTDOOR_SEEDS=0-99999`.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from depth import seeds
from planted import PLANTED, Patch, patched, planted
from walks import Walk

SEEDS = seeds("0-999")
ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
"""What a script of this room finds its modules by."""

SAID_BY_NO_LAW = {
    "drain from the tail": "the laws know an order of admission, and none of refusals",
}
ENOUGH = 1000
"""Walks within which each planted bug shows up; most do within ten."""


def walk(seed: int, steps: int) -> Walk:
    """Walk, or fail with the way back to here."""
    one = Walk(seed)
    try:
        return one.run(steps)
    except Exception as error:  # noqa: BLE001 - a bug may raise what it likes
        last = "\n".join(one.trace[-12:])
        pytest.fail(
            f"{type(error).__name__}: {error}\n{last}\n"
            f"replay: FRONTDOOR_SEEDS={seed} .venv/bin/pytest {Path(__file__).relative_to(ROOT)}"
        )


def caught_at(bug: str, *, by_model: bool, by_laws: bool) -> int | None:
    """Return the first seed at which a planted bug shows up."""
    controller = planted(bug)
    for seed in range(ENOUGH):
        try:
            Walk(seed, controller, by_model=by_model, by_laws=by_laws).run()
        except Exception:  # noqa: BLE001 - a bug may raise what it likes
            return seed
    return None


def test_walks_keep_the_laws_and_meet_what_they_are_for() -> None:
    """F59, F41: gauges are compared with a recount after each of some sixty thousand events."""
    met: Counter[str] = Counter()
    for seed in SEEDS:
        met += walk(seed, steps=60).met
    if len(SEEDS) >= 500:
        rare = {name: count for name, count in met.items() if count < 30}
        assert len(met) == 16, sorted(met)
        assert not rare, "a walk that never meets a tie proves nothing about ties"


@pytest.mark.slow
def test_many_walks_keep_the_laws() -> None:
    for seed in range(20_000):
        walk(seed, steps=80)


@pytest.mark.parametrize("bug", PLANTED)
def test_laws_alone_catch(bug: str) -> None:
    caught = caught_at(bug, by_model=False, by_laws=True)
    assert (caught is None) == (bug in SAID_BY_NO_LAW), caught


@pytest.mark.parametrize("bug", PLANTED)
def test_the_naive_line_alone_catches(bug: str) -> None:
    assert caught_at(bug, by_model=True, by_laws=False) is not None


def test_a_patch_that_finds_no_place_is_an_error() -> None:
    source = "    def finish(self):\n        pass\n\n    def arrive(self):\n        go()\n"
    assert patched(source, Patch("arrive", "go()")).count("pass") == 2
    with pytest.raises(ValueError, match="not found once in finish"):
        patched(source, Patch("finish", "go()"))


def test_the_same_seeds_make_the_same_trace_in_any_process() -> None:
    """Law 9: no set and no hash decides an order."""
    script = Path(__file__).with_name("walks.py")
    digests = {
        subprocess.run(
            [sys.executable, str(script), "0-99"],
            env={
                **os.environ,
                "PYTHONHASHSEED": hash_seed,
                "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
            },
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for hash_seed in ("0", "1", "4294967295")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64
