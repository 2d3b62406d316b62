"""Settings key by key: what a new reading changes, and where each value in force comes from."""

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from tornado_frontdoor.config.address import Address
from tornado_frontdoor.config.faults import shown
from tornado_frontdoor.config.redis_url import shown_redis_url
from tornado_frontdoor.config.settings import ADMIN, PUBLIC, Settings


def changes(old: Settings, new: Settings) -> list[str]:
    """Return `path.to.key: old -> new` for each key that differs; a path does not count."""
    before, after = dict(_flat("", old)), dict(_flat("", new))
    paths = [*before, *(path for path in after if path not in before)]
    return [
        f"{path}: {_word(before, path)} -> {_word(after, path)}"
        for path in paths
        if path != "path" and before.get(path) != after.get(path)
    ]


def in_force(settings: Settings) -> list[tuple[str, str, str]]:
    """Return each key, its value, and whether the file has it or it is the default."""
    try:
        written = set(_keys(tomllib.loads(settings.path.read_text(encoding="utf-8")), ""))
    except (OSError, ValueError):  # gone or spoilt since it was read
        written = set()
    values = {path: value for path, value in _flat("", settings) if path != "path"}
    by_flags = {"server.listen": PUBLIC, "server.admin_listen": ADMIN}

    def origin(path: str) -> str:
        if path in by_flags and path not in written and values[path] != by_flags[path]:
            return "command line"
        return "file" if path in written else "default"

    return [(path, _word(values, path), origin(path)) for path in values]


def _keys(table: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _flat(f"{path}.{field.name}".lstrip("."), getattr(value, field.name))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{path}.{key}", inner)
    else:
        yield path, value


def _word(values: Mapping[str, Any], path: str) -> str:
    value = values.get(path)
    if path not in values or value is None:
        return "none"
    if path == "cluster.redis":
        return shown(shown_redis_url(value))
    if isinstance(value, Address):
        return str(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return shown(value)
