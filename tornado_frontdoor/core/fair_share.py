"""Who of those that wait is next where slots are shared by key, and whose places are kept.

    Rule 1: next is the first in line of the key that holds the fewest slots for its share.
    Rule 2: of several it is the one that had the fewest turns for its share; then the first to
            come.
    Rule 3: within a key it is the order of arrival, and whoever is next and does not fit is waited
            for, by all.
    Rule 4: a key that asked within the last minute has one place in the queue that no other takes.

Slots are held for as long as an answer takes, so rule 1 shares the engine and not the number of
requests: long answers of one key do not crowd out short ones of another. A turn more than the
others is all that anybody is ever ahead by rule 2, and a key that had nothing to ask saves up none.
"""

from collections.abc import Iterable

from tornado_frontdoor.core.request import Ticket

REMEMBERED_S = 60.0
"""For so long after it last asked a key has a place of its own; SDKs come back within that."""


class FairShare:
    """The books of one queue by key: slots held, turns had. What is asked walks the queue once."""

    def __init__(self) -> None:
        self._holders: dict[int, tuple[str, int]] = {}
        """Key and weight of each ticket that holds slots."""
        self._held: dict[str, int] = {}
        self._turns: dict[str, float] = {}
        self._least = 0.0
        """The fewest turns that anybody had who waited when somebody last had one."""
        self._waiting: set[str] = set()
        """Keys that waited when it was last said who is next."""
        self._next = 0
        """The number of who that was."""
        self._asked_s: dict[str, float] = {}

    def kept_from(self, ticket: Ticket, queue: Iterable[Ticket], now: float) -> int | None:
        """Return how many of the last places are for other keys than who comes now.

        None: one of the places is for its own.
        """
        self._asked_s[ticket.key] = now
        waiting = {waiter.key for waiter in queue}
        if ticket.key not in waiting:
            return None
        long_ago_s = now - REMEMBERED_S
        self._asked_s = {key: at_s for key, at_s in self._asked_s.items() if at_s > long_ago_s}
        return len(self._asked_s.keys() - waiting)

    def next_of(self, queue: Iterable[Ticket]) -> Ticket:
        """Return who of a queue in order of arrival is next; it must not be empty."""
        heads: dict[str, Ticket] = {}
        for waiter in queue:
            heads.setdefault(waiter.key, waiter)
        turns = self._turns
        for key in heads.keys() - self._waiting:
            turns[key] = max(turns.get(key, 0.0), self._least)
        self._waiting = set(heads)
        held = self._held
        best = min(
            heads.values(),
            key=lambda head: (
                held.get(head.key, 0) / head.share,
                turns[head.key],
                head.number,
            ),
        )
        self._next = best.number
        return best

    def holds(self, ticket: Ticket) -> None:
        """Note that a ticket has its slots from now on: who is next, or found nobody waiting."""
        key, weight, turns = ticket.key, ticket.weight, self._turns
        self._asked_s[key] = ticket.admitted_s
        self._holders[ticket.number] = key, weight
        self._held[key] = self._held.get(key, 0) + weight
        if ticket.number == self._next:
            least = min(turns[one] for one in self._waiting)
        else:
            least = max(turns.get(key, 0.0), self._least)
        self._least = least
        turns[key] = least + weight / ticket.share
        # Who has had no more turns than the least begins there in any case.
        for one in [one for one in turns.keys() - self._waiting if turns[one] <= least]:
            del turns[one]

    def gave_back(self, ticket: Ticket) -> None:
        """Note that a ticket has no slots any more; of one never noted this does nothing."""
        key, weight = self._holders.pop(ticket.number, ("", 0))
        if weight:
            self._held[key] -= weight
            if not self._held[key]:
                del self._held[key]
