"""The dialects in which the stand-in generates, in vLLM's form byte for byte where it matters.

An encoder belongs to one answer. `opening`, `chunk`, `closing` and `failing` return the server-sent
events of a stream, each as one `bytes`; `document` returns the whole answer of a plain call.
Compact JSON, one event a chunk, `data: [DONE]` at the end where vLLM sends it.
"""

import json
from collections.abc import Mapping
from functools import cached_property
from json.encoder import encode_basestring
from typing import Any, Protocol

from simulator.standin.requests import Ask, Delta, Script

GARBAGE = "!!!!"
"""What vLLM says on weights that were never loaded (vllm#29341)."""
DONE = b"data: [DONE]\n\n"
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


def dumps(value: object) -> bytes:
    """Return compact UTF-8 JSON, as pydantic writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def error_document(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """Return vLLM's error object."""
    kind = {400: "BadRequestError", 404: "NotFoundError", 503: "Service Unavailable"}
    return {
        "error": {
            "message": message,
            "type": kind.get(status, "InternalServerError"),
            "param": param,
            "code": status,
        }
    }


def usage(ask: Ask, chunks: int) -> dict[str, Any]:
    """Return the token counts of an answer, all its sequences together."""
    completion = chunks * ask.weight
    return {
        "prompt_tokens": ask.prompt_tokens,
        "total_tokens": ask.prompt_tokens + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
    }


def _first(script: Script, *, garbage: bool) -> tuple[str, float]:
    """Return the first token of an answer and its log-probability, however many were asked for."""
    if garbage or not script.count:
        return GARBAGE, -8.5
    return script.delta(0).text, -0.1


class Encoder(Protocol):
    """How one answer is told."""

    def opening(self) -> list[bytes]:
        """Return the events before the first chunk."""
        ...

    def chunk(self, n: int, *, garbage: bool) -> list[bytes]:
        """Return the events of chunk number n."""
        ...

    def closing(self, finish: str, chunks: int) -> list[bytes]:
        """Return the events after the last of `chunks`."""
        ...

    def failing(self, message: str) -> list[bytes]:
        """Return the events with which an engine's death is told."""
        ...

    def document(self, finish: str, *, garbage: bool) -> bytes:
        """Return the whole answer."""
        ...


class _OpenAI:
    """What chat and completions have in common."""

    kind = ""
    prefix = ""

    def __init__(self, ask: Ask, request_id: str, created_s: int) -> None:
        self.ask = ask
        self.id = f"{self.prefix}-{request_id}"
        self.created_s = created_s
        self._head = dumps(self._frame())[:-1]

    def _frame(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": self.kind,
            "created": self.created_s,
            "model": self.ask.model,
        }

    def _event(self, choices: bytes, chunks: int) -> bytes:
        tail = b"}\n\n"
        if self.ask.usage_always:
            tail = b',"usage":%b}\n\n' % dumps(usage(self.ask, chunks))
        return b'data: %b,"choices":%b%b' % (self._head, choices, tail)

    def _ending(self, chunks: int) -> list[bytes]:
        if not self.ask.usage_chunk:
            return [DONE]
        total = dumps(usage(self.ask, chunks))
        return [b'data: %b,"choices":[],"usage":%b}\n\n' % (self._head, total), DONE]

    def failing(self, message: str) -> list[bytes]:
        """Return vLLM's error event, then the end as if nothing were wrong."""
        return [b"data: %b\n\n" % dumps(error_document(500, message)), DONE]


class Chat(_OpenAI):
    """`/v1/chat/completions`."""

    kind = "chat.completion.chunk"
    prefix = "chatcmpl"

    @cached_property
    def _around_text(self) -> list[list[bytes]]:
        """What is before and after the text of a chunk: most of a stream is this, over and over."""
        return [self._choice(n, {"content": ""}).split(b'""', 1) for n in self._choices()]

    def opening(self) -> list[bytes]:
        """Return the role of each choice."""
        return [self._choice(n, {"role": "assistant", "content": ""}) for n in self._choices()]

    def chunk(self, n: int, *, garbage: bool) -> list[bytes]:
        """Return one delta for each choice."""
        delta = self.ask.script.delta(n)
        if garbage:
            delta = Delta("text", GARBAGE)
        if delta.kind == "text" and not self.ask.usage_always:
            text = encode_basestring(delta.text).encode()
            return [text.join(around) for around in self._around_text]
        return [self._choice(index, self._delta(delta), chunks=n + 1) for index in self._choices()]

    def closing(self, finish: str, chunks: int) -> list[bytes]:
        """Return the finish reason of each choice, the usage if wanted, and the end."""
        ends = [self._choice(n, {"content": ""}, finish, chunks) for n in self._choices()]
        return [*ends, *self._ending(chunks)]

    def document(self, finish: str, *, garbage: bool) -> bytes:
        """Return a `chat.completion`."""
        script = self.ask.script
        text = GARBAGE * script.count if garbage else script.joined("text")
        calls = [] if garbage else script.calls()
        message = {
            "role": "assistant",
            "content": text or (None if calls else ""),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "tool_calls": [
                self._call(number, name, script.joined("args", number)) for number, name in calls
            ],
            "reasoning": None if garbage else script.joined("reasoning") or None,
        }
        answer = self._frame() | {"object": "chat.completion"}
        end: dict[str, Any] = {
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": None,
        }
        if self.ask.body.get("logprobs"):
            token, logprob = _first(script, garbage=garbage)
            end["logprobs"] = {"content": [{"token": token, "logprob": logprob, "bytes": None}]}
        answer["choices"] = [{"index": n, "message": message, **end} for n in self._choices()]
        answer |= {"service_tier": None, "system_fingerprint": None}
        answer["usage"] = usage(self.ask, script.count)
        return dumps(answer | {"prompt_logprobs": None, "kv_transfer_params": None})

    def _choices(self) -> range:
        return range(self.ask.weight)

    def _choice(
        self, index: int, delta: Mapping[str, Any], finish: str | None = None, chunks: int = 0
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        choice |= {"stop_reason": None} if finish else {}
        return self._event(dumps([choice]), chunks)

    def _delta(self, delta: Delta) -> Mapping[str, Any]:
        match delta.kind:
            case "text":
                return {"content": delta.text}
            case "reasoning":
                return {"reasoning": delta.text}
            case "call":
                return {"tool_calls": [{**self._call(delta.call, delta.text), "index": delta.call}]}
            case _:
                arguments = {"arguments": delta.text}
                return {"tool_calls": [{"index": delta.call, "function": arguments}]}

    def _call(self, number: int, name: str, arguments: str = "") -> dict[str, Any]:
        function = {"name": name, "arguments": arguments}
        return {"id": f"chatcmpl-tool-{number:016x}", "type": "function", "function": function}


class Completion(_OpenAI):
    """`/v1/completions`."""

    kind = "text_completion"
    prefix = "cmpl"

    def opening(self) -> list[bytes]:
        """Return nothing: completions have no role."""
        return []

    def chunk(self, n: int, *, garbage: bool) -> list[bytes]:
        """Return one text for each choice."""
        text = GARBAGE if garbage else self.ask.script.delta(n).text
        return [self._choice(index, text, None, n + 1) for index in range(self.ask.weight)]

    def closing(self, finish: str, chunks: int) -> list[bytes]:
        """Return the finish reason of each choice, the usage if wanted, and the end."""
        ends = [self._choice(index, "", finish, chunks) for index in range(self.ask.weight)]
        return [*ends, *self._ending(chunks)]

    def document(self, finish: str, *, garbage: bool) -> bytes:
        """Return a `text_completion`."""
        script = self.ask.script
        text = GARBAGE * script.count if garbage else script.joined("text")
        end: dict[str, Any] = {"logprobs": None, "finish_reason": finish, "stop_reason": None}
        if self.ask.body.get("logprobs"):
            token, logprob = _first(script, garbage=garbage)
            end["logprobs"] = {"tokens": [token], "token_logprobs": [logprob]}
        choices = [{"index": n, "text": text, **end} for n in range(self.ask.weight)]
        total = usage(self.ask, script.count)
        return dumps(self._frame() | {"choices": choices, "usage": total})

    def _choice(self, index: int, text: str, finish: str | None, chunks: int) -> bytes:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
        return self._event(dumps([{**choice, "stop_reason": None}]), chunks)
