"""JSON read and written in small steps, for bodies that would keep everybody else waiting.

The library's reader is one call of C however large the body is, and lets no other thread run
meanwhile: a body of 60 MB stops the front door for seconds. Here each call of C is bounded by
`STEP` characters, so that in a thread of its own this costs the others next to nothing. What a
body may hold is bounded, too.
"""

import re
from json import JSONEncoder
from json.decoder import scanstring  # type: ignore[attr-defined] # typeshed leaves it out
from typing import Any

STEP = 64 * 1024
LARGE_BYTES = 64 * 1024
"""A smaller body is read at once, whatever is in it."""
HUGE_BYTES = 1024 * 1024
BUSY_MARKS = 16_384
"""Commas, brackets and escapes that are read at once: some milliseconds."""
MOST_VALUES = 500_000
DEEPEST = 400
_LONGEST_NUMBER = 5000

_blanks = re.compile(r"[ \t\n\r]*").match
_high_half = re.compile(r"\\u[dD][89abAB]").match
_characters = re.compile(r'[^"\\]*(?:\\(?:u[0-9a-fA-F]{4}|[^u])[^"\\]*)*', re.DOTALL).match
_number = re.compile(r"(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][-+]?[0-9]+)?").match
_CONSTANTS: dict[str, tuple[str, Any]] = {
    "n": ("null", None),
    "t": ("true", True),
    "f": ("false", False),
    "N": ("NaN", float("nan")),
    "I": ("Infinity", float("inf")),
}


def takes_long(body: bytes) -> bool:
    """Tell whether reading a body at once could keep others waiting."""
    if len(body) < LARGE_BYTES:
        return False
    return len(body) >= HUGE_BYTES or sum(map(body.count, (b",", b"{", b"[", b"\\"))) > BUSY_MARKS


def skip_blanks(text: str, position: int) -> int:
    """Return where the blanks end that begin at `position`."""
    end = position
    while text[end : end + 1] in (" ", "\n", "\r", "\t"):
        match = _blanks(text, end, end + STEP)
        assert match is not None
        end = match.end()
    return end


class PatientReader:
    """Reads one text. Raises as the library's reader does: ValueError, IndexError for its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._values = 0

    def raw_decode(self, position: int, depth: int = 0) -> tuple[Any, int]:
        """Read the value at a position; return it and where it ends."""
        self._values += 1
        if self._values > MOST_VALUES:
            raise ValueError(f"it holds more than {MOST_VALUES} values")
        if depth > DEEPEST:
            raise RecursionError
        text = self._text
        first = text[position]
        if first == '"':
            return self.string(position + 1)
        if first == "{":
            return self._object(position + 1, depth)
        if first == "[":
            return self._array(position + 1, depth)
        if first in _CONSTANTS:
            word, value = _CONSTANTS[first]
            if text.startswith(word, position):
                return value, position + len(word)
        elif text.startswith("-Infinity", position):
            return -_CONSTANTS["I"][1], position + 9
        return self._number(position)

    def string(self, begin: int) -> tuple[str, int]:
        """Read the string whose first character is at `begin`; return it and what follows it."""
        text, pieces, at = self._text, [], begin
        while True:
            match = _characters(text, at, at + STEP)
            assert match is not None
            end = match.end()
            if text[end : end + 1] == '"' or end == at:
                break
            end = _with_its_other_half(text, at, end)
            pieces.append(scanstring(text[at:end] + '"', 0, True)[0])
            at = end
        last, end = scanstring(text, at, True)  # raises where an escape, or the end, is wrong
        return "".join([*pieces, last]) if pieces else last, end

    def _object(self, position: int, depth: int) -> tuple[dict[str, Any], int]:
        text = self._text
        members: dict[str, Any] = {}
        position = skip_blanks(text, position)
        if text[position] == "}":
            return members, position + 1
        while True:
            if text[position] != '"':
                raise ValueError(f"a key was expected at character {position}")
            key, position = self.string(position + 1)
            position = skip_blanks(text, position)
            if text[position] != ":":
                raise ValueError(f"':' was expected at character {position}")
            position = skip_blanks(text, position + 1)
            members[key], position = self.raw_decode(position, depth + 1)
            position = skip_blanks(text, position)
            separator = text[position]
            if separator == "}":
                return members, position + 1
            if separator != ",":
                raise ValueError(f"',' or '}}' was expected at character {position}")
            position = skip_blanks(text, position + 1)

    def _array(self, position: int, depth: int) -> tuple[list[Any], int]:
        text = self._text
        items: list[Any] = []
        position = skip_blanks(text, position)
        if text[position] == "]":
            return items, position + 1
        while True:
            item, position = self.raw_decode(position, depth + 1)
            items.append(item)
            position = skip_blanks(text, position)
            separator = text[position]
            if separator == "]":
                return items, position + 1
            if separator != ",":
                raise ValueError(f"',' or ']' was expected at character {position}")
            position = skip_blanks(text, position + 1)

    def _number(self, position: int) -> tuple[Any, int]:
        match = _number(self._text, position, position + _LONGEST_NUMBER)
        if match is None:
            raise ValueError(f"a value was expected at character {position}")
        if match.end() - position >= _LONGEST_NUMBER:
            raise ValueError(f"the number at character {position} is too long")
        whole, fraction, exponent = match.groups()
        if fraction or exponent:
            return float(match[0]), match.end()
        return int(whole), match.end()


def _with_its_other_half(text: str, begin: int, end: int) -> int:
    r"""Return where to cut: before a `\uD8XX` at the end, which is one character with the next."""
    before = end - 6
    if before <= begin or not _high_half(text, before):
        return end
    match = _characters(text, begin, before)
    return before if match is not None and match.end() == before else end


_write = JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).iterencode


def write(value: object) -> str:
    """Return a value as compact JSON, written in small steps."""
    return "".join(_write(value))
