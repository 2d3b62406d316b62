"""One request as operators read of it: who asked for what, how it went, why it ended so."""

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from ipaddress import IPv4Network, IPv6Network, ip_address
from time import monotonic
from typing import Any

from msgspec import Struct

from tornado_frontdoor.core.decisions import Outcome
from tornado_frontdoor.core.printable import printable
from tornado_frontdoor.proxy.downstream.client import Client

Networks = Sequence[IPv4Network | IPv6Network]

_NO_TRACE: dict[str, str] = {}


class AccessLine(Struct, frozen=True):
    """What the access line and the page say of a request that ended, in their order.

    A struct is made in a tenth of the time of a dict, and written in half.
    """

    time: str
    request_id: str
    method: str
    path: str
    client: str | None
    forwarded: str | None
    user_agent: str | None
    key: str | None
    surface: str
    model: str | None
    upstream: str | None
    replica: str | None
    outcome: str
    code: str
    status: int
    cause: str | None
    place: int | None
    wake: str | None
    waited_s: float
    held_s: float
    first_byte_s: float | None
    total_s: float
    bytes_in: int
    bytes_out: int
    tokens_in: int | None
    tokens_out: int | None
    weight: int
    stream: bool


class Record:
    """What is known of one request when it ends. Times in seconds."""

    __slots__ = (
        *("request_id", "surface", "method", "path", "client", "forwarded", "user_agent", "key"),
        *("model", "upstream", "replica", "status", "stream", "weight", "place", "wake"),
        *("arrived_s", "waited_s", "held_s", "first_byte_s", "bytes_in", "bytes_out"),
        *("tokens_in", "tokens_out", "cause", "known_key", "trace", "span_ids"),
    )

    def __init__(self, request_id: str, surface: str, arrived_s: float) -> None:
        self.request_id = request_id
        self.surface = surface
        self.arrived_s = arrived_s
        self.method = ""
        self.path = ""
        self.client: str | None = None
        self.forwarded: str | None = None
        """Who a trusted proxy says it speaks for."""
        self.user_agent: str | None = None
        self.key: str | None = None
        """A short print of the credential, never the credential."""
        self.known_key: str | None = None
        """The name of the client whose key it brought, for metrics."""
        self.trace: dict[str, str] = _NO_TRACE
        """What the client said of the trace that it is in: `traceparent`, `tracestate`."""
        self.span_ids: Any = None
        """Of its spans, where there are any."""
        self.model: str | None = None
        self.upstream: str | None = None
        self.replica: str | None = None
        """The address of the engine that was asked."""
        self.status = 0
        self.stream = False
        self.weight = 0
        self.place: int | None = None
        """In the queue when it came, 1 being next; None: it did not wait."""
        self.wake: str | None = None
        """How deep the engine slept that it waited for."""
        self.waited_s = 0.0
        self.held_s = 0.0
        self.first_byte_s: float | None = None
        self.bytes_in = 0
        self.bytes_out = 0
        self.tokens_in: int | None = None
        self.tokens_out: int | None = None
        self.cause: str | None = None
        """Why it was not served, in words."""

    def line(self, outcome: Outcome, time: str) -> AccessLine:
        """Return what is told of it now that it has ended."""
        first_byte_s = self.first_byte_s
        return AccessLine(  # by place: of so many names Python would make a dict first
            time,
            self.request_id,
            self.method,
            self.path,
            self.client,
            self.forwarded,
            self.user_agent,
            self.key,
            self.surface,
            None if self.model is None else printable(self.model),
            self.upstream,
            self.replica,
            outcome.label,
            outcome.code,
            self.status,
            None if self.cause is None else printable(self.cause, 500),
            self.place,
            self.wake,
            # To the microsecond; to round to digits takes three times as long.
            round(self.waited_s * 1e6) / 1e6,
            round(self.held_s * 1e6) / 1e6,
            None if first_byte_s is None else round(first_byte_s * 1e6) / 1e6,
            round((monotonic() - self.arrived_s) * 1e6) / 1e6,
            self.bytes_in,
            self.bytes_out,
            self.tokens_in,
            self.tokens_out,
            self.weight,
            self.stream,
        )

    def so_far(self) -> dict[str, Any]:
        """Return what the page says of a request under way."""
        return {
            "request_id": self.request_id,
            "method": self.method,
            "path": self.path,
            "client": self.client,
            "forwarded": self.forwarded,
            "user_agent": self.user_agent,
            "key": self.key,
            "surface": self.surface,
            "model": printable(self.model or ""),
            "upstream": self.upstream,
            "replica": self.replica,
            "came_at": self.place,
            "wake": self.wake,
            "waited_s": round(self.waited_s, 3),
            "held_s": round(self.held_s, 3),
            "first_byte_s": self.first_byte_s,
            "weight": self.weight,
            "stream": self.stream,
            "age_s": round(monotonic() - self.arrived_s, 3),
        }


def record_of(client: Client, surface: str, trusted: Networks) -> Record:
    """Begin the record of a request with what its head says."""
    record = Record(client.id, surface, client.arrived_s)
    record.method = printable(client.method, 20)
    record.path = printable(client.target.partition("?")[0])
    record.client = client.address
    headers = client.headers
    agent = headers.get("user-agent")
    record.user_agent = None if agent is None else printable(agent)
    credential = headers.get("authorization") or headers.get("x-api-key")
    record.key = print_of(credential) if credential else None
    if "traceparent" in headers:
        names = ("traceparent", "tracestate")
        record.trace = {name: headers[name] for name in names if name in headers}
    if trusted:
        hops = headers.get("x-forwarded-for") or forwarded_for(headers.get("forwarded"))
        record.forwarded = spoken_for(hops, client.address, trusted)
    return record


@lru_cache(64)
def print_of(credential: str) -> str:
    """Return eight digits that tell one credential from another and lead back to none."""
    word = credential.rpartition(" ")[2]
    return blake2b(word.encode(), digest_size=4, person=b"frontdoor").hexdigest()


_FOR = re.compile(r'(?:^|[;,])\s*for\s*=\s*(?:"([^"]*)"|([^";,\s]+))', re.IGNORECASE)


def forwarded_for(forwarded: str | None) -> str | None:
    """Return the addresses of a `Forwarded` header (RFC 7239) as `X-Forwarded-For` has them."""
    if forwarded is None:
        return None
    named = [quoted or bare for quoted, bare in _FOR.findall(forwarded)]
    return ", ".join(map(_without_port, named)) or None


def _without_port(node: str) -> str:
    if node.startswith("["):
        return node[1:].partition("]")[0]
    return node.partition(":")[0] if node.count(":") == 1 else node


def spoken_for(hops_told: str | None, peer: str, trusted: Networks) -> str | None:
    """Return the last address that no trusted proxy vouches for being its own.

    `X-Forwarded-For` is believed of a trusted peer only, and from its end: what stands before the
    first stranger may have been written by that stranger.
    """
    if hops_told is None or not _within(peer, trusted):
        return None
    hops = [hop.strip() for hop in hops_told.split(",")]
    for hop in reversed(hops):
        if not _within(hop, trusted):
            return printable(hop, 100)
    return printable(hops[0], 100)


def _within(address: str, networks: Networks) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in networks)
