"""What goes into a model engine and what comes out: calls, answers, events, times."""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal, NamedTuple


class Kind(Enum):
    """What an event tells."""

    STARTED = auto()
    STEPPED = auto()
    """`value`: whether what it computed in this step is garbage."""
    FINISHED = auto()
    """`value` as for STEPPED, for the whole sequence."""
    ABORTED = auto()
    """Ended by the engine with `finish_reason: abort`; nobody asked the client."""
    ANSWERED = auto()
    """A control call is over; `key` is its id and `value` an `ControlAnswer`."""
    DIED = auto()
    """Every sequence inside is lost; `value` says why."""
    RESTARTED = auto()
    """It is there again: empty, awake, with good weights."""


class ModelEvent(NamedTuple):
    """One thing that happened, at the instant it happened."""

    kind: Kind
    key: Hashable
    at_s: float
    value: object = None


class ControlAnswer(NamedTuple):
    """How a control call went: `ok` False is a 500."""

    ok: bool
    value: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds that transitions take; pairs are by level (1, 2)."""

    sleep_s: tuple[float, float] = (0.0, 0.0)
    wake_s: tuple[float, float] = (0.0, 0.0)
    reload_s: float = 0.0
    restart_s: float = 1.0


Mode = Literal["abort", "wait", "keep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlCall:
    """One control call, with the misfortune that is to befall it.

    `name`: sleep, wake_up, is_sleeping, collective_rpc, reset_prefix_cache, pause, resume,
    is_paused or abort_requests. `slow_s` (infinity: for ever) comes on top of its own time;
    `die` kills the engine in place of its effect or right after its answer.
    """

    id: Hashable
    name: str
    level: int = 1
    mode: Mode = "abort"
    tags: tuple[str, ...] | None = None
    method: str = "reload_weights"
    seconds: float = 0.0
    slow_s: float = 0.0
    fails: bool = False
    noop: bool = False
    die: Literal["", "before", "after"] = ""
