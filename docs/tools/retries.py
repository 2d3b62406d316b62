"""Draws the table of docs/simulation.md on clients that come back.

    PYTHONPATH=. .venv/bin/python docs/tools/retries.py        # minutes

Cap 6, queue 8, timeout 30 s, clients with the policy of OpenAI's and Anthropic's SDKs; a cell is
the share served and the p95 from first attempt to last byte, of the served. A burst that comes
"after traffic" meets a gate that has been full before and knows how fast it drains.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from simulator.model.scenario import Scenario
from simulator.study.experiment import Plan, cores, experiment
from simulator.traffic.distributions import Distribution
from simulator.traffic.retries import Advice, Retry
from simulator.traffic.service import Rows, Service
from simulator.traffic.workload import Arrivals, Burst, Renewal, Replay

BEFORE = 300
"""Requests of the traffic before a burst, at load 1.1; they are not measured."""
QUIET_S = 120.0

COLUMNS: dict[str, Callable[[Scenario], Scenario]] = {
    "no `Retry-After`": lambda world: _told(world, Advice(kind="none")),
    "2 s, always": lambda world: _told(world, Advice(kind="const", pause_s=2.0)),
    "60 s, always": lambda world: _told(world, Advice(kind="const", pause_s=60.0)),
    "promised, no place kept": lambda world: replace(world, return_places=0),
    "**promised, places kept**": lambda world: world,
}


def _told(world: Scenario, advice: Advice) -> Scenario:
    return replace(world, advice=advice, return_places=0)


def _exp(mean_s: float) -> Service:
    return Service(seconds=Distribution("exp", mean_s))


def _world(arrivals: Arrivals, service: Service, requests: int, warmup: int = 0) -> Scenario:
    return Scenario(
        cap=6,
        queue=8,
        timeout_s=30.0,
        arrivals=arrivals,
        service=service,
        requests=requests,
        warmup=warmup,
        retry=Retry(kind="openai"),
    )


def _after_traffic(count: int, service_s: float) -> Scenario:
    gaps_s = np.full(BEFORE, service_s / 6 / 1.1)
    before_s = np.cumsum(gaps_s)
    burst_s = np.full(count, before_s[-1] + QUIET_S)
    arrivals = Replay(rows=Rows(np.concatenate([before_s, burst_s])))
    return _world(arrivals, _exp(service_s), BEFORE + count, BEFORE)


def rows() -> Iterator[tuple[str, Scenario, int]]:
    """Yield each row: its name, its world, its replications."""
    hold = Service(seconds=Distribution("const", 2.0))
    yield "40 at once, 2 s each, first thing", _world(Burst(count=40), hold, 40), 1
    yield "the same, exponential", _world(Burst(count=40), _exp(2), 40), 200
    yield "the same, after traffic", _after_traffic(40, 2), 200
    yield "80 at once, Exp(2 s), after traffic", _after_traffic(80, 2), 200
    yield "60 at once, Exp(10 s), after traffic", _after_traffic(60, 10), 200
    yield "Poisson, load 0.95", _world(Renewal(rate=2.85), _exp(2), 20_000, 1_000), 10
    yield "Poisson, load 1.3 for 300 s", _world(Renewal(rate=3.9), _exp(2), 1_170), 40


def main() -> None:
    """Print the table."""
    print("|", "crowd |", " | ".join(COLUMNS), "|")
    print("|", " | ".join(["---"] * (1 + len(COLUMNS))), "|")
    for name, world, replications in rows():
        worlds = [change(world) for change in COLUMNS.values()]
        plan = Plan(seed=1, replications=replications, jobs=cores())
        cells = []
        for result in experiment(worlds, plan):
            served = result.estimate("served_share").mean
            p95_s = result.estimate("latency_p95_s").mean
            assert served is not None
            assert p95_s is not None
            cells.append(f"{served:.1%}, {p95_s:.0f} s".replace("%", " %"))
        print("|", name, "|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
