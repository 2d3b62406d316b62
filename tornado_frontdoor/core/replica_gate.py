"""The gate of several engines behind one name, each of which sleeps and wakes by itself.

One queue and one cap before all of them; a wake machine and a seat at the ledger for each. Capacity
is what is awake: a replica is picked while its machine proves it awake and nobody wants it gone.

    a replica's machine hears of     | so that
    ---------------------------------+------------------------------------------------------------
    the slots that are held on it    | it never falls asleep while anybody has one
    one more, where its wake is      | as many wake as those who wait need, and no more: see
    wanted                           | `wake_rule.py`; a wake that is wanted no more is dropped
    a request that it is given       | it is idle since its own last request

Rule 1: while none is awake nobody is let in, and callers wait as long as the one says that is
        soonest awake; as soon as one is, they wait for a slot like anywhere.
        Slots that only those have who sleep are places in the queue, so that without a queue, too,
        the next one is woken.
Rule 2: to whoever asks for the upstream as a whole it is as that one is.
Rule 3: what a driver is to do for one of them comes as `OfReplica`, and is reported with its name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from tornado_frontdoor.core.admission import AdmissionEvent, AdmissionLimits
from tornado_frontdoor.core.clock import Clock
from tornado_frontdoor.core.decisions import (
    Changed,
    Command,
    Decision,
    EngineState,
    Notice,
    OfReplica,
    Reason,
    RoomDecided,
    SleepDepth,
)
from tornado_frontdoor.core.gate import Gate, wakes_nobody
from tornado_frontdoor.core.gpu_occupant import Occupant
from tornado_frontdoor.core.replicas import EngineReplica, Engines, Replicas
from tornado_frontdoor.core.request import Ticket, UpstreamKey
from tornado_frontdoor.core.return_book import Randomness
from tornado_frontdoor.core.sleep_config import GateError, SleepConfig
from tornado_frontdoor.core.sleeper import Sleeper
from tornado_frontdoor.core.standing import Standing
from tornado_frontdoor.core.wake.machine import WakeOrder, WakeStateMachine
from tornado_frontdoor.core.wake.policy import SleepPolicy
from tornado_frontdoor.core.wake_rule import Candidate, Stands, wanted

_DEPTH = {
    EngineState.SLEEPING: 1,
    EngineState.OFFLOADED: 2,
    EngineState.STOPPED: 3,
    EngineState.FALLING_ASLEEP: 4,  # it has to fall first: no wake into a sleep
}
_RANK = {
    EngineState.AWAKE: 0,
    EngineState.WAKING: 1,
    EngineState.SLEEPING: 2,
    EngineState.OFFLOADED: 3,
    EngineState.STOPPED: 4,
    EngineState.FALLING_ASLEEP: 5,
    EngineState.UNKNOWN: 6,
    EngineState.DOWN: 7,
}
_HELD_BACK = 10
"""Behind all that may be woken stands who is not to be: drained by hand, or kept asleep."""


class ReplicaGate(Gate):
    """`naps` has the sleep of each engine of `engines`, by its address."""

    replicas: Replicas

    def __init__(
        self,
        key: UpstreamKey,
        limits: AdmissionLimits,
        clock: Clock,
        rng: Randomness,
        engines: Engines,
        naps: Mapping[str, SleepConfig],
    ) -> None:
        now = clock.now()
        super().__init__(key, limits, clock, rng, replicas=Replicas(engines, now, woken=True))
        self._wanted: frozenset[str] = frozenset()
        self._used_s: dict[str, float] = {}
        self._shown = EngineState.UNKNOWN
        self._sleepers = {
            name: Sleeper(name, nap, clock, self._worker_of(name)) for name, nap in naps.items()
        }
        self._names = {one.wake: name for name, one in self._sleepers.items()}
        for name in self._sleepers:
            self.replicas.seen(name, now, up=False)
        self._lead(next(iter(self._sleepers.values())))
        self._settle_all((), (), now)

    # What can be asked

    def sleep_of(self, replica: str) -> dict[str, object] | None:
        """Return how one of the engines sleeps, as plain values."""
        one = self._sleepers.get(replica)
        if one is None:
            return None
        depth = one.sleep_depth
        return {
            "state": one.state.value,
            "sleep_depth": None if depth is None else depth.value,
            "wake_step": one.wake_step,
            "waits_for": one.waits_for,
            "makes_room": one.makes_room,
            "wakes_total": one.wakes_total,
        }

    @property
    def wakes_total(self) -> int:
        """Sequences begun that wake one of them."""
        return sum(one.wake.wakes_total for one in self._sleepers.values())

    @property
    def down_why(self) -> str:
        """Why each of them is down; empty: not all are, or nobody knows."""
        if self.state is not EngineState.DOWN:
            return ""
        several = self._sleepers.items()
        return "; ".join(f"{name}: {one.down_why}" for name, one in several if one.down_why)

    def next_deadline(self) -> float | None:
        """Return the instant at which `expire` must be called, or None."""
        deadline_s = self._admission.next_deadline()
        wake_s = min(one.next_deadline() for one in self._sleepers.values())
        if deadline_s is None:
            return None if wake_s == inf else wake_s
        return min(deadline_s, wake_s)

    # What can happen

    def expire(self) -> Sequence[Decision]:
        """Refuse those whose limit has come, and begin what idleness or a timer asks for."""
        now = self._clock.now()
        moves = [*self._close(now), *self._admission.expire(now)]
        refused = self._decide(moves, now)  # told how it stands while they are still inside
        # Those who are gone first: for them nothing needs to be woken any more.
        orders = [*self._demands(now)]
        for one in self._sleepers.values():
            orders += [(one, order) for order in one.wake.tick(now)]
        return [*refused, *self._settle_all((), orders, now)]

    def drain(self) -> Sequence[Decision]:
        """Refuse the queue and all newcomers; those in flight run to their end."""
        now = self._clock.now()
        moves = self._admission.drain(now)
        several = self._sleepers.values()
        orders = [(one, order) for one in several for order in one.wake.drain(now)]
        return self._settle_all(moves, orders, now)

    def change_policies(self, policies: Mapping[str, SleepPolicy]) -> Sequence[Decision]:
        """Put another policy of each engine's sleep in force; transitions go on as they began."""
        now = self._clock.now()
        for name, policy in policies.items():
            if name in self._sleepers:
                self._sleepers[name].wake.change_policy(policy)
        return self._settle_all((), (), now)

    def drain_engine(self, name: str, *, undo: bool = False) -> Sequence[Decision]:
        """Send nobody new to one of the engines, or send them again; who is on it stays.

        It falls asleep by its idle time, and is woken for nobody.
        """
        now = self._clock.now()
        self.replicas.drain(name, undo=undo)
        return self._settle_all((), (), now, came=undo)

    def move(self, ticket: Ticket) -> bool:  # noqa: ARG002 - as at any gate
        """Give a ticket in flight, of which nothing was sent, to another engine that has room."""
        return False  # it asks the gate once more: whom that admits, an engine hears of

    def change_engines(self, engines: Engines) -> Sequence[Decision]:
        """Take other numbers of slots; which engines there are changes with the next start."""
        now = self._clock.now()
        slots = {name: engines.slots.get(name, one.slots) for name, one in self._named_slots()}
        self.replicas.change(engines._replace(slots=slots), now)
        return self._settle_all((), (), now, came=True)

    def stand(self, standing: Standing, replica: str | None = None) -> Sequence[Decision]:
        """Take the orders that hold one of the engines awake or asleep from now on."""
        now = self._clock.now()
        one = self._named(replica)
        orders = [(one, order) for order in one.wake.stand(standing, now)]
        moves = [*self._match(now)]
        if self._sleeper.wake.standing.asleep is not None:  # that of all of them
            moves += self._admission.dismiss(lambda _: True, Reason.MODEL_ASLEEP, now)
        return self._settle_all(moves, orders, now)

    # How

    def _named_slots(self) -> Iterable[tuple[str, EngineReplica]]:
        return ((one.name, one) for one in self.replicas if one.name in self._sleepers)

    def _named(self, replica: str | None) -> Sleeper:
        if replica is None or replica not in self._sleepers:
            raise GateError(f"{self.key} has no replica {replica}")
        return self._sleepers[replica]

    def _machine_of(self, ticket: Ticket) -> WakeStateMachine | None:
        one = self._sleepers.get(ticket.replica or "")
        if one is None:
            return None
        if ticket.terms is None or ticket.terms.counts:
            self._used_s[ticket.replica or ""] = self._clock.now()
        return one.wake

    def _close(self, now: float) -> Sequence[AdmissionEvent]:
        """Send nobody any more where the ledger wants room, before anything else happens."""
        return self._match(now)

    def _joined(
        self, moves: Sequence[AdmissionEvent], orders: Sequence[WakeOrder], now: float
    ) -> Sequence[Decision]:
        assert not orders
        return self._settle_all(moves, (), now)

    def _settle(
        self,
        wake: WakeStateMachine,
        moves: Sequence[AdmissionEvent],
        orders: Sequence[WakeOrder],
        now: float,
    ) -> Sequence[Decision]:
        one = self._sleepers[self._names[wake]]
        return self._settle_all(moves, [(one, order) for order in orders], now)

    def _settle_all(
        self,
        moves: Sequence[AdmissionEvent],
        orders: Iterable[tuple[Sleeper, WakeOrder]],
        now: float,
        *,
        came: bool = False,
    ) -> Sequence[Decision]:
        """Join all machines and the queue until none has anything more to say to another.

        `came`: there may be room for those who wait that there was not.
        """
        decisions = [*self._decide(moves, now)]
        while True:
            for one, order in orders:
                decisions += self._told(one, order, now)
            moves = self._match(now, came=came)
            came = False
            decisions += self._decide(moves, now)
            orders = self._room(decisions, now)
            # What the ledger says comes first: a wake that has its turn is one to count on.
            orders = orders or self._demands(now)
            if not orders and not moves:
                moves = self._match(now)
                if not moves:
                    return [*decisions, *self._whole()]
                decisions += self._decide(moves, now)

    def _told(self, one: Sleeper, order: WakeOrder, now: float) -> list[Decision]:
        found: list[Decision] = []
        for what in one.obey(order, self._admission.head, now):
            assert isinstance(what, Command | Notice)
            found.append(what if isinstance(what, RoomDecided) else OfReplica(self._of(one), what))
        return found

    def _of(self, one: Sleeper) -> str:
        return self._names[one.wake]

    def _room(self, decisions: list[Decision], now: float) -> list[tuple[Sleeper, WakeOrder]]:
        """Have the ledger decide, and return what the machines make of it."""
        found: list[tuple[Sleeper, WakeOrder]] = []
        for one in self._sleepers.values():
            orders, others = one.seat.settle(now)
            found += [(one, order) for order in orders]
            own = [other for other in others if other in self._sleepers]
            decisions += [RoomDecided(owner) for owner in others if owner not in own]
            for name in own:
                other = self._sleepers[name]
                found += [(other, order) for order in other.seat.hear(now)]
        return found

    def _match(self, now: float, *, came: bool = False) -> Sequence[AdmissionEvent]:
        """Let requests go to the engines that serve, and to no other; capacity is theirs."""
        replicas, admission = self.replicas, self._admission
        for name, one in self._sleepers.items():
            replica = replicas.named(name)
            if replica is not None and replica.up is not one.serves:
                came |= one.serves
                replicas.seen(name, now, up=one.serves)
        self._lead(self._soonest())
        if not replicas.nobody_available:
            moves = [*admission.resume(now)]
            return [*moves, *admission.change_limits(admission.limits, now)] if came else moves
        leader = self._sleeper
        depth = SleepDepth.SLEEPING if leader.leaves else leader.wake.hold_depth
        hold_s = leader.wake.policy.hold_s(depth or SleepDepth.SLEEPING)
        if replicas.all_drained:  # no wake comes that one could be held for
            hold_s = min(hold_s, admission.limits.queue_timeout_s)
        if admission.paused and hold_s == self._hold_s:
            return ()
        self._hold_s = hold_s
        paused = admission.pause(hold_s, now)
        # Nobody waits for a wake who is not worth one.
        return [*paused, *admission.dismiss(wakes_nobody, Reason.MODEL_ASLEEP, now)]

    def _soonest(self) -> Sleeper:
        """Return the one that serves, or will first, as far as is known."""
        return min(self._sleepers.values(), key=self._rank)

    def _rank(self, one: Sleeper) -> int:
        replica = self.replicas.named(self._of(one))
        back = one.leaves or replica is None or replica.drained
        return _RANK[one.state] + (_HELD_BACK if back else 0)

    def _demands(self, now: float) -> list[tuple[Sleeper, WakeOrder]]:
        """Tell each machine who is inside of its engine, and whether its wake is wanted."""
        self._wanted = frozenset(self._whom_to_wake(now))
        found: list[tuple[Sleeper, WakeOrder]] = []
        for name, one in self._sleepers.items():
            replica = self.replicas.named(name)
            held = 0 if replica is None else replica.used
            inside = held + (name in self._wanted)
            found += [(one, order) for order in one.wake.demand(inside, now)]
        return found

    def _whom_to_wake(self, now: float) -> set[str]:
        admission = self._admission
        if not admission.queued or admission.draining:
            return set()
        queue = [one for one in admission.waiting() if not wakes_nobody(one)]
        ranked = self.replicas.by_preference(queue[0] if queue else None)
        engines = [
            Candidate(one.name, one.slots - one.used, stands, _DEPTH.get(sleeper.state, 0))
            for one in ranked
            if (sleeper := self._sleepers.get(one.name)) is not None
            and not one.drained
            and (stands := _stands(sleeper, now)) is not None
        ]
        cap = admission.limits.cap
        room = inf if cap is None else cap - admission.in_flight - admission.cooling
        return wanted(engines, (one.weight for one in queue), room)

    def _whole(self) -> Sequence[Decision]:
        """Tell of the upstream as a whole where it is in another state than it was."""
        state = self.state
        if state is self._shown:
            return ()
        self._shown = state
        return (Changed(state),)

    def _worker_of(self, name: str) -> Callable[[], Occupant]:
        return lambda: self._work_of(name)

    def _work_of(self, name: str) -> Occupant:
        """Return what only the gate knows of one of its engines, for the ledger."""
        head, replica, one = self._admission.head, self.replicas.named(name), self._sleepers[name]
        waits = head is not None and name in self._wanted
        return Occupant(
            upstream=one.owner,
            devices=(),
            awake_gib=0.0,
            name=f"{self.key} at {name.partition('://')[2]}",
            in_flight=0 if replica is None else replica.used,
            oldest_waiter_s=head.arrived_s if head is not None and waits else inf,
            woke_s=one.woke_s,
            active_s=self._used_s.get(name, -inf),
            switch_cost_s=one.estimates.switch_cost_s(),
        )


def _stands(one: Sleeper, now: float) -> Stands | None:
    """Return how an engine stands that is not drained; None: it is not to be woken."""
    wake = one.wake
    if one.serves:
        return Stands.SERVES
    if one.leaves:
        return None
    if wake.state is EngineState.WAKING:
        return Stands.COMES
    if wake.state is EngineState.UNKNOWN:
        return Stands.LOST if _in_doubt(wake) else Stands.COMES
    if wake.state is EngineState.DOWN or wake.wake_backoff.on(now):
        return Stands.LOST
    # Its wake waits for its turn on the GPUs.
    return Stands.COMES if wake.transition is not None and wake.transition.wakes else Stands.SLEEPS


def _in_doubt(wake: WakeStateMachine) -> bool:
    """Tell whether an engine is unknown for longer than its first look takes."""
    engine = wake.engine
    return engine.patience > 1 or engine.failures > 0 or wake.wake_backoff.failures > 0
