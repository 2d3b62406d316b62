"""One attempt of one request at the gate: the gate's own ticket, and what the model knows of it."""

from math import inf

from tornado_frontdoor.core.request import Ticket


class Attempt(Ticket):
    """A ticket and the request behind it.

    It has no constructor of its own: one call less for each of a million, and `started` sets all.
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
    following = Attempt(attempt.weight)
    following.index = attempt.index
    following.attempts = attempt.attempts + 1
    following.first_s = attempt.first_s
    following.work = attempt.work
    following.prompt = attempt.prompt
    following.patience_s = attempt.patience_s
    following.queued = False
    following.started_s = inf
    return following
