"""What doors tell one another, and how it is written down: one JSON array a message.

A member's tickets are known by its own numbers. Addresses name upstreams: doors may use other keys.
A message that cannot be read raises ValueError; the door that sent it is of another release.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tornado_frontdoor.core.decisions import Admit, Outcome, Reason, Refusal, SleepDepth
from tornado_frontdoor.core.request import WakeTerms


class Waiting(NamedTuple):
    """A ticket of the sender that waits."""

    number: int
    address: str
    weight: int
    waited_s: float
    place: int
    """Its number in the line of the last owner; 0 where none was told."""
    affinity: str = ""
    """What it has in common with others that should be on one engine, in hexadecimal."""
    terms: str = ""
    """On which it uses its engine, by `terms_text`; empty: on the usual ones."""


class Running(NamedTuple):
    """A ticket of the sender that is in flight."""

    number: int
    address: str
    weight: int
    replica: str = ""
    """On which of several engines."""


class Join(NamedTuple):
    """From a member, first in each session: everything it has."""

    waiting: tuple[Waiting, ...]
    running: tuple[Running, ...]
    doors: tuple[str, ...]
    """All doors that it knows of."""
    drained: tuple[str, ...] = ()
    """Replicas that an operator has drained: from a process to the next one."""


class Arrive(NamedTuple):
    """From a member: a ticket came."""

    number: int
    address: str
    weight: int
    affinity: str = ""
    terms: str = ""


class Finish(NamedTuple):
    """From a member: a ticket ended, wherever it was."""

    number: int
    outcome: Outcome


class Lost(NamedTuple):
    """From a member: nobody answers at the engine's address."""

    address: str
    replica: str = ""
    """At which of several engines."""
    why: str = ""


class OperatorWants(NamedTuple):
    """From a member: an operator wants an engine awake (level 0) or asleep."""

    number: int
    address: str
    level: int
    replica: str = ""
    """Which of several engines; empty: all."""


class DrainReplica(NamedTuple):
    """From a member: an operator wants nobody new on one of several engines, or again."""

    address: str
    replica: str
    undo: bool


class OnWire(NamedTuple):
    """From a member, to `Count`: its requests that the engine must have in its count."""

    round: int
    numbers: tuple[int, ...]


class Admitted(NamedTuple):
    """From the owner: the ticket holds its slots."""

    number: int
    waited_s: float
    paused_s: float
    replica: str = ""
    """Which of several engines was picked."""


class TurnedAway(NamedTuple):
    """From the owner: the ticket is gone."""

    number: int
    refusal: Refusal


class Queued(NamedTuple):
    """From the owner: the ticket waits, and this is its number in the line."""

    number: int
    place: int


class Count(NamedTuple):
    """From the owner: tell what you have on the wire."""

    round: int


class OperatorTold(NamedTuple):
    """From the owner: what came of a wish."""

    number: int
    verdict: str
    detail: str


class State(NamedTuple):
    """From the owner, with each beat: who is there, and its gates as it shows them."""

    doors: tuple[str, ...]
    views: Mapping[str, Mapping[str, Any]]


ForOwner = Lost | OperatorWants | DrainReplica
Body = (
    *(Join, Arrive, Finish, Lost, OperatorWants, OnWire),
    *(Admitted, TurnedAway, Queued, Count, OperatorTold, State),
    DrainReplica,
)
AnyBody = (
    Join | Arrive | Finish | Lost | OperatorWants | OnWire
    | Admitted | TurnedAway | Queued | Count | OperatorTold | State | DrainReplica
)  # fmt: skip


class Packet(NamedTuple):
    """What one door sends another at once. `from_owner` tells the two directions apart."""

    sender: str
    to: str
    epoch: int
    session: int
    from_owner: bool
    first: int
    """The number of the first of `bodies` in this session and direction."""
    bodies: tuple[AnyBody, ...]
    ack: int
    """The number up to which everything was taken."""
    stamp_s: float
    """The sender's clock."""
    echo_s: float
    """The latest of the receiver's stamps that the sender has seen; -infinity: none."""
    unknown: bool = False
    """From an owner: it knows no such session; begin a new one."""


_TAGS = {kind: number for number, kind in enumerate(Body)}


def encode(packet: Packet) -> bytes:
    """Write a packet down."""
    bodies = [plain(body) for body in packet.bodies]
    return json.dumps([*packet[:6], bodies, *packet[7:]], separators=(",", ":")).encode()


def decode(data: bytes | str) -> Packet:
    """Read a packet; raises ValueError."""
    try:
        fields = json.loads(data)
        fields[6] = tuple(map(read_body, fields[6]))
        return Packet(*fields)
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"not a message of this release: {error!r}") from error


def told(number: int, decision: Admit | Refusal) -> Admitted | Refusal:
    """Return what a gate's decision is to the ticket of that number."""
    if isinstance(decision, Refusal):
        return decision
    replica = decision.ticket.replica or ""
    return Admitted(number, decision.waited_s, decision.paused_s, replica)


def terms_text(terms: WakeTerms | None) -> str:
    """Write a request's terms down."""
    return "" if terms is None else json.dumps(terms)


def terms_of(text: str) -> WakeTerms | None:
    """Read what `terms_text` wrote; raises ValueError or TypeError."""
    return WakeTerms(*json.loads(text)) if text else None


def plain(body: AnyBody) -> list[Any]:
    """Return a body as what JSON has words for."""
    return [_TAGS[type(body)], *_plain(body)]


def read_body(written: list[Any]) -> AnyBody:
    """Return what was written by `plain`; raises TypeError, KeyError or IndexError."""
    return _body(Body[written[0]], written[1:])


def _plain(body: AnyBody) -> Sequence[Any]:
    if isinstance(body, Finish):
        return [body.number, body.outcome.label]
    if isinstance(body, TurnedAway):
        refusal = body.refusal
        depth = None if refusal.sleep_depth is None else refusal.sleep_depth.value
        plain = refusal._replace(sleep_depth=None)
        return [body.number, refusal.reason.value, depth, *plain[1:]]
    if isinstance(body, Join) and not body.drained:
        return body[:-1]  # as releases read it that know no more
    return body


_OUTCOMES = {outcome.label: outcome for outcome in Outcome}


def _body(kind: Any, rest: list[Any]) -> AnyBody:
    if kind is Finish:
        return Finish(rest[0], _OUTCOMES[rest[1]])
    if kind is TurnedAway:
        number, reason, depth, *fields = rest
        refusal = Refusal(Reason(reason), *fields)
        return TurnedAway(number, refusal._replace(sleep_depth=depth and SleepDepth(depth)))
    if kind is Join:
        waiting, running, *names = rest
        return Join(
            tuple(Waiting(*one) for one in waiting),
            tuple(Running(*one) for one in running),
            *map(tuple, names),
        )
    if kind is OnWire:
        return OnWire(rest[0], tuple(rest[1]))
    if kind is State:
        return State(tuple(rest[0]), rest[1])
    body: AnyBody = kind(*rest)
    return body
