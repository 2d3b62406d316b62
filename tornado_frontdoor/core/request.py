"""What a caller asked for, in no dialect, and the ticket that stands for it in a queue."""

from collections.abc import Hashable
from enum import IntEnum, auto
from math import inf
from typing import NamedTuple, NewType, Protocol

from msgspec import Struct

UpstreamKey = NewType("UpstreamKey", str)
"""The name of an upstream in the configuration; one address, one key, one gate."""


class StoredBody(Protocol):
    """A body that is too large to be kept in memory."""

    @property
    def size_bytes(self) -> int:
        """How long it is."""
        ...

    def read(self, offset: int, most: int) -> bytes:
        """Return up to `most` bytes of it from a place on; empty where it is gone."""
        ...


def part_of(body: bytes | StoredBody, begin: int, most: int) -> bytes:
    """Return up to `most` bytes of a body from a place on."""
    return body[begin : begin + most] if isinstance(body, bytes) else body.read(begin, most)


class CanonicalRequest(Struct, frozen=True):
    """One request as everything below the surfaces sees it: no dialect, no route, no client.

    `body` is what the engine gets, in the engine's dialect and with the served name in it.
    """

    surface: str
    """Who decoded it (`openai`, `anthropic`, ...): for logs and `requests_total` only."""
    model: str
    """The name as the caller spelt it, or the route's default."""
    upstream: UpstreamKey
    path: str
    """Where the engine takes it, e.g. `/v1/chat/completions`."""
    body: bytes | StoredBody
    content_type: str
    stream: bool
    weight: int = 1
    """Sequence slots it takes in the engine: `n`, times the number of prompts (>= 1)."""
    headers: tuple[tuple[str, str], ...] = ()
    """What else the engine is told; steering and hop-by-hop headers are gone by now."""
    takes_slot: bool = True
    """False for what an engine answers without a sequence slot, e.g. `/tokenize`."""
    keep_alive_s: float | None = None
    """What its body says of how long the engine stays awake after it; infinity: for good."""


class WakeTerms(NamedTuple):
    """On which terms a request uses an engine that can sleep, where they are not the usual ones."""

    wakes: bool = True
    """Whether the engine is woken for it; if not, it is refused unless the engine is awake."""
    counts: bool = True
    """Whether it is a use of the engine, from which idle time begins anew."""
    keep_alive_s: float | None = None
    """How long the engine stays awake after it; infinity: for good, None: it does not say."""
    by: str = ""
    """Whose request it is, for operators: the name of a key, or an address."""
    request_id: str = ""


class CallerFacts(Struct, frozen=True):
    """What a gate may know of who asks: nothing but what its decisions rest on."""

    token: Hashable = None
    """Equal for each try of one request, and different from others'; None: not known."""
    patience_s: float = inf
    """How long it waits in silence before it leaves, as it says itself."""
    key: str = ""
    """Whose key it brought; those without one are all alike."""
    share: float = 1.0
    """What that key has of the slots, beside the shares of others (> 0)."""


class TicketState(IntEnum):
    """Where a ticket is. `core/admission.py` has the table of moves."""

    NEW = auto()
    QUEUED = auto()
    IN_FLIGHT = auto()
    COOLING = auto()
    """Over for its client, and perhaps not for its engine: it keeps its slots a little longer."""
    GONE = auto()


_NEW = TicketState.NEW


class TicketError(Exception):
    """A bug of the driver: a ticket was put into a queue for a second time."""


class Ticket:
    """One request's place in one gate; `weight` is the number of slots it takes (>= 1).

    Only the AdmissionController writes to it. `number` is its order of arrival at the gate;
    `promised_s` is how long it may wait for wakes, `paused_s` how long it had when its limit came
    or it left;
    `replica` names the engine that was picked for it, where there are several, `affinity` (the
    driver's) what it has in common with others that should be on the same one; `caller`, `terms`
    and `request_id` are the driver's too; None are the usual terms, and a caller of whom nothing is
    known.
    Raises ValueError for a weight below 1, which would lift the cap.
    """

    __slots__ = (
        "admitted_s",
        "affinity",
        "arrived_s",
        "awake_mark_s",
        "caller",
        "cooling_since_s",
        "number",
        "paused_mark_s",
        "paused_s",
        "promised_s",
        "replica",
        "request_id",
        "state",
        "terms",
        "weight",
    )

    def __init__(self, weight: int = 1) -> None:
        if weight < 1:
            raise ValueError(f"weight must be at least 1, not {weight}")
        self.weight = weight
        self.number = 0
        self.state = _NEW
        self.arrived_s = 0.0
        self.admitted_s = 0.0
        self.cooling_since_s = 0.0
        self.awake_mark_s = 0.0
        self.paused_mark_s = 0.0
        self.promised_s = 0.0
        self.paused_s = 0.0
        self.replica: str | None = None
        self.affinity: bytes | None = None
        self.terms: WakeTerms | None = None
        self.caller: CallerFacts | None = None
        self.request_id = ""

    @property
    def key(self) -> str:
        """Whose key its caller brought."""
        return "" if self.caller is None else self.caller.key

    @property
    def share(self) -> float:
        """What that key has of the slots, beside the shares of others."""
        return 1.0 if self.caller is None else self.caller.share

    @property
    def token(self) -> Hashable:
        """By what its tries are known to be one request; None: by nothing."""
        return None if self.caller is None else self.caller.token

    def __repr__(self) -> str:
        return f"<Ticket {self.number} weight={self.weight} {self.state.name}>"
