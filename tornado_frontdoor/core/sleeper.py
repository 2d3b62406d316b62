"""One engine that sleeps: its wake machine, its seat at the ledger of the GPUs, what was learned.

A gate has one, or one for each of its replicas; it joins them with its queue, and they know nothing
of that but what it tells them.
"""

from collections.abc import Callable
from math import inf

from tornado_frontdoor.core.clock import Clock
from tornado_frontdoor.core.decisions import (
    Changed,
    Decision,
    EngineState,
    FellAsleep,
    OutOfMemory,
    SleepDepth,
    SleepReason,
    WakeEnded,
)
from tornado_frontdoor.core.engine_reader import EngineReader
from tornado_frontdoor.core.gpu_occupant import Occupant
from tornado_frontdoor.core.gpu_sizes import GpuSizes
from tornado_frontdoor.core.request import Ticket, UpstreamKey
from tornado_frontdoor.core.retry_after import WakeEstimates
from tornado_frontdoor.core.room_seat import RoomSeat
from tornado_frontdoor.core.sleep_config import SleepConfig
from tornado_frontdoor.core.wake.machine import Gpu, WakeOrder, WakeStateMachine


class Sleeper(EngineReader):
    """`owner` is its address; `work` returns what only the gate knows of its work."""

    def __init__(
        self, owner: str, nap: SleepConfig, clock: Clock, work: Callable[[], Occupant]
    ) -> None:
        self.key = UpstreamKey(owner)
        self.owner = owner
        self._clock = clock
        self.wake = self._wake = WakeStateMachine(nap.limits, clock.now(), nap.kind, nap.memory)
        self.estimates = self._estimates = WakeEstimates(nap.learned_s)
        sizes = GpuSizes.learned(nap.learned_gib)
        self.seat = self._seat = RoomSeat(nap.gpus, owner, self.wake, work, sizes)
        self.woke_s = -inf
        """When it was last proven awake."""

    def __repr__(self) -> str:
        return f"<Sleeper {self.owner}: {self.wake!r}>"

    @property
    def state(self) -> EngineState:
        """What is known of it."""
        return self.wake.state

    @property
    def sleep_depth(self) -> SleepDepth | None:
        """How far it is from serving; None while it is awake."""
        return self.wake.depth

    @property
    def down_why(self) -> str:
        """Why it is down; empty: it is not, or nobody knows."""
        return self.wake.why if self.state is EngineState.DOWN else ""

    @property
    def leaves(self) -> bool:
        """Whether it is to sleep, and nobody new is to come: for another engine, or by an order."""
        return self.seat.makes_room or self.wake.standing.asleep is not None

    @property
    def serves(self) -> bool:
        """Whether requests may be sent there: it is proven awake, and stays so."""
        return self.wake.depth is None and not self.leaves

    def expected_wait_s(self, _: int) -> float:
        """Return how long it takes until it is awake."""
        return 0.0 if self.serves else self._wake_left_s(self.wake, self._clock.now())

    def wake_since_s(self, now: float) -> float:
        """Return how long its wake is under way already."""
        return self._wake_since_s(self.wake, now)

    def wake_left_s(self, now: float) -> float:
        """Return what is left of its wake, or how long one will take."""
        return self._wake_left_s(self.wake, now)

    def next_deadline(self) -> float:
        """Return when its machine, or its turn on its GPUs, has something to do."""
        return min(self.wake.next_deadline(), self.seat.next_deadline())

    def obey(self, order: WakeOrder, head: Ticket | None, now: float) -> list[Decision]:
        """Do what the machine asks of the gate itself; the rest is for the driver.

        `head`: the one that has waited longest, who wakes it where a request does.
        """
        if isinstance(order, Gpu):
            self.seat.ask(order, now)
            return []
        if isinstance(order, WakeEnded) and order.succeeded:
            self.estimates.observe(order.depth, order.took_s)
        if isinstance(order, Changed):
            return [self._changed(order, head, now)]
        if isinstance(order, FellAsleep) and order.reason is SleepReason.ROOM:
            order = order._replace(room_for=self.seat.room_for)
        if isinstance(order, OutOfMemory):
            return [self.seat.ran_out()]
        return [order]

    def _changed(self, change: Changed, head: Ticket | None, now: float) -> Changed:
        """Note that it woke, or tell for which request it wakes."""
        if change.state is EngineState.AWAKE:
            self.woke_s = now
        if change.by != "a request" or head is None or not head.request_id:
            return change
        return change._replace(by=f"request {head.request_id}")
