"""A stream whose 200 is out before its engine has answered: its client is told its place in it.

Only who asks for it gets one, as it gives the status away. From then on whatever goes wrong is an
event of the dialect; politely ends only what the engine completed, or refused by itself.
"""

from collections.abc import Mapping
from json import dumps

from tornado_frontdoor.core.decisions import Outcome, Reason
from tornado_frontdoor.proxy.progress import Progress
from tornado_frontdoor.surfaces.base import Document, Ending, Head, Headers, ResponseTranslator
from tornado_frontdoor.surfaces.headers import value_of
from tornado_frontdoor.surfaces.last_pieces import LastPieces, shown

STREAM_HEADERS = [
    ("Content-Type", "text/event-stream; charset=utf-8"),
    ("Cache-Control", "no-cache"),
    ("X-Accel-Buffering", "no"),
]
_ERROR_LIMIT_BYTES = 64 * 1024


def wants_early_stream(
    headers: Mapping[str, str], query: str, by_model: str, progress: Progress
) -> bool:
    """Tell whether a client asks to be told its place inside its stream, or its model says so."""
    if progress == "off":
        return False
    asked = headers.get("x-frontdoor-progress", "").strip().lower()
    if asked:
        return asked == "sse"
    return "progress=sse" in query.split("&") or by_model == "sse"


class EarlyStream:
    """Reads an answer for a client that has its 200 already: a translator around another."""

    def __init__(self, inner: ResponseTranslator) -> None:
        self.ending: Ending | None = None
        self.verbatim: LastPieces | None = None
        self.begun = False
        """Whether the engine has begun a stream: then all is as without this."""
        self._inner = inner
        self._status = 0
        self._kept: list[bytes] | None = None
        """The body of an answer that is no stream, while it comes."""
        self._kept_bytes = 0

    def note(self, text: str) -> bytes:
        """Return what tells the client something while there is nothing else to tell."""
        return b"" if self.begun else self._inner.note(text)

    def as_event(self, document: Document) -> bytes:
        """Return a whole answer as an event."""
        return self._inner.as_event(document)

    def told(self, ending: Ending) -> Ending:
        """Return an end whose document, which cannot be sent any more, is an event."""
        if ending.document is None:
            return ending
        event = self._inner.as_event(ending.document)
        return ending._replace(document=None, data=event, whole=False)

    # The translator

    def head(self, status: int, headers: Headers) -> Head | None:
        """Take the engine's head; there is none to send any more."""
        head = self._inner.head(status, headers)
        self.ending = self._inner.ending
        if head is None:
            return None
        kind = value_of(headers, "content-type").lower()
        if head.status == 200 and kind.startswith("text/event-stream"):
            self.begun = True
        else:
            self._status, self._kept = head.status, []
        return None

    def data(self, chunk: bytes) -> bytes:
        """Pass a piece of a stream on; keep one of an answer that is none."""
        data = self._inner.data(chunk)
        self.ending = self._inner.ending
        if self._kept is None:
            return data
        if self._kept_bytes < _ERROR_LIMIT_BYTES:
            self._kept.append(data)
            self._kept_bytes += len(data)
        return b""

    def end(self) -> Ending:
        """Return the end; of an answer that is no stream, with it as an event."""
        ending = self._inner.end()
        if self._kept is None:
            return ending
        body = b"".join(self._kept)
        if self._status < 400:
            cause = "the engine answered a request for a stream without one"
            ending = Ending(Outcome.UPSTREAM_ERROR, cause=cause)
            body = dumps({"message": cause}).encode()
        elif ending.cause is None:
            ending = ending._replace(cause=f"the engine answered {self._status}: {shown(body)}")
        return self.told(ending._replace(document=Document(self._status, (), body)))

    def broken(self, reason: Reason, detail: str) -> bytes:
        """Return the error event for a stream whose engine died."""
        return self._inner.broken(reason, detail)

    def keep_alive(self) -> bytes:
        """Return what goes into a silent stream; while the engine has not begun it, notes do."""
        return self._inner.keep_alive() if self.begun else b""
