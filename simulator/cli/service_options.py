"""From options and logs to how much work requests are and how fast the engine is."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from simulator.cli import option_parser as parsers
from simulator.cli.option_parser import OptionParser, UsageError
from simulator.study.calibrate import alone_at, fit_company
from simulator.traffic.access_log import AccessLog
from simulator.traffic.distributions import Distribution, Floats, empirical
from simulator.traffic.engine_details import EngineDetails, PrefixCache, Speculation
from simulator.traffic.service import Rows, Service
from simulator.traffic.service_profiles import (
    PROFILES,
    ServiceProfile,
    read_profile,
)
from simulator.traffic.tables import TraceError

OF_TOKENS = (
    *("--prompt", "--output", "--tokens"),
    *("--max-num-batched-tokens", "--kv-tokens", "--prefix-cache", "--speculate"),
)
"""Options of an engine whose tokens are known."""
USUAL_TOKENS = (1024.0, 256.0)
"""Of prompts and answers, on average."""
MOST_DRAFTS = 100
DEFAULT_SERVICE = Service(seconds=Distribution("exp", 2.0))


def service_of(options: OptionParser, rows: Rows | None) -> Service:
    """Return what the options say of the engine; `rows` is the recording, where there is one."""
    if rows is not None and rows.service_s is not None and "--service" not in options:
        service = _recorded_seconds(rows.service_s)
    else:
        service = options.take("--service", _service_law, DEFAULT_SERVICE)
    prompt, output = options.take("--tokens", _mean_tokens, USUAL_TOKENS)
    if service.profile is None:
        for option in options.given_of(*OF_TOKENS):
            options.fault(option, "goes with a --service profile of tokens only")
    else:
        if "--slowdown" in options:
            options.fault("--slowdown", "a profile says that itself")
        for option in options.given_of("--prompt", "--output") if "--tokens" in options else ():
            options.fault(option, "--tokens says it already")
        return replace(
            service,
            profile=detailed(options, service.profile),
            prompt=options.take("--prompt", _tokens, Distribution("exp", prompt)),
            output=options.take("--output", _tokens, Distribution("exp", output)),
        )
    slowdown = options.take("--slowdown", parsers.at_least(0), service.slowdown)
    return replace(service, slowdown=slowdown)


def detailed(options: OptionParser, profile: ServiceProfile) -> ServiceProfile:
    """Return a profile with what the options say of its engine besides."""
    details = profile.details
    details = replace(
        options.take("--prefix-cache", partial(_prefix_cache, details), details),
        kv_tokens=options.take("--kv-tokens", parsers.above(0), details.kv_tokens),
        speculation=options.take("--speculate", _speculation, details.speculation),
    )
    if not (details.paged or details.prefix_caching):
        options.fault("--prefix-cache", "off says what a preemption costs: give --kv-tokens")
    budget = options.take("--max-num-batched-tokens", parsers.whole(1), profile.chunk_tokens)
    return replace(profile, details=details, chunk_tokens=budget)


def _prefix_cache(details: EngineDetails, text: str) -> EngineDetails:
    if text == "off":
        return replace(details, prefix_caching=False, prefix=None)
    continued, cached = parsers.pair_of(parsers.at_least(0))(text)
    for value in (continued, cached):
        if value > 1:
            raise ValueError(f"needs two shares, or off, not {text!r}")
    return replace(
        details,
        prefix_caching=True,
        prefix=PrefixCache(continued=continued, cached=cached) if continued else None,
    )


def _speculation(text: str) -> Speculation:
    parts = text.split(",")
    if len(parts) not in {2, 3}:
        raise ValueError(f"needs DRAFTS,ACCEPTANCE or DRAFTS,ACCEPTANCE,DEVIATION, not {text!r}")
    drafts = parsers.whole(1)(parts[0])
    if drafts > MOST_DRAFTS:
        raise ValueError(f"no engine drafts {drafts} tokens in a step")
    acceptance, deviation = (parsers.at_least(0)(part) for part in (*parts[1:], "0")[:2])
    if acceptance > 1:
        raise ValueError(f"the acceptance must be at most 1, not {acceptance:g}")
    return Speculation(drafts=drafts, acceptance=acceptance, deviation=deviation)


def logged_service(options: OptionParser, log: AccessLog) -> tuple[Service, Rows]:
    """Return the service that a log shows, and its rows with what each would take alone."""
    for option in options.given_of(*OF_TOKENS):
        options.fault(option, "goes with a --service profile of tokens only")
    assert log.rows.service_s is not None
    service = _recorded_seconds(log.rows.service_s)
    if "--slowdown" in options:
        slowdown = options.take("--slowdown", parsers.at_least(0), 0.0)
        (alone,) = alone_at([log], slowdown)
        fitted = replace(service, slowdown=slowdown)
    else:
        try:
            fit = fit_company([log], "LOG")
        except TraceError:
            return service, log.rows  # too few for a fit: as long as they took
        (alone,) = fit.alone
        fitted = replace(
            service,
            slowdown=fit.slowdown,
            slowdown_error=fit.error,
            slowdown_draws=fit.draws,
            fitted_batch=fit.batch_mean,
            seen_batch=fit.batch_max,
        )
    known = empirical(tuple(float(value) for value in alone if value == value))  # noqa: PLR0124
    if fitted.seconds_known is not None:
        fitted = replace(fitted, seconds_known=known)
    return fitted, log.rows._replace(service_s=alone, prompt=None, output=None)


def _recorded_seconds(seconds: Floats) -> Service:
    known = tuple(float(value) for value in seconds if value == value)  # noqa: PLR0124 - not NaN
    if not known:
        raise UsageError(["no request of the recording was served, so give a --service"])
    return Service(
        recorded=True, seconds_known=empirical(known) if len(known) < len(seconds) else None
    )


def _service_law(text: str) -> Service:
    kind, _, name = text.partition(":")
    if kind in {"hold", "exp", "lognormal"}:
        return Service(seconds=parsers.law(text, constant="hold"))
    if kind != "profile":
        laws = "hold:S, exp:S, lognormal:S,SIGMA, profile:NAME, profile:FILE"
        raise ValueError(f"{text!r} is not one of {laws}")
    if name == "hold-2s":
        return Service(seconds=Distribution("const", 2.0))
    if name in PROFILES:
        return Service(profile=PROFILES[name])
    if not Path(name).exists():
        raise ValueError(f"{name!r} is not a file and not one of {', '.join(PROFILES)}, hold-2s")
    return Service.of(read_profile(Path(name)))


def _mean_tokens(text: str) -> tuple[float, float]:
    if text.count(",") != 1:
        raise ValueError(f"needs P,O: mean tokens of prompts and answers, not {text!r}")
    return parsers.pair_of(parsers.above(0))(text)


def _tokens(text: str) -> Distribution:
    return parsers.law(text, unit="N")
