"""A bench for the Anthropic surface: questions and engine answers in, official types as judge."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from tornado_frontdoor.core.catalog import Catalog, Target, Traits
from tornado_frontdoor.core.decisions import Outcome, Refusal
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.surfaces.anthropic import AnthropicSurface
from tornado_frontdoor.surfaces.base import (
    DecodedRequest,
    Document,
    Ending,
    Refused,
    SurfaceRequest,
)

MESSAGES = "/llm/v1/messages"
COUNT_TOKENS = "/llm/v1/messages/count_tokens"
EVENT_STREAM = [("Content-Type", "text/event-stream; charset=utf-8")]
JSON = [("Content-Type", "application/json")]
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]

Json = dict[str, Any]

_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
_MESSAGE = TypeAdapter(Message)


def sse(*payloads: dict[str, Any] | str) -> bytes:
    """Frames as vLLM writes them."""
    frames = [p if isinstance(p, str) else json.dumps(p, ensure_ascii=False) for p in payloads]
    return "".join(f"data: {frame}\n\n" for frame in frames).encode("utf-8", "surrogatepass")


def chunk(
    delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any
) -> dict[str, Any]:
    """One chat completion chunk; `usage` goes to the top, everything else into the choice."""
    payload: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m"}
    if "usage" in more:
        payload["usage"] = more.pop("usage")
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish, **more}
    return payload | {"choices": [choice]}


def usage_chunk(prompt: int = 11, completion: int = 7, **details: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, **details}
    return {"id": "chatcmpl-1", "choices": [], "usage": counts}


def call_delta(
    index: int | None = 0,
    call_id: str | None = None,
    name: str | None = None,
    arguments: Any = None,
) -> dict[str, Any]:
    """A delta with one piece of one tool call."""
    function: dict[str, Any] = {}
    if name is not None:
        function["name"] = name
    if arguments is not None:
        function["arguments"] = arguments
    call: dict[str, Any] = {"function": function}
    if index is not None:
        call["index"] = index
    if call_id is not None:
        call |= {"id": call_id, "type": "function"}
    return {"tool_calls": [call]}


def completion(message: dict[str, Any], finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    """One whole chat completion."""
    counts = more.pop("usage", {"prompt_tokens": 11, "completion_tokens": 7})
    message = {"role": "assistant", "content": None, **message}
    choice = {"index": 0, "message": message, "finish_reason": finish, **more}
    return {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": counts}


@dataclass
class Streamed:
    """What a client got of a stream, and how it ended."""

    data: bytes
    ending: Ending
    pieces: list[bytes]

    @property
    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Every event, read by the letter of the wire format; comments are left out."""
        text = self.data.decode("utf-8")
        assert text.endswith("\n\n") or not text
        events = []
        for frame in text.split("\n\n")[:-1]:
            lines = frame.split("\n")
            if lines[0].startswith(":"):
                continue
            assert len(lines) == 2, frame
            assert lines[0].startswith("event: ")
            assert lines[1].startswith("data: ")
            events.append((lines[0][7:], json.loads(lines[1][6:])))
        return events

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]

    @property
    def error(self) -> dict[str, Any]:
        """The error that the stream ended with; nothing may follow it."""
        kind, payload = self.events[-1]
        assert kind == payload["type"] == "error"
        assert "message_stop" not in self.kinds
        assert payload["request_id"] == "req_r1"
        error: dict[str, Any] = payload["error"]
        assert error["message"]
        return error

    def message(self) -> dict[str, Any]:
        """The final message, as the official client puts it together; every event is judged."""
        self._check_grammar()
        snapshot: Any = None
        buffers: dict[int, bytes] = {}
        for kind, payload in self.events:
            if kind == "ping":
                assert payload == {"type": "ping"}
                continue
            event = _EVENT.validate_python(payload)
            snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
        return validated(snapshot.to_dict())

    def _check_grammar(self) -> None:
        events = [event for event in self.events if event[0] != "ping"]
        assert [kind for kind, _ in events[:1]] == ["message_start"]
        assert [kind for kind, _ in events[-2:]] == ["message_delta", "message_stop"]
        assert all(payload["type"] == kind for kind, payload in events)
        index, is_open = -1, False
        for kind, payload in events[1:-2]:
            if kind == "content_block_start":
                index += 1
                assert not is_open
                is_open = True
            elif kind == "content_block_stop":
                assert is_open
                is_open = False
            else:
                assert kind == "content_block_delta"
                assert is_open
                piece = [value for key, value in payload["delta"].items() if key != "type"]
                assert piece != [""], "an empty delta"
            assert payload["index"] == index
        assert not is_open


def validated(message: dict[str, Any]) -> dict[str, Any]:
    """A message in the official form: unknown fields gone, missing optional ones null."""
    for block in message["content"]:  # pydantic's union would take either for the other
        required = {"thinking": {"thinking", "signature"}, "tool_use": {"id", "name", "input"}}
        assert required.get(block["type"], set()) <= set(block)
    official = _MESSAGE.validate_python(message).model_dump()
    for block in official["content"]:
        block.pop("parsed_output", None)
    return official


class Bench:
    """A surface with one model, `reasoning` as the engine calls it, and `claude-*` beside it."""

    def __init__(self) -> None:
        self.surface = AnthropicSurface(529, self._new_id())

    @staticmethod
    def _new_id() -> Callable[[], str]:
        numbers = count(1)
        return lambda: f"{next(numbers):024d}"

    def decode(
        self,
        fields: Mapping[str, Any] | bytes,
        *,
        path: str = MESSAGES,
        headers: Mapping[str, str] | None = None,
        anthropic: Any = "translate",
        **traits: Any,
    ) -> DecodedRequest:
        """Decode a request; ids begin at 1 again."""
        target = Target(
            model="Reasoner",
            served_name="reasoning",
            upstream=UpstreamKey("gpu"),
            aliases=("claude-*",),
            traits=Traits(**traits),
            anthropic=anthropic,
        )
        surface = AnthropicSurface(529, self._new_id())
        body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
        route = surface.route("POST", path)
        call = SurfaceRequest(route, "beta=true", dict(headers or {}), body, "r1")
        return surface.decode(call, Catalog([target]))

    def question(self, **fields: Any) -> dict[str, Any]:
        return {"model": "claude-x", "max_tokens": 100, "messages": HI} | fields

    def sent(self, traits: dict[str, Any] | None = None, /, **fields: Any) -> dict[str, Any]:
        """What the engine is asked for a question."""
        body: dict[str, Any] = json.loads(
            self.decode(self.question(**fields), **(traits or {})).request.body
        )
        return body

    def refusal(self, traits: dict[str, Any] | None = None, /, **fields: Any) -> Refusal:
        """Why a question is refused."""
        with pytest.raises(Refused) as caught:
            self.decode(self.question(**fields), **(traits or {}))
        refusal = caught.value.refusal
        assert refusal.param
        assert refusal.detail.startswith(f"{refusal.param}: ")
        return refusal

    def answer(
        self,
        body: dict[str, Any] | bytes,
        *,
        status: int = 200,
        headers: Iterable[tuple[str, str]] = JSON,
        traits: dict[str, Any] | None = None,
        path: str = MESSAGES,
        anthropic: str = "translate",
        **fields: Any,
    ) -> tuple[Document, Ending]:
        """What the client gets when the engine answers a question with `body`."""
        exchange = self.decode(
            self.question(**fields), path=path, anthropic=anthropic, **(traits or {})
        )
        relay = exchange.relay
        assert relay.head(status, list(headers)) is None
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        assert relay.data(raw[: len(raw) // 2]) == b""
        assert relay.data(raw[len(raw) // 2 :]) == b""
        ending = relay.ending or relay.end()
        assert ending.document is not None
        assert ("request-id", "req_r1") in list(ending.document.headers)
        return ending.document, ending

    def message(self, body: dict[str, Any], **more: Any) -> dict[str, Any]:
        """The message that a client reads from a whole answer, judged by the official type."""
        document, ending = self.answer(body, **more)
        assert (document.status, ending.outcome) == (200, Outcome.SERVED), document
        return validated(json.loads(document.body))

    def stream(
        self,
        *pieces: bytes,
        traits: dict[str, Any] | None = None,
        anthropic: str = "translate",
        **fields: Any,
    ) -> Streamed:
        """What a client gets of a stream that comes in these pieces and then ends."""
        exchange = self.decode(
            self.question(stream=True, **fields), anthropic=anthropic, **(traits or {})
        )
        relay = exchange.relay
        head = relay.head(200, EVENT_STREAM)
        assert head is not None
        out: list[bytes] = []
        for piece in pieces:
            out.append(relay.data(piece))
            if relay.ending is not None:
                break
        ending = relay.ending or relay.end()
        return Streamed(b"".join(out) + ending.data, ending, out)

    def streamed_message(self, *pieces: bytes, **more: Any) -> dict[str, Any]:
        """The message at the end of a stream that was served whole."""
        streamed = self.stream(*pieces, **more)
        assert streamed.ending.outcome is Outcome.SERVED, streamed.data
        return streamed.message()


bench = Bench()

# Questions, in short

PNG: Json = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
}
PNG_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TOOL: Json = {"name": "get", "input_schema": {"type": "object", "properties": {}}}


def text(value: str) -> Json:
    return {"type": "text", "text": value}


def user(*blocks: Json | str) -> Json:
    return {"role": "user", "content": [text(b) if isinstance(b, str) else b for b in blocks]}


def assistant(*blocks: Json | str) -> Json:
    return {**user(*blocks), "role": "assistant"}


def tool_use(call_id: str = "toolu_1", name: str = "get", **more: Any) -> Json:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}} | more


def tool_result(call_id: str = "toolu_1", **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": call_id} | more


def chat(*messages: Json, traits: Json | None = None, **fields: Any) -> list[Json]:
    sent: list[Json] = bench.sent(traits or {}, messages=list(messages), **fields)["messages"]
    return sent


# Streams, in short

DONE = "[DONE]"
ROLE = chunk({"role": "assistant", "content": ""})


def streamed(*payloads: Json | str, **more: Any) -> Json:
    return bench.streamed_message(sse(*payloads), **more)


def blocks(*payloads: Json | str, **more: Any) -> list[Any]:
    """The content, in short: thinking as ('thinking', x), text as x, calls as (name, input)."""
    short: list[Any] = []
    for block in streamed(*payloads, **more)["content"]:
        if block["type"] == "text":
            short.append(block["text"])
        elif block["type"] == "thinking":
            assert block["signature"]
            short.append(("thinking", block["thinking"]))
        else:
            short.append((block["name"], block["input"]))
    return short


def finished(finish: str = "stop", **more: Any) -> list[Json | str]:
    return [chunk({}, finish, **more), usage_chunk(), DONE]
