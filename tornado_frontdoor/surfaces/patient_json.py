r"""JSON read and written in small steps, for bodies that would keep everybody else waiting.

The library's reader is one call of C however large the body is, and lets no other thread run
meanwhile: a body of 60 MB stops the front door for seconds. Here each call of C is bounded by
`STEP` bytes, so that in a thread of its own this costs the others next to nothing. What a body may
hold is bounded, too.

A long text is never made: it would be one step again, of four times its bytes where one character
in it is an emoji. Its value is its beginning, a mark, and its end; `LongTexts` puts what was left
out, as it stands in the body, in the place of its mark wherever that was written to.
"""

import re
from collections.abc import Callable, Iterator
from hashlib import blake2b
from json import JSONEncoder
from json.decoder import scanstring  # type: ignore[attr-defined] # typeshed leaves it out
from typing import Any, NamedTuple

STEP = 64 * 1024
"""Bytes. A text longer than that is a long one."""
COPIED_AT_ONCE = 1024 * 1024
LARGE_BYTES = 64 * 1024
"""A smaller body is read at once, whatever is in it."""
HUGE_BYTES = 1024 * 1024
BUSY_MARKS = 16_384
"""Commas, brackets and escapes that are read at once: some milliseconds."""
MOST_VALUES = 500_000
MOST_OBJECTS = 60_000
"""Objects and lists. What is made of so many is freed in one step of C, too."""
DEEPEST = 400
MOST_AT_ONCE = 4096
"""Values, or pieces of 64 characters, that are written at once."""
SHOWN_BYTES = 1024
"""How much of a long text's beginning is in its value: more than any name or prefix has."""
MOST_KEPT_BYTES = 4 * 1024 * 1024
MANY_TEXTS_BYTES = 160
"""A text longer than that is a long one where those before it come to `MOST_KEPT_BYTES`."""
_MARKS = b",{[\\"
_SEGMENT_BYTES = 4096
_END_BYTES = 32
_LONGEST_NUMBER = 5000
_NAME_BYTES = 16 * 1024

_blanks = re.compile(rb"[ \t\n\r]*+").match
_high_half = re.compile(rb"\\u[dD][89abAB]").match
_characters = re.compile(
    rb'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+', re.DOTALL
).match
_number = re.compile(rb"(-?(?:0|[1-9][0-9]*+))(\.[0-9]++)?([eE][-+]?[0-9]++)?").match
_CONSTANTS: dict[bytes, tuple[bytes, Any]] = {
    b"n": (b"null", None),
    b"t": (b"true", True),
    b"f": (b"false", False),
    b"N": (b"NaN", float("nan")),
    b"I": (b"Infinity", float("inf")),
}
_QUOTE, _COMMA, _COLON, _OPENS, _CLOSES, _OPENS_LIST, _CLOSES_LIST = b'",:{}[]'
_NESTS = (_OPENS, _OPENS_LIST)


def takes_long(body: bytes) -> bool:
    """Tell whether reading a body at once could keep others waiting."""
    if len(body) < LARGE_BYTES:
        return False
    return len(body) >= HUGE_BYTES or len(body) - len(body.translate(None, _MARKS)) > BUSY_MARKS


def in_steps(body: bytes, begin: int, end: int) -> Iterator[bytes]:
    """Yield a part of a body in pieces; joining them lets other threads run, one slice does not."""
    for at in range(begin, end, COPIED_AT_ONCE):
        yield body[at : min(end, at + COPIED_AT_ONCE)]


def find_in_steps(body: bytes, wanted: bytes, begin: int) -> int:
    """Return where `wanted` begins, as `bytes.find` does."""
    overlap = len(wanted) - 1
    for at in range(begin, len(body), COPIED_AT_ONCE):
        found = body.find(wanted, at, at + COPIED_AT_ONCE + overlap)
        if found >= 0:
            return found
    return -1


class Member(NamedTuple):
    """A key, its value, and where in the body they stand."""

    key: str
    value: Any
    start: int
    value_start: int
    end: int


class LongTexts:
    """What the values of long texts leave out, and how it comes back into what is written.

    A mark holds a hash of the body, so that no body can hold one of its own, and a character that
    JSON writes as an escape: by its backslashes a mark tells how often it was written as JSON.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._left_out: list[tuple[int, int]] = []
        self._name = ""

    def mark(self, begin: int, end: int) -> str:
        """Return what stands for a part of the body that lies within a text."""
        self._name = self._name or blake2b(self._body, digest_size=16).hexdigest()
        self._left_out.append((begin, end))
        return f".\x1f{self._name}.{len(self._left_out) - 1};"

    def restore(self, written: bytes) -> Iterator[bytes]:
        """Yield what was written, in pieces, with what was left out in the place of its marks."""
        if not self._left_out:
            yield written
            return
        at = 0
        for mark in re.finditer(rb"\.(\\+)u001f%b\.(\d+);" % self._name.encode(), written):
            yield written[at : mark.start()]
            begin, end = self._left_out[int(mark[2])]
            written_again = len(mark[1]).bit_length() - 1
            for piece in in_steps(self._body, begin, end):
                for _ in range(written_again):
                    piece = piece.replace(b"\\", b"\\\\").replace(b'"', b'\\"')  # noqa: PLW2901
                yield piece
            at = mark.end()
        yield written[at:]


class PatientReader:
    """Reads one body of UTF-8. Raises ValueError where it is no JSON, IndexError for its end."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._values = 0
        self._objects = 0
        self._kept_bytes = 0
        self.long_texts = LongTexts(body)

    def skip_blanks(self, position: int) -> int:
        """Return where the blanks end that begin at `position`."""
        body = self._body
        while body[position : position + 1] in (b" ", b"\n", b"\r", b"\t"):
            position = _end_of(_blanks, body, position)
        return position

    def raw_decode(self, position: int, depth: int = 0) -> tuple[Any, int]:
        """Read the value at a position; return it and where it ends."""
        self._values += 1
        if self._values > MOST_VALUES:
            raise ValueError(f"it holds more than {MOST_VALUES} values")
        if depth > DEEPEST:
            raise RecursionError
        body = self._body
        first = body[position]
        if first == _QUOTE:
            return self.string(position + 1)
        if first in _NESTS:
            self._objects += 1
            if self._objects > MOST_OBJECTS:
                raise ValueError(f"it holds more than {MOST_OBJECTS} objects and lists")
        if first == _OPENS:
            members: dict[str, Any] = {}
            end = position
            for member in self.members(position, depth):
                members[member.key] = member.value
                end = member.end
            return members, self._past(end if members else position + 1, _CLOSES)
        if first == _OPENS_LIST:
            return self._array(position + 1, depth)
        word, value = _CONSTANTS.get(body[position : position + 1], (b"-Infinity", -float("inf")))
        if body.startswith(word, position):
            return value, position + len(word)
        return self._number(position)

    def members(self, position: int, depth: int = 0) -> Iterator[Member]:
        """Step over the members of the object at a position, up to the brace that closes it."""
        body, skip_blanks = self._body, self.skip_blanks
        position = skip_blanks(position + 1)
        if body[position] == _CLOSES:
            return
        while True:
            key_start = position
            if body[position] != _QUOTE:
                raise ValueError(f"a key was expected at byte {position}")
            key, position = self.string(position + 1)
            position = skip_blanks(position)
            if body[position] != _COLON:
                raise ValueError(f"':' was expected at byte {position}")
            value_start = skip_blanks(position + 1)
            value, end = self.raw_decode(value_start, depth + 1)
            yield Member(key, value, key_start, value_start, end)
            position = skip_blanks(end)
            separator = body[position]
            if separator == _CLOSES:
                return
            if separator != _COMMA:
                raise ValueError(f"',' or '}}' was expected at byte {position}")
            position = skip_blanks(position + 1)

    def string(self, begin: int) -> tuple[str, int]:
        """Read the text whose first character is at `begin`; return it and what follows it."""
        body = self._body
        few = self._kept_bytes > MOST_KEPT_BYTES
        earlier = last = begin
        end = _cut(body, begin, MANY_TEXTS_BYTES if few else STEP)
        while body[end] != _QUOTE:
            further = _cut(body, end, _SEGMENT_BYTES)
            if further == end:
                raise ValueError(f"a text that is none at byte {end}")
            earlier, last, end = last, end, further
        tail = earlier if end - last <= _END_BYTES else last
        tail = _cut(body, tail, max(end - tail - _END_BYTES, _END_BYTES)) if last > begin else begin
        head = _cut(body, begin, min(_END_BYTES if few else SHOWN_BYTES, tail - begin))
        mark = ""
        if begin < head < tail:
            mark = self.long_texts.mark(head, tail)
        else:
            head = tail
        self._kept_bytes += head - begin + end - tail
        return f"{_text(body[begin:head])}{mark}{_text(body[tail:end])}", end + 1

    def beginning(self, begin: int) -> str:
        """Return a text that may be shown, such as a name, or its first 16 KiB."""
        return _text(self._body[begin : _cut(self._body, begin, _NAME_BYTES)])

    def _past(self, position: int, wanted: int) -> int:
        position = self.skip_blanks(position)
        if self._body[position] != wanted:
            raise ValueError(f"'}}' was expected at byte {position}")
        return position + 1

    def _array(self, position: int, depth: int) -> tuple[list[Any], int]:
        body, skip_blanks = self._body, self.skip_blanks
        items: list[Any] = []
        position = skip_blanks(position)
        if body[position] == _CLOSES_LIST:
            return items, position + 1
        while True:
            item, position = self.raw_decode(position, depth + 1)
            items.append(item)
            position = skip_blanks(position)
            separator = body[position]
            if separator == _CLOSES_LIST:
                return items, position + 1
            if separator != _COMMA:
                raise ValueError(f"',' or ']' was expected at byte {position}")
            position = skip_blanks(position + 1)

    def _number(self, position: int) -> tuple[Any, int]:
        match = _number(self._body, position, position + _LONGEST_NUMBER)
        if match is None:
            raise ValueError(f"a value was expected at byte {position}")
        if match.end() - position >= _LONGEST_NUMBER:
            raise ValueError(f"the number at byte {position} is too long")
        whole, fraction, exponent = match.groups()
        if fraction or exponent:
            return float(match[0]), match.end()
        return int(whole), match.end()


def _end_of(pattern: Callable[..., Any], body: bytes, begin: int, size: int = 0) -> int:
    """Return the end of a match of a pattern that matches nothing, too."""
    match = pattern(body, begin, begin + (size or STEP))
    assert match is not None
    end: int = match.end()
    return end


def _cut(body: bytes, begin: int, size: int) -> int:
    r"""Return where the valid part of a text ends, or a place to cut it after `size` bytes.

    Never within a character, and not behind a `\uD8XX`, which is one character with the next.
    """
    end = _end_of(_characters, body, begin, size)
    if end == begin or body[end : end + 1] == b'"':
        return end
    at = end
    while body[at : at + 1] and body[at] & 0xC0 == 0x80:  # within a character
        at -= 1
    before = at - 6
    if (
        before > begin
        and _high_half(body, before)
        and _end_of(_characters, body, begin, before - begin) == before
    ):
        at = before
    return at if at > begin else end


def _text(raw: bytes) -> str:
    if b"\\" not in raw:
        return raw.decode()
    text: str = scanstring(raw.decode() + '"', 0, True)[0]
    return text


_encode = JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), check_circular=False, allow_nan=False
).encode


def write(value: object) -> bytes:
    r"""Return a value as compact JSON in UTF-8, written in small steps.

    A lone surrogate becomes its `\uXXXX`. Raises ValueError for a number that is not finite.
    """
    pieces: list[bytes] = []
    waiting: list[str] = []
    size = 0
    for text in write_in_steps(value):
        waiting.append(text)
        size += len(text)
        if size >= STEP:
            pieces.append("".join(waiting).encode("utf-8", "backslashreplace"))
            waiting.clear()
            size = 0
    pieces.append("".join(waiting).encode("utf-8", "backslashreplace"))
    return b"".join(pieces)


def write_in_steps(value: object) -> Iterator[str]:
    """Yield a value as compact JSON; raises ValueError for a number that is not finite."""
    if isinstance(value, str) and len(value) > STEP:
        yield '"'
        for at in range(0, len(value), STEP):
            yield _encode(value[at : at + STEP])[1:-1]
        yield '"'
    elif isinstance(value, dict):
        before = "{"
        for key, item in value.items():
            yield f"{before}{_encode(key)}:"
            yield from write_in_steps(item)
            before = ","
        yield "}" if value else "{}"
    elif isinstance(value, list | tuple):
        before = "["
        for item in value:
            yield before
            yield from write_in_steps(item)
            before = ","
        yield "]" if value else "[]"
    else:
        yield _encode(value)


def is_small(value: object) -> bool:
    """Tell whether a value may be written at once."""
    left, waiting = MOST_AT_ONCE, [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            left -= len(one)
            waiting += one.values() if left > 0 else ()
        elif isinstance(one, list):
            left -= len(one)
            waiting += one if left > 0 else ()
        elif isinstance(one, str):
            left -= len(one) // 64
        if left <= 0:
            return False
    return True
