"""On which terms a request uses an engine that can sleep: by its headers, its body, its model.

Titles, health pings and helpers of chat programs are worth an answer of an engine that is awake,
and not 80 GB moved for them (open-webui#28413, llama-swap#749). `X-Frontdoor-Wake`, or the `wake`
of the model where the header is absent:

    word     | wakes | counts as use, from which idle time begins anew
    ---------+-------+------------------------------------------------
    always   | yes   | yes
    if-awake | no    | yes
    never    | no    | no, whatever its keep_alive says
"""

from typing import Literal

from tornado_frontdoor.core.decisions import Reason
from tornado_frontdoor.core.printable import quoted
from tornado_frontdoor.core.request import WakeTerms
from tornado_frontdoor.proxy.downstream.client import Client
from tornado_frontdoor.proxy.records import Record
from tornado_frontdoor.surfaces.base import DecodedRequest, Refused
from tornado_frontdoor.surfaces.keep_alive import HEADER as KEEP_ALIVE
from tornado_frontdoor.surfaces.keep_alive import keep_alive_s

WAKE = "x-frontdoor-wake"
Word = Literal["always", "if-awake", "never"]
_WORDS: tuple[Word, ...] = ("always", "if-awake", "never")


def wake_terms(client: Client, decoded: DecodedRequest, record: Record) -> WakeTerms | None:
    """Return the terms of a request; None: the usual ones. Raises Refused for words unknown."""
    headers, request = client.headers, decoded.request
    word: Word = decoded.target.wake
    said_s = request.keep_alive_s
    if WAKE in headers:
        word = _word(headers[WAKE])
    if KEEP_ALIVE in headers:
        said_s = keep_alive_s(headers[KEEP_ALIVE], "X-Frontdoor-Keep-Alive")
    if word == "always" and said_s is None:
        return None
    return WakeTerms(
        wakes=word == "always",
        counts=word != "never",
        keep_alive_s=said_s,
        by=record.known_key or record.forwarded or client.address,
        request_id=client.id,
    )


def _word(text: str) -> Word:
    folded = text.strip().lower()
    for word in _WORDS:
        if folded == word:
            return word
    detail = f"X-Frontdoor-Wake must be one of {', '.join(_WORDS)}, not {quoted(folded)}"
    raise Refused(Reason.BAD_REQUEST, detail, "X-Frontdoor-Wake")
