"""One recommendation for one engine and its traffic, found by spending where it is in doubt.

Rule 1: the point wanted is that of `sweep`: the smallest cap below the slots, then the shortest
        queue, then the shortest timeout that keep every limit, with the headroom's traffic and
        today. A cap that cannot serve what is offered is out before anything is simulated.
Rule 2: a longer queue and a longer timeout never lose more and never make the served wait less. So
        of each cap the longest is tried first: if it loses too much, the cap is out. The shortest
        queue that loses little enough is found by bisection, timeout by timeout: if callers wait
        too long with it, or lose too much with the longest, that timeout is out.
Rule 3: a larger cap never loses more and never makes anybody wait longer, so where the limits are
        on such metrics the cap is found by bisection, too.
Rule 4: the search takes a few replications at their word. Then the points that its answer hangs on,
        itself and those that were passed over before it, are looked at closer, and it searches
        anew with what was learned, until the answer is clear or there is nothing more to learn.
Rule 5: doubts are kept: the confidence is the chance that the point keeps its limits and that none
        of those passed over does.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TypeVar

from simulator.model.scenario import Scenario
from simulator.study.capacity import Load, load_of
from simulator.study.experiment import Plan
from simulator.study.limits import limit_text
from simulator.study.statistics import of_all
from simulator.study.sweep import CLEAR, Exact, nothing_exact
from simulator.study.trials import MOST, IdleRow, PeakStretch, Place, Trial, Trials

__all__ = ["MOST", "QUEUES", "Search", "Trial", "Tuned", "ruled_out_text"]

QUEUES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SHOWN = 8
"""Replications of the recommended point and its neighbours, at least; of all the same ones."""
SURE, UNSURE = 0.99, 0.95
"""A recommendation that is surer is not looked at closer; one that is less sure is called so."""
MORE_HELPS = frozenset(
    {
        *("lost_share", "rejected_share", "served_share", "goodput_per_s", "utilization"),
        *("attempts_per_request", "first_attempt_refused_share", "attempt_refused_share"),
        *("timed_out_share", "left_share", "latency_of_all_p50_s", "latency_of_all_p95_s"),
        "latency_of_all_p99_s",
    }
)
"""Metrics that a longer queue or timeout makes better, if anything; it makes the others worse."""
MORE_IS_EITHER = frozenset({"kept_share", "kept_per_s", "cost_per_thousand"})
"""But for these, which a longer queue may make better and then worse."""
CAP_HELPS = frozenset(
    {
        *("lost_share", "rejected_share", "timed_out_share", "served_share", "goodput_per_s"),
        *("wait_mean_s", "wait_p50_s", "wait_p95_s", "wait_p99_s", "queue_length_mean"),
    }
)
"""Metrics that a larger cap makes better, if anything, unless memory is short."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """What `tune` found."""

    recommended: Trial | None
    confidence: float | None
    ruled_out: tuple[tuple[int, Load], ...]
    """Caps that cannot serve what is offered with the headroom."""
    trials: tuple[Trial, ...]
    """All points that were tried, in the order of their size."""
    neighbours: tuple[Trial, ...]
    """The recommended point's nearest: a cap, a queue, a timeout less and more."""
    headroom: float
    holds_with_headroom: bool = True
    simulated: int = 0
    """Requests that were simulated."""
    looked_at: int = 0
    """Points, neighbours among them, with all idle times."""
    idle: tuple[IdleRow, ...] = ()
    """The recommended idle times and those beside them, where they were looked through."""
    peak: PeakStretch | None = None
    """What the recommended point comes to then, where traffic lasts for hours."""

    @property
    def borne(self) -> float:
        """The headroom with which the limits were kept, or looked for in vain."""
        return self.headroom if self.holds_with_headroom else 0.0

    @property
    def uncertain(self) -> bool:
        """Whether further replications might change the recommendation."""
        return self.confidence is None or self.confidence < UNSURE


def more_helps(metric: str) -> bool:
    """Return whether a longer queue or timeout makes a metric better, of one key or of all."""
    return of_all(metric) in MORE_HELPS


Say = Callable[[str], None]
Number = TypeVar("Number", bound=float)


@dataclass(kw_only=True)
class Search:
    """What is to be searched, and with what."""

    base: Scenario
    plan: Plan
    caps: Sequence[int]
    queues: Sequence[int]
    timeouts_s: Sequence[float]
    slo: Mapping[str, float]
    headroom: float
    exact: Exact = nothing_exact
    say: Say = field(default=lambda _: None)
    pool: Executor | None = None
    shown: int = SHOWN
    floor: Place | None = None
    """No smaller point keeps every limit, as is known already."""
    trials: Trials = field(init=False)
    _told: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.trials = Trials(
            base=self.base,
            plan=self.plan,
            slo=self.slo,
            headroom=self.headroom,
            exact=self.exact,
            pool=self.pool,
        )

    def run(self) -> Tuned:
        """Return the recommendation."""
        found = self.found()
        if found is None and self.headroom:
            self.say("nothing bears the headroom; without it:")
            return self._without_headroom()
        return self.tuned(found)

    def found(self) -> Place | None:
        """Return the smallest point that keeps every limit, looked at until that is clear."""
        if out := self.out():
            self.say(ruled_out_text(out, self.headroom))
        caps = [cap for cap in self.caps[len(out) :] if self.floor is None or cap >= self.floor[0]]
        found = self._searched(caps)
        while doubtful := self._doubtful(found):
            self.say(f"looking closer at {len(doubtful)} points that the answer hangs on")
            before = {place: self.trials.at(place).chance >= 0.5 for place in doubtful}
            self.trials.look_closer(doubtful)
            for place, kept in before.items():
                if (self.trials.at(place).chance >= 0.5) != kept:
                    self.say(_progress(self.trials.at(place)))
            found = self._searched(caps)
        return found

    def out(self) -> tuple[tuple[int, Load], ...]:
        """Return the first caps, as far as they cannot serve what is offered, with their loads."""
        loads = ((cap, load_of(self.trials.stressed.at(cap, 0, 0))) for cap in self.caps)
        return tuple(takewhile(lambda each: self._hopeless(each[1]), loads))

    def _hopeless(self, load: Load) -> bool:
        return load.share is not None and load.share * (1 - self._may_lose()) > 1

    def _without_headroom(self) -> Tuned:
        again = replace(self, headroom=0.0, _told=set())
        again.trials = self.trials.without_headroom()
        return replace(again.run(), headroom=self.headroom, holds_with_headroom=False)

    def _may_lose(self) -> float:
        return self.slo.get("lost_share", 1 - self.slo.get("served_share", 0.0))

    def _searched(self, caps: Sequence[int]) -> Place | None:
        """Return the smallest point of all that keeps every limit by what is known."""
        if not self.cap_helps:
            each = (self._within(cap) for cap in caps)
            return next((found for found in each if found is not None), None)
        if self.floor is not None and caps and (found := self._within(caps[0])) is not None:
            return found
        best, low, high = None, 0, len(caps)
        while low < high:
            middle = (low + high) // 2
            found = self._within(caps[middle])
            if found is None:
                low = middle + 1
            else:
                best, high = found, middle
        return best

    @property
    def cap_helps(self) -> bool:
        """Whether rule 3 holds for all limits."""
        profile = self.base.service.profile
        paged = profile is not None and profile.details.paged
        return not paged and set(self.slo) <= CAP_HELPS

    # Doubts

    def confidence(self, found: Place | None, *, settled: bool = False) -> float:
        """Return the chance that this is the answer; `settled`: by what no closer look changes."""
        chance = 1.0
        for place, trial in self.trials.known.items():
            if settled and trial.in_doubt and self.trials.can_tell_more(place):
                continue
            if place == found:
                chance *= trial.chance
            elif found is None or place < found:
                chance *= 1 - min(trial.chance, 0.5)
        return chance

    def _doubtful(self, found: Place | None) -> list[Place]:
        """Return the points that the answer hangs on and that a closer look may clear."""
        if self.confidence(found) >= SURE:
            return []
        # Where it stays unsure whatever else is learned, only what might turn it is worth a look.
        stays_unsure = self.confidence(found, settled=True) < UNSURE
        least = 1 - UNSURE if stays_unsure else CLEAR
        return [
            place
            for place, trial in self.trials.known.items()
            if (found is None or place <= found)
            and trial.in_doubt
            and min(trial.chance, 1 - trial.chance) > least
            and self.trials.can_tell_more(place)
        ]

    # One cap

    def _within(self, cap: int) -> Place | None:
        """Return the smallest point of a cap that keeps every limit, or None."""
        if not self._loses_little(cap, self.queues[-1], self.timeouts_s[-1]):
            self._tell_out(cap, f"even its longest queue misses {self._missed(cap)}")
            return None
        best: Place | None = None
        longest = len(self.queues) - 1
        least = self.floor[1] if self.floor is not None and self.floor[0] == cap else 0
        low = next(at for at, queue in enumerate(self.queues) if queue >= least)
        fewest = self._shortest(cap, self.timeouts_s[-1], low, longest)
        # The longest timeout first: a shorter one needs no shorter queue.
        for timeout_s in reversed(self.timeouts_s):
            if not self._waits_little(cap, self.queues[fewest], timeout_s):
                continue  # with each queue that it may need
            if not self._loses_little(cap, self.queues[longest], timeout_s):
                break  # shorter timeouts lose more
            fewest = self._shortest(cap, timeout_s, fewest, longest)
            for queue in self.queues[fewest : longest + 1]:
                if self.trial(cap, queue, timeout_s).chance >= 0.5:
                    best, longest = (cap, queue, timeout_s), self.queues.index(queue)
                    break
                if not self._waits_little(cap, queue, timeout_s):
                    break
        if best is None:
            self._tell_out(cap, "a queue long enough to lose little waits too long")
        return best

    def _tell_out(self, cap: int, why: str) -> None:
        if cap not in self._told:
            self._told.add(cap)
            self.say(f"cap {cap} is out: {why}")

    def _shortest(self, cap: int, timeout_s: float, low: int, high: int) -> int:
        """Return the place of the shortest queue that loses little; that at `high` does."""
        while low < high:
            middle = (low + high) // 2
            if self._loses_little(cap, self.queues[middle], timeout_s):
                high = middle
            else:
                low = middle + 1
        return low

    def _loses_little(self, cap: int, queue: int, timeout_s: float) -> bool:
        judged = self.trial(cap, queue, timeout_s).judgements
        return all(each.chance >= 0.5 for each in judged if more_helps(each.metric))

    def _waits_little(self, cap: int, queue: int, timeout_s: float) -> bool:
        judged = self.trial(cap, queue, timeout_s).judgements
        return all(
            each.chance >= 0.5
            for each in judged
            if not (more_helps(each.metric) or each.metric in MORE_IS_EITHER)
        )

    def _missed(self, cap: int) -> str:
        judged = self.trial(cap, self.queues[-1], self.timeouts_s[-1]).judgements
        helped = [each for each in judged if more_helps(each.metric)]
        binding = min(helped, key=lambda each: each.slack)
        value = "unknown" if binding.mean is None else f"{binding.mean:.3g}"
        return f"{binding.metric} {limit_text(binding)} (it is {value})"

    # One point

    def trial(self, cap: int, queue: int, timeout_s: float) -> Trial:
        """Return what is known of a point; one that is new is looked at first."""
        new = (cap, queue, timeout_s) not in self.trials.known
        made = self.trials.at((cap, queue, timeout_s))
        if new:
            self.say(_progress(made))
        return made

    def settled(self, place: Place) -> Trial:
        """Return what is known of a point, looked at until it is clear."""
        trial = self.trial(*place)
        while 1 - SURE < trial.chance < SURE and self.trials.can_tell_more(place):
            self.trials.look_closer([place])
            trial = self.trials.known[place]
        return trial

    @property
    def widest(self) -> Place:
        """The limits with which the fewest are lost."""
        return self.caps[-1], self.queues[-1], self.timeouts_s[-1]

    def gentlest(self) -> Place:
        """Return limits with which nobody waits longer than with any that lose little enough."""
        cap, _, longest_s = self.widest
        fewest = self._shortest(cap, longest_s, 0, len(self.queues) - 1)
        return cap, self.queues[max(0, fewest - 1)], self.timeouts_s[0]

    def hopeless_at(self, place: Place) -> float:
        """Return the chance that there the widest limits lose, or any others wait, too much."""
        helps = place == self.widest
        judged = self.settled(place).judgements
        met = (each.chance for each in judged if more_helps(each.metric) == helps)
        return 1 - min(met, default=1.0)

    # What came of it

    def tuned(self, found: Place | None) -> Tuned:
        """Return the answer with its neighbours, looked at for all metrics."""
        trials, searched, out = self.trials, _ordered(self.trials.known), self.out()
        if found is None:
            return Tuned(
                None,
                None,
                out,
                searched,
                (),
                self.headroom,
                simulated=trials.simulated,
                looked_at=len(trials.points),
            )
        confidence = self.confidence(found)
        best, *neighbours = trials.shown(found, self._near(found), self.shown)
        return Tuned(
            best,
            confidence,
            out,
            searched,
            tuple(neighbours),
            self.headroom,
            simulated=trials.simulated,
            looked_at=len(trials.points),
        )

    def _near(self, found: Place) -> list[Place]:
        cap, queue, timeout_s = found
        near = [(other, queue, timeout_s) for other in _beside(self.caps, cap)]
        near += [(cap, other, timeout_s) for other in _beside(self.queues, queue)]
        near += [(cap, queue, other) for other in _beside(self.timeouts_s, timeout_s)]
        return near


def _progress(trial: Trial) -> str:
    """Return in one line what a point came to."""
    world, binding = trial.scenario, trial.binding
    point = f"cap {world.cap}, queue {world.queue}, timeout {world.timeout_s:g} s"
    if binding is None:
        return f"{point}: no limits"
    value = "unknown" if binding.mean is None else f"{binding.mean:.3g}"
    verb = "keeps" if trial.chance >= 0.5 else "misses"
    return f"{point} {verb} the limits: {binding.metric} {value}, limit {limit_text(binding)}"


def ruled_out_text(out: Sequence[tuple[int, Load]], headroom: float) -> str:
    """Return in one line which caps cannot serve what is offered."""
    cap, load = out[-1]
    caps = f"cap {cap} serves" if len(out) == 1 else f"caps {out[0][0]} to {cap} serve"
    return (
        f"{caps} at most {load.served_at_most_per_s:.3g} requests a second; "
        f"{'with the headroom ' if headroom else ''}{load.offered_per_s:.3g} are offered"
    )


def _beside(values: Sequence[Number], value: Number) -> list[Number]:
    at = list(values).index(value)
    return [*values[max(0, at - 1) : at], *values[at + 1 : at + 2]]


def _ordered(trials: Mapping[Place, Trial]) -> tuple[Trial, ...]:
    return tuple(trials[key] for key in sorted(trials))
