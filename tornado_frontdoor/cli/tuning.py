"""Where the simulator meets configurations: what it takes from one, the table it writes into one.

Rule 1: a configuration is changed by text, so that comments and order stay, and only when the new
        one was read and says what was meant. The old one stays beside it.
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.cli.commands import COMMANDS
from simulator.cli.option_parser import UsageError
from simulator.cli.tune import tune
from simulator.traffic.access_log import read_access_log
from simulator.traffic.tables import TraceError
from tornado_frontdoor.cli import speed_probe
from tornado_frontdoor.config import ConfigError, Settings, UpstreamSettings, load
from tornado_frontdoor.config.settings import AdmissionSettings

Limits = Mapping[str, int | float]
"""`slots`, `cap`, `queue` and `queue_timeout_s`."""


def carry_out(name: str, given: Mapping[str, Any]) -> int:
    """Carry out a command of the simulator that meets a configuration or an engine."""
    if name == "tune":
        return run(given)
    if given.get("--probe"):
        return speed_probe.run(given)
    return COMMANDS[name](simulated(given) if name == "simulate" else given)


def run(given: Mapping[str, Any]) -> int:
    """Carry out `tune`; returns 1 when nothing keeps the limits, else 0. Raises UsageError."""
    path = given.get("--apply") or given.get("--config")
    if path:
        given = {**given, **_from_configuration(Path(path), given)}
    answer = tune(given)
    best = answer.tuned.recommended
    if best is None:
        return 1
    if given.get("--apply"):
        scenario = best.scenario
        limits = {
            "slots": answer.slots,
            "cap": scenario.cap,
            "queue": scenario.queue,
            "queue_timeout_s": scenario.timeout_s,
        }
        backup = apply(Path(given["--apply"]), answer.upstream, limits)
        print(f"written: {given['--apply']}; as it was: {backup}", file=sys.stderr)
    return 0


def simulated(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of `simulate` with what a configuration says; raises UsageError."""
    if not given.get("--config"):
        return given
    path = Path(given["--config"])
    key, upstream = _upstream(path, given)
    if upstream.admission is None:
        raise UsageError([f"--config: {path}: {key} has no admission table: there is no cap"])
    taken = {"--upstream": key, "--timeout": f"{upstream.admission.queue_timeout_s:g}"}
    taken |= {"--cap": str(upstream.admission.cap), "--queue": str(upstream.admission.queue)}
    taken["--return-places"] = str(upstream.admission.places_for_returns)
    taken |= _engines(path, upstream, upstream.admission, given)
    sleep = upstream.sleep
    if sleep is not None and (sleep.idle_sleep_s or sleep.idle_offload_s):
        taken["--sleep"] = f"{sleep.idle_sleep_s:g},{sleep.idle_offload_s:g}"
        taken["--hold-limit"] = f"{sleep.hold_sleeping_s:g},{sleep.hold_offloaded_s:g}"
    return {**given, **{name: text for name, text in taken.items() if not given.get(name)}}


def _from_configuration(path: Path, given: Mapping[str, Any]) -> dict[str, str]:
    """Return whose engines a configuration has and how many, where that was not given."""
    key, upstream = _upstream(path, given)
    taken = {"--upstream": key}
    if upstream.admission is not None:
        taken |= _engines(path, upstream, upstream.admission, given)
    return taken


def _engines(
    path: Path, upstream: UpstreamSettings, admission: AdmissionSettings, given: Mapping[str, Any]
) -> dict[str, str]:
    """Return the engines of an upstream as options, and tell what has none."""
    slots = [one.slots for one in upstream.replicas]
    taken: dict[str, str] = {}
    left_out = []
    if not given.get("--slots") and not given.get("--replicas"):
        taken["--slots"] = str(admission.slots)
        if len(slots) > 1 and len(set(slots)) == 1:
            taken = {"--replicas": f"{len(slots)}x{slots[0]}"}
        elif len(slots) > 1:
            left_out.append(f"replicas of unequal slots (one engine of {admission.slots} instead)")
    if len(slots) > 1 and upstream.pick == "affinity":
        left_out.append('pick = "affinity"')
    if admission.fair_share and not given.get("--fair-share"):
        left_out.append("fair_share (give --keys and --fair-share)")
    if left_out:
        print(f"not taken from {path}: {', '.join(left_out)}", file=sys.stderr)
    return taken


def _upstream(path: Path, given: Mapping[str, Any]) -> tuple[str, UpstreamSettings]:
    """Return the upstream that is meant, and its key; raises UsageError."""
    settings = _read(path)
    named = given.get("--upstream")
    key = named or (next(iter(settings.upstreams)) if len(settings.upstreams) == 1 else None)
    if key is None and given.get("--log"):
        key = _logged_upstream(Path(given["--log"]))
    if not key:
        names = ", ".join(settings.upstreams)
        raise UsageError([f"--upstream: {path} has {names}: say which one"])
    if key not in settings.upstreams:
        names = ", ".join(settings.upstreams)
        raise UsageError([f"--upstream: {path} has no {key}, only {names}"])
    return key, settings.upstreams[key]


def _logged_upstream(path: Path) -> str:
    """Return whose requests a log has, empty where it does not say; raises UsageError."""
    try:
        return read_access_log(path).upstream
    except TraceError as error:
        raise UsageError([f"--log: {error}"]) from None


def _read(path: Path) -> Settings:
    try:
        return load(path)
    except ConfigError as error:
        raise UsageError(str(error).splitlines()) from None


def apply(path: Path, upstream: str, limits: Limits) -> Path:
    """Write limits into a configuration; returns where the old one is. Raises UsageError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError([f"--apply: cannot read {path}: {error.strerror}"]) from None
    changed = with_limits(text, upstream, limits)
    # Beside the old one: relative paths in it start at its folder.
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".toml", dir=path.parent)
    trial = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(changed)
        _verify(trial, path, upstream, limits)
        shutil.copymode(path, trial)
        backup = _backup(path)
        trial.replace(path)
    finally:
        trial.unlink(missing_ok=True)
    return backup


def _verify(trial: Path, path: Path, upstream: str, limits: Limits) -> None:
    """Raise UsageError unless the new configuration is whole and has the limits."""
    try:
        admission = load(trial).upstreams[upstream].admission
    except (ConfigError, KeyError):
        admission = None
    written = admission is not None and all(
        getattr(admission, name) == value for name, value in limits.items()
    )
    if not written:
        raise UsageError(
            [f"--apply: {path} is written in a way this cannot change: paste the table yourself"]
        )


def _backup(path: Path) -> Path:
    """Keep the old configuration under a name that is free."""
    backup, number = path.with_name(f"{path.name}.bak"), 1
    while backup.exists():
        backup, number = path.with_name(f"{path.name}.bak.{number}"), number + 1
    shutil.copy2(path, backup)
    return backup


def with_limits(text: str, upstream: str, limits: Limits) -> str:
    """Return a configuration's text with these limits in the upstream's admission table."""
    lines = text.splitlines(keepends=True)
    header = _header(lines, upstream)
    if header is None:
        table = [f"[upstreams.{_quoted(upstream)}.admission]"]
        table += [f"{name} = {_number(value)}" for name, value in limits.items()]
        return text.rstrip("\n") + "\n\n" + "\n".join(table) + "\n"
    end = next(
        (at for at in range(header + 1, len(lines)) if lines[at].lstrip().startswith("[")),
        len(lines),
    )
    missing = dict(limits)
    for at in range(header + 1, end):
        found = re.match(r"(\s*)(\w+)(\s*=\s*)([^#\n]*?)(\s*(?:#.*)?)$", lines[at].rstrip("\n"))
        if found and found[2] in missing:
            value = _number(missing.pop(found[2]))
            tail = found[5]
            if tail.strip():  # keep comments in their column
                tail = " " * max(1, len(found[4]) + len(tail) - len(tail.lstrip()) - len(value))
                tail += found[5].lstrip()
            lines[at] = f"{found[1]}{found[2]}{found[3]}{value}{tail}\n"
    lines[header + 1 : header + 1] = [
        f"{name} = {_number(value)}\n" for name, value in missing.items()
    ]
    return "".join(lines)


def _header(lines: list[str], upstream: str) -> int | None:
    key = rf"(?:{re.escape(upstream)}|\"{re.escape(upstream)}\"|'{re.escape(upstream)}')"
    pattern = re.compile(rf"\s*\[\s*upstreams\s*\.\s*{key}\s*\.\s*admission\s*\]\s*(#.*)?$")
    return next((at for at, line in enumerate(lines) if pattern.match(line)), None)


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'


def _number(value: float) -> str:
    return f"{value:g}"
