"""What is known of points by their replications, and how more is found out.

Rule 1: a point is looked at with today's traffic and with the headroom's, by `FEWEST` replications
        of each at first; where theory knows the values, by none.
Rule 2: a closer look doubles the replications of whichever of the two is more in doubt, up to
        `MOST`. Replications are numbered on, so all points go on seeing the same requests.
Rule 3: points that are looked at together are carried out together, so that no process waits.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.model.scenario import Scenario
from simulator.study.experiment import Plan, Result, Wanted, carried_out
from simulator.study.limits import LimitCheck, judge
from simulator.study.sweep import CLEAR, Exact

FEWEST, MOST = 4, 32
"""Replications of a point: at first, and at most."""

Place = tuple[int, int, float]
"""Cap, queue, timeout: a point by its size."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What is known of one point: today and with the headroom's traffic."""

    scenario: Scenario
    today: Result | None
    stressed: Result | None
    judged_today: tuple[LimitCheck, ...]
    judged_stressed: tuple[LimitCheck, ...]

    @property
    def judgements(self) -> tuple[LimitCheck, ...]:
        """All of them."""
        return (*self.judged_stressed, *self.judged_today)

    @property
    def chance(self) -> float:
        """The chance that it keeps all limits."""
        return _worst(self.judgements)

    @property
    def in_doubt(self) -> bool:
        """Whether it is not clear yet if it keeps them."""
        return CLEAR < self.chance < 1 - CLEAR

    def value(self, metric: str, *, stressed: bool = False) -> float | None:
        """A metric today or with the headroom: of theory where it has it, else of the sample."""
        judged = self.judged_stressed if stressed else self.judged_today
        for check in judged:
            if check.metric == metric and check.mean is not None:
                return check.mean
        result = self.stressed if stressed else self.today
        if result is None or not result.replications:
            return None
        return result.estimate(metric).mean

    @property
    def binding(self) -> LimitCheck | None:
        """The limit that is nearest, or missed most."""
        return min(self.judgements, key=lambda judgement: judgement.slack, default=None)


class IdleRow(NamedTuple):
    """A point with some idle times (until level 1, 2): whether any limits keep all with these."""

    idle_s: tuple[float, float]
    kept: bool
    chosen: bool
    trial: Trial


class PeakStretch(NamedTuple):
    """What a point comes to in the busiest hour: from when on, at which rate."""

    start_s: float
    rate: float
    result: Result


def _worst(judged: Iterable[LimitCheck]) -> float:
    return min((judgement.chance for judgement in judged), default=1.0)


@dataclass(kw_only=True)
class Trials:
    """All points that were looked at, and what carries their replications out."""

    base: Scenario
    plan: Plan
    slo: Mapping[str, float]
    headroom: float
    exact: Exact
    pool: Executor | None = None
    known: dict[Place, Trial] = field(default_factory=dict)
    simulated: int = 0
    """Requests, in all."""
    points: set[Scenario] = field(default_factory=set)
    """All that were looked at, as they are today."""
    _results: dict[Scenario, Result] = field(default_factory=dict)
    _theory: dict[Scenario, Mapping[str, float]] = field(default_factory=dict)
    stressed: Scenario = field(init=False)
    """With the headroom's traffic; its limits are still to be found, too."""

    def __post_init__(self) -> None:
        self.stressed = self.base.stressed(rate=1 + self.headroom)

    def without_headroom(self) -> "Trials":
        """Return the same for today's traffic only; what was simulated of it is not done again."""
        again = Trials(
            base=self.base,
            plan=self.plan,
            slo=self.slo,
            headroom=0.0,
            exact=self.exact,
            pool=self.pool,
            simulated=self.simulated,
        )
        again._results, again._theory = self._results, self._theory
        again.points = self.points
        return again

    def at(self, place: Place) -> Trial:
        """Return what is known of a point; one that is new is looked at first."""
        if place not in self.known:
            self._look([place])
            self.known[place] = self._judged(place)
        return self.known[place]

    def _look(self, places: Sequence[Place]) -> None:
        """Look at points for the first time."""
        worlds = [world for place in places for world in self._worlds(place)]
        wanted = [world for world in worlds if not self._decided(world)]
        self._replicate(dict.fromkeys(wanted, FEWEST))

    def can_tell_more(self, place: Place) -> bool:
        """Whether a closer look is possible."""
        world = self._doubtful_world(place)
        return self._count(world) < MOST and world.random and not self._decided(world)

    def look_closer(self, places: Sequence[Place]) -> None:
        """Double the replications of points that are in doubt."""
        worlds = {place: self._doubtful_world(place) for place in places}
        self._replicate({world: 2 * self._count(world) for world in worlds.values()})
        for place in places:
            self.known[place] = self._judged(place)

    def shown(self, best: Place, others: Sequence[Place], replications: int) -> list[Trial]:
        """Return points with all their metrics, also those that theory was enough to judge.

        Of the others that is today's traffic.
        """
        self._look([place for place in others if place not in self.known])
        worlds = [*self._worlds(best), *(self._worlds(place)[0] for place in others)]
        self._replicate(dict.fromkeys(worlds, replications))
        return [self._judged(place) for place in (best, *others)]

    def glance(self, place: Place, replications: int) -> Trial:
        """Return what is known of a point with all of today's metrics; the rest may be unknown."""
        today = self.today(place, replications)
        if place in self.known:
            return self._judged(place)
        world = self.base.at(*place)
        self.points.add(world)
        self._decided(world)
        return Trial(world, today, None, self._checks(world), ())

    def today(self, place: Place, replications: int) -> Result:
        """Return so many replications of today's traffic, or as many as there are."""
        world = self.base.at(*place)
        self._replicate({world: replications})
        return self._results[world]

    def _worlds(self, place: Place) -> list[Scenario]:
        """Return a point with today's traffic and, where that is asked, with the headroom's."""
        today = self.base.at(*place)
        return [today, self.stressed.at(*place)] if self.headroom else [today]

    def _decided(self, world: Scenario) -> bool:
        if world not in self._theory:
            self._theory[world] = self.exact(world)
        return set(self.slo) <= set(self._theory[world])

    def _count(self, world: Scenario) -> int:
        known = self._results.get(world)
        return 0 if known is None else len(known.replications)

    def _doubtful_world(self, place: Place) -> Scenario:
        worlds = self._worlds(place)
        return min(worlds, key=lambda world: _worst(self._checks(world)))

    def _checks(self, world: Scenario) -> tuple[LimitCheck, ...]:
        known = Result(()) if self._decided(world) else self._results[world]
        return judge(known, self.slo, self._theory[world])

    def _judged(self, place: Place) -> Trial:
        worlds = self._worlds(place)
        self.points.add(worlds[0])
        judged = [self._checks(world) for world in worlds]
        results = [self._results.get(world) for world in worlds]
        if len(worlds) == 1:
            return Trial(worlds[0], results[0], None, judged[0], ())
        return Trial(worlds[0], results[0], results[1], judged[0], judged[1])

    def _replicate(self, wanted: Mapping[Scenario, int]) -> None:
        """Bring scenarios to so many replications, if they have fewer."""
        batch = []
        for world, count in wanted.items():
            done, count_of_it = self._count(world), count if world.random else 1
            if done < count_of_it:
                batch.append(Wanted(world, range(done, count_of_it)))
        made = carried_out(batch, self.plan, pool=self.pool)
        for (world, _), more in zip(batch, made, strict=True):
            before = self._results[world].replications if world in self._results else ()
            self._results[world] = Result((*before, *more), world.service.uncertain)
            self.simulated += sum(each.counts["offered"] for each in more)
