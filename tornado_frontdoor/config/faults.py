"""What is wrong with a configuration: each fault names its key, and all are told at once."""

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

KeyPath = tuple[str | int, ...]
"""Names of tables and keys from the root down; an int is a place in a list, counted from 0."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN_LENGTH_MAX = 60


class ConfigFault(NamedTuple):
    """One thing that is wrong."""

    key: str
    """As TOML spells it (`models."a.b".upstream`), or `line N`; empty for the whole file."""
    message: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}" if self.key else self.message


class ConfigError(Exception):
    """A configuration that cannot be used; its text has one line for each fault."""

    def __init__(self, path: Path, faults: Sequence[ConfigFault]) -> None:
        super().__init__(path, faults)
        self.path = path
        self.faults = list(faults)

    def __str__(self) -> str:
        return "\n".join(f"{printable(str(self.path))}: {fault}" for fault in self.faults)


def spell(path: KeyPath) -> str:
    """Write a key path as TOML would; list places in brackets, counted from 0."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + _spell_key(part)
    return text


def _spell_key(name: str) -> str:
    if _BARE_KEY.fullmatch(name):
        return name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(escaped)}"'


def shown(value: object) -> str:
    """Show a value of the file in a message: short, and on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = f'"{printable(value)}"'
    elif isinstance(value, dict):
        return "a table"
    elif isinstance(value, list):
        return "a list"
    else:
        text = printable(_number_text(value))
    return text if len(text) <= _SHOWN_LENGTH_MAX else f"{text[: _SHOWN_LENGTH_MAX - 3]}..."


def _number_text(value: object) -> str:
    try:
        return str(value)
    except ValueError:  # a hexadecimal literal may hold more digits than Python writes in decimal
        return "a number of thousands of digits"


def printable(text: str) -> str:
    """Escape what would break a line or hide in it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean "…"?` when one of the known names is close, else nothing."""
    spellings = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name[:100].lower(), spellings, n=1, cutoff=0.7)
    return f'; did you mean "{printable(spellings[close[0]])}"?' if close else ""
