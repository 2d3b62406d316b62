"""Which web pages may read what we answer: those of the origins that the operator has listed. Pure.

A browser asks before it sends what a page could not send by itself (JSON, a key), and tells no page
an answer that does not name the page's origin. Nothing listed: no page may, which is the default.
"""

import re
from collections.abc import Collection, Mapping

from tornado_frontdoor.surfaces.base import Headers

MAX_AGE_S = 600
EXPOSED = "X-Request-Id, Retry-After, X-Frontdoor-Upstream, X-Frontdoor-Wait-Ms, request-id"
_NAMES = re.compile(r"[A-Za-z0-9_-]+(\s*,\s*[A-Za-z0-9_-]+){0,63}")


def allowed_origin(headers: Mapping[str, str], listed: Collection[str]) -> str | None:
    """Return the origin that a request (lower-case names) comes from, if it is listed."""
    origin = headers.get("origin")
    if origin is None or not ("*" in listed or origin.lower() in listed):
        return None
    return origin if origin.isascii() and origin.isprintable() else None


def readable_by(origin: str) -> Headers:
    """Return what lets a page of an origin read an answer."""
    return (
        ("Access-Control-Allow-Origin", origin),
        ("Access-Control-Expose-Headers", EXPOSED),
        ("Vary", "Origin"),
    )


def may_be_sent(headers: Mapping[str, str], methods: Collection[str]) -> Headers:
    """Return what lets a browser send what it asks about beforehand."""
    asked = headers.get("access-control-request-headers", "")
    names = [("Access-Control-Allow-Headers", asked)] if _NAMES.fullmatch(asked) else []
    return [
        ("Access-Control-Allow-Methods", ", ".join(methods)),
        *names,
        ("Access-Control-Max-Age", str(MAX_AGE_S)),
    ]
