"""Worlds of gates that sleep and wake; each failure prints the line that replays it."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from depth import parse_seeds, seeds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wake_worlds import World, world

from tornado_frontdoor.core.decisions import EngineState
from tornado_frontdoor.core.wake import machine as wake
from tornado_frontdoor.core.wake.machine import TABLE, WakeStateMachine
from tornado_frontdoor.core.wake.observed import EngineEvent

HERE = Path(__file__)
PATHS = os.pathsep.join(map(str, HERE.parents[1:3]))
"""What a script of this room finds its modules by."""
SEEDS = seeds("0-19")
BY_HAND = parse_seeds("20-149")


@pytest.mark.parametrize(
    "seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.slow) for seed in BY_HAND)]
)
def test_a_world_keeps_the_laws_and_comes_to_rest(seed):
    print(f"replay: FRONTDOOR_SEEDS={seed} pytest {HERE}")
    world(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 6000, 250))
def test_thousands_of_worlds_keep_the_laws(first):
    for seed in range(first, first + 250):
        print(f"replay: FRONTDOOR_SEEDS={seed} pytest {HERE}")
        world(seed)


@pytest.mark.parametrize("examples", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_a_world_of_hypothesis_keeps_the_laws(examples: int):
    @given(st.randoms(use_true_random=False))
    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    def some(rng: Random):
        World(rng).run(15)

    some()


def test_the_same_seed_gives_the_same_trace_in_every_process():
    """Law 9."""
    digests = {
        subprocess.run(
            [sys.executable, "wake_worlds.py", "0-7"],
            cwd=HERE.parent,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": PATHS},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "77")
    }
    assert len(digests) == 1


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[tuple[EngineState, EngineEvent]]]:
    """Pairs of state and event that machines meet."""
    found: Counter[tuple[EngineState, EngineEvent]] = Counter()
    happen = WakeStateMachine._happen

    def spy(machine: WakeStateMachine, event: EngineEvent, now: float) -> None:
        found[machine.state, event] += 1
        happen(machine, event, now)

    monkeypatch.setattr(wake.WakeStateMachine, "_happen", spy)
    return found


def test_worlds_meet_nearly_the_whole_table_and_nothing_beside_it(met):
    for seed in range(150, 210):
        world(seed)
    table = {(state, event) for state, row in TABLE.items() for event in row}
    assert len(table & set(met)) > 0.8 * len(table)
    # The machine asks for nothing that the table does not know.
    assert set(met) <= table
