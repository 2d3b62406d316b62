"""A streamed answer: chat completion chunks in, message events out.

What is open decides what a piece of the answer does:

    open        | reasoning           | text                | a new call     | arguments
    ------------+---------------------+---------------------+----------------+---------------------
    nothing     | opens thinking      | opens text          | becomes *the*  | -
    thinking    | goes on             | closes, opens text  | closes, *the*  | -
    text        | closes, opens th.   | goes on             | closes, *the*  | -
    a call      | is held             | is held             | waits          | go on, or are kept

Chat chunks may mix calls by index, Anthropic's blocks may not: one call is *the* call, whose
arguments stream; others wait until its arguments are a whole JSON object, or the answer ends. What
is held comes after the calls; held white space is dropped, as engines put it between two calls.

The end is written only at the end, since usage may come after the finish reason.
"""

from collections import deque

from tornado_frontdoor.surfaces.anthropic.errors import (
    BrokenAnswerError,
    broken,
    in_band_failure,
)
from tornado_frontdoor.surfaces.anthropic.events import EventWriter
from tornado_frontdoor.surfaces.anthropic.fields import Json, encode
from tornado_frontdoor.surfaces.anthropic.pieces import read_piece
from tornado_frontdoor.surfaces.anthropic.repeats import Repeats
from tornado_frontdoor.surfaces.anthropic.response import (
    Asked,
    arguments_of,
    first_choice,
    is_object,
    matched_stop,
    parsed,
    reasoning_of,
    stop,
    text_of,
    tool_input,
    usage,
)
from tornado_frontdoor.surfaces.sse import Frame

_DONE = "[DONE]"


class _ToolCall:
    """One tool call while its pieces come."""

    __slots__ = ("done", "has_own_id", "id", "name", "opened", "pieces")

    def __init__(self, call_id: str, name: str, *, has_own_id: bool) -> None:
        self.id = call_id
        self.name = name
        self.has_own_id = has_own_id
        self.pieces: list[str] = []
        self.opened = False
        self.done = False

    def is_whole(self) -> bool:
        """Tell whether nothing more can come; the look at the last brace saves the parsing."""
        if not self.pieces or not self.pieces[-1].rstrip().endswith("}"):
            return False
        return is_object("".join(self.pieces))


class MessageStream:
    """Translates one stream. Feed frames until `take` is true or they end, then `end`."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._writer = EventWriter(f"msg_{asked.new_id()}", hides_thinking=asked.hides_thinking)
        self._usage: object = None
        self._finish: str | None = None
        self._matched: str | None = None
        self._refused = False
        self._calls: list[_ToolCall] = []
        self._by_index: dict[int, _ToolCall] = {}
        self._open: _ToolCall | None = None  # *the* call
        self._waiting: deque[_ToolCall] = deque()
        self._held_thinking: list[str] = []
        self._held_text: list[str] = []
        self._repeats = Repeats()

    @property
    def started(self) -> bool:
        """Whether `message_start` was written."""
        return self._writer.started

    def written(self) -> bytes:
        """Return the events written since the last call."""
        return self._writer.take()

    def again(self, chunk: bytes) -> bytes:
        """Return the event for a chunk that goes on as the last one; nothing: it is to be read."""
        if self._calls:
            return b""
        text = self._repeats.text_in(chunk)
        return self._writer.again(self._repeats.kind, text) if text else b""

    def take(self, frame: Frame) -> bool:
        """Take a frame; true: it was the engine's end mark. Raises BrokenAnswerError."""
        data = frame.data
        if data.startswith("[") and data.strip() == _DONE:
            return True
        if not data or self._takes_piece(frame):
            return False
        chunk = parsed(data)
        error = chunk.get("error")
        if error or frame.event == "error":
            raise BrokenAnswerError(in_band_failure(error or chunk))
        counts = chunk.get("usage")
        if counts:
            self._usage = counts
        if not self._writer.started:
            self._writer.start(self._asked.model, usage(self._usage))
        choice = first_choice(chunk)
        if choice is None:
            return False
        delta = choice.get("delta")
        if delta:
            if not isinstance(delta, dict):
                raise broken("The engine's answer has a delta that is none")
            self._take_delta(delta)
        finish = choice.get("finish_reason")
        if finish is not None and self._finish is None:
            self._take_finish(finish, choice)
        return False

    def end(self) -> None:
        """Write the end of the message. Raises BrokenAnswerError where the engine never ended."""
        if self._finish is None:
            raise broken("The engine ended its stream before the answer did")
        while self._open is not None:
            self._close_call()
        self._let_out()
        stop_reason, stop_sequence = stop(
            self._finish,
            self._matched,
            [is_object("".join(call.pieces)) for call in self._calls],
            refused=self._refused,
        )
        edits: Json = {}
        if self._asked.manages_context:
            edits["context_management"] = {"applied_edits": []}
        self._writer.finish(
            {"stop_reason": stop_reason, "stop_sequence": stop_sequence},
            usage(self._usage),
            edits,
        )

    # One chunk

    def _takes_piece(self, frame: Frame) -> bool:
        """Take a chunk that only goes on with what is open; tells whether it was one."""
        if self._calls or not self._writer.started or frame.event is not None:
            return False
        piece = read_piece(frame.data)
        if piece is None:
            return False
        if piece.usage:
            self._usage = piece.usage
        delta = piece.choices[0].delta
        thinking = delta.reasoning or delta.reasoning_content
        if thinking:
            self._writer.thinking(thinking)
        if delta.content:
            self._writer.text(delta.content)
        self._repeats.learn(frame.data, delta.content or thinking or "")
        return True

    def _take_delta(self, delta: Json) -> None:
        thinking = reasoning_of(delta)
        if thinking:
            if self._calls:
                self._held_thinking.append(thinking)
                self._settle()
            else:
                self._writer.thinking(thinking)
        text = text_of(delta, "content")
        if text:
            self._take_text(text)
        if delta.get("refusal"):
            self._refused = True
            self._take_text(text_of(delta, "refusal"))
        calls = delta.get("tool_calls")
        if calls:
            if not isinstance(calls, list):
                raise broken("The engine's answer has tool calls that are none")
            for position, call in enumerate(calls):
                self._take_call(position, call)

    def _take_text(self, text: str) -> None:
        if self._calls:
            self._held_text.append(text)
            self._settle()
        else:
            self._writer.text(text)

    def _take_finish(self, finish: object, choice: Json) -> None:
        self._finish = str(finish)
        self._matched = matched_stop(choice)
        if self._finish in ("abort", "error"):
            stop(self._finish, None, (), refused=False)  # raises: say so at once

    # Tool calls

    def _take_call(self, position: int, raw: object) -> None:
        function = raw.get("function") if isinstance(raw, dict) else None
        if not isinstance(raw, dict) or not isinstance(function or {}, dict):
            raise broken("The engine's answer has a tool call that is none")
        function = function or {}
        index = raw.get("index")
        key = index if isinstance(index, int) else position
        name, call_id = text_of(function, "name"), text_of(raw, "id")
        call = self._by_index.get(key)
        # Some servers give every call the index 0: a new id with a name is a new call.
        if call is None or (name and call_id and call.has_own_id and call_id != call.id):
            call = self._new_call(call_id, name)
            self._by_index[key] = call
        elif not call.opened:
            self._complete_name(call, call_id, name)
        arguments = arguments_of(function)
        if arguments and not call.done:
            self._take_arguments(call, arguments)

    def _new_call(self, call_id: str, name: str) -> _ToolCall:
        own_id = call_id or f"toolu_{self._asked.new_id()}"
        call = _ToolCall(own_id, name, has_own_id=bool(call_id))
        if self._calls and self._asked.one_tool_at_a_time:
            call.done = True  # the client asked for one: the others are dropped
            return call
        self._settle()
        self._held_text = [text for text in self._held_text if not text.isspace()]
        self._calls.append(call)
        if self._open is None:
            self._open = call
        else:
            self._waiting.append(call)
        return call

    def _complete_name(self, call: _ToolCall, call_id: str, name: str) -> None:
        """Take what a later chunk says of a call that no argument has come for yet."""
        if call_id and not call.has_own_id:
            call.id, call.has_own_id = call_id, True
        if name and name != call.name and not call.pieces:
            call.name += name  # split over chunks; the same name again is a repetition

    def _take_arguments(self, call: _ToolCall, arguments: str) -> None:
        call.pieces.append(arguments)
        if call is not self._open:
            self._settle()
        elif not self._asked.buffers_arguments:
            if not call.opened:
                self._open_call(call)
            self._writer.arguments(arguments)

    def _open_call(self, call: _ToolCall) -> None:
        call.opened = True
        self._writer.tool(call.id, call.name)

    def _close_call(self) -> None:
        """Write what is left of *the* call; the next that waits takes its place."""
        call = self._open
        assert call is not None
        call.done = True
        if self._asked.buffers_arguments:
            self._open_call(call)
            if call.pieces:
                self._writer.arguments(encode(tool_input("".join(call.pieces))))
        elif not call.opened:
            self._open_call(call)
        self._writer.close()
        self._open = self._waiting.popleft() if self._waiting else None
        if self._open is not None and self._open.pieces and not self._asked.buffers_arguments:
            self._open_call(self._open)
            self._writer.arguments("".join(self._open.pieces))

    def _settle(self) -> None:
        """Close the calls that are whole; once none is open, let out what was held."""
        while self._open is not None:
            if not self._open.is_whole():
                return
            self._close_call()
        self._let_out()

    def _let_out(self) -> None:
        if self._held_thinking:
            self._writer.thinking("".join(self._held_thinking))
            self._held_thinking.clear()
        if self._held_text:
            text = "".join(self._held_text)
            if not text.isspace():
                self._writer.text(text)
                self._held_text.clear()
