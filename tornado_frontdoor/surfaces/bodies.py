"""Bodies: which model they name, and the one change a body may undergo.

A JSON body is read whole. Where the caller's spelling is not the name the engine serves, the bytes
of that one value change; every other byte goes on as it came. (Multipart bodies: `multipart`.)
"""

from codecs import getincrementaldecoder
from collections.abc import Callable, Collection, Iterator
from json import JSONDecoder, dumps
from json.decoder import scanstring  # type: ignore[attr-defined] # typeshed leaves it out
from typing import Any, NamedTuple

from tornado_frontdoor.core.decisions import Reason
from tornado_frontdoor.surfaces.base import Refused
from tornado_frontdoor.surfaces.patient_json import (
    HUGE_BYTES,
    PatientReader,
    skip_blanks,
    takes_long,
)

Span = tuple[int, int]

Decode = Callable[[int], tuple[Any, int]]

_raw_decode = JSONDecoder().raw_decode
_utf8 = getincrementaldecoder("utf-8")


class _Member(NamedTuple):
    """A key, its value, and where in the text they stand."""

    key: str
    value: Any
    start: int
    value_start: int
    end: int


class JsonBody(NamedTuple):
    """A JSON object, and where in `text` the values of its top-level `model` keys stand.

    `patient`: it is large, and read and written in small steps.
    """

    text: str
    fields: dict[str, Any]
    model_spans: tuple[Span, ...]
    patient: bool = False


def read_json(body: bytes) -> JsonBody:
    """Read a JSON object; raises Refused (bad_request) with what is wrong and where."""
    patient = takes_long(body)
    try:
        text = _text_of(body) if patient else body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(
            Reason.BAD_REQUEST, f"The body is not UTF-8 ({_place(error, patient=patient)})"
        ) from error
    try:
        return _walk(text, patient=patient)
    except RecursionError as error:
        raise Refused(Reason.BAD_REQUEST, "The body is nested too deeply") from error
    except ValueError as error:
        raise Refused(Reason.BAD_REQUEST, f"The body is not valid JSON: {error}") from error
    except IndexError as error:
        raise Refused(Reason.BAD_REQUEST, "The body is not valid JSON: it ends early") from error


def _place(error: UnicodeDecodeError, *, patient: bool) -> str:
    return (
        f"{error.object[error.start]:#x} is no character"
        if patient
        else (f"byte {error.start} is invalid")
    )


def _text_of(body: bytes) -> str:
    """Decode in steps."""
    decoder = _utf8()
    steps = range(0, len(body), HUGE_BYTES)
    pieces = [decoder.decode(body[begin : begin + HUGE_BYTES]) for begin in steps]
    return "".join([*pieces, decoder.decode(b"", final=True)])


def _walk(text: str, *, patient: bool) -> JsonBody:
    """Decode the top-level object key by key, so that the place of each value is known."""
    fields: dict[str, Any] = {}
    spans: list[Span] = []
    for member in _members(text, patient=patient):
        fields[member.key] = member.value  # of two equal keys the last one counts, as for engines
        if member.key == "model":
            spans.append((member.value_start, member.end))
    return JsonBody(text, fields, tuple(spans), patient)


def _members(text: str, *, patient: bool) -> Iterator[_Member]:
    """Step over the members of the top-level object; raises ValueError or IndexError."""
    reader = PatientReader(text)
    decode: Decode = reader.raw_decode if patient else lambda at: _raw_decode(text, at)
    position = skip_blanks(text, 0)
    if text[position] != "{":
        decode(position)  # raises where it is not JSON at all
        raise ValueError("it must be an object")
    position = skip_blanks(text, position + 1)
    if text[position] == "}":
        position += 1
    else:
        while True:
            if text[position] != '"':
                raise ValueError(f"a key was expected at character {position}")
            key_start = position
            if patient:
                key, position = reader.string(position + 1)
            else:
                key, position = scanstring(text, position + 1, True)
            position = skip_blanks(text, position)
            if text[position] != ":":
                raise ValueError(f"':' was expected at character {position}")
            start = skip_blanks(text, position + 1)
            value, end = decode(start)
            yield _Member(key, value, key_start, start, end)
            position = skip_blanks(text, end)
            separator = text[position]
            position += 1
            if separator == "}":
                break
            if separator != ",":
                raise ValueError(f"',' or '}}' was expected at character {position - 1}")
            position = skip_blanks(text, position)
    if skip_blanks(text, position) < len(text):
        raise ValueError(f"there is more after the object, at character {position}")


def with_model(parsed: JsonBody, served_name: str) -> bytes:
    """Return the body with `served_name` as its model and every other byte as it was."""
    text = parsed.text
    replacement = dumps(served_name, ensure_ascii=False)
    for start, end in reversed(parsed.model_spans):
        text = text[:start] + replacement + text[end:]
    return text.encode()


def without_fields(parsed: JsonBody, names: Collection[str]) -> str:
    """Return the body's text without some of its top-level members, the others as they were."""
    text = parsed.text
    kept = [
        text[m.start : m.end] for m in _members(text, patient=parsed.patient) if m.key not in names
    ]
    return "{" + ", ".join(kept) + "}"


def replace_model(body: bytes, served_name: str) -> bytes:
    """Return a JSON body with `served_name` as its model; raises Refused when it is not JSON."""
    return with_model(read_json(body), served_name)
