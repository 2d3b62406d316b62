"""The two dialects whose streams name their events: Anthropic's messages, OpenAI's responses.

The basics of what vLLM sends for them: text and tool use, and its habits at bad ends (an aborted
message ends with `stop_reason: null`, as if all were well).
"""

import json
from typing import Any

from simulator.standin.encoders import GARBAGE, dumps, usage
from simulator.standin.requests import Ask

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def _event(name: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), dumps({"type": name, **fields}))


class Messages:
    """`/v1/messages`, vLLM's own."""

    def __init__(self, ask: Ask, request_id: str, created_s: int) -> None:  # noqa: ARG002 - no date
        self.ask = ask
        self.id = f"chatcmpl-{request_id}"
        self._open: tuple[str, int] | None = None
        self._index = -1

    def opening(self) -> list[bytes]:
        """Return `message_start`."""
        return [_event("message_start", message=self._message([], None, 0))]

    def chunk(self, n: int, *, garbage: bool) -> list[bytes]:
        """Return a delta, and the change of block before it where there is one."""
        delta = self.ask.script.delta(n)
        kind, text = ("text", GARBAGE) if garbage else (delta.kind, delta.text)
        if kind == "call":
            block = {"type": "tool_use", "id": f"toolu_{delta.call}", "name": text, "input": {}}
            return self._begin(("args", delta.call), block)
        head: list[bytes] = []
        if self._open != (kind, delta.call):
            name = "text" if kind == "text" else "thinking"
            head = self._begin((kind, delta.call), {"type": name, name: ""})
        change = {
            "text": {"type": "text_delta", "text": text},
            "reasoning": {"type": "thinking_delta", "thinking": text},
            "args": {"type": "input_json_delta", "partial_json": text},
        }[kind]
        return [*head, _event("content_block_delta", index=self._index, delta=change)]

    def closing(self, finish: str, chunks: int) -> list[bytes]:
        """Return the end of the block, `message_delta` and `message_stop`."""
        delta = {"stop_reason": _STOP_REASONS.get(finish), "stop_sequence": None}
        tokens = {"input_tokens": self.ask.prompt_tokens, "output_tokens": chunks}
        ends = [_event("message_delta", delta=delta, usage=tokens), _event("message_stop")]
        return [*self._end(), *ends]

    def failing(self, message: str) -> list[bytes]:
        """Return an error event."""
        return [_event("error", error={"type": "internal_error", "message": message})]

    def document(self, finish: str, *, garbage: bool) -> bytes:
        """Return a `message`."""
        script = self.ask.script
        blocks: list[dict[str, Any]] = []
        if garbage:
            blocks.append({"type": "text", "text": GARBAGE * script.count})
        else:
            if thinking := script.joined("reasoning"):
                blocks.append({"type": "thinking", "thinking": thinking})
            if text := script.joined("text"):
                blocks.append({"type": "text", "text": text})
            blocks += [self._tool(number, name) for number, name in script.calls()]
        return dumps(self._message(blocks, _STOP_REASONS.get(finish), script.count))

    def _tool(self, number: int, name: str) -> dict[str, Any]:
        arguments = json.loads(self.ask.script.joined("args", number) or "{}")
        return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": arguments}

    def _message(self, content: list[Any], stop: str | None, chunks: int) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.ask.model,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {"input_tokens": self.ask.prompt_tokens, "output_tokens": chunks},
        }

    def _begin(self, key: tuple[str, int], block: dict[str, Any]) -> list[bytes]:
        ended = self._end()
        self._open = key
        self._index += 1
        return [*ended, _event("content_block_start", index=self._index, content_block=block)]

    def _end(self) -> list[bytes]:
        if self._open is None:
            return []
        self._open = None
        return [_event("content_block_stop", index=self._index)]


class Responses:
    """`/v1/responses`: one message of text."""

    def __init__(self, ask: Ask, request_id: str, created_s: int) -> None:
        self.ask = ask
        self.id = f"resp_{request_id}"
        self.item = f"msg_{request_id}"
        self.created_s = created_s
        self._sequence = 0
        self._told: list[str] = []

    def opening(self) -> list[bytes]:
        """Return what comes before the text."""
        empty = self._response("in_progress", [], None)
        item = {"id": self.item, "type": "message", "role": "assistant", "content": []}
        return [
            self._event("response.created", response=empty),
            self._event("response.in_progress", response=empty),
            self._event(
                "response.output_item.added",
                output_index=0,
                item={**item, "status": "in_progress"},
            ),
            self._event("response.content_part.added", **self._place(), part=self._part("")),
        ]

    def chunk(self, n: int, *, garbage: bool) -> list[bytes]:
        """Return one text delta."""
        self._told.append(GARBAGE if garbage else self.ask.script.delta(n).text)
        place = self._place()
        name = "response.output_text.delta"
        return [self._event(name, **place, delta=self._told[-1], logprobs=[])]

    def closing(self, finish: str, chunks: int) -> list[bytes]:
        """Return the ends of part, item and response."""
        text = "".join(self._told)
        place = self._place()
        output = self._output(text)
        ended = self._response(_status(finish), output, chunks)
        name = "response.completed" if _status(finish) == "completed" else "response.incomplete"
        return [
            self._event("response.output_text.done", **place, text=text, logprobs=[]),
            self._event("response.content_part.done", **place, part=self._part(text)),
            self._event("response.output_item.done", output_index=0, item=output[0]),
            self._event(name, response=ended),
        ]

    def failing(self, message: str) -> list[bytes]:
        """Return an error event."""
        return [self._event("error", code="500", message=message, param=None)]

    def document(self, finish: str, *, garbage: bool) -> bytes:
        """Return a `response`."""
        script = self.ask.script
        text = GARBAGE * script.count if garbage else script.joined("text")
        return dumps(self._response(_status(finish), self._output(text), script.count))

    def _event(self, name: str, **fields: Any) -> bytes:
        self._sequence += 1
        return _event(name, sequence_number=self._sequence - 1, **fields)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.item, "output_index": 0, "content_index": 0}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}

    def _output(self, text: str) -> list[dict[str, Any]]:
        item = {"id": self.item, "type": "message", "role": "assistant", "status": "completed"}
        return [{**item, "content": [self._part(text)]}]

    def _response(self, status: str, output: list[Any], chunks: int | None) -> dict[str, Any]:
        total = None if chunks is None else usage(self.ask, chunks)
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_s,
            "status": status,
            "model": self.ask.model,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": total
            and {
                "input_tokens": total["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": total["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": total["total_tokens"],
            },
        }


def _status(finish: str) -> str:
    return "completed" if finish in {"stop", "tool_calls"} else "incomplete"
