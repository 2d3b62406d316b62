"""vLLM with its sleep mode: which calls put it to sleep and wake it, by release.

Rule 1: level and mode go in the query: vLLM does not read a body there, and says nothing.
Rule 2: one tag a call: a tag that is not asleep makes the whole call a silent no-op.
Rule 3: `/health` is not here. It is 200 asleep, awake and in between.

Sources: vLLM's release sources; vllm#15483 and PR 34528 (the scheduler is paused from 0.17 on),
vllm#34600 (a wake that failed maps memory twice, before 0.25), vllm#29341 (garbage until the
weights are loaded), vllm#17103 (stale prefixes), docs/features/sleep_mode.md (the staged order).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from tornado_frontdoor.engines.base import (
    NOT_JSON,
    Answer,
    Call,
    EngineKind,
    Role,
    Sample,
    Seen,
    Step,
    StepResult,
)


def _post(path: str, body: str = "") -> Call:
    return Call("POST", path, body)


SLEEP_1 = Step(Role.SLEEP, "sleep_1", 120.0, _post("/sleep?level=1&mode=abort"))
SLEEP_2 = Step(Role.SLEEP, "sleep_2", 120.0, _post("/sleep?level=2&mode=abort"))
SLEEP_1_PLAIN = Step(Role.SLEEP, "sleep_1", 120.0, _post("/sleep?level=1"))
SLEEP_2_PLAIN = Step(Role.SLEEP, "sleep_2", 120.0, _post("/sleep?level=2"))
WAKE = Step(Role.WAKE, "wake_up", 300.0, _post("/wake_up"))
WAKE_WEIGHTS = Step(Role.WAKE_WEIGHTS, "wake_weights", 300.0, _post("/wake_up?tags=weights"))
WAKE_KV_CACHE = Step(Role.WAKE, "wake_kv_cache", 300.0, _post("/wake_up?tags=kv_cache"))
RELOAD = Step(
    Role.LOAD_WEIGHTS,
    "reload_weights",
    900.0,
    _post("/collective_rpc", '{"method": "reload_weights"}'),
)
"""Reads the checkpoint again: minutes from a slow share."""
RESET_PREFIXES = Step(Role.TIDY, "reset_prefix_cache", 30.0, _post("/reset_prefix_cache"))
"""Over when it says `success`, or says nothing (before 0.27)."""

STEPS = (
    *(SLEEP_1, SLEEP_2, SLEEP_1_PLAIN, SLEEP_2_PLAIN),
    *(WAKE, WAKE_WEIGHTS, WAKE_KV_CACHE, RELOAD, RESET_PREFIXES),
)


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


def quirks_of(version: str | None) -> ReleaseQuirks:
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


_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_SLEEP_STATE = "vllm:engine_sleep_state"
_STARTED = "process_start_time_seconds"
_LEVELS = {"awake": 0, "weights_offloaded": 1, "discard_all": 2}


class Vllm(EngineKind):
    """vLLM, started with `VLLM_SERVER_DEV_MODE=1` and `--enable-sleep-mode`."""

    name = "vllm"
    state = Call("GET", "/is_sleeping")
    beside = (Call("GET", "/version"),)
    metrics = Call("GET", "/metrics")
    gauges = frozenset({_RUNNING, _WAITING, _SLEEP_STATE, _STARTED})

    def read_state(
        self, state: bytes, beside: Sequence[bytes], samples: Sequence[Sample]
    ) -> Seen | str:
        """Put together `/is_sleeping`, `/version` and the gauges; see `EngineKind`."""
        try:
            sleeping = bool(json.loads(state)["is_sleeping"])
        except (*NOT_JSON, KeyError, TypeError):
            return "no is_sleeping in its answer"
        sums: dict[str, float] = {}
        level: int | None = None
        for name, labels, value in samples:
            if not isfinite(value):
                continue
            if name != _SLEEP_STATE:
                sums[name] = sums.get(name, 0.0) + value
            elif value == 1:
                level = _LEVELS.get(labels.get("sleep_state", ""), level)
        started = sums.get(_STARTED)
        return Seen(
            sleeping=sleeping,
            level=level,
            running=_whole(sums.get(_RUNNING)),
            waiting=_whole(sums.get(_WAITING)),
            version=_version(beside[0]),
            process=None if started is None else f"{started:.2f}",
        )

    def busy(self, samples: Sequence[Sample]) -> int | None:
        """Return the sum of its gauges, over all its engine cores."""
        wanted = {_RUNNING, _WAITING}
        seen = [sample for sample in samples if sample.name in wanted and isfinite(sample.value)]
        if {sample.name for sample in seen} != wanted:
            return None
        return round(sum(sample.value for sample in seen))

    def result(self, step: Step, answer: Answer) -> StepResult:
        """Return what an answer to a step means."""
        if step.role is Role.TIDY and answer.status == 200 and b"false" in answer.body:
            return StepResult.FAILED  # blocks are still held: it says so with a 200
        return super().result(step, answer)

    def wake_steps(self, version: str | None, level: int) -> tuple[Step, ...]:
        """Return how to wake from level 1, or from level 2, or one that nobody knows."""
        quirks = quirks_of(version)
        reset = (RESET_PREFIXES,) if quirks.resets_prefixes else ()
        if level == 1:
            return (WAKE, *reset)
        if quirks.staged:
            # In any other order the scheduler runs before the weights mean anything (vllm#29341).
            return (WAKE_WEIGHTS, RELOAD, WAKE_KV_CACHE)
        return (WAKE, RELOAD, *reset)

    def sleep_steps(self, version: str | None, level: int, *, asleep: bool) -> tuple[Step, ...]:
        """Return how to put it to sleep, or deeper.

        `/sleep?level=2` on a sleeping engine is a silent no-op, so some of it has to wake first.
        """
        quirks = quirks_of(version)
        if quirks.knows_modes:
            sleep = SLEEP_1 if level == 1 else SLEEP_2
        else:
            sleep = SLEEP_1_PLAIN if level == 1 else SLEEP_2_PLAIN
        if not asleep:
            return (sleep,)
        return (WAKE_WEIGHTS if quirks.sleeps_half_awake else WAKE, sleep)

    def retries_wakes(self, version: str | None) -> bool:
        """Tell whether a wake that failed may be tried again at once."""
        return quirks_of(version).wakes_again

    def sleeps_half_awake(self, version: str | None) -> bool:
        """Tell whether weights alone can be put back to sleep."""
        return quirks_of(version).sleeps_half_awake


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _version(body: bytes) -> str | None:
    try:
        return str(json.loads(body)["version"])
    except (*NOT_JSON, KeyError, TypeError):
        return None


KIND = Vllm()
