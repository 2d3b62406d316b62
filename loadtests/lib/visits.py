"""One request over one connection, from the instant it was due to its end.

Rule 1: time runs from when a request was due, not from when there was time to send it.
Rule 2: a 503 or 529 with `Retry-After` is an answer like any other; one without it, any other
        error, and a stream without its end are failures.
Rule 3: streams are read event by event. Locust's own line reader waits for 1024 bytes, and would
        show a first token four times too late and no gaps at all.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal

import gevent
from geventhttpclient import HTTPClient
from geventhttpclient.response import HTTPParseError, HTTPSocketPoolResponse

from loadtests.lib.dialects import PATHS, ClientCall, is_answer, reason_of, understand

Kind = Literal["served", "refused", "left", "failed"]

NOBODY = "nobody listens"
"""The outcome where no request was sent, because there was no connection."""

NETWORK_TIMEOUT_S = 300.0
CONNECTIONS = 4096
REFUSALS = (503, 529)


@dataclass(slots=True)
class Measurement:
    """How one request went; seconds count from when it was due."""

    kind: Kind = "failed"
    outcome: str = "no answer"
    """`200`, `503 queue_full`, `left queued`, or what failed."""
    request_id: str = ""
    """The front door's name for it; none without the head of an answer."""
    waited_s: float = 0.0
    """Time in the queue, as the front door tells it."""
    head_s: float | None = None
    first_token_s: float | None = None
    """First token of any kind."""
    visible_s: float | None = None
    """First token that a reader sees: after the reasoning."""
    gaps_s: list[float] = field(default_factory=list)
    tokens: int = 0
    length: int = 0
    total_s: float = 0.0


class TruncatedError(Exception):
    """An answer that is not whole: the last event or tokens are missing, or it is an error."""


def client_of(host: str) -> HTTPClient:
    """Return a client for a base URL that opens as many connections as it is asked for."""
    return HTTPClient.from_url(
        host,
        concurrency=CONNECTIONS,
        network_timeout=NETWORK_TIMEOUT_S,
        connection_timeout=NETWORK_TIMEOUT_S,
    )


def visit(
    client: HTTPClient,
    call: ClientCall,
    due_s: float,
    *,
    leave_s: float | None = None,
    read: int = -1,
    tokens: int | None = None,
) -> Measurement:
    """Make one request; `leave_s`: hang up then, `read`: hang up after so many events.

    A whole stream without exactly `tokens` tokens is a failure, unless that is None.
    """
    seen = Measurement()
    leaving = gevent.Timeout(leave_s) if leave_s is not None else None
    try:
        if leaving is not None:
            leaving.start()
        _converse(client, call, due_s, seen, read)
        _count_tokens(call, seen, tokens)
    except gevent.Timeout as timeout:
        if timeout is not leaving:
            raise
        seen.kind, seen.outcome = "left", f"left {_phase(seen)}"
    except ConnectionRefusedError:
        seen.outcome = NOBODY
    except (OSError, HTTPParseError, TruncatedError, ValueError) as error:
        seen.kind = "failed"
        seen.outcome = f"{type(error).__name__}: {error}"
    finally:
        if leaving is not None:
            leaving.close()
    seen.total_s = monotonic() - due_s
    return seen


def _count_tokens(call: ClientCall, seen: Measurement, tokens: int | None) -> None:
    if seen.kind == "served" and call.stream and tokens not in {None, seen.tokens}:
        raise TruncatedError(f"{seen.tokens} of {tokens} tokens")


def _phase(seen: Measurement) -> str:
    if seen.head_s is None:
        return "before the head"
    return "before the first token" if seen.first_token_s is None else "while streaming"


def _converse(
    client: HTTPClient, call: ClientCall, due_s: float, seen: Measurement, read: int
) -> None:
    response = client.request("POST", PATHS[call.surface], call.body(), call.headers)
    try:
        seen.head_s = monotonic() - due_s
        seen.request_id = str(response.get("X-Request-Id") or "")
        waited_ms = response.get("X-Frontdoor-Wait-Ms")
        seen.waited_s = int(waited_ms) / 1000 if isinstance(waited_ms, str) else 0.0
        if response.status_code != 200:
            _refused(response, seen)
        elif call.stream:
            _stream(response, call, due_s, seen, read)
        else:
            body = response.read()
            seen.length = len(body)
            if not is_answer(call.surface, body):
                raise TruncatedError(f"no answer: {body[:200].decode(errors='replace')}")
            seen.kind, seen.outcome = "served", "200"
    finally:
        # Also after a departure: an unfinished answer's connection is closed, not kept.
        response.release()


def _refused(response: HTTPSocketPoolResponse, seen: Measurement) -> None:
    body = response.read()
    seen.length = len(body)
    seen.outcome = f"{response.status_code} {reason_of(body)}"
    if response.status_code in REFUSALS:
        if response.get("Retry-After") is None:
            seen.outcome += " without Retry-After"
        else:
            seen.kind = "refused"


def _stream(
    response: HTTPSocketPoolResponse, call: ClientCall, due_s: float, seen: Measurement, read: int
) -> None:
    last_s = 0.0
    for event in _events(response):
        seen.length += len(event)
        what = understand(call.surface, event)
        if what == "error":
            raise TruncatedError(event[:200].decode(errors="replace"))
        if what == "end":
            response.read()  # to the last byte, or the connection cannot be used again
            seen.kind, seen.outcome = "served", "200"
            return
        if what == "other":
            continue
        now_s = monotonic() - due_s
        if seen.first_token_s is None:
            seen.first_token_s = now_s
        else:
            seen.gaps_s.append(now_s - last_s)
        if what == "token" and seen.visible_s is None:
            seen.visible_s = now_s
        last_s = now_s
        seen.tokens += 1
        if seen.tokens == read:
            seen.kind, seen.outcome = "left", "left while streaming"
            return
    raise TruncatedError("the stream ended without its last event")


def _events(response: HTTPSocketPoolResponse) -> Iterator[bytes]:
    while event := response.readline(b"\n\n"):
        yield event
