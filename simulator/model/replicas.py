"""What serves the admitted: replicas behind one address.

Rule 1: with `least` the gate picks the replica, by the code of the front door; otherwise it does
        not know of them, and `balancing` models whatever stands between.
Rule 2: a request that finds no slot in its replica waits there, unseen by the front door: that is
        the hidden wait.
"""

from collections.abc import Callable
from math import inf

from simulator.engine_model.replica import Replica, What
from simulator.model.attempt import Attempt
from simulator.model.event_loop import EventLoop, Order
from simulator.model.scenario import Scenario
from simulator.traffic.distributions import unit
from simulator.traffic.streams import Purpose, Streams
from tornado_frontdoor.core.replicas import Engines

_COMPLETION = int(Order.COMPLETION)


def engines_of(scenario: Scenario) -> Engines | None:
    """Return the replicas that the gate picks from, by number; None: it does not know of them.

    Each is bounded by its slots, unless the cap is above them all, which only a simulation allows.
    """
    if scenario.replicas == 1 or scenario.balancing != "least" or scenario.always_has_slots:
        return None
    bound = scenario.slots if scenario.cap <= scenario.replicas * scenario.slots else inf
    return Engines({str(number): bound for number in range(scenario.replicas)})


class ReplicaSet:
    """Fluid replicas; see `replica.py` for how they share their speed."""

    def __init__(
        self,
        scenario: Scenario,
        streams: Streams,
        loop: EventLoop,
        done: Callable[[Attempt], None],
    ) -> None:
        self._loop = loop
        self._done = done
        self._streams = streams
        self._balancing = scenario.balancing
        profile = scenario.service.profile
        self._by_tokens = profile is not None
        self._replicas = [
            Replica(
                scenario.slots, scenario.service.speed, None if profile is None else profile.prefill
            )
            for _ in range(scenario.replicas)
        ]
        self._armed_s = [inf] * scenario.replicas
        self._turn = 0

    def start(self, attempt: Attempt) -> None:
        """Take an attempt in now, at the replica that is picked."""
        at = self._picked(attempt)
        attempt.replica = str(at)
        now = self._loop.time_s
        # One token first, so that its instant is known; work in seconds has no first token.
        first = 1.0 if self._by_tokens else attempt.work
        self._replicas[at].start(
            attempt,
            first,
            now,
            steps=int(self._by_tokens),
            step_work=attempt.work - first,
            weight=attempt.weight,
            prompt=attempt.prompt,
        )
        self._settle(at)

    def abort(self, attempt: Attempt) -> None:
        """Drop an attempt whose client has left; its slot is free at once."""
        at = int(attempt.replica or 0)
        if self._replicas[at].abort(attempt, self._loop.time_s):
            self._settle(at)

    def _picked(self, attempt: Attempt) -> int:
        count = len(self._replicas)
        if count == 1:
            return 0
        if self._balancing == "least":
            return int(attempt.replica or 0)
        if self._balancing == "random":
            streams = self._streams
            place = (streams.seed, streams.replication, Purpose.LATE, 1)
            return int(count * unit(*place, attempt.index, attempt.attempts))
        self._turn += 1
        return (self._turn - 1) % count

    def _settle(self, at: int) -> None:
        """Note what has happened in a replica, and be called when something will."""
        now = self._loop.time_s
        replica = self._replicas[at]
        finished: list[Attempt] = []
        for what, attempt, at_s in replica.moments(now):
            assert isinstance(attempt, Attempt)
            if what is What.STARTED:
                attempt.started_s = at_s
            elif what is What.STEPPED:
                attempt.first_token_s = at_s
            else:
                finished.append(attempt)
        next_s = replica.next_event()
        if next_s < self._armed_s[at]:
            self._armed_s[at] = next_s
            self._loop.at(next_s, _COMPLETION, self._wake, (at, next_s))
        for attempt in finished:
            self._done(attempt)

    def _wake(self, armed: tuple[int, float]) -> None:
        at, at_s = armed
        if self._armed_s[at] == at_s:
            self._armed_s[at] = inf
            self._settle(at)
