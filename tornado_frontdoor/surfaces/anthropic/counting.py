"""Counting tokens: the engine's own count of the very messages it would be asked with.

vLLM's `/tokenize` answers with every token's number and no switch to leave them out, so a long
answer is not read further than its count. There is no count of our own: where the engine has none,
clients are told so and estimate for themselves.
"""

import re
from collections.abc import Callable

from tornado_frontdoor.core.decisions import Outcome
from tornado_frontdoor.surfaces.anthropic import errors
from tornado_frontdoor.surfaces.anthropic.errors import Failure
from tornado_frontdoor.surfaces.anthropic.fields import encode
from tornado_frontdoor.surfaces.anthropic.relays import WholeRelay
from tornado_frontdoor.surfaces.anthropic.response import Asked, answer_headers, parsed
from tornado_frontdoor.surfaces.base import Document, Ending

_ENOUGH_BYTES = 64 * 1024
_COUNT_FIRST = re.compile(rb'\s*\{\s*"count"\s*:\s*(\d{1,12})\s*,')
_NO_COUNTING = "Counting tokens is not available for this model"


class CountRelay(WholeRelay):
    """Reads the answer of `/tokenize`, or what `translate` can read."""

    def __init__(
        self, asked: Asked, translate: Callable[[bytes, Asked], bytes] | None = None
    ) -> None:
        super().__init__(asked, translate or _count)

    def data(self, chunk: bytes) -> bytes:
        """Keep a piece, unless the count is known and the answer goes on and on."""
        super().data(chunk)
        if self._size > _ENOUGH_BYTES and self.ending is None and self._status == 200:
            found = _COUNT_FIRST.match(self._pieces[0])
            if found is not None:
                headers = answer_headers(self._asked, "application/json")
                body = _answer(int(found[1]))
                self.ending = Ending(Outcome.SERVED, document=Document(200, headers, body))
        return b""

    def _failure(self, body: bytes) -> Failure:
        if self._status in (404, 405, 501):
            return Failure(404, "not_found_error", _NO_COUNTING)
        return errors.engine_failure(self._status, self._headers, body)


def _count(body: bytes, asked: Asked) -> bytes:  # noqa: ARG001 - as every translation
    count = parsed(body).get("count")
    if isinstance(count, bool) or not isinstance(count, int):
        raise errors.broken(_NO_COUNTING, status=404)
    return _answer(count)


def _answer(count: int) -> bytes:
    return encode({"input_tokens": count}).encode()
