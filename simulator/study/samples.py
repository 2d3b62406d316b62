"""What is simulated of traffic where replications are spent piecemeal: a part that stands for all.

Rule 1: a steady stream is cut where a replication is long enough.
Rule 2: a recording is taken in blocks of its time in random order.
Rule 3: of rates by time each replication has one of several parts: a block of each stretch of the
        day, drawn so that as many replications as there are parts have every block once. So the
        peak weighs what it weighs in the day, whenever it is.
Rule 4: blocks are longer than the pauses in which an engine falls asleep.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from math import ceil, exp, inf

from simulator.model.scenario import Scenario
from simulator.study.capacity import capacity_per_s, load_of
from simulator.study.experiment import Plan, Result, Wanted, carried_out
from simulator.study.trials import PeakStretch
from simulator.traffic.servegen import Windows
from simulator.traffic.stretches import busiest
from simulator.traffic.workload import Arrivals, Burst, Closed, Replay

REQUESTS = 5000
"""In one replication: enough for a p99, few enough to spend them where there is doubt."""
WARMUP = 250
PAUSES = 4
"""A block lasts so many of the longest idle times: most pauses stay whole."""
WAKES = 150
"""In one replication, about: each costs as much as a hundred requests."""
FEWEST_REQUESTS = 250
STRETCHES = 24
"""Of a day of rates, each with a block in every replication."""
SHORTEST_BLOCK_S, LONGEST_BLOCK_S = 120.0, 600.0
SERVICES = 30
"""A block lasts so many times a request: a queue has come and gone by then."""
PEAK_S = 3600.0
PEAK_REPLICATIONS = 16
"""Losses come in bursts: by four the busiest hour might lose less than the day."""


def sampled(base: Scenario, idle: Sequence[tuple[float, float]] = ()) -> tuple[Scenario, str]:
    """Return the scenario in replications of such a size, and in words what they are, if parts."""
    if base.terminating:
        return base, ""
    times_s = _times_of(base, idle)
    most = _requests(base, min(times_s, default=inf))
    requests = most if base.requests is None else min(base.requests, most)
    pause_s = PAUSES * max(times_s, default=0.0)
    arrivals = base.arrivals
    if isinstance(arrivals, Windows):
        return _in_parts(base, arrivals, requests, pause_s)
    if isinstance(arrivals, Replay):
        told = ""
        if not arrivals.random:
            span_s = float(arrivals.rows.at_s[-1])
            block_s = max(_block_s(span_s), pause_s / arrivals.stretch)  # in the recording's time
            if 2 * block_s < span_s:
                arrivals = replace(arrivals, bootstrap_s=block_s)
                told = f"blocks of {plain(block_s)} s of the recording in random order"
        return replace(base, arrivals=arrivals, requests=requests, warmup=0), told
    return replace(base, requests=requests, warmup=min(WARMUP, requests // 20)), ""


def plain(value: float) -> str:
    """Return a number with three digits that count, and never an exponent."""
    return f"{float(f'{value:.3g}'):.15g}"


def requests_of(scenario: Scenario) -> float | None:
    """Return how many requests there are to learn from, or None where they have no end."""
    match scenario.arrivals:
        case Burst(count=count):
            return float(count)
        case Replay() as recording:
            coming = len(recording.rows.at_s) * recording.thin
            return coming if scenario.requests is None else min(coming, scenario.requests)
        case Windows() as rates:
            return rates.expected
        case _:
            return None


def _in_parts(
    base: Scenario, rates: Windows, requests: int, pause_s: float
) -> tuple[Scenario, str]:
    expected = rates.expected
    parts = max(1, ceil(expected / requests))
    capacity = capacity_per_s(base)
    takes_s = base.cap / capacity if capacity else 0.0
    least_s = max(SHORTEST_BLOCK_S, SERVICES * takes_s, pause_s)
    block_s = max(least_s, min(LONGEST_BLOCK_S, rates.span_s / parts / STRETCHES))
    parts = max(1, min(parts, int(rates.span_s / block_s / 2)))
    told = f"all {expected:.0f} requests of {plain(rates.span_s / 3600)} h in each replication"
    if parts > 1:
        rates = replace(rates, block_s=block_s, parts=parts)
        told = (
            f"blocks of {plain(block_s)} s from all over {plain(rates.span_s / 3600)} h, about "
            f"{expected / parts:.0f} of {expected:.0f} requests in each replication; {parts} "
            "replications have each block once"
        )
    return replace(base, arrivals=rates, requests=None, warmup=0), told


def at_the_peak(
    whole: Arrivals | Closed, best: Scenario, plan: Plan, pool: Executor | None
) -> PeakStretch | None:
    """Return what a point comes to in the busiest hour of rates that last for several.

    A recording has that hour once: there is no second one, and blocks of it in another order have
    gaps that never were.
    """
    if not isinstance(whole, Windows) or whole.span_s < 2 * PEAK_S:
        return None
    stretch = busiest(whole, PEAK_S)
    world = replace(best, arrivals=stretch.arrivals)
    world, _ = sampled(
        replace(world, requests=None), () if best.tiers is None else (best.tiers.idle_s,)
    )
    (made,) = carried_out([Wanted(world, range(PEAK_REPLICATIONS))], plan, pool=pool)
    return PeakStretch(stretch.start_s, stretch.rate, Result(tuple(made), world.service.uncertain))


def _times_of(base: Scenario, idle: Sequence[tuple[float, float]]) -> list[float]:
    """Return all idle times that a search meets."""
    pairs = idle or ((base.tiers.idle_s,) if base.tiers else ())
    return [time_s for pair in pairs for time_s in pair if time_s]


def _requests(base: Scenario, idle_s: float) -> int:
    """Return the requests of a replication: fewer where many of them wake the engine."""
    rate = load_of(base).offered_per_s
    if rate is None or idle_s == inf:
        return REQUESTS
    return max(FEWEST_REQUESTS, min(REQUESTS, int(WAKES * exp(min(50.0, rate * idle_s)))))


def _block_s(span_s: float) -> float:
    """Return the length of blocks in random order: long enough for bursts, and many."""
    return max(span_s / 500, min(600.0, span_s / 20), 1e-3)
