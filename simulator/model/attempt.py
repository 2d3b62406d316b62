"""One attempt of one request at the gate: the gate's own ticket, and what the model knows of it."""

from simulator.traffic.workload import Timed
from tornado_frontdoor.core.request import Ticket, TicketState

_NEW = TicketState.NEW


class Attempt(Ticket):
    """A ticket and the request behind it, in its first attempt.

    It sets what a ticket must have before it comes to a gate, rather than calling its constructor:
    one call less for each of a million. The rest is set by whoever finds it out.
    """

    __slots__ = (
        "attempts",
        "first_s",
        "first_token_s",
        "index",
        "patience_s",
        "prompt",
        "queued",
        "started_s",
        "work",
    )

    def __init__(self, request: Timed, index: int) -> None:
        self.first_s, self.work, self.prompt, self.patience_s, self.weight = request
        self.index = index
        self.attempts = 1
        self.queued = False
        self.state = _NEW
        self.replica = None
        self.affinity = None
        self.terms = None
        self.request_id = ""
        self.caller = None
        self.number = 0

    index: int
    """The request's number in the replication, from 0."""
    attempts: int
    """1 for the first."""
    first_s: float
    """Instant of the first attempt."""
    work: float
    prompt: float
    patience_s: float
    queued: bool
    """Whether it waits now."""
    started_s: float
    """Instant at which a replica began with it."""
    first_token_s: float


def again(attempt: Attempt) -> Attempt:
    """Return the same request's next attempt."""
    following = Attempt(
        (attempt.first_s, attempt.work, attempt.prompt, attempt.patience_s, attempt.weight),
        attempt.index,
    )
    following.caller = attempt.caller
    following.attempts = attempt.attempts + 1
    return following
