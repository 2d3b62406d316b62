"""From a log to a service profile: how long requests take alone, and how much company costs.

Rule 1: the number in service is taken from the log itself: everybody between admission and end.
Rule 2: a fit says how well it fits. A slowdown that the data cannot tell from 0 is 0.

The access log knows whole seconds; the log of an engine's benchmark knows tokens.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulator.laws import Floats, empirical
from simulator.speeds import MeasuredSeconds, ServiceProfile, TokenTimes
from simulator.trace import TraceError, read_access_log

KEPT = 400
"""Quantiles that a profile of seconds keeps: enough for its p99."""
FEWEST = 20
"""Requests below which a fit says nothing."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A profile and what is worth knowing about it, by name."""

    profile: ServiceProfile | MeasuredSeconds
    facts: dict[str, float]


def calibrate(path: Path, name: str, upstream: str | None) -> Fit:
    """Return the profile that fits a log; raises TraceError."""
    first = next((line for line in _lines(path) if line.startswith("{")), "")
    if '"first_token_ts"' in first:
        return fit_tokens(path, name)
    return fit_seconds(path, name, upstream)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from None


def fit_seconds(path: Path, name: str, upstream: str | None = None) -> Fit:
    """Fit seconds and slowdown to an access log; raises TraceError."""
    log = read_access_log(path, upstream)
    ran = np.array([outcome == "served" for outcome in log.outcomes])
    assert log.rows.service_s is not None
    held = ~np.isnan(log.rows.service_s)
    begins = log.rows.at_s + log.waits_s
    seconds = np.where(held, log.rows.service_s, 0.0)
    company = company_of(begins[held], (begins + seconds)[held])[ran[held]]
    seconds = seconds[ran]
    if len(seconds) < FEWEST:
        raise TraceError(f"{path}: {len(seconds)} requests were served; a fit needs {FEWEST}")
    slowdown, error = _slowdown(company, seconds)
    alone = seconds / (1 + slowdown * (company - 1))
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


def company_of(begins: Floats, ends: Floats) -> Floats:
    """Return for each request the mean number in service while it was, itself included."""
    instants = np.concatenate([begins, ends])
    steps = np.concatenate([np.ones(len(begins)), -np.ones(len(ends))])
    order = np.argsort(instants, kind="stable")
    instants, height = instants[order], np.cumsum(steps[order])
    area = np.concatenate([[0.0], np.cumsum(height[:-1] * np.diff(instants))])

    def area_until(at_s: Floats) -> Floats:
        interpolated: Floats = np.interp(at_s, instants, area)
        return interpolated

    lasted = ends - begins
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (area_until(ends) - area_until(begins)) / lasted
    company: Floats = np.where(lasted > 0, np.maximum(mean, 1.0), 1.0)
    return company


def _slowdown(company: Floats, seconds: Floats) -> tuple[float, float]:
    """Return b of `seconds = alone (1 + b (n - 1))` and its half-width; 0 where it is not clear."""
    others = company - 1
    if others.std() < 1e-9:
        return 0.0, 0.0
    design = np.column_stack([np.ones(len(others)), others])
    coefficients, *_ = np.linalg.lstsq(design, seconds, rcond=None)
    residuals = seconds - design @ coefficients
    # The spread grows with the mean, so the plain formula would be too sure (White, 1980).
    bread = np.linalg.inv(design.T @ design)
    meat = design.T @ (design * residuals[:, None] ** 2)
    error = float(np.sqrt((bread @ meat @ bread)[1, 1]))
    alone, slope = float(coefficients[0]), float(coefficients[1])
    if alone <= 0 or slope <= 1.96 * error:
        return 0.0, 1.96 * error / alone if alone > 0 else 0.0
    return slope / alone, 1.96 * error / alone


def fit_tokens(path: Path, name: str) -> Fit:
    """Fit token and prompt times to an engine's benchmark log; raises TraceError."""
    entries = []
    for number, line in enumerate(_lines(path), start=1):
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
            raise TraceError(f"{path}: line {number} is no request of a benchmark") from None
    rows = np.array([entry for entry in entries if entry[1] >= 2])
    if len(rows) < FEWEST:
        raise TraceError(f"{path}: {len(rows)} requests with tokens; a fit needs {FEWEST}")
    prompt, output, scheduled, first, last = rows.T
    company = company_of(scheduled, last)
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

    Prompts wait for each other, so the fit is through the fastest quarter of each class of length.
    """
    order = np.argsort(prompt)
    classes = np.array_split(order, max(2, min(10, len(order) // 10)))
    lengths = np.array([prompt[part].mean() for part in classes])
    fastest = np.array([np.quantile(first_s[part], 0.25) for part in classes])
    if np.ptp(lengths) == 0:
        return 0.0, 0.0
    slope, start = np.polyfit(lengths, fastest, 1)
    return max(0.0, float(slope)), max(0.0, float(start))
