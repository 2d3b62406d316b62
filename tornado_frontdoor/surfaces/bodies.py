"""Bodies: which model they name, and the one change a body may undergo.

A JSON body is read whole. Where the caller's spelling is not the name the engine serves, the bytes
of that one value change; every other byte goes on as it came. (Multipart bodies: `multipart`.)
"""

from codecs import getincrementaldecoder
from collections.abc import Collection, Iterator
from json import JSONDecoder, dumps
from json.decoder import scanstring  # type: ignore[attr-defined] # typeshed leaves it out
from re import compile as compiled
from typing import Any

from msgspec import Struct

from tornado_frontdoor.core.decisions import Reason
from tornado_frontdoor.surfaces.base import NESTED_TOO_DEEPLY, Refused
from tornado_frontdoor.surfaces.patient_json import (
    COPIED_AT_ONCE,
    LongTexts,
    Member,
    PatientReader,
    in_steps,
    takes_long,
)
from tornado_frontdoor.surfaces.quick_json import NOT_QUICK, decode_to_encode

Span = tuple[int, int]

_raw_decode = JSONDecoder().raw_decode
_utf8 = getincrementaldecoder("utf-8")
_blanks = compiled(r"[ \t\n\r]*").match


class JsonBody(Struct, frozen=True):
    """A JSON object, and where in `source` the values of its top-level `model` keys stand.

    `long_texts`: it is large, is read and written in small steps, and this holds what `fields`
    leave out; None: it is small, and they have everything.
    """

    source: bytes
    fields: dict[str, Any]
    model_spans: tuple[Span, ...] | None
    """None: they were not looked for yet."""
    long_texts: LongTexts | None = None
    quick: bool = False
    """`fields` may be written by `quick_json.encode`."""


def read_json(body: bytes) -> JsonBody:
    """Read a JSON object; raises Refused (bad_request) with what is wrong and where."""
    patient = takes_long(body)
    try:
        return _read_in_steps(body) if patient else _read_at_once(body)
    except UnicodeDecodeError as error:
        place = (
            f"{error.object[error.start]:#x} is no character"
            if patient
            else f"byte {error.start} is invalid"
        )
        raise Refused(Reason.BAD_REQUEST, f"The body is not UTF-8 ({place})") from error
    except RecursionError as error:
        raise Refused(Reason.BAD_REQUEST, NESTED_TOO_DEEPLY) from error
    except ValueError as error:
        raise Refused(Reason.BAD_REQUEST, f"The body is not valid JSON: {error}") from error
    except IndexError as error:
        raise Refused(Reason.BAD_REQUEST, "The body is not valid JSON: it ends early") from error


def _read_at_once(body: bytes) -> JsonBody:
    try:
        fields = decode_to_encode(body)
        if isinstance(fields, dict):
            return JsonBody(body, fields, None, quick=True)
    except NOT_QUICK:
        pass
    text = body.decode("utf-8")
    fields = _object_in(text)
    if fields is None:  # member by member it is known what is wrong, and where
        fields = {member.key: member.value for member in _members(text)}
    return JsonBody(body, fields, None)


def _object_in(text: str) -> dict[str, Any] | None:
    """Return the object that a text is, of two equal keys the last one, as for engines.

    None: it is none, or nested too deeply to be read in one go.
    """
    try:
        fields, end = _raw_decode(text, _skip_blanks(text, 0))
    except (ValueError, RecursionError):
        return None
    is_all = end == len(text) or _skip_blanks(text, end) == len(text)
    return fields if is_all and isinstance(fields, dict) else None


def _model_spans(body: bytes) -> tuple[Span, ...]:
    """Return where in a small body the values of its top-level `model` keys stand."""
    text = body.decode()
    spans = [(m.value_start, m.end) for m in _members(text) if m.key == "model"]
    if not text.isascii():
        spans = [(len(text[:start].encode()), len(text[:end].encode())) for start, end in spans]
    return tuple(spans)


def _read_in_steps(body: bytes) -> JsonBody:
    decoder = _utf8()
    for piece in in_steps(body, 0, len(body)):
        decoder.decode(piece)
    decoder.decode(b"", final=True)
    reader = PatientReader(body)
    fields: dict[str, Any] = {}
    spans: list[Span] = []
    for member in _members_in_steps(body, reader):
        fields[member.key] = member.value
        if member.key == "model":
            spans.append((member.value_start, member.end))
            if isinstance(member.value, str):
                fields["model"] = reader.beginning(member.value_start + 1)
    return JsonBody(body, fields, tuple(spans), reader.long_texts)


def _members_in_steps(body: bytes, reader: PatientReader) -> Iterator[Member]:
    start = position = reader.skip_blanks(0)
    if body[position] != ord("{"):
        reader.raw_decode(position)  # raises where it is not JSON at all
        raise ValueError("it must be an object")
    for member in reader.members(position):
        yield member
        position = member.end
    position = reader.skip_blanks(position + (position == start))
    if reader.skip_blanks(position + 1) < len(body):
        raise ValueError(f"there is more after the object, at byte {position + 1}")


def _members(text: str) -> Iterator[Member]:
    """Step over the members of the top-level object; raises ValueError or IndexError."""
    position = _skip_blanks(text, 0)
    if text[position] != "{":
        _raw_decode(text, position)  # raises where it is not JSON at all
        raise ValueError("it must be an object")
    position = _skip_blanks(text, position + 1)
    if text[position] == "}":
        position += 1
    else:
        while True:
            if text[position] != '"':
                raise ValueError(f"a key was expected at character {position}")
            key_start = position
            key, position = scanstring(text, position + 1, True)
            position = _skip_blanks(text, position)
            if text[position] != ":":
                raise ValueError(f"':' was expected at character {position}")
            start = _skip_blanks(text, position + 1)
            value, end = _raw_decode(text, start)
            yield Member(key, value, key_start, start, end)
            position = _skip_blanks(text, end)
            separator = text[position]
            position += 1
            if separator == "}":
                break
            if separator != ",":
                raise ValueError(f"',' or '}}' was expected at character {position - 1}")
            position = _skip_blanks(text, position)
    if _skip_blanks(text, position) < len(text):
        raise ValueError(f"there is more after the object, at character {position}")


def _skip_blanks(text: str, position: int) -> int:
    if text[position : position + 1] not in (" ", "\n", "\r", "\t"):
        return position
    match = _blanks(text, position)
    assert match is not None
    return match.end()


def with_model(parsed: JsonBody, served_name: str) -> bytes:
    """Return the body with `served_name` as its model and every other byte as it was."""
    replacement = dumps(served_name, ensure_ascii=False).encode()
    spans = parsed.model_spans
    if spans is None:
        spans = _model_spans(parsed.source)
    return spliced(parsed.source, [(span, replacement) for span in spans])


def spliced(body: bytes, changes: Collection[tuple[Span, bytes]]) -> bytes:
    """Return the body with other bytes in the place of some parts, given in order."""
    if len(body) <= COPIED_AT_ONCE:
        for (start, end), replacement in reversed([*changes]):
            body = body[:start] + replacement + body[end:]
        return body
    pieces: list[bytes] = []
    at = 0
    for (start, end), replacement in changes:
        pieces += [*in_steps(body, at, start), replacement]
        at = end
    return b"".join([*pieces, *in_steps(body, at, len(body))])


def without_fields(parsed: JsonBody, names: Collection[str]) -> bytes:
    """Return the body without some of its top-level members, the others as they were."""
    source = parsed.source
    if parsed.long_texts is None:
        text = source.decode()
        kept = [text[m.start : m.end] for m in _members(text) if m.key not in names]
        return ("{" + ", ".join(kept) + "}").encode()
    pieces = [b"{"]
    for member in _members_in_steps(source, PatientReader(source)):
        if member.key not in names:
            pieces += [b", "] if len(pieces) > 1 else []
            pieces += in_steps(source, member.start, member.end)
    return b"".join([*pieces, b"}"])


def replace_model(body: bytes, served_name: str) -> bytes:
    """Return a JSON body with `served_name` as its model; raises Refused when it is not JSON."""
    return with_model(read_json(body), served_name)
