"""One upstream's gate: its queue and, where its engine can sleep, its waking, behind one entry.

What drives it calls `arrive` for a new ticket, `finish` for one that ended in whatever way,
`expire` at `next_deadline()`, and `report` with what came of each `Perform`. Each call returns
decisions in the order in which they were made; the driver carries them out and decides nothing. The
clock is read once in each call, in its first line, so that both machines see one instant.

The two machines are joined in one place, `_settle`: capacity is 0 while the engine is not awake,
and the wake machine hears how many are inside.
"""

from collections.abc import Mapping, Sequence
from math import inf, sqrt

from tornado_frontdoor.core.admission import AdmissionController, AdmissionEvent, Rejected
from tornado_frontdoor.core.clock import Clock
from tornado_frontdoor.core.decisions import (
    Decision,
    EngineState,
    Outcome,
    Reason,
    Refusal,
    Refuse,
    RoomDecided,
    SleepDepth,
)
from tornado_frontdoor.core.drain_rate import ENDS_KNOWN
from tornado_frontdoor.core.gate_reader import GateReader
from tornado_frontdoor.core.gpu_occupant import Occupant
from tornado_frontdoor.core.limits import AdmissionLimits
from tornado_frontdoor.core.refusals import (
    admission_refusal,
    asleep_refusal,
    down_refusal,
    drained_refusal,
    held_refusal,
    waking_refusal,
)
from tornado_frontdoor.core.replicas import Engines, Replicas, could_not_connect
from tornado_frontdoor.core.request import Ticket, TicketState, UpstreamKey, WakeTerms
from tornado_frontdoor.core.retry_after import WakeEstimates
from tornado_frontdoor.core.return_book import Randomness, ReturnBook
from tornado_frontdoor.core.sleep_config import GateError, SleepConfig
from tornado_frontdoor.core.sleeper import Sleeper
from tornado_frontdoor.core.standing import Standing
from tornado_frontdoor.core.wake.machine import WakeOrder, WakeStateMachine
from tornado_frontdoor.core.wake.policy import SleepPolicy
from tornado_frontdoor.engines.base import Report

__all__ = ["AdmissionLimits", "Gate", "GateError", "SleepConfig", "SleepPolicy"]

_IN_FLIGHT = TicketState.IN_FLIGHT
_COOLING = TicketState.COOLING
_SUSPICIOUS = (Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_TIMEOUT)
"""Ends after which the engine is probed: it may have been put to sleep out of band."""


class Gate(GateReader):
    """The only way to an upstream, whatever route or dialect a request came by.

    Without `nap` the engine counts as awake, and the calls about waking raise GateError. With it
    the gate starts closed, and its first deadline is now: it wants to look. `replicas` are the
    engines where the gate is to pick one and to know whether they are there: while none is,
    capacity is 0, and callers wait for their `hold_down_s`. What can be asked is in `GateReader`.
    """

    def __init__(
        self,
        key: UpstreamKey,
        limits: AdmissionLimits,
        clock: Clock,
        rng: Randomness,
        nap: SleepConfig | None = None,
        replicas: Replicas | None = None,
    ) -> None:
        self.key = key
        self._clock = clock
        self._now = clock.now  # bound once: it is read in each call
        self.replicas = replicas
        self._admission = AdmissionController(limits, replicas)
        self._returns = ReturnBook(rng)
        self._due = self._returns.due
        self._wake: WakeStateMachine | None = None
        self._estimates = WakeEstimates()
        self._last_request_s: float | None = None
        self._hold_s = 0.0
        if nap is not None:
            one = Sleeper(nap.owner or key, nap, clock, self._work)
            self._lead(one)
            # Nothing leaves it yet: it may claim the GPU on which a transition had begun.
            self._settle(one.wake, (), (), clock.now())

    def sleeper(self, replica: str | None = None) -> Sleeper:
        """Return the engine that sleeps, or that one of several, to be asked how it is."""
        return self._named(replica)

    # What can happen

    def arrive(self, ticket: Ticket, waited_s: float = 0.0) -> Sequence[Decision]:
        """Admit, refuse, or let it wait, undecided; `waited_s`: before, at an earlier owner."""
        now = self._now()
        terms, caller, bar = ticket.terms, ticket.caller, None
        counts = terms is None or terms.counts
        if counts:
            self._last_request_s = now
        kept = self._kept_from(ticket, now) if self._due else 0
        if caller is not None and caller.patience_s < inf:
            bar = self._bar_of_patience(ticket, caller.patience_s, kept, now)
        if self._wake is None:
            admission = self._admission
            turned_away = admission.turned_away
            moves = admission.arrive(ticket, now, waited_s, bar, kept)
            if admission.turned_away == turned_away:
                return moves  # type: ignore[return-value] # none is Rejected
            return self._decide(moves, now)
        closed = self._close(now)  # first: whom that bars is not let in
        bar = self._bar(terms) or bar
        moves = [*closed, *self._admission.arrive(ticket, now, waited_s, bar, kept)]
        wake = self._machine_of(ticket)
        if counts and wake is not None:
            wake.touch(now)
        return self._settle(wake or self._wake, moves, (), now)

    def adopt(self, ticket: Ticket) -> Sequence[Decision]:
        """Take over a ticket that is in flight already, whatever the cap and the engine's state."""
        now = self._now()
        self._last_request_s = now
        self._admission.adopt(ticket, now)
        return () if self._wake is None else self._settle(self._wake, (), (), now)

    def finish(self, ticket: Ticket, outcome: Outcome) -> Sequence[Decision]:
        """End a ticket, wherever it is; for one in flight that is when its transfer is over.

        `outcome` says how it ended; admission treats all ends alike, which is the point. For a
        ticket that cools this is the sign that its engine has let go of it.
        """
        now = self._now()
        state = ticket.state
        if state is not _COOLING and (ticket.terms is None or ticket.terms.counts):
            self._last_request_s = now
        if self._wake is None:
            admission = self._admission
            turned_away = admission.turned_away
            moves = admission.finish(ticket, now)
            if admission.turned_away == turned_away:
                return moves  # type: ignore[return-value] # none is Rejected
            return self._decide(moves, now)
        if state is _COOLING:
            moves = [*self._close(now), *self._admission.finish(ticket, now)]
            return self._settle(self._wake, moves, (), now)
        served = state is _IN_FLIGHT
        moves = [*self._close(now), *self._admission.finish(ticket, now)]
        return self._ended(moves, ticket, outcome, now, served=served)

    def cool(self, ticket: Ticket, outcome: Outcome) -> Sequence[Decision]:
        """End a ticket whose engine may not have noticed yet that its request was broken off.

        It keeps its slots until `finish` or, where no sign comes, until `Cooled`.
        """
        now = self._now()
        if ticket.terms is None or ticket.terms.counts:
            self._last_request_s = now
        served = ticket.state is _IN_FLIGHT
        moves = [*self._close(now), *self._admission.cool(ticket, now)]
        return self._ended(moves, ticket, outcome, now, served=served)

    def expire(self) -> Sequence[Decision]:
        """Refuse those whose limit has come, and begin what idleness or a timer asks for."""
        now = self._now()
        moves = [*self._close(now), *self._admission.expire(now)]
        if self._wake is None:
            return self._decide(moves, now)
        refused = self._decide(moves, now)  # told how it stands while they are still inside
        # Those who are gone first: for them nothing needs to be woken any more.
        orders = [*self._wake.demand(self._inside, now), *self._wake.tick(now)]
        return [*refused, *self._settle(self._wake, (), orders, now)]

    def drain(self) -> Sequence[Decision]:
        """Refuse the queue and all newcomers; those in flight run to their end."""
        now = self._now()
        moves = self._admission.drain(now)
        return self._joined(moves, self._wake.drain(now) if self._wake else (), now)

    def change_limits(
        self, limits: AdmissionLimits, wake: SleepPolicy | None = None
    ) -> Sequence[Decision]:
        """Put new limits in force at once, without losing a ticket or stopping a transition.

        Whether an engine can sleep at all does not change: that takes a new gate.
        """
        now = self._now()
        moves = self._admission.change_limits(limits, now)
        if self._wake is not None and wake is not None:
            self._wake.change_policy(wake)
        return self._joined(moves, (), now)

    def change_policies(self, policies: Mapping[str, SleepPolicy]) -> Sequence[Decision]:
        """Put another policy in force for each engine that sleeps; transitions go on as begun."""
        now = self._now()
        for policy in policies.values():
            self._sleeper.wake.change_policy(policy)
        return self._joined((), (), now)

    # What can happen to one of several engines, or to one that never sleeps

    def engine_seen(self, name: str, *, up: bool, why: str = "") -> Sequence[Decision]:
        """Take that an engine has answered, or why it cannot be used: nobody is sent there then."""
        now = self._now()
        self._several().seen(name, now, up=up, why=why)
        return self._match_replicas(now)

    def drain_engine(self, name: str, *, undo: bool = False) -> Sequence[Decision]:
        """Send nobody new to one of the engines, or send them again; who is on it stays."""
        now = self._now()
        self._several().drain(name, undo=undo)
        return self._match_replicas(now)

    def move(self, ticket: Ticket) -> bool:
        """Give a ticket in flight, of which nothing was sent, to another engine that has room."""
        return self.replicas is not None and self.replicas.move(ticket)

    def change_engines(self, engines: Engines) -> Sequence[Decision]:
        """Have other engines from now on; who is on one that goes stays on it to the end."""
        now = self._now()
        self._several().change(engines, now)
        return self._match_replicas(now)

    # What can happen to an engine that sleeps

    def report(self, report: Report, replica: str | None = None) -> Sequence[Decision]:
        """Take what came of a `Perform`."""
        now = self._now()
        wake = self._named(replica).wake
        return self._settle(wake, (), wake.report(report, now), now)

    def hear_ledger(self, replica: str | None = None) -> Sequence[Decision]:
        """Look into the ledger of the GPUs, after another gate's `RoomDecided` named this one.

        What was decided may be another thing again by now: what stands there counts.
        """
        now = self._now()
        one = self._named(replica)
        return self._settle(one.wake, (), one.seat.hear(now), now)

    def suspect(self, replica: str | None = None) -> Sequence[Decision]:
        """Look at the engine: it refused a request as one that sleeps does."""
        now = self._now()
        wake = self._named(replica).wake
        return self._settle(wake, (), wake.suspect(now), now)

    def believe(self, replica: str | None = None) -> Sequence[Decision]:
        """Take an operator's word that the engine's answers are good as they are now."""
        now = self._now()
        wake = self._named(replica).wake
        return self._settle(wake, (), wake.believe(now), now)

    def measured(self, gib: float, replica: str | None = None) -> Sequence[Decision]:
        """Take what the engine was just seen to take of each of its GPUs, at rest."""
        now = self._now()
        one = self._named(replica)
        orders = one.seat.measured(gib)
        return self._settle(one.wake, (), orders, now)

    def lost(self, why: str = "", replica: str | None = None) -> Sequence[Decision]:
        """Take that a connection to the engine was refused, or reset before it was made.

        Call it before that request's `finish`: then its slot is given to nobody else, and it can
        `arrive` again to wait for the engine.
        """
        now = self._now()
        wake = self._named(replica).wake
        return self._settle(wake, (), wake.lost(now, could_not_connect(why)), now)

    def wake_now(self, by: str = "an operator", replica: str | None = None) -> Sequence[Decision]:
        """Wake the engine for an operator, or whoever; `Answered` tells how it went."""
        now = self._now()
        wake = self._named(replica).wake
        return self._settle(wake, (), wake.wake(now, by), now)

    def stand(self, standing: Standing, replica: str | None = None) -> Sequence[Decision]:
        """Take the orders that hold the engine awake or asleep from now on."""
        now = self._now()
        wake = self._named(replica).wake
        orders = wake.stand(standing, now)
        moves = [*self._match_capacity(wake, now)]
        if standing.asleep is not None:
            moves += self._admission.dismiss(lambda _: True, Reason.MODEL_ASLEEP, now)
        return self._settle(wake, moves, orders, now)

    def sleep_now(self, level: int, replica: str | None = None) -> Sequence[Decision]:
        """Put the engine to sleep for an operator; `Answered` tells how it went."""
        now = self._now()
        wake = self._named(replica).wake
        return self._settle(wake, (), wake.sleep(level, now), now)

    # How

    def _close(self, now: float) -> Sequence[AdmissionEvent]:
        """Admit nobody any more as soon as the ledger says so, before anything else happens."""
        if self._wake is None or self._admission.paused or not self._seat.makes_room:
            return ()
        return self._match_capacity(self._wake, now)

    def _bar(self, terms: WakeTerms | None) -> Reason | None:
        """Return why nobody is let in on these terms, if so: no engine is woken for them."""
        wake = self._wake
        if wake is None:
            return None
        stray = terms is not None and not terms.wakes and self._admission.paused
        return Reason.MODEL_ASLEEP if stray or wake.standing.asleep else None

    def _bar_of_patience(
        self, ticket: Ticket, patience_s: float, kept: int, now: float
    ) -> Reason | None:
        """Return why one is not let into the queue who waits for that long, if so.

        Five of six whom this bars would have left in vain: the last of `place` ends is later than
        `place` intervals less their root with that chance, if ends come at random. While too few
        were seen, or the engine is not awake, nobody is barred: for those it is woken, too.
        """
        admission, limits = self._admission, self._admission.limits
        if not limits.heeds_patience or self._admission.drain_rate.ends < ENDS_KNOWN:
            return None
        if admission.queued >= limits.queue - kept or admission.full_for_s(now) is None:
            return None
        place = admission.ahead_of(ticket) + 1
        wait_s = (place - sqrt(place)) * self._drain_interval_s(now)
        return Reason.CLIENT_DEADLINE if wait_s > patience_s else None

    def _kept_from(self, ticket: Ticket, now: float) -> int:
        """Return how many of the last places are for others than this newcomer."""
        if self._returns.take_up(ticket.token, now):
            return 0
        places = self._admission.limits.return_places
        return self._returns.kept(now, self._drain_interval_s(now), places)

    def _ended(
        self,
        moves: Sequence[AdmissionEvent],
        ticket: Ticket,
        outcome: Outcome,
        now: float,
        *,
        served: bool,
    ) -> Sequence[Decision]:
        wake = self._machine_of(ticket)
        if wake is None:
            return self._joined(moves, (), now)
        if served:
            wake.served(ticket.terms, now, well=outcome is Outcome.SERVED)
        elif ticket.terms is None or ticket.terms.counts:
            wake.touch(now)
        orders = wake.suspect(now) if outcome in _SUSPICIOUS else ()
        return self._settle(wake, moves, orders, now)

    @property
    def _inside(self) -> int:
        """Who keeps the engine awake: where it makes room, its queue does not."""
        queued = 0 if self.makes_room else self._admission.queued
        return self._admission.in_flight + queued

    def _work(self) -> Occupant:
        """Return what only the gate knows of its engine, for the ledger."""
        head = self._admission.head
        return Occupant(
            upstream=self._sleeper.owner,
            devices=(),
            awake_gib=0.0,
            name=self.key,
            in_flight=self._admission.in_flight + self._admission.cooling,
            oldest_waiter_s=inf if head is None else head.arrived_s,
            woke_s=self._sleeper.woke_s,
            active_s=-inf if self._last_request_s is None else self._last_request_s,
            switch_cost_s=self._estimates.switch_cost_s(),
        )

    def _lead(self, sleeper: Sleeper) -> None:
        """Be shown as this engine is."""
        self._sleeper = sleeper
        self._wake, self._seat, self._estimates = sleeper.wake, sleeper.seat, sleeper.estimates

    def _named(self, replica: str | None) -> Sleeper:
        """Return the engine that sleeps at an address; None: the only one."""
        if self._wake is None or replica is not None:
            what = "has no sleep table" if self._wake is None else f"has no replica {replica}"
            raise GateError(f"{self.key} {what}")
        return self._sleeper

    def _machine_of(self, ticket: Ticket) -> WakeStateMachine | None:  # noqa: ARG002 - one engine
        """Return the machine of the engine that a ticket is on; None: it is on none."""
        return self._wake

    def _several(self) -> Replicas:
        if self.replicas is None:
            raise GateError(f"{self.key} does not look after its engines")
        return self.replicas

    def _match_replicas(self, now: float) -> Sequence[Decision]:
        """Let capacity be 0 while none of the engines is there, and use what came back."""
        admission, replicas = self._admission, self._several()
        if not replicas.nobody_up:
            events = [*admission.resume(now), *admission.change_limits(admission.limits, now)]
        else:
            events = [*admission.pause(replicas.engines.hold_down_s, now)]
        return self._decide(events, now)

    def _joined(
        self, moves: Sequence[AdmissionEvent], orders: Sequence[WakeOrder], now: float
    ) -> Sequence[Decision]:
        if self._wake is None:
            return self._decide(moves, now)
        return self._settle(self._wake, moves, orders, now)

    def _settle(
        self,
        wake: WakeStateMachine,
        moves: Sequence[AdmissionEvent],
        orders: Sequence[WakeOrder],
        now: float,
    ) -> Sequence[Decision]:
        """Join the machines until neither has anything more to say to the other."""
        decisions = [*self._decide(moves, now)]
        admission = self._admission
        if not orders and not admission.paused and wake.depth is None and self._seat.calm:
            # It is awake, and nothing goes on but requests: all else would find nothing to do.
            orders = wake.demand(admission.in_flight + admission.queued, now)
            if not orders:
                return decisions
        while True:
            for order in orders:
                decisions += self._sleeper.obey(order, admission.head, now)
            decisions += self._decide(self._match_capacity(wake, now), now)
            orders, others = self._seat.settle(now)
            decisions += [RoomDecided(owner) for owner in others]
            orders += wake.demand(self._inside, now)
            if not orders:
                decisions += self._decide(self._match_capacity(wake, now), now)
                return decisions

    def _match_capacity(self, wake: WakeStateMachine, now: float) -> Sequence[AdmissionEvent]:
        """Let capacity be 0 unless the engine is awake and stays so. That joins the two."""
        leaves = self.makes_room or wake.standing.asleep
        depth = SleepDepth.SLEEPING if leaves else wake.hold_depth
        if depth is None:
            return self._admission.resume(now)
        hold_s = wake.policy.hold_s(depth)  # a promise to newcomers: admission keeps earlier ones
        if self._admission.paused and hold_s == self._hold_s:
            return ()
        self._hold_s = hold_s
        moves = self._admission.pause(hold_s, now)
        if not self._admission.queued:
            return moves
        # Nobody waits for a wake who is not worth one.
        return [*moves, *self._admission.dismiss(wakes_nobody, Reason.MODEL_ASLEEP, now)]

    def _decide(self, moves: Sequence[AdmissionEvent], now: float) -> Sequence[Decision]:
        for move in moves:
            if type(move) is Rejected:
                return [self._decided(each, now) for each in moves]
        return moves  # type: ignore[return-value] # none is Rejected

    def _decided(self, move: AdmissionEvent, now: float) -> Decision:
        if isinstance(move, Rejected):
            return Refuse(move.ticket, self._refusal(move, now))
        return move

    def _refusal(self, turned: Rejected, now: float) -> Refusal:
        # A queue before an engine that is down is not what keeps anybody out.
        down = self._wake is None and self._admission.paused
        if turned.reason is Reason.MODEL_WAKING or (down and turned.reason is Reason.QUEUE_FULL):
            if self._wake is None:
                return down_refusal(self.key, self._several().engines.hold_down_s)
            if self._nobody_is_woken:
                again_s = self._promise_s(turned.ticket, now)
                return drained_refusal(self.key, turned.ticket.promised_s, again_s)
            return self._not_awake(self._wake, turned.ticket.promised_s, now)
        if turned.reason is Reason.MODEL_ASLEEP:
            return self._asleep(self._wake, now)
        limits, weight = self._admission.limits, turned.ticket.weight
        caller = turned.ticket.caller
        return admission_refusal(
            turned.reason,
            self.key,
            weight,
            limits,
            lambda: self._promise_s(turned.ticket, now),
            inf if caller is None else caller.patience_s,
        )

    @property
    def _nobody_is_woken(self) -> bool:
        """Whether an operator keeps all engines from those who wait, rather than their sleep."""
        several = self.replicas is not None and self.replicas.all_drained
        return several and self.state is not EngineState.DOWN

    def _not_awake(self, wake: WakeStateMachine, hold_s: float, now: float) -> Refusal:
        """Say why a hold of that length was in vain, and when to come back."""
        depth = wake.depth or SleepDepth.SLEEPING  # it is awake, and makes room for another
        left_s = self._wake_left_s(wake, now)
        failed = None
        if wake.wake_backoff.on(now):
            failed = wake.why, wake.wake_backoff.until_s - now
        since_s = self._wake_since_s(wake, now)
        what = self._seat.what_it_does(self._estimates.late_s(depth, since_s))
        retry_after_s = wake.policy.retry_after_s(depth)
        refusal = waking_refusal(depth, self.key, hold_s, retry_after_s, left_s, failed, what)
        return_s = self._returns.wake_return_s(now, left_s)
        return refusal._replace(return_s=return_s)

    def _asleep(self, wake: WakeStateMachine | None, now: float) -> Refusal:
        """Say that the engine is not woken for it, or for nobody, and when to come back."""
        depth = self.sleep_depth or SleepDepth.SLEEPING  # it is awake, and about to leave
        order = wake.standing.asleep if wake else None
        if order is None:
            left_s = self.expected_wait_s(0)
            refusal = asleep_refusal(self.key, self.state, depth, left_s)
        else:
            left_s = max(order.until_s - now, 0.0)
            refusal = held_refusal(self.key, order, depth, left_s)
        return refusal._replace(return_s=self._returns.wake_return_s(now, left_s))

    def _promise_s(self, ticket: Ticket, now: float) -> float:
        interval_s, queued = self._drain_interval_s(now), self._admission.queued
        return self._returns.promise_s(ticket.token, now, interval_s, queued)


def wakes_nobody(ticket: Ticket) -> bool:
    """Tell whether no engine is woken for a ticket."""
    return ticket.terms is not None and not ticket.terms.wakes
