"""The headers that tell a refused client when to come back: the same in every dialect."""

from math import ceil

from tornado_frontdoor.core.decisions import Reason, Refusal

LONGEST_RETRY_AFTER_MS = 59_000
"""SDKs prefer `retry-after-ms`; above 60 s some ignore it and come back far too early."""

STATUS: dict[Reason, int] = {
    Reason.QUEUE_FULL: 503,
    Reason.QUEUE_TIMEOUT: 503,
    Reason.CLIENT_DEADLINE: 503,
    Reason.MODEL_WAKING: 503,
    Reason.MODEL_ASLEEP: 503,
    Reason.UPSTREAM_DOWN: 503,
    Reason.DRAINING: 503,
    Reason.CLUSTER_OUTAGE: 503,
    Reason.UPSTREAM_ERROR: 502,
    Reason.UPSTREAM_TIMEOUT: 504,
    Reason.MODEL_NOT_FOUND: 404,
    Reason.BAD_REQUEST: 400,
    Reason.BODY_TOO_LARGE: 413,
    Reason.BUFFERS_FULL: 503,
    Reason.REQUEST_TIMEOUT: 408,
    Reason.NOT_FOUND: 404,
    Reason.METHOD_NOT_ALLOWED: 405,
    Reason.UNSUPPORTED_MEDIA_TYPE: 415,
    Reason.HEAD_TOO_LARGE: 431,
    Reason.INVALID_API_KEY: 401,
    Reason.MODEL_NOT_ALLOWED: 403,
}


def retry_headers(refusal: Refusal) -> list[tuple[str, str]]:
    """Return Retry-After (whole seconds) and its exact twin; nothing where no retry can help.

    SDKs prefer the twin, which is this caller's own where the first is a setting.
    """
    if refusal.retry_after_s is None:
        return []
    return_s = refusal.retry_after_s if refusal.return_s is None else refusal.return_s
    milliseconds = min(ceil(return_s * 1000), LONGEST_RETRY_AFTER_MS)
    return [
        ("Retry-After", str(max(1, ceil(refusal.retry_after_s)))),
        ("retry-after-ms", str(max(1, milliseconds))),
        ("x-should-retry", "true"),
    ]
