"""Idle times beside the limits: how long an engine is left awake with nobody there, level by level.

Rule 1: of the idle times with which some limits keep every objective: those that hold the GPU for
        the fewest hours a day (awake or on the way); of those alike, for the fewest hours its
        weights in the host's memory (level 1); of those alike, the longest. Hours are alike when
        they are within `ALIKE_H` of the least.
Rule 2: a longer idle time never loses more nor makes anybody wait longer: fewer requests meet an
        engine that sleeps. So of each level the shortest that will do is found by bisection, and
        the limits are searched with the longest: what is the smallest there is the smallest with
        shorter idle times, too, where it keeps the objectives. Where it does not, idle times are
        out when callers wait too long with limits that suffice for the longest idle times, or lose
        too much with the widest; else larger limits are searched.
Rule 3: a longer idle time of level 1 holds the GPU for longer.
Rule 4: doubts are kept: the confidence has the chance in it that what was passed over is out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from simulator.model.scenario import Scenario, Tiers
from simulator.study.experiment import Result
from simulator.study.trials import FEWEST, IdleRow, Place, Trial
from simulator.study.tune import Search, Tuned

Idle = tuple[float, float]
"""Seconds until level 1 and until level 2; 0 means never."""

ALIKE_H = 0.25
"""Hours a day that make no difference."""
DAY_H = 24.0


class IdleGrid(NamedTuple):
    """Idle times to look through, by level."""

    first_s: tuple[float, ...]
    second_s: tuple[float, ...]

    @property
    def pairs(self) -> tuple[Idle, ...]:
        """All that go together, the shortest first."""
        each = ((first, second) for first in self.first_s for second in self.second_s)
        return tuple(sorted((idle for idle in each if fit(idle)), key=_lasting))


def fit(idle_s: Idle) -> bool:
    """Return whether level 2 comes after level 1."""
    first, second = idle_s
    return not first or not second or second > first


def _lasting(idle_s: Idle) -> Idle:
    return idle_s[0] or inf, idle_s[1] or inf


def hours(result: Result, *names: str) -> float:
    """Return hours of a day, of metrics that are shares of time."""
    return DAY_H * sum(result.estimate(name).mean or 0.0 for name in names)


def gpu_hours(result: Result) -> float:
    """Return the hours of a day that the engine holds its GPU."""
    return hours(result, "awake_share", "in_transition_share")


def host_hours(result: Result) -> float:
    """Return the hours of a day that its weights are in the host's memory."""
    return hours(result, "sleeping_share")


class IdleVerdict(NamedTuple):
    """The smallest limits that keep all with some idle times, or None; and the chance of that."""

    place: Place | None
    chance: float


@dataclass(kw_only=True)
class IdleSearch:
    """A search for limits and for idle times; `search` has the limits to look through."""

    search: Search
    grid: IdleGrid
    points: set[Scenario] = field(default_factory=set)
    """All that were looked at, as they are today, with each pair of idle times."""
    _searches: dict[Idle, Search] = field(default_factory=dict)
    _verdicts: dict[Idle, IdleVerdict] = field(default_factory=dict)
    _gentlest: Place | None = None

    def run(self) -> Tuned:
        """Return the recommendation."""
        headroom = self.search.headroom
        tuned = self._chosen()
        self.points.update(*(each.trials.points for each in self._searches.values()))
        if tuned.recommended is None and headroom:
            self.search.say("nothing bears the headroom; without it:")
            today = replace(self.search, headroom=0.0, _told=set())
            tuned = replace(
                IdleSearch(search=today, grid=self.grid, points=self.points).run(),
                headroom=headroom,
                holds_with_headroom=False,
            )
        simulated = sum(each.trials.simulated for each in self._searches.values())
        return replace(tuned, simulated=tuned.simulated + simulated, looked_at=len(self.points))

    def _chosen(self) -> Tuned:
        most = self.grid.pairs[-1]
        if self._verdict(most).place is None:
            return replace(self._of(most).tuned(None), simulated=0)
        idle_s = self._least()
        place = self._place(idle_s)
        near = self._near(idle_s)
        kept = [self._verdict(other).place is not None for other in near]
        tuned = self._of(idle_s).tuned(place)
        rows = [IdleRow(idle_s, kept=True, chosen=True, trial=self._shown(idle_s))]
        rows += [
            IdleRow(other, kept=keeps, chosen=False, trial=self._shown(other, place))
            for other, keeps in zip(near, kept, strict=True)
        ]
        rows.sort(key=lambda row: _lasting(row.idle_s))
        return replace(tuned, confidence=self._confidence(idle_s), idle=tuple(rows), simulated=0)

    # Which idle times

    def _least(self) -> Idle:
        """Return the idle times of rule 1."""
        firsts = sorted({pair[0] for pair in self.grid.pairs}, key=lambda first: first or inf)
        rows = [self._row(first) for first in firsts]
        at = _first_of(rows, lambda row: self._verdict(row[-1]).place is not None)
        rows = rows[at:]
        least_h = self._gpu_h(rows[0][-1])
        alike = [row for row in rows if self._gpu_h(row[-1]) <= least_h + ALIKE_H]
        wanted = [alike[-1]]
        if (never := rows[-1]) is not alike[-1] and not never[0][0]:
            # Where level 1 is left out, level 2 may come sooner than the level 1 that will do.
            wanted.append([pair for pair in never if (pair[1] or inf) < (rows[0][0][0] or inf)])
        able = [pair for row in wanted for pair in self._able(row)]
        return least_of(able, self._gpu_h, self._host_h)

    def _row(self, first_s: float) -> list[Idle]:
        return [pair for pair in self.grid.pairs if pair[0] == first_s]

    def _able(self, row: Sequence[Idle]) -> Sequence[Idle]:
        """Return those of a row with which all is kept."""
        return row[_first_of(row, lambda pair: self._verdict(pair).place is not None) :]

    def _gpu_h(self, idle_s: Idle) -> float:
        return gpu_hours(self._today(idle_s))

    def _host_h(self, idle_s: Idle) -> float:
        return host_hours(self._today(idle_s))

    def _today(self, idle_s: Idle) -> Result:
        return self._of(idle_s).trials.today(self._place(idle_s), FEWEST)

    def _place(self, idle_s: Idle) -> Place:
        found = self._verdicts.get(idle_s) or self._verdicts[self.grid.pairs[-1]]
        assert found.place is not None
        return found.place

    def _near(self, idle_s: Idle) -> list[Idle]:
        """Return idle times one step to each side."""
        first, second = idle_s
        row = [pair for pair in self.grid.pairs if pair[0] == first]
        column = [pair for pair in self.grid.pairs if pair[1] == second]
        near = [beside for line in (column, row) for beside in _beside(line, idle_s)]
        return list(dict.fromkeys(near))

    def _shown(self, idle_s: Idle, place: Place | None = None) -> Trial:
        trials = self._of(idle_s).trials
        return trials.glance(place or self._place(idle_s), FEWEST)

    # Whether idle times will do

    def _verdict(self, idle_s: Idle) -> IdleVerdict:
        if idle_s not in self._verdicts:
            self._verdicts[idle_s] = verdict = self._judged(idle_s)
            told = "keep the objectives" if verdict.place else "are out"
            self.search.say(f"idle times ({idle_text(idle_s)}) {told}")
        return self._verdicts[idle_s]

    def _judged(self, idle_s: Idle) -> IdleVerdict:
        search, chance, most = self._of(idle_s), 1.0, self.grid.pairs[-1]
        if idle_s != most:
            start, chance = self._longer(idle_s)
            assert start is not None
            if _nobody_met_it_cold(search.trial(*start)):
                return IdleVerdict(start, chance)
            if (trial := search.settled(start)).chance >= 0.5:
                return IdleVerdict(start, chance * trial.chance)
            if search.cap_helps:
                if self._gentlest is None:
                    self._gentlest = self._of(most).gentlest()
                for place in (self._gentlest, search.widest):
                    hopeless = search.hopeless_at(place)
                    if hopeless > 0.5:
                        return IdleVerdict(None, hopeless)
            search.floor = start
        found = search.found()
        return IdleVerdict(found, chance * search.confidence(found))

    def _longer(self, idle_s: Idle) -> IdleVerdict:
        """Return the largest place of those with longer idle times: no smaller one keeps all."""
        first, second = _lasting(idle_s)
        known = [
            verdict
            for other, verdict in self._verdicts.items()
            if _lasting(other)[0] >= first and _lasting(other)[1] >= second and verdict.place
        ]
        return max(known, key=lambda verdict: verdict.place or ())

    def _of(self, idle_s: Idle) -> Search:
        if idle_s not in self._searches:
            base = self.search.base
            assert base.tiers is not None
            tiers: Tiers = replace(base.tiers, idle_s=idle_s)
            self._searches[idle_s] = replace(
                self.search, base=replace(base, tiers=tiers), _told=set(), shown=FEWEST
            )
        return self._searches[idle_s]

    def _confidence(self, chosen: Idle) -> float:
        chance = self._verdicts[chosen].chance
        for verdict in self._verdicts.values():
            if verdict.place is None:
                chance *= max(verdict.chance, 0.5)
        return chance


def least_of(
    pairs: Sequence[Idle], gpu_h: Callable[[Idle], float], host_h: Callable[[Idle], float]
) -> Idle:
    """Return the pair of rule 1 among those with which all is kept."""
    for cost in (gpu_h, host_h):
        most_h = min(map(cost, pairs)) + ALIKE_H
        pairs = [pair for pair in pairs if cost(pair) <= most_h]
    return max(pairs, key=_lasting)


def idle_text(idle_s: Idle) -> str:
    """Return idle times in words, by level."""
    first, second = (f"after {one:g} s" if one else "never" for one in idle_s)
    return f"level 1 {first}, level 2 {second}"


def _nobody_met_it_cold(trial: Trial) -> bool:
    """Return whether it was the same as with the longest idle times."""
    results = [result for result in (trial.today, trial.stressed) if result is not None]
    return all(result.estimate("cold_share").mean == 0 for result in results)


def _first_of(row: Sequence[object], able: Callable[..., bool]) -> int:
    """Return the place of the first that is able, in a row of which the last is."""
    low, high = 0, len(row) - 1
    while low < high:
        middle = (low + high) // 2
        if able(row[middle]):
            high = middle
        else:
            low = middle + 1
    return low


def _beside(line: Sequence[Idle], pair: Idle) -> list[Idle]:
    at = list(line).index(pair)
    return [*line[max(0, at - 1) : at], *line[at + 1 : at + 2]]
