"""Bodies: which model they name, and the one change a body may undergo.

A JSON body is read whole; of a multipart body only the small `model` field is read. Where the
caller's spelling is not the name the engine serves, the bytes of that one value change; every other
byte goes on as it came.
"""

from json import JSONDecoder, dumps
from json.decoder import scanstring  # type: ignore[attr-defined] # typeshed leaves it out
from typing import Any, NamedTuple

from tornado_frontdoor.core.decisions import Reason
from tornado_frontdoor.surfaces.base import Refused

Span = tuple[int, int]

_WHITESPACE = " \t\n\r"
_MODEL_FIELD_LIMIT_BYTES = 1024
"""A model's name is short; a longer `model` part is not one."""

_raw_decode = JSONDecoder().raw_decode


class JsonBody(NamedTuple):
    """A JSON object, and where in `text` the values of its top-level `model` keys stand."""

    text: str
    fields: dict[str, Any]
    model_spans: tuple[Span, ...]


class MultipartBody(NamedTuple):
    """The value of the `model` field, and where it stands in the body (bytes)."""

    model: str | None
    model_span: Span | None


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
    position = _skip(text, 0)
    if text[position] != "{":
        _raw_decode(text, position)  # raises where it is not JSON at all
        raise ValueError("it must be an object")
    fields: dict[str, Any] = {}
    spans: list[Span] = []
    position = _skip(text, position + 1)
    if text[position] == "}":
        position += 1
    else:
        while True:
            if text[position] != '"':
                raise ValueError(f"a key was expected at character {position}")
            key, position = scanstring(text, position + 1, True)
            position = _skip(text, position)
            if text[position] != ":":
                raise ValueError(f"':' was expected at character {position}")
            start = _skip(text, position + 1)
            fields[key], end = _raw_decode(text, start)
            if key == "model":
                spans.append((start, end))
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
    return JsonBody(text, fields, tuple(spans))


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


def replace_model(body: bytes, served_name: str) -> bytes:
    """Return a JSON body with `served_name` as its model; raises Refused when it is not JSON."""
    return with_model(read_json(body), served_name)


def read_multipart(content_type: str, body: bytes) -> MultipartBody:
    """Find the `model` field of a multipart body; raises Refused without a boundary.

    Parts are stepped over from delimiter to delimiter; no part but `model` is looked into.
    """
    delimiter = b"--" + _boundary(content_type)
    start = 0 if body.startswith(delimiter) else body.find(b"\r\n" + delimiter) + 2
    while start >= 0 and body.startswith(delimiter, start):
        start += len(delimiter)
        if body.startswith(b"--", start):
            break
        end = body.find(b"\r\n" + delimiter, start)
        if end < 0:
            raise Refused(Reason.BAD_REQUEST, "The multipart body ends within a part")
        head_end = body.find(b"\r\n\r\n", start, end)
        if head_end >= 0 and _names_model(body[start:head_end]):
            span = (head_end + 4, end)
            if end - span[0] > _MODEL_FIELD_LIMIT_BYTES:
                raise Refused(Reason.BAD_REQUEST, "The model field is too long", "model")
            return MultipartBody(body[span[0] : end].decode("utf-8", "replace").strip(), span)
        start = end + 2
    return MultipartBody(None, None)


def _boundary(content_type: str) -> bytes:
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.strip().partition("=")
        if name.strip().lower() == "boundary" and value:
            return value.strip().strip('"').encode("latin-1", "replace")
    raise Refused(Reason.BAD_REQUEST, "The multipart Content-Type names no boundary")


def _names_model(head: bytes) -> bool:
    """Tell whether a part's head is that of a plain field called `model`."""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            parameters = [piece.strip() for piece in value.split(b";")[1:]]
            named = b'name="model"' in parameters or b"name=model" in parameters
            return named and not any(p.lower().startswith(b"filename") for p in parameters)
    return False
