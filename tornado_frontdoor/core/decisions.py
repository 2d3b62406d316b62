"""The values that leave the machines, and the words for how a request ended.

Decisions are named tuples: immutable, comparable, printable, and cheap enough for a simulator
that makes a million of them.
"""

from enum import Enum
from typing import NamedTuple

from tornado_frontdoor.core.request import Ticket


class Outcome(Enum):
    """How a request ended; the value is the label in metrics and logs, `code` the end code.

    The end code's first letter says who ended it (C client, U upstream, P the front door, `-`
    nobody: it ran to its end), the second where it was (R request not yet in a line, Q queued,
    H before the first byte of the answer, D within the data, W waiting for a wake).
    """

    SERVED = ("served", "--")
    QUEUE_FULL = ("queue_full", "PF")
    QUEUE_TIMEOUT = ("queue_timeout", "PQ")
    MODEL_WAKING = ("model_waking", "PW")
    DRAINING = ("draining", "PX")
    CLIENT_GONE_QUEUED = ("client_gone_queued", "CQ")
    CLIENT_GONE_STREAMING = ("client_gone_streaming", "CD")
    UPSTREAM_ERROR = ("upstream_error", "UH")
    UPSTREAM_TIMEOUT = ("upstream_timeout", "UT")
    BAD_REQUEST = ("bad_request", "PR")
    MODEL_NOT_FOUND = ("model_not_found", "PN")
    BODY_TOO_LARGE = ("body_too_large", "PB")

    def __init__(self, label: str, code: str) -> None:
        self.label = label
        self.code = code


class Reason(Enum):
    """Why a request is refused; the value is its name in the contract."""

    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    MODEL_WAKING = "model_waking"
    UPSTREAM_DOWN = "upstream_down"
    DRAINING = "draining"
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    MODEL_NOT_FOUND = "model_not_found"
    BAD_REQUEST = "bad_request"
    BODY_TOO_LARGE = "body_too_large"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"


OUTCOME_OF: dict[Reason, Outcome] = {
    Reason.QUEUE_FULL: Outcome.QUEUE_FULL,
    Reason.QUEUE_TIMEOUT: Outcome.QUEUE_TIMEOUT,
    Reason.MODEL_WAKING: Outcome.MODEL_WAKING,
    Reason.UPSTREAM_DOWN: Outcome.MODEL_WAKING,
    Reason.DRAINING: Outcome.DRAINING,
    Reason.UPSTREAM_ERROR: Outcome.UPSTREAM_ERROR,
    Reason.UPSTREAM_TIMEOUT: Outcome.UPSTREAM_TIMEOUT,
    Reason.MODEL_NOT_FOUND: Outcome.MODEL_NOT_FOUND,
    Reason.BAD_REQUEST: Outcome.BAD_REQUEST,
    Reason.BODY_TOO_LARGE: Outcome.BODY_TOO_LARGE,
    Reason.NOT_FOUND: Outcome.BAD_REQUEST,
    Reason.METHOD_NOT_ALLOWED: Outcome.BAD_REQUEST,
}


class SleepDepth(Enum):
    """How far from serving an engine is; the value is what clients read in `sleep_depth`."""

    SLEEPING = "sleeping"
    OFFLOADED = "offloaded"
    RESTARTING = "restarting"


class Refusal(NamedTuple):
    """One decision not to serve, for a surface to render in its dialect.

    `retry_after_s` is None where a retry cannot help. `detail` is for a person and names the
    model, the setting or the limit; `param` is the path of the offending field, if any.
    """

    reason: Reason
    detail: str
    upstream: str | None = None
    retry_after_s: float | None = None
    sleep_depth: SleepDepth | None = None
    estimated_wake_s: float | None = None
    param: str | None = None


class Admit(NamedTuple):
    """The ticket holds its slots from now on, and its engine is proven awake."""

    ticket: Ticket
    waited_s: float
    """Seconds in the line, whatever it waited for."""
    held_s: float
    """The part of `waited_s` during which the engine was not awake."""


class Refuse(NamedTuple):
    """The ticket is gone without having been in flight."""

    ticket: Ticket
    refusal: Refusal


Decision = Admit | Refuse
