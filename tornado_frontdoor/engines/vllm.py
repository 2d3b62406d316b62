"""What an engine can be asked on its way to sleep and back, in which order, as data by version.

Rule 1: a sequence that wakes may be begun again from its top after a crash at any point.
Rule 2: level and mode go in the query: vLLM does not read a body there, and says nothing.
Rule 3: one tag a call: a tag that is not asleep makes the whole call a silent no-op.
Rule 4: `/health` is not here. It is 200 asleep, awake and in between.

Sources: vLLM's release sources; vllm#15483 and PR 34528 (the scheduler is paused from 0.17 on),
vllm#34600 (a wake that failed maps memory twice, before 0.25), vllm#29341 (garbage until the
weights are loaded), vllm#17103 (stale prefixes), docs/features/sleep_mode.md (the staged order).
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Step(Enum):
    """One call to an engine: its name in `wake_step`, method, path, JSON body and time limit.

    Four of them are one call with different hopes. A look reads `/is_sleeping`, `/version` and
    `/metrics`; it is over when `/is_sleeping` is. `CANARY` is a request for one token, at the path
    and for the model of the configuration.
    """

    LOOK = ("look", "GET", "/is_sleeping", None, 2.0)
    """How is it?"""
    IDLE = ("idle", "GET", "/is_sleeping", None, 2.0)
    """It has nothing to do, for anybody."""
    ASLEEP = ("asleep", "GET", "/is_sleeping", None, 5.0)
    """It sleeps."""
    PROVE = ("prove", "GET", "/is_sleeping", None, 5.0)
    """It is awake."""
    SLEEP_1 = ("sleep_1", "POST", "/sleep?level=1&mode=abort", None, 120.0)
    SLEEP_2 = ("sleep_2", "POST", "/sleep?level=2&mode=abort", None, 120.0)
    SLEEP_1_PLAIN = ("sleep_1", "POST", "/sleep?level=1", None, 120.0)
    SLEEP_2_PLAIN = ("sleep_2", "POST", "/sleep?level=2", None, 120.0)
    WAKE = ("wake_up", "POST", "/wake_up", None, 300.0)
    WAKE_WEIGHTS = ("wake_weights", "POST", "/wake_up?tags=weights", None, 300.0)
    WAKE_KV_CACHE = ("wake_kv_cache", "POST", "/wake_up?tags=kv_cache", None, 300.0)
    RELOAD = ("reload_weights", "POST", "/collective_rpc", '{"method": "reload_weights"}', 900.0)
    """Reads the checkpoint again: minutes from a slow share."""
    RESET_PREFIXES = ("reset_prefix_cache", "POST", "/reset_prefix_cache", None, 30.0)
    """Over when it says `success`, or says nothing (before 0.27)."""
    CANARY = ("canary", "POST", "", None, 10.0)
    """Asked again after a look, see `wake_run.py`: this is no limit for the first token."""

    def __init__(
        self, label: str, method: str, path: str, body: str | None, timeout_s: float
    ) -> None:
        self.label = label
        self.method = method
        self.path = path
        self.body = body
        self.timeout_s = timeout_s
        self.looks = path == "/is_sleeping"


class StepResult(Enum):
    """What came of a step."""

    DONE = "done"
    FAILED = "failed"
    """It was answered, and not with success."""
    UNSUPPORTED = "unsupported"
    """The engine has no such thing: 404. For a canary: it cannot be asked this way."""
    TIMED_OUT = "timed out"
    """No answer within the limit. The engine may yet carry it out."""
    LOST = "lost"
    """Refused, reset, or cut off: nobody is there."""


class Seen(NamedTuple):
    """What a look that was answered saw; None: the engine does not tell."""

    sleeping: bool
    level: int | None = None
    """`vllm:engine_sleep_state`: 1 `weights_offloaded`, 2 `discard_all`, 0 `awake`."""
    running: int | None = None
    waiting: int | None = None
    version: str | None = None
    process: str | None = None
    """Anything that differs between two starts of the engine, e.g. its start time."""


class Report(NamedTuple):
    """What came of the `Perform` of the same number. `seen` is for a look that is DONE."""

    number: int
    ending: StepResult
    seen: Seen | None = None
    detail: str = ""
    """For a person: the status, the error."""


@dataclass(frozen=True, slots=True)
class ReleaseQuirks:
    """What of a release's habits decides about steps."""

    staged: bool
    """A wake by tags leaves the rest asleep (0.17). Before, everything is fenced off anyway."""
    knows_modes: bool
    """`/sleep` knows `mode` (0.17)."""
    resets_prefixes: bool
    """Sleep does not drop cached prefixes in the engine (before 0.17): it must be asked to."""
    wakes_again: bool
    """A wake that failed may be tried again at once (0.25); before, that can kill the engine."""
    sleeps_half_awake: bool
    """Weights alone can be put back to sleep (0.31); before, the call is a silent no-op."""


UNKNOWN_RELEASE = ReleaseQuirks(
    staged=True,
    knows_modes=True,
    resets_prefixes=False,
    wakes_again=False,
    sleeps_half_awake=False,
)
"""The careful choice of each, for an engine that does not tell: staged since 0.17, and a query
parameter that is not known is ignored."""

_FIRST_WITH_SLEEP = (0, 7)


def profile_of(version: str | None) -> ReleaseQuirks:
    """Return the habits of a release, e.g. `0.23.1`; of one that cannot be told, the careful ones.

    A build from an untagged checkout calls itself `0.1.dev…`: that tells nothing either.
    """
    parts = (version or "").removeprefix("v").split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return UNKNOWN_RELEASE
    release = (int(parts[0]), int(parts[1]))
    if release < _FIRST_WITH_SLEEP:
        return UNKNOWN_RELEASE
    return ReleaseQuirks(
        staged=release >= (0, 17),
        knows_modes=release >= (0, 17),
        resets_prefixes=release < (0, 17),
        wakes_again=release >= (0, 25),
        sleeps_half_awake=release >= (0, 31),
    )


def wake_steps(profile: ReleaseQuirks, level: int, *, canary: bool) -> tuple[Step, ...]:
    """Return how to wake from level 1, from level 2 (or one that nobody knows), or from 0.

    From level 0 only the canary is left: a look has just shown it awake.
    """
    end = (Step.CANARY,) if canary else ()
    if level == 0:
        return end
    reset = (Step.RESET_PREFIXES,) if profile.resets_prefixes else ()
    if level == 1:
        return (Step.WAKE, *reset, Step.PROVE, *end)
    if profile.staged:
        # In any other order the scheduler runs before the weights mean anything (vllm#29341).
        return (Step.WAKE_WEIGHTS, Step.RELOAD, Step.WAKE_KV_CACHE, Step.PROVE, *end)
    return (Step.WAKE, Step.RELOAD, *reset, Step.PROVE, *end)


def sleep_steps(profile: ReleaseQuirks, level: int, *, asleep: bool) -> tuple[Step, ...]:
    """Return how to put an engine to sleep; `asleep`: it sleeps at level 1 and must go to 2.

    `/sleep?level=2` on a sleeping engine is a silent no-op, so some of it has to wake first.
    """
    if profile.knows_modes:
        sleep = Step.SLEEP_1 if level == 1 else Step.SLEEP_2
    else:
        sleep = Step.SLEEP_1_PLAIN if level == 1 else Step.SLEEP_2_PLAIN
    if not asleep:
        return (Step.IDLE, sleep, Step.ASLEEP)
    if profile.sleeps_half_awake:
        return (Step.IDLE, Step.WAKE_WEIGHTS, sleep, Step.ASLEEP)
    # The second look: awake for a moment, it may have begun what another hand left inside it.
    return (Step.IDLE, Step.WAKE, Step.IDLE, sleep, Step.ASLEEP)
