"""Every way to fail, in one envelope: refusals of ours, and whatever an engine may answer.

Clients choose their class of error by the status and their behaviour by `error.type`; and Claude
Code compacts a conversation only on Anthropic's wording of an overlong prompt, so an engine's
wording of it is put into that one. Every other message of an engine goes on as it is, clipped.
"""

import re
from json import loads
from typing import NamedTuple

from tornado_frontdoor.core.decisions import Reason, Refusal
from tornado_frontdoor.core.printable import printable, quoted
from tornado_frontdoor.surfaces.anthropic.fields import encode, to_bytes
from tornado_frontdoor.surfaces.base import Document, Headers
from tornado_frontdoor.surfaces.headers import value_of
from tornado_frontdoor.surfaces.retry_headers import STATUS, retry_headers

MESSAGE_LIMIT = 4096
"""Characters of an engine's message that are read; `printable` clips what is passed on of it."""

OVERLOADED = 529

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    409: "conflict_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "request_too_large",
    500: "api_error",
    502: "api_error",
    503: "api_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
_IN_BAND = {
    400: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_BUSY = (
    Reason.QUEUE_FULL,
    Reason.QUEUE_TIMEOUT,
    Reason.CLIENT_DEADLINE,
    Reason.BUFFERS_FULL,
)

# Wordings of vLLM, newest first: longest prompt it takes (`most`), size of this one (`size`).
_OVERLONG = (
    re.compile(
        r"maximum context length is (?P<most>\d+) tokens.*"
        r"contains (?:at least )?(?P<size>\d+) input tokens",
        re.DOTALL,
    ),
    re.compile(r"maximum context length is (?P<most>\d+).*contains \d+ characters", re.DOTALL),
    re.compile(
        r"Input length \((?P<size>\d+)\) exceeds model's maximum context length \((?P<most>\d+)\)"
    ),
    re.compile(
        r"(?:length (?P<size>\d+)\)? )?(?:is )?"
        r"longer than the maximum model length of (?P<most>\d+)"
    ),
    re.compile(
        r"maximum context length is (?P<most>\d+).*"
        r"requested (?P<total>\d+) tokens \((?P<size>\d+) in the messages",
        re.DOTALL,
    ),
)


class Failure(NamedTuple):
    """One error in the words of this dialect."""

    status: int
    type: str
    message: str
    retry: tuple[tuple[str, str], ...] = ()


class BrokenAnswerError(Exception):
    """The engine's answer is an error, or makes no sense; `failure` is what the client is told."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def broken(message: str, status: int = 502) -> BrokenAnswerError:
    """Return the error for an answer that cannot be passed on."""
    return BrokenAnswerError(Failure(status, _TYPES[status], message))


def refused(refusal: Refusal, overloaded_status: int) -> Failure:
    """Return a refusal in this dialect; a full queue has a status of its own here."""
    reason = refusal.reason
    status = overloaded_status if reason in _BUSY else STATUS[reason]
    return Failure(status, _TYPES[status], refusal.detail, tuple(retry_headers(refusal)))


def event_type(reason: Reason) -> str:
    """Return the type of the error event for an answer that broke off."""
    return "timeout_error" if reason is Reason.UPSTREAM_TIMEOUT else "api_error"


def engine_failure(status: int, headers: Headers, body: bytes) -> Failure:
    """Return what an engine's error answer means. Takes any body; never raises."""
    error = _parsed(body)
    if status < 400:  # an error that came with a 200, or a redirect
        status = _code(error) or 502
    message = _message_of(error) or f"The engine answered with status {status}"
    overlong = _overlong(message)
    if overlong is not None:
        return Failure(400, _TYPES[400], overlong)
    if status not in _TYPES or status in (405, 415, 431):  # those of our own paths
        status = 400 if status < 500 or status == 501 else 500
    return Failure(status, _TYPES[status], printable(message), _retry(status, headers))


def in_band_failure(error: object) -> Failure:
    """Return what an error in the midst of an engine's stream means."""
    code = _code(error) or 500
    message = _message_of(error) or "The engine reported an error within its answer"
    overlong = _overlong(message)
    if overlong is not None:
        return Failure(400, _TYPES[400], overlong)
    return Failure(code, _IN_BAND.get(code, "api_error"), printable(message))


def document(failure: Failure, request_id: str) -> Document:
    """Return an error as a whole answer."""
    headers = [("Content-Type", "application/json"), ("request-id", request_id), *failure.retry]
    return Document(failure.status, headers, _envelope(failure, request_id))


def event(failure: Failure, request_id: str) -> bytes:
    """Return an error as the last event of a stream."""
    return b"event: error\ndata: " + _envelope(failure, request_id) + b"\n\n"


def document_event(document: Document) -> bytes:
    """Return an error that was to be a whole answer as the last event of a stream."""
    return b"event: error\ndata: " + document.body + b"\n\n"


def _envelope(failure: Failure, request_id: str) -> bytes:
    error = {"type": failure.type, "message": failure.message}
    return to_bytes(encode({"type": "error", "error": error, "request_id": request_id}))


def _retry(status: int, headers: Headers) -> tuple[tuple[str, str], ...]:
    if status == 401:
        return (("x-should-retry", "false"),)  # Claude Code would go on trying otherwise
    if status not in (429, 503, OVERLOADED):
        return ()
    seconds = value_of(headers, "retry-after")
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", seconds):
        return ()
    return tuple(retry_headers(Refusal(Reason.UPSTREAM_ERROR, "", retry_after_s=float(seconds))))


def _parsed(body: bytes) -> object:
    """Return an error body as JSON, or as text where it is none."""
    try:
        parsed: object = loads(body)
    except (ValueError, RecursionError):
        return body[: 4 * MESSAGE_LIMIT].decode("utf-8", "replace")
    return parsed


def _message_of(error: object) -> str:
    """Find the message in any of the shapes that engines and their servers use."""
    for _ in range(4):
        if isinstance(error, str):
            return error.strip()[:MESSAGE_LIMIT]
        if not isinstance(error, dict):
            break
        for key in ("error", "message", "detail"):
            if error.get(key):
                error = error[key]
                break
        else:
            return ""
    # FastAPI's `detail` is a list of objects for a body that it cannot validate.
    if not error or isinstance(error, dict):
        return ""
    try:
        return encode(error)[:MESSAGE_LIMIT]
    except (ValueError, RecursionError):  # it holds NaN, which the parser takes, or is nested
        return quoted(error)[:MESSAGE_LIMIT]


def _code(error: object) -> int | None:
    """Return the HTTP status that an error body speaks of, if any."""
    for _ in range(2):
        if not isinstance(error, dict):
            return None
        for key in ("code", "status"):
            value = error.get(key)
            if isinstance(value, str) and value.isdecimal():
                value = int(value[:4])
            if isinstance(value, int) and 400 <= value < 600:
                return value
        error = error.get("error")
    return None


def _overlong(message: str) -> str | None:
    for pattern in _OVERLONG:
        found = pattern.search(message)
        if found is None:
            continue
        numbers = found.groupdict()
        most = int(numbers["most"])
        sizes = [int(numbers[key]) for key in ("size", "total") if numbers.get(key)]
        # Where only characters are told, one token too many is what is known for certain.
        size = next((size for size in sizes if size > most), None if sizes else most + 1)
        if size is not None:
            return f"prompt is too long: {size} tokens > {most} maximum"
    return None
