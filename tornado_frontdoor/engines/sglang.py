"""SGLang with its memory saver: cache and weights are released, and taken back in their order.

Rule 1: SGLang does not tell whether its memory is released, and ends if it is released or resumed
        twice, or asked for a token meanwhile. So it is marked before: the label of its weights,
        which ends with its process, says that what was done last is remembered by us.
Rule 2: a label that is not ours is that of an engine that nobody has put to sleep since it started,
        or that was woken to the end. Its weights mean something, whatever is remembered.
Rule 3: the mark is taken away last, when the weights have been read from disk: resumed memory is
        garbage, and the engine would answer from it.
Rule 4: where nobody knows whether a release happened, it is resumed. If it had not happened, the
        engine ends and starts anew: no answer comes from one that is half awake.

Sources, none of them run: docs/advanced_features/sglang_for_rl.md (the routes, their tags, the
memory saver's flag), python/sglang/srt/managers/scheduler_update_weights_mixin.py and
entrypoints/http_server.py (what they do), PR 7099 (the staged order), issue 6367 (garbage until
weights are read), PR 24123 (a call at the wrong time ends the scheduler).
"""

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

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

MARK = "frontdoor-slept:"
"""Before the label that its weights had."""

_RUNNING = "sglang:num_running_reqs"
_QUEUED = "sglang:num_queue_reqs"


def _post(path: str, **body: object) -> Call:
    return Call("POST", path, json.dumps(body))


def _label(name: str, text: str) -> Step:
    call = _post("/update_weight_version", new_version=text, abort_all_requests=False)
    return Step(Role.TIDY, name, 10.0, call)


RELEASE = Step(
    Role.SLEEP,
    "release_memory",
    120.0,
    _post("/release_memory_occupation", tags=["kv_cache", "weights"]),
)
RESUME_WEIGHTS = Step(
    Role.WAKE_WEIGHTS,
    "resume_weights",
    300.0,
    _post("/resume_memory_occupation", tags=["weights"]),
)
RESUME_KV_CACHE = Step(
    Role.WAKE,
    "resume_kv_cache",
    300.0,
    _post("/resume_memory_occupation", tags=["kv_cache"]),
)


class Sglang(EngineKind):
    """SGLang, started with `--enable-memory-saver`."""

    name = "sglang"
    state = Call("GET", "/server_info")
    """Of the server's parts the scheduler answers last: behind what it is doing."""
    beside = (Call("GET", "/v1/loads"),)
    metrics = Call("GET", "/metrics")
    levels = frozenset({2})
    """Its weights are always read again: resumed memory is empty."""
    gauges = frozenset({_RUNNING, _QUEUED})

    def read_state(
        self, state: bytes, beside: Sequence[bytes], samples: Sequence[Sample]
    ) -> Seen | str:
        """Read the label of its weights, and how many requests it has; see `EngineKind`."""
        told = _object(state)
        label = told.get("weight_version")
        if not isinstance(label, str):
            return "no weight_version in its answer"
        marked = label.startswith(MARK)
        facts = {
            "release": _text(told.get("version")),
            "model": _text(told.get("model_path")),
            "label": label.removeprefix(MARK),
        }
        load = _object(beside[0] if beside else b"").get("aggregate")
        running = _total(load) if isinstance(load, dict) else None
        if running is None:
            running = self.busy(samples)
        return Seen(
            sleeping=None if marked else False,
            level=None if marked else 0,
            running=running,
            waiting=None if running is None else 0,
            version=json.dumps(facts),
            loaded=not marked,
        )

    def busy(self, samples: Sequence[Sample]) -> int | None:
        """Return how many requests it runs and keeps waiting; None: its gauges do not tell."""
        seen = [sample for sample in samples if isfinite(sample.value)]
        if {sample.name for sample in seen} != self.gauges:
            return None
        return round(sum(sample.value for sample in seen))

    def result(self, step: Step, answer: Answer) -> StepResult:
        """Return what an answer to a step means."""
        if step.probes and answer.status == 200:
            told = _object(answer.body)
            if told and told.get("enable_memory_saver") is not True:
                return StepResult.UNSUPPORTED  # a release would release nothing, and say nothing
        return super().result(step, answer)

    def wake_steps(self, version: str | None, level: int) -> tuple[Step, ...]:
        """Return how to have weights in their place, then read, then the cache, then the label."""
        facts = _object((version or "").encode())
        reload = Step(
            Role.LOAD_WEIGHTS,
            "update_weights_from_disk",
            900.0,
            _post(
                "/update_weights_from_disk",
                model_path=facts.get("model") or "",
                abort_all_requests=False,
            ),
        )
        unmark = _label("unmark", str(facts.get("label") or "default"))
        return (RESUME_WEIGHTS, reload, RESUME_KV_CACHE, unmark)

    def sleep_steps(self, version: str | None, level: int, *, asleep: bool) -> tuple[Step, ...]:
        """Return how to mark it and release its memory."""
        facts = _object((version or "").encode())
        return (_label("mark", f"{MARK}{facts.get('label') or 'default'}"), RELEASE)

    def retries_wakes(self, version: str | None) -> bool:
        """Never: what was resumed in part ends when it is resumed again."""
        return False


def _object(body: bytes) -> Mapping[str, Any]:
    """Return a JSON object, or an empty one."""
    try:
        told = json.loads(body)
    except NOT_JSON:
        return {}
    return told if isinstance(told, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _total(load: Mapping[str, Any]) -> int | None:
    running, waiting = load.get("total_running_reqs"), load.get("total_waiting_reqs")
    return running + waiting if isinstance(running, int) and isinstance(waiting, int) else None


KIND = Sglang()
