"""`frontdoor simulate --world FILE`: a whole configuration and its traffic, on simulated time.

FILE is a configuration as `serve` takes it, and tables that say what comes, one for each model:

    [traffic.chat]
    rate = 0.2                      # requests a second
    service = "lognormal:4,0.8"     # seconds that one takes alone; or tokens and tokens_per_s;
                                    # or "profile:NAME" with prompt and output, and what the engine
                                    # does besides: kv_tokens, prefix_cache, speculate, …
    fall_s = [10, 1, 5]             # time to fall asleep at level 1, 2, and to stop
    wake_s = [3, 45, 90]            # time to wake from there

`log = "access.log"` in place of rate and service has the requests of an access log come again.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from simulator.cli import option_parser as parsers
from simulator.cli.option_parser import OptionParser, UsageError
from simulator.cli.service_options import service_of
from simulator.model.world import WorldModel, WorldReplica
from simulator.reports.world_text import sweep_text, world_document, world_text
from simulator.study.worlds import ModelTraffic, World, simulate_world, sweep_world
from simulator.traffic.access_log import read_access_log
from simulator.traffic.tables import TraceError
from tornado_frontdoor.config import ConfigError, Settings, load_apart
from tornado_frontdoor.proxy.gate_settings import limits_of, wake_limits_of
from tornado_frontdoor.proxy.registry import kind_of, room_limits

TABLE = "traffic"
GRID: Mapping[str, tuple[float, ...]] = {
    "idle_sleep_s": (0.0, 60.0, 300.0, 900.0),
    "stay_factor": (1.0, 3.0, 10.0),
    "max_turn_wait_s": (30.0, 60.0, 120.0),
}
OPTIONS = {"--world", "--duration", "--turns", "--reps", "--seed", "--json", "--gpu-cost"}
_OF_PROFILES = {
    "prompt": "--prompt",
    "output": "--output",
    "kv_tokens": "--kv-tokens",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "prefix_cache": "--prefix-cache",
    "speculate": "--speculate",
}
"""Keys of a model whose service is a profile, and the options that mean the same."""
MOST_REQUESTS = 3_000_000
"""In one run: they are drawn together, and a run of more takes minutes."""
MOST_DURATION_S = 1e7
"""A run takes its time by the second, also where nobody comes."""
MOST_ALONE_S = 86400
_NUMBERS: Mapping[str, Callable[[str], float]] = {
    "rate": parsers.up_to(1e5, parsers.at_least(0)),
    "tokens_per_s": parsers.above(0),
    "slowdown": parsers.up_to(100, parsers.at_least(0)),
    "kv_tokens": parsers.above(0),
    "max_num_batched_tokens": parsers.whole(1),
}
"""Keys whose values are one number, read as the options that mean the same."""
_TRIPLES = ("fall_s", "wake_s")
_SECONDS = parsers.at_least(0)
_TEXTS = ("service", "tokens", "log", "prompt", "output", "prefix_cache", "speculate")


def run(given: Mapping[str, Any]) -> int:
    """Carry out `simulate --world`; returns 0. Raises UsageError."""
    strange = [
        name for name, value in given.items() if value and name[:2] == "--" and name not in OPTIONS
    ]
    if strange:
        raise UsageError([f"{name} does not go with --world" for name in strange])
    options = OptionParser(given)
    duration_s = options.take(
        "--duration", parsers.up_to(MOST_DURATION_S, parsers.above(0)), 3600.0
    )
    seed = options.take("--seed", parsers.whole(0), 1)
    replications = options.take("--reps", parsers.whole(1), 5)
    gpu_cost_per_h = options.take("--gpu-cost", parsers.at_least(0), 0.0)
    options.done()
    world = read_world(Path(given["--world"]))
    world = replace(world, duration_s=duration_s, seed=seed, replications=replications)
    world = replace(world, gpu_cost_per_h=gpu_cost_per_h)
    come = duration_s * sum(one.rate_per_s for one in world.traffic.values())
    if come > MOST_REQUESTS:
        what = f"{come:.3g} requests come in {duration_s:g} s, at most {MOST_REQUESTS} can"
        raise UsageError([f"--duration: {what}: lower it, or the rate of the models"])
    if options.flag("--turns"):
        results = sweep_world(world, GRID)
        told = [world_document(one) for one in results]
        print(json.dumps(told) if options.flag("--json") else sweep_text(results))
        return 0
    result = simulate_world(world)
    as_json = options.flag("--json")
    print(json.dumps(world_document(result)) if as_json else world_text(world, result))
    return 0


def read_world(path: Path) -> World:
    """Read a configuration with traffic; raises UsageError."""
    try:
        settings, traffic = load_apart(path, TABLE)
    except ConfigError as error:
        raise UsageError([f"--world: {error}"]) from error
    faults: list[str] = []
    tables = {key: table for key, table in traffic.items() if _known(key, table, settings, faults)}
    if not tables and not faults:
        faults.append(f"--world: {path} has no [{TABLE}.MODEL] table: nothing comes")
    of_upstream: dict[str, Mapping[str, Any]] = {
        settings.models[key].upstream: table for key, table in tables.items()
    }
    found: dict[str, ModelTraffic] = {}
    for key, table in tables.items():
        try:
            upstream = settings.models[key].upstream
            found[upstream] = _traffic(table, path.parent, upstream)
        except (ValueError, OSError, TraceError) as error:
            faults.append(f"--world: {TABLE}.{key}: {error}")
    if faults:
        raise UsageError(faults)
    models = [_model(key, settings, of_upstream.get(key, {})) for key in settings.upstreams]
    return World(
        models=tuple(model for model in models if model is not None),
        traffic=found,
        room=room_limits(settings),
        duration_s=3600.0,
    )


def _known(key: str, table: Any, settings: Settings, faults: list[str]) -> bool:
    before = len(faults)
    where = f"--world: {TABLE}.{key}"
    if key not in settings.models:
        faults.append(f"{where} names no model of the file; there are {', '.join(settings.models)}")
    elif settings.upstreams[settings.models[key].upstream].sleep is None:
        faults.append(f"{where}: its upstream has no sleep table, so it takes no turns")
    if not isinstance(table, dict):
        faults.append(f"{where} is no table")
        return False
    for name, value in table.items():
        faults += _wrong_value(f"{where}.{name}", name, value)
    return len(faults) == before


def _wrong_value(where: str, name: str, value: Any) -> list[str]:
    if name in _NUMBERS:
        return _wrong_number(where, value, _NUMBERS[name])
    if name in _TRIPLES:
        if not isinstance(value, list) or len(value) != 3:
            return [f"{where} must be three numbers: level 1, 2, stopped"]
        return [fault for one in value for fault in _wrong_number(where, one, _SECONDS)]
    if name not in _TEXTS:
        known = ", ".join((*_NUMBERS, *_TRIPLES, *_TEXTS))
        return [f"{where} is not known; there are {known}"]
    return [] if isinstance(value, str) else [f"{where} must be a text, not {value!r}"]


def _wrong_number(where: str, value: Any, parse: Callable[[str], float]) -> list[str]:
    """Return what is wrong with a value that must be a number, in a line or none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return [f"{where} must be a number, not {value!r}"]
    try:
        parse(str(value))
    except ValueError as error:
        return [f"{where}: {error}"]
    return []


def _traffic(table: Mapping[str, Any], folder: Path, upstream: str) -> ModelTraffic:
    if "log" in table:
        rows = read_access_log(folder / table["log"], upstream).rows
        took_s = rows.at_s * float("nan") if rows.service_s is None else rows.service_s
        served = [
            (float(at_s), float(service_s))
            for at_s, service_s in zip(rows.at_s, took_s, strict=True)
            if isfinite(service_s)  # else it was never served
        ]
        first_s = served[0][0] if served else 0.0
        return ModelTraffic(
            recorded_at_s=tuple(at_s - first_s for at_s, _ in served),
            recorded_s=tuple(service_s for _, service_s in served),
        )
    if "rate" not in table:
        raise ValueError("needs rate, or log")
    if str(table.get("service", "")).startswith("profile:"):
        return _profiled(table, folder)
    for key in table.keys() & _OF_PROFILES.keys():
        raise ValueError(f'{key} goes with service = "profile:…" only')
    service = parsers.law(table.get("service", "exp:2"))
    if "tokens" in table:
        if "tokens_per_s" not in table:
            raise ValueError("tokens need tokens_per_s, the speed of one request alone")
        service = parsers.law(table["tokens"], unit="N").scaled(1 / table["tokens_per_s"])
    named = "tokens_per_s" if "tokens" in table else "service"
    _verify_length(named, service.mean)
    return ModelTraffic(rate_per_s=float(table["rate"]), service=service)


def _profiled(table: Mapping[str, Any], folder: Path) -> ModelTraffic:
    """Return the traffic of an engine whose tokens are known."""
    for key in ("tokens", "tokens_per_s", "slowdown"):
        if key in table:
            raise ValueError(f"{key}: a profile says that itself")
    name = str(table["service"]).removeprefix("profile:")
    where = folder / name if (folder / name).is_file() else name
    given = {option: table[key] for key, option in _OF_PROFILES.items() if key in table}
    options = OptionParser({"--service": f"profile:{where}", **given})
    service = service_of(options, None)
    keys = {option: key for key, option in _OF_PROFILES.items()} | {"--service": "service"}
    for fault in options.faults:
        option, _, what = fault.partition(": ")
        raise ValueError(f"{keys[option]}: {what}")
    if service.profile is None:
        raise ValueError(f"service: {name} knows no tokens")
    _verify_length("output", service.profile.alone_s(service.prompt.mean, service.output.mean))
    return ModelTraffic(
        rate_per_s=float(table["rate"]),
        service=service.output,
        profile=service.profile,
        prompt=service.prompt,
    )


def _verify_length(key: str, alone_s: float) -> None:
    if alone_s > MOST_ALONE_S:
        raise ValueError(f"{key}: a request takes {alone_s:.3g} s alone, at most {MOST_ALONE_S} s")


def _model(key: str, settings: Settings, table: Mapping[str, Any]) -> WorldModel | None:
    wanted = settings.upstreams[key]
    policy = wake_limits_of(wanted, settings.gpu)
    if policy is None:
        return None
    model = WorldModel(
        key=key,
        limits=limits_of(wanted),
        policy=policy,
        kind=kind_of(wanted, settings),
        arrivals_s=(),
        service_s=(),
        slots=wanted.admission.slots if wanted.admission else None,
        slowdown=float(table.get("slowdown", 0.0)),
        replicas=tuple(
            WorldReplica(one.url, one.slots, wanted.devices_of(one.url)) for one in wanted.replicas
        ),
    )
    times = {name: tuple(float(one) for one in table[name]) for name in _TRIPLES if name in table}
    return replace(model, **times)  # type: ignore[arg-type] # three of each
