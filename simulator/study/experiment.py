"""Replications: carried out in this process, in several, or on other machines; the same anywhere.

Rule 1: a replication is a function of scenario, seed and its number. What carries it out, in which
        order and beside which others, changes no bit of the result.
Rule 2: a task is one scenario and some of its replications: large enough to be worth sending, and
        small enough that nobody waits long for the last one. The largest go first.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import NamedTuple

from simulator.model.checked_gate import CheckedGate, Entry
from simulator.model.event_loop import DRIVERS
from simulator.model.gate_like import GateLike
from simulator.model.gates import new_gate
from simulator.model.records import Metrics, Records
from simulator.model.run import SimulatedRun
from simulator.model.scenario import Scenario
from simulator.model.tally import Spread
from simulator.study.cluster import POLL_S, ClusterPool, dask_pool
from simulator.study.controls import Surplus, corrected, surplus_of
from simulator.study.pooled import pseudo_values
from simulator.study.statistics import Estimate, SampleMean, estimate, estimate_of_one, is_share
from simulator.study.workers import LocalPool
from simulator.traffic.streams import Streams
from simulator.traffic.workload import Closed, Replay, Request, requests

Timeline = list[tuple[float, str, int]]


class Replication(NamedTuple):
    """What came of one replication."""

    counts: dict[str, int]
    metrics: Metrics
    timeline: Timeline
    surplus: Surplus = ()
    spreads: Mapping[str, Spread] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a result is to be computed; only `seed` and `replications` have a say in it."""

    seed: int = 1
    replications: int = 20
    driver: str = "simpy"
    jobs: int = 1
    check: bool = False
    dask: str | None = None


class Wanted(NamedTuple):
    """Some replications of one scenario, by their numbers."""

    scenario: Scenario
    numbers: range


class Task(NamedTuple):
    """Some of those that are wanted, carried out together."""

    point: int
    scenario: Scenario
    plan: Plan
    numbers: range


@dataclass(frozen=True, slots=True)
class Result:
    """What came of all replications of one scenario."""

    replications: tuple[Replication, ...]
    uncertain_engine: bool = False
    """Whether replications differ by how fast the engine may be: then an interval is for one."""
    _samples: dict[str, SampleMean | None] = field(default_factory=dict, repr=False, compare=False)

    def values(self, metric: str) -> list[float | None]:
        """Return a metric by replication."""
        return [replication.metrics[metric] for replication in self.replications]

    def estimate(self, metric: str) -> Estimate:
        """Return a metric with its interval."""
        values = self.values(metric)
        if self.uncertain_engine:
            return estimate_of_one(values, shares=is_share(metric))
        sample = self.sample(metric)
        return estimate(values) if sample is None else Estimate(sample.mean, sample.ci95)

    def sample(self, metric: str) -> SampleMean | None:
        """Return what the replications say of a metric's mean; None: they do not say it."""
        if metric not in self._samples:
            self._samples[metric] = self._sample(metric)
        return self._samples[metric]

    def _sample(self, metric: str) -> SampleMean | None:
        values = [value for value in self.values(metric) if value is not None and isfinite(value)]
        if len(values) < max(2, len(self.replications)):
            return None
        surpluses = [each.surplus for each in self.replications]
        pseudo = pseudo_values(metric, [each.spreads for each in self.replications])
        if pseudo is None or not all(map(isfinite, pseudo)):
            return corrected(values, surpluses)
        sample = corrected(pseudo, surpluses)
        return replace(sample, mean=min(max(sample.mean, min(values)), max(values)))

    def estimates(self) -> dict[str, Estimate]:
        """Return every metric with its interval, in their order."""
        return {name: self.estimate(name) for name in self.replications[0].metrics}

    def counts(self) -> dict[str, int]:
        """Return the sums over all replications."""
        sums: dict[str, int] = {}
        for replication in self.replications:
            for name, count in replication.counts.items():
                sums[name] = sums.get(name, 0) + count
        return sums


def replicate(scenario: Scenario, plan: Plan, number: int) -> Records:
    """Carry out one replication; with `check`, raises LawError when a law is broken."""
    loop = DRIVERS[plan.driver]()
    streams = Streams(plan.seed, number)
    scenario = scenario.drawn(streams)
    gate = new_gate(scenario, loop, streams)
    if not plan.check:
        return SimulatedRun(scenario, streams, loop, gate).run()
    checked = CheckedGate(gate, scenario, loop)
    records = SimulatedRun(scenario, streams, loop, checked).run()
    checked.at_rest()
    return records


def observe(scenario: Scenario, plan: Plan, number: int = 0) -> tuple[Records, list[Entry]]:
    """Carry out one replication and return its journal too: everything that the gate decided."""
    loop = DRIVERS[plan.driver]()
    streams = Streams(plan.seed, number)
    scenario = scenario.drawn(streams)
    checked = CheckedGate(new_gate(scenario, loop, streams), scenario, loop)
    checked.journal = []
    gate: GateLike = checked
    records = SimulatedRun(scenario, streams, loop, gate).run()
    checked.at_rest()
    return records, checked.journal


def arrivals_of(scenario: Scenario, seed: int, replication: int) -> list[Request]:
    """Return the very requests of a replication, e.g. to send them to a live front door.

    Raises TypeError for a closed loop, whose requests depend on the answers.
    """
    if isinstance(scenario.arrivals, Closed):
        raise TypeError("a closed loop has no list of arrivals")
    streams = Streams(seed, replication)
    made = requests(
        scenario.arrivals, scenario.service, scenario.patience, streams, scenario.requests
    )
    return list(made)


def carry_out(task: Task) -> list[Replication]:
    """Carry out one task. It is sent to other processes, so it is a plain function."""
    done = []
    for number in task.numbers:
        records = replicate(task.scenario, task.plan, number)
        surplus = surplus_of(task.scenario, Streams(task.plan.seed, number))
        counts, metrics, spreads = records.counts(), records.metrics(), records.spreads()
        done.append(Replication(counts, metrics, records.timeline, surplus, spreads))
    return done


def experiment(
    scenarios: Sequence[Scenario],
    plan: Plan,
    progress: Callable[[int, int], None] | None = None,
    pool: Executor | None = None,
    first: int = 0,
) -> list[Result]:
    """Return the result of each scenario; `progress(done, all)` is called as tasks end.

    A `pool` that is open already saves the start of one. Replications are numbered from `first`.
    """
    numbers = range(first, first + plan.replications)
    wanted = [Wanted(scenario, numbers) for scenario in scenarios]
    return [
        Result(tuple(replications), scenario.service.uncertain)
        for scenario, replications in zip(
            scenarios, carried_out(wanted, plan, progress, pool), strict=True
        )
    ]


def carried_out(
    wanted: Sequence[Wanted],
    plan: Plan,
    progress: Callable[[int, int], None] | None = None,
    pool: Executor | None = None,
) -> list[list[Replication]]:
    """Return the replications of each that is wanted, in the order of their numbers.

    The plan says how; its own number of replications has no say.
    """
    tasks = _tasks(wanted, plan)
    done: list[list[Replication]] = [[] for _ in tasks]
    with nullcontext(pool) if pool is not None else executor(plan, len(tasks)) as workers:
        for count, (index, replications) in enumerate(_results(workers, tasks), start=1):
            done[index] = replications
            if progress is not None:
                progress(count, len(tasks))
    found: list[dict[int, Replication]] = [{} for _ in wanted]
    for task, replications in zip(tasks, done, strict=True):
        found[task.point].update(zip(task.numbers, replications, strict=True))
    return [[each[number] for number in sorted(each)] for each in found]


TASKS_PER_JOB = 50
"""Of at least one replication each: the last one to end keeps the others waiting for a fiftieth."""


def _tasks(wanted: Sequence[Wanted], plan: Plan) -> list[Task]:
    """Return what is wanted in tasks, the largest first."""
    replications = sum(len(each.numbers) for each in wanted)
    size = max(1, replications // (TASKS_PER_JOB * plan.jobs))
    tasks = [
        Task(point, scenario, plan, numbers[start : start + size])
        for point, (scenario, numbers) in enumerate(wanted)
        for start in range(0, len(numbers), size)
    ]
    return sorted(tasks, key=_requests, reverse=True)


def _requests(task: Task) -> int:
    scenario = task.scenario
    if scenario.requests is not None:
        return scenario.requests * len(task.numbers)
    rows = len(scenario.arrivals.rows.at_s) if isinstance(scenario.arrivals, Replay) else 0
    return rows * len(task.numbers)


def _results(
    pool: Executor | None, tasks: Sequence[Task]
) -> Iterator[tuple[int, list[Replication]]]:
    if pool is None:
        for index, task in enumerate(tasks):
            yield index, carry_out(task)
        return
    futures: dict[Future[list[Replication]], int] = {
        pool.submit(carry_out, task): index for index, task in enumerate(tasks)
    }
    pending = set(futures)
    while pending:
        watched = isinstance(pool, ClusterPool)
        done, pending = wait(pending, POLL_S if watched else None, FIRST_COMPLETED)
        for future in done:
            yield futures[future], future.result()
        if isinstance(pool, ClusterPool) and pending:
            pool.verify_workers()


@contextmanager
def executor(plan: Plan, tasks: int) -> Iterator[Executor | None]:
    """Give what carries tasks out; None: this process does."""
    if plan.dask is not None:
        with dask_pool(plan.dask) as cluster:
            yield cluster
        return
    jobs = min(plan.jobs, tasks)
    if jobs <= 1:
        yield None
        return
    pool = LocalPool(jobs)
    try:
        yield pool
    except BaseException:
        pool.terminate()  # nobody waits for their results any more
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def cores() -> int:
    """Return how many processes may run here at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
