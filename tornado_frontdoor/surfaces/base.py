"""What a dialect is: five verbs, all pure. A third dialect is one more module beside this one.

The walk of a request through a surface:

    route(method, path)     -> Route, or Refused: not one of ours
    decode(call, catalog)   -> Exchange, or Refused: the request, whom it is for, and its relay
    relay.head/data/end     <- what the engine answers, as it comes
    relay.broken            <- the engine died after the first byte: what to say before the cut
    refuse(refusal)         -> Document: one decision of the core in the words of this dialect
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

from msgspec import Struct

from tornado_frontdoor.core.catalog import Catalog, Target
from tornado_frontdoor.core.decisions import Outcome, Reason, Refusal
from tornado_frontdoor.core.printable import printable
from tornado_frontdoor.core.request import CanonicalRequest
from tornado_frontdoor.surfaces.last_pieces import LastPieces

DETAIL_LENGTH = 1000
"""Characters of a refusal: what it quotes of the request may be anything, also megabytes."""

Headers = Sequence[tuple[str, str]]


class RouteKind(Enum):
    """Who answers a route."""

    ENGINE = auto()
    """An engine, through `decode` and a relay."""
    MODELS = auto()
    """We do, from the catalog: the list, or one model when `Route.argument` names it."""
    PROBE = auto()
    """We do, with an empty 200."""


class Route(Struct, frozen=True):
    """One entry of an allow-list; `argument` is the rest of the path where the entry takes one."""

    kind: RouteKind
    path: str
    argument: str | None = None


class SurfaceRequest(Struct, frozen=True):
    """One HTTP request as a surface sees it; `headers` has lower-case names, repeats joined."""

    route: Route
    query: str
    headers: Mapping[str, str]
    body: bytes
    request_id: str


class Document(NamedTuple):
    """One whole answer; Content-Length and X-Request-Id are added by whoever writes it."""

    status: int
    headers: Headers
    body: bytes


class Head(Struct, frozen=True):
    """Status and headers of an answer that goes on as a stream of bytes.

    How its body is framed is for whoever writes it: by `length` bytes where that is known.
    """

    status: int
    headers: Headers
    length: int | None = None


class Ending(NamedTuple):
    """What is left to do when the engine's answer is complete.

    When nothing was committed yet, `document` is the whole answer, or `refusal` is to be rendered
    as one. Otherwise `data` are the last bytes of the stream. With `outcome` other than SERVED the
    connection is cut after them, unless the engine itself ended its answer properly (`whole`).
    """

    outcome: Outcome
    data: bytes = b""
    document: Document | None = None
    refusal: Refusal | None = None
    whole: bool = False
    cause: str | None = None
    """Why it was not served, in words, where no refusal says it."""


class ResponseTranslator(Protocol):
    """Turns one engine's answer into one client's answer. One object a request; never reused.

    After `head` and `data` the driver looks at `ending`: once it is set, the answer is over
    whatever the engine still sends (the dialect saw the end, or an error that the engine sent in
    band), and the driver carries it out instead of calling `end`.
    """

    ending: Ending | None
    verbatim: LastPieces | None
    """Set by `head` where each piece goes on as it came: the driver may keep the last ones in it
    and leave out `data`, which does the same."""

    def head(self, status: int, headers: Headers) -> Head | None:
        """Take the engine's status and headers; None: commit nothing, `end` has the document."""
        ...

    def data(self, chunk: bytes) -> bytes:
        """Take a piece of the body; return what goes to the client now, perhaps nothing."""
        ...

    def end(self) -> Ending:
        """Take the clean end of the engine's body."""
        ...

    def broken(self, reason: Reason, detail: str) -> bytes:
        """Return the error event for a stream whose engine died; the connection is cut after it."""
        ...

    def keep_alive(self) -> bytes:
        """Return what to send into a silent stream that is committed; empty: nothing."""
        ...

    def note(self, text: str) -> bytes:
        """Return words for a client whose stream was begun before the engine's; no events in it."""
        ...

    def as_event(self, document: Document) -> bytes:
        """Return an error that was to be a whole answer as an event, for such a stream."""
        ...


class DecodedRequest(Struct, frozen=True):
    """A request that may be admitted: what the engine is asked, and who reads its answer."""

    request: CanonicalRequest
    target: Target
    relay: ResponseTranslator


class ListedModel(NamedTuple):
    """A line of a model list: a name, what it stands for, and how its engine is."""

    name: str
    target: Target
    state: str
    sleep_depth: str | None
    created_s: int


class Surface(Protocol):
    """One dialect."""

    name: str
    prefixes: tuple[str, ...]
    """Where its paths begin, e.g. `/v1`; no two surfaces share one."""

    def route(self, method: str, path: str) -> Route:
        """Find `path` (normalised, see `surfaces.paths`) in the allow-list; raises Refused."""
        ...

    def decode(self, call: SurfaceRequest, catalog: Catalog) -> DecodedRequest:
        """Read a call for an engine; raises Refused when it can be told now that it must fail."""
        ...

    def models(self, call: SurfaceRequest, listing: Sequence[ListedModel]) -> Document:
        """Answer a MODELS route; raises Refused for an unknown model or a bad query."""
        ...

    def refuse(self, refusal: Refusal, request_id: str) -> Document:
        """Render one refusal."""
        ...


NESTED_TOO_DEEPLY = "The body is nested too deeply"
"""A RecursionError: how deep is too deep depends on the stack, so that what was read may be too
deep to be written."""


class Refused(Exception):  # noqa: N818 - a refusal is an answer, not an error of ours
    """A refusal known before any gate is asked; `model` is what was asked for, for logs."""

    def __init__(
        self, reason: Reason, detail: str, param: str | None = None, model: str | None = None
    ) -> None:
        super().__init__(detail)
        self.refusal = Refusal(
            reason,
            printable(detail, DETAIL_LENGTH),
            param=None if param is None else printable(param),
        )
        self.model = None if model is None else printable(model)
