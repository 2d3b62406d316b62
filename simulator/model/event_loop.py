"""Two loops of simulated time behind one small interface: SimPy, and a bare heap.

Rule 1: events are ordered by instant, then by `Order`, then by when they were put in.
Rule 2: instants are absolute. A delay is added once, by whoever computes it, so that both drivers
        see the same float and the same ties.
Rule 3: nothing is cancelled; whoever put an event in ignores it when it has gone stale.

The same calls give the same events in the same order from either driver, to the last bit.
"""

from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any, Protocol

from simpy import Environment, Event


class Order(IntEnum):
    """What goes first at one instant; the order is that of `core/admission.py`."""

    COMPLETION = 0
    DEPARTURE = 1
    EXPIRY = 2
    ARRIVAL = 3


class EventLoop(Protocol):
    """A clock that things can be put on. It is a `tornado_frontdoor.core.clock.Clock`."""

    time_s: float
    """The instant of the event that is being carried out."""

    def now(self) -> float:
        """Return `time_s`."""
        ...

    def at(self, at_s: float, order: int, do: Callable[[Any], None], what: object) -> None:
        """Call `do(what)` at the instant `at_s`, which is not in the past."""
        ...

    def run(self) -> None:
        """Carry out events until there are none."""
        ...


class HeapDriver:
    """A heap of tuples and nothing else."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self._heap: list[tuple[float, int, int, Callable[[Any], None], object]] = []
        self._count = 0

    def now(self) -> float:
        """Return `time_s`."""
        return self.time_s

    def at(self, at_s: float, order: int, do: Callable[[Any], None], what: object) -> None:
        """Call `do(what)` at the instant `at_s`, which is not in the past."""
        self._count = count = self._count + 1
        heappush(self._heap, (at_s, order, count, do, what))

    def run(self) -> None:
        """Carry out events until there are none."""
        heap = self._heap
        while heap:
            self.time_s, _, _, do, what = heappop(heap)
            do(what)


class _World(Environment):
    """An Environment that takes instants: `now + (at - now)` is not always `at`."""

    def schedule_at(self, event: Event, order: int, at_s: float) -> None:
        heappush(self._queue, (at_s, order, next(self._eid), event))  # type: ignore[misc]


class _Call(Event):
    """An event that has succeeded from the start, as a Timeout has, and calls one function."""

    def __init__(
        self,
        env: Environment,
        at_s: float,
        fire: Callable[[Event], None],
        do: Callable[[Any], None],
        what: object,
    ) -> None:
        self.env = env
        self.callbacks = [fire]
        self._ok = True
        self._value = what
        self.at_s = at_s
        self.do = do


class SimpyDriver:
    """Events of SimPy with one callback each: a third of the cost of a process per request."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self._world = _World()

    def now(self) -> float:
        """Return `time_s`."""
        return self.time_s

    def at(self, at_s: float, order: int, do: Callable[[Any], None], what: object) -> None:
        """Call `do(what)` at the instant `at_s`, which is not in the past."""
        world = self._world
        world.schedule_at(_Call(world, at_s, self._fire, do, what), order, at_s)

    def run(self) -> None:
        """Carry out events until there are none."""
        self._world.run()

    def _fire(self, event: Any) -> None:
        self.time_s = event.at_s
        event.do(event._value)  # noqa: SLF001 - `Event.value` checks what is known here


DRIVERS: dict[str, Callable[[], EventLoop]] = {"simpy": SimpyDriver, "heap": HeapDriver}
