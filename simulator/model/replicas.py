"""What serves the admitted: replicas behind one address.

Rule 1: with `least` the gate picks the replica, by the code of the front door; otherwise it does
        not know of them, and `balancing` models whatever stands between.
Rule 2: a request that finds no slot in its replica waits there, unseen by the front door: that is
        the hidden wait.
"""

from collections.abc import Callable, Hashable
from math import inf
from typing import Any, NamedTuple

from simulator.engine_model.kv_memory import PagedReplica
from simulator.engine_model.replica import Replica, Speed, What
from simulator.model.attempt import Attempt
from simulator.model.event_loop import EventLoop, Order
from simulator.model.kv_records import KvRecords
from simulator.model.scenario import Scenario
from simulator.traffic.distributions import unit
from simulator.traffic.engine_details import Chances
from simulator.traffic.service_profiles import ServiceProfile
from simulator.traffic.streams import Purpose, Streams
from tornado_frontdoor.core.replicas import Engines

_COMPLETION = int(Order.COMPLETION)
# Met with each request: Python 3.11 takes long to find a member of an enumeration.
_STARTED, _STEPPED, _FINISHED = What.STARTED, What.STEPPED, What.FINISHED


def engines_of(scenario: Scenario) -> Engines | None:
    """Return the replicas that the gate picks from, by number; None: it does not know of them.

    Each is bounded by its slots, unless the cap is above them all, which only a simulation allows.
    """
    # Where all serve, nobody need know on which of them what runs.
    nobody_asks = scenario.always_has_slots and scenario.tiers is None
    if scenario.replicas == 1 or scenario.balancing != "least" or nobody_asks:
        return None
    bound = scenario.slots if scenario.cap <= scenario.replicas * scenario.slots else inf
    return Engines({str(number): bound for number in range(scenario.replicas)})


def new_replica(slots: int, speed: Speed, profile: ServiceProfile | None) -> Replica:
    """Return a replica that does what its profile says, if there is one."""
    if profile is None:
        return Replica(slots, speed)
    if profile.details.paged:
        return PagedReplica(slots, speed, profile.prefill, profile.details.cache)
    return Replica(slots, speed, profile.prefill)


def chances_of(profile: ServiceProfile | None, streams: Streams) -> Chances | None:
    """Return what requests meet by chance; None: nothing."""
    if profile is None or profile.details.plain:
        return None
    return Chances(profile.details, streams)


class Work(NamedTuple):
    """What one request asks for."""

    number: int
    prompt: float
    tokens: float
    weight: int = 1


def start_in_detail(
    replica: Replica, job: Hashable, work: Work, now: float, chances: Chances
) -> None:
    """Start a request with what it meets by chance: its first token, then all further ones."""
    cached = chances.cached(work.number, work.prompt)
    further = chances.work(work.number, work.tokens - 1.0)
    if isinstance(replica, PagedReplica):
        replica.start(
            job,
            1.0,
            now,
            steps=1,
            step_work=further,
            weight=work.weight,
            prompt=work.prompt,
            cached=cached,
        )
    else:
        read = work.prompt - cached
        replica.start(job, 1.0, now, steps=1, step_work=further, weight=work.weight, prompt=read)


class ReplicaSet:
    """Fluid replicas; see `replica.py` for how they share their speed."""

    def __init__(
        self,
        scenario: Scenario,
        streams: Streams,
        loop: EventLoop,
        done: Callable[[Attempt], None],
        kv: KvRecords | None = None,
    ) -> None:
        self._loop = loop
        self._done = done
        self._streams = streams
        self._balancing = scenario.balancing
        profile = scenario.service.profile
        self._by_tokens = profile is not None
        self._chances = chances_of(profile, streams)
        slots, speed = scenario.slots, scenario.service.speed
        self._replicas = [new_replica(slots, speed, profile) for _ in range(scenario.replicas)]
        self._kv = kv
        if kv is not None:
            kv.watch([each for each in self._replicas if isinstance(each, PagedReplica)])
        self._names = [str(at) for at in range(scenario.replicas)]
        self._armed_s = [inf] * scenario.replicas
        self._turn = 0

    def start(self, attempt: Attempt) -> None:
        """Take an attempt in now, at the replica that is picked."""
        at = self._picked(attempt)
        attempt.replica = self._names[at]
        now = self._loop.time_s
        if self._chances is not None:
            work = Work(attempt.index, attempt.prompt, attempt.work, attempt.weight)
            start_in_detail(self._replicas[at], attempt, work, now, self._chances)
            self._settle(at)
            return
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
            if self._kv is not None:
                self._kv.left(attempt)
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
        for what, job, at_s in replica.moments(now):
            attempt: Any = job
            if what is _STARTED:
                attempt.started_s = at_s
            elif what is _STEPPED:
                attempt.first_token_s = at_s
            elif what is _FINISHED:
                finished.append(attempt)
            elif self._kv is not None:
                if what is What.PREEMPTED:
                    self._kv.preempted(attempt, at_s)
                else:
                    self._kv.resumed(attempt, at_s)
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
