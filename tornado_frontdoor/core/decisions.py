"""The values that leave the machines, and the words for how a request ended.

Decisions are named tuples: immutable, comparable, printable. The one that is made for each request
is a struct, which has all that too and costs a third.
"""

from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from tornado_frontdoor.core.request import Ticket
from tornado_frontdoor.engines.base import FirstToken, Step


class Outcome(Enum):
    """How a request ended: `label` is its name in metrics and logs, `code` its end code.

    The code's first letter says who ended it: C the client, U the engine, P the front door, `-`
    nobody, it ran to its end. The second says where or over what: Q in the queue, D after the
    grant, F a full queue, W waiting for a wake, X shutting down, H the engine's answer, T a
    silence, R the request itself, N a name, B a body, K a key, M memory, O the other front doors,
    Z an engine that is to sleep on, L the client's own time limit.
    """

    SERVED = ("served", "--")
    QUEUE_FULL = ("queue_full", "PF")
    QUEUE_TIMEOUT = ("queue_timeout", "PQ")
    CLIENT_DEADLINE = ("client_deadline", "PL")
    MODEL_WAKING = ("model_waking", "PW")
    MODEL_ASLEEP = ("model_asleep", "PZ")
    DRAINING = ("draining", "PX")
    CLIENT_GONE_QUEUED = ("client_gone_queued", "CQ")
    CLIENT_GONE_STREAMING = ("client_gone_streaming", "CD")
    UPSTREAM_ERROR = ("upstream_error", "UH")
    UPSTREAM_TIMEOUT = ("upstream_timeout", "UT")
    BAD_REQUEST = ("bad_request", "PR")
    MODEL_NOT_FOUND = ("model_not_found", "PN")
    BODY_TOO_LARGE = ("body_too_large", "PB")
    CLUSTER_OUTAGE = ("cluster_outage", "PO")
    UNAUTHORIZED = ("unauthorized", "PK")
    BUFFERS_FULL = ("buffers_full", "PM")
    REQUEST_TIMEOUT = ("request_timeout", "CT")

    def __init__(self, label: str, code: str) -> None:
        self.label = label
        self.code = code


class Reason(Enum):
    """Why a request is refused; the value is its name in the contract."""

    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    CLIENT_DEADLINE = "client_deadline"
    """It would have left before its turn, by what it says of itself."""
    MODEL_WAKING = "model_waking"
    MODEL_ASLEEP = "model_asleep"
    """The engine sleeps, and is not to be woken: not for this request, or for nobody."""
    UPSTREAM_DOWN = "upstream_down"
    DRAINING = "draining"
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    MODEL_NOT_FOUND = "model_not_found"
    BAD_REQUEST = "bad_request"
    BODY_TOO_LARGE = "body_too_large"
    CLUSTER_OUTAGE = "cluster_outage"
    BUFFERS_FULL = "buffers_full"
    REQUEST_TIMEOUT = "request_timeout"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    HEAD_TOO_LARGE = "head_too_large"
    INVALID_API_KEY = "invalid_api_key"
    MODEL_NOT_ALLOWED = "model_not_allowed"


OUTCOME_OF: dict[Reason, Outcome] = {
    Reason.QUEUE_FULL: Outcome.QUEUE_FULL,
    Reason.QUEUE_TIMEOUT: Outcome.QUEUE_TIMEOUT,
    Reason.CLIENT_DEADLINE: Outcome.CLIENT_DEADLINE,
    Reason.MODEL_WAKING: Outcome.MODEL_WAKING,
    Reason.MODEL_ASLEEP: Outcome.MODEL_ASLEEP,
    Reason.UPSTREAM_DOWN: Outcome.MODEL_WAKING,
    Reason.DRAINING: Outcome.DRAINING,
    Reason.UPSTREAM_ERROR: Outcome.UPSTREAM_ERROR,
    Reason.UPSTREAM_TIMEOUT: Outcome.UPSTREAM_TIMEOUT,
    Reason.MODEL_NOT_FOUND: Outcome.MODEL_NOT_FOUND,
    Reason.BAD_REQUEST: Outcome.BAD_REQUEST,
    Reason.BODY_TOO_LARGE: Outcome.BODY_TOO_LARGE,
    Reason.CLUSTER_OUTAGE: Outcome.CLUSTER_OUTAGE,
    Reason.BUFFERS_FULL: Outcome.BUFFERS_FULL,
    Reason.REQUEST_TIMEOUT: Outcome.REQUEST_TIMEOUT,
    Reason.NOT_FOUND: Outcome.BAD_REQUEST,
    Reason.METHOD_NOT_ALLOWED: Outcome.BAD_REQUEST,
    Reason.UNSUPPORTED_MEDIA_TYPE: Outcome.BAD_REQUEST,
    Reason.HEAD_TOO_LARGE: Outcome.BAD_REQUEST,
    Reason.INVALID_API_KEY: Outcome.UNAUTHORIZED,
    Reason.MODEL_NOT_ALLOWED: Outcome.UNAUTHORIZED,
}


class SleepDepth(Enum):
    """How far from serving an engine is; the value is what clients read in `sleep_depth`."""

    SLEEPING = "sleeping"
    OFFLOADED = "offloaded"
    STOPPED = "stopped"
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
    return_s: float | None = None
    """When exactly this caller is to be back, where `retry_after_s` is the same for all."""


class Admit(Struct, frozen=True, gc=False):
    """The ticket holds its slots from now on, and its engine is proven awake."""

    ticket: Ticket
    waited_s: float
    """Seconds in the queue, whatever it waited for."""
    paused_s: float
    """The part of `waited_s` during which the engine was not awake."""


class Refuse(NamedTuple):
    """The ticket is gone without having been in flight."""

    ticket: Ticket
    refusal: Refusal


class Rejected(NamedTuple):
    """A ticket that is gone without having been in flight, and why."""

    ticket: Ticket
    reason: Reason


class Cooled(NamedTuple):
    """The ticket is gone: its slots have cooled for `cooling_limit_s`, and no sign came."""

    ticket: Ticket


AdmissionEvent = Admit | Rejected | Cooled


class EngineState(Enum):
    """What is known of an engine; the value is what `/admin/status` and metrics show."""

    UNKNOWN = "unknown"
    AWAKE = "awake"
    FALLING_ASLEEP = "falling_asleep"
    SLEEPING = "sleeping"
    """Level 1: the weights are in the memory of the host."""
    OFFLOADED = "offloaded"
    """Level 2, or a level that nobody knows: the weights must be read again."""
    STOPPED = "stopped"
    """Level 3: its process was ended, and can be started."""
    WAKING = "waking"
    DOWN = "down"
    """Nobody answers at the address."""


class Verdict(Enum):
    """What came of an operator's request."""

    DONE = "done"
    BUSY = "busy"
    """Somebody is inside, or another transition is under way."""
    UNSUPPORTED = "unsupported"
    """The engine cannot sleep."""
    FAILED = "failed"


class JournalEntry(NamedTuple):
    """What must outlive a front door that is killed, so that the next one knows where it stands."""

    going: EngineState | None = None
    """WAKING or FALLING_ASLEEP: a transition had begun, and its end was not seen."""
    level: int = 0
    """How deep the engine slept, or was to sleep: 0 to 3."""
    trusted: bool = True
    """Whether its weights had been loaded since they were dropped: if not, awake proves nothing."""
    process: str | None = None
    """The engine's process for which this holds."""
    token: FirstToken | None = None
    """What its canary was answered while it was known to be good."""


# Commands: what the driver must do. What it may want to know besides is told by the notices below.


class Perform(NamedTuple):
    """Carry out one step against the engine and report what came of it, with its number."""

    number: int
    step: Step
    timeout_s: float
    """Then the gate gives it up by itself; a later report of it changes nothing."""


class Remember(NamedTuple):
    """Write this down, durably and in order, off the loop.

    With a number it is reported like a step, and what it speaks of is done only after that; with
    none it merely spares the next front door some work.
    """

    memory: JournalEntry
    number: int = 0


class RoomDecided(NamedTuple):
    """Something was decided about the memory another gate's engine takes: call `hear_ledger`."""

    owner: str
    """As that gate's `SleepConfig` calls its engine."""


Command = Perform | Remember | RoomDecided


# Notices: what the driver may want to know, for logs, metrics and operators. What it must do is
# told by the commands above. None of them changes what comes next.


class Changed(NamedTuple):
    """The engine's state is another one now."""

    state: EngineState
    by: str = ""
    """Who wanted it, where that is known."""


class SleepReason(Enum):
    """Why an engine fell asleep; the value is what metrics and logs show."""

    IDLE = "idle"
    OPERATOR = "operator"
    KEEP_ALIVE = "keep_alive"
    """The last caller wanted it kept awake for so long, or no longer."""
    SCHEDULE = "schedule"
    ROOM = "room"
    """Another engine needed its part of a GPU."""
    OUT_OF_BAND = "out_of_band"
    """Somebody put it to sleep without asking us."""


class FellAsleep(NamedTuple):
    """An engine that was awake sleeps now, or sleeps deeper."""

    level: int
    reason: SleepReason
    room_for: str = ""
    """The upstream that needed its room."""
    by: str = ""
    """Who wanted it, where that is known."""


class Measured(NamedTuple):
    """What an engine takes of each of its GPUs is another amount than was known."""

    level: int
    """Where it is: 0 awake."""
    gib: float


class CanaryEnded(NamedTuple):
    """A canary was answered, or not; `result` as in `core/wake/known_good.py`."""

    result: str
    detail: str = ""


class OutOfMemory(NamedTuple):
    """A wake ended as a GPU was full, although there was room by the ledger, which learns from it.

    Both are 0 where the ledger has no numbers.
    """

    counted_gib: float = 0.0
    """What the engine was taken to need of each of its GPUs."""
    needs_gib: float = 0.0
    """What it is taken to need from now on."""


class WakeEnded(NamedTuple):
    """A wake from `depth` is over, for metrics; for RESTARTING: the engine is back."""

    depth: SleepDepth
    succeeded: bool
    took_s: float


class Answered(NamedTuple):
    """What came of a request to `wake`, or to `sleep` at a level: for all who made it."""

    request: str
    verdict: Verdict
    detail: str = ""
    level: int | None = None


class Note(NamedTuple):
    """Something an operator should read in the log."""

    text: str


Notice = Changed | CanaryEnded | FellAsleep | Measured | OutOfMemory | WakeEnded | Answered | Note


class OfReplica(NamedTuple):
    """What is to be done to, or known of, the one of several engines that has this address."""

    replica: str
    what: Command | Notice


Decision = Admit | Refuse | Cooled | Command | Notice | OfReplica
