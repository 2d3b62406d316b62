"""How much work requests are, and how fast an engine does it."""

from dataclasses import dataclass, replace
from math import exp, inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.traffic.distributions import Distribution, Floats
from simulator.traffic.pace import STEADY, EnginePace
from simulator.traffic.quantiles import normal_quantile
from simulator.traffic.service_profiles import MeasuredSeconds, ServiceProfile
from simulator.traffic.streams import Purpose, Streams


class Rows(NamedTuple):
    """Some requests: instants and, where the arrivals bring them, sizes."""

    at_s: Floats
    prompt: Floats | None = None
    output: Floats | None = None
    service_s: Floats | None = None
    """Seconds; not a number where the recording does not know (it was never served)."""
    weight: Floats | None = None
    patience_s: Floats | None = None
    """Infinity for those whose patience was not tried."""

    def taken(self, which: slice | NDArray[Any]) -> "Rows":
        """Return the rows that an index, a slice or a mask selects."""
        return Rows(
            self.at_s[which],
            *(None if column is None else column[which] for column in self[1:]),
        )


class Sized(NamedTuple):
    """Some requests with the work that each is."""

    at_s: Floats
    work: Floats
    """Seconds, or output tokens where the service has a profile of tokens."""
    prompt: Floats | None = None
    weight: Floats | None = None
    patience_s: Floats | None = None


NOTHING = Distribution("const", 0.0)
ONE_TOKEN = Distribution("const", 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """How much work a request is; exactly one of the first three is set.

    `seconds` is a law of seconds; `profile` is set, and work is output tokens after a prompt, from
    the arrivals or else by the laws `prompt` and `output`; `recorded`: the arrivals' own seconds.
    `slowdown` b makes n requests together run at 1 / (1 + b (n - 1)) of the speed of one.
    """

    seconds: Distribution | None = None
    profile: ServiceProfile | None = None
    recorded: bool = False
    seconds_known: Distribution | None = None
    """The law of the seconds that a recording does know, for those that it does not."""
    prompt: Distribution = NOTHING
    output: Distribution = ONE_TOKEN
    slowdown: float = 0.0
    factor: float = 1.0
    """How much more work than recorded: for the sensitivity line."""
    source: str = ""
    """Where the numbers come from, when they come from a file."""
    slowdown_error: float = 0.0
    """Standard error of a fitted slowdown; each replication then draws its own."""
    slowdown_draws: tuple[float, ...] = ()
    """What it draws from, where that is more than an error: evenly spread, in order."""
    seen_batch: float = inf
    """The largest number together in that log."""
    fitted_batch: float = 1.0
    """The mean number together in the log that `slowdown` was fitted to."""
    level_error: float = 0.0
    """Standard error of the seconds that requests take in another run, as a share of them."""
    pace: EnginePace = STEADY
    """How its speed varies within a run."""

    @classmethod
    def of(cls, profile: ServiceProfile | MeasuredSeconds) -> "Service":
        """Return the service of a profile, as unsure as that is."""
        if isinstance(profile, ServiceProfile):
            return cls(profile=profile, seen_batch=profile.seen_batch, pace=profile.pace)
        return cls(
            seconds=profile.seconds,
            slowdown=profile.slowdown,
            source=profile.source,
            slowdown_error=profile.slowdown_error,
            slowdown_draws=profile.slowdown_draws,
            level_error=profile.seconds_error,
            fitted_batch=profile.in_service_mean,
            seen_batch=profile.seen_batch,
            pace=profile.pace,
        )

    @property
    def uncertain(self) -> bool:
        """Whether the engine's speed is known with an error, and each replication draws its own."""
        draws = self.profile is not None and self.profile.draws
        unsure = self.slowdown_error > 0 or self.level_error > 0 or bool(draws)
        return unsure or self.pace.deviation > 0

    def drawn(self, streams: Streams) -> "Service":
        """Return the service of one replication: as fast as the log leaves it open."""
        if not self.uncertain:
            return self
        pace = self.pace.drawn(streams.of(Purpose.PACE))
        if self.profile is not None:
            profile = self.profile.drawn(streams.turn(Purpose.MODEL))
            return replace(self, profile=profile, pace=pace)
        growth, level = streams.spread(Purpose.MODEL)
        slowdown = self._slowdown_at(growth)
        # At the log's own batch requests take what they took, whatever the slowdown.
        others = self.fitted_batch - 1
        factor = (1 + self.slowdown * others) / (1 + slowdown * others)
        factor *= exp(self.level_error * normal_quantile(level))
        return replace(
            self.slower(factor), slowdown=slowdown, slowdown_error=0.0, level_error=0.0, pace=pace
        )

    def _slowdown_at(self, share: float) -> float:
        """Return the slowdown that is too large with this chance."""
        if not self.slowdown_draws:
            return max(0.0, self.slowdown + self.slowdown_error * normal_quantile(share))
        count = len(self.slowdown_draws)
        return float(np.interp(share * count - 0.5, np.arange(count), self.slowdown_draws))

    def slower(self, factor: float) -> "Service":
        """Return the service with `factor` times the work."""
        if self.seconds is not None:
            return replace(self, seconds=self.seconds.scaled(factor))
        return replace(self, factor=self.factor * factor)

    @property
    def mean_alone_s(self) -> float | None:
        """Mean seconds of a request that is alone, or None where only the recording knows."""
        if self.seconds is not None:
            return self.seconds.mean
        if self.profile is not None:
            alone_s = self.profile.alone_s(self.prompt.mean, self.output.mean)
            return alone_s * self.factor
        return None

    def random(self, *, rows_have_sizes: bool) -> bool:
        """Whether two replications of one stream of arrivals differ in their work."""
        if self.uncertain or (self.profile is not None and self.profile.details.random):
            return True
        if self.seconds is not None:
            return self.seconds.random
        if self.profile is not None and not rows_have_sizes:
            return self.prompt.random or self.output.random
        return self.seconds_known is not None

    def speed(self, batch: int) -> float:
        """Return the units of work a second that each of `batch` requests gets."""
        if self.profile is not None:
            return self.profile.speed(batch)
        return 1.0 / (1.0 + self.slowdown * (batch - 1))

    def sized(self, rows: Rows, work: np.random.Generator, prompts: np.random.Generator) -> Sized:
        """Return the rows with the work of each."""
        if self.pace.slower:
            slower = self.pace.at(rows.at_s)
            sized = replace(self, pace=STEADY).sized(rows, work, prompts)
            prompt = None if sized.prompt is None else sized.prompt * slower
            return sized._replace(work=sized.work * slower, prompt=prompt)
        count = len(rows.at_s)
        if self.seconds is not None:
            return _sized(rows, self.seconds.draw(work, count))
        if self.recorded:
            if rows.service_s is None:
                raise ValueError("the recording has no service times")
            return _sized(rows, self._completed(rows.service_s, work))
        output = _whole(rows.output, self.output, work, count)
        prompt = _whole(rows.prompt, self.prompt, prompts, count)
        # A request has at least one token: an engine that answers has computed it.
        output = np.maximum(output, 1.0) * self.factor
        return _sized(rows, output, prompt * self.factor)

    def _completed(self, service_s: Floats, work: np.random.Generator) -> Floats:
        """Return recorded seconds, with others' seconds where the recording knows none."""
        unknown = np.isnan(service_s)
        if unknown.any():
            assert self.seconds_known is not None
            drawn = self.seconds_known.draw(work, len(service_s))
            service_s = np.where(unknown, drawn, service_s)
        return service_s * self.factor


def _whole(
    recorded: Floats | None, law: Distribution, rng: np.random.Generator, count: int
) -> Floats:
    """Return recorded tokens; those that are not known are those of random others."""
    if recorded is None:
        return law.draw(rng, count)
    unknown = np.isnan(recorded)
    if not unknown.any():
        return recorded
    known = recorded[~unknown]
    others = rng.choice(known, count) if len(known) else law.draw(rng, count)
    return np.where(unknown, others, recorded)


def _sized(rows: Rows, work: Floats, prompt: Floats | None = None) -> Sized:
    return Sized(rows.at_s, work, prompt, rows.weight, rows.patience_s)
