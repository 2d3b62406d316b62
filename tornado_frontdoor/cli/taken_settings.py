"""What a simulation takes from a configuration: settings as options, the others told.

Rule 1: every setting is in one of three lists, and a test goes through all: what is taken, what is
        told where it is not at its default, and what has no say in what requests meet at a gate.
Rule 2: what was given on the command line comes first.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from simulator.cli import option_parser as parsers
from simulator.cli.option_parser import OptionParser, UsageError
from simulator.cli.options import DEFAULT_SLOTS
from simulator.reports.tune_text import Destination
from simulator.traffic.access_log import AccessLog
from tornado_frontdoor.config import AdmissionSettings, Settings, UpstreamSettings
from tornado_frontdoor.engines import kinds

Options = dict[str, str]

TAKEN: Mapping[str, frozenset[str]] = {
    "Settings": frozenset({"upstreams", "keys"}),
    "UpstreamSettings": frozenset({"key", "replicas", "cooling_limit_s", "admission", "sleep"}),
    "ReplicaSettings": frozenset({"slots"}),
    "AdmissionSettings": frozenset(
        {"slots", "cap", "queue", "queue_timeout_s", "return_places", "fair_share"}
    ),
    "SleepSettings": frozenset(
        {
            *("idle_sleep_s", "idle_offload_s", "hold_sleeping_s", "hold_offloaded_s", "pinned"),
            *("retry_after_sleeping_s", "retry_after_offloaded_s"),
        }
    ),
    "KeySettings": frozenset({"name", "share"}),
}
TOLD: Mapping[str, Mapping[str, str]] = {
    "Settings": {"cluster": "one front door"},
    "UpstreamSettings": {
        "engine": "vLLM's habits",
        "discover": "one engine; give --replicas for more",
        "pick": "least",
        "probe_period_s": "nothing fails",
        "hold_restarting_s": "nothing fails",
        "connect_timeout_s": "nothing fails",
        "read_timeout_s": "answers take as long as they take",
        "chunk_timeout_s": "answers take as long as they take",
        "gpu": "an engine with its GPUs to itself; simulate --world has several",
        "process": "nothing starts or stops",
    },
    "AdmissionSettings": {"heed_client_timeouts": "--patience-told says it"},
    "SleepSettings": {
        "idle_stop_s": "nothing stops",
        "hold_restarting_s": "nothing fails",
        "retry_after_restarting_s": "nothing fails",
        "max_waiting": "cap and queue say it",
        "preload": "asleep at first",
        "schedule": "idleness only",
    },
    "ModelSettings": {"wake": "every request wakes it"},
}
"""By class and field: what is simulated instead."""
NO_SAY: Mapping[str, frozenset[str]] = {
    # Where it is read and served; GPUs and groups are told of the upstream that is in one.
    "Settings": frozenset(
        {
            *("path", "server", "surfaces", "models", "routes", "log", "otel"),
            *("gpu", "host", "groups"),
        }
    ),
    "UpstreamSettings": frozenset(
        {
            *("url", "discover_every_s", "anthropic"),
            *("api_key_file", "forward_client_key", "ca_file", "client_cert", "client_key"),
        }
    ),
    "ReplicaSettings": frozenset({"url", "devices"}),
    # How a wake is proven is part of the time that it takes.
    "SleepSettings": frozenset({"max_keep_alive_s", "time_zone", "canary", "canary_path"}),
    "ModelSettings": frozenset(
        {"name", "upstream", "served_name", "aliases", "progress", "dialect"}
    ),
    "KeySettings": frozenset({"sha256", "models"}),
}
WITHOUT_A_GATE = frozenset(
    {
        *("ServerSettings", "LogSettings", "SurfaceSettings", "RouteSettings", "OtelSettings"),
        *("ProcessSettings", "GpuSettings", "GroupSettings", "GpuPoolSettings", "HostSettings"),
        "ClusterSettings",
    }
)
"""Tables that are told as a whole, or bear on what is before a gate: bodies, connections, lines."""


class Told:
    """What is not taken, in the order in which it was found."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def note(self, what: str) -> None:
        """Note a setting, once."""
        if what not in self._lines:
            self._lines.append(what)

    def print(self, path: Path) -> None:
        """Tell all of it in one line."""
        if self._lines:
            print(f"not taken from {path}: {', '.join(self._lines)}", file=sys.stderr)


def limits_taken(admission: AdmissionSettings) -> Options:
    """Return the limits themselves, which `tune` looks for."""
    return {
        "--timeout": f"{admission.queue_timeout_s:g}",
        "--cap": str(admission.cap),
        "--queue": str(admission.queue),
    }


def taken(
    settings: Settings,
    upstream: UpstreamSettings,
    given: Mapping[str, Any],
    log: Callable[[], AccessLog | None],
) -> Options:
    """Return what stands beside the limits, as options; the rest is told on stderr."""
    told, admission = Told(), upstream.admission
    options: Options = {}
    if admission is not None:
        options |= _engines(upstream, admission, given, told)
        options |= _places(settings, admission)
        options |= _shares(settings, admission, given, log, told)
    options["--cooling-limit"] = f"{upstream.cooling_limit_s:g}"
    options |= _tiers(upstream, told)
    for line in _others(settings, upstream, given):
        told.note(line)
    told.print(settings.path)
    return options


def _engines(
    upstream: UpstreamSettings, admission: AdmissionSettings, given: Mapping[str, Any], told: Told
) -> Options:
    slots = [one.slots for one in upstream.replicas]
    if given.get("--slots") or given.get("--replicas"):
        return {}
    if len(slots) > 1 and len(set(slots)) == 1:
        return {"--replicas": f"{len(slots)}x{slots[0]}"}
    if len(slots) > 1:
        told.note(f"replicas of unequal slots (one engine of {admission.slots} instead)")
    return {"--slots": str(admission.slots)}


def _places(settings: Settings, admission: AdmissionSettings) -> Options:
    """Return places for those who come back: front doors of a cluster keep none."""
    if settings.cluster is not None:
        return {"--return-places": "0"}
    return (
        {} if admission.return_places is None else {"--return-places": str(admission.return_places)}
    )


def _shares(
    settings: Settings,
    admission: AdmissionSettings,
    given: Mapping[str, Any],
    log: Callable[[], AccessLog | None],
    told: Told,
) -> Options:
    """Return who asks for how much, and what the configuration gives them."""
    if not admission.fair_share or settings.cluster is not None:
        return {}
    keys = given.get("--keys")
    if not keys:
        read = log()
        counts = {} if read is None else read.keys
        plain = {name: count for name, count in counts.items() if not {",", "="} & {*name}}
        keys = ",".join(f"{name}={count}" for name, count in plain.items())
    if not keys:
        told.note("fair_share (give --keys: who asks for how much)")
        return {}
    names = [part.partition("=")[0].strip() for part in str(keys).split(",")]
    shares = [f"{name}={settings.keys[name].share:g}" for name in names if name in settings.keys]
    options = {"--keys": str(keys), "--fair-share": "yes"}
    return {**options, "--shares": ",".join(shares)} if shares else options


def _tiers(upstream: UpstreamSettings, told: Told) -> Options:
    sleep = upstream.sleep
    if sleep is None or sleep.pinned:
        return {}
    levels = kinds()[upstream.engine].levels
    if not levels:
        told.note(f'sleep of engine = "{upstream.engine}" (always awake; simulate --world has it)')
        return {}
    first_s, second_s = sleep.idle_sleep_s, sleep.idle_offload_s
    if 1 not in levels or first_s == second_s:  # either means level 2
        first_s, second_s = 0.0, min(filter(None, (first_s, second_s)), default=0.0)
    if not first_s and not second_s:
        return {}
    return {
        "--sleep": f"{first_s:g},{second_s:g}",
        "--hold-limit": f"{sleep.hold_sleeping_s:g},{sleep.hold_offloaded_s:g}",
        "--hold-advice": f"{sleep.retry_after_sleeping_s:g},{sleep.retry_after_offloaded_s:g}",
    }


def _others(
    settings: Settings, upstream: UpstreamSettings, given: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what is told where it is not at its default, with what is simulated instead."""
    sleep = upstream.sleep
    found = [settings, upstream, upstream.admission, sleep and not sleep.pinned and sleep]
    found += [one for one in settings.models.values() if one.upstream == upstream.key]
    for table in found:
        reasons = TOLD.get(type(table).__name__, {})
        for field in fields(table) if reasons else ():  # type: ignore[arg-type] # has reasons
            value = getattr(table, field.name)
            if field.name in reasons and value != _default(field):
                yield f"{_shown(field.name, value)} ({reasons[field.name]} instead)"
    for group in settings.groups_of(upstream.key):
        yield f"groups.{group} (an engine with its GPUs to itself instead)"
    if given.get("--patience") and not given.get("--patience-told"):
        yield "heed_client_timeouts (give --patience-told: whether clients say how long they wait)"


def _default(field: "Field[Any]") -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"{name} = {str(value).lower()}"
    if isinstance(value, int | float):
        return f"{name} = {value:g}"
    return f'{name} = "{value}"' if isinstance(value, str) else name


KEPT = ("return_places", "heed_client_timeouts", "fair_share")
"""Keys of an admission table that the answer of `tune` leaves as they are."""


def destination(
    upstream: UpstreamSettings, given: Mapping[str, Any], *, tiers: bool
) -> Destination:
    """Return whose tables an answer is for, and what they have already; raises UsageError.

    `given`: the options of `tune`, with what was taken; `tiers`: idle times were given besides.
    """
    admission = upstream.admission
    options = OptionParser(given)
    slots = options.take("--slots", parsers.places(1), DEFAULT_SLOTS)
    count, each = options.take("--replicas", parsers.replicas, (1, slots))
    options.done()
    wanted = count * each
    if admission is None:
        return Destination(upstream=upstream.key, slots=wanted, tiers=tiers)
    sums = sum(one.slots for one in upstream.replicas)
    if sums and wanted != sums:
        what = f"{upstream.key} has replicas of {sums} slots in all: change them there first"
        raise UsageError([f"{'--slots' if given.get('--slots') else '--replicas'}: {what}"])
    # Behind a name that is looked up, they are those of each address.
    own = each if upstream.discover is not None else wanted
    usual = {field.name: field.default for field in fields(admission)}
    kept = {name: getattr(admission, name) for name in KEPT}
    kept = {name: value for name, value in kept.items() if value != usual[name]}
    return Destination(upstream=upstream.key, slots=None if sums else own, kept=kept, tiers=tiers)
