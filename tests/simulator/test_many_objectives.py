"""Six objectives at once: what `tune` finds by looking at a few points, all points come to."""

from itertools import product

import pytest
from scenes import scene

from simulator.model.scenario import EachRequest
from simulator.study.experiment import Plan, executor, experiment
from simulator.study.limits import LARGER_IS_BETTER, judge
from simulator.study.trials import MOST
from simulator.study.tune import Search
from simulator.traffic.distributions import Distribution
from simulator.traffic.service import Service
from simulator.traffic.service_profiles import PROFILES
from simulator.traffic.workload import Modulated, Renewal

CAPS, QUEUES, TIMEOUTS_S = (1, 2, 3), (0, 2, 4, 8, 16), (4.0, 12.0)
OBJECTIVES = (
    *("wait_p95_s", "lost_share", "first_token_p95_s", "latency_p95_s", "tpot_p95_s"),
    "kept_share",
)
TRAFFIC = {
    "poisson": Renewal(rate=0.75),
    "gamma": Renewal(rate=0.6, cv=2.0),
    "bursts": Modulated(rate=0.5, ratio=6.0, high_s=30.0, low_s=120.0),
}


def world_of(arrivals):
    tokens = Service(
        profile=PROFILES["moe-a3b-a100"],
        prompt=Distribution("exp", 1024.0),
        output=Distribution("exp", 200.0),
    )
    each = EachRequest(first_token_s=3.0, latency_s=12.0)
    return scene(arrivals=arrivals, service=tokens, slots=4, each=each, requests=1000, warmup=50)


def limits_at(result, room):
    """Return what a point comes to, with some room: so it keeps all of that."""
    return {
        name: result.estimate(name).mean * (1 - room if name in LARGER_IS_BETTER else 1 + room)
        for name in OBJECTIVES
    }


ROOMS = (0.02, 0.1, 0.4)
LIMITS = {"caps": CAPS, "queues": QUEUES, "timeouts_s": TIMEOUTS_S, "headroom": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAFFIC)
def test_six_objectives_find_what_all_points_come_to(name):
    """Two minutes each on a busy machine: 30 points of 32 replications beside the searches."""
    base, plan = world_of(TRAFFIC[name]), Plan(driver="heap", replications=MOST, jobs=2)
    places = list(product(CAPS, QUEUES, TIMEOUTS_S))
    with executor(plan, MOST) as pool:
        results = experiment([base.at(*place) for place in places], plan, pool=pool)
        made = dict(zip(places, results, strict=True))
        for room in ROOMS:
            slo = limits_at(made[(2, 4, 12.0)], room)
            chances = {
                place: min(c.chance for c in judge(made[place], slo, {})) for place in places
            }
            least = min(place for place, chance in chances.items() if chance >= 0.5)
            found = Search(base=base, plan=plan, slo=slo, pool=pool, **LIMITS).run()
            assert chances[(2, 4, 12.0)] >= 0.5
            best = found.recommended and found.recommended.scenario
            place = best and (best.cap, best.queue, best.timeout_s)
            print(f"{name} {room}: {place}, of all points {least}; sure {found.confidence}")
            print(f"{len(found.trials)} of {len(places)} points, {found.simulated} requests")
            assert place == least or found.uncertain
