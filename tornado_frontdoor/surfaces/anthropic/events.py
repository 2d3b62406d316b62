"""The events of a message stream: written so that their grammar cannot be broken.

    message_start  ( ping | block )*  message_delta  message_stop
    block := content_block_start  content_block_delta*  content_block_stop

Blocks are numbered from 0 without gaps and never two are open. A block is opened by its first
content and closed by whatever comes after it; no delta is empty. The text of a delta is put into a
frame whose other parts are built once for each block: this is done for every token of an answer.
"""

from tornado_frontdoor.surfaces.anthropic.fields import Json, encode, encode_text, to_bytes
from tornado_frontdoor.surfaces.anthropic.response import signature

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
COMMENT = b": keep-alive\n\n"

_DELTA = (
    "event: content_block_delta\n"
    'data: {"type":"content_block_delta","index":%d,"delta":{"type":"%s","%s":'
)
_DELTA_END = "}}\n\n"
_DELTA_END_BYTES = _DELTA_END.encode()


def frame(kind: str, payload: Json) -> str:
    """Return one event; clients drop those without an `event:` line."""
    return f"event: {kind}\ndata: {encode({'type': kind, **payload})}\n\n"


class EventWriter:
    """Writes one message. `take` hands out what was written since the last time."""

    __slots__ = (
        "_delta", "_delta_bytes", "_frames", "_hides_thinking", "_index", "_message_id", "_open",
        "started",
    )  # fmt: skip

    def __init__(self, message_id: str, *, hides_thinking: bool) -> None:
        self.started = False
        self._message_id = message_id
        self._hides_thinking = hides_thinking
        self._frames: list[str] = []
        self._index = -1
        self._open: str | None = None
        self._delta = ""
        self._delta_bytes = b""

    def take(self) -> bytes:
        """Return the bytes of the events since the last call."""
        frames = self._frames
        if not frames:
            return b""
        text = frames[0] if len(frames) == 1 else "".join(frames)
        frames.clear()
        return to_bytes(text)

    def start(self, model: str, usage: Json) -> None:
        """Write `message_start`, with every key that strict clients look for."""
        self.started = True
        message: Json = {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "usage": {**usage, "output_tokens": 0, "service_tier": "standard"},
        }
        self._frames.append(frame("message_start", {"message": message}))

    def text(self, text: str) -> None:
        """Write a piece of text (not empty)."""
        if self._open != "text":
            self._start("text", {"type": "text", "text": ""}, "text_delta", "text")
        self._frames.append(self._delta + encode_text(text) + _DELTA_END)

    def thinking(self, text: str) -> None:
        """Write a piece of thinking (not empty), or only that there is some."""
        if self._open != "thinking":
            block = {"type": "thinking", "thinking": "", "signature": ""}
            self._start("thinking", block, "thinking_delta", "thinking")
        if not self._hides_thinking:
            self._frames.append(self._delta + encode_text(text) + _DELTA_END)

    def again(self, kind: str, literal: bytes) -> bytes:
        """Return one more piece of the open block, its text as JSON; nothing: another is open."""
        if self._open != kind or self._frames or (kind == "thinking" and self._hides_thinking):
            return b""
        return self._delta_bytes + literal + _DELTA_END_BYTES

    def tool(self, call_id: str, name: str) -> None:
        """Open a block for a tool call."""
        block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        self._start("tool_use", block, "input_json_delta", "partial_json")

    def arguments(self, piece: str) -> None:
        """Write a piece of the open tool call's arguments (not empty)."""
        self._frames.append(self._delta + encode_text(piece) + _DELTA_END)

    def close(self) -> None:
        """Close the open block, if any; thinking is signed first."""
        if self._open is None:
            return
        if self._open == "thinking":
            delta = {"type": "signature_delta", "signature": signature(self._message_id)}
            payload = {"index": self._index, "delta": delta}
            self._frames.append(frame("content_block_delta", payload))
        self._frames.append(frame("content_block_stop", {"index": self._index}))
        self._open = None

    def finish(self, delta: Json, usage: Json, extra: Json) -> None:
        """Write the end: an answer without any block gets one empty text, as it does unstreamed."""
        if self._index < 0:
            self._start("text", {"type": "text", "text": ""}, "text_delta", "text")
        self.close()
        self._frames.append(frame("message_delta", {"delta": delta, "usage": usage, **extra}))
        self._frames.append(frame("message_stop", {}))

    def _start(self, kind: str, block: Json, delta_type: str, key: str) -> None:
        self.close()
        self._index += 1
        self._open = kind
        self._delta = _DELTA % (self._index, delta_type, key)
        self._delta_bytes = self._delta.encode()
        self._frames.append(
            frame("content_block_start", {"index": self._index, "content_block": block})
        )
