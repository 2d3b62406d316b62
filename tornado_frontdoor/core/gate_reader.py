"""What can be asked of a gate: always computed from state, never counted alongside it."""

from math import inf

from tornado_frontdoor.core.admission import AdmissionController, AdmissionLimits
from tornado_frontdoor.core.clock import Clock
from tornado_frontdoor.core.decisions import EngineState, SleepDepth
from tornado_frontdoor.core.replicas import Replicas
from tornado_frontdoor.core.request import Ticket, UpstreamKey
from tornado_frontdoor.core.retry_after import DrainRate, WakeEstimates
from tornado_frontdoor.core.return_book import ReturnBook
from tornado_frontdoor.core.room_seat import RoomSeat
from tornado_frontdoor.core.standing import NOTHING, Standing
from tornado_frontdoor.core.wake.machine import WakeStateMachine
from tornado_frontdoor.core.wake.policy import KeepAlive, SleepPolicy


class GateReader:
    """The reading half of `Gate`."""

    key: UpstreamKey
    replicas: Replicas | None
    _admission: AdmissionController
    _clock: Clock
    _estimates: WakeEstimates
    _last_request_s: float | None
    _drain_rate: DrainRate
    _returns: ReturnBook
    _seat: RoomSeat
    _wake: WakeStateMachine | None

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
        return self._drain_rate.interval_s(self._admission.limits.cap or 1, full_s)

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

    def _wake_since_s(self, wake: WakeStateMachine, now: float) -> float:
        """Return how long the wake is under way already; waiting for the GPU is no part of it."""
        began_s = wake.transition.since_s if wake.transition else wake.down_since_s
        return 0.0 if began_s is None or wake.step == "gpu" else now - began_s

    def _wake_left_s(self, wake: WakeStateMachine, now: float) -> float:
        """Return what is left of a wake, or how long one will take, after the pause that is on.

        One that is awake and makes room for another will have to wake from a sleep.
        """
        left_s = self._estimates.expected_s(
            wake.depth or SleepDepth.SLEEPING, self._wake_since_s(wake, now)
        )
        return left_s + max(wake.wake_backoff.until_s - now, 0.0)

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
    def sleep_policy(self) -> SleepPolicy | None:
        """The policy in force; None: the engine is never slept."""
        return None if self._wake is None else self._wake.policy

    @property
    def sleep_support(self) -> bool | None:
        """Whether the engine can sleep; None until that was found out."""
        return False if self._wake is None else self._wake.engine.support

    @property
    def sleep_fault(self) -> str | None:
        """Why level 2 is not used any more, if so."""
        return None if self._wake is None else self._wake.engine.reload_fault

    @property
    def sleep_levels(self) -> frozenset[int]:
        """How deep its kind of engine can be put to sleep."""
        return frozenset() if self._wake is None else self._wake.levels

    @property
    def wake_step(self) -> str | None:
        """Where a transition is, or `gpu` while it waits for that; None: there is none."""
        return None if self._wake is None else self._wake.step

    @property
    def wake_steps(self) -> tuple[str, ...]:
        """All steps of the transition that is under way; none where there is none."""
        run = None if self._wake is None else self._wake.transition
        return () if run is None else tuple(step.label for step in run.steps)

    @property
    def transition_s(self) -> float | None:
        """Return for how long a transition has been under way; None: there is none."""
        run = None if self._wake is None else self._wake.transition
        return None if run is None else self._clock.now() - run.began_s

    @property
    def waits_for(self) -> str | None:
        """What of its GPUs the engine waits for, in words; None: nothing."""
        return None if self._wake is None else self._seat.waits_for

    def wake_trouble(self) -> str | None:
        """Say why no wake begins although it is wanted, if the last one failed."""
        return None if self._wake is None else self._seat.trouble(self._clock.now())

    @property
    def down_why(self) -> str:
        """Why the engine, or each of several, is down; empty: it is not, or nobody knows."""
        if self.state is not EngineState.DOWN:
            return ""
        if self._wake is not None:
            return self._wake.why
        return "; ".join(f"{one.name}: {one.why}" for one in self.replicas or () if one.why)

    @property
    def makes_room(self) -> bool:
        """Whether nobody is admitted any more, so that another engine can wake."""
        return self._wake is not None and self._seat.makes_room

    @property
    def standing(self) -> Standing:
        """The orders that hold the engine awake or asleep; instants by the gate's clock."""
        return NOTHING if self._wake is None else self._wake.standing

    @property
    def keep_alive(self) -> KeepAlive | None:
        """How long a caller wants it kept awake; None: nobody does, or no longer."""
        keep = None if self._wake is None else self._wake.keep_alive
        return keep if keep is not None and keep.until_s > self._clock.now() else None

    @property
    def wakes_total(self) -> int:
        """Sequences begun that wake the engine."""
        return 0 if self._wake is None else self._wake.wakes_total

    @property
    def learned_s(self) -> dict[str, float]:
        """How long the engine takes to be awake again, by `SleepDepth` value; what is known of it.

        To be kept, for the next front door.
        """
        return self._estimates.export()

    @property
    def proof(self) -> dict[str, object] | None:
        """What its canary was answered while it was good, and what the last one has shown."""
        if self._wake is None:
            return None
        proof = self._wake.engine.proof
        return {
            "known_good": None if proof.token is None else proof.token._asdict(),
            "last": None if proof.result is None else proof.result.value,
            "detail": proof.detail or None,
            "quarantined": proof.quarantined,
        }

    @property
    def takes_gib(self) -> dict[str, float]:
        """What the engine takes of each of its GPUs, as far as is known; empty: nothing is."""
        return {} if self._wake is None else self._seat.takes_gib()

    @property
    def learned_gib(self) -> dict[str, float]:
        """What was learned of the memory that the engine takes, to be kept likewise."""
        return {} if self._wake is None else self._seat.sizes.export()

    def idle_for_s(self) -> float | None:
        """Return the time since a request last came or ended; None: there was none."""
        now = self._clock.now()
        return None if self._last_request_s is None else now - self._last_request_s
