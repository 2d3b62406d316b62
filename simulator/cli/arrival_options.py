"""From options to who comes when: laws, recordings, closed loops."""

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import NamedTuple

from simulator.cli import option_parser as parsers
from simulator.cli.option_parser import OptionParser
from simulator.model.scenario import Scenario
from simulator.study.capacity import capacity_per_s
from simulator.traffic.service import Service
from simulator.traffic.trace_readers import read_trace
from simulator.traffic.workload import Arrivals, Burst, Closed, Modulated, Renewal, Replay

DEFAULT_RHO = 0.8
MOST_BLOCKS = 100_000
"""Blocks that a recording may be cut into."""
MOST_IN_DWELL = 1e6
MOST_DWELLS = 1000
"""Changes of a rate between two requests: beyond them it is Poisson, and takes hours."""


class FullEngine(NamedTuple):
    """What `--rho` is a share of."""

    cap: int
    replicas: int
    slots: int
    service: Service

    def capacity_per_s(self) -> float | None:
        """Return what it can serve, whatever comes."""
        full = Scenario(
            cap=self.cap,
            queue=0,
            timeout_s=inf,
            arrivals=Renewal(rate=1.0),
            service=self.service,
            replicas=self.replicas,
            slots=self.slots,
        )
        return capacity_per_s(full)


def arrivals_of(
    options: OptionParser, trace: Arrivals | None, engine: FullEngine
) -> tuple[Arrivals | Closed, dict[str, object]]:
    """Return what comes, and the same in words."""
    kinds = options.given_of("--rate", "--rho", "--burst", "--clients", "--trace")
    for option in kinds[1:]:
        options.fault(option, f"does not go with {kinds[0]}")
    options.needs("--think", "--clients")
    for option in ("--thin", "--stretch", "--bootstrap"):
        options.needs(option, "--trace")
    if kinds and kinds[0] in {"--burst", "--clients", "--trace"} and "--arrivals-law" in options:
        options.fault("--arrivals-law", "goes with --rate or --rho only")
    match kinds[:1]:
        case ["--burst"]:
            count = options.take("--burst", parsers.places(1), 1)
            return Burst(count=count), {"arrivals": "burst", "burst": count}
        case ["--clients"]:
            return _closed(options)
        case ["--trace"]:
            assert trace is not None
            return _traced(options, trace)
        case _:
            return _stream(options, engine)


def _closed(options: OptionParser) -> tuple[Closed, dict[str, object]]:
    if "--think" not in options:
        options.fault("--clients", "needs --think: how long they think")
    clients = options.take("--clients", parsers.places(1), 1)
    think_s = options.take("--think", parsers.above(0), 1.0)
    words: dict[str, object] = {"arrivals": "closed loop", "clients": clients, "think_s": think_s}
    return Closed(clients=clients, think_s=think_s), words


def trace_of(options: OptionParser) -> Arrivals:
    """Return what `--trace` names."""

    def parse(text: str) -> Arrivals:
        return read_trace(Path(text))

    nothing: Arrivals = Burst(count=1)
    return options.take("--trace", parse, nothing)


def _traced(options: OptionParser, arrivals: Arrivals) -> tuple[Arrivals, dict[str, object]]:
    name = options.take("--trace", str, "")
    if isinstance(arrivals, Replay):
        return recorded_of(options, arrivals, name)
    for option in options.given_of("--thin", "--stretch", "--bootstrap"):
        options.fault(option, "goes with recorded requests, not with rates")
    return arrivals, {"arrivals": "trace", "trace": name}


def recorded_of(
    options: OptionParser, arrivals: Replay, name: str
) -> tuple[Replay, dict[str, object]]:
    """Return a recording as the options want it played, and the same in words."""
    thin = options.take("--thin", parsers.share, 1.0)
    stretch = options.take("--stretch", parsers.above(0), 1.0)
    bootstrap_s = options.take("--bootstrap", parsers.above(0), 0.0)
    span_s = float(arrivals.rows.at_s[-1])
    if bootstrap_s and span_s / bootstrap_s > MOST_BLOCKS:
        least_s = span_s / MOST_BLOCKS
        options.fault("--bootstrap", f"cut {span_s:g} s into blocks of at least {least_s:.2g} s")
    words: dict[str, object] = {"arrivals": "trace", "trace": name, "thin": thin}
    words |= {"stretch": stretch, "bootstrap_s": bootstrap_s}
    words["trace_requests"] = len(arrivals.rows.at_s)
    kept = replace(arrivals, thin=thin, stretch=stretch, bootstrap_s=bootstrap_s)
    return kept, words


def _stream(options: OptionParser, engine: FullEngine) -> tuple[Arrivals, dict[str, object]]:
    rho = options.take("--rho", parsers.above(0), DEFAULT_RHO)
    capacity = engine.capacity_per_s()
    if "--rate" in options:
        rate = options.take("--rate", parsers.above(0), 1.0)
        rho = rate / capacity if capacity else 0.0
    elif capacity:
        rate = float(f"{rho * capacity:.12g}")  # 2.4, not 2.4000000000000004
    else:
        options.fault("--rho", "a service time of 0 makes no load: give --rate")
        rate = 1.0
    poisson: Renewal | Modulated = Renewal(rate=1.0)
    law = replace(options.take("--arrivals-law", _arrivals_law, poisson), rate=rate)
    if isinstance(law, Modulated) and law.in_dwell > MOST_IN_DWELL:
        options.fault("--arrivals-law", f"{law.in_dwell:.3g} requests come before it changes")
    if (
        isinstance(law, Modulated)
        and (dwells := 2 / (rate * (law.high_s + law.low_s))) > MOST_DWELLS
    ):
        options.fault(
            "--arrivals-law",
            f"it changes {dwells:.3g} times between two requests, at most {MOST_DWELLS}: poisson",
        )
    words: dict[str, object] = {"arrivals": "poisson", "rate_per_s": rate, "rho": rho}
    if "--arrivals-law" in options:
        words["arrivals"] = options.take("--arrivals-law", str, "")
    return law, words


def _arrivals_law(text: str) -> Renewal | Modulated:
    kind, _, rest = text.partition(":")
    if text == "poisson":
        return Renewal(rate=1.0)
    if kind == "gamma":
        return Renewal(rate=1.0, cv=parsers.above(0)(rest))
    if kind == "mmpp":
        parts = [parsers.above(0)(part) for part in rest.split(",")]
        if len(parts) != 3:
            raise ValueError(f"mmpp needs RATIO,HIGH_S,LOW_S, not {rest!r}")
        return Modulated(rate=1.0, ratio=parts[0], high_s=parts[1], low_s=parts[2])
    raise ValueError(f"{text!r} is not one of poisson, gamma:CV, mmpp:RATIO,HIGH_S,LOW_S")
