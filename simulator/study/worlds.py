"""Several models on the same GPUs: runs of a world, what they say, and which turns suit it best.

Rule 1: replications differ in their arrivals and work alone; two points of a sweep see the same.
Rule 2: what is recommended serves the model that is worst off best; among those that do that within
        half a percent, the one with the shortest waits, then with the fewest switches.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import fsum
from typing import NamedTuple

import numpy as np

from simulator.model.world import ModelRecords, WorldModel, WorldRun
from simulator.study.statistics import Estimate, estimate
from simulator.traffic.distributions import Distribution
from simulator.traffic.service import NOTHING
from simulator.traffic.service_profiles import ServiceProfile
from tornado_frontdoor.core.gpu_occupant import RoomLimits

WORST_SHARE_TIE = 0.005
P95 = 95


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTraffic:
    """What comes to one upstream: at a rate, or as it was recorded.

    With a `profile`, `service` is tokens, which follow a `prompt`.
    """

    rate_per_s: float = 0.0
    service: Distribution = Distribution("exp", 2.0)  # noqa: RUF009 - a value
    profile: ServiceProfile | None = None
    prompt: Distribution = NOTHING
    recorded_at_s: tuple[float, ...] = ()
    recorded_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A configuration and its traffic, ready to be run; the models' own arrivals are empty."""

    models: tuple[WorldModel, ...]
    traffic: Mapping[str, ModelTraffic]
    """By upstream; who has none is never asked."""
    room: RoomLimits
    duration_s: float
    seed: int = 1
    replications: int = 5
    gpu_cost_per_h: float = 0.0
    """What all GPUs cost."""


class Turns(NamedTuple):
    """What a sweep varies; None: as the configuration has it."""

    idle_sleep_s: float | None = None
    stay_factor: float | None = None
    max_turn_wait_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResult:
    """One upstream over all replications."""

    arrivals: float
    served_share: Estimate
    wait_mean_s: Estimate
    wait_p95_s: Estimate
    wakes_per_h: Estimate
    awake_share: float
    refused: Mapping[str, float]
    """By reason, in a replication."""
    evicted_for: Mapping[str, float]
    preemptions_per_request: float | None = None
    """Of an engine whose memory is known."""
    kv_usage_max: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldResult:
    """A world over all replications."""

    turns: Turns
    models: Mapping[str, ModelResult]
    switches_per_h: Estimate
    evictions_per_h: Estimate
    most_gib: Mapping[int | str, float]
    failed_wakes: int
    cost_per_thousand: Estimate | None = None
    """Of requests served, by whatever model; None: no cost was given."""

    @property
    def worst_share(self) -> float:
        """The share served of the model that is worst off."""
        shares = [one.served_share.mean for one in self.models.values()]
        return min((share for share in shares if share is not None), default=1.0)

    @property
    def wait_s(self) -> float:
        """The longest of the models' 95th percentiles."""
        waits = [one.wait_p95_s.mean for one in self.models.values()]
        return max((wait for wait in waits if wait is not None), default=0.0)


def simulate_world(world: World, turns: Turns = Turns()) -> WorldResult:  # noqa: B008 - a value
    """Run all replications of a world, with other turns where they are given."""
    runs = [_replicate(world, turns, number) for number in range(world.replications)]
    hours = [lasted_s / 3600 for _, lasted_s in runs]
    wakes = [
        _an_hour(sum(one.wakes for one in run.records.values()), lasted_h)
        for (run, _), lasted_h in zip(runs, hours, strict=True)
    ]
    evictions = [
        _an_hour(sum(one.evicted_for.total() for one in run.records.values()), lasted_h)
        for (run, _), lasted_h in zip(runs, hours, strict=True)
    ]
    served = [sum(one.ends["served"] for one in run.records.values()) for run, _ in runs]
    costs = [
        1000 * world.gpu_cost_per_h * lasted_h / count if count else None
        for count, lasted_h in zip(served, hours, strict=True)
    ]
    return WorldResult(
        turns=turns,
        models={
            model.key: _of_model(
                [run.records[model.key] for run, _ in runs], hours, paged=_paged(world, model.key)
            )
            for model in world.models
        },
        cost_per_thousand=estimate(costs) if world.gpu_cost_per_h else None,
        switches_per_h=estimate(wakes),
        evictions_per_h=estimate(evictions),
        most_gib={
            device: max(run.most_gib.get(device, 0.0) for run, _ in runs)
            for device in world.room.device_gib
        },
        failed_wakes=sum(one.wake_failures for run, _ in runs for one in run.records.values()),
    )


def sweep_world(
    world: World, grid: Mapping[str, Sequence[float]], done: Callable[[], None] = lambda: None
) -> list[WorldResult]:
    """Run a world at each point of a grid over the fields of `Turns`, best first."""
    found = []
    for values in product(*grid.values()):
        found.append(simulate_world(world, Turns(**dict(zip(grid, values, strict=True)))))
        done()
    return sorted(found, key=_badness)


def _badness(result: WorldResult) -> tuple[float, float, float]:
    # Shares within half a percent of one another are no reason to choose.
    share = round(result.worst_share / WORST_SHARE_TIE)
    return -share, round(result.wait_s, 1), result.switches_per_h.mean or 0.0


def _replicate(world: World, turns: Turns, number: int) -> tuple[WorldRun, float]:
    room = world.room
    if turns.stay_factor is not None:
        room = replace(room, stay_factor=turns.stay_factor)
    if turns.max_turn_wait_s is not None:
        room = replace(room, max_turn_wait_s=turns.max_turn_wait_s)
    models = [
        _with_arrivals(model, world, turns, (world.seed, number, index))
        for index, model in enumerate(world.models)
    ]
    run = WorldRun(models, room, world.seed, number)
    return run, run.run()


def _with_arrivals(
    model: WorldModel, world: World, turns: Turns, place: tuple[int, ...]
) -> WorldModel:
    policy = model.policy
    if turns.idle_sleep_s is not None and not policy.pinned:
        policy = replace(policy, idle_sleep_s=turns.idle_sleep_s)
    traffic = world.traffic.get(model.key)
    if traffic is None:
        return replace(model, policy=policy)
    rng = np.random.default_rng(place)
    at_s, service_s = draw(traffic, world.duration_s, rng)
    prompts = tuple(traffic.prompt.draw(rng, len(at_s)).tolist()) if traffic.profile else ()
    return replace(
        model,
        policy=policy,
        arrivals_s=at_s,
        service_s=tuple(max(1.0, one) for one in service_s) if traffic.profile else service_s,
        prompts=prompts,
        profile=traffic.profile,
    )


def draw(
    traffic: ModelTraffic, duration_s: float, rng: np.random.Generator
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return when requests come and how long each takes alone."""
    if traffic.recorded_at_s:
        kept = [at_s for at_s in traffic.recorded_at_s if at_s < duration_s]
        return tuple(kept), traffic.recorded_s[: len(kept)]
    count = int(rng.poisson(traffic.rate_per_s * duration_s))
    at_s = np.sort(rng.uniform(0.0, duration_s, count))
    return tuple(at_s.tolist()), tuple(traffic.service.draw(rng, count).tolist())


def _of_model(
    records: Sequence[ModelRecords], hours: Sequence[float], *, paged: bool
) -> ModelResult:
    return ModelResult(
        arrivals=_mean(one.arrivals for one in records),
        served_share=estimate(
            [one.ends["served"] / one.arrivals if one.arrivals else None for one in records]
        ),
        wait_mean_s=estimate(
            [fsum(one.waits_s) / len(one.waits_s) if one.waits_s else None for one in records]
        ),
        wait_p95_s=estimate(
            [float(np.percentile(one.waits_s, P95)) if one.waits_s else None for one in records]
        ),
        wakes_per_h=estimate(
            [_an_hour(one.wakes, lasted_h) for one, lasted_h in zip(records, hours, strict=True)]
        ),
        awake_share=_mean(
            one.awake_s / lasted_h / 3600
            for one, lasted_h in zip(records, hours, strict=True)
            if lasted_h
        ),
        refused=dict(_means((dict(one.ends) for one in records), leave_out="served")),
        evicted_for=dict(_means(dict(one.evicted_for) for one in records)),
        preemptions_per_request=_preemptions(records) if paged else None,
        kv_usage_max=max(one.kv_usage_max for one in records),
    )


def _an_hour(count: float, lasted_h: float) -> float | None:
    """Return how many an hour; None where nobody came, as the run then ends as it begins."""
    return count / lasted_h if lasted_h else None


def _paged(world: World, key: str) -> bool:
    traffic = world.traffic.get(key)
    return traffic is not None and traffic.profile is not None and traffic.profile.details.paged


def _preemptions(records: Sequence[ModelRecords]) -> float:
    return sum(one.preemptions for one in records) / max(1, sum(one.arrivals for one in records))


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return fsum(found) / len(found) if found else 0.0


def _means(counts: Iterable[Mapping[str, int]], leave_out: str = "") -> Iterator[tuple[str, float]]:
    each = list(counts)
    for name in sorted({name for one in each for name in one} - {leave_out}):
        yield name, _mean(one.get(name, 0) for one in each)
