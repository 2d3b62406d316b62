"""Every short story of a small line: all events in all orders, each step compared, up to a depth.

A world is a controller and the naive line in the same state. Worlds that differ only in when they
happen, or in the names of their tickets, are one and the same and are looked at once. What goes
wrong in a small line within a few events is found for certain, and by the shortest way there.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from naive_line import NaiveLine, Seen, seen

from tornado_frontdoor.core.admission import AdmissionController, AdmissionEvent, AdmissionLimits
from tornado_frontdoor.core.request import Ticket, TicketState

TICKETS = 4
"""Arrivals in one story."""
TIMEOUT_S = 2.0
NEW_LIMITS = ((1, 0, 2.0), (1, 1, 2.0), (2, 1, 1.0), (3, 2, 2.0))
PAUSE_LIMITS_S = (1.0, 3.0)

Event = tuple[str, float]


class Found(NamedTuple):
    """How much was looked at."""

    states: int
    transitions: int


def twin(ticket: Ticket) -> Ticket:
    """Return a ticket in the same state; `copy.copy` takes three times as long."""
    other = object.__new__(Ticket)
    for name in Ticket.__slots__:
        setattr(other, name, getattr(ticket, name))
    return other


def same_line(line: AdmissionController) -> AdmissionController:
    """Return a controller that has the very same tickets."""
    other = object.__new__(type(line))
    other.__dict__.update(line.__dict__)
    return other


class World:
    """A controller, the judge beside it, and the tickets by number."""

    __slots__ = ("gone", "line", "model", "now", "tickets")

    def __init__(self, line: AdmissionController, model: NaiveLine) -> None:
        self.line = line
        self.model = model
        self.tickets: dict[int, Ticket] = {}
        self.gone: Ticket | None = None
        self.now = 0.0

    def copy(self) -> "World":
        """Return another world in the same state."""
        other = World(same_line(self.line), self.model.copy())
        other.tickets = {number: twin(ticket) for number, ticket in self.tickets.items()}
        other.line._queue = OrderedDict(
            (number, other.tickets.get(number) or twin(ticket))
            for number, ticket in self.line._queue.items()
        )
        other.line._cooling = OrderedDict(
            (number, other.tickets.get(number) or twin(ticket))
            for number, ticket in self.line._cooling.items()
        )
        other.gone = self.gone and twin(self.gone)
        other.now = self.now
        return other

    def key(self) -> tuple[object, ...]:
        """Return what the future can depend on, times counted from now."""
        line, model, now = self.line, self.model, self.now
        awake_s, paused_s = line._awake_s(now), line._paused_s(now)
        return (
            model.arrivals,
            model.cap,
            model.queue,
            model.timeout_s,
            model.pause_limit_s if model.paused else None,
            model.draining,
            tuple(sorted(weight for _, weight in model.flying)),
            tuple(
                (waiter.weight, waiter.awake_s, waiter.paused_s, waiter.promised_s)
                for waiter in model.waiting
            ),
            tuple((weight, now - since_s) for _, weight, since_s in model.cooling),
            line._used,
            line._used_cooling,
            tuple(
                (ticket.weight, ticket.state, now - ticket.cooling_since_s)
                for ticket in line._cooling.values()
            ),
            line.paused,
            line._pause_limit_s if line.paused else None,
            line._promises_differ,
            line.draining,
            tuple(
                (
                    ticket.weight,
                    ticket.state,
                    awake_s - ticket.awake_mark_s,
                    paused_s - ticket.paused_mark_s,
                    ticket.promised_s,
                    now - ticket.arrived_s,
                )
                for ticket in line._queue.values()
            ),
            self.gone and (self.gone.state, self.gone.weight),
        )

    def events(self) -> Iterator[Event]:
        """Yield everything that can happen now."""
        yield "wait", 1.0
        yield "wait", 2.0
        if self.line.queued or self.line.cooling:
            yield "expire", 0.0
            yield "expire at the deadline", 0.0
        if self.model.arrivals < TICKETS:
            yield "arrive", 1
            yield "arrive", 2
            yield "arrive, one place kept", 1
        for number in self.tickets:
            yield "finish", number
            yield "cool", number
        if self.gone is not None:
            yield "finish again", 0.0
        for limit_s in PAUSE_LIMITS_S:
            yield "pause", limit_s
        if self.line.paused:
            yield "resume", 0.0
        if not self.line.draining:
            yield "drain", 0.0
        for index in range(len(NEW_LIMITS)):
            yield "change limits", index

    def take(self, event: Event) -> None:
        """Let it happen, and judge; raises AssertionError when the two do not agree."""
        told, right = self._happen(*event)
        assert told == right, f"decided {told}, by the rules it is {right}"
        for one in told:
            if one.reason is not None or one.cooled:
                self.gone = self.tickets.pop(one.number)
        line, model = self.line, self.model
        assert [*line._queue] == [waiter.number for waiter in model.waiting]
        assert all(ticket.state is TicketState.QUEUED for ticket in line._queue.values())
        assert line.in_flight == model.in_flight
        assert line.cooling == model.slots_cooling
        assert line.next_deadline() == model.next_deadline()

    def _happen(self, event: str, value: float) -> tuple[list[Seen], list[Seen]]:
        if event == "wait":
            self.now += value
            self.model._let_time_pass(self.now)
            return [], []
        if event == "expire at the deadline":
            return self._expire_at_the_deadline()
        if event.startswith("arrive"):
            ticket, kept = Ticket(int(value)), int(event != "arrive")
            moves = self.line.arrive(ticket, self.now, kept=kept)
            self.tickets[ticket.number] = ticket
            return seen(moves), self.model.arrive(ticket.weight, self.now, kept)
        if event == "finish":
            self.gone = self.tickets.pop(int(value))
            moves = self.line.finish(self.gone, self.now)
            return seen(moves), self.model.finish(int(value), self.now)
        if event == "cool":
            ticket = self.tickets[int(value)]
            if ticket.state is TicketState.QUEUED:
                self.gone = self.tickets.pop(int(value))
            moves = self.line.cool(ticket, self.now)
            return seen(moves), self.model.cool(int(value), self.now)
        return self._happen_to_all(event, value)

    def _happen_to_all(self, event: str, value: float) -> tuple[list[Seen], list[Seen]]:
        line, model, now = self.line, self.model, self.now
        if event == "finish again":
            assert self.gone is not None
            before = line.duplicate_finishes
            told = seen(line.finish(self.gone, now))
            assert line.duplicate_finishes == before + 1, "finishing twice is counted"
            return told, []
        if event == "expire":
            return seen(line.expire(now)), model.expire(now)
        if event == "pause":
            return seen(line.pause(value, now)), model.pause(value, now)
        if event == "resume":
            return seen(line.resume(now)), model.resume(now)
        if event == "drain":
            return seen(line.drain(now)), model.drain()
        cap, queue, timeout_s = NEW_LIMITS[int(value)]
        limits = AdmissionLimits(cap=cap, queue=queue, queue_timeout_s=timeout_s)
        moves: list[AdmissionEvent] = [*line.change_limits(limits, now)]
        return seen(moves), model.change_limits(cap, queue, timeout_s, now)

    def _expire_at_the_deadline(self) -> tuple[list[Seen], list[Seen]]:
        deadline_s = self.line.next_deadline()
        assert deadline_s is not None
        self.now = max(self.now, deadline_s)
        moves = self.line.expire(self.now)
        assert moves, "expire at next_deadline() makes progress"
        return seen(moves), self.model.expire(self.now)


def explore(
    depth: int, controller: type[AdmissionController] = AdmissionController, most: int = 10**9
) -> Found:
    """Look at every world within `depth` events of an empty line, `most` transitions at most.

    Raises an AssertionError that tells the way there when controller and rules disagree.
    """
    seen_keys: set[tuple[object, ...]] = set()
    layer: list[tuple[World, tuple[Event, ...]]] = []
    for cap, queue in product((1, 2, 3), (0, 1, 2)):
        limits = AdmissionLimits(cap=cap, queue=queue, queue_timeout_s=TIMEOUT_S)
        world = World(controller(limits), NaiveLine(cap, queue, TIMEOUT_S))
        seen_keys.add(world.key())
        layer.append((world, (("cap", cap), ("queue", queue))))
    transitions = 0
    for level in range(depth):
        following: list[tuple[World, tuple[Event, ...]]] = []
        for world, way in layer:
            for event in world.events():
                transitions += 1
                if transitions > most:
                    return Found(len(seen_keys), transitions)
                other = world.copy()
                try:
                    other.take(event)
                    key = other.key()
                except Exception as error:
                    story = ", ".join(f"{name} {value:g}" for name, value in (*way, event))
                    raise AssertionError(f"{story}: {type(error).__name__} {error}") from error
                if key not in seen_keys:
                    seen_keys.add(key)
                    if level < depth - 1:
                        following.append((other, (*way, event)))
        layer = following
    return Found(len(seen_keys), transitions)
