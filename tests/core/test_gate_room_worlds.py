"""Gates whose engines do not fit together: in every world they take turns, and nobody is cut."""

import os
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from depth import parse_seeds
from wake_sites import Site
from wake_worlds import World

from simulator.standin.engine_values import ControlCall
from tornado_frontdoor.core.gate import AdmissionLimits, SleepPolicy
from tornado_frontdoor.core.gpu_ledger import GpuLedger
from tornado_frontdoor.core.gpu_occupant import RoomLimits

EACH_GIB = 8.0
ROOM = RoomLimits(device_gib={0: 20.0}, host_gib=40.0, stay_factor=1.0, max_turn_wait_s=20.0)
SEEDS = os.environ.get("FRONTDOOR_SEEDS")


class TightWorld(World):
    """Three or four engines of 8 GiB on a GPU of 20, all asleep at first; nobody meddles."""

    def _build(self) -> None:
        self.faults = self.rng.choice((0.0, 0.0, 0.1))
        self.meddling = self.mortal = False
        self.gpus = GpuLedger(ROOM)
        for index in range(self.rng.choice((3, 4))):
            limits, policy = self._draw_limits()
            self.sites.append(Site(self, f"up{index}", limits, policy, self._draw_manners()))

    def _draw_limits(self) -> tuple[AdmissionLimits, SleepPolicy]:
        limits, policy = super()._draw_limits()
        return replace(limits, queue=12), replace(
            policy,
            hold_sleeping_s=400.0,
            hold_offloaded_s=400.0,
            hold_restarting_s=400.0,
            devices=(0,),
            awake_gib=EACH_GIB,
            asleep_gib=1.0,
            weights_gib=6.0,
        )

    def _draw_manners(self):
        manners = super()._draw_manners()
        return manners._replace(supports_sleep=True, tells_level=True, tells_process=True)

    def lie_down(self) -> None:
        """Put all engines to sleep before anybody comes."""
        for site in self.sites:
            site.door.engine.call(ControlCall(id=("first", 0), name="sleep", level=1), self.now)
        self._engines()
        self.run_until(self.now + 60.0)

    def run_until(self, until_s: float) -> None:
        """Let time pass, and look at the true memory all the while."""
        super().run_until(until_s)
        self.check_room()

    def check_room(self) -> None:
        """See that what is truly on the GPU fits."""
        engines = {site.key: site.door.engine for site in self.sites}
        mapped = [key for key, it in engines.items() if not (it.dead or it.memory.asleep)]
        if self.now > 60.0 and not self.faults:
            assert len(mapped) * EACH_GIB <= 20.0, f"{mapped} are on one GPU"


def tight(seed: int) -> TightWorld:
    world = TightWorld(Random(seed))
    world.lie_down()
    world.run()
    return world


@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, 1000), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_engines_that_do_not_fit_together_take_turns(seeds: Sequence[int]) -> None:
    served = refused = 0
    for seed in parse_seeds(SEEDS) if SEEDS else seeds:
        try:
            world = tight(seed)
        except AssertionError as broken:
            where = "tests/core/test_gate_room_worlds.py"
            pytest.fail(f"{broken}\nreplay: FRONTDOOR_SEEDS={seed} pytest {where}")
        for site in world.sites:
            served += site.ends["served"]
            refused += site.ends["model_waking"] + site.ends["upstream_error"]
    assert served > 20 * refused, f"{served} served, {refused} not"
