"""From a command line to scenarios: which option means what, and which go together.

Rule 1: what was not given takes the value that the report then shows; nothing is silent.
Rule 2: a combination that would be ignored is a fault.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any, cast

from simulator.cli import option_parser as parsers
from simulator.cli.arrival_options import FullEngine, arrivals_of, recorded_of, trace_of
from simulator.cli.option_parser import OptionParser, UsageError
from simulator.cli.service_options import logged_service, service_of
from simulator.model.records import metric_names
from simulator.model.scenario import Balancing, EachRequest, PatienceTold, Scenario, Tiers
from simulator.study.experiment import Plan, cores
from simulator.study.request import StudyRequest
from simulator.study.statistics import is_share
from simulator.traffic.access_log import AccessLog, read_access_log
from simulator.traffic.distributions import NEVER
from simulator.traffic.keys import ClientKey
from simulator.traffic.retries import NO_RETRY, TOLD
from simulator.traffic.tables import TraceError
from simulator.traffic.workload import Arrivals, Burst, Closed, Modulated, Renewal, Replay
from tornado_frontdoor.core.limits import COOLING_LIMIT_S

__all__ = ["StudyRequest", "UsageError", "replay_of", "simulate_of", "sweep_of"]

DEFAULT_SLOTS = 8
DEFAULT_TIMEOUT_S = 30.0
DEFAULT_REQUESTS = 20_000
DEFAULT_REPLICATIONS = 20
WARMUP_SHARE = 20
"""One request in so many fills the system and is not measured."""
DEFAULT_SLO = {"lost_share": 0.01, "wait_p95_s": 5.0}
"""Without a limit on waits, a long queue before a small cap would always win."""
DEFAULT_HEADROOM = 0.2
MOST_POINTS = 10_000
"""Of a sweep: more take hours, and nobody reads them."""


def simulate_of(given: Mapping[str, Any]) -> StudyRequest:
    """Return what `simulate` is asked; raises UsageError."""
    options = OptionParser(given)
    log = logged(options)
    cap = options.take("--cap", parsers.places(1), 1)
    queue = options.take("--queue", parsers.places(0), 0)
    timeout_s = options.take("--timeout", parsers.timeout, DEFAULT_TIMEOUT_S)
    name = str(options.take("--log", str, ""))
    return _command(options, [cap], [queue], [timeout_s], log=log, name=name)


def logged(options: OptionParser) -> AccessLog | None:
    """Return the log that `--log` names, or None; raises UsageError."""
    if "--log" not in options:
        return None
    for option in options.given_of("--rate", "--rho", "--burst", "--clients", "--trace"):
        options.fault(option, "does not go with --log")
    path, upstream = options.take("--log", str, ""), options.take("--upstream", str, None)
    try:
        return read_access_log(Path(path), upstream)
    except TraceError as error:
        raise UsageError([f"--log: {error}"]) from None


def sweep_of(given: Mapping[str, Any]) -> StudyRequest:
    """Return what `sweep` is asked; raises UsageError."""
    options = OptionParser(given)
    caps, queues, timeouts_s = _grid(options)
    return _command(options, caps, queues, timeouts_s)


def replay_of(given: Mapping[str, Any]) -> StudyRequest:
    """Return what `replay` is asked; raises UsageError."""
    options = OptionParser(given)
    upstream = options.take("--upstream", str, None)
    try:
        log = read_access_log(Path(given["LOG"]), upstream)
    except TraceError as error:
        raise UsageError([str(error)]) from None
    caps, queues, timeouts_s = _grid(options)
    return _command(options, caps, queues, timeouts_s, log=log, name=str(given["LOG"]))


def scenario_of(options: OptionParser, log: AccessLog | None) -> StudyRequest:
    """Return one scenario whose limits are still to be found, before the largest cap there is."""
    slots = options.take("--slots", parsers.places(1), DEFAULT_SLOTS)
    count, per_replica = options.take("--replicas", parsers.replicas, (1, slots))
    cap = max(1, count * per_replica - 1)
    name = str(options.take("--log", str, ""))
    return _command(options, [cap], [0], [DEFAULT_TIMEOUT_S], log=log, name=name)


def _grid(options: OptionParser) -> tuple[list[int], list[int], list[float]]:
    return (
        options.take("--cap", parsers.wholes(1), [1]),
        options.take("--queue", parsers.wholes(0), [0]),
        options.take("--timeout", parsers.timeouts, [DEFAULT_TIMEOUT_S]),
    )


def _command(
    options: OptionParser,
    caps: list[int],
    queues: list[int],
    timeouts_s: list[float],
    *,
    log: AccessLog | None = None,
    name: str = "",
) -> StudyRequest:
    slots = options.take("--slots", parsers.places(1), DEFAULT_SLOTS)
    count, per_replica = options.take("--replicas", parsers.replicas, (1, slots))
    if "--replicas" in options and "--slots" in options:
        options.fault("--slots", "--replicas says it already")
    trace = trace_of(options) if log is None and "--trace" in options else None
    recording = Replay(rows=log.rows) if log is not None else trace
    if log is not None and "--service" not in options:
        service, rows = logged_service(options, log)
        recording = Replay(rows=rows)
    else:
        service = service_of(options, recording.rows if isinstance(recording, Replay) else None)
    if log is None:
        engine = FullEngine(max(caps), count, per_replica, service)
        arrivals, traffic = arrivals_of(options, trace, engine)
    else:
        assert isinstance(recording, Replay)
        arrivals, traffic = recorded_of(options, recording, name)
    requests, warmup = _length(options, arrivals)
    keys = _keys(options, arrivals)
    base = Scenario(
        cap=caps[0],
        queue=queues[0],
        timeout_s=timeouts_s[0],
        arrivals=arrivals,
        service=service,
        replicas=count,
        slots=per_replica,
        balancing=cast("Balancing", options.take("--pick", _PICK, "least")),
        retry=options.take("--retry", parsers.retry, NO_RETRY),
        advice=options.take("--advice", parsers.advice, TOLD),
        return_places=options.take("--return-places", parsers.places(0), None),
        patience=options.take("--patience", parsers.patience, NEVER),
        patience_told=cast("PatienceTold", options.take("--patience-told", _TOLD, "no")),
        keys=keys,
        fair_share=options.flag("--fair-share"),
        hang_up=options.take("--hang-up", parsers.share, 0.0),
        cooling_s=options.take("--cooling", parsers.at_least(0), 0.0),
        cooling_limit_s=options.take("--cooling-limit", parsers.at_least(0), COOLING_LIMIT_S),
        tiers=_tiers(options),
        each=options.take("--each", _each, None),
        gpu_cost_per_h=options.take("--gpu-cost", parsers.at_least(0), 0.0),
        requests=requests,
        warmup=warmup,
    )
    if base.each is not None and base.each.of_tokens and service.profile is None:
        options.fault("--each", "first_token_s and token_s need a --service profile of tokens")
    plan = _plan(options, base)
    slo = options.take("--slo", _slo, DEFAULT_SLO)
    known = metric_names(base)
    for metric, limit in slo.items():
        if metric not in known:
            options.fault("--slo", f"{metric!r} is not one of {', '.join(known)}")
        elif is_share(metric) and limit > 1:
            options.fault("--slo", f"{metric} is a share, at most 1, not {limit:g}")
    headroom = options.take("--headroom", parsers.at_least(0), DEFAULT_HEADROOM)
    plot = options.take("--plot", parsers.picture, None)
    if (points := len(caps) * len(queues) * len(timeouts_s)) > MOST_POINTS:
        options.fault("--cap", f"{points} points in all, at most {MOST_POINTS}: leave some out")
    options.done()
    return StudyRequest(
        scenarios=tuple(base.at(*limits) for limits in product(caps, queues, timeouts_s)),
        plan=plan,
        traffic=traffic,
        json=options.flag("--json"),
        plot=plot,
        slo=slo,
        headroom=headroom,
        log=log,
    )


_TOLD = parsers.one_of("no", "ignored", "heeded")
_PICK = parsers.one_of("least", "random", "round-robin")


def _keys(options: OptionParser, arrivals: Arrivals | Closed) -> tuple[ClientKey, ...]:
    for option in ("--shares", "--fair-share"):
        options.needs(option, "--keys")
    nobody: dict[str, float] = {}
    keys = options.take("--keys", parsers.named_numbers, nobody)
    shares = options.take("--shares", parsers.named_numbers, nobody)
    for name in shares.keys() - keys.keys():
        options.fault("--shares", f"{name!r} is not one of the keys")
    if keys and isinstance(arrivals, Closed) and sum(keys.values()) != arrivals.clients:
        options.fault("--keys", f"make up {sum(keys.values()):g} clients, not {arrivals.clients}")
    return tuple(ClientKey(name, part, shares.get(name, 1.0)) for name, part in keys.items())


def _plan(options: OptionParser, scenario: Scenario) -> Plan:
    replications = DEFAULT_REPLICATIONS if scenario.random else 1
    return Plan(
        seed=options.take("--seed", parsers.whole(0), 1),
        replications=options.take("--reps", parsers.whole(1), replications),
        jobs=options.take("--jobs", parsers.jobs, cores()),
        driver=options.take("--driver", parsers.one_of("simpy", "heap"), "simpy"),
        check=options.flag("--check"),
        dask=options.take("--dask", str, None),
    )


def _length(options: OptionParser, arrivals: Arrivals | Closed) -> tuple[int | None, int]:
    if isinstance(arrivals, Burst):  # or it stands for a trace that could not be read
        for option in options.given_of("--requests", "--warmup") if "--burst" in options else ():
            options.fault(option, "a burst is as long as it is")
        return arrivals.count, 0
    endless = isinstance(arrivals, Renewal | Modulated | Closed)
    default = DEFAULT_REQUESTS if endless else None
    requests = options.take("--requests", parsers.whole(1), default)
    usual = requests // WARMUP_SHARE if endless and requests else 0
    warmup = options.take("--warmup", parsers.whole(0), usual)
    if requests is not None and warmup >= requests:
        options.fault("--warmup", f"{warmup} of {requests} requests leaves none to measure")
    return requests, warmup


def _tiers(options: OptionParser) -> Tiers | None:
    for option in ("--wake", "--fall", "--hold-limit", "--hold-advice"):
        options.needs(option, "--sleep")
    if "--sleep" not in options:
        return None
    seconds = parsers.pair_of(parsers.at_least(0))
    tiers = Tiers(idle_s=options.take("--sleep", _idle_times, (0.0, 0.0)))
    first, second = tiers.idle_s
    if first and second and second <= first:
        options.fault("--sleep", f"level 2 after {second:g} s is not later than level 1")
    return replace(
        tiers,
        wake_s=options.take("--wake", seconds, tiers.wake_s),
        fall_s=options.take("--fall", seconds, tiers.fall_s),
        hold_s=options.take("--hold-limit", parsers.pair_of(parsers.above(0)), tiers.hold_s),
        retry_after_s=options.take("--hold-advice", seconds, tiers.retry_after_s),
    )


def _idle_times(text: str) -> tuple[float, float]:
    times_s = parsers.pair_of(parsers.at_least(0))(text)
    if not any(times_s):
        raise ValueError(f"{text} never sleeps; leave the option out for that")
    return times_s


def _each(text: str) -> EachRequest:
    limits = _slo(text)
    names = [field.name for field in fields(EachRequest)]
    for name, limit in limits.items():
        if name not in names:
            raise ValueError(f"{name!r} is not one of {', '.join(names)}")
        if limit <= 0:
            raise ValueError(f"{name} must be above 0, not {limit:g}")
    return EachRequest(**limits)


def _slo(text: str) -> dict[str, float]:
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} is not METRIC=LIMIT")
        name = name.strip()
        if name in limits:
            raise ValueError(f"{name} is given twice")
        limits[name] = parsers.at_least(0)(value)
    return limits
