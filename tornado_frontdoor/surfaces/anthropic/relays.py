"""Who reads an engine's answer: whole ones are collected, streams are translated as they come.

A relay commits to a stream only when the engine has begun one. Until then, and for everything that
is no stream, the answer is a document with a status of its own, which clients can retry on; after
it, an error is an event and the connection is cut.
"""

from collections.abc import Callable
from typing import Protocol

from tornado_frontdoor.core.decisions import Outcome, Reason
from tornado_frontdoor.surfaces.anthropic import errors
from tornado_frontdoor.surfaces.anthropic.errors import BrokenAnswerError, Failure
from tornado_frontdoor.surfaces.anthropic.events import COMMENT, PING
from tornado_frontdoor.surfaces.anthropic.response import Asked, answer_headers, parsed
from tornado_frontdoor.surfaces.base import Document, Ending, Head, Headers
from tornado_frontdoor.surfaces.headers import value_of
from tornado_frontdoor.surfaces.last_pieces import LastPieces
from tornado_frontdoor.surfaces.sse import Frame, FrameTooLongError, Reader

ANSWER_LIMIT_BYTES = 64 * 1024 * 1024
"""Longest whole answer that is kept; a message of the longest context is far below it."""

_NOT_FINITE = errors.broken("The engine's answer holds a number that is not finite").failure
_TOO_DEEP = errors.broken("The engine's answer is nested too deeply").failure
_ERROR_LIMIT_BYTES = 64 * 1024
_SILENT_FRAMES = 256
"""Frames without anything for the client (held or buffered arguments) after which it gets a ping:
the driver sees an engine at work and sends none."""


class WholeRelay:
    """Collects an answer and translates it in one piece."""

    def __init__(self, asked: Asked, translate: Callable[[bytes, Asked], bytes]) -> None:
        self.ending: Ending | None = None
        self.verbatim: LastPieces | None = None
        self._asked = asked
        self._translate = translate
        self._status = 0
        self._headers: Headers = ()
        self._pieces: list[bytes] = []
        self._size = 0

    def head(self, status: int, headers: Headers) -> Head | None:
        """Keep the head; nothing is committed before the whole answer is known."""
        self._status, self._headers = status, headers
        return None

    def data(self, chunk: bytes) -> bytes:
        """Keep a piece, up to a limit."""
        if self.ending is None:
            if self._status == 200 or self._size < _ERROR_LIMIT_BYTES:
                self._pieces.append(chunk)
                self._size += len(chunk)
            if self._size > ANSWER_LIMIT_BYTES:
                self.ending = self._failed(errors.broken("The engine's answer is too long").failure)
        return b""

    def end(self) -> Ending:
        """Translate the answer, or the error that it is."""
        body = b"".join(self._pieces)
        if self._status != 200:
            return self._failed(self._failure(body))
        try:
            translated = self._translate(body, self._asked)
        except BrokenAnswerError as error:
            return self._failed(error.failure)
        except ValueError:
            return self._failed(_NOT_FINITE)
        except RecursionError:
            return self._failed(_TOO_DEEP)
        headers = answer_headers(self._asked, "application/json")
        return Ending(Outcome.SERVED, document=Document(200, headers, translated), whole=True)

    def broken(self, reason: Reason, detail: str) -> bytes:  # noqa: ARG002 - Relay
        """Say nothing: no byte of a document was sent, so its refusal is a document too."""
        return b""

    def keep_alive(self) -> bytes:
        """Send nothing: a document has no place for it."""
        return b""

    def note(self, text: str) -> bytes:  # noqa: ARG002 - Relay
        """Send nothing, likewise."""
        return b""

    def as_event(self, document: Document) -> bytes:
        """Return an error as the event that it would be in a stream."""
        return errors.document_event(document)

    def _failure(self, body: bytes) -> Failure:
        return errors.engine_failure(self._status, self._headers, body)

    def _failed(self, failure: Failure) -> Ending:
        # A request that the engine could tell to be wrong was served, as on every other surface.
        outcome = Outcome.SERVED if failure.status < 500 else Outcome.UPSTREAM_ERROR
        document = errors.document(failure, self._asked.request_id)
        return Ending(outcome, document=document, whole=True, cause=failure.message)


class Machine(Protocol):
    """What makes a client's events out of an engine's frames."""

    @property
    def started(self) -> bool:
        """Whether the client has seen `message_start`."""
        ...

    def again(self, chunk: bytes) -> bytes:
        """Return the event for a chunk that goes on as the last one did; nothing: it is to be read.

        `chunk` begins where a frame does.
        """
        ...

    def take(self, frame: Frame) -> bool:
        """Take a frame; true: it was the end mark. Raises BrokenAnswerError."""
        ...

    def end(self) -> None:
        """Write the end. Raises BrokenAnswerError where the answer is not complete."""
        ...

    def written(self) -> bytes:
        """Return what was written since the last call."""
        ...


class StreamRelay:
    """Turns a stream of frames into a stream of events; an answer that is no stream is an error."""

    def __init__(self, asked: Asked, machine: Machine) -> None:
        self.ending: Ending | None = None
        self.verbatim: LastPieces | None = None
        self._asked = asked
        self._machine = machine
        self._reader = Reader()
        self._instead: WholeRelay | None = None
        self._silent_frames = 0

    def head(self, status: int, headers: Headers) -> Head | None:
        """Commit to a stream when the engine begins one."""
        kind = value_of(headers, "content-type").lower()
        if status != 200 or not kind.startswith("text/event-stream"):
            self._instead = WholeRelay(self._asked, _no_stream)
            return self._instead.head(status, headers)
        return Head(
            200,
            [
                *answer_headers(self._asked, "text/event-stream; charset=utf-8"),
                ("Cache-Control", "no-cache"),
                ("X-Accel-Buffering", "no"),
            ],
        )

    def data(self, chunk: bytes) -> bytes:
        """Translate a piece; after the end, whatever it was, nothing follows."""
        if self.ending is not None or self._instead is not None:
            self._take_instead(chunk)
            return b""
        if self._reader.is_clean and (again := self._machine.again(chunk)):
            self._silent_frames = 0
            return again
        try:
            frames = self._reader.feed(chunk)
        except FrameTooLongError as error:
            self.ending = self._failed(errors.broken(f"The engine failed: {error}").failure)
            return b""
        self._take(frames)
        written = self._machine.written()
        if written:
            self._silent_frames = 0
            return written
        self._silent_frames += len(frames)
        if self._silent_frames < _SILENT_FRAMES or self.ending is not None:
            return b""
        self._silent_frames = 0
        return self.keep_alive()

    def end(self) -> Ending:
        """Take the end of the engine's body: complete when the answer was, else an error."""
        if self._instead is not None:
            return self._instead.end()
        if self.ending is None:
            self._take(self._last_frames())
        if self.ending is None:
            self._end()
        assert self.ending is not None
        return self.ending._replace(data=self._machine.written() + self.ending.data)

    def broken(self, reason: Reason, detail: str) -> bytes:
        """Return the error event for an answer that broke off."""
        failure = Failure(502, errors.event_type(reason), detail)
        return errors.event(failure, self._asked.request_id)

    def keep_alive(self) -> bytes:
        """Return a ping; before the first event a comment, which every client passes over."""
        return PING if self._machine.started else COMMENT

    def note(self, text: str) -> bytes:
        """Return a ping, with the words in a comment: before the first event too."""
        return f": {text}\n".encode() + PING

    def as_event(self, document: Document) -> bytes:
        """Return an error as an event."""
        return errors.document_event(document)

    def _take_instead(self, chunk: bytes) -> None:
        if self.ending is None and self._instead is not None:
            self._instead.data(chunk)
            self.ending = self._instead.ending

    def _take(self, frames: list[Frame]) -> None:
        try:
            for frame in frames:
                if self._machine.take(frame):
                    self._end()
                    return
        except BrokenAnswerError as error:
            self.ending = self._failed(error.failure)
        except ValueError:
            self.ending = self._failed(_NOT_FINITE)
        except RecursionError:
            self.ending = self._failed(_TOO_DEEP)

    def _end(self) -> None:
        try:
            self._machine.end()
        except BrokenAnswerError as error:
            self.ending = self._failed(error.failure)
        except ValueError:
            self.ending = self._failed(_NOT_FINITE)
        except RecursionError:
            self.ending = self._failed(_TOO_DEEP)
        else:
            self.ending = Ending(Outcome.SERVED)

    def _last_frames(self) -> list[Frame]:
        try:
            return self._reader.close()
        except FrameTooLongError:
            return []

    def _failed(self, failure: Failure) -> Ending:
        event = errors.event(failure, self._asked.request_id)
        return Ending(Outcome.UPSTREAM_ERROR, data=event, cause=failure.message)


def _no_stream(body: bytes, asked: Asked) -> bytes:  # noqa: ARG001 - as every translation
    """Refuse a 200 that is no stream: an error that came with the wrong status, or nonsense."""
    if parsed(body).get("error"):
        raise BrokenAnswerError(errors.engine_failure(200, (), body))
    raise errors.broken("The engine answered a request for a stream without one")
