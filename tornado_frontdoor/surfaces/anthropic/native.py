"""Engines that speak Anthropic Messages themselves: frame for frame, with a guard at the end.

The body goes on as it came, with two changes: the model's served name and a clamped `max_tokens`.
Of the answer only what a client keys on is changed (the model's name), and only what tells a whole
message from a broken one is read: vLLM ends an aborted request with a `message_stop` and no stop
reason, and clients take a stream that just ends for a success. Errors get one envelope.
"""

from typing import Any

from tornado_frontdoor.core.catalog import Target
from tornado_frontdoor.surfaces.anthropic.errors import (
    BrokenAnswerError,
    broken,
    in_band_failure,
)
from tornado_frontdoor.surfaces.anthropic.events import frame as event_frame
from tornado_frontdoor.surfaces.anthropic.fields import encode_request, flag_at, to_bytes
from tornado_frontdoor.surfaces.anthropic.request import clamped, read_max_tokens
from tornado_frontdoor.surfaces.anthropic.response import Asked, parsed
from tornado_frontdoor.surfaces.base import Refused
from tornado_frontdoor.surfaces.bodies import JsonBody, replace_model, with_model
from tornado_frontdoor.surfaces.sse import Frame

FORWARDED = ("anthropic-version", "anthropic-beta")


def native_body(body: JsonBody, target: Target, *, counts: bool) -> tuple[bytes, bool]:
    """Return what the engine is sent, and whether it is to stream. Raises Refused."""
    if counts:
        return with_model(body, target.served_name), False
    streams = flag_at(body.fields.get("stream"), "stream")
    max_tokens = read_max_tokens(body.fields)
    least = clamped(max_tokens, target.traits)
    if least == max_tokens:
        return with_model(body, target.served_name), streams
    changed = {**body.fields, "model": target.served_name, "max_tokens": least}
    return encode_request(changed, body), streams


def native_message(body: bytes, asked: Asked) -> bytes:
    """Return an engine's message under the name it was asked by; raises BrokenAnswerError."""
    answer = parsed(body)
    if answer.get("error"):
        raise BrokenAnswerError(in_band_failure(answer["error"]))
    if answer.get("type") != "message":
        raise broken("The engine's answer holds no message")
    if answer.get("stop_reason") is None:
        raise broken("The engine gave the answer up", status=500)
    try:
        return replace_model(body, asked.model)
    except Refused as refused:  # JSON in another encoding than UTF-8
        raise broken("The engine's answer is not UTF-8") from refused


def native_count(body: bytes, asked: Asked) -> bytes:  # noqa: ARG001 - as every translation
    """Return an engine's count as it came; raises BrokenAnswerError."""
    if not isinstance(parsed(body).get("input_tokens"), int):
        raise broken("The engine's answer holds no count", status=404)
    return body


class NativeStream:
    """Passes a stream on; take is true with a `message_stop` that follows a stop reason."""

    def __init__(self, asked: Asked) -> None:
        self.started = False
        self._asked = asked
        self._stop_reason: object = None
        self._stopped = False
        self._frames: list[str] = []

    def written(self) -> bytes:
        """Return the frames passed since the last call."""
        text = "".join(self._frames)
        self._frames.clear()
        return to_bytes(text)

    def again(self, chunk: bytes) -> bytes:  # noqa: ARG002 - the protocol's signature
        """Return nothing: each chunk is to be read."""
        return b""

    def take(self, frame: Frame) -> bool:
        """Take a frame; true: it was the end of the message. Raises BrokenAnswerError."""
        data = frame.data
        if not data or data.strip() == "[DONE]":
            return False  # no part of this dialect, and clients stumble over it
        payload: dict[str, Any] | None = None
        event = frame.event
        if event is None:
            payload = parsed(data)
            kind = payload.get("type")
            event = kind if isinstance(kind, str) and kind.isidentifier() else None
        match event:
            case "message_start":
                self._start(payload or parsed(data))
                return False
            case "message_delta":
                self._stop_reason = _stop_reason_of(payload or parsed(data)) or self._stop_reason
            case "message_stop":
                self._stopped = True
                return True  # written by `end`, once it is sure to be one
            case "error" | None:
                payload = payload or parsed(data)
                raise BrokenAnswerError(in_band_failure(payload.get("error") or payload))
            case _:
                pass
        lines = "".join(f"data: {line}\n" for line in data.split("\n"))
        self._frames.append(f"event: {event}\n{lines}\n")
        return False

    def end(self) -> None:
        """Write `message_stop`. Raises BrokenAnswerError where the message is not whole."""
        if not self._stopped:
            raise broken("The engine ended its stream before the answer did")
        if self._stop_reason is None:
            raise broken("The engine gave the answer up", status=500)
        self._frames.append(event_frame("message_stop", {}))

    def _start(self, payload: dict[str, Any]) -> None:
        self.started = True
        message = payload.get("message")
        if isinstance(message, dict):
            message["model"] = self._asked.model
        self._frames.append(event_frame("message_start", payload))


def _stop_reason_of(payload: dict[str, Any]) -> object:
    delta = payload.get("delta")
    return delta.get("stop_reason") if isinstance(delta, dict) else None
