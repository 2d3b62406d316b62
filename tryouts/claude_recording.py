"""What Claude Code sent, as a fixture: its shape is kept, its texts, ids and places are not.

Kept: keys, types, order, numbers, names of tools and of their parameters, and the few words that a
gateway acts on. Replaced: every text that is not ours, every id, whatever tells of a machine.
"""

import json
import re
from typing import Any

ATTRIBUTION = "x-anthropic-billing-header"
_HEADERS = ("accept", "anthropic-beta", "anthropic-version", "content-type", "x-api-key", "x-app")
_KEPT = frozenset(
    {
        "$schema", "const", "effort", "enum", "format", "keep", "model", "name", "pattern",
        "required", "role", "ttl", "type",
    }
)  # fmt: skip
_LONGEST = 60
"""Characters of a kept word; names and formats are shorter, prose is not."""


def clean(call: dict[str, Any], ours: tuple[str, ...]) -> dict[str, Any]:
    """Return a call without anything that is not its shape; texts with one of `ours` stay."""
    headers = {name: call["headers"][name] for name in _HEADERS if name in call["headers"]}
    body = json.loads(call["body"]) if call["body"] else None
    ids: dict[str, str] = {}
    return {
        "method": call["method"],
        "path": call["path"],
        "headers": headers,
        "body": _cleaned(body, "", ours, ids),
    }


def _cleaned(value: Any, key: str, ours: tuple[str, ...], ids: dict[str, str]) -> Any:
    match value:
        case dict():
            return {name: _cleaned(inner, name, ours, ids) for name, inner in value.items()}
        case list():
            return [_cleaned(inner, key, ours, ids) for inner in value]
        case str():
            return _text(value, key, ours, ids)
        case _:
            return value


def _text(value: str, key: str, ours: tuple[str, ...], ids: dict[str, str]) -> str:
    if key in ("id", "tool_use_id"):
        return ids.setdefault(value, f"call_{len(ids) + 1}")
    if key == "signature":
        return "signed"
    if key == "user_id":
        return json.dumps(dict.fromkeys(json.loads(value), "0"))
    if value.startswith(ATTRIBUTION):
        return re.sub(r"=[^;]*;", "=0;", value)
    if any(words in value for words in ours) or (key in _KEPT and len(value) <= _LONGEST):
        return value
    lines = "\n" if value.startswith("\n") else ""
    return f"{lines}({key or 'text'} of theirs)"
