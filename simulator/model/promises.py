"""A witness of what refused callers were promised: whose place may be kept from a newcomer.

It keeps plain lists of its own and knows nothing of how the gate reckons: places may be kept from
a newcomer for those who are promised an instant that has not passed, and never from one of them who
comes about then, unless that one is one of twins: who were promised an instant more than once, for
none of them is expected.
"""

from collections.abc import Hashable

from tornado_frontdoor.core.return_book import EARLY_S, LATE_S


class PromiseWitness:
    """What one gate has promised, as far as it may bear on who is turned away."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._open: list[tuple[float, Hashable]] = []
        self._twins: dict[Hashable, float] = {}
        """Until when they are twins."""

    def promised(self, token: Hashable, now: float, retry_after_s: float | None) -> None:
        """Note what a refused caller was told."""
        if token is None or retry_after_s is None:
            return
        if self._is_twin(token, now) or any(other == token for _, other in self._open):
            self._twins[token] = now + retry_after_s + LATE_S
            self._open = [one for one in self._open if one[1] != token]
        else:
            self._open.append((now + retry_after_s, token))

    def most_kept(self, token: Hashable, now: float) -> int:
        """Return how many places may be kept from who comes now; what it was promised is over."""
        self._open = [one for one in self._open if one[0] >= now - LATE_S - _ROUNDING_S]
        due = [one for one in self._open if one[1] == token and one[0] <= now + EARLY_S]
        if token is not None and due:
            self._open.remove(min(due))
            return 0
        return min(self._places, len(self._open))

    def _is_twin(self, token: Hashable, now: float) -> bool:
        return self._twins.get(token, now - 1) >= now - _ROUNDING_S


_ROUNDING_S = 1e-6
