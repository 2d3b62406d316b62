"""Reading JSON that anybody may have written: the value, or a refusal that names its path."""

from json import JSONDecoder, JSONEncoder
from json.encoder import encode_basestring
from math import isfinite
from typing import Any

from tornado_frontdoor.core.decisions import Reason
from tornado_frontdoor.surfaces import quick_json
from tornado_frontdoor.surfaces.base import Refused
from tornado_frontdoor.surfaces.bodies import JsonBody
from tornado_frontdoor.surfaces.patient_json import is_small, write, write_in_steps

Json = dict[str, Any]

NOT_FINITE = "holds a number that is not finite"

encode = JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), check_circular=False, allow_nan=False
).encode
"""Compact JSON with its characters as they are. Raises ValueError for a number that is not finite,
which JSON has not."""

encode_text = encode_basestring
"""`encode` for a text, without the way to it."""


def encoded(value: object) -> str:
    """Return `encode(value)`, of a large value in small steps."""
    return encode(value) if is_small(value) else "".join(write_in_steps(value))


def finite(text: str) -> float:
    """Read a number of JSON text; raises ValueError for `1e999` and `NaN`."""
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


loads_finite = JSONDecoder(parse_float=finite, parse_constant=finite).decode
"""Reads JSON text as a strict reader does."""


def to_bytes(text: str) -> bytes:
    r"""Return JSON text as UTF-8; a lone surrogate, which UTF-8 has not, becomes its `\uXXXX`."""
    return text.encode("utf-8", "backslashreplace")


def encode_request(body: Json, asked: JsonBody) -> bytes:
    """Return what an engine is sent in the place of what a client asked for.

    Raises Refused for a number that JSON has not.
    """
    if asked.quick:
        return quick_json.encode(body)
    long_texts = asked.long_texts
    try:
        if long_texts is None:
            return to_bytes(encode(body))
        return b"".join(long_texts.restore(write(body)))
    except ValueError as error:
        raise Refused(Reason.BAD_REQUEST, f"The body {NOT_FINITE}") from error


def invalid(path: str, why: str) -> Refused:
    """Return the refusal of a field, in the API's own form: the path, a colon, the reason."""
    return Refused(Reason.BAD_REQUEST, f"{path}: {why}", path)


def object_at(value: object, path: str) -> Json:
    """Return a JSON object."""
    if not isinstance(value, dict):
        raise invalid(path, "must be an object")
    return value


def list_at(value: object, path: str) -> list[Any]:
    """Return a JSON array."""
    if not isinstance(value, list):
        raise invalid(path, "must be a list")
    return value


def objects_at(value: object, path: str) -> list[tuple[str, Json]]:
    """Return the objects of a JSON array, each with its path."""
    numbered = [(f"{path}.{number}", item) for number, item in enumerate(list_at(value, path))]
    return [(item_path, object_at(item, item_path)) for item_path, item in numbered]


def str_field(holder: Json, key: str, path: str) -> str:
    """Return a string that may be empty but must be there."""
    value = holder.get(key)
    if not isinstance(value, str):
        raise invalid(f"{path}.{key}", "must be a string" if key in holder else "field required")
    return value


def nonempty_str(holder: Json, key: str, path: str) -> str:
    """Return a string that must not be empty."""
    value = str_field(holder, key, path)
    if not value:
        raise invalid(f"{path}.{key}", "must not be empty")
    return value


def int_field(value: object, path: str, least: int) -> int:
    """Return an integer of at least `least`; JSON's true and 1.0 are none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(path, "must be an integer")
    if value < least:
        raise invalid(path, f"must be at least {least}")
    return value


def number_at(value: object, path: str, most: float) -> float:
    """Return a number from 0 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise invalid(path, f"must be a number from 0 to {most:g}")
    return value


def flag_at(value: object, path: str) -> bool:
    """Return a boolean; null is false."""
    if value is not None and not isinstance(value, bool):
        raise invalid(path, "must be true or false")
    return bool(value)
