"""What a caller of the stand-in asks for, read from its body; and the words of the answer.

Rule 1: wrong calls are refused as vLLM refuses them, in its error objects.
Rule 2: `messages: []` is taken, although vLLM refuses it: checks of routing and admission use it.
Rule 3: one token is one byte of a prompt, one chunk of an answer.

`"stand_in": {...}` in a body (or after `stand_in:` as a line of the last message, for callers
behind a translation) sets for this one request:

    hold_s            seconds, or "exp:2", before the answer       tokens  chunks of the answer
    gap_ms            between chunks                               bytes_per_token
    text, reasoning   the answer's words, and those before it      finish_reason
    tool_calls        [{"name": ..., "arguments": "..." or {...}}]
    status, error     an error answer at once, without a slot
    break_after       chunks after which it goes wrong, and
    break_how         "die": the connection is cut · "fail": an error in band, then [DONE] ·
                      "stall": nothing more, for ever · "end": a polite end, no finish_reason
    die_after_chunks, fail_after_chunks    the two in one word
    silent            true: headers at most, then nothing, for ever
"""

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal, NamedTuple

_KNOBS = re.compile(r"^stand_in:(.*)$", re.MULTILINE)

Dialect = Literal[
    "chat", "completions", "responses", "messages", "embeddings", "score", "rerank", "audio"
]
How = Literal["die", "fail", "stall", "end"]


class BadCall(Exception):  # noqa: N818 - an answer, not an error of ours
    """An answer that refuses the call."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """Seconds before an answer: always the same, or exponential about their mean."""

    mean_s: float
    exponential: bool = False

    @classmethod
    def parse(cls, spec: str | float) -> "ServiceTime":
        """Read `2`, `2.5` or `exp:2`; raises ValueError."""
        law, _, mean = str(spec).rpartition(":")
        if law not in {"", "exp"} or not re.fullmatch(r"\d+\.?\d*(e-?\d+)?|\.\d+", mean):
            raise ValueError(f"{spec!r} is not seconds, nor exp:SECONDS")
        if not isfinite(float(mean)):
            raise ValueError(f"{spec!r} is for ever")
        return cls(float(mean), law == "exp")

    def draw(self, rng: random.Random) -> float:
        """Return one hold, in seconds."""
        return rng.expovariate(1 / self.mean_s) if self.exponential and self.mean_s else self.mean_s


class Delta(NamedTuple):
    """One chunk of an answer; `call` numbers the tool call that a `call` or `args` is of."""

    kind: Literal["text", "reasoning", "call", "args"]
    text: str
    call: int = 0


@dataclass(frozen=True, slots=True)
class Script:
    """All chunks of one answer; without `deltas` the numbered words `w0 w1 w2 ...`."""

    count: int
    width: int = 0
    deltas: tuple[Delta, ...] = ()

    def delta(self, n: int) -> Delta:
        """Return chunk number n (from 0)."""
        if self.deltas:
            return self.deltas[n]
        return Delta("text", f"w{n} ".ljust(self.width, "x"))

    def joined(self, kind: str, call: int = 0) -> str:
        """Return the whole text of one kind."""
        chunks = (self.delta(n) for n in range(self.count))
        return "".join(d.text for d in chunks if d.kind == kind and d.call == call)

    def calls(self) -> list[tuple[int, str]]:
        """Return the tool calls that were begun: number and name."""
        return [(d.call, d.text) for d in self.deltas[: self.count] if d.kind == "call"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One call for a sequence, understood."""

    dialect: Dialect
    model: str
    body: Mapping[str, Any]
    stream: bool = False
    weight: int = 1
    """Sequences: `n` times the number of prompts."""
    prompt_tokens: int = 0
    usage_chunk: bool = False
    usage_always: bool = False
    hold: ServiceTime | None = None
    gap_s: float = 0.0
    script: Script = field(default_factory=lambda: Script(0))
    finish: str = "stop"
    break_after: int | None = None
    break_how: How = "die"
    silent: bool = False


class Defaults(NamedTuple):
    """What a request gets that does not say otherwise."""

    models: tuple[str, ...]
    tokens: int
    gap_s: float
    max_model_len: int


def read(dialect: Dialect, raw: bytes, content_type: str, defaults: Defaults) -> Ask:
    """Understand a body; raises BadCall."""
    body = _object(raw, content_type)
    model = _model(body, defaults)
    text = prompt_text(dialect, body)
    _check(body, dialect)
    knobs = _knobs(body)
    if "status" in knobs:
        raise BadCall(int(knobs["status"]), str(knobs.get("error", "the stand-in was told to")))
    prompt_tokens = len(text.encode())
    _check_length(body, prompt_tokens, defaults)
    script, finish = _script(body, knobs, defaults)
    options = body.get("stream_options") or {}
    break_after, break_how = _break(knobs)
    return Ask(
        dialect=dialect,
        model=model,
        body=body,
        stream=bool(body.get("stream")),
        weight=_weight(body, dialect),
        prompt_tokens=prompt_tokens,
        usage_chunk=bool(options.get("include_usage")),
        usage_always=bool(options.get("continuous_usage_stats")),
        hold=ServiceTime.parse(knobs["hold_s"]) if "hold_s" in knobs else None,
        gap_s=float(knobs["gap_ms"]) / 1000 if "gap_ms" in knobs else defaults.gap_s,
        script=script,
        finish=finish,
        break_after=break_after,
        break_how=break_how,
        silent=bool(knobs.get("silent")),
    )


def prompt_text(dialect: Dialect, body: Mapping[str, Any]) -> str:
    """Return all text that the engine would read."""
    if dialect in {"chat", "messages"}:
        parts = [_text(body.get("system", ""))]
        parts += [_text(message.get("content", "")) for message in body.get("messages") or ()]
        if body.get("tools"):
            parts.append(json.dumps(body["tools"]))
        return "\n".join(part for part in parts if part)
    for key in ("prompt", "input", "query", "text_1", "queries"):
        if key in body:
            rest = body.get("documents") or body.get("text_2") or ""
            return _text(body[key]) + _text(rest)
    return ""


def _text(content: object) -> str:
    match content:
        case str():
            return content
        case {"text": str(text)}:
            return text
        case {"content": inner}:
            return _text(inner)
        case list():
            return "\n".join(filter(None, map(_text, content)))
        case _:
            return ""


def _object(raw: bytes, content_type: str) -> dict[str, Any]:
    if content_type.partition(";")[0].strip() != "application/json":
        raise BadCall(400, "Unsupported Media Type: Only 'application/json' is allowed")
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise BadCall(400, f"JSON decode error: {error}") from None
    if not isinstance(body, dict):
        raise BadCall(400, "Input should be a valid dictionary")
    return body


def _model(body: Mapping[str, Any], defaults: Defaults) -> str:
    model = body.get("model") or defaults.models[0]
    if model not in defaults.models:
        raise BadCall(404, f"The model `{model}` does not exist.", "model")
    return str(model)


def _knobs(body: Mapping[str, Any]) -> Mapping[str, Any]:
    knobs = body.get("stand_in")
    said = body.get("messages") or body.get("input")
    if knobs is None and isinstance(said, (str, list)):
        told = _KNOBS.search(_text(said if isinstance(said, str) else said[-1:]))
        try:
            knobs = json.loads(told[1]) if told else {}
        except ValueError as error:
            raise BadCall(400, f"stand_in: {error}") from None
    return knobs if isinstance(knobs, dict) else {}


def _check(body: Mapping[str, Any], dialect: Dialect) -> None:
    if dialect in {"chat", "messages"} and not isinstance(body.get("messages"), list):
        raise BadCall(400, "Field required", "messages")
    if dialect == "messages" and not isinstance(body.get("max_tokens"), int):
        raise BadCall(400, "Field required", "max_tokens")
    if dialect == "completions" and "prompt" not in body:
        raise BadCall(400, "Field required", "prompt")
    if body.get("stream_options") and not body.get("stream"):
        raise BadCall(400, "Stream options can only be defined when `stream=True`.")
    if dialect == "chat" and body.get("tools") == []:
        raise BadCall(400, "`tools` must not be an empty array.", "tools")


def _check_length(body: Mapping[str, Any], prompt_tokens: int, defaults: Defaults) -> None:
    limit, asked = defaults.max_model_len, _max_tokens(body)
    if asked is not None and asked > limit:
        raise BadCall(
            400, f"max_tokens={asked} cannot be greater than max_model_len={limit}", "max_tokens"
        )
    if prompt_tokens >= limit:
        raise BadCall(
            400,
            f"This model's maximum context length is {limit} tokens. However, you requested "
            f"{asked or 0} output tokens and your prompt contains at least {prompt_tokens} input "
            "tokens. Please reduce the length of the input prompt.",
            "input_tokens",
        )


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    for key in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        if isinstance(body.get(key), int):
            return int(body[key])
    return None


def _weight(body: Mapping[str, Any], dialect: Dialect) -> int:
    n = body.get("n") or 1
    prompt = body.get("prompt")
    many = dialect == "completions" and isinstance(prompt, list) and prompt
    # A list of numbers is one prompt, already in tokens.
    prompts = len(prompt) if many and prompt and not isinstance(prompt[0], int) else 1
    return int(n) * prompts


def _break(knobs: Mapping[str, Any]) -> tuple[int | None, How]:
    for how in ("die", "fail"):
        if f"{how}_after_chunks" in knobs:
            return int(knobs[f"{how}_after_chunks"]), how
    if "break_after" in knobs or "break_how" in knobs:
        return int(knobs.get("break_after", 0)), knobs.get("break_how", "die")
    return None, "die"


def _script(
    body: Mapping[str, Any], knobs: Mapping[str, Any], defaults: Defaults
) -> tuple[Script, str]:
    """Return the chunks of the answer, cut at `max_tokens`, and how it finishes."""
    deltas = _deltas(knobs)
    count = len(deltas) if deltas else int(knobs.get("tokens", defaults.tokens))
    script = Script(count, int(knobs.get("bytes_per_token", 0)), deltas)
    finish = "tool_calls" if any(delta.kind == "call" for delta in deltas) else "stop"
    limit = _max_tokens(body)
    if limit is not None and limit < count:
        script, finish = Script(limit, script.width, deltas[:limit]), "length"
    return script, str(knobs.get("finish_reason", finish))


def _deltas(knobs: Mapping[str, Any]) -> tuple[Delta, ...]:
    deltas = [Delta("reasoning", word) for word in _words(knobs.get("reasoning", ""))]
    deltas += [Delta("text", word) for word in _words(knobs.get("text", ""), knobs.get("tokens"))]
    for number, call in enumerate(knobs.get("tool_calls") or ()):
        arguments = call.get("arguments", "{}")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments)
        deltas.append(Delta("call", call["name"], number))
        half = (len(arguments) + 1) // 2
        chunks = filter(None, (arguments[:half], arguments[half:]))
        deltas += [Delta("args", chunk, number) for chunk in chunks]
    return tuple(deltas)


def _words(text: str, chunks: int | None = None) -> list[str]:
    if chunks:
        size = -(-len(text) // chunks)
        return [text[at : at + size] for at in range(0, len(text), size or 1)]
    return re.findall(r"\S+\s*|\s+", text)
