"""What serves the admitted: replicas behind one address, or slots that are always free.

Rule 1: the front door does not choose the replica; `pick` models whatever stands between.
Rule 2: a request that finds no slot in its replica waits there, unseen by the front door: that is
        the hidden wait.
"""

from collections.abc import Callable
from math import inf
from typing import Protocol

from simulator.engine_model.replica import Replica, What
from simulator.model.attempt import Attempt
from simulator.model.event_loop import EventLoop, Order
from simulator.model.scenario import Scenario
from simulator.traffic.distributions import unit
from simulator.traffic.streams import Purpose, Streams

_COMPLETION = int(Order.COMPLETION)


class Backend(Protocol):
    """Takes admitted visits and calls `done(visit)` at the end of each."""

    def start(self, visit: Attempt) -> None:
        """Take a visit in now."""
        ...

    def abort(self, visit: Attempt) -> None:
        """Drop a visit whose client has left."""
        ...


class FreeSlots:
    """Each visit takes its own seconds, whoever else is there: one event and no more."""

    def __init__(self, driver: EventLoop, done: Callable[[Attempt], None]) -> None:
        self._at = driver.at
        self._done = done

    def start(self, visit: Attempt) -> None:
        """Take a visit in now: at the instant of its grant."""
        self._at(visit.admitted_s + visit.work, _COMPLETION, self._done, visit)

    def abort(self, visit: Attempt) -> None:
        """Nothing to do: the end of a visit that is gone is ignored."""


class ReplicaSet:
    """Fluid replicas; see `replica.py` for how they share their speed."""

    def __init__(
        self,
        scenario: Scenario,
        streams: Streams,
        driver: EventLoop,
        done: Callable[[Attempt], None],
    ) -> None:
        self._driver = driver
        self._done = done
        self._streams = streams
        self._pick = scenario.pick
        profile = scenario.service.profile
        self._by_tokens = profile is not None
        self._replicas = [
            Replica(
                scenario.slots, scenario.service.speed, None if profile is None else profile.prefill
            )
            for _ in range(scenario.replicas)
        ]
        self._inside = [0] * scenario.replicas
        self._armed_s = [inf] * scenario.replicas
        self._turn = 0

    def start(self, visit: Attempt) -> None:
        """Take a visit in now, at the replica that is picked."""
        at = self._picked(visit)
        visit.replica = at
        self._inside[at] += visit.weight
        now = self._driver.time_s
        # One token first, so that its instant is known; work in seconds has no first token.
        first = 1.0 if self._by_tokens else visit.work
        self._replicas[at].start(
            visit,
            first,
            now,
            steps=int(self._by_tokens),
            step_work=visit.work - first,
            weight=visit.weight,
            prompt=visit.prompt,
        )
        self._settle(at)

    def abort(self, visit: Attempt) -> None:
        """Drop a visit whose client has left; its slot is free at once."""
        at = visit.replica
        if self._replicas[at].abort(visit, self._driver.time_s):
            self._inside[at] -= visit.weight
            self._settle(at)

    def _picked(self, visit: Attempt) -> int:
        count = len(self._replicas)
        if count == 1:
            return 0
        if self._pick == "least":
            return self._inside.index(min(self._inside))
        if self._pick == "random":
            streams = self._streams
            place = (streams.seed, streams.replication, Purpose.LATE, 1)
            return int(count * unit(*place, visit.index, visit.attempts))
        self._turn += 1
        return (self._turn - 1) % count

    def _settle(self, at: int) -> None:
        """Note what has happened in a replica, and be called when something will."""
        now = self._driver.time_s
        replica = self._replicas[at]
        finished: list[Attempt] = []
        for what, visit, at_s in replica.moments(now):
            assert isinstance(visit, Attempt)
            if what is What.STARTED:
                visit.started_s = at_s
            elif what is What.STEPPED:
                visit.first_token_s = at_s
            else:
                self._inside[at] -= visit.weight
                finished.append(visit)
        next_s = replica.next_event()
        if next_s < self._armed_s[at]:
            self._armed_s[at] = next_s
            self._driver.at(next_s, _COMPLETION, self._wake, (at, next_s))
        for visit in finished:
            self._done(visit)

    def _wake(self, armed: tuple[int, float]) -> None:
        at, at_s = armed
        if self._armed_s[at] == at_s:
            self._armed_s[at] = inf
            self._settle(at)
