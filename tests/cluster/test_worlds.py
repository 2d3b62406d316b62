"""Worlds of doors under every fault; each failure prints the line that replays it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from depth import parse_seeds, seeds
from worlds import World

from tornado_frontdoor.cluster import node
from tornado_frontdoor.cluster.evidence import Evidence
from tornado_frontdoor.cluster.node import Node
from tornado_frontdoor.cluster.owner import GateOwner

HERE = Path(__file__)
PATHS = os.pathsep.join(map(str, HERE.parents[1:3]))
"""What a script of this room finds its modules by."""
SEEDS = seeds("0-9")
GIVEN = os.environ.get("FRONTDOOR_SHORT_SEEDS")
SHORT, BY_HAND = parse_seeds(GIVEN or "10000-10399"), parse_seeds("10400-15999")
"""Worlds of some seconds with one to three faults: hundreds of them in each run."""
BLOCK = 50


def play(seed: int) -> World:
    print(f"replay: FRONTDOOR_SEEDS={seed} pytest {HERE}")
    return World(seed).run()


@pytest.mark.parametrize("first", range(0, len(SEEDS), 10))
def test_worlds_keep_the_laws_and_come_to_rest(first: int) -> None:
    worlds = [play(seed) for seed in SEEDS[first : first + 10]]
    assert sum(world.served for world in worlds) > 0


def blocks(seeds: Sequence[int]) -> list[Sequence[int]]:
    return [seeds[first : first + BLOCK] for first in range(0, len(seeds), BLOCK)]


@pytest.mark.parametrize(
    "seeds",
    [*blocks(SHORT), *(pytest.param(some, marks=pytest.mark.slow) for some in blocks(BY_HAND))],
    ids=lambda seeds: str(seeds[0]),
)
def test_short_worlds_keep_the_laws_and_come_to_rest(seeds: Sequence[int]) -> None:
    served = 0
    for seed in seeds:
        print(f"replay: FRONTDOOR_SHORT_SEEDS={seed} pytest {HERE} -k short")
        served += World(seed, short=True).run().served
    assert served > 0


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 5000, 250))
def test_thousands_of_worlds_keep_the_laws(first: int) -> None:
    for seed in range(first, first + 250):
        play(seed)


def test_the_same_seed_gives_the_same_trace_in_every_process() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "worlds.py", "0-3"],
            cwd=HERE.parent,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": PATHS},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for hash_seed in ("0", "77")
    }
    assert len(digests) == 1


# Planted bugs: each is one that somebody could make, and the worlds must not survive it


def no_look_at_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "VALID", 1e9)
    monkeypatch.setattr(Node, "_is_sure", lambda self, _: bool(self.owner or self.session))


def no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    def conclude(self: Evidence, tickets: object, now: float) -> dict[str, int | None]:
        bounds = real(self, tickets, now)
        return dict.fromkeys(bounds, 0)

    real: Callable[..., dict[str, int | None]] = Evidence.conclude
    monkeypatch.setattr(Evidence, "conclude", conclude)


def no_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GateOwner, "_keep_share", lambda *_: None)


def finishes_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "finish", lambda self, number, *_: self.own.pop(number, None))


PLANTED = [
    (no_look_at_the_clock, (7,), True),
    (no_evidence, (146,), True),
    (no_reserve, (100,), False),
    (finishes_forgotten, (0,), True),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "seeds", "short"), PLANTED, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_planted_bug_is_caught(
    bug: Callable[[pytest.MonkeyPatch], None],
    seeds: Iterable[int],
    short: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):  # noqa: PT012 - whichever of them shows it
        for seed in seeds:
            World(seed, short=short).run()
