"""What no value can tell by itself: faults between the keys of one file. Pure.

Every rule is asked about whatever part of the file is fit, so that one run tells all faults; a rule
that lacks a value because that value has a fault of its own stays silent.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tornado_frontdoor.config.address import Address, Origin, parse_origin
from tornado_frontdoor.config.faults import did_you_mean, shown, spell
from tornado_frontdoor.config.parsing import Found
from tornado_frontdoor.core.catalog import Catalog, Target
from tornado_frontdoor.core.request import UpstreamKey

Data = Mapping[str, Any]


def find_contradictions(data: Data, raw: Data) -> Iterator[Found]:
    """Compare what belongs together; `data` is the usable part of `raw`, the file as written."""
    yield from _listeners(_table(data, "server"))
    yield from _tls(_table(data, "server"))
    yield from _surfaces(_table(data, "surfaces"))
    for key, upstream in _tables(data, "upstreams").items():
        yield from _admission(key, _table(upstream, "admission"))
        yield from _process(key, upstream, _table(_table(raw, "upstreams"), key))
        yield from _sleep(key, upstream, _table(_table(raw, "upstreams"), key))
    yield from _addresses(data)
    yield from _served(data, raw)
    yield from _names(raw)
    yield from _keys(data, raw)
    yield from _routes(data, raw)
    yield from _gpus(data, raw)
    yield from _room(data)


def _listeners(server: Data) -> Iterator[Found]:
    listen, admin = server.get("listen"), server.get("admin_listen")
    if admin and not admin.loopback and server.get("admin_token_file", "unfit") is None:
        yield (
            ("server", "admin_listen"),
            f"must be a loopback address unless server.admin_token_file is set, not {admin}",
        )
    body, buffered = server.get("max_body_mib"), server.get("max_buffered_mib")
    if body and buffered and buffered < body:
        yield (
            ("server", "max_buffered_mib"),
            f"must be at least max_body_mib ({body}), not {buffered}: one body would not fit",
        )
    if listen and admin and listen.overlaps(admin):
        yield ("server", "admin_listen"), f"must not be the public listener too ({listen})"


def _tls(server: Data) -> Iterator[Found]:
    for name, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if server.get(name) is not None and server.get(other, "unfit") is None:
            yield ("server", other), f"is required beside server.{name}"


def _keys(data: Data, raw: Data) -> Iterator[Found]:
    known = {name.lower() for name in _tables(raw, "models")}
    names = list(_tables(raw, "models"))
    owners: dict[str, str] = {}
    for name, key in _tables(data, "keys").items():
        owner = owners.setdefault(key.get("sha256") or name, name)
        if owner != name:
            yield ("keys", name, "sha256"), f"is that of keys.{spell((owner,))} too"
        for index, model in enumerate(key.get("models") or ()):
            if model.lower() not in known:
                yield (
                    ("keys", name, "models", index),
                    f"names a model that has no table: {shown(model)}" + did_you_mean(model, names),
                )


def _surfaces(surfaces: Data) -> Iterator[Found]:
    if surfaces.get("openai") is False and surfaces.get("anthropic") is False:
        yield ("surfaces",), "must serve at least one of openai and anthropic"


def _admission(key: str, admission: Data) -> Iterator[Found]:
    cap, slots = admission.get("cap"), admission.get("slots")
    if cap is not None and slots is not None and cap >= slots:
        yield (
            ("upstreams", key, "admission", "cap"),
            f"must be below slots ({slots}), not {cap}: a full engine queues where nobody sees it",
        )


def _sleep(key: str, upstream: Data, raw: Data) -> Iterator[Found]:
    path = ("upstreams", key, "sleep")
    sleep = _table(upstream, "sleep")
    if sleep.get("max_waiting", "unfit") is None and "admission" not in raw:
        yield (*path, "max_waiting"), "is required where there is no admission table"
    to_sleep, to_offload = sleep.get("idle_sleep_s"), sleep.get("idle_offload_s")
    if to_sleep and to_offload and to_offload < to_sleep:
        yield (
            (*path, "idle_offload_s"),
            f"must not be below idle_sleep_s ({to_sleep:g}), not {to_offload:g}; 0 means never",
        )


def _process(key: str, upstream: Data, raw: Data) -> Iterator[Found]:
    path = ("upstreams", key)
    process = upstream.get("process")
    if process is None:
        if upstream.get("engine") == "process" and "process" not in raw:
            yield (*path, "process"), "is required where engine is process"
        if _table(upstream, "sleep").get("idle_stop_s") and "process" not in raw:
            yield (*path, "sleep", "idle_stop_s"), "needs a process table, to be started again by"
        return
    command, start, stop = (process.get(name) for name in ("command", "start", "stop"))
    if None in (command, start, stop):
        return
    if bool(command) is bool(start or stop) or bool(start) is not bool(stop):
        yield (*path, "process"), "needs either command, or start and stop"
    if "sleep" not in raw:
        yield (*path, "process"), "needs a sleep table, by which it is started and stopped"


def _addresses(data: Data) -> Iterator[Found]:
    server = _table(data, "server")
    listeners = {name: server.get(name) for name in ("listen", "admin_listen")}
    owners: dict[Origin, str] = {}
    for key, upstream in _tables(data, "upstreams").items():
        url = upstream.get("url")
        if url is None:
            continue
        path = ("upstreams", key, "url")
        origin = parse_origin(url)
        owner = owners.setdefault(origin, key)
        if owner != key:
            yield path, f"is the address of upstreams.{spell((owner,))} too: one address, one table"
        for name, listener in listeners.items():
            if listener and listener.overlaps(Address(origin.host, origin.port)):
                yield path, f"is the front door's own server.{name} ({listener})"


def _served(data: Data, raw: Data) -> Iterator[Found]:
    upstreams = raw.get("upstreams")
    if not isinstance(upstreams, Mapping):
        return
    for name, model in _tables(data, "models").items():
        key = model.get("upstream")
        if key is not None and key not in upstreams:
            yield (
                ("models", name, "upstream"),
                f"names an upstream that is not in the file: {shown(key)}"
                + did_you_mean(key, upstreams),
            )


def _names(raw: Data) -> Iterator[Found]:
    """Names and aliases are matched without regard to case, so they are compared without it."""
    tables = _tables(raw, "models")
    names: dict[str, str] = {}
    for name in tables:
        owner = names.setdefault(name.lower(), name)
        if owner != name:
            yield ("models", name), f"differs from models.{spell((owner,))} only in case"
    aliases: dict[str, str] = {}
    for name, model in tables.items():
        for index, alias in enumerate(_aliases(model)):
            if not isinstance(alias, str):
                continue
            folded = alias.lower()
            owner = names.get(folded) or aliases.setdefault(folded, name)
            if owner.lower() != name.lower():
                relation = "the name of" if folded in names else "claimed by"
                yield (
                    ("models", name, "aliases", index),
                    f"{shown(alias)} is {relation} models.{spell((owner,))} already",
                )


def _routes(data: Data, raw: Data) -> Iterator[Found]:
    models = _tables(raw, "models")
    if not models:
        return
    catalog = Catalog(
        Target(
            model=name,
            served_name=name,
            upstream=UpstreamKey(""),
            aliases=tuple(alias for alias in _aliases(model) if isinstance(alias, str)),
        )
        for name, model in models.items()
    )
    for route, name in _table(data, "routes").items():
        if name is not None and catalog.resolve(name) is None:
            known = [listed for listed, _ in catalog.names()]
            yield (
                ("routes", route),
                f"names a model that is not in the file: {shown(name)}" + did_you_mean(name, known),
            )


def _gpus(data: Data, raw: Data) -> Iterator[Found]:
    if "gpu" in raw:
        return
    for key, upstream in _tables(data, "upstreams").items():
        if upstream.get("gpu") is not None:
            yield (
                ("gpu",),
                f"is required where an upstream has a gpu table (upstreams.{spell((key,))}.gpu)",
            )
            return


def _room(data: Data) -> Iterator[Found]:
    """Find engines that could never be awake beside what cannot make room for them."""
    pool = _table(data, "gpu")
    if not {"memory_gib", "context_gib"} <= pool.keys():
        return
    context = pool["context_gib"] / pool["memory_gib"]
    engines = {
        key: (upstream, upstream["gpu"])
        for key, upstream in _tables(data, "upstreams").items()
        if isinstance(upstream.get("gpu"), Mapping) and "utilization" in upstream["gpu"]
    }
    for key, (upstream, gpu) in engines.items():
        wakes = isinstance(upstream.get("sleep"), Mapping)
        for device in gpu.get("devices", ()) if wakes else ():
            stay = {
                other: _stays(upstream, beside, pool)
                for other, (upstream, beside) in engines.items()
                if other != key and device in beside.get("devices", ())
            }
            need = gpu["utilization"] + context
            if need + math.fsum(stay.values()) > 1 + 1e-9:
                rest = "".join(f" + {share:.1%} of {other}" for other, share in stay.items())
                yield (
                    ("upstreams", key, "gpu"),
                    f"does not fit into GPU {device}, whoever makes room: needs {need:.1%}{rest}",
                )
                break


def _stays(upstream: Data, gpu: Data, pool: Data) -> float:
    """Return the share of a GPU that an engine takes when it has made all the room it can."""
    sleep = upstream.get("sleep")
    if not isinstance(sleep, Mapping) or sleep.get("pinned"):
        return float(gpu["utilization"] + pool["context_gib"] / pool["memory_gib"])
    residual = gpu.get("residual_gib")
    return float((pool["context_gib"] if residual is None else residual) / pool["memory_gib"])


def _table(data: Data, name: str) -> Data:
    value = data.get(name)
    return value if isinstance(value, Mapping) else {}


def _tables(data: Data, name: str) -> dict[str, Data]:
    return {key: value for key, value in _table(data, name).items() if isinstance(value, Mapping)}


def _aliases(model: Data) -> list[Any]:
    aliases = model.get("aliases")
    return aliases if isinstance(aliases, list) else []
