"""Bodies: which model they name, and the one change a body may undergo.

A JSON body is read whole. Where the caller's spelling is not the name the engine serves, the bytes
of that one value change; every other byte goes on as it came. (Multipart bodies: `multipart`.)
"""

from collections.abc import Collection, Iterator
from json import JSONDecoder, dumps
from json.decoder import scanstring  # type: ignore[attr-defined] # typeshed leaves it out
from typing import Any, NamedTuple

from tornado_frontdoor.core.decisions import Reason
from tornado_frontdoor.surfaces.base import Refused

Span = tuple[int, int]

_WHITESPACE = " \t\n\r"

_raw_decode = JSONDecoder().raw_decode


class _Member(NamedTuple):
    """A key, its value, and where in the text they stand."""

    key: str
    value: Any
    start: int
    value_start: int
    end: int


class JsonBody(NamedTuple):
    """A JSON object, and where in `text` the values of its top-level `model` keys stand."""

    text: str
    fields: dict[str, Any]
    model_spans: tuple[Span, ...]


def read_json(body: bytes) -> JsonBody:
    """Read a JSON object; raises Refused (bad_request) with what is wrong and where."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(
            Reason.BAD_REQUEST, f"The body is not UTF-8 (byte {error.start} is invalid)"
        ) from error
    try:
        return _walk(text)
    except RecursionError as error:
        raise Refused(Reason.BAD_REQUEST, "The body is nested too deeply") from error
    except ValueError as error:
        raise Refused(Reason.BAD_REQUEST, f"The body is not valid JSON: {error}") from error
    except IndexError as error:
        raise Refused(Reason.BAD_REQUEST, "The body is not valid JSON: it ends early") from error


def _walk(text: str) -> JsonBody:
    """Decode the top-level object key by key, so that the place of each value is known."""
    fields: dict[str, Any] = {}
    spans: list[Span] = []
    for member in _members(text):
        fields[member.key] = member.value  # of two equal keys the last one counts, as for engines
        if member.key == "model":
            spans.append((member.value_start, member.end))
    return JsonBody(text, fields, tuple(spans))


def _members(text: str) -> Iterator[_Member]:
    """Step over the members of the top-level object; raises ValueError or IndexError."""
    position = _skip(text, 0)
    if text[position] != "{":
        _raw_decode(text, position)  # raises where it is not JSON at all
        raise ValueError("it must be an object")
    position = _skip(text, position + 1)
    if text[position] == "}":
        position += 1
    else:
        while True:
            if text[position] != '"':
                raise ValueError(f"a key was expected at character {position}")
            key_start = position
            key, position = scanstring(text, position + 1, True)
            position = _skip(text, position)
            if text[position] != ":":
                raise ValueError(f"':' was expected at character {position}")
            start = _skip(text, position + 1)
            value, end = _raw_decode(text, start)
            yield _Member(key, value, key_start, start, end)
            position = _skip(text, end)
            separator = text[position]
            position += 1
            if separator == "}":
                break
            if separator != ",":
                raise ValueError(f"',' or '}}' was expected at character {position - 1}")
            position = _skip(text, position)
    if text[position:].strip(_WHITESPACE):
        raise ValueError(f"there is more after the object, at character {position}")


def _skip(text: str, position: int) -> int:
    while text[position] in _WHITESPACE:
        position += 1
    return position


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
    kept = [text[m.start : m.end] for m in _members(text) if m.key not in names]
    return "{" + ", ".join(kept) + "}"


def replace_model(body: bytes, served_name: str) -> bytes:
    """Return a JSON body with `served_name` as its model; raises Refused when it is not JSON."""
    return with_model(read_json(body), served_name)
