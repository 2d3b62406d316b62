"""Which headers cross the front door, in either direction."""

from collections.abc import Iterable, Mapping

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

_NOT_TO_ENGINE = HOP_BY_HOP | STEERING | {"host", "content-length", "content-type", "expect"}
_NOT_TO_CLIENT = HOP_BY_HOP | {"server", "date", "x-request-id"}


def to_engine(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return what an engine may see of a client's headers (lower-case names).

    Host, length, content type and the request id are set anew by whoever sends the request.
    """
    named = headers.get("connection")
    dropped = _NOT_TO_ENGINE if not named else _NOT_TO_ENGINE | _tokens(named)
    return tuple([pair for pair in headers.items() if pair[0] not in dropped])


def to_client(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return what a client may see of an engine's headers."""
    passed = []
    named: set[str] = set()
    for name, value in headers:
        folded = name.lower()
        if folded not in _NOT_TO_CLIENT:
            passed.append((name, value))
        elif folded == "connection":
            named |= _tokens(value)
    if named:
        passed = [(name, value) for name, value in passed if name.lower() not in named]
    return passed


def value_of(headers: Iterable[tuple[str, str]], name: str) -> str:
    """Return the first value of `name` (lower case), or the empty string."""
    for candidate, value in headers:
        if candidate.lower() == name:
            return value
    return ""


def _tokens(value: str) -> set[str]:
    return {token.strip().lower() for token in value.split(",")}
