"""The whole front door in seeded worlds on virtual time: every law, after every turn of its loop.

A failing seed prints the line that replays it and the acts that are enough for it.

    FRONTDOOR_SEEDS=1234 pytest tests/worlds            this one, told act by act
    FRONTDOOR_SEEDS=0-100000 pytest tests/worlds -n 2   by hand, some hours
"""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from world import World, draw_acts

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BLOCK = 20
"""Worlds of one test: enough that its own costs do not matter."""
SHRINK_RUNS = 120
DEFAULT, BY_HAND = "40-80", ("80-280", "1000-3000")


def blocks(seeds: str) -> list[range]:
    """Return the seeds of `FIRST-END` or of a single one, in blocks."""
    first, _, end = seeds.partition("-")
    every = range(int(first), int(end) if end else int(first) + 1)
    return [every[at : at + BLOCK] for at in range(0, len(every), BLOCK)]


def fault_of(seed: int, without: frozenset[int] = frozenset()) -> tuple[str, World]:
    """Return what went wrong in a world; empty: nothing."""
    world = World(seed, without)
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - whatever a part of it raises is what the world was made for
        return f"{type(error).__name__}: {error}", world
    return "", world


def kind_of(fault: str) -> str:
    """Return what stays of a fault without its instant and its numbers."""
    return re.sub(r"^\w+: (at [\d.]+ s: )?|[\d.]+", "", fault)[:20]


def shrunk(seed: int) -> frozenset[int]:
    """Return which acts can be left out of a failing world: halves first, then one by one."""
    number = len(World(seed).acts)
    without: frozenset[int] = frozenset()
    size, runs, kind = number // 2, 0, kind_of(fault_of(seed)[0])
    while size and runs < SHRINK_RUNS:
        for start in range(0, number, size):
            tried = without | frozenset(range(start, min(number, start + size)))
            if tried != without and runs < SHRINK_RUNS:
                runs += 1
                if kind_of(fault_of(seed, tried)[0]) == kind:
                    without = tried
        size //= 2
    return without


def hold(seeds: range) -> Counter[str]:
    """Run worlds; fail at the first that breaks a law, with what is enough to see it."""
    happened: Counter[str] = Counter()
    for seed in seeds:
        fault, world = fault_of(seed)
        happened.update(world.happened)
        if fault:
            left = World(seed, shrunk(seed))
            last, _ = fault_of(seed, shrunk(seed))
            acts = "\n".join(f"    {act.at_s:8.3f} s  {act.what}  {act.seed}" for act in left.acts)
            pytest.fail(
                f"{fault}\nreplay: FRONTDOOR_SEEDS={seed} pytest {HERE}\n"
                f"these acts are enough for {last.splitlines()[0]}:\n{acts}",
                pytrace=False,
            )
    return happened


@pytest.mark.parametrize(
    "seeds",
    [
        *blocks(os.environ.get("FRONTDOOR_SEEDS", DEFAULT)),
        *(pytest.param(some, marks=pytest.mark.slow) for text in BY_HAND for some in blocks(text)),
    ],
    ids=str,
)
def test_worlds_keep_the_laws(seeds: range) -> None:
    hold(seeds)


def test_a_world_is_the_same_in_every_process() -> None:
    """Law 9: whatever the hash seed is, and whatever ran before in that process."""
    program = "import sys; from world import World; print([World(s).run() for s in (7, 8, 7)])"
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{HERE}:{ROOT}"},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for seed in ("0", "5")
    }
    (digests,) = told
    first, second, again = eval(digests)  # noqa: S307 - ours, three lines above
    assert first == again != second


def test_leaving_acts_out_leaves_the_others_as_they_are() -> None:
    world = World(3)
    assert World(3, {0, 2}).acts == [a for n, a in enumerate(world.acts) if n not in (0, 2)]
    assert len(draw_acts(world.rng)) > 10


def test_worlds_meet_what_they_are_for() -> None:
    """Else all of the above is true of nothing."""
    happened = hold(range(40))
    outcomes = {
        *("served", "queue_full", "queue_timeout", "model_waking", "client_gone_queued"),
        *("client_gone_streaming", "upstream_error", "upstream_timeout", "bad_request"),
        *("model_not_found", "ask", "babble", "operate", "kill", "fault", "hangup"),
    }
    assert not outcomes - set(happened), happened
