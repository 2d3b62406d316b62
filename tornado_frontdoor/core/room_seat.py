"""One engine's seat at the ledger of the GPUs: what its wake machine asks for and has to hear.

Rule 1: what the ledger holds is a state, not a message: `hear` may be called at any time, and does
        nothing where nothing is new.
Rule 2: an engine that was told to make room either does, or is soon seen to be unable to; then
        somebody else has to.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from tornado_frontdoor.core.decisions import EngineState, Measured, OutOfMemory
from tornado_frontdoor.core.gpu_ledger import GpuLedger
from tornado_frontdoor.core.gpu_occupant import Occupant
from tornado_frontdoor.core.gpu_sizes import GpuSizes
from tornado_frontdoor.core.wake.machine import Gpu, WakeOrder, WakeStateMachine
from tornado_frontdoor.engines.base import STOPPED

_LEVEL_OF = {
    EngineState.SLEEPING: 1,
    EngineState.OFFLOADED: 2,
    EngineState.STOPPED: STOPPED,
    EngineState.DOWN: STOPPED,
}
_GONE = tuple(_LEVEL_OF)
NEWS_GIB = 0.1
"""A difference between two measurements that is worth a word."""


class RoomSeat:
    """The seat of one gate. `work` returns what only the gate knows of the engine's work."""

    def __init__(
        self,
        ledger: GpuLedger,
        owner: str,
        wake: WakeStateMachine,
        work: Callable[[], Occupant],
        sizes: GpuSizes,
    ) -> None:
        self._ledger = ledger
        self._owner = owner
        self._wake = wake
        self._work = work
        self.sizes = sizes
        """What the engine was seen to take."""
        ledger.join(owner, self._facts)

    @property
    def makes_room(self) -> bool:
        """Whether nobody may be admitted any more, for another engine's sake."""
        ledger = self._ledger
        if ledger.calm:
            return False
        return ledger.told(self._owner) is not None and self._wake.state not in _GONE

    @property
    def calm(self) -> bool:
        """Whether nothing is going on with any engine's room."""
        return self._ledger.calm and not self._wake.makes_room

    @property
    def room_for(self) -> str:
        """The upstream that the engine makes, or made last, room for."""
        return self._ledger.room_for(self._owner)

    @property
    def waits_for(self) -> str | None:
        """What keeps the engine from waking, if the GPUs do."""
        return self._ledger.waits_for(self._owner) if self._wake.step == "gpu" else None

    @property
    def awake_gib(self) -> float:
        """What it takes of each of its GPUs while it is awake, as far as is known; 0: unknown."""
        policy = self._wake.policy
        return self.sizes.awake_gib(policy.awake_gib, measured=policy.measures_awake)

    def _asleep_gib(self, level: int) -> float:
        policy = self._wake.policy
        seen_gib = self.sizes.seen_gib(level) if policy.measures_asleep else None
        return policy.asleep_gib if seen_gib is None else seen_gib

    def takes_gib(self) -> dict[str, float]:
        """Return what it takes awake and asleep, as far as is known."""
        if not self._wake.policy.awake_gib:
            return {}
        return {
            "awake": self.awake_gib,
            "sleeping": self._asleep_gib(1),
            "offloaded": self._asleep_gib(2),
        }

    def measured(self, gib: float) -> tuple[Measured, ...]:
        """Take what it takes now; told where it changes what is known by 0.1 GiB or more."""
        wake = self._wake
        level = 0 if wake.state is EngineState.AWAKE else _LEVEL_OF.get(wake.state)
        if level in (None, STOPPED) or wake.transition is not None:
            return ()  # it is on its way: nobody knows of which state this was
        before_gib = self.sizes.seen_gib(level)
        if before_gib is not None and abs(before_gib - gib) < NEWS_GIB:
            return ()
        self.sizes = self.sizes.seen(level, gib)
        return (Measured(level, gib),)

    def ran_out(self) -> OutOfMemory:
        """Learn from a wake that ran out of memory although there was room by the ledger."""
        set_gib = self._wake.policy.awake_gib
        if not set_gib:
            return OutOfMemory()
        free_gib, more_gib = self._ledger.ran_out(self._owner)
        counted_gib = self.awake_gib
        if free_gib < inf:
            self.sizes = self.sizes.ran_out(counted_gib, set_gib, free_gib, more_gib)
        return OutOfMemory(counted_gib, self.awake_gib)

    def what_it_does(self, late_s: float) -> str | None:
        """Say what keeps callers waiting, where how deep it sleeps does not say it.

        `late_s`: by how much its wake is overdue.
        """
        if self._wake.state is EngineState.UNKNOWN:
            return "has not shown yet that it is awake"
        if self.makes_room or self.waits_for:
            return f"waits for {self.waits_for or 'its next turn on its GPUs'}"
        if late_s > 1 and self._wake.state is EngineState.WAKING:
            return f"takes {late_s:.0f} s longer to wake than it should"
        return None

    def trouble(self, now: float) -> str | None:
        """Say why no wake begins although it is wanted, if the last one failed."""
        wake = self._wake
        if not wake.wake_backoff.on(now):
            return None
        left_s = wake.wake_backoff.until_s - now
        return f"the last try to wake it failed ({wake.why}), the next is in {left_s:.0f} s"

    def next_deadline(self) -> float:
        """Return when time alone may give it its turn; infinity: it does not wait for one."""
        return self._ledger.next_deadline() if self._wake.step == "gpu" else inf

    def ask(self, order: Gpu, now: float) -> None:
        """Take what the machine wants of its devices to the ledger."""
        ledger, wake, owner = self._ledger, self._wake, self._owner
        run = wake.transition
        if order is Gpu.FREE:
            if ledger.told(owner) is not None and wake.state not in _GONE:
                ledger.cannot_leave(owner, now)
            ledger.release(owner)
        elif run is None:
            ledger.ask_to_sleep(owner, 0)  # a call may be under way that nobody waits for
        elif run.wakes:
            ledger.ask_to_wake(owner, now)
        else:
            ledger.ask_to_sleep(owner, run.level)

    def settle(self, now: float) -> tuple[list[WakeOrder], Sequence[str]]:
        """Have the ledger decide; return what the machine makes of it, and whom it concerns too."""
        if self.calm:
            return [], ()
        decided = self._ledger.settle(now)
        return self.hear(now), [owner for owner in decided if owner != self._owner]

    def hear(self, now: float) -> list[WakeOrder]:
        """Tell the machine how it stands in the ledger."""
        ledger, wake, owner = self._ledger, self._wake, self._owner
        told = ledger.told(owner)
        if told is not None and wake.state in _GONE and wake.transition is None:
            ledger.left(owner)
            told = None
        orders = [*wake.make_room(told, now)]
        if wake.room_refused(now):
            ledger.cannot_leave(owner, now)
            orders += wake.make_room(None, now)
        if ledger.holds(owner):
            orders += wake.granted(now)
        if why := ledger.impossible(owner):
            orders += wake.never_fits(why, now)
        return orders

    def _facts(self) -> Occupant:
        wake, policy = self._wake, self._wake.policy
        level = _LEVEL_OF.get(wake.state, 0)
        run = wake.transition
        if wake.state is EngineState.WAKING and run is not None and not run.committed:
            level = wake.engine.level
        return replace(
            self._work(),
            devices=policy.devices,
            groups=policy.groups,
            awake_gib=self.awake_gib,
            asleep_gib=self._asleep_gib(1),
            offloaded_gib=self._asleep_gib(2),
            weights_gib=policy.weights_gib,
            priority=policy.priority,
            pinned=wake.pinned,
            levels=tuple(sorted(wake.usable_levels)),
            level=level,
            known=wake.state is not EngineState.UNKNOWN,
        )
