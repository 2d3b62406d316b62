"""From logs to a service profile: how long requests take alone, and how much company costs.

Rule 1: the number in service is taken from the log itself: everybody between admission and end.
Rule 2: a fit says how sure it is, and the profile carries that into every prediction: a slowdown
        that cannot be told from 0 is not 0.
Rule 3: several logs of one engine are fitted as one; logs of two caps tell far more than one.

An access log knows whole seconds, and tokens where it was told them; the results of a benchmark
know tokens, and when each request began.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from simulator.study.occupancy import Occupancy
from simulator.study.token_fit import fit_together
from simulator.study.variation import LogTimes, Variation, variation_of
from simulator.traffic.access_log import AccessLog, read_access_log
from simulator.traffic.benchmarks import Timings, read_benchmark
from simulator.traffic.distributions import Floats, empirical
from simulator.traffic.pace import MOST_LEVEL_ERROR, EnginePace
from simulator.traffic.service_profiles import MeasuredSeconds, ServiceProfile
from simulator.traffic.tables import TraceError

KEPT = 400
"""Quantiles that a profile of seconds keeps: enough for its p99."""
FEWEST = 20
"""Requests below which a fit says nothing."""
HIGHEST_SLOWDOWN = 4.0
TRIED = np.concatenate([np.linspace(0.0, 0.5, 21), np.geomspace(0.55, HIGHEST_SLOWDOWN, 11)])
DRAWS = 40
ROUNDED_S = 0.002
"""A log's instants are rounded: who begins that soon before an end took over its slot."""
BLOCKS = 20
"""In which a log's requests are taken for independent: each is longer than a busy time."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A profile and what is worth knowing about it, by name."""

    profile: ServiceProfile | MeasuredSeconds
    facts: dict[str, float]

    @property
    def profile_is_vague(self) -> bool:
        """Whether what ten together would take is known to no better than a tenth."""
        if isinstance(self.profile, MeasuredSeconds):
            batch = min(10.0, 2 * self.profile.seen_batch)
            whole = 1 + self.profile.slowdown * (batch - 1)
            return 1.96 * self.profile.slowdown_error * (batch - 1) > 0.1 * whole
        error = self.facts["token_per_sequence_ci95_s"]
        return 9 * error > 0.1 * self.profile.token.at(10)


def calibrate(paths: Sequence[Path], name: str, upstream: str | None) -> Fit:
    """Return the profile that fits the logs of one engine; raises TraceError."""
    told = ", ".join(path.name for path in paths)
    benchmarks = [read_benchmark(path) for path in paths]
    runs = [each.timings for each in benchmarks if each is not None]
    if len(runs) == len(paths):
        return fit_benchmarks(runs, name, told)
    if runs:
        raise TraceError("logs and results of benchmarks are not fitted as one")
    logs = [read_access_log(path, upstream) for path in paths]
    timings = [timed for log in logs if (timed := log_timings(log)) is not None]
    if len(timings) == len(logs) and sum(len(each.prompt) for each in timings) >= FEWEST:
        return fit_benchmarks(timings, name, told)
    return _fit_seconds(logs, name, told)


# Seconds


@dataclass(frozen=True, slots=True)
class SecondsFit:
    """How seconds grow with company, and what the requests of each log would take alone."""

    slowdown: float
    error: float
    """Standard error."""
    level_error: float
    """Standard error of what requests take in a run of its own, as a share of it."""
    pace: EnginePace
    draws: tuple[float, ...]
    """Slowdowns that the logs leave open, evenly spread over what they may be, in order."""
    batch_mean: float
    batch_max: float
    alone: tuple[Floats, ...]
    """By log; not a number for those that did not run."""


def fit_company(logs: Sequence[AccessLog], source: str) -> SecondsFit:
    """Fit the slowdown to access logs; raises TraceError.

    The work of a request knows nothing of how many it met. So the right slowdown is the one at
    which work and the number met at its begin are uncorrelated; a regression on the mean number
    met during its life would be biased, as long lives average more.
    """
    spans = [_Spans.of(log) for log in logs]
    served = sum(int(span.ran.sum()) for span in spans)
    if served < FEWEST:
        raise TraceError(f"{source}: {served} requests were served; a fit needs {FEWEST}")
    begins = [span.begins[span.ran] for span in spans]
    times = LogTimes.of(begins)
    met = np.concatenate([span.met for span in spans])
    met = met - met.mean()
    ones = np.ones_like(met)

    def work_at(slowdown: float) -> Floats:
        return np.concatenate([span.work(slowdown) for span in spans])

    rough = work_at(_root(lambda at: float(met @ work_at(at))))
    scale = np.full_like(met, rough.mean())
    varies = variation_of(rough, np.column_stack([ones, met]), scale, begins).typical

    def moments(slowdown: float) -> tuple[float, float]:
        columns = np.column_stack([ones, met, work_at(slowdown)])
        one, beside, work = varies.whitened(columns, scale, times).T
        beside, work = (
            each - one * float(one @ each) / float(one @ one) for each in (beside, work)
        )
        return float((beside * work).mean()), _error_of_mean(beside * work)

    slowdown = _root(lambda at: moments(at)[0])
    step = max(0.01 * slowdown, 1e-3)
    slope = (moments(slowdown + step)[0] - moments(slowdown)[0]) / step
    error = moments(slowdown)[1] / abs(slope) if slope else HIGHEST_SLOWDOWN
    company = np.concatenate([span.company for span in spans])
    return SecondsFit(
        slowdown,
        min(error, HIGHEST_SLOWDOWN),
        _level_error(varies, scale, times),
        times.pace(varies, begins),
        _left_open(moments),
        float(company.mean()),
        float(company.max()),
        tuple(span.alone(slowdown) for span in spans),
    )


def _level_error(varies: Variation, scale: Floats, times: LogTimes) -> float:
    """Return the standard error of the level of another run: that of the fit, and its own."""
    (column,) = varies.whitened(scale[:, None], scale, times).T
    fitted = varies.noise**2 / max(1e-12, float(column @ column))
    return min(MOST_LEVEL_ERROR, float(np.sqrt(fitted + varies.of_logs**2)))


def _left_open(moments: Callable[[float], tuple[float, float]]) -> tuple[float, ...]:
    """Return slowdowns spread evenly over what the true one may be.

    At the true one the moment is 0 but for chance, so how many standard errors it is away says how
    sure a slowdown is too small or too large. That is as lopsided as the log makes it: a slowdown
    of several times the fitted one may be as likely as none at all.
    """
    away = []
    for tried in TRIED:
        moment, error = moments(float(tried))
        away.append(moment / error if error else 0.0)
    falling = np.minimum.accumulate(away)
    targets = ndtri((np.arange(DRAWS) + 0.5) / DRAWS)
    return tuple(float(each) for each in np.interp(targets, -falling, TRIED))


def _error_of_mean(values: Floats) -> float:
    """Return the standard error of the mean of values that follow each other in time.

    Requests that met each other are alike, so it is that of the means of blocks where these vary
    more than so many independent values would.
    """
    alone = float(values.std() / np.sqrt(len(values)))
    means = [block.mean() for block in np.array_split(values, min(BLOCKS, len(values)))]
    return max(alone, float(np.std(means, ddof=1) / np.sqrt(len(means))))


def alone_at(logs: Sequence[AccessLog], slowdown: float) -> list[Floats]:
    """Return what requests would take alone if the slowdown is this one."""
    return [_Spans.of(log).alone(slowdown) for log in logs]


def _root(moment: Callable[[float], float]) -> float:
    """Return where the moment is 0, at least 0."""
    if moment(0.0) <= 0:
        return 0.0
    low, high = 0.0, HIGHEST_SLOWDOWN
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if moment(middle) > 0 else (low, middle)
    return high


@dataclass(frozen=True, slots=True)
class _Spans:
    """When the requests of one log ran, and beside how many."""

    occupancy: Occupancy
    begins: Floats
    ends: Floats
    ran: NDArray[np.bool_]
    held: NDArray[np.bool_]

    @classmethod
    def of(cls, log: AccessLog) -> "_Spans":
        assert log.rows.service_s is not None
        held = ~np.isnan(log.rows.service_s)
        begins = log.rows.at_s + log.waits_s
        ends = begins + np.where(held, log.rows.service_s, 0.0)
        ran = np.array([outcome == "served" for outcome in log.outcomes])
        return cls(Occupancy(begins[held], ends[held]), begins, ends, ran, held)

    @property
    def met(self) -> Floats:
        return np.maximum(1.0, self.occupancy.at(self.begins[self.ran] + ROUNDED_S))

    @property
    def company(self) -> Floats:
        return self.occupancy.company(self.begins[self.ran], self.ends[self.ran])

    def work(self, slowdown: float) -> Floats:
        return self.occupancy.work(self.begins[self.ran], self.ends[self.ran], slowdown)

    def alone(self, slowdown: float) -> Floats:
        work = self.occupancy.work(self.begins, self.ends, slowdown)
        alone: Floats = np.where(self.held, work, np.nan)
        return alone


def _fit_seconds(logs: Sequence[AccessLog], name: str, source: str) -> Fit:
    fit = fit_company(logs, source)
    spans = [_Spans.of(log) for log in logs]
    ran = [span.ran for span in spans]
    alone = np.concatenate([work[which] for work, which in zip(fit.alone, ran, strict=True)])
    seconds = np.concatenate([(span.ends - span.begins)[span.ran] for span in spans])
    kept = np.quantile(alone, (np.arange(KEPT) + 0.5) / KEPT) if len(alone) > KEPT else alone
    values = tuple(round(float(value), 6) for value in np.sort(kept))
    first_bytes = np.concatenate(
        [log.first_bytes_s[which] for log, which in zip(logs, ran, strict=True)]
    )
    first_bytes = first_bytes[~np.isnan(first_bytes)]
    facts = {
        "requests": float(sum(len(log.outcomes) for log in logs)),
        "served": float(len(seconds)),
        "lines_skipped": float(sum(log.skipped for log in logs)),
        "seconds_mean": float(seconds.mean()),
        "seconds_p50": float(np.quantile(seconds, 0.5)),
        "seconds_p95": float(np.quantile(seconds, 0.95)),
        "seconds_cv": float(seconds.std() / seconds.mean()) if seconds.mean() else 0.0,
        "alone_mean_s": float(alone.mean()),
        "in_service_mean": fit.batch_mean,
        "in_service_max": fit.batch_max,
        "slowdown": fit.slowdown,
        "slowdown_ci95": 1.96 * fit.error,
    }
    if len(first_bytes):
        facts["first_byte_p50_s"] = float(np.quantile(first_bytes, 0.5))
        facts["first_byte_p95_s"] = float(np.quantile(first_bytes, 0.95))
    profile = MeasuredSeconds(
        name=name,
        source=f"calibrated from {len(seconds)} served requests of {source}",
        seconds=empirical(values),
        slowdown=fit.slowdown,
        slowdown_error=fit.error,
        slowdown_draws=fit.draws,
        seconds_error=fit.level_error,
        in_service_mean=fit.batch_mean,
        seen_batch=fit.batch_max,
        pace=fit.pace,
    )
    return Fit(profile, facts)


# Tokens


def log_timings(log: AccessLog) -> Timings | None:
    """Return what an access log knows of tokens: of streams that were served; None if of few."""
    rows = log.rows
    if rows.prompt is None or rows.output is None or rows.service_s is None:
        return None
    begins = rows.at_s + log.waits_s
    first = begins + log.first_bytes_s
    last = begins + rows.service_s
    served = np.array([outcome == "served" for outcome in log.outcomes])
    usable = served & log.streams & (rows.output >= 2) & (first < last) & ~np.isnan(rows.prompt)
    if usable.sum() < 0.5 * served.sum():
        return None  # the others would be missing from the batch
    return Timings(
        rows.prompt[usable], rows.output[usable], begins[usable], first[usable], last[usable]
    )


def fit_benchmarks(timings: Sequence[Timings], name: str, source: str) -> Fit:
    """Return the profile of tokens that explains all runs at once; raises TraceError."""
    count = sum(len(each.prompt) for each in timings)
    if count < FEWEST:
        raise TraceError(f"{source}: {count} requests with tokens; a fit needs {FEWEST}")
    fit = fit_together(timings)
    fewest, mean, most = fit.batch
    token_s = np.concatenate([(each.last_s - each.first_s) / (each.output - 1) for each in timings])
    first_s = np.concatenate([each.first_s - each.scheduled_s for each in timings])
    errors = np.std(np.array(fit.draws), axis=0)
    facts = {
        "requests": float(count),
        "in_service_min": fewest,
        "in_service_mean": mean,
        "in_service_max": most,
        "token_p50_s": float(np.quantile(token_s, 0.5)),
        "token_fit_error": fit.decode_error,
        "first_token_p50_s": float(np.quantile(first_s, 0.5)),
        "token_ci95_s": 1.96 * float(errors[0]),
        "token_per_sequence_ci95_s": 1.96 * float(errors[1]),
        "prompt_token_ci95_s": 1.96 * float(errors[3]),
        "prompt_overhead_ci95_s": 1.96 * float(errors[4]),
    }
    profile = ServiceProfile(
        name=name,
        source=f"calibrated from {count} requests of {source}, "
        f"{fewest:.0f} to {most:.0f} in service",
        token=fit.token,
        prompt_token_s=fit.prompt_token_s,
        prompt_overhead_s=fit.prompt_overhead_s,
        draws=fit.draws,
        seen_batch=most,
        pace=fit.pace,
    )
    return Fit(profile, facts)
