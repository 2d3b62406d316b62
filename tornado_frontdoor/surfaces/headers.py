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
_FRAMING = ("content-length", "transfer-encoding")


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


def to_client(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return what a client may see of an engine's headers: whole lines, and none that are ours.

    A line whose name is no name or whose value has control characters is left out. The length is
    left out too, see `body_length`.
    """
    passed = []
    named: set[str] = set()
    for name, value in headers:
        if _may_pass(name):
            if value.isprintable() or not _CONTROL.search(value):
                passed.append((name, value))
        elif name.lower() == "connection":
            named |= _tokens(value)
    if named:
        passed = [(name, value) for name, value in passed if name.lower() not in named]
    return passed


@lru_cache(1024)
def _may_pass(name: str) -> bool:
    """Tell whether a client may see a header of this name, as engines send it again and again."""
    folded = name.lower()
    ours = folded in _NOT_TO_CLIENT or folded.startswith(_OURS)
    return not ours and _TOKEN.fullmatch(name) is not None


def body_length(status: int, headers: Iterable[tuple[str, str]]) -> int | None:
    """Return the length an engine's head gives for its body; None: it tells none, or is chunked.

    RFC 9112 6.3: a length beside chunks means nothing. Raises BadHeadError for a head that two
    readers could read in two ways.
    """
    lengths: set[str] = set()
    chunked = False
    for name, value in headers:
        folded = name.strip().lower()
        if folded not in _FRAMING:
            continue
        if name != name.strip():
            raise BadHeadError(f"blanks beside the name of its {folded}")
        if folded == "content-length":
            lengths |= {piece.strip() for piece in value.split(",")}
        elif chunked or value.lower() not in ("chunked", "identity"):
            raise BadHeadError("a transfer-encoding other than chunked")
        else:
            chunked = True
    if chunked or status == 204 or not lengths:
        return None
    length = lengths.pop()
    if lengths or not (length.isascii() and length.isdecimal() and len(length) < 16):
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
