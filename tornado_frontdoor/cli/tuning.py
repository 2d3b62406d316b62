"""Where the simulator meets configurations: what it takes from one, and its answer in one."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from simulator.cli.commands import COMMANDS
from simulator.cli.option_parser import MOST_PLACES, UsageError
from simulator.cli.tune import Recommendation, tune
from simulator.reports.tune_text import tables_for, tables_of
from simulator.traffic.access_log import AccessLog, read_access_log
from simulator.traffic.tables import TraceError
from tornado_frontdoor.cli import file_tables, speed_probe
from tornado_frontdoor.cli.taken_settings import destination, limits_taken, taken
from tornado_frontdoor.config import ConfigError, Settings, load


def carry_out(name: str, given: Mapping[str, Any]) -> int:
    """Carry out a command of the simulator that meets a configuration or an engine."""
    if name == "tune":
        return run(given)
    if given.get("--probe"):
        return speed_probe.run(given)
    return COMMANDS[name](simulated(given) if name == "simulate" else given)


def run(given: Mapping[str, Any]) -> int:
    """Carry out `tune`; returns 1 when nothing keeps the limits, else 0. Raises UsageError."""
    return 1 if answer(given).tuned.recommended is None else 0


def answer(given: Mapping[str, Any]) -> Recommendation:
    """Carry out `tune` with what a configuration says, and write the answer into it.

    Raises UsageError.
    """
    path = given.get("--apply") or given.get("--config")
    if not path:
        return tune(given)
    settings, key = _upstream(Path(path), given)
    upstream = settings.upstreams[key]
    options = taken(settings, upstream, given, partial(_log_of, given, key))
    searched = "--sleep" in options and given.get("--idle") != "fixed"
    tiers = given.get("--sleep") is not None or searched
    given = _with({"--upstream": key, **options}, given)
    to = destination(upstream, given, tiers=tiers)
    if not given.get("--apply"):
        return tune(given, to)
    # Some tables such as an answer has, with room in the queue for whatever places are kept in it.
    made_up = tables_for(to, (1, MOST_PLACES, 1.0), (1.0, 2.0))
    file_tables.verify_writable(Path(path), key, made_up)
    found = tune(given, to)
    if (best := found.tuned.recommended) is not None:
        backup = file_tables.apply(Path(path), key, tables_of(best.scenario, to))
        print(f"written: {path}; as it was: {backup}", file=sys.stderr)
    return found


def simulated(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of `simulate` with what a configuration says; raises UsageError."""
    if not given.get("--config"):
        return given
    path = Path(given["--config"])
    settings, key = _upstream(path, given)
    upstream = settings.upstreams[key]
    if upstream.admission is None:
        raise UsageError([f"--config: {path}: {key} has no admission table: there is no cap"])
    options = taken(settings, upstream, given, partial(_log_of, given, key))
    return _with({"--upstream": key, **limits_taken(upstream.admission), **options}, given)


def _with(options: Mapping[str, str], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what was given, and for the rest what was taken from a configuration."""
    return {**given, **{name: text for name, text in options.items() if not given.get(name)}}


def _log_of(given: Mapping[str, Any], key: str) -> AccessLog | None:
    return _read_log(given, key) if given.get("--log") else None


def _read_log(given: Mapping[str, Any], key: str | None) -> AccessLog:
    try:
        return read_access_log(Path(given["--log"]), key)
    except TraceError as error:
        raise UsageError([f"--log: {error}"]) from None


def _upstream(path: Path, given: Mapping[str, Any]) -> tuple[Settings, str]:
    """Return a configuration, and the key of the upstream that is meant; raises UsageError."""
    settings = _read(path)
    named = given.get("--upstream")
    key = named or (next(iter(settings.upstreams)) if len(settings.upstreams) == 1 else None)
    if key is None and given.get("--log"):
        key = _read_log(given, None).upstream
    if not key:
        names = ", ".join(settings.upstreams)
        raise UsageError([f"--upstream: {path} has {names}: say which one"])
    if key not in settings.upstreams:
        names = ", ".join(settings.upstreams)
        raise UsageError([f"--upstream: {path} has no {key}, only {names}"])
    return settings, key


def _read(path: Path) -> Settings:
    try:
        return load(path)
    except ConfigError as error:
        raise UsageError(str(error).splitlines()) from None
