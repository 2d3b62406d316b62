"""What a door's cluster member wants done, and what a look at Redis told it.

The shell carries actions out in order. Keys of tickets at a gate are (door, number); a door of the
name "" stands for slots of which nobody knows whose they are.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tornado_frontdoor.cluster.messages import Packet
from tornado_frontdoor.core.decisions import Outcome, Refusal

Key = tuple[str, int]


class Beat(NamedTuple):
    """Tell Redis that this door lives, renew its lease or, if it `campaigns`, take a free one."""

    campaigns: bool
    epoch: int
    """The highest epoch that it knows of; a new one is above it."""


class Release(NamedTuple):
    """Give the lease of this epoch back, if it is still held."""

    epoch: int


class Send(NamedTuple):
    """Put a packet into the inbox of its receiver."""

    packet: Packet


class OpenGates(NamedTuple):
    """Make fresh gates: of all upstreams; or, with `shares`, of those alone and with these caps."""

    shares: Mapping[str, int] | None = None


class GatesReady(NamedTuple):
    """All that was known of earlier owners is in the gates: engines may be looked at."""


class CloseGates(NamedTuple):
    """Drop all gates; nothing of theirs has any effect from now on."""


class GateAdopt(NamedTuple):
    """Let a gate count this as in flight."""

    key: Key
    address: str
    weight: int
    replica: str = ""


class GateArrive(NamedTuple):
    """Bring a ticket to its gate."""

    key: Key
    address: str
    weight: int
    waited_s: float
    affinity: str = ""
    terms: str = ""


class GateFinish(NamedTuple):
    """End a ticket at its gate."""

    key: Key
    outcome: Outcome


class GateLost(NamedTuple):
    """Tell a gate that nobody answers at its engine's address, or at one of several."""

    address: str
    replica: str = ""
    why: str = ""


class GateDrain(NamedTuple):
    """Tell a gate to send nobody new to one of several engines, or to send them again."""

    address: str
    replica: str
    undo: bool


class GateWish(NamedTuple):
    """Tell a gate what an operator at a door wants; `wished` takes the answer."""

    key: Key
    address: str
    level: int
    replica: str = ""


class Grant(NamedTuple):
    """Tell the request that it may start; it asks `may_start` right before it does."""

    number: int
    waited_s: float
    paused_s: float
    replica: str = ""


class TurnAway(NamedTuple):
    """Tell the request that it is refused."""

    number: int
    refusal: Refusal


class TellOperator(NamedTuple):
    """Tell an operator at this door what came of a wish."""

    number: int
    verdict: str
    detail: str


class CountEngine(NamedTuple):
    """Ask an engine how many sequences it runs and keeps waiting; `sampled` takes the answer."""

    address: str
    """Of the engine: one of several behind an upstream has one of its own."""
    round: int


class LookForDoors(NamedTuple):
    """Ask Redis whose lifeline is open; `seen` takes the answer."""


class Forget(NamedTuple):
    """Take a door off the list of those that may live."""

    door: str


class Say(NamedTuple):
    """Something an operator should read in the log."""

    text: str


Action = (
    Beat | Release | Send | OpenGates | GatesReady | CloseGates | GateAdopt | GateArrive
    | GateFinish | GateLost | GateDrain | GateWish | Grant | TurnAway | TellOperator | CountEngine
    | LookForDoors | Forget | Say
)  # fmt: skip


class BeatAnswer(NamedTuple):
    """What Redis told in answer to a `Beat`."""

    owner: str
    """Who holds the lease; empty: nobody."""
    epoch: int
    left_s: float
    """How long the lease still lasts."""
    won: bool
    """Whether this beat has taken it."""
    before: str
    """Whose lease ended before this one began."""
    same_run: bool
    """Whether the lease before this one was given by the Redis that answers, as far as it knows."""
    run: str
    """Which start of which Redis that is."""
    doors: tuple[str, ...]
    """Who has told that it lives and was not forgotten."""
