"""The twin: one list of arrivals through the live front door and through the simulator.

Live, an instant is a few milliseconds wide. So the lists are chosen, by the simulator alone, such
that no outcome hangs on less: the same arrivals some milliseconds earlier or later, and a service
somewhat longer, must end in the same way, request by request and in the same order.
"""

import asyncio
import math
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from doorway import CHAT, Doorway, doorway

from simulator.exact.closed_form import BoundedQueue
from simulator.model.scenario import Scenario
from simulator.study.experiment import Plan, observe
from simulator.traffic.distributions import Distribution
from simulator.traffic.service import Rows, Service
from simulator.traffic.workload import Replay

CAP, QUEUE, TIMEOUT_S, HOLD_S = 2, 3, 0.7, 0.4
REQUESTS = 24
JITTER_S = 0.02
STATUS = {"served": 200, "queue_full": 503, "queue_timeout": 503}

Twin = tuple[list[str], list[int]]


def simulated(at_s: list[float], hold_s: float = HOLD_S) -> Twin:
    """Return each request's outcome and the order in which they were admitted."""
    scenario = Scenario(
        cap=CAP,
        queue=QUEUE,
        timeout_s=TIMEOUT_S,
        arrivals=Replay(rows=Rows(at_s=np.array(at_s))),
        service=Service(seconds=Distribution("const", hold_s)),
    )
    _, journal = observe(scenario, Plan())
    ends = {entry.number: entry.what for entry in journal if entry.what in STATUS}
    order = [entry.number for entry in journal if entry.what == "admitted"]
    return [ends[number] for number in range(1, len(at_s) + 1)], order


def arrivals(seed: int) -> list[float]:
    rng = Random(seed)
    return sorted(round(rng.uniform(0, 3.2), 3) for _ in range(REQUESTS))


def is_robust(at_s: list[float], seed: int) -> bool:
    """Tell whether some milliseconds change nothing, and all three outcomes occur."""
    if min(b - a for a, b in pairwise(at_s)) < JITTER_S:
        return False
    twin = simulated(at_s)
    if len(set(twin[0])) < len(STATUS):
        return False
    rng = Random(seed)
    return all(
        simulated([t + rng.uniform(0, JITTER_S) for t in at_s], HOLD_S + rng.uniform(0, JITTER_S))
        == twin
        for _ in range(30)
    )


async def ask(door: Doorway, at_s: float, began_s: float) -> int:
    await asyncio.sleep(began_s + at_s - asyncio.get_running_loop().time())
    reply = await door.call(CHAT, {"model": "reasoning", "messages": []})
    return reply.status


async def live(at_s: list[float]) -> Twin:
    """Return the same of the front door, by its access lines and the engine's own order."""
    async with doorway(
        {"hold": HOLD_S, "tokens": 0}, cap=CAP, queue=QUEUE, queue_timeout_s=TIMEOUT_S
    ) as door:
        began_s = asyncio.get_running_loop().time() + 0.1
        statuses = await asyncio.gather(*(ask(door, t, began_s) for t in at_s))
        await door.at_rest()
        lines = sorted(door.lines, key=lambda line: str(line["request_id"]))
        order = door.stats()["order"]
    # Ids sort by the millisecond of their request, and no two requests share one here.
    number_of = {line["request_id"]: number for number, line in enumerate(lines, 1)}
    outcomes = [str(line["outcome"]) for line in lines]
    assert statuses == [STATUS[outcome] for outcome in outcomes]
    return outcomes, [number_of[request_id] for request_id in order]


@pytest.mark.parametrize("seed", [24517, 169617, 319205])  # robust ones are rare
def test_the_same_arrivals_end_in_the_same_way_live_and_simulated(seed):
    at_s = arrivals(seed)
    assert is_robust(at_s, seed), "choose another seed"
    assert asyncio.run(live(at_s)) == simulated(at_s)


@pytest.mark.slow
def test_shares_agree_with_theory_within_sampling_error():
    """The real gate before a real engine loses as many as M/M/6/14+D says."""
    cap, queue, timeout_s, mean_s, load, seconds = 6, 8, 0.3, 0.2, 1.2, 90
    rate = load * cap / mean_s
    rng = Random(7)
    at_s, t = [], rng.expovariate(rate)
    while t < seconds:
        at_s.append(t)
        t += rng.expovariate(rate)

    async def scenario() -> list[str]:
        engine = {"hold": f"exp:{mean_s}", "tokens": 0, "seed": 3}
        async with doorway(engine, cap=cap, queue=queue, queue_timeout_s=timeout_s) as door:
            began_s = asyncio.get_running_loop().time() + 0.1
            await asyncio.gather(*(ask(door, t, began_s) for t in at_s))
            await door.at_rest()
            return [str(line["outcome"]) for line in door.lines]

    outcomes = asyncio.run(scenario())
    exact = BoundedQueue(cap, queue, rate, mean_s, timeout_s)
    for outcome, share in (
        ("served", exact.served),
        ("queue_full", exact.rejected),
        ("queue_timeout", exact.timed_out),
    ):
        observed = outcomes.count(outcome) / len(outcomes)
        # Neighbours share their fate: a run of N weighs like about N/4 independent requests here.
        sigma = math.sqrt(share * (1 - share) / len(outcomes)) * 2
        assert abs(observed - share) < 4 * sigma, (outcome, observed, share, sigma)
