"""What no value can tell by itself: faults between the keys of one file. Pure.

Every rule is asked about whatever part of the file is fit, so that one run tells all faults; a rule
that lacks a value because that value has a fault of its own stays silent.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tornado_frontdoor.config.address import Address, Origin, parse_origin
from tornado_frontdoor.config.faults import KeyPath, did_you_mean, shown, spell
from tornado_frontdoor.config.fields import REQUIRED
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
        own = _table(_table(raw, "upstreams"), key)
        yield from _replicas(key, upstream, own)
        yield from _discover(key, upstream, own, clustered="cluster" in raw)
        yield from _admission(key, _table(upstream, "admission"), _slots(upstream))
        yield from _return_places(key, _table(upstream, "admission"))
        yield from _process(key, upstream, own)
        yield from _sleep(key, upstream, own, clustered="cluster" in raw)
    yield from _addresses(data)
    yield from _served(data, raw)
    yield from _names(raw)
    yield from _engine_tls(data)
    yield from _keys(data, raw)
    yield from _groups(data, raw)
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


def _engine_tls(data: Data) -> Iterator[Found]:
    for name, table in _tables(data, "upstreams").items():
        urls = [table.get("url"), *(one.url for one in table.get("replicas") or ())]
        plain = [url for url in urls if url and not url.startswith("https:")]
        for key in ("ca_file", "client_cert"):
            if table.get(key) is not None and plain:
                yield ("upstreams", name, key), f"is for engines at https:// only, not {plain[0]}"
        if table.get("client_key") is not None and table.get("client_cert", "unfit") is None:
            yield (
                ("upstreams", name, "client_cert"),
                f"is required beside upstreams.{name}.client_key",
            )


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


def _groups(data: Data, raw: Data) -> Iterator[Found]:
    """Find groups of which no two engines exclude each other, or one can never be awake."""
    models = {name.lower(): model for name, model in _tables(data, "models").items()}
    upstreams = _tables(data, "upstreams")
    for name, group in _tables(data, "groups").items():
        path = ("groups", name, "models")
        members: dict[str, Any] = {}
        for index, model in enumerate(group.get("models") or ()):
            if model.lower() not in models:
                known = list(_tables(raw, "models"))
                hint = did_you_mean(model, known)
                yield (*path, index), f"names a model that has no table: {shown(model)}{hint}"
                return
            key = str(models[model.lower()].get("upstream"))
            members[key] = _table(upstreams.get(key, {}), "sleep")
            if not members[key]:
                yield (
                    (*path, index),
                    f"is of {shown(key)}, which has no sleep table: it stays awake",
                )
            elif upstreams[key].get("replicas"):
                yield (
                    (*path, index),
                    f"is of {shown(key)}, which has replicas: only one of them could be awake",
                )
        pinned = [key for key, sleep in members.items() if sleep.get("pinned")]
        if len(members) == 1:
            yield path, f"are all of {shown(next(iter(members)))}: one engine excludes nobody"
        elif pinned and group.get("exclusive"):
            told = shown(pinned[0])
            yield path, f"has {told}, which is pinned: no other of them could ever be awake"


def _surfaces(surfaces: Data) -> Iterator[Found]:
    if surfaces.get("openai") is False and surfaces.get("anthropic") is False:
        yield ("surfaces",), "must serve at least one of openai and anthropic"


def _replicas(key: str, upstream: Data, raw: Data) -> Iterator[Found]:
    path, admission = ("upstreams", key), _table(raw, "admission")
    if "sleep" in raw and "hold_restarting_s" in raw:
        yield (*path, "hold_restarting_s"), "belongs to the sleep table where there is one"
    if "replicas" not in raw:
        if "url" not in raw:
            yield (*path, "url"), REQUIRED
        if isinstance(raw.get("admission"), Mapping) and "slots" not in admission:
            yield (*path, "admission", "slots"), REQUIRED
        return
    if "url" in raw:
        yield (*path, "url"), "must not stand beside replicas, which have their own"
    if upstream.get("replicas") == ():
        yield (*path, "replicas"), "must have at least 1 item"
    if "slots" in admission:
        yield (*path, "admission", "slots"), "must not stand beside replicas: it is their sum"
    yield from _beside_replicas(path, upstream, raw)


def _beside_replicas(path: KeyPath, upstream: Data, raw: Data) -> Iterator[Found]:
    if "process" in raw:
        yield (*path, "process"), "cannot stand beside replicas: it starts one engine, not several"
    for index, replica in enumerate(upstream.get("replicas") or ()):
        if replica.devices and "gpu" not in raw:
            found = (*path, "replicas", index, "devices")
            yield found, "needs a gpu table of the upstream, which says how much it takes"


def _discover(key: str, upstream: Data, raw: Data, *, clustered: bool) -> Iterator[Found]:
    """What goes beside one name for several addresses, which are not known yet."""
    if upstream.get("discover") is None:
        return
    path = ("upstreams", key, "discover")
    for other in ("replicas", "sleep"):
        if other in raw:
            yield path, f"cannot stand beside {other}"
    if clustered:
        yield path, "cannot be had with [cluster]: write the replicas down"
    if str(upstream.get("url", "")).startswith("https:"):
        yield path, "needs an http url: a certificate is for a name, not for its addresses"


def _slots(upstream: Data) -> int | None:
    """Return the sequences that the engines run at once; None: not told, or unfit."""
    if upstream.get("discover") is not None:
        return None  # of each address, and nobody knows how many there are
    replicas = upstream.get("replicas")
    if replicas:
        return sum(int(replica.slots) for replica in replicas)
    slots: int = _table(upstream, "admission").get("slots", 0)
    return slots or None


def _return_places(key: str, admission: Data) -> Iterator[Found]:
    places, queue = admission.get("return_places"), admission.get("queue")
    if places is not None and queue is not None and places > queue:
        yield (
            ("upstreams", key, "admission", "return_places"),
            f"must be at most queue ({queue}), not {places}",
        )


def _admission(key: str, admission: Data, slots: int | None) -> Iterator[Found]:
    cap = admission.get("cap")
    if cap is not None and slots is not None and cap >= slots:
        yield (
            ("upstreams", key, "admission", "cap"),
            f"must be below slots ({slots}), not {cap}: a full engine queues where nobody sees it",
        )


def _sleep(key: str, upstream: Data, raw: Data, *, clustered: bool) -> Iterator[Found]:
    path = ("upstreams", key, "sleep")
    sleep = _table(upstream, "sleep")
    for name in ("preload", "schedule"):
        if clustered and sleep.get(name):
            yield (*path, name), "cannot be had with [cluster] yet"
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
        for path, url in _urls(key, upstream):
            origin = parse_origin(url)
            if origin in owners:
                owner = spell((owners[origin],))
                yield path, f"is the address of upstreams.{owner} too: one address, one table"
            owners.setdefault(origin, key)
            for name, listener in listeners.items():
                if listener and listener.overlaps(Address(origin.host, origin.port)):
                    yield path, f"is the front door's own server.{name} ({listener})"


def _urls(key: str, upstream: Data) -> Iterator[tuple[KeyPath, str]]:
    """Yield every address of an upstream, and where it stands."""
    if upstream.get("url"):
        yield ("upstreams", key, "url"), upstream["url"]
    for index, replica in enumerate(upstream.get("replicas") or ()):
        yield ("upstreams", key, "replicas", index, "url"), replica.url


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
        (key, name): (upstream, gpu)
        for key, upstream in _tables(data, "upstreams").items()
        if isinstance(upstream.get("gpu"), Mapping)
        and "utilization" in upstream["gpu"]
        # What is measured is not known yet: what can never fit is told when it is to wake.
        and upstream["gpu"]["utilization"] != "measure"
        for name, gpu in _seats(key, upstream)
    }
    for (key, name), (upstream, gpu) in engines.items():
        wakes = isinstance(upstream.get("sleep"), Mapping)
        for device in gpu.get("devices", ()) if wakes else ():
            stay = {
                other: _stays(upstream, beside, pool)
                for (_, other), (upstream, beside) in engines.items()
                if other != name and device in beside.get("devices", ())
            }
            need = gpu["utilization"] + context
            if need + math.fsum(stay.values()) > 1 + 1e-9:
                rest = "".join(f" + {share:.1%} of {other}" for other, share in stay.items())
                yield (
                    ("upstreams", key, "gpu"),
                    f"does not fit into GPU {device}, whoever makes room: needs {need:.1%}{rest}",
                )
                break


def _seats(key: str, upstream: Data) -> Iterator[tuple[str, Data]]:
    """Yield each engine of an upstream by its name, and what it takes of which GPUs."""
    replicas = upstream.get("replicas")
    for replica in replicas or ():
        own = {"devices": replica.devices} if replica.devices else {}
        yield f"{key} at {replica.url.partition('://')[2]}", {**upstream["gpu"], **own}
    if replicas == ():  # absent; where they are unfit, nobody knows how many there are
        yield key, upstream["gpu"]


def _stays(upstream: Data, gpu: Data, pool: Data) -> float:
    """Return the share of a GPU that an engine takes when it has made all the room it can."""
    sleep = upstream.get("sleep")
    if not isinstance(sleep, Mapping) or sleep.get("pinned"):
        return float(gpu["utilization"] + pool["context_gib"] / pool["memory_gib"])
    residual = gpu.get("residual_gib")
    known = pool["context_gib"] if residual in (None, "measure") else residual
    return float(known / pool["memory_gib"])


def _table(data: Data, name: str) -> Data:
    value = data.get(name)
    return value if isinstance(value, Mapping) else {}


def _tables(data: Data, name: str) -> dict[str, Data]:
    return {key: value for key, value in _table(data, name).items() if isinstance(value, Mapping)}


def _aliases(model: Data) -> list[Any]:
    aliases = model.get("aliases")
    return aliases if isinstance(aliases, list) else []
