"""Heads of requests as plain values, and heads of answers as bytes; ids of requests."""

from collections.abc import Iterator
from http import HTTPStatus
from os import urandom
from time import time_ns

from tornado_frontdoor.surfaces.base import Document

REASONS = {status.value: status.phrase for status in HTTPStatus}


_DIGITS = 14
_IDS_AT_ONCE = 64


def _chances() -> Iterator[str]:
    """Yield digits that nobody can foresee; the system is asked for many at once."""
    while True:
        digits = urandom(_IDS_AT_ONCE * _DIGITS // 2).hex()
        for begin in range(0, len(digits), _DIGITS):
            yield digits[begin : begin + _DIGITS]


_next_chance = _chances().__next__


def new_request_id() -> str:
    """Return an id that sorts by time: 12 hex digits of milliseconds, 14 of chance."""
    return (time_ns() // 1_000_000).to_bytes(6).hex() + _next_chance()


def last_answer(document: Document, request_id: str) -> bytes:
    """Return a whole answer that is the last on its connection, to what is no request."""
    headers = [
        *document.headers,
        ("Content-Length", str(len(document.body))),
        ("Connection", "close"),
        ("X-Request-Id", request_id),
    ]
    lines = [f"HTTP/1.1 {document.status} {REASONS.get(document.status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + document.body
