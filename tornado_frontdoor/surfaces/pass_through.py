"""An answer that goes on byte for byte, and what tells a whole one from a broken one.

OpenAI's own client takes a stream that just ends for a success. So the end of each stream is
judged, by its frames and not by what may stand inside of a text:

- chat and completions: `data: [DONE]`, or a finish reason for each of the choices asked for;
- responses: `response.completed` or `response.incomplete`; after `response.failed` or an `error`
  the answer is whole, but was not served;
- an answer in a content encoding is passed on unjudged, and nothing of ours is put into it.
"""

import re
from json import dumps, loads

from tornado_frontdoor.core.decisions import Outcome, Reason, Refusal
from tornado_frontdoor.surfaces.base import Document, Ending, Head, Headers
from tornado_frontdoor.surfaces.headers import BadHeadError, read_answer_head
from tornado_frontdoor.surfaces.last_pieces import SHOWN_BYTES, LastPieces, shown
from tornado_frontdoor.surfaces.retry_headers import STATUS
from tornado_frontdoor.surfaces.sse import Frame, FrameTooLongError, Reader
from tornado_frontdoor.surfaces.weight import CHAT, COMPLETIONS

RESPONSES = "/v1/responses"

_SERVED = Ending(Outcome.SERVED)
_ENDED_EARLY = "ended its stream before the answer did"
# A text's line breaks and quotes are escaped, so none of these can stand inside of one.
_LINE_BYTES = len(b"\ndata: ")
"""The most that stands before a mark in its line, the break of the line before included."""
_DONE = re.compile(rb"(?:\A|[\r\n])data: ?\[DONE\][ \t]*(?:[\r\n]|\Z)")
_ERROR = re.compile(rb'(?:\A|[\r\n])data: ?\{"error"')
_FINISH = re.compile(rb'"finish_reason": ?"')
_FINISH_BYTES = 17
"""The most of it that a piece can end with."""
_ABORT = re.compile(rb'"finish_reason": ?"abort"')


class PassThrough:
    """Relays one answer of an engine. `choices` is how many answers were asked for in all."""

    __slots__ = (
        *("_choices", "_encoded", "_finishes", "_last", "_path", "_responses", "_seen"),
        *("_status", "_streams", "ending", "verbatim"),
    )

    def __init__(self, path: str, choices: int = 1) -> None:
        self.ending: Ending | None = None
        self.verbatim: LastPieces | None = None
        self._path = path
        self._choices = choices
        self._status = 0
        self._streams = False
        self._encoded = False
        self._last = LastPieces()
        self._finishes = 0
        self._seen = b""
        self._responses: ResponseEvents | None = None

    def head(self, status: int, headers: Headers) -> Head | None:
        """Pass the status and what a client may see; a redirect is never relayed."""
        if not (200 <= status < 300 or 400 <= status < 600):
            kind = "a redirect" if status < 400 else "no HTTP status"
            self._refuse(f"The engine answered with {kind} ({status})")
            return None
        try:
            passed, length, media_type, self._encoded = read_answer_head(status, headers)
        except BadHeadError as error:
            self._refuse(f"The engine's answer has {error}")
            return None
        self._status = status
        if not media_type.startswith("text/event-stream"):
            self.verbatim = self._last
            return Head(status, passed, length)
        self._streams = not self._encoded
        if self._streams and self._path == RESPONSES:
            self._responses = ResponseEvents()
        elif not self._streams or self._choices == 1:
            self.verbatim = self._last
        # Proxies in front would keep a stream until they have a buffer full of it. Its own length
        # has no room for the event that is put behind one that breaks off.
        passed.append(("X-Accel-Buffering", "no"))
        return Head(status, passed, None if self._streams else length)

    def data(self, chunk: bytes) -> bytes:
        """Pass a piece on as it is."""
        if self._choices > 1 and self._streams:
            seen = self._seen + chunk
            self._finishes += len(_FINISH.findall(seen)) - len(_FINISH.findall(self._seen))
            self._seen = seen[-_FINISH_BYTES:]
        if self._responses is not None:
            self._responses.take(chunk)
        self._last.add(chunk)
        return chunk

    def end(self) -> Ending:
        """Judge the whole: an engine's polite end is not yet a success."""
        if self._status >= 500:
            return _failed(f"the engine answered {self._status}: {self._last.shown()}")
        if self._encoded:
            return _SERVED
        ending = self._responses.end() if self._responses is not None else self._judge()
        if ending is not None:
            return ending
        broken = self.broken(Reason.UPSTREAM_ERROR, f"The engine {_ENDED_EARLY}")
        return Ending(Outcome.UPSTREAM_ERROR, broken, cause=f"the engine {_ENDED_EARLY}")

    def _judge(self) -> Ending | None:
        """Return how an answer ended; None: it is not whole."""
        tail = b"".join(self._last.pieces)
        if b'"abort"' in tail and _ABORT.search(tail):
            return _failed(
                "the engine aborted it and ended politely: was it put to sleep by another hand?"
            )
        if not self._streams or self._path not in (CHAT, COMPLETIONS):
            return _SERVED
        if not self._last.is_all:
            tail = b"." + tail  # its first line may have begun before
        if b'{"error"' in tail and (error := _ERROR.search(tail)):
            told = shown(tail[error.end() - len(b'{"error"') :])
            return _failed(f"the engine told an error inside its stream: {told}")
        done = tail.find(b"[DONE]")
        if done >= 0 and _DONE.search(tail, max(0, done - _LINE_BYTES)):
            return _SERVED
        finishes = self._finishes if self._choices > 1 else len(_FINISH.findall(tail))
        return _SERVED if finishes >= self._choices else None

    def broken(self, reason: Reason, detail: str) -> bytes:
        """Return an error event in vLLM's form; nothing where the body is no stream of events."""
        if not self._streams:
            return b""
        error = {"message": detail, "type": reason.value, "param": None, "code": STATUS[reason]}
        event = b"data: " + dumps({"error": error}).encode() + b"\n\n"
        if self._responses is not None:
            event = b"event: error\n" + event.replace(b"{", b'{"type": "error", ', 1)
        pieces = self._last.pieces
        whole_frame = not pieces or pieces[-1].endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))
        return event if whole_frame else b"\n\n" + event

    def keep_alive(self) -> bytes:
        """Send nothing of ours: some parsers of this dialect stumble over comments."""
        return b""

    def note(self, text: str) -> bytes:
        """Return a comment: who asks for notes bears them."""
        return f": {text}\n\n".encode()

    def as_event(self, document: Document) -> bytes:
        """Return the error of a whole answer, which other members of it go along with."""
        try:
            told = loads(document.body)
            dumps(told)  # what could be read may be nested too deeply to be written
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict) or not isinstance(told.get("error"), dict):
            text = shown(document.body) if document.body else "The engine answered with an error"
            if isinstance(told, dict) and isinstance(told.get("message"), str):
                text = told["message"]
            kind, status = Reason.UPSTREAM_ERROR.value, document.status
            told = {"error": {"message": text, "type": kind, "param": None, "code": status}}
        event = b"data: " + dumps({"error": told["error"], **told}).encode() + b"\n\n"
        if self._path != RESPONSES:
            return event
        error = {"type": "error", "error": told["error"]}
        return b"event: error\ndata: " + dumps(error).encode() + b"\n\n"

    def _refuse(self, detail: str) -> None:
        refusal = Refusal(Reason.UPSTREAM_ERROR, detail)
        self.ending = Ending(Outcome.UPSTREAM_ERROR, refusal=refusal)


class ResponseEvents:
    """Reads the events of `/v1/responses`, whose last one may be as long as the whole answer."""

    def __init__(self) -> None:
        self._reader: Reader | None = Reader()
        self._ending: Ending | None = None

    def take(self, chunk: bytes) -> None:
        """Take a piece."""
        if self._reader is not None:
            try:
                self._see(self._reader.feed(chunk))
            except FrameTooLongError:  # it cannot be judged any more
                self._reader, self._ending = None, _SERVED

    def end(self) -> Ending | None:
        """Return how the answer ended; None: it is not whole."""
        if self._reader is not None and self._ending is None:
            self._see(self._reader.close())
        return self._ending

    def _see(self, frames: list[Frame]) -> None:
        for frame in frames:
            match frame.event or _type_of(frame.data):
                case "response.completed" | "response.incomplete":
                    self._ending = _SERVED
                case "response.failed" | "error" as kind:
                    told = frame.data[:SHOWN_BYTES]
                    self._ending = _failed(f"the engine told {kind} inside its stream: {told}")
                case _:
                    pass


def _failed(cause: str) -> Ending:
    return Ending(Outcome.UPSTREAM_ERROR, whole=True, cause=cause)


def _type_of(data: str) -> object:
    try:
        event = loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict):
        return None
    return "error" if event.get("error") and "type" not in event else event.get("type")
