"""`keep_alive`: what a request says of how long its engine stays awake after it.

Ollama's clients send it in the body: a number of seconds, or a duration such as `5m` (Go's
`time.ParseDuration`); 0 is no longer than needed, below 0 for good (ollama `api.Duration`). No
engine of ours knows the field, so it goes no further. The same values stand in a header.
"""

import re
from math import inf, isnan

from tornado_frontdoor.core.decisions import Reason
from tornado_frontdoor.core.printable import quoted
from tornado_frontdoor.surfaces.base import Refused
from tornado_frontdoor.surfaces.bodies import JsonBody, read_json, without_fields

FIELD = "keep_alive"
HEADER = "x-frontdoor-keep-alive"

LARGEST_S = 1e12
"""From here on a number is no time that anybody means; texts have as few digits."""

_UNIT_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{0,9})?"
_PART = re.compile(rf"({_NUMBER})(h|ms|m|s|us|µs|ns)")
_DURATION = re.compile(rf"([+-]?)((?:{_PART.pattern})+|{_NUMBER})")


def duration_s(text: str) -> float:
    """Read `90`, `90s`, `1h30m`; a number alone is seconds. Raises ValueError."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError("must be seconds, or a duration such as 5m or 1h30m")
    parts = _PART.findall(found[2])
    seconds = sum(float(n) * _UNIT_S[unit] for n, unit in parts) if parts else float(found[2])
    return -seconds if found[1] == "-" else seconds


def keep_alive_s(value: object, name: str) -> float | None:
    """Return the seconds a value means; infinity: for good, None: nothing was said.

    Raises Refused; `name` is where the value stands.
    """
    if value is None:
        return None
    seconds: float | None = None
    if isinstance(value, str):
        try:
            seconds = duration_s(value)
        except ValueError as error:
            raise Refused(
                Reason.BAD_REQUEST, f"{name} {error}, not {quoted(value)}", name
            ) from None
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if value >= LARGEST_S:
            detail = f"{name} is too large a number of seconds; below 0 it means for good"
            raise Refused(Reason.BAD_REQUEST, detail, name)
        if value <= -LARGEST_S:
            detail = f"{name} is too far below 0; -1 means for good"
            raise Refused(Reason.BAD_REQUEST, detail, name)
        seconds = None if isnan(value) else float(value)
    if seconds is None:
        detail = f"{name} must be a number of seconds, or a duration such as 5m or 1h30m"
        raise Refused(Reason.BAD_REQUEST, detail, name)
    return inf if seconds < 0 else seconds


def without_keep_alive(parsed: JsonBody) -> tuple[JsonBody, float | None]:
    """Return the body without its `keep_alive`, and what that says."""
    if FIELD not in parsed.fields:
        return parsed, None
    said_s = keep_alive_s(parsed.fields[FIELD], FIELD)
    return read_json(without_fields(parsed, {FIELD})), said_s
