"""The help texts as data: completions and the man page are written from what people read.

A line of two columns, set apart by two blanks, is an option or a command and what it does; a line
that only has the second column goes on with the one above.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_COMMAND = re.compile(r"^  ([a-z][a-z-]*)(?: [a-z]+)? {2,}(\S.*)$")
_OPTION = re.compile(r"^  (-h )?(--[a-z-]+)(?: ([A-Z][A-Z:]*))? {2,}(\S.*)$")
_MORE = re.compile(r"^ {6,}(\S.*)$")


class Option(NamedTuple):
    """One option as the help text has it."""

    name: str
    argument: str
    """Empty: it takes none."""
    told: str


class Command(NamedTuple):
    """One command with all that may follow it."""

    name: str
    told: str
    usages: tuple[str, ...]
    options: tuple[Option, ...]


def options_of(text: str) -> list[Option]:
    """Return the options of a help text, in its order."""
    found: list[Option] = []
    for line in text.splitlines():
        if option := _OPTION.match(line):
            found.append(Option(option[2], option[3] or "", option[4]))
        elif (more := _MORE.match(line)) and found and not line.startswith("  frontdoor"):
            last = found[-1]
            found[-1] = last._replace(told=f"{last.told} {more[1]}")
        else:
            continue
    return found


def commands_of(text: str, others: Mapping[str, str]) -> list[Command]:
    """Return the commands of a help text; `others` have a text of their own."""
    return list(_commands(text, others))


def _commands(text: str, others: Mapping[str, str]) -> Iterator[Command]:
    known = {option.name: option for option in options_of(text)}
    in_general, _, of_one = text.partition("\nOptions of ")
    name_of_one = of_one.partition(":")[0]
    for line in in_general.splitlines():
        listed = _COMMAND.match(line)
        if listed is None or listed[1] == "frontdoor":
            continue
        name, told = listed.groups()
        if name in others:
            usages, options = _usages(others[name], name), options_of(others[name])
        else:
            usages = _usages(text, name)
            named = dict.fromkeys(re.findall(r"--[a-z-]+", " ".join(usages)))
            options = [known[option] for option in named if option in known]
            if name == name_of_one:
                options = options_of(of_one)
        yield Command(name, told, usages, tuple(options))


def _usages(text: str, name: str) -> tuple[str, ...]:
    pattern = rf"^  (frontdoor {re.escape(name)}(?: .*)?)$"
    return tuple(re.findall(pattern, text, re.MULTILINE))
