"""One engine's sleep: all of its state that changes, and its table. The rest of `wake/` is values.

Four machines stand here side by side, each in one place of `WakeStateMachine`:

- the engine, `state`: UNKNOWN, AWAKE, FALLING_ASLEEP, SLEEPING, OFFLOADED, STOPPED, WAKING, DOWN;
  `TABLE` has its arrows;
- the transition, `transition`: none, not committed (nothing is done yet: droppable), committed;
- the call under way, `_call`: none, a step that is being written down, a step that is being made;
- the GPU, `_gpu`: NOT_ASKED, ASKED, GRANTED. It is kept while `_unsure`: a call may yet have its
  effect that nobody waits for any more.

Rule 1: the state changes in `_happen` alone, along an arrow of `TABLE`; other pairs do nothing.
Rule 2: AWAKE is entered by proof alone: the weights are known to have been loaded, a probe said
        awake, and a canary was answered.
Rule 3: one transition at a time. After a call that timed out none begins before a probe was
        answered: that runs behind whatever the engine is doing, so then all of it is over.
Rule 4: nothing is put to sleep while anyone is inside the gate or the engine.
Rule 5: what is about to be done is on the disk before it is done. What cannot be written down is
        not done, and an engine that is awake stays so.
Rule 6: what comes of an earlier call than the one under way has no effect.

The driver performs and reports; the gate tells who is inside. `observed.py` knows what a probe
means, `sequence.py` which step comes next, `operator_requests.py` who is answered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from math import inf
from typing import NamedTuple

from tornado_frontdoor.core.decisions import (
    Answered,
    Changed,
    Command,
    EngineState,
    FellAsleep,
    JournalEntry,
    Note,
    Notice,
    OutOfMemory,
    Perform,
    Remember,
    SleepDepth,
    SleepReason,
    Verdict,
)
from tornado_frontdoor.core.request import WakeTerms
from tornado_frontdoor.core.standing import NOTHING, Standing
from tornado_frontdoor.core.wake.known_good import NOTHING_KNOWN
from tornado_frontdoor.core.wake.observed import LONGEST_PATIENCE, EngineEvent, ObservedEngine
from tornado_frontdoor.core.wake.operator_requests import SILENT, OperatorRequests, sleep_answer
from tornado_frontdoor.core.wake.policy import (
    NEVER,
    Backoff,
    Due,
    Idleness,
    KeepAlive,
    SleepPolicy,
    due_by,
)
from tornado_frontdoor.core.wake.sequence import (
    NextAction,
    Transition,
    depth_of,
    sleep_run,
    wake_run,
)
from tornado_frontdoor.engines.base import (
    PROBE,
    EngineKind,
    ProcessCall,
    Report,
    Role,
    Step,
    StepResult,
)
from tornado_frontdoor.engines.base import STOPPED as LEVEL_STOPPED

UNKNOWN, AWAKE, FALLING_ASLEEP, SLEEPING, OFFLOADED, STOPPED, WAKING, DOWN = EngineState

TABLE: Mapping[EngineState, Mapping[EngineEvent, EngineState]] = {
    UNKNOWN: {
        # Not awake yet: a canary is still missing, and with it the proof.
        EngineEvent.FOUND_AWAKE: WAKING,
        EngineEvent.FOUND_DOUBTFUL: WAKING,
        EngineEvent.FOUND_SLEEPING: SLEEPING,
        EngineEvent.FOUND_OFFLOADED: OFFLOADED,
        EngineEvent.FOUND_STOPPED: STOPPED,
        # A call that timed out may still be under way, so nothing else may begin.
        EngineEvent.FOUND_BUSY: UNKNOWN,
        EngineEvent.LOST: DOWN,
    },
    AWAKE: {
        EngineEvent.DUE: FALLING_ASLEEP,
        EngineEvent.NOT_DUE: AWAKE,
        EngineEvent.FAILED: AWAKE,  # its sleep could not be written down: nothing was done
        EngineEvent.FOUND_AWAKE: AWAKE,
        # Out of band. Requests inside it wait there: they count as inside, so it is woken.
        EngineEvent.FOUND_SLEEPING: SLEEPING,
        EngineEvent.FOUND_OFFLOADED: OFFLOADED,
        EngineEvent.FOUND_STOPPED: STOPPED,
        EngineEvent.FOUND_BUSY: AWAKE,  # busy with a control call is not down
        EngineEvent.LOST: DOWN,
    },
    FALLING_ASLEEP: {
        # Only when no sleep is under way: on the way from level 1 to 2, or before one that
        # failed is tried again. Else who comes waits for its end: no wake into a sleep.
        EngineEvent.WANTED: WAKING,
        EngineEvent.FOUND_SLEEPING: SLEEPING,
        EngineEvent.FOUND_OFFLOADED: OFFLOADED,
        EngineEvent.FOUND_STOPPED: STOPPED,
        EngineEvent.LOST: DOWN,
        EngineEvent.FAILED: UNKNOWN,
    },
    SLEEPING: {
        EngineEvent.WANTED: WAKING,
        EngineEvent.DUE: FALLING_ASLEEP,
        EngineEvent.NOT_DUE: SLEEPING,
        EngineEvent.FAILED: SLEEPING,
        EngineEvent.FOUND_AWAKE: WAKING,  # out of band; the proof is still ours to make
        EngineEvent.FOUND_SLEEPING: SLEEPING,
        EngineEvent.FOUND_OFFLOADED: OFFLOADED,
        EngineEvent.FOUND_STOPPED: STOPPED,
        EngineEvent.FOUND_BUSY: SLEEPING,
        EngineEvent.LOST: DOWN,
    },
    OFFLOADED: {
        EngineEvent.WANTED: WAKING,
        EngineEvent.DUE: FALLING_ASLEEP,  # back: a wake that failed left weights on the GPU
        EngineEvent.NOT_DUE: OFFLOADED,
        EngineEvent.FAILED: OFFLOADED,
        EngineEvent.FOUND_AWAKE: WAKING,  # a new process
        # Woken out of band, perhaps without loading its weights: at once, wanted or not.
        EngineEvent.FOUND_DOUBTFUL: WAKING,
        EngineEvent.FOUND_SLEEPING: SLEEPING,  # a new process, put to sleep out of band
        EngineEvent.FOUND_OFFLOADED: OFFLOADED,
        EngineEvent.FOUND_STOPPED: STOPPED,
        EngineEvent.FOUND_BUSY: OFFLOADED,
        EngineEvent.LOST: DOWN,
    },
    STOPPED: {
        EngineEvent.WANTED: WAKING,
        EngineEvent.FOUND_AWAKE: WAKING,  # started out of band; the proof is still ours to make
        EngineEvent.FOUND_SLEEPING: SLEEPING,
        EngineEvent.FOUND_OFFLOADED: OFFLOADED,
        EngineEvent.FOUND_STOPPED: STOPPED,
        EngineEvent.FOUND_BUSY: STOPPED,
        EngineEvent.LOST: DOWN,
    },
    WAKING: {
        # Called off before the first step: nobody is there any more who wanted it.
        EngineEvent.FOUND_SLEEPING: SLEEPING,
        EngineEvent.FOUND_OFFLOADED: OFFLOADED,
        EngineEvent.FOUND_STOPPED: STOPPED,
        EngineEvent.LOST: DOWN,
        EngineEvent.PROVEN: AWAKE,
        EngineEvent.FAILED: UNKNOWN,
    },
    DOWN: {
        EngineEvent.FOUND_AWAKE: WAKING,  # it listens, which is not yet an answer
        EngineEvent.FOUND_DOUBTFUL: WAKING,
        EngineEvent.FOUND_SLEEPING: SLEEPING,
        EngineEvent.FOUND_OFFLOADED: OFFLOADED,
        EngineEvent.FOUND_STOPPED: STOPPED,
        EngineEvent.FOUND_BUSY: DOWN,
        EngineEvent.LOST: DOWN,
    },
}

RETRY_S = 1.0
"""Before a failed step is tried once more, and before another probe of an engine that is busy."""
JOURNAL_LIMIT_S = 10.0
"""For what must be on the disk before a step is made; then the transition has failed."""
FIRST_GAP_S = 0.25
"""Between probes of an engine that is down or unknown; doubles up to one of the next two."""
LONGEST_GAP_WANTED_S = 1.0
LONGEST_GAP_S = 10.0

_ASLEEP = (SLEEPING, OFFLOADED, STOPPED)
_LEVEL = {SLEEPING: 1, OFFLOADED: 2, STOPPED: LEVEL_STOPPED}
_FOUND = {1: EngineEvent.FOUND_SLEEPING, LEVEL_STOPPED: EngineEvent.FOUND_STOPPED}
_FOUND_NOT_ASLEEP = (EngineEvent.FOUND_AWAKE, EngineEvent.FOUND_DOUBTFUL)


class Gpu(Enum):
    """What is wanted of the engine's devices; the gate sees to it."""

    ASK = auto()
    """`granted` is to be called once they are granted."""
    FREE = auto()
    """Give them back, or ask no longer."""


WakeOrder = Command | Notice | Gpu


class Lock(Enum):
    """Where the machine stands with its GPU."""

    NOT_ASKED = auto()
    ASKED = auto()
    GRANTED = auto()


class OpenCall(NamedTuple):
    """The call that is under way."""

    number: int
    step: Step
    until_s: float
    writes: bool
    """Whether its step is only being written down, and made after that."""


class WakeStateMachine:
    """The wake machine of one engine. Not thread-safe, never blocks; each call is O(1).

    `now` is the instant of the call in monotonic seconds. Each call returns what is to be done, in
    order. A new machine knows nothing and wants to probe at once: see `next_deadline`.
    """

    def __init__(
        self,
        policy: SleepPolicy,
        now: float,
        kind: EngineKind,
        memory: JournalEntry | None = None,
    ) -> None:
        memory = memory or JournalEntry()
        self.policy = policy
        self.state = UNKNOWN
        self.engine = ObservedEngine.remembered(memory)
        self.transition: Transition | None = None
        self.next_s = now
        """When the transition goes on; without one, when to probe again."""
        self.why = ""
        """Why the last transition did not get where it was going."""
        self.wake_backoff = Backoff()
        self.sleep_backoff = Backoff()
        self.down_since_s: float | None = None
        self.wakes_total = 0
        """Transitions begun that wake; a canary alone is none."""
        self._kind = kind
        self._orders: list[WakeOrder] = []
        self._number = 0
        self._call: OpenCall | None = None
        self._gpu = Lock.NOT_ASKED
        self._unsure = memory.going is not None  # a call may be under way that nobody waits for
        # So may a start, of which nobody's answering is no end: it is begun again, wanted or not.
        self._starting = memory.going is WAKING and memory.level == LEVEL_STOPPED
        self._written = memory._replace(going=None)  # what the journal was told last
        # A wake that had begun is finished, wanted or not.
        self._requests = OperatorRequests(wake=memory.going is WAKING)
        self._inside = 0
        self._suspected = False  # a caller complained, and none was served since
        self._draining = False
        self._room: int | None = None  # the level at which it makes room for another engine
        self.standing = NOTHING
        self._woken_by = ""  # the operator, if one wants it awake
        self._idle = Idleness(now)
        self._gap_s = FIRST_GAP_S
        if self._unsure:
            self._ask_gpu()

    def __repr__(self) -> str:
        step = f" {self.step}" if self.step else ""
        return f"<WakeStateMachine {self.state.value}{step} inside={self._inside}>"

    # What can be asked

    @property
    def depth(self) -> SleepDepth | None:
        """How far from serving it is, as callers are told; None: not at all."""
        if self.state is AWAKE:
            return None
        run = self.transition
        return self._depth() if run is None or run.from_depth is None else run.from_depth

    @property
    def hold_depth(self) -> SleepDepth | None:
        """The depth by whose hold callers wait; None: they do not.

        An engine that answered with garbage is tried again with its weights read anew: that is no
        deeper sleep, may never end well, and is no reason to hold anybody for longer.
        """
        depth, engine = self.depth, self.engine
        if depth is SleepDepth.OFFLOADED and engine.proof.quarantined and engine.level in (0, 1):
            return SleepDepth.SLEEPING
        return depth

    @property
    def levels(self) -> frozenset[int]:
        """How deep an engine of its kind can be put to sleep."""
        return self._kind.levels

    @property
    def usable_levels(self) -> frozenset[int]:
        """How deep this one can be put to sleep, as far as is known."""
        engine, levels = self.engine, self._kind.levels
        if engine.support is False:
            levels &= {LEVEL_STOPPED}
        return levels if engine.reload_fault is None else levels - {2}

    @property
    def pinned(self) -> bool:
        """Whether neither idleness nor another engine's need may put it to sleep."""
        standing = self.standing
        return standing.pinned or (self.policy.pinned and standing.asleep is None)

    @property
    def keep_alive(self) -> KeepAlive | None:
        """How long a caller wants it kept awake, as far as anybody said so."""
        return self._idle.keep

    @property
    def step(self) -> str | None:
        """Where a transition is: its step's label, or `gpu` while it waits for that."""
        if self.transition is None:
            return None
        return "gpu" if self._waits_for_gpu else self.transition.step.label

    def next_deadline(self) -> float:
        """Return the instant at which `tick` has something to do; infinity: never."""
        if self._call is not None:
            deadline_s = self._call.until_s
        else:
            deadline_s = inf if self._waits_for_gpu else self.next_s
        if self.transition is not None:
            return deadline_s
        if self._wanted:
            ready_s = self.wake_backoff.until_s if self.state in _ASLEEP else inf
            return deadline_s if self._draining else min(deadline_s, ready_s)
        return min(deadline_s, self._due().at_s)

    # What can happen

    def change_policy(self, policy: SleepPolicy) -> None:
        """Take another policy; what is under way goes on as it began."""
        self.policy = policy

    def stand(self, standing: Standing, now: float) -> Sequence[WakeOrder]:
        """Take the orders that hold from now on; a fall of which nothing was done is considered."""
        self.standing = standing
        run = self.transition
        undone = run is not None and not run.wakes and not run.committed
        if undone and self._requests.sleep is None:
            self._end()
            self._probe_later(now)
        return self._consider(now)

    def touch(self, now: float) -> None:
        """Note that a request came, or left without having been served: a use of the engine."""
        self._idle = self._idle.used(now)

    def served(self, terms: WakeTerms | None, now: float, *, well: bool) -> None:
        """Note the end of a request that was in flight; `well`: the engine answered it."""
        self._suspected = self._suspected and not well
        if terms is None or terms.counts:
            self._idle = self._idle.ended(now, terms, self.policy.max_keep_alive_s)

    def demand(self, inside: int, now: float) -> Sequence[WakeOrder]:
        """Take how many are inside the gate now, in flight or waiting."""
        self._inside = inside
        if inside and self.transition is None:
            if self.state is AWAKE:
                return ()
            if self.state not in _ASLEEP:
                self.next_s = min(self.next_s, now + LONGEST_GAP_WANTED_S)
        return self._consider(now)

    def tick(self, now: float) -> Sequence[WakeOrder]:
        """Let time pass; must be called at `next_deadline()`."""
        call = self._call
        if call is None:
            self._take(self._next_call(now), now)
        elif now >= call.until_s:
            self._take(self._ended(call, Report(call.number, StepResult.TIMED_OUT), now), now)
        return self._consider(now)

    def report(self, report: Report, now: float) -> Sequence[WakeOrder]:
        """Take what came of a step, or of what was to be written down before it.

        Without effect when nobody waits for it any more.
        """
        call = self._call
        if call is not None and report.number == call.number:
            self._take(self._ended(call, report, now), now)
        return self._consider(now)

    def granted(self, now: float) -> Sequence[WakeOrder]:
        """Take the GPU that was asked for."""
        if self._gpu is Lock.ASKED and not self._draining:
            self._gpu = Lock.GRANTED
            run = self.transition
            if run is not None:
                if run.depth is not SleepDepth.RESTARTING:
                    # Waiting for the GPU is no part of a wake's time.
                    self.transition = replace(run, began_s=now)
                self._perform(run.step, now)
        return self._consider(now)

    def lost(self, now: float, why: str = "a request could not connect") -> Sequence[WakeOrder]:
        """Take that a request could not connect to the engine; `why` is for people."""
        if self.state is not DOWN:
            self.why = why
            self._happen(EngineEvent.LOST, now)
        return self._consider(now)

    def suspect(self, now: float) -> Sequence[WakeOrder]:
        """Probe at once: a request ended in a way that a sleeping engine would explain."""
        self._suspected = True
        if self.state is AWAKE and self.transition is None:
            self.next_s = now
        return self.tick(now)

    def make_room(self, level: int | None, now: float) -> Sequence[WakeOrder]:
        """Sleep at a level, for another engine, as soon as nobody is inside; None: no more."""
        if level == self._room:
            return ()
        self._room = level
        run = self.transition
        if level is None and run is not None and not run.wakes and not run.committed:
            self._end()
            self._probe_later(now)
        return self._consider(now)

    @property
    def makes_room(self) -> bool:
        """Whether it is to sleep for another engine."""
        return self._room is not None

    def room_refused(self, now: float) -> bool:
        """Whether it was to make room and cannot: it does work of somebody else, or failed."""
        waits = self._room is not None and self.transition is None
        unable = self._requests.wake or self.engine.support is None or not self.usable_levels
        return waits and (unable or self.pinned or self.sleep_backoff.on(now))

    def never_fits(self, why: str, now: float) -> Sequence[WakeOrder]:
        """Take that there will be no room for it: what asked for it is over."""
        run = self.transition
        if run is not None and run.wakes and not run.committed:
            self.why = why
            self.wake_backoff = self.wake_backoff.failed(now)
            self._happen(_FOUND.get(self.engine.level, EngineEvent.FOUND_OFFLOADED), now)
        return self._consider(now)

    def drain(self, now: float) -> Sequence[WakeOrder]:
        """Begin nothing any more; what is under way goes on."""
        self._draining = True
        return self._consider(now)

    def believe(self, now: float) -> Sequence[WakeOrder]:
        """Forget what its first token was: an operator says that it is good as it is."""
        self.engine = replace(self.engine, proof=NOTHING_KNOWN, trusted=True)
        self._remember(None if self.transition is None else self._written.going)
        self.wake_backoff = Backoff()
        if self.transition is None and self.state is not AWAKE:
            self.next_s = now
        return self._consider(now)

    def wake(self, now: float, by: str = "an operator") -> Sequence[WakeOrder]:
        """Take an operator's request, or whose it is; `Answered` tells what comes of it."""
        self._woken_by = by
        self._requests = self._requests._replace(wake=True)
        self.touch(now)
        self.wake_backoff = Backoff()
        self._reconsider(now)
        if self.state is AWAKE:
            self._answer_wake(Verdict.DONE)
        elif self._draining:
            self._answer_wake(Verdict.FAILED, "the front door is shutting down")
        elif self.state is DOWN:
            self._answer_wake(Verdict.FAILED, "the engine does not answer")
        elif self.transition is None:
            self.next_s = now
        return self._consider(now)

    def sleep(self, level: int, now: float) -> Sequence[WakeOrder]:
        """Take an operator's request for level 1 or 2; `Answered` tells what comes of it."""
        run = self.transition
        answer = sleep_answer(
            level, self.state, self.engine, run, self._why_busy(), self._kind.levels
        )
        if answer is not None:
            self._orders.append(answer)  # an earlier request that is under way is not answered
            return self._consider(now)
        if self._requests.sleep not in (None, level):
            self._answer_sleep(Verdict.BUSY, f"another operator wants it asleep at level {level}")
        self._requests = self._requests._replace(sleep=level)
        if run is not None and run.level == level:
            self.transition = replace(run, reason=SleepReason.OPERATOR)  # it is on its way there
        else:
            self._end()
            self._begin_sleep(level, SleepReason.OPERATOR, now)
        return self._consider(now)

    # What begins

    @property
    def _wanted(self) -> bool:
        return self._requests.wake or self._inside > 0 or self._starting

    def _why_busy(self) -> str:
        if self._inside:
            return f"{self._inside} {'is' if self._inside == 1 else 'are'} inside"
        if self._draining:
            return "the front door is shutting down"
        return f"{self._woken_by} wants it awake" if self._requests.wake else ""

    def _depth(self) -> SleepDepth:
        if self.down_since_s is not None:
            return SleepDepth.RESTARTING
        return depth_of(self.engine)

    def _consider(self, now: float) -> Sequence[WakeOrder]:
        """Begin what is due, drop what is not wanted any more, and return all there is to do."""
        if self.transition is not None:
            self._reconsider(now)
        elif self._draining:
            pass
        elif self._wanted:
            if self.state in _ASLEEP and not self.wake_backoff.on(now):
                self._happen(EngineEvent.WANTED, now)
        elif self._room is not None and self.state is AWAKE:
            if not self.sleep_backoff.on(now) and self.engine.support:
                self._begin_sleep(self._room, SleepReason.ROOM, now)
        else:
            due = self._due()
            if due.at_s <= now:
                self._begin_sleep(due.level, due.reason, now, due.by)
        orders, self._orders = self._orders, []
        return orders

    def _reconsider(self, now: float) -> None:
        run = self.transition
        if run is None or run.committed:
            return
        if not run.wakes and (self._wanted or self._draining):
            self._answer_sleep(Verdict.BUSY, "somebody came")
            self._end()
            self._probe_later(now)
        elif run.optional and (self._draining or not self._wanted):
            self._happen(_FOUND.get(self.engine.level, EngineEvent.FOUND_OFFLOADED), now)

    def _due(self) -> Due:
        """Return when idleness will want it asleep or deeper asleep, how deep, and why."""
        engine, pause_s = self.engine, self.sleep_backoff.until_s
        if self._draining or engine.support is None:
            return NEVER
        if self.state in (SLEEPING, OFFLOADED) and engine.weights_on_gpu:
            return Due(pause_s, 2 if self.state is OFFLOADED else 1)
        if self.state not in (AWAKE, SLEEPING, OFFLOADED):
            return NEVER
        order = self.standing.asleep
        if order is not None and self.state is AWAKE and self.usable_levels:
            return due_by(order, self.usable_levels, pause_s)
        if self.pinned or self.standing.kept:
            return NEVER
        return self._idle.due(self.policy, engine.level, self.usable_levels, pause_s)

    def _begin_sleep(self, level: int, reason: SleepReason, now: float, by: str = "") -> None:
        """Ask for the GPU; the state is another one only when the engine was seen to be idle."""
        asleep = self.state is not AWAKE
        self._begin(
            sleep_run(self._kind, self.engine, level, now, asleep=asleep, reason=reason, by=by), now
        )

    def _begin(self, run: Transition, now: float) -> None:
        """Start a transition once the GPU is granted."""
        self.transition = run
        self._call = None
        if self._gpu is Lock.GRANTED:
            self._perform(run.step, now)
        else:
            self._ask_gpu()

    def _end(self) -> None:
        """Forget the transition and the call under way.

        The GPU is kept while that call may yet have an effect: until a probe tells that it is over,
        or that nobody is there any more.
        """
        run, call = self.transition, self._call
        if call is not None and not call.writes:
            self._unsure |= call.step.changes
            self._starting |= call.step.call is ProcessCall.START
        self.transition = self._call = None
        if run is not None and not run.committed and self._written.going is not None:
            self._remember(None)  # it was written down and never done
        self._free_gpu()

    @property
    def _waits_for_gpu(self) -> bool:
        return self.transition is not None and self._gpu is Lock.ASKED

    def _ask_gpu(self) -> None:
        self._gpu = Lock.ASKED
        self._orders.append(Gpu.ASK)

    def _free_gpu(self) -> None:
        if self._gpu is not Lock.NOT_ASKED and self.transition is None and not self._unsure:
            self._gpu = Lock.NOT_ASKED
            self._orders.append(Gpu.FREE)

    # Calls: one at a time, each with its limit. Those that tell an event leave it to `_take`.

    def _next_call(self, now: float) -> EngineEvent | None:
        if now < self.next_s or self._waits_for_gpu:
            return None
        step = PROBE if self.transition is None else self.transition.step
        if step.role is Role.SLEEP and self._wanted:
            return self._somebody_came()
        self._perform(step, now)
        return None

    def _somebody_came(self) -> EngineEvent:
        """Do not put to sleep what is wanted; no sleep is under way at this point."""
        self.why = "somebody came"
        return EngineEvent.WANTED

    def _perform(self, step: Step, now: float) -> None:
        timeout_s = step.timeout_s * self.engine.patience if step.probes else step.timeout_s
        self._number += 1
        self._call = OpenCall(self._number, step, now + timeout_s, writes=False)
        self._orders.append(Perform(self._number, step, timeout_s))

    def _write_down(self, run: Transition, now: float) -> None:
        """Have a step written down; it is made when that is on the disk."""
        engine = self.engine
        if run.step.role is Role.SLEEP:
            engine = engine.falling(run.level)
        self._number += 1
        self._call = OpenCall(self._number, run.step, now + JOURNAL_LIMIT_S, writes=True)
        self._written = engine.entry(WAKING if run.wakes else FALLING_ASLEEP)
        self._orders.append(Remember(self._written, self._number))

    def _remember(self, going: EngineState | None) -> None:
        """Have written down how it stands; nothing waits for that, as it only spares work."""
        self._written = self.engine.entry(going)
        self._orders.append(Remember(self._written))

    def _ended(self, call: OpenCall, report: Report, now: float) -> EngineEvent | None:
        """Take what came of the call under way."""
        self._call = None
        run, step = self.transition, call.step
        if call.writes:
            assert run is not None
            return self._after_writing(run, report, now)
        event = self._read(report) if step.probes else None
        blind = report.ending in (StepResult.TIMED_OUT, StepResult.LOST)
        starts = step.call is ProcessCall.START
        proof = event is not EngineEvent.FOUND_STOPPED or not self._starting
        if event is not None and event is not EngineEvent.FOUND_BUSY and proof:
            self._unsure = self._starting = False  # it runs behind all else, so all else is over
            self._free_gpu()
        elif blind and step.changes:
            self._unsure = True
            self._starting |= starts
        elif starts:
            self._unsure = self._starting = False
        if report.ending is StepResult.LOST and event in (None, EngineEvent.LOST):
            self.why = f"{step.label}: {report.detail or 'nobody is there'}"
            return EngineEvent.LOST
        if run is None:
            return event
        if step.role is Role.CANARY:
            self.engine = self.engine.heard(self._kind, report, fresh=run.fresh(self._kind))
            self._orders.append(self.engine.proof.ended())
        judged = run.judge(report, event, self.engine, self._kind)
        self.transition, self.why = judged.transition, judged.why
        self._note(judged.note)
        return self._follow(judged.transition, judged.action, event, now)

    def _read(self, report: Report) -> EngineEvent:
        in_use = self.state is AWAKE and self._inside > 0 and not self._suspected
        if report.ending is StepResult.TIMED_OUT and self.engine.patience == LONGEST_PATIENCE:
            self._leave_off_waiting()
        reading = self.engine.read(self._kind, report, in_use=in_use)
        self.engine = reading.engine
        self._note(reading.note)
        return reading.event

    def _follow(
        self, run: Transition, action: NextAction, event: EngineEvent | None, now: float
    ) -> EngineEvent | None:
        """Go on with a transition as was judged."""
        match action:
            case NextAction.NEXT:
                return self._done(run, event, now)
            case NextAction.AGAIN:
                self.next_s = now + RETRY_S
                return None
            case NextAction.ARRIVED:
                return event
            case NextAction.GIVE_UP:
                known = self.engine.reload_fault
                self.engine = self.engine.given_up(
                    self._kind, run.steps, run.index, self.why, full=run.full
                )
                if run.full:
                    self._orders.append(OutOfMemory())
                if known is None:
                    self._note(self.engine.reload_fault or "")
                return EngineEvent.FAILED
            case NextAction.PUT_OFF:
                self._end()
                return EngineEvent.NOT_DUE
            case NextAction.ELSEWHERE:
                self._end()
                return event

    def _done(self, run: Transition, event: EngineEvent | None, now: float) -> EngineEvent | None:
        if run.step.role is Role.PROBE:
            assert event is not None
            run = run.planned(event, self.engine, self._kind, now, canary=self.policy.canary)
        elif run.step.role is Role.VERIFY_AWAKE:
            if run.loads_weights:
                self.engine = self.engine.loaded()
            self._remember(WAKING)
        return self._advance(run, now)

    def _advance(self, run: Transition, now: float) -> EngineEvent | None:
        """Go to the next step, or tell that there is none or that it must not be."""
        advanced = run.advanced()
        if advanced is None:
            self.transition = run
            return EngineEvent.PROVEN
        self.transition = advanced
        if advanced.step.role is Role.SLEEP and advanced.committed and self._wanted:
            return self._somebody_came()
        if advanced.must_be_written:
            self._write_down(advanced, now)
            return None
        return self._make(advanced, now)

    def _after_writing(self, run: Transition, report: Report, now: float) -> EngineEvent | None:
        """Make the step that is written down now; what is not must not be done."""
        if report.ending is not StepResult.DONE:
            self.why = f"{run.step.label} could not be written down: {report.detail or 'no answer'}"
            return EngineEvent.FAILED
        if run.step.role is Role.SLEEP:
            if run.committed and self._wanted:
                return self._somebody_came()
            self.engine = self.engine.falling(run.level)
        return self._make(run, now)

    def _make(self, run: Transition, now: float) -> EngineEvent | None:
        begins = run.begins
        self.transition = replace(run, committed=run.committed or begins)
        self.wakes_total += begins and run.wakes and run.moves_memory
        self._perform(run.step, now)
        return EngineEvent.DUE if begins and not run.wakes else None

    # How the state changes

    def _take(self, event: EngineEvent | None, now: float) -> None:
        """Take what the calls tell."""
        if event is None:
            return
        if self.transition is None:
            not_now = self._draining or self.wake_backoff.on(now)
            if event in _FOUND_NOT_ASLEEP and self.state is not AWAKE and not_now:
                event = EngineEvent.FOUND_BUSY
            self._probe_later(now)
        self._happen(event, now)

    def _probe_later(self, now: float) -> None:
        if self.state not in (UNKNOWN, DOWN):
            self.next_s = now + self.policy.probe_period_s
            return
        longest_s = LONGEST_GAP_WANTED_S if self._wanted else LONGEST_GAP_S
        self.next_s = now + min(self._gap_s, longest_s)
        self._gap_s = min(self._gap_s * 2, LONGEST_GAP_S)

    def _happen(self, event: EngineEvent, now: float) -> None:
        """Go where the table says, and do what the new state asks for."""
        before, run = self.state, self.transition
        target = TABLE[before].get(event)
        if target is None:
            return
        if target is before:
            self._stay(event, now)
        else:
            self.state = target
            self._orders.append(Changed(target, self._whose(target)))
            if target is WAKING:
                self._wake_up(event, now)
            elif target is AWAKE:
                self._awake(run, now)
            elif target in _ASLEEP:
                self._asleep(before, run, now)
            elif target is not FALLING_ASLEEP:
                self._fall_out(event, before, run, now)
        self._requests, answers = self._requests.after(event, self.state, self.transition, self.why)
        self._orders += answers

    def _stay(self, event: EngineEvent, now: float) -> None:
        if event is EngineEvent.NOT_DUE:
            self.sleep_backoff = self.sleep_backoff.put_off(now + self.policy.probe_period_s)
        elif event is EngineEvent.FAILED:  # a sleep of which nothing was done yet
            self.sleep_backoff = self.sleep_backoff.failed(now)
            self._note(f"it stays {self.state.value}: {self.why}")
            self._end()
            self._probe_later(now)

    def _wake_up(self, event: EngineEvent, now: float) -> None:
        began_s = now if self.down_since_s is None else self.down_since_s
        run = wake_run(self._depth(), began_s, optional=event is EngineEvent.WANTED)
        if event is not EngineEvent.FOUND_AWAKE:
            self._begin(run, now)
            return
        # Only its proof is missing: no memory is moved, no GPU is needed.
        self._call = None
        done = self._advance(
            run.planned(event, self.engine, self._kind, now, canary=self.policy.canary), now
        )
        if done is not None:
            self._happen(done, now)

    def _awake(self, run: Transition | None, now: float) -> None:
        assert run is not None
        assert self.engine.trusted
        self._orders += run.ended(now, succeeded=True)
        self.engine = replace(self.engine, level=0, weights_on_gpu=False)
        self.wake_backoff = Backoff()
        self._suspected = False
        self.touch(now)  # idleness of one that wakes begins now, however long the wake
        self._rest(now)

    def _asleep(self, before: EngineState, run: Transition | None, now: float) -> None:
        if before is AWAKE:
            self._orders.append(FellAsleep(_LEVEL[self.state], SleepReason.OUT_OF_BAND))
        elif before is FALLING_ASLEEP:
            reason, by = (SleepReason.IDLE, "") if run is None else (run.reason, run.by)
            if self._room is not None and reason is not SleepReason.OPERATOR:
                reason = SleepReason.ROOM
            self._orders.append(FellAsleep(_LEVEL[self.state], reason, by=by))
        self._room = None
        self._idle = self._idle.slept()
        if before is FALLING_ASLEEP:
            self.engine = replace(self.engine, weights_on_gpu=False)
            self.sleep_backoff = Backoff()
        self._rest(now)

    def _rest(self, now: float) -> None:
        """Be somewhere for longer."""
        self.down_since_s = None
        self._gap_s = FIRST_GAP_S
        self._remember(None)
        self._end()
        self._probe_later(now)

    def _fall_out(
        self, event: EngineEvent, before: EngineState, run: Transition | None, now: float
    ) -> None:
        """Be nowhere: nobody is there, or nobody knows what a transition has left."""
        self._note(f"{before.value}: {self.why}")
        if before is FALLING_ASLEEP:
            self.sleep_backoff = self.sleep_backoff.failed(now)
        elif run is not None and run.wakes and (run.committed or event is EngineEvent.FAILED):
            # The ledger has learned from a full GPU, and makes more room for another try.
            learned = run.full and self.policy.awake_gib > 0
            self.wake_backoff = self.wake_backoff.failed(now, first_s=0.0 if learned else None)
            self._orders += run.ended(now, succeeded=False)
        if self.state is DOWN and self.down_since_s is None:
            self.down_since_s = now
        self._end()
        self._gap_s = FIRST_GAP_S
        self._probe_later(now)

    # What is told

    def _whose(self, target: EngineState) -> str:
        """Return who wants it in that state, where somebody does."""
        if target is not WAKING:
            return ""
        if self._requests.wake:
            return self._woken_by
        return "a request" if self._inside else ""

    def _note(self, text: str) -> None:
        if text:
            self._orders.append(Note(text))

    def _leave_off_waiting(self) -> None:
        """Answer operators: the longest probe was in vain, and any number may be."""
        if self._woken_by:  # else an earlier front door began it, and nobody waits
            self._answer_wake(Verdict.FAILED, SILENT)
        self._answer_sleep(Verdict.FAILED, SILENT)

    def _answer_wake(self, verdict: Verdict, why: str = "") -> None:
        if self._requests.wake:
            self._orders.append(Answered("wake", verdict, why))
            self._requests = self._requests._replace(wake=False)

    def _answer_sleep(self, verdict: Verdict, why: str) -> None:
        if self._requests.sleep is not None:
            self._orders.append(Answered("sleep", verdict, why, self._requests.sleep))
            self._requests = self._requests._replace(sleep=None)
