"""What can be asked of an engine, by its wake machine: always computed from state."""

from tornado_frontdoor.core.clock import Clock
from tornado_frontdoor.core.decisions import SleepDepth
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.core.retry_after import WakeEstimates
from tornado_frontdoor.core.room_seat import RoomSeat
from tornado_frontdoor.core.standing import NOTHING, Standing
from tornado_frontdoor.core.wake.machine import WakeStateMachine
from tornado_frontdoor.core.wake.policy import KeepAlive, SleepPolicy


class EngineReader:
    """The reading half of what has one wake machine; `_wake` None: the engine never sleeps."""

    key: UpstreamKey
    _clock: Clock
    _estimates: WakeEstimates
    _seat: RoomSeat
    _wake: WakeStateMachine | None

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
