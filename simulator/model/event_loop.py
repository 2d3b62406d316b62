"""Two loops of simulated time behind one small interface: SimPy, and a bare heap.

Rule 1: events are ordered by instant, then by `Order`, then by when they were put in.
Rule 2: instants are absolute. A delay is added once, by whoever computes it, so that both drivers
        see the same float and the same ties.
Rule 3: nothing is cancelled; whoever put an event in ignores it when it has gone stale.
Rule 4: a stream of arrivals is fed rather than put in one by one: each has its place in the order
        as if it had been put in when the one before it had come.

The same calls give the same events in the same order from either driver, to the last bit.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from heapq import heappop, heappush
from math import inf
from typing import Any, Protocol

from simpy import Environment, Event


class Order(IntEnum):
    """What goes first at one instant; the order is that of `core/admission.py`."""

    COMPLETION = 0
    DEPARTURE = 1
    EXPIRY = 2
    ARRIVAL = 3


_ARRIVAL = int(Order.ARRIVAL)

Timed = tuple[Any, ...]
"""Anything that begins with its instant."""


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

    def feed(
        self, each: Iterable[Timed], do: Callable[[Any], None], end: Callable[[], None]
    ) -> None:
        """Call `do(one)` for each at the instant `one[0]`, as ARRIVAL; `end()` after the last.

        To be called once, before `run`; they are in order of time.
        """
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
        self._fed: Iterable[Timed] = ()
        self._come: Callable[[Any], None] = _nothing
        self._end: Callable[[], None] = _nothing

    def now(self) -> float:
        """Return `time_s`."""
        return self.time_s

    def at(self, at_s: float, order: int, do: Callable[[Any], None], what: object) -> None:
        """Call `do(what)` at the instant `at_s`, which is not in the past."""
        self._count = count = self._count + 1
        heappush(self._heap, (at_s, order, count, do, what))

    def feed(
        self, each: Iterable[Timed], do: Callable[[Any], None], end: Callable[[], None]
    ) -> None:
        """Call `do(one)` for each at the instant `one[0]`, as ARRIVAL; `end()` after the last."""
        self._fed, self._come, self._end = each, do, end

    def run(self) -> None:
        """Carry out events until there are none."""
        heap, come = self._heap, self._come
        heappush(heap, _NEVER)  # so that there is always a next one to compare with
        one: Timed | None = None
        for one in self._fed:
            at_s, count = one[0], self._count
            while heap[0][0] < at_s:
                self.time_s, _, _, do, what = heappop(heap)
                do(what)
            while heap[0][0] == at_s and heap[0] < (at_s, _ARRIVAL, count + 1):
                self.time_s, _, _, do, what = heappop(heap)
                do(what)
            self.time_s = at_s
            come(one)
        if one is not None:
            self._end()
        while heap[0] is not _NEVER:
            self.time_s, _, _, do, what = heappop(heap)
            do(what)


def _nothing(*_: object) -> None:
    """Do nothing."""


_NEVER = (inf, len(Order), 0, _nothing, None)


class _Call(Event):
    """An event that has succeeded from the start, as a Timeout has, and calls one function.

    Nobody waits for it, so it knows no environment.
    """

    _ok = True

    def __init__(
        self,
        at_s: float,
        fire: list[Callable[[Any], None]],
        do: Callable[[Any], None],
        what: object,
    ) -> None:
        self.callbacks = fire  # SimPy takes the list away and does not change it
        self._value = what
        self.at_s = at_s
        self.do = do

    def again(self, one: Timed, fire: list[Callable[[Any], None]]) -> None:
        """Be put in once more, for another thing that begins with its instant."""
        self.callbacks = fire
        self.at_s, self._value = one[0], one


class SimpyDriver:
    """Events of SimPy with one callback each: a third of the cost of a process per request.

    They are put in at an instant, as `now + (at - now)` is not always `at`: past `schedule`.
    """

    def __init__(self) -> None:
        self.time_s = 0.0
        self._world = Environment()
        self._queue: list[Any] = self._world._queue  # noqa: SLF001
        self._next = self._world._eid.__next__  # noqa: SLF001
        self._firing: list[Callable[[Any], None]] = [self._fire]
        self._fed: Iterator[Timed] = iter(())
        self._come: Callable[[Any], None] = _nothing
        self._end: Callable[[], None] = _nothing
        self._arrival: _Call | None = None

    def now(self) -> float:
        """Return `time_s`."""
        return self.time_s

    def at(self, at_s: float, order: int, do: Callable[[Any], None], what: object) -> None:
        """Call `do(what)` at the instant `at_s`, which is not in the past."""
        call = _Call(at_s, self._firing, do, what)
        heappush(self._queue, (at_s, order, self._next(), call))

    def feed(
        self, each: Iterable[Timed], do: Callable[[Any], None], end: Callable[[], None]
    ) -> None:
        """Call `do(one)` for each at the instant `one[0]`, as ARRIVAL; `end()` after the last."""
        self._fed, self._come, self._end = iter(each), do, end
        self._arrival = _Call(0.0, self._firing, self._arrived, None)
        self._following()

    def run(self) -> None:
        """Carry out events until there are none."""
        self._world.run()

    def _arrived(self, one: Timed) -> None:
        self._come(one)
        if not self._following():
            self._end()

    def _following(self) -> bool:
        """Put the next arrival in, by the event of the last one; tell whether there is one."""
        one = next(self._fed, None)
        if one is None:
            return False
        arrival = self._arrival
        assert arrival is not None
        arrival.again(one, self._firing)
        heappush(self._queue, (one[0], _ARRIVAL, self._next(), arrival))
        return True

    def _fire(self, event: Any) -> None:
        self.time_s = event.at_s
        event.do(event._value)  # noqa: SLF001 - `Event.value` checks what is known here


DRIVERS: dict[str, Callable[[], EventLoop]] = {"simpy": SimpyDriver, "heap": HeapDriver}
