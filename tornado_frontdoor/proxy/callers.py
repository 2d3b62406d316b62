"""What gates are told of callers: by what a request is known again, and how long it waits.

An SDK that tries again sends the same bytes with the same credential. A print of both says no more
than "the same as before"; it is made when a gate asks for it, which is when somebody was refused.

OpenAI's and Anthropic's SDKs say after how many seconds they give up: in Python after a silence
(`x-stainless-read-timeout`, and any sign of life begins it anew), in node after a time to the head
of the answer (`x-stainless-timeout`, which an interim answer does not prolong). 600, the default of
all of them, says nothing of what a program wants.
"""

from collections.abc import Mapping
from hashlib import blake2b
from math import inf

from tornado_frontdoor.core.request import CallerFacts, CanonicalRequest, StoredBody, part_of
from tornado_frontdoor.surfaces.keys import HEADERS as CREDENTIALS
from tornado_frontdoor.surfaces.keys import Key

SDK_DEFAULT_S = 600.0
PRINTED_BYTES = 65536
"""Of a longer body, its length and so much of its beginning and of its end."""

AFFINITY_BYTES = 65536
FRONT_BYTES = 4 * AFFINITY_BYTES
"""How much of a body is searched for its first message: of each turn the same, however it grew."""


class RequestToken:
    """Equal for each try of one request by one caller."""

    __slots__ = ("_of", "_print")

    def __init__(self, headers: Mapping[str, str], request: CanonicalRequest) -> None:
        self._of: tuple[Mapping[str, str], CanonicalRequest] | None = (headers, request)
        self._print = b""

    def __hash__(self) -> int:
        return hash(self._printed())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RequestToken) and self._printed() == other._printed()

    def __repr__(self) -> str:
        return f"<RequestToken {self._print.hex() or 'not asked for'}>"

    def _printed(self) -> bytes:
        if self._of is not None:
            headers, request = self._of
            hasher = blake2b(digest_size=16)
            body = request.body
            size_bytes = len(body) if isinstance(body, bytes) else body.size_bytes
            end = max(PRINTED_BYTES, size_bytes - PRINTED_BYTES)
            for part in (
                *(headers.get(name, "").encode("latin-1", "replace") for name in CREDENTIALS),
                request.path.encode(),
                str(size_bytes).encode(),
                part_of(body, 0, PRINTED_BYTES),
                part_of(body, end, PRINTED_BYTES),
            ):
                hasher.update(str(len(part)).encode() + b":")
                hasher.update(part)
            self._print = hasher.digest()
            self._of = None  # the book keeps tokens longer than bodies should live
        return self._print


def caller_of(
    headers: Mapping[str, str],
    request: CanonicalRequest,
    patience_s: float = inf,
    key: Key | None = None,
) -> CallerFacts:
    """Return what a gate may know of who asks; `headers` are the client's, in lower case."""
    token = RequestToken(headers, request)
    if key is None:
        return CallerFacts(token, patience_s)
    return CallerFacts(token, patience_s, key.name, key.share)


def patience_of(headers: Mapping[str, str]) -> tuple[float, bool]:
    """Return how long a client waits, as it says itself, and whether any sign of life prolongs it.

    Infinity where it does not say, or says what its SDK says by itself.
    """
    for name, prolonged in (("x-stainless-read-timeout", True), ("x-stainless-timeout", False)):
        if name in headers:
            try:
                patience_s = float(headers[name])
            except ValueError:
                continue
            return (patience_s if 0 < patience_s < SDK_DEFAULT_S else inf), prolonged
    return inf, False


def affinity_of(body: bytes | StoredBody) -> bytes:
    """Return what requests of one conversation have in common: how its first message ends.

    A prefix cache works from the front: system text and first message are in every later turn.
    """
    front = part_of(body, 0, FRONT_BYTES)
    start = front.find(b'"messages"')
    first_user = front.find(b'"user"', max(start, 0))
    end = front.find(b"}", max(first_user, 0))
    text = front[max(start, 0) : end if end > 0 else len(front)][:AFFINITY_BYTES]
    return blake2b(text, digest_size=16).digest()
