"""What a new reading of the file changes, key by key, for the line that says so."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from tornado_frontdoor.config.faults import shown
from tornado_frontdoor.config.settings import Settings


def changes(old: Settings, new: Settings) -> list[str]:
    """Return `path.to.key: old -> new` for each key that differs; a path does not count."""
    before, after = dict(_flat("", old)), dict(_flat("", new))
    paths = [*before, *(path for path in after if path not in before)]
    return [
        f"{path}: {_word(before, path)} -> {_word(after, path)}"
        for path in paths
        if path != "path" and before.get(path) != after.get(path)
    ]


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
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return shown(value)
