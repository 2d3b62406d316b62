"""llama.cpp's llama-server as a router: it loads and unloads a model by its name, and tells which.

Rule 1: a router loads and unloads in its own time: its answer says that it has begun, and only
        `/models` tells the end. A second load of one that loads or is loaded is a 400.
Rule 2: what is asked of a model names it in the query, with `autoload=false`: a router that loads
        on demand would load the model because somebody looked at it.
Rule 3: unloading cuts off whoever streams, after 10 s. So it is asked first what it runs, and one
        that does not tell is left alone.

A llama-server that was started with its model (`-m`) has no such routes, and tells no status: it
cannot sleep, except as a `process`.

Sources: llama.cpp's tools/server/README.md ("Using multiple models"), and a real router, asked.
"""

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any
from urllib.parse import quote

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

_PROCESSING = "llamacpp:requests_processing"
_DEFERRED = "llamacpp:requests_deferred"
_READY = ("loaded", "sleeping")
"""A model that went to sleep by `--sleep-idle-seconds` comes back by itself for a request."""
_HAPPENED = {Role.WAKE: b"already running", Role.SLEEP: b"not running"}
"""What is said, with a 400, where a step would lead to what is the case already."""


class LlamaCpp(EngineKind):
    """One model of a router; `model` is its name there, or one of its aliases."""

    name = "llama.cpp"
    state = Call("GET", "/models")
    loads_afresh = True
    levels = frozenset({2})
    """Unloaded, it takes nothing of the GPU nor of the host: its file is read again."""
    gauges = frozenset({_PROCESSING, _DEFERRED})
    sleep_looks = 30
    """`loaded` until its process has ended, which is killed when it takes more than 10 s."""

    def __init__(self, model: str = "") -> None:
        self._model = model
        asked = f"?model={quote(model, safe='')}&autoload=false"
        self.beside = (Call("GET", f"/slots{asked}"),)
        self.metrics = Call("GET", f"/metrics{asked}")
        body = json.dumps({"model": model})
        self._load = Step(Role.WAKE, "load", 30.0, Call("POST", "/models/load", body))
        self._unload = Step(Role.SLEEP, "unload", 30.0, Call("POST", "/models/unload", body))

    def serving(self, model: str) -> EngineKind:
        """Return the kind for that model of a router."""
        return LlamaCpp(model)

    def read_state(
        self, state: bytes, beside: Sequence[bytes], samples: Sequence[Sample]
    ) -> Seen | str:
        """Find the model in the router's list; see `EngineKind`."""
        models = _models(state)
        if models is None:
            return "its answer is no list of models"
        status = _status_of(self._model, models)
        if status is None:
            names = ", ".join(str(model.get("id")) for model in models) or "none"
            return f"it has no model {self._model!r}; it has: {names}"
        if status not in _READY:
            return Seen(sleeping=True, level=2, running=0, waiting=0)
        if status == "sleeping":
            return Seen(sleeping=False, level=0, running=0, waiting=0, loaded=True)
        running = _processing(beside[0] if beside else b"")
        if running is None:
            running = self.busy(samples)
        waiting = None if running is None else 0
        return Seen(sleeping=False, level=0, running=running, waiting=waiting, loaded=True)

    def wake_steps(self, version: str | None, level: int) -> tuple[Step, ...]:
        """Return how to have it loaded: the probe after that waits until it is."""
        return (self._load,)

    def sleep_steps(self, version: str | None, level: int, *, asleep: bool) -> tuple[Step, ...]:
        """Return how to have it unloaded."""
        return (self._unload,)

    def busy(self, samples: Sequence[Sample]) -> int | None:
        """Return how many requests it processes and keeps waiting; None: its gauges do not tell."""
        found = {name: value for name, _, value in samples if isfinite(value)}
        return round(sum(found.values())) if found.keys() >= self.gauges else None

    def tells_it_sleeps(self, answer: Answer) -> bool:
        """Tell it of a router that does not load on demand: somebody has unloaded the model."""
        return answer.status == 400 and b"model is not loaded" in answer.body

    def result(self, step: Step, answer: Answer) -> StepResult:
        """Return what an answer to a step means."""
        if step.probes and answer.status == 200:
            models = _models(answer.body)
            if models and not any("status" in model for model in models):
                return StepResult.UNSUPPORTED
            if step.role is Role.VERIFY_AWAKE and _status_of(self._model, models) == "loading":
                return StepResult.BUSY
        said = _HAPPENED.get(step.role)
        if said is not None and answer.status == 400 and said in answer.body:
            return StepResult.DONE
        if step.changes and answer.status == 404:
            return StepResult.FAILED  # it is the model that it does not know, not the route
        return super().result(step, answer)


def _models(body: bytes) -> Sequence[Mapping[str, Any]] | None:
    """Return the models of a list; None: it is none."""
    try:
        models = json.loads(body)["data"]
    except (*NOT_JSON, KeyError, TypeError):
        return None
    if not isinstance(models, list) or not all(isinstance(model, dict) for model in models):
        return None
    return models


def _status_of(name: str, models: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Return what is said of a model; None: it is not there."""
    for model in models or ():
        aliases, status = model.get("aliases"), model.get("status")
        named = name == model.get("id") or (isinstance(aliases, list) and name in aliases)
        if named and isinstance(status, dict):
            return str(status.get("value"))
    return None


def _processing(slots: bytes) -> int | None:
    """Return how many slots are at work: while one is free, nobody waits for one."""
    try:
        return sum(bool(slot["is_processing"]) for slot in json.loads(slots))
    except (*NOT_JSON, KeyError, TypeError):
        return None


KIND = LlamaCpp()
