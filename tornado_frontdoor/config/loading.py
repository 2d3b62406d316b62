"""From a file to settings: read, parse, check, build. The only entrance of this room.

`ConfigError` is the only thing that can come out beside `Settings`, whatever the file holds.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tornado_frontdoor.config.admin_token import read_token
from tornado_frontdoor.config.cross_checks import find_contradictions
from tornado_frontdoor.config.engine_tls import TlsFiles, tls_faults
from tornado_frontdoor.config.faults import ConfigError, ConfigFault, KeyPath, printable, spell
from tornado_frontdoor.config.parsing import Found, position, read_shape
from tornado_frontdoor.config.settings import (
    AdmissionSettings,
    ClusterSettings,
    GpuPoolSettings,
    GpuSettings,
    GroupSettings,
    HostSettings,
    KeySettings,
    LogSettings,
    ModelSettings,
    OtelSettings,
    ProcessSettings,
    ReplicaSettings,
    RouteSettings,
    ServerSettings,
    Settings,
    SleepSettings,
    SurfaceSettings,
    UpstreamSettings,
)
from tornado_frontdoor.core.catalog import Traits
from tornado_frontdoor.core.request import UpstreamKey

FILE_BYTES_MAX = 1024 * 1024
"""A configuration of a thousand models has a tenth of this; a device file has no end."""

_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|(end of document))\)$")


def load(path: Path, *, listen: str | None = None, admin_listen: str | None = None) -> Settings:
    """Read a configuration file; `listen` and `admin_listen` stand for those of `[server]`.

    Raises ConfigError with every fault of the file at once, in the file's order.
    """
    return _checked(path, _parse(path, _read(path)), listen, admin_listen)


def load_apart(path: Path, table: str) -> tuple[Settings, Mapping[str, Any]]:
    """Read a configuration file that has one table more, which is none of its settings.

    Returns that table as it stands, empty where there is none. Raises ConfigError, as `load`.
    """
    raw = _parse(path, _read(path))
    apart = raw.pop(table, {})
    if not isinstance(apart, Mapping):
        raise ConfigError(path, [ConfigFault(table, "must be a table")])
    return _checked(path, raw), apart


def _checked(
    path: Path, raw: dict[str, Any], listen: str | None = None, admin_listen: str | None = None
) -> Settings:
    flags = _replace_listeners(raw, {"listen": listen, "admin_listen": admin_listen})
    data, found = read_shape(raw)
    found += find_contradictions(data, raw)
    found += _token_faults(path, data)
    found += _tls_faults(path, data)
    if found:
        found.sort(key=lambda one: position(one[0], raw))
        raise ConfigError(path, [_fault(key, message, flags) for key, message in found])
    return _build(path, data)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(path, [ConfigFault("", f"cannot be read: {reason}")]) from error
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(path, [ConfigFault("", f"is larger than {FILE_BYTES_MAX} bytes")])
    return content


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        fault = ConfigFault(f"line {line}", "is not UTF-8")
    except tomllib.TOMLDecodeError as error:
        fault = _syntax_fault(str(error))
    except (ValueError, RecursionError) as error:  # absurd numbers, dates or nesting
        fault = ConfigFault("", f"is not TOML that can be read: {printable(str(error))}")
    raise ConfigError(path, [fault])


def _syntax_fault(text: str) -> ConfigFault:
    place = _TOML_PLACE.search(text)
    what = printable(text[: place.start()] if place else text)
    if place is None or place[3]:
        return ConfigFault("end of file" if place else "", f"is not TOML: {what}")
    return ConfigFault(f"line {place[1]}", f"is not TOML: {what} (column {place[2]})")


def _replace_listeners(raw: dict[str, Any], given: Mapping[str, str | None]) -> dict[KeyPath, str]:
    """Put what the command line gave into the file's place; return how to name it in faults."""
    flags: dict[KeyPath, str] = {}
    server = raw.setdefault("server", {})
    for name, value in given.items():
        if value is not None and isinstance(server, dict):
            server[name] = value
            flags["server", name] = f"--{name.replace('_', '-')}"
    return flags


def _token_faults(path: Path, data: Mapping[str, Any]) -> list[Found]:
    named: list[tuple[KeyPath, Path | None]] = [
        (("server", "admin_token_file"), (data.get("server") or {}).get("admin_token_file"))
    ]
    for name, table in (data.get("upstreams") or {}).items():
        named.append((("upstreams", name, "api_key_file"), (table or {}).get("api_key_file")))
    return [fault for key, file in named if file for fault in _token_fault(path, key, file)]


def _tls_faults(path: Path, data: Mapping[str, Any]) -> list[Found]:
    found: list[Found] = []
    for name, table in (data.get("upstreams") or {}).items():
        given = {key: (table or {}).get(key) for key in TlsFiles._fields}
        files = {key: _from(path, file) for key, file in given.items() if file}
        found += ((("upstreams", name, key), printable(fault)) for key, fault in tls_faults(files))
    return found


def _token_fault(path: Path, key: KeyPath, file: Path) -> list[Found]:
    try:
        read_token(_from(path, file))
    except (OSError, ValueError) as error:
        reason = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        return [(key, f"{printable(str(file))} {reason}")]
    return []


def _fault(key: KeyPath, message: str, flags: Mapping[KeyPath, str]) -> ConfigFault:
    return ConfigFault(flags.get(key) or spell(key), message)


def _from(path: Path, relative: Path) -> Path:
    """Resolve against the folder that the file was named in, not where a link may lead."""
    return Path(os.path.normpath(path.absolute().parent / relative))


def _build(path: Path, data: Mapping[str, Any]) -> Settings:
    return Settings(
        path=path,
        server=_server(path, data["server"]),
        surfaces=SurfaceSettings(**data["surfaces"]),
        upstreams=MappingProxyType(
            {name: _upstream(path, name, table) for name, table in data["upstreams"].items()}
        ),
        models=MappingProxyType(
            {name: _model(name, table) for name, table in data["models"].items()}
        ),
        routes=RouteSettings(**data["routes"]),
        gpu=GpuPoolSettings(**data["gpu"]) if data["gpu"] is not None else None,
        host=HostSettings(**data["host"]) if data["host"] is not None else None,
        log=_log(path, data["log"]),
        cluster=ClusterSettings(**data["cluster"]) if data["cluster"] is not None else None,
        otel=OtelSettings(**data["otel"]) if data["otel"] is not None else None,
        keys=MappingProxyType(
            {name: KeySettings(name=name, **table) for name, table in data["keys"].items()}
        ),
        groups=MappingProxyType(
            {name: GroupSettings(name=name, **table) for name, table in data["groups"].items()}
        ),
    )


def _server(path: Path, table: Mapping[str, Any]) -> ServerSettings:
    files = ("state_dir", "admin_token_file", "tls_cert", "tls_key")
    found = {name: table[name] and _from(path, table[name]) for name in files}
    return ServerSettings(**{**table, **found})


def _log(path: Path, table: Mapping[str, Any]) -> LogSettings:
    file = table["file"]
    return LogSettings(**{**table, "file": None if file is None else _from(path, file)})


def _upstream(path: Path, name: str, table: Mapping[str, Any]) -> UpstreamSettings:
    inner = {
        "admission": AdmissionSettings,
        "sleep": SleepSettings,
        "gpu": GpuSettings,
        "process": ProcessSettings,
    }
    built: dict[str, Any] = {
        key: None if table[key] is None else settings_class(**table[key])
        for key, settings_class in inner.items()
    }
    process = built["process"]
    if process is not None and process.log_file is not None:
        built["process"] = replace(process, log_file=_from(path, process.log_file))
    for file in ("api_key_file", *TlsFiles._fields):
        built[file] = table[file] and _from(path, table[file])
    replicas: tuple[ReplicaSettings, ...] = table["replicas"]
    if replicas:
        built["url"] = replicas[0].url
        admission = built["admission"]
        if isinstance(admission, AdmissionSettings):
            slots = sum(replica.slots for replica in replicas)
            built["admission"] = replace(admission, slots=slots)
    return UpstreamSettings(key=UpstreamKey(name), **{**table, **built})


def _model(name: str, table: Mapping[str, Any]) -> ModelSettings:
    return ModelSettings(
        name=name,
        upstream=UpstreamKey(table["upstream"]),
        served_name=table["served_name"] or name,
        aliases=table["aliases"],
        wake=table["wake"],
        progress=table["progress"],
        dialect=Traits(**table["dialect"]),
    )
