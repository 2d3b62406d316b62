"""What `tune` found, written into a configuration by text, so that comments and order stay.

Rule 1: the new text counts only when it was read, has the values, and says the same of all else.
Rule 2: the old one stays beside it, and is never half replaced.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.cli.option_parser import UsageError
from simulator.reports.tune_text import Tables, Value, key_text, value_text
from tornado_frontdoor.config import ConfigError, Settings, load


def verify_writable(path: Path, upstream: str, tables: Tables) -> None:
    """Raise UsageError unless such tables can be written; said before a search of a minute."""
    with _trial(path, upstream, tables):
        pass


def apply(path: Path, upstream: str, tables: Tables) -> Path:
    """Write tables of an upstream; returns where the old file is. Raises UsageError."""
    path = path.resolve()  # a link stays one
    with _trial(path, upstream, tables) as trial:
        shutil.copymode(path, trial)
        backup = _backup(path)
        trial.replace(path)
    return backup


@contextmanager
def _trial(path: Path, upstream: str, tables: Tables) -> Iterator[Path]:
    """Yield a file beside the old one that has the tables, and see that it is gone again."""
    trial = None
    try:
        path = path.resolve()
        text = path.read_bytes().decode("utf-8")
        for name, values in tables.items():
            text = with_table(text, upstream, name, values)
        # Beside the old one: relative paths in it start at its folder.
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".toml", dir=path.parent)
        trial = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8"))
        _verify(trial, path, upstream, tables)
        yield trial
    except OSError as error:
        raise UsageError([f"--apply: cannot change {path}: {error.strerror}"]) from None
    finally:
        if trial is not None:
            trial.unlink(missing_ok=True)


def _verify(trial: Path, path: Path, upstream: str, tables: Tables) -> None:
    """Raise UsageError unless the new configuration is whole, and other in the tables only."""
    try:
        after, before = load(trial), load(path)
    except ConfigError as error:
        first = str(error).splitlines()[0].replace(str(trial), str(path))
        raise UsageError([f"--apply: {_UNWRITABLE.format(path)} ({first})"]) from None
    table = after.upstreams[upstream]
    written = all(
        getattr(getattr(table, name), key) == value
        for name, values in tables.items()
        for key, value in values.items()
    )
    if not written or _without(after, upstream, tables) != _without(before, upstream, tables):
        raise UsageError([f"--apply: {_UNWRITABLE.format(path)}"])


_UNWRITABLE = "{} is written in a way this cannot change: paste the table yourself"


def _without(settings: Settings, upstream: str, tables: Tables) -> Settings:
    """Return settings without what is written and without where they stand."""
    nothing: dict[str, Any] = dict.fromkeys(tables)
    bare = replace(settings.upstreams[upstream], **nothing)
    return replace(settings, path=Path(), upstreams={**settings.upstreams, upstream: bare})


def _backup(path: Path) -> Path:
    """Keep the old configuration under a name that is free."""
    backup, number = path.with_name(f"{path.name}.bak"), 1
    while backup.exists():
        backup, number = path.with_name(f"{path.name}.bak.{number}"), number + 1
    shutil.copy2(path, backup)
    return backup


def with_table(text: str, upstream: str, name: str, values: Mapping[str, Value]) -> str:
    """Return a configuration's text with these values in a table of the upstream."""
    end_of_line = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines(keepends=True)
    header = _header(lines, upstream, name)
    if header is None:
        table = [f"[upstreams.{key_text(upstream)}.{name}]"]
        table += [f"{key} = {value_text(value)}" for key, value in values.items()]
        return text.rstrip("\r\n") + end_of_line * 2 + "".join(x + end_of_line for x in table)
    end = next(
        (at for at in range(header + 1, len(lines)) if lines[at].lstrip().startswith("[")),
        len(lines),
    )
    missing = dict(values)
    for at in range(header + 1, end):
        found = _ASSIGNMENT.match(lines[at].rstrip("\r\n"))
        if found and found[2] in missing:
            value = value_text(missing.pop(found[2]))
            tail = found[5]
            if tail.strip():  # keep comments in their column
                tail = " " * max(1, len(found[4]) + len(tail) - len(tail.lstrip()) - len(value))
                tail += found[5].lstrip()
            lines[at] = f"{found[1]}{found[2]}{found[3]}{value}{tail}{end_of_line}"
    if missing and not lines[header].endswith("\n"):
        lines[header] += end_of_line
    added = [f"{key} = {value_text(value)}{end_of_line}" for key, value in missing.items()]
    lines[header + 1 : header + 1] = added
    return "".join(lines)


_ASSIGNMENT = re.compile(r"(\s*)(\w+)(\s*=\s*)([^#\n]*?)(\s*(?:#.*)?)$")


def _header(lines: list[str], upstream: str, name: str) -> int | None:
    key = rf"(?:{re.escape(upstream)}|\"{re.escape(upstream)}\"|'{re.escape(upstream)}')"
    pattern = re.compile(rf"\s*\[\s*upstreams\s*\.\s*{key}\s*\.\s*{name}\s*\]\s*(#.*)?$")
    return next((at for at, line in enumerate(lines) if pattern.match(line)), None)
