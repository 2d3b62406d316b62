"""What happened at the engines of a cluster, by their own clocks' stamps, and in what order.

All run on one machine, so that their monotonic clocks are one, and the histories of several engines
can be merged: how many sequences ran at each instant at all of them together, and which request
was begun before which.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

LACK_S = 0.5
"""Slots that are free for less than this are between two requests, on a machine that is busy."""
ORDER_S = 0.1
"""Two requests that came no further apart may be let in in any order."""
SAME_INSTANT_S = 0.05
"""Two that are let in at the same instant, at two doors, may reach the engine in any order."""
STAMP_DIGITS = 12
"""Of a request id: milliseconds of its door's clock."""

Changes = Sequence[tuple[float, int, str]]
"""When, how many sequences then, and whose start it was: `GET /stand-in/history`."""


class Instant(NamedTuple):
    """What ran from then on."""

    at_s: float
    running: tuple[int, ...]
    """At each engine."""
    started: str
    """The request that was begun then, if one was."""

    @property
    def total(self) -> int:
        """What ran at all engines together."""
        return sum(self.running)


class EndedRequest(NamedTuple):
    """How one request ended for its client, as the locustfile writes it down."""

    sent_s: float
    ended_s: float
    waited_s: float
    """As the owner of the gates has told it."""
    door: str
    kind: str
    outcome: str
    request_id: str

    def came_s(self, epoch_s: float) -> float:
        """Return when its door had read its head, by its id; else when it was sent.

        `epoch_s`: the wall clock's time when the monotonic clock was 0. The id of a door whose
        clock is an hour off is of no use here.
        """
        stamp = self.request_id[:STAMP_DIGITS]
        came_s = int(stamp, 16) / 1000 - epoch_s if stamp else self.sent_s
        return came_s if self.sent_s <= came_s <= self.ended_s else self.sent_s


def merge(histories: Sequence[Changes]) -> list[Instant]:
    """Return the histories of several engines as one."""
    running = [0] * len(histories)
    merged = []
    events = [(*event, number) for number, events in enumerate(histories) for event in events]
    for at_s, sequences, started, number in sorted(events, key=lambda event: event[0]):
        running[number] = sequences
        merged.append(Instant(at_s, tuple(running), started))
    return merged


def between(history: Sequence[Instant], from_s: float, to_s: float) -> list[Instant]:
    """Return what ran in a time, with what ran when it began."""
    before = [one for one in history if one.at_s <= from_s]
    first = [before[-1]._replace(at_s=from_s, started="")] if before else []
    return first + [one for one in history if from_s < one.at_s <= to_s]


def most_of(history: Iterable[Instant]) -> int:
    """Return the most that ever ran at all engines together."""
    return max((one.total for one in history), default=0)


def most_at_one(history: Iterable[Instant]) -> int:
    """Return the most that ever ran at any of them."""
    return max((max(one.running) for one in history), default=0)


def full_again_s(history: Sequence[Instant], fault_s: float, to_s: float, cap: int) -> float | None:
    """Return when the last lack of work after a fault ended, since it; None: it did not end."""
    ended_s = fault_s
    for from_s, until_s in lacks(history, fault_s, to_s, cap):
        if until_s - from_s >= LACK_S:
            if until_s == to_s:
                return None
            ended_s = until_s
    return ended_s - fault_s


def lacks(
    history: Sequence[Instant], from_s: float, to_s: float, cap: int
) -> Iterator[tuple[float, float]]:
    """Yield from when to when less than the cap ran."""
    low_s: float | None = None
    for one in between(history, from_s, to_s):
        if one.total < cap:
            low_s = one.at_s if low_s is None else low_s
        elif low_s is not None:
            yield low_s, one.at_s
            low_s = None
    if low_s is not None:
        yield low_s, to_s


def late_s(
    history: Iterable[Instant],
    came_s: Mapping[str, float],
    waited_s: Mapping[str, float],
    excused: Collection[str] = (),
) -> list[float]:
    """Return by how much each was late that reached an engine after one that came clearly later.

    Order is that of arrival at the owner of the gates. Of the one that is late this was when it
    was begun less what it waited there, at the latest; of the other one when its door had read its
    head, at the earliest. So what a message takes on a machine that is busy is nobody's lateness.
    Those of the `excused` count neither as late nor as early.
    """
    latest_s, found = float("-inf"), []
    recent: deque[tuple[float, float]] = deque()
    for one in history:
        came = came_s.get(one.started)
        if came is None or one.started in excused:
            continue
        while recent and recent[0][0] <= one.at_s - SAME_INSTANT_S:
            latest_s = max(latest_s, recent.popleft()[1])
        arrived_s = one.at_s - waited_s[one.started]
        if arrived_s < latest_s - ORDER_S:
            found.append(latest_s - arrived_s)
        recent.append((one.at_s, came))
    return found


def read_requests(lines: Iterable[Mapping[str, Any]]) -> list[EndedRequest]:
    """Return requests as they were written down."""
    return [EndedRequest(**line) for line in lines]
