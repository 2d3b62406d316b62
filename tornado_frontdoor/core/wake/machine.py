"""One engine's sleep: what is known of it, what it is to do next, and what is taken for proof.

Rule 1: the state changes in `_happen` alone, along an arrow of `TABLE`; other pairs do nothing.
Rule 2: AWAKE is entered by proof alone: the weights are known to have been loaded, `/is_sleeping`
        said false, and a canary was answered.
Rule 3: one sequence at a time. After a call that timed out none begins before a look was answered:
        `/is_sleeping` runs behind whatever the engine is doing, so then all of that is over.
Rule 4: nothing is put to sleep while anyone is inside the gate or the engine.

The driver performs and reports; the gate tells who is inside.
"""

from collections.abc import Mapping, Sequence
from math import inf

from tornado_frontdoor.core.decisions import (
    Changed,
    EngineState,
    JournalEntry,
    Note,
    Remember,
    SleepDepth,
    Verdict,
)
from tornado_frontdoor.core.wake.control_runner import ControlRunner, WakeOrder
from tornado_frontdoor.core.wake.observed import EngineEvent, ObservedEngine
from tornado_frontdoor.core.wake.operator_requests import OperatorRequests
from tornado_frontdoor.core.wake.policy import Backoff, SleepPolicy
from tornado_frontdoor.core.wake.sequence import Transition, sleep_run, wake_run
from tornado_frontdoor.engines.base import EngineKind, Report

UNKNOWN, AWAKE, FALLING_ASLEEP, SLEEPING, OFFLOADED, WAKING, DOWN = EngineState

TABLE: Mapping[EngineState, Mapping[EngineEvent, EngineState]] = {
    UNKNOWN: {
        # Not awake yet: a canary is still missing, and with it the proof.
        EngineEvent.FOUND_AWAKE: WAKING,
        EngineEvent.FOUND_DOUBTFUL: WAKING,
        EngineEvent.FOUND_SLEEPING: SLEEPING,
        EngineEvent.FOUND_OFFLOADED: OFFLOADED,
        # A call that timed out may still be under way, so nothing else may begin.
        EngineEvent.FOUND_BUSY: UNKNOWN,
        EngineEvent.LOST: DOWN,
    },
    AWAKE: {
        EngineEvent.DUE: FALLING_ASLEEP,
        EngineEvent.NOT_DUE: AWAKE,
        EngineEvent.FOUND_AWAKE: AWAKE,
        # By another hand. Requests inside it wait there: they count as inside, so it is woken.
        EngineEvent.FOUND_SLEEPING: SLEEPING,
        EngineEvent.FOUND_OFFLOADED: OFFLOADED,
        EngineEvent.FOUND_BUSY: AWAKE,  # busy with a control call is not down
        EngineEvent.LOST: DOWN,
    },
    FALLING_ASLEEP: {
        # Only when no sleep is under way: on the way from level 1 to 2, or before one that
        # failed is tried again. Else who comes waits for its end: no wake into a sleep.
        EngineEvent.WANTED: WAKING,
        EngineEvent.FOUND_SLEEPING: SLEEPING,
        EngineEvent.FOUND_OFFLOADED: OFFLOADED,
        EngineEvent.LOST: DOWN,
        EngineEvent.FAILED: UNKNOWN,
    },
    SLEEPING: {
        EngineEvent.WANTED: WAKING,
        EngineEvent.DUE: FALLING_ASLEEP,
        EngineEvent.NOT_DUE: SLEEPING,
        EngineEvent.FOUND_AWAKE: WAKING,  # another hand woke it; the proof is still ours to make
        EngineEvent.FOUND_SLEEPING: SLEEPING,
        EngineEvent.FOUND_OFFLOADED: OFFLOADED,
        EngineEvent.FOUND_BUSY: SLEEPING,
        EngineEvent.LOST: DOWN,
    },
    OFFLOADED: {
        EngineEvent.WANTED: WAKING,
        EngineEvent.DUE: FALLING_ASLEEP,  # back: a wake that failed left weights on the GPU
        EngineEvent.NOT_DUE: OFFLOADED,
        EngineEvent.FOUND_AWAKE: WAKING,  # a new process
        # Another hand woke it, perhaps without loading its weights: at once, wanted or not.
        EngineEvent.FOUND_DOUBTFUL: WAKING,
        EngineEvent.FOUND_SLEEPING: SLEEPING,  # a new process that another hand put to sleep
        EngineEvent.FOUND_OFFLOADED: OFFLOADED,
        EngineEvent.FOUND_BUSY: OFFLOADED,
        EngineEvent.LOST: DOWN,
    },
    WAKING: {
        # Called off before the first step: nobody is there any more who wanted it.
        EngineEvent.FOUND_SLEEPING: SLEEPING,
        EngineEvent.FOUND_OFFLOADED: OFFLOADED,
        EngineEvent.LOST: DOWN,
        EngineEvent.PROVEN: AWAKE,
        EngineEvent.FAILED: UNKNOWN,
    },
    DOWN: {
        EngineEvent.FOUND_AWAKE: WAKING,  # it listens, which is not yet an answer
        EngineEvent.FOUND_DOUBTFUL: WAKING,
        EngineEvent.FOUND_SLEEPING: SLEEPING,
        EngineEvent.FOUND_OFFLOADED: OFFLOADED,
        EngineEvent.FOUND_BUSY: DOWN,
        EngineEvent.LOST: DOWN,
    },
}

FIRST_GAP_S = 0.25
"""Between looks at an engine that is down or unknown; doubles up to one of the next two."""
LONGEST_GAP_WANTED_S = 1.0
LONGEST_GAP_S = 10.0

_ASLEEP = (SLEEPING, OFFLOADED)
_FOUND_NOT_ASLEEP = (EngineEvent.FOUND_AWAKE, EngineEvent.FOUND_DOUBTFUL)


class WakeStateMachine:
    """The wake machine of one engine. Not thread-safe, never blocks; each call is O(1).

    `now` is the instant of the call in monotonic seconds. Each call returns what is to be done, in
    order. A new machine wants to look at once.
    """

    def __init__(
        self,
        limits: SleepPolicy,
        now: float,
        kind: EngineKind,
        memory: JournalEntry | None = None,
    ) -> None:
        memory = memory or JournalEntry()
        self.state = UNKNOWN
        self.belief = ObservedEngine(kind, memory)
        self.calls = ControlRunner(self.belief, now, unsure=memory.going is not None)
        self.down_since_s: float | None = None
        self.wake_pause, self.sleep_pause = Backoff(), Backoff()
        # A wake that had begun is finished, wanted or not.
        self._wishes = OperatorRequests(self.calls, wake=memory.going is WAKING)
        self.change_limits(limits)
        self._inside = 0
        self._draining = False
        self._idle_from_s = now
        self._gap_s = FIRST_GAP_S

    # What can be asked

    @property
    def depth(self) -> SleepDepth | None:
        """How far from serving it is, as callers are told; None: not at all."""
        if self.state is AWAKE:
            return None
        run = self.calls.run
        return self._depth() if run is None or run.depth is None else run.depth

    @property
    def wakes_total(self) -> int:
        """Sequences begun that wake; a canary alone is none."""
        return self.calls.wakes_begun

    def next_deadline(self) -> float:
        """Return the instant at which `tick` has something to do; infinity: never."""
        deadline_s = self.calls.deadline()
        if self.calls.run is not None:
            return deadline_s
        if self._wanted:
            ready_s = self.wake_pause.until_s if self.state in _ASLEEP else inf
            return deadline_s if self._draining else min(deadline_s, ready_s)
        return min(deadline_s, self._due()[0])

    # What can happen

    def change_limits(self, limits: SleepPolicy) -> None:
        """Take new limits; what is under way goes on as it began."""
        self.limits = limits
        self.calls.canary = limits.canary

    def touch(self, now: float) -> None:
        """Note a request's arrival or end: nothing else is activity."""
        self._idle_from_s = now

    def demand(self, inside: int, now: float) -> Sequence[WakeOrder]:
        """Take how many are inside the gate now, in flight or waiting."""
        self._inside = inside
        if inside and self.calls.run is None:
            if self.state is AWAKE:
                return ()
            if self.state not in _ASLEEP:
                self.calls.next_s = min(self.calls.next_s, now + LONGEST_GAP_WANTED_S)
        return self._consider(now)

    def tick(self, now: float) -> Sequence[WakeOrder]:
        """Let time pass; must be called at `next_deadline()`."""
        self._take(self.calls.tick(now, wanted=self._wanted), now)
        return self._consider(now)

    def report(self, report: Report, now: float) -> Sequence[WakeOrder]:
        """Take what came of a step; without effect when nobody waits for it any more."""
        self._take(self.calls.report(report, now, wanted=self._wanted), now)
        return self._consider(now)

    def granted(self, now: float) -> Sequence[WakeOrder]:
        """Take the GPU that was asked for."""
        if not self._draining:
            self.calls.granted(now)
        return self._consider(now)

    def lost(self, now: float) -> Sequence[WakeOrder]:
        """Take that a request found nobody at the engine's address."""
        if self.state is not DOWN:
            self.calls.why = "a request found nobody there"
            self._happen(EngineEvent.LOST, now)
        return self._consider(now)

    def suspect(self, now: float) -> Sequence[WakeOrder]:
        """Look at once: a request ended in a way that a sleeping engine would explain."""
        if self.state is AWAKE and self.calls.run is None:
            self.calls.next_s = now
        return self.tick(now)

    def drain(self, now: float) -> Sequence[WakeOrder]:
        """Begin nothing any more; what is under way goes on."""
        self._draining = True
        return self._consider(now)

    def wake(self, now: float) -> Sequence[WakeOrder]:
        """Take an operator's wish; `Answered` tells what comes of it."""
        self._wishes.wake = True
        self._idle_from_s = now
        self.wake_pause.end()
        if self.calls.run is not None:
            self._reconsider(self.calls.run, now)
        if self.state is AWAKE:
            self._wishes.answer_wake(Verdict.DONE)
        elif self.state is DOWN or self._draining:
            self._wishes.answer_wake(Verdict.FAILED, "the engine does not answer")
        elif self.calls.run is None:
            self.calls.next_s = now
        return self._consider(now)

    def sleep(self, level: int, now: float) -> Sequence[WakeOrder]:
        """Take an operator's wish for level 1 or 2; `Answered` tells what comes of it."""
        busy, run = self._why_busy(), self.calls.run
        if self._wishes.may_sleep(level, self.state, self.belief, busy):
            if run is not None and run.level == level:
                run.by_operator = True  # it is on its way there
            else:
                self.calls.end()
                self._begin_sleep(level, now)
        return self._consider(now)

    # How it is decided what begins

    def _why_busy(self) -> str:
        if self._inside:
            return f"{self._inside} are inside"
        if self._draining:
            return "the front door is shutting down"
        return "an operator wants it awake" if self._wishes.wake else ""

    def _depth(self) -> SleepDepth:
        if self.down_since_s is not None:
            return SleepDepth.RESTARTING
        return SleepDepth.SLEEPING if self.belief.level == 1 else SleepDepth.OFFLOADED

    @property
    def _wanted(self) -> bool:
        return self._wishes.wake or self._inside > 0

    def _consider(self, now: float) -> Sequence[WakeOrder]:
        """Begin what is due, drop what is not wanted any more, and return all there is to do."""
        if self.calls.run is not None:
            self._reconsider(self.calls.run, now)
        elif self._draining:
            pass
        elif self._wanted:
            if self.state in _ASLEEP and not self.wake_pause.on(now):
                self._happen(EngineEvent.WANTED, now)
        else:
            due_s, level = self._due()
            if due_s <= now:
                self._begin_sleep(level, now)
        orders, self.calls.orders = self.calls.orders, []
        if self.belief.notes:
            orders += [Note(note) for note in self.belief.notes]
            self.belief.notes.clear()
        return orders

    def _reconsider(self, run: Transition, now: float) -> None:
        if run.committed:
            return
        if not run.wakes and (self._wanted or self._draining):
            self._wishes.answer_sleep(Verdict.BUSY, "somebody came")
            self.calls.end()
            self._look_later(now)
        elif run.optional and (self._draining or not self._wanted):
            asleep = self.belief.level == 1
            self._happen(EngineEvent.FOUND_SLEEPING if asleep else EngineEvent.FOUND_OFFLOADED, now)

    def _due(self) -> tuple[float, int]:
        """Return when idleness will want it asleep or deeper asleep, and how deep."""
        belief = self.belief
        if self._draining or not belief.support:
            return inf, 0
        if self.state in _ASLEEP and belief.weights_on_gpu:
            return self.sleep_pause.until_s, 2 if self.state is OFFLOADED else 1
        if self.state not in (AWAKE, SLEEPING):
            return inf, 0
        deepest = 2 if belief.reload_fault is None else 1
        tiers = self.limits.tiers(belief.level, deepest)
        if not tiers:
            return inf, 0
        first_s = self._idle_from_s + min(idle_s for idle_s, _ in tiers)
        due_s = max(first_s, self.sleep_pause.until_s)
        return due_s, max(to for idle_s, to in tiers if self._idle_from_s + idle_s <= due_s)

    def _begin_sleep(self, level: int, now: float) -> None:
        """Ask for the GPU; the state is another one only when the engine was seen to be idle."""
        run = sleep_run(self.belief, level, now, asleep=self.state is not AWAKE)
        run.by_operator = self._wishes.sleep is not None
        self.calls.begin(run, now)

    # How the state changes

    def _take(self, event: EngineEvent | None, now: float) -> None:
        """Take what the calls tell."""
        if event is None:
            return
        if self.calls.run is None and event is not EngineEvent.FAILED:
            not_now = self._draining or self.wake_pause.on(now)
            if event in _FOUND_NOT_ASLEEP and self.state is not AWAKE and not_now:
                event = EngineEvent.FOUND_BUSY
            self._look_later(now)
        self._happen(event, now)

    def _look_later(self, now: float) -> None:
        if self.state not in (UNKNOWN, DOWN):
            self.calls.next_s = now + self.limits.probe_period_s
            return
        longest_s = LONGEST_GAP_WANTED_S if self._wanted else LONGEST_GAP_S
        self.calls.next_s = now + min(self._gap_s, longest_s)
        self._gap_s = min(self._gap_s * 2, LONGEST_GAP_S)

    def _happen(self, event: EngineEvent, now: float) -> None:
        """Go where the table says, and do what the new state asks for."""
        before, run = self.state, self.calls.run
        target = TABLE[before].get(event)
        if target is None:
            return
        if target is before:
            if event is EngineEvent.NOT_DUE:
                self.sleep_pause.put_off(now + self.limits.probe_period_s)
        else:
            self.state = target
            self.calls.orders.append(Changed(target))
            if target is WAKING:
                self._wake_up(event, now)
            elif target is AWAKE:
                self._awake(run, now)
            elif target in _ASLEEP:
                self._asleep(before, now)
            elif target is not FALLING_ASLEEP:
                self._fall_out(before, run, now)
        self._wishes.hear(event, self.state)

    def _wake_up(self, event: EngineEvent, now: float) -> None:
        run = wake_run(self._depth(), now if self.down_since_s is None else self.down_since_s)
        if event is EngineEvent.FOUND_AWAKE:
            done = self.calls.prove(run, now)
            if done is not None:
                self._happen(done, now)
            return
        run.optional = event is EngineEvent.WANTED
        self.calls.begin(run, now)

    def _awake(self, run: Transition | None, now: float) -> None:
        assert run is not None
        assert self.belief.trusted
        self.calls.orders += run.ended(now, succeeded=True)
        self.belief.level = 0
        self.belief.weights_on_gpu = False
        self.wake_pause.end()
        self._idle_from_s = now  # idleness of one that wakes begins now, however long the wake
        self._rest(now)

    def _asleep(self, before: EngineState, now: float) -> None:
        if before is FALLING_ASLEEP:
            self.belief.weights_on_gpu = False
            self.sleep_pause.end()
        self._rest(now)

    def _rest(self, now: float) -> None:
        """Be somewhere for longer."""
        self.down_since_s = None
        self._gap_s = FIRST_GAP_S
        self.calls.orders.append(Remember(self.belief.memory(None)))
        self.calls.end()
        self._look_later(now)

    def _fall_out(self, before: EngineState, run: Transition | None, now: float) -> None:
        """Be nowhere: nobody is there, or nobody knows what a transition has left."""
        self.calls.orders.append(Note(f"{before.value}: {self.calls.why}"))
        if before is FALLING_ASLEEP:
            self.sleep_pause.fail(now)
        elif run is not None and run.wakes and run.committed:
            self.wake_pause.fail(now)
            self.calls.orders += run.ended(now, succeeded=False)
        if self.state is DOWN and self.down_since_s is None:
            self.down_since_s = now
        self.calls.end()
        self._gap_s = FIRST_GAP_S
        self._look_later(now)
