"""What a kind of engine is: what it is asked, in which order, and how its answers are read. Pure.

A kind is one module of this package that has a `KIND`; `engine = "NAME"` in the configuration
chooses it. The wake machine knows steps by their role alone; a kind says what each of them is on
the wire, and the driver carries out what the kind says.

Rule 1: a sequence that wakes may be begun again from its top after a crash at any point.
Rule 2: a kind gives only the steps that change something. What surrounds them is the machine's:
        that an engine is idle before it is put to sleep, and what proves it asleep or awake.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

NOT_JSON = (ValueError, RecursionError)
"""What reading JSON of an engine may raise: it is none, or nested more deeply than can be read."""


class Role(Enum):
    """What a step is for, in no engine's words."""

    PROBE = "probe"
    """How is it?"""
    PROBE_IDLE = "probe_idle"
    """It has nothing to do, for anybody."""
    VERIFY_ASLEEP = "verify_asleep"
    VERIFY_AWAKE = "verify_awake"
    SLEEP = "sleep"
    """Puts it to sleep at the level of the transition."""
    WAKE = "wake"
    """Undoes a sleep, or the part of it that is still left."""
    WAKE_WEIGHTS = "wake_weights"
    """Makes room for the weights, and leaves the rest asleep."""
    LOAD_WEIGHTS = "load_weights"
    """Fills that room: before it, what the engine would answer is garbage."""
    TIDY = "tidy"
    """Drops what a sleep has made stale."""
    CANARY = "canary"
    """A request for one token, at the path and for the model of the configuration."""


PROBES = frozenset({Role.PROBE, Role.PROBE_IDLE, Role.VERIFY_ASLEEP, Role.VERIFY_AWAKE})
FILLS_MEMORY = frozenset({Role.WAKE, Role.WAKE_WEIGHTS, Role.LOAD_WEIGHTS})


class Call(NamedTuple):
    """One HTTP call to an engine."""

    method: str
    path: str
    """With its query."""
    body: str = ""
    """JSON; empty: none is sent."""


class ProcessCall(Enum):
    """What is done with an engine's process, by the operator's commands or by us."""

    START = "start"
    """Over when it is ready."""
    STOP = "stop"
    """Over when nobody answers any more."""


STOPPED = 3
"""The level of an engine whose process was ended."""


class Step(NamedTuple):
    """One step towards an engine: its role, its name in `wake_step`, its call, its time limit.

    Probes and the canary have no call of their own: those of the kind are meant.
    """

    role: Role
    label: str
    timeout_s: float
    call: Call | ProcessCall | None = None

    @property
    def probes(self) -> bool:
        """Whether it only asks how the engine is."""
        return self.role in PROBES

    @property
    def changes(self) -> bool:
        """Whether it changes something in the engine."""
        return self.role not in PROBES and self.role is not Role.CANARY


PROBE = Step(Role.PROBE, "probe", 2.0)
PROBE_IDLE = Step(Role.PROBE_IDLE, "probe_idle", 2.0)
VERIFY_ASLEEP = Step(Role.VERIFY_ASLEEP, "verify_asleep", 5.0)
VERIFY_AWAKE = Step(Role.VERIFY_AWAKE, "verify_awake", 5.0)
PROBE_STEPS = (PROBE, PROBE_IDLE, VERIFY_ASLEEP, VERIFY_AWAKE)
CANARY = Step(Role.CANARY, "canary", 10.0)
"""Asked again after a probe, see `core/wake/sequence.py`: this is no limit for the first token."""


class StepResult(Enum):
    """What came of a step."""

    DONE = "done"
    FAILED = "failed"
    """It was answered, and not with success."""
    UNSUPPORTED = "unsupported"
    """The engine has no such thing: 404. For a canary: it cannot be asked this way."""
    BUSY = "busy"
    """A probe: it says itself that what it was asked for is still under way."""
    NO_MEMORY = "ran out of memory"
    """A step that wakes: the engine says that its GPU is full."""
    TIMED_OUT = "timed out"
    """No answer within the limit. The engine may yet carry it out."""
    LOST = "lost"
    """Refused, reset, or cut off: nobody is there."""


class Seen(NamedTuple):
    """What a probe that was answered saw; None: the engine does not tell."""

    sleeping: bool | None
    """None: what was done to it last is remembered, and counts."""
    level: int | None = None
    """How deep: 0 awake, 1 its weights are in the host's memory, 2 they must be read again.

    Level 3, stopped, is seen by nobody's answering.
    """
    running: int | None = None
    waiting: int | None = None
    version: str | None = None
    """Its release, and whatever else its steps depend on."""
    process: str | None = None
    """Anything that differs between two starts of the engine, e.g. its start time."""
    loaded: bool = False
    """Whether it tells that its weights mean something; False: what was done to it counts."""


class FirstToken(NamedTuple):
    """What a canary was answered."""

    text: str
    logprob: float | None = None
    """Its log-probability. Of an embedding, which has no text, its first component."""


class Report(NamedTuple):
    """What came of the `Perform` of the same number. `seen` is for a probe that is DONE."""

    number: int
    ending: StepResult
    seen: Seen | None = None
    detail: str = ""
    """For a person: the status, the error."""
    token: FirstToken | None = None
    """Of a canary that is DONE; None: its answer does not tell."""


class Answer(Protocol):
    """An HTTP answer, as far as a kind reads it."""

    @property
    def status(self) -> int:
        """Its status."""
        ...

    @property
    def body(self) -> bytes:
        """All of its body."""
        ...


class Sample(NamedTuple):
    """One sample of an engine's metrics."""

    name: str
    labels: Mapping[str, str]
    value: float


_FULL = ("out of memory", "outofmemory", "is less than desired gpu memory utilization")


def tells_of_full_memory(text: str) -> bool:
    """Tell whether an error, or the end of a log, says that a GPU is full.

    In the words of CUDA and PyTorch, which engines pass on (llama.cpp's `cudaMalloc failed: out of
    memory`, vLLM's sleep mode `CUDA Error: out of memory`), and of vLLM's check before it starts.
    """
    lowered = text.lower()
    return any(words in lowered for words in _FULL)


class EngineKind(ABC):
    """One kind of engine. `version` is what the engine last told; None: it has not told any."""

    name: str
    """As in `engine = "…"`."""
    state: Call
    """Tells whether it sleeps; answered only when no transition is under way."""
    beside: tuple[Call, ...] = ()
    """What else is asked at each probe; answered at once, or it is done without."""
    metrics: Call | None = None
    """Where its gauges are, in Prometheus' text format."""
    levels: frozenset[int] = frozenset({1, 2})
    """How deep it can be put to sleep."""
    sleep_looks: int = 2
    """How often it is looked, a second apart, whether a sleep that was answered has come true."""
    stops: bool = False
    """Whether it can be started: then nobody's answering means that it is stopped."""
    loads_afresh: bool = False
    """Whether a wake loads it as a start does, so that its answers are those of a good one."""
    gauges: frozenset[str] = frozenset()
    """Those that `read_state` wants to see: how many requests it runs, how many wait in it, ..."""

    @abstractmethod
    def read_state(
        self, state: bytes, beside: Sequence[bytes], samples: Sequence[Sample]
    ) -> Seen | str:
        """Put together what a probe brought, or say what is wrong with it.

        `state` answered with success; of `beside` an empty one says nothing.
        """

    @abstractmethod
    def wake_steps(self, version: str | None, level: int) -> tuple[Step, ...]:
        """Return how to wake from a level; 2 stands for one that nobody knows, too."""

    @abstractmethod
    def sleep_steps(self, version: str | None, level: int, *, asleep: bool) -> tuple[Step, ...]:
        """Return how to put it to sleep; `asleep`: it sleeps at level 1 and must go deeper."""

    def busy(self, samples: Sequence[Sample]) -> int | None:
        """Return how many sequences it runs and keeps waiting; None: its gauges do not tell."""
        return None

    def result(self, step: Step, answer: Answer) -> StepResult:
        """Return what an answer to a step means."""
        if answer.status in (404, 405, 501):
            return StepResult.UNSUPPORTED
        if answer.status == 200:
            return StepResult.DONE
        text = answer.body.decode("utf-8", "replace")
        full = step.role in FILLS_MEMORY and tells_of_full_memory(text)
        return StepResult.NO_MEMORY if full else StepResult.FAILED

    def tells_it_sleeps(self, answer: Answer) -> bool:
        """Tell whether a request was refused as the engine, or its model, is not awake."""
        return False

    def at(self, ready_path: str) -> "EngineKind":
        """Return the kind for an engine that tells at that path when it is ready."""
        return self

    def serving(self, model: str) -> "EngineKind":
        """Return the kind for an engine of which the model of that name is meant.

        For engines that are told which of their models to load; the others need not know.
        """
        return self

    def retries_wakes(self, version: str | None) -> bool:
        """Tell whether a step that wakes may be tried again after it failed."""
        return True

    def sleeps_half_awake(self, version: str | None) -> bool:
        """Tell whether it can be put back to sleep after `WAKE_WEIGHTS` alone."""
        return False

    def canary(self, path: str, model: str) -> Call:
        """Return a request for one token: by OpenAI's API, which most engines speak."""
        return Call("POST", path, json.dumps({"model": model, **CANARY_BODIES[path]}))


CANARY_BODIES: Mapping[str, Mapping[str, Any]] = {
    "/v1/completions": {"prompt": "1 2 3", "max_tokens": 1, "temperature": 0, "logprobs": 1},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "1 2 3"}],
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": True,
    },
    "/v1/embeddings": {"input": "1 2 3"},
}


def without_logprobs(call: Call) -> Call | None:
    """Return a canary for an engine that does not know of log-probabilities; None: it has none."""
    body = json.loads(call.body)
    if body.pop("logprobs", None) is None:
        return None
    return call._replace(body=json.dumps(body))


def first_token(body: bytes) -> FirstToken | None:
    """Read the answer to a canary, in the forms of OpenAI's API; None: it has no token."""
    try:
        told = json.loads(body)
        if told.get("object") == "list":
            return _number_of(told["data"][0]["embedding"])
        choice = told["choices"][0]
        logprobs = choice.get("logprobs") or {}
        if content := logprobs.get("content"):  # a chat's, and all of llama.cpp's
            return FirstToken(str(content[0]["token"]), float(content[0]["logprob"]))
        if tokens := logprobs.get("tokens"):
            return FirstToken(str(tokens[0]), float(logprobs["token_logprobs"][0]))
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        return FirstToken(text) if isinstance(text, str) and text else None
    except (*NOT_JSON, KeyError, TypeError, IndexError, AttributeError):
        return None


def _number_of(embedding: Sequence[float]) -> FirstToken:
    return FirstToken("", float(embedding[0]))
