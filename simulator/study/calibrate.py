"""From a log to a service profile: how long requests take alone, and how much company costs.

Rule 1: the number in service is taken from the log itself: everybody between admission and end.
Rule 2: a fit says how well it fits. A slowdown that the data cannot tell from 0 is 0.

The access log knows whole seconds; the log of an engine's benchmark knows tokens.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulator.traffic.access_log import read_access_log
from simulator.traffic.distributions import Floats, empirical
from simulator.traffic.service_profiles import MeasuredSeconds, ServiceProfile, TokenTimes
from simulator.traffic.tables import TraceError, lines_of

KEPT = 400
"""Quantiles that a profile of seconds keeps: enough for its p99."""
FEWEST = 20
"""Requests below which a fit says nothing."""
HIGHEST_SLOWDOWN = 4.0


@dataclass(frozen=True, slots=True)
class Fit:
    """A profile and what is worth knowing about it, by name."""

    profile: ServiceProfile | MeasuredSeconds
    facts: dict[str, float]


def calibrate(path: Path, name: str, upstream: str | None) -> Fit:
    """Return the profile that fits a log; raises TraceError."""
    first = next((line for line in lines_of(path) if line.startswith("{")), "")
    if '"first_token_ts"' in first:
        return fit_tokens(path, name)
    return fit_seconds(path, name, upstream)


def fit_seconds(path: Path, name: str, upstream: str | None = None) -> Fit:
    """Fit seconds and slowdown to an access log; raises TraceError."""
    log = read_access_log(path, upstream)
    ran = np.array([outcome == "served" for outcome in log.outcomes])
    assert log.rows.service_s is not None
    held = ~np.isnan(log.rows.service_s)
    begins = log.rows.at_s + log.waits_s
    seconds = np.where(held, log.rows.service_s, 0.0)
    occupancy = Occupancy(begins[held], (begins + seconds)[held])
    begins, seconds = begins[ran], seconds[ran]
    ends = begins + seconds
    if len(seconds) < FEWEST:
        raise TraceError(f"{path}: {len(seconds)} requests were served; a fit needs {FEWEST}")
    slowdown, error = _slowdown(occupancy, begins, ends)
    alone = occupancy.work(begins, ends, slowdown)
    company = occupancy.company(begins, ends)
    kept = np.quantile(alone, (np.arange(KEPT) + 0.5) / KEPT) if len(alone) > KEPT else alone
    values = tuple(round(float(value), 6) for value in np.sort(kept))
    first_bytes = log.first_bytes_s[ran]
    first_bytes = first_bytes[~np.isnan(first_bytes)]
    facts = {
        "requests": float(len(log.outcomes)),
        "served": float(len(seconds)),
        "lines_skipped": float(log.skipped),
        "seconds_mean": float(seconds.mean()),
        "seconds_p50": float(np.quantile(seconds, 0.5)),
        "seconds_p95": float(np.quantile(seconds, 0.95)),
        "seconds_cv": float(seconds.std() / seconds.mean()) if seconds.mean() else 0.0,
        "alone_mean_s": float(alone.mean()),
        "in_service_mean": float(company.mean()),
        "slowdown": slowdown,
        "slowdown_ci95": error,
    }
    if len(first_bytes):
        facts["first_byte_p50_s"] = float(np.quantile(first_bytes, 0.5))
        facts["first_byte_p95_s"] = float(np.quantile(first_bytes, 0.95))
    source = f"calibrated from {len(seconds)} served requests of {path.name}"
    profile = MeasuredSeconds(
        name=name, source=source, seconds=empirical(values), slowdown=slowdown
    )
    return Fit(profile, facts)


class Occupancy:
    """How many were in service when, from the begins and ends of all of them."""

    def __init__(self, begins: Floats, ends: Floats) -> None:
        instants = np.concatenate([begins, ends])
        steps = np.concatenate([np.ones(len(begins)), -np.ones(len(ends))])
        # At one instant those who end go first: their slots are taken over.
        order = np.lexsort((steps, instants))
        self._instants = instants[order]
        self._inside = np.cumsum(steps[order])

    def at(self, at_s: Floats) -> Floats:
        """Return how many were in service right after these instants."""
        place = np.searchsorted(self._instants, at_s, side="right") - 1
        inside: Floats = self._inside[place]
        return inside

    def work(self, begins: Floats, ends: Floats, slowdown: float) -> Floats:
        """Return the seconds that requests would have taken alone, with that slowdown."""
        others = np.maximum(self._inside[:-1] - 1, 0)
        done = np.diff(self._instants) / (1 + slowdown * others)
        return self._between(np.concatenate([[0.0], np.cumsum(done)]), begins, ends)

    def company(self, begins: Floats, ends: Floats) -> Floats:
        """Return for each request the mean number in service while it was, itself included."""
        area = np.concatenate([[0.0], np.cumsum(self._inside[:-1] * np.diff(self._instants))])
        lasted = ends - begins
        whole = self._between(area, begins, ends)
        mean = np.divide(whole, lasted, out=np.ones_like(whole), where=lasted > 0)
        company: Floats = np.maximum(mean, 1.0)
        return company

    def _between(self, total: Floats, begins: Floats, ends: Floats) -> Floats:
        until, since = (np.interp(at_s, self._instants, total) for at_s in (ends, begins))
        between: Floats = until - since
        return between


def _slowdown(occupancy: Occupancy, begins: Floats, ends: Floats) -> tuple[float, float]:
    """Return the slowdown and its half-width; 0 where it is not clear.

    The work of a request knows nothing of how many it met. So the right slowdown is the one at
    which work and the number met at its begin are uncorrelated; a regression on the mean number
    met during its life would be biased, as long lives average more.
    """
    met = occupancy.at(begins)
    met = met - met.mean()

    def moments(slowdown: float) -> tuple[float, float]:
        work = occupancy.work(begins, ends, slowdown)
        products = (work - work.mean()) * met
        return float(products.mean()), float(products.std() / np.sqrt(len(products)))

    least, error = moments(0.0)
    if least <= 1.96 * error:
        step = 0.01
        slope = (moments(step)[0] - least) / step
        return 0.0, 1.96 * error / abs(slope) if slope else 0.0
    low, high = 0.0, HIGHEST_SLOWDOWN
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if moments(middle)[0] > 0 else (low, middle)
    step = max(0.01 * high, 1e-4)
    slope = (moments(high + step)[0] - moments(high - step)[0]) / (2 * step)
    return high, 1.96 * moments(high)[1] / abs(slope) if slope else 0.0


def fit_tokens(path: Path, name: str) -> Fit:
    """Fit token and prompt times to an engine's benchmark log; raises TraceError."""
    entries = []
    for number, line in enumerate(lines_of(path), start=1):
        try:
            entry = json.loads(line)
            entries.append(
                [
                    float(entry[key])
                    for key in (
                        *("input_toks", "output_toks"),
                        *("scheduled_ts", "first_token_ts", "last_token_ts"),
                    )
                ]
            )
        except (ValueError, KeyError, TypeError):
            raise TraceError(f"{path}: line {number} is not a request of a benchmark") from None
    rows = np.array([entry for entry in entries if entry[1] >= 2])
    if len(rows) < FEWEST:
        raise TraceError(f"{path}: {len(rows)} requests with tokens; a fit needs {FEWEST}")
    prompt, output, scheduled, first, last = rows.T
    company = Occupancy(scheduled, last).company(scheduled, last)
    token_s = (last - first) / (output - 1)
    token, token_error = _token_times(company, token_s)
    prompt_token_s, overhead_s = _prompt_times(prompt, first - scheduled)
    facts = {
        "requests": float(len(rows)),
        "in_service_min": float(company.min()),
        "in_service_mean": float(company.mean()),
        "in_service_max": float(company.max()),
        "token_p50_s": float(np.quantile(token_s, 0.5)),
        "token_fit_error": token_error,
        "first_token_p50_s": float(np.quantile(first - scheduled, 0.5)),
    }
    profile = ServiceProfile(
        name=name,
        source=f"calibrated from {len(rows)} requests of {path.name}, "
        f"{company.min():.0f} to {company.max():.0f} in service",
        token=token,
        prompt_token_s=prompt_token_s,
        prompt_overhead_s=overhead_s,
    )
    return Fit(profile, facts)


def _token_times(company: Floats, token_s: Floats) -> tuple[TokenTimes, float]:
    """Return the better of a line and a power, and its median relative error."""
    slope, start = np.polyfit(company - 1, token_s, 1)
    slope, start = max(0.0, float(slope)), float(start)
    power, scale = np.polyfit(np.log(company), np.log(token_s), 1)
    candidates = [TokenTimes(first_s=float(np.exp(scale)), power=max(0.0, float(power)))]
    if start > 0:
        candidates.append(TokenTimes(first_s=start, per_sequence_s=slope))

    def error(times: TokenTimes) -> float:
        modelled = (times.first_s + times.per_sequence_s * (company - 1)) * company**times.power
        return float(np.median(np.abs(modelled / token_s - 1)))

    best = min(candidates, key=error)
    return best, error(best)


def _prompt_times(prompt: Floats, first_s: Floats) -> tuple[float, float]:
    """Return seconds a prompt token and seconds besides.

    Prompts wait for each other, so the line is drawn along the faster half of them.
    """
    if np.ptp(prompt) == 0:
        return 0.0, 0.0
    kept = np.ones(len(prompt), dtype=bool)
    slope = start = 0.0
    for _ in range(10):
        slope, start = np.polyfit(prompt[kept], first_s[kept], 1)
        above = first_s - (start + slope * prompt)
        kept = above <= np.median(above)
    return max(0.0, float(slope)), max(0.0, float(start))
