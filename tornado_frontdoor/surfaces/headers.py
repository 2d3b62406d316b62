"""Which headers cross the front door, in either direction."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""RFC 9110 7.6.1, with the two that old clients still send."""

STEERING = frozenset(
    {
        "x-vllm-priority",
        "x-data-parallel-rank",
        "x-session-id",
        "x-request-id",
        "endpoint-load-metrics-format",
    }
)
"""vLLM obeys these: they jump its queue, pin a rank, or make two requests share one id."""

_NOT_TO_ENGINE = (
    HOP_BY_HOP
    | STEERING
    | {"host", "content-length", "content-type", "expect", "accept-encoding"}
    | {"x-frontdoor-wake", "x-frontdoor-keep-alive"}
)
_NOT_TO_CLIENT = HOP_BY_HOP | {
    *("content-length", "server", "date", "x-request-id"),  # ours to say
    *("x-accel-redirect", "x-sendfile", "x-lighttpd-send-file", "x-reproxy-url"),
    *("alt-svc", "strict-transport-security", "x-accel-buffering"),
}
"""The second line steers proxies in front of us, the third what browsers do with our address."""
_OURS = ("x-frontdoor-", "access-control-")
"""How names begin that only we may send: what our own marks say, and which web pages may read."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class BadHeadError(Exception):
    """An engine's head leaves it open where its body ends; the message says why."""


def to_engine(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return what an engine may see of a client's headers (lower-case names).

    Host, length, content type and the request id are set anew by whoever sends the request.
    """
    return tuple([pair for pair in headers.items() if pair[0] not in _NOT_TO_ENGINE])


def end_to_end(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return a client's headers without those that it meant for the next hop only, which is us.

    One rule before all surfaces: what `Connection` names goes no further (RFC 9110 7.6.1).
    """
    named = headers.get("connection")
    if named is None or named in ("keep-alive", "close"):
        return headers
    dropped = HOP_BY_HOP | _tokens(named)
    return {name: value for name, value in headers.items() if name not in dropped}


_READ = ("content-type", "content-encoding", "content-length", "transfer-encoding", "connection")
_FRAMING = ("content-length", "transfer-encoding")


@lru_cache(1024)
def _role_of(name: str) -> tuple[bool, str]:
    """Return whether a client may see a header of this name, and by what name we read it.

    Engines send the same names again and again.
    """
    folded = name.lower()
    ours = folded in _NOT_TO_CLIENT or folded.startswith(_OURS)
    passes = not ours and _TOKEN.fullmatch(name) is not None
    if folded.strip() in _FRAMING and folded != folded.strip():
        return passes, _SPACED
    return passes, folded if folded in _READ else ""


_SPACED = "framing with blanks"


def read_answer_head(
    status: int, headers: Iterable[tuple[str, str]]
) -> tuple[list[tuple[str, str]], int | None, str, bool]:
    """Return what a client may see of an engine's headers, and what they say of the body.

    That is its length (None: it tells none, or is chunked), its type in lower case, and whether it
    is encoded. What is passed are whole lines, and none that are ours: one whose name is no name or
    whose value has control characters is none, and the length is told anew. Raises BadHeadError for
    a head that two readers could read in two ways.
    """
    passed: list[tuple[str, str]] = []
    told: dict[str, str] = {}
    for pair in headers:
        name, value = pair
        passes, read = _role_of(name)
        if passes and (value.isprintable() or not _CONTROL.search(value)):
            passed.append(pair)
        if read:
            told[read] = f"{told[read]},{value}" if read in told else value
    length = _length_in(status, told)
    if "connection" in told:
        named = _tokens(told["connection"])
        passed = [pair for pair in passed if pair[0].lower() not in named]
    encoded = told.get("content-encoding", "").lower() not in ("", "identity")
    return passed, length, told.get("content-type", "").lower(), encoded


def _length_in(status: int, told: Mapping[str, str]) -> int | None:
    """Return the length of a body. Beside chunks one means nothing (RFC 9112 6.3)."""
    if _SPACED in told:
        raise BadHeadError("blanks beside the name of its length or transfer-encoding")
    if "transfer-encoding" in told:
        if told["transfer-encoding"].lower() not in ("chunked", "identity"):
            raise BadHeadError("a transfer-encoding other than chunked")
        return None
    length = told.get("content-length")
    if length is None or status == 204:
        return None
    if "," in length:
        several = {piece.strip() for piece in length.split(",")}
        length = several.pop() if len(several) == 1 else ""
    length = length.strip()
    if not (length.isascii() and length.isdecimal() and len(length) < 16):
        raise BadHeadError("a content-length that is none, or more than one")
    return int(length)


def value_of(headers: Iterable[tuple[str, str]], name: str) -> str:
    """Return the first value of `name` (lower case), or the empty string."""
    for candidate, value in headers:
        if candidate.lower() == name:
            return value
    return ""


def _tokens(value: str) -> set[str]:
    return {token.strip().lower() for token in value.split(",")}
