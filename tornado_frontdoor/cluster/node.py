"""One door in the cluster: member, owner, or by itself; packets, answers and time in, actions out.

    role    | when                                             | a request that comes
    --------+--------------------------------------------------+---------------------------------
    seeking | nobody is known to own the gates                 | waits
    member  | another door owns them                           | is told to it
    owner   | this door holds the lease                        | goes to the gate
    alone   | for two leases this door was neither           | takes of this door's share, or
            |                                                  | is refused

Rule 1: whatever comes, the clock is looked at first: a door that was paused knows it.
Rule 2: `may_start` is asked right before the engine is: a grant of which the giver may have been
        succeeded by now starts nothing.
Rule 3: what was granted and not started goes back into the line when the role changes; what runs,
        runs on and is declared to the next owner.
"""

from collections.abc import Iterable
from math import inf
from typing import Any

from tornado_frontdoor.cluster import actions, messages
from tornado_frontdoor.cluster.actions import Action, BeatAnswer, Key, Release, Say
from tornado_frontdoor.cluster.alone import Alone
from tornado_frontdoor.cluster.messages import AnyBody, Packet
from tornado_frontdoor.cluster.owner import GateOwner
from tornado_frontdoor.cluster.rules import BEAT, QUIET, SPLIT, VALID, ClusterRules
from tornado_frontdoor.cluster.session import Session
from tornado_frontdoor.cluster.tickets import Own, OwnStage, OwnTickets
from tornado_frontdoor.core.decisions import Admit, Outcome, Refusal


class Node:
    """A door in the cluster. Each call appends to `out` what is to be done, in order."""

    def __init__(self, me: str, rules: ClusterRules, now: float) -> None:
        self.me = me
        self.rules = rules
        self.out: list[Action] = []
        self.own = OwnTickets()
        self.owner: GateOwner | None = None
        self.session: Session | None = None
        self.alone: Alone | None = None
        self.doors: tuple[str, ...] = (me,)
        self.views: Any = {}
        self.epoch = 0
        self.leaving = False
        self.agrees = True
        """Whether this door's limits are those of the cluster; one that differs never owns."""
        self.puts_off = False
        """Whether what is to be said waits for `flush`, so that one packet says more."""
        self.has_news = False
        self.redis_refuses = False
        """Whether nothing listens at Redis' address: then no other door has an owner either."""
        self._opened_s: float | None = None
        self._been_member = False
        self._sessions = 0
        self._joining_s = -inf
        """Since when this door tries to be a member; -infinity: it is sure, or does not try."""
        self._talked_s = -inf
        self._sure_s = now
        self._contact_s = -inf
        self._beat_due_s = now
        self._link_due_s = now
        self._run = ""
        self._lifelines: set[str] = set()

    @property
    def role(self) -> str:
        """What this door is now, as status shows it."""
        roles = ((self.owner, "owner"), (self.alone, "alone"), (self.session, "member"))
        return next((name for part, name in roles if part is not None), "seeking")

    def may_start(self, number: int, now: float) -> bool:
        """Tell whether a granted request may go to the engine now; if not, `Grant` comes again."""
        self._clock(now)
        own = self.own.get(number)
        if own is None or own.stage is not OwnStage.GRANTED:
            return False
        if self.alone is not None and not self.alone.may_start(own, now):
            return False
        if self.alone is None and not self._is_sure(now):
            own.stalled = True
            return False
        own.stage = OwnStage.RUNNING
        own.wire_s = now
        return True

    def may_command(self, now: float) -> bool:
        """Tell whether this door may tell engines to sleep or wake now."""
        self._clock(now)
        return self.owner is not None

    def _is_sure(self, now: float) -> bool:
        if self.owner is not None:
            return now - self.owner.sure_s < VALID * self.rules.lease_s
        return self.session is not None and self.session.is_sure(now)

    # What requests do

    def enter(self, own: Own, now: float) -> None:
        """Take a new request of this door."""
        self._clock(now)
        self.own[own.number] = own
        if self.owner is not None:
            self.owner.arrive(self.me, own.arrival(), now)
        elif self.session is not None:
            self.session.tell(own.arrival())
        elif self.alone is not None:
            self.alone.arrive(own, now)
        self._flush(now)

    def finish(self, number: int, outcome: Outcome, now: float) -> None:
        """End a request of this door, wherever it is, once its transfer is over."""
        self._clock(now)
        own = self.own.pop(number, None)
        if own is None:
            pass  # it was refused
        elif self.owner is not None:
            self.owner.book.finish((self.me, number), outcome)
        elif self.session is not None:
            self.session.tell(messages.Finish(number, outcome))
        elif self.alone is not None:
            self.alone.finish(own, outcome)
        self._flush(now)

    def tell_owner(self, body: messages.ForOwner, now: float) -> bool:
        """Pass on what concerns the gates of another door; tells whether there is one."""
        self._clock(now)
        if self.session is None:
            return False
        self.session.tell(body)
        self._flush(now)
        return True

    # What this door's gates decide

    def decided(self, key: Key, decision: Admit | Refusal, now: float) -> None:
        """Take a decision of a gate of ours."""
        self._clock(now)
        told = messages.told(key[1], decision)
        if self.owner is not None:
            known = self.owner.book.decided(key, told)
            if known and key[0] == self.me:
                self._settle(key[1], told, now)
        elif self.alone is not None and key[0] == self.me:
            own = self.own.get(key[1])
            if isinstance(told, Refusal):
                self._settle(key[1], told, now)
            elif own is not None:
                self.alone.admitted(own, told)
        self._flush(now)

    def _settle(self, number: int, decision: Refusal | messages.Admitted, now: float) -> None:
        own = self.own.get(number)
        if own is None or own.stage is not OwnStage.WAITING:
            return
        if isinstance(decision, Refusal):
            del self.own[number]
            self.out.append(actions.TurnAway(number, decision))
            return
        own.grant(decision.waited_s, decision.paused_s, decision.replica, now)
        self.out.append(own.start())

    # What engines and Redis tell

    def sampled(self, sample: actions.CountEngine, busy: int | None, now: float) -> None:
        """Take how many sequences an engine runs and keeps waiting; None: it does not tell."""
        self._clock(now)
        if self.owner is not None:
            self.owner.sampled(sample, busy, now)
        elif self.alone is not None:
            self.alone.sampled(sample, busy, now)
        self._flush(now)

    def seen(self, lifelines: Iterable[str], now: float) -> None:
        """Take whose lifeline is open in Redis."""
        self._clock(now)
        present = {*lifelines}
        self._lifelines |= present
        if self.owner is not None:
            self.owner.seen(present)
        self._flush(now)

    def connected(self, now: float, *, is_open: bool) -> None:
        """Take that this door's lifeline was opened or has broken."""
        self._opened_s = now if is_open else None

    @property
    def lifeline(self) -> bool:
        """Whether the connection on which this door reads is unbroken since it was a member."""
        return self._opened_s is not None and self._sure_s >= self._opened_s

    def beat_failed(self, now: float, *, refused: bool) -> None:
        """Take that Redis did not answer; `refused`: nothing listens at its address."""
        self._clock(now)
        self.redis_refuses = refused
        self._flush(now)

    def beat_answered(self, sent_s: float, answer: BeatAnswer, now: float) -> None:
        """Take what Redis answered to the beat that was sent at `sent_s`."""
        self._clock(now)
        self.redis_refuses = False
        if sent_s < self._contact_s:
            return
        self._contact_s = sent_s
        self.epoch = max(self.epoch, answer.epoch)
        if answer.run != self._run:
            self._run = answer.run
            self._lifelines.clear()
        if answer.owner == self.me:
            self._lease_is_ours(sent_s, answer, now)
        elif answer.owner:
            if self.owner is not None:
                self._step_down("another door has the lease")
            # Where it ends soon its end is awaited, so that a dead owner is followed at once.
            left_s = answer.left_s + 0.01 * self.rules.lease_s
            self._beat_due_s = min(self._beat_due_s, now + left_s)
            self._follow(answer, now)
        self._flush(now)

    def _lease_is_ours(self, sent_s: float, answer: BeatAnswer, now: float) -> None:
        if self.owner is not None and self.owner.epoch == answer.epoch:
            self.owner.sure_s = sent_s
            self._again(now)
            return
        if self.owner is not None:
            self._step_down("Redis has forgotten its lease")
        if answer.won and now - sent_s < VALID * self.rules.lease_s and not self.leaving:
            self._take_over(sent_s, answer, now)
        else:
            self.out.append(Release(answer.epoch))
            self._beat_due_s = now

    # Roles

    def _take_over(self, sent_s: float, answer: BeatAnswer, now: float) -> None:
        self.own.unsettle()
        self._end_alone()
        self.session = None
        doors = {*answer.doors, *self.doors}
        self.owner = GateOwner(
            self.me, self.rules, answer, doors, now, self.out, on_wire=self.own.on_wire
        )
        self.owner.sure_s = sent_s
        self.owner.lifelines = self._lifelines
        self._been_member = True
        self.owner.declare(self.me, self.own.declare(self.doors, now), now)
        self.out.append(actions.LookForDoors())

    def _step_down(self, why: str) -> None:
        assert self.owner is not None
        self.doors = tuple(sorted(self.owner.doors))
        for (door, number), entry in self.owner.book.table.items():
            if door == self.me and number in self.own:
                self.own[number].place = entry.place
        self._sure_s = self.owner.sure_s
        self.owner = None
        self.out += [actions.CloseGates(), Say(f"no longer owns the gates: {why}")]
        self.own.unsettle()

    def _follow(self, answer: BeatAnswer, now: float) -> None:
        session, owner = self.session, (answer.owner, answer.epoch)
        known = session is not None and (session.owner, session.epoch) == owner
        if known and session is not None and now - session.heard_s < self.rules.lease_s:
            return
        self._end_alone()
        self._join(owner, now)

    def _join(self, owner: tuple[str, int], now: float) -> None:
        self.own.unsettle()
        self._joining_s = now if self._joining_s == -inf else self._joining_s
        self._talked_s = now
        self._sessions += 1
        self.session = Session(self.me, owner, self._sessions, now, self.rules.lease_s)
        self.session.tell(self.own.declare(self.doors, now))

    def _end_alone(self) -> None:
        if self.alone is not None:
            self.alone = None
            self.own.unsettle()
            self.out += [actions.CloseGates(), Say("heard of an owner again")]

    def leave(self, now: float) -> None:
        """Own nothing any more, but go on as a member until those inside are gone."""
        self._clock(now)
        self.leaving = True
        if self.owner is not None:
            epoch = self.owner.epoch
            self._step_down("this door is leaving")
            self.out.append(Release(epoch))
        self._flush(now)

    # Time

    def _clock(self, now: float) -> None:
        """Look at the clock before anything else."""
        lease_s = self.rules.lease_s
        if self.session is not None:
            self._talked_s = self.session.talked_s
        if self._is_sure(now):
            self._joining_s = -inf
            sure = self.owner.sure_s if self.owner else self.session and self.session.heard_s
            self._sure_s = sure or self._sure_s
        elif self.owner is not None:
            self._step_down("its lease is too old")
        if self.alone is not None:
            self._allow(self.alone, now)
        elif now - max(self._sure_s, self._joining_s) >= SPLIT * lease_s:
            self.session = None
            self._joining_s = -inf
            self.own.unsettle()
            self.alone = Alone(self.me, self.rules, len(self.doors), self.own, self.out)
            self.out.append(Say("no owner is heard of"))
            self._allow(self.alone, now)

    def _allow(self, alone: Alone, now: float) -> None:
        """Let a door that is alone use its share, or refuse, or wait until it is silent enough."""
        may_split = self._been_member and (self.lifeline or self.redis_refuses)
        silent = now - self._talked_s >= QUIET * self.rules.lease_s
        if silent or not (may_split and self.rules.on_outage == "split"):
            alone.allow(may_split and silent, now)

    def tick(self, now: float) -> None:
        """Let time pass; to be called many times in a lease."""
        self._clock(now)
        beat_s = BEAT * self.rules.lease_s
        if now >= self._beat_due_s:
            self._beat_due_s = now + beat_s
            campaigns = self.agrees and not self.leaving
            self.out.append(actions.Beat(campaigns, self.epoch))
        if self.owner is not None:
            self.owner.tick(now)
            self.doors = tuple(sorted(self.owner.doors))
        if self.alone is not None:
            self.alone.tick(now)
        if now >= self._link_due_s:
            self._link_due_s = now + beat_s
            if self.owner is not None:
                self.owner.beat(now)
            elif self.session is not None:
                self.session.send(now, self.out)
        self._again(now)
        self.flush(now, timer=True)

    def _again(self, now: float) -> None:
        """Tell those once more who could not start when they were told."""
        if not self._is_sure(now):
            return
        for own in self.own.stalled():
            self.out.append(own.start())

    def flush(self, now: float, *, timer: bool = False) -> None:
        """Send what there is to be sent."""
        self.has_news = False
        if self.owner is not None:
            self.owner.flush(now, timer=timer)
        elif self.session is not None:
            self.session.flush(now, self.out, timer=timer)

    def _flush(self, now: float) -> None:
        if self.puts_off:
            self.has_news = True
        else:
            self.flush(now)

    # What other doors say

    def packet(self, packet: Packet, now: float) -> None:
        """Take a packet from this door's inbox."""
        self._clock(now)
        if self.session is not None and self.session.is_of(packet):
            self._from_owner(self.session, packet, now)
        elif not packet.from_owner and self.owner is not None and packet.epoch == self.owner.epoch:
            self.owner.packet(packet, now)
        self._flush(now)

    def _from_owner(self, session: Session, packet: Packet, now: float) -> None:
        if packet.unknown:
            if session.proved or packet.echo_s >= session.began_s:
                self._join((session.owner, session.epoch), now)
            return
        new = not session.proved
        bodies = session.link.take(packet, now)
        if new and session.proved:
            self._been_member = True
            session.send(now, self.out)
        for body in bodies:
            self._hear(session, body, now)
        self._again(now)

    def _hear(self, session: Session, body: AnyBody, now: float) -> None:
        match body:
            case messages.Admitted():
                self._settle(body.number, body, now)
            case messages.TurnedAway():
                self._settle(body.number, body.refusal, now)
            case messages.Queued():
                if body.number in self.own:
                    self.own[body.number].place = body.place
            case messages.Count():
                session.tell(messages.OnWire(body.round, self.own.on_wire(now)))
            case messages.OperatorTold():
                self.out.append(actions.TellOperator(body.number, body.verdict, body.detail))
            case messages.State():
                self.views = body.views
                if self.doors != body.doors:
                    self.doors = body.doors
                    self.out.append(actions.LookForDoors())
            case _:  # what only a member says
                pass
