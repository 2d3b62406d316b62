"""What can be asked of a gate: always computed from state, never counted alongside it."""

from math import inf

from tornado_frontdoor.core.admission import AdmissionController, AdmissionLimits
from tornado_frontdoor.core.decisions import EngineState, SleepDepth
from tornado_frontdoor.core.engine_reader import EngineReader
from tornado_frontdoor.core.replicas import Replicas
from tornado_frontdoor.core.request import Ticket
from tornado_frontdoor.core.return_book import ReturnBook


class GateReader(EngineReader):
    """The reading half of `Gate`."""

    replicas: Replicas | None
    _admission: AdmissionController
    _last_request_s: float | None
    _returns: ReturnBook

    @property
    def limits(self) -> AdmissionLimits:
        """The limits in force."""
        return self._admission.limits

    @property
    def in_flight(self) -> int:
        """Slots taken now."""
        return self._admission.in_flight

    @property
    def cooling(self) -> int:
        """Slots of requests that were broken off, and that the engine may still work on."""
        return self._admission.cooling

    @property
    def queued(self) -> int:
        """Tickets that wait now."""
        return self._admission.queued

    @property
    def at_rest(self) -> bool:
        """Whether nobody is inside and no transition is under way."""
        return not (self.in_flight or self.cooling or self.queued or self.wake_step)

    @property
    def duplicate_finishes(self) -> int:
        """How often a ticket was finished that was gone already; above 0 is a driver's bug."""
        return self._admission.duplicate_finishes

    @property
    def oldest_wait_s(self) -> float | None:
        """Return how long the one waits who has waited longest; None: nobody waits."""
        head = self._admission.head
        return None if head is None else self._clock.now() - head.arrived_s

    @property
    def drain_interval_s(self) -> float:
        """The mean time between two slots coming free while all are taken, by what was seen."""
        return self._drain_interval_s(self._clock.now())

    def _drain_interval_s(self, now: float) -> float:
        full_s = self._admission.full_for_s(now) or 0.0
        return self._admission.drain_rate.interval_s(self._admission.limits.cap or 1, full_s)

    @property
    def returns_expected(self) -> int:
        """Refused callers who were told an instant that has not passed."""
        return len(self._returns)

    @property
    def returns_kept(self) -> int:
        """Places of the queue that are kept for them now."""
        if not self._returns or self._admission.paused:
            return 0
        now = self._clock.now()
        return self._returns.kept(now, self._drain_interval_s(now), self.limits.return_places)

    @property
    def came_back(self) -> int:
        """How many came back about when they were told, so far."""
        return self._returns.came_back

    @property
    def stayed_away(self) -> int:
        """How many did not, so far."""
        return self._returns.stayed_away

    def expected_wait_s(self, place: int) -> float:
        """Return how long whoever is at a place in line (1: next) will wait, by what was seen."""
        wake = self._wake
        wait_s = place * self.drain_interval_s if self.limits.cap else 0.0
        if wake is None or (wake.depth is None and not self.makes_room):
            return wait_s
        return wait_s + self._wake_left_s(wake, self._clock.now())

    def __repr__(self) -> str:
        flying = f"in_flight={self.in_flight}/{self.limits.cap or '-'}"
        return f"<Gate {self.key} {self.state.value} {flying} queued={self.queued}>"

    def waiting(self) -> tuple[Ticket, ...]:
        """Return the queue, head first."""
        return self._admission.waiting()

    def next_deadline(self) -> float | None:
        """Return the instant at which `expire` must be called, or None."""
        deadline_s = self._admission.next_deadline()
        if self._wake is None:
            return deadline_s
        wake_s = min(self._wake.next_deadline(), self._seat.next_deadline())
        if deadline_s is None:
            return None if wake_s == inf else wake_s
        return min(deadline_s, wake_s)

    @property
    def state(self) -> EngineState:
        """What is known of the engine."""
        if self._wake is not None:
            return self._wake.state
        return EngineState.DOWN if self._admission.paused else EngineState.AWAKE

    @property
    def sleep_depth(self) -> SleepDepth | None:
        """How far the engine is from serving; None while it is awake."""
        if self._wake is not None:
            return self._wake.depth
        return SleepDepth.RESTARTING if self._admission.paused else None

    @property
    def down_why(self) -> str:
        """Why the engine, or each of several, is down; empty: it is not, or nobody knows."""
        if self.state is not EngineState.DOWN:
            return ""
        if self._wake is not None:
            return self._wake.why
        return "; ".join(f"{one.name}: {one.why}" for one in self.replicas or () if one.why)

    def sleep_of(self, replica: str) -> dict[str, object] | None:  # noqa: ARG002 - there is none
        """Return how one of several engines sleeps, as plain values; None: not by itself."""
        return None

    def idle_for_s(self) -> float | None:
        """Return the time since a request last came or ended; None: there was none."""
        now = self._clock.now()
        return None if self._last_request_s is None else now - self._last_request_s
