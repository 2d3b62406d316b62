"""A model of one vLLM engine: its sequences, its serial loop of control calls, its deaths.

Rule 1: no clock, no socket, no random number: a driver tells the instant and is told the events.
Rule 2: control calls are carried out one at a time; while one takes time, nothing is computed and
        every later call waits, `/is_sleeping` too.
Rule 3: a sequence that is scheduled while any memory is unmapped kills the engine.
Rule 4: text computed on weights that were not loaded is garbage, and looks like success.

A driver calls `submit`, `abort`, `call` or `kill`, then `advance(now)` for all that came of it, and
`advance` again at `next_deadline()`. `profiles.py` has what differs by release.
"""

import math
from collections import Counter, deque
from collections.abc import Hashable
from enum import Enum, auto
from functools import partial

from simulator.engine_model.replica import JobId, Prefill, Replica, Speed, What, alone_speed
from simulator.standin.engine_values import (
    ControlAnswer,
    ControlCall,
    Kind,
    Mode,
    ModelEvent,
    Times,
)
from simulator.standin.gpu_memory import GpuMemory, Woken
from simulator.standin.releases import VllmRelease, profile_of
from simulator.standin.shared_gpu import FULL, GpuPart

__all__ = [
    "ControlAnswer",
    "ControlCall",
    "EngineModel",
    "Kind",
    "Mode",
    "ModelEvent",
    "Scheduler",
    "Times",
]

RPC_METHODS = ("reload_weights", "nap", "check_health", "reset_mm_cache", "reset_encoder_cache")
"""Worker methods that `/collective_rpc` finds; `nap` blocks the loop for `seconds`."""


class Scheduler(Enum):
    """Which sequences are computed."""

    RUNNING = auto()
    PAUSED_NEW = auto()
    """Those that run go on; none starts."""
    PAUSED_ALL = auto()


class EngineModel:
    """One engine process. Not thread-safe and never blocks."""

    def __init__(
        self,
        slots: int,
        *,
        profile: VllmRelease | None = None,
        times: Times | None = None,
        speed: Speed = alone_speed,
        prefill: Prefill | None = None,
        part: GpuPart | None = None,
    ) -> None:
        """`part`: what it takes of a GPU that others share; without it there is always room."""
        self._part = part
        self.profile = profile or profile_of("0.33")
        self.times = times or Times()
        self._new_replica = partial(Replica, slots, speed, prefill)
        self._events: list[ModelEvent] = []
        self.deaths = 0
        self._boot()

    def _boot(self) -> None:
        self.replica = self._new_replica()
        self.memory = GpuMemory(self.profile)
        self.scheduler = Scheduler.RUNNING
        self.rejects_new = False
        """Whether new requests get 503 (after `/pause`, in releases that do that)."""
        self._loop: deque[ControlCall] = deque()
        self._busy: ControlCall | None = None
        self._busy_until_s = math.inf
        self._draining: list[ControlCall] = []
        self._tainted: set[JobId] = set()
        self._wake_failed = False
        self._load = 0, 0
        self.operations: Counter[str] = Counter(sleep=0, wake=0)
        """Sleeps and wakes that were answered with success, also those that did nothing."""
        self._restart_at_s: float | None = None
        self._take_part()

    def _take_part(self) -> None:
        if self._part is not None:
            self._part.take(self.memory.asleep)

    @property
    def dead(self) -> bool:
        """Whether the engine process is gone."""
        return self._restart_at_s is not None

    @property
    def busy(self) -> str | None:
        """The control call that occupies the loop, or is draining for a sleep."""
        call = self._busy or next(iter(self._draining), None)
        return call.name if call else None

    @property
    def proven_awake(self) -> bool:
        """Whether a request sent now would be answered, and with sense."""
        resident = not self.memory.asleep and not self.memory.garbage
        running = self.scheduler is Scheduler.RUNNING and self.busy is None
        return resident and running and not self.dead

    @property
    def reported_load(self) -> tuple[int, int]:
        """`num_requests_running` and `_waiting` as the gauges have them: those of the last step.

        Who comes to an engine that is blocked or sleeps is not in them; who was frozen still is.
        """
        self._count_load()
        return self._load

    def _count_load(self) -> None:
        if self._busy is None and self.scheduler is not Scheduler.PAUSED_ALL:
            self._load = self.replica.running, self.replica.waiting

    def submit(
        self,
        job: JobId,
        work: float,
        now: float,
        *,
        steps: int = 0,
        step_work: float = 0.0,
        weight: int = 1,
        prompt: float = 0.0,
    ) -> None:
        """Take a sequence in; it runs, waits for a slot, or waits for the engine to wake."""
        assert not self.dead, "a dead engine takes no sequences"
        self.replica.start(
            job, work, now, steps=steps, step_work=step_work, weight=weight, prompt=prompt
        )
        self._settle(now)

    def abort(self, job: JobId, now: float) -> bool:
        """Drop a sequence whose client left, running, waiting or held; False: not inside."""
        self._tainted.discard(job)
        was_inside = self.replica.abort(job, now)
        self._settle(now)
        return was_inside

    def stall(self, job: JobId) -> None:
        """Let a running sequence keep its slots and get nowhere, until it is aborted."""
        self.replica.stall(job)

    def call(self, call: ControlCall, now: float) -> None:
        """Put a control call in the loop; ANSWERED comes when it is through, perhaps never."""
        if self.dead:
            self._tell(Kind.ANSWERED, call.id, now, ControlAnswer(False, "the engine is dead"))
            return
        self._loop.append(call)
        self._turn(now)

    def kill(self, now: float, restart_s: float | None = None, reason: str = "killed") -> None:
        """End the process at once; it is back, awake, after `restart_s` (default: `times`)."""
        if self.dead:
            return
        for what, job, at_s in self.replica.drain():
            if what is What.STARTED:
                self._tell(Kind.STARTED, job, at_s)
        unanswered = [self._busy] if self._busy else []
        for call in [*unanswered, *self._draining, *self._loop]:
            self._tell(Kind.ANSWERED, call.id, now, ControlAnswer(False, "the engine died"))
        self.deaths += 1
        self._boot()
        if self._part is not None:
            self._part.leave()
        wait_s = self.times.restart_s if restart_s is None else restart_s
        self._restart_at_s = now + wait_s
        self._tell(Kind.DIED, None, now, reason)

    def restart_at(self, at_s: float) -> None:
        """Let a dead process be back then, whenever it was to be."""
        assert self.dead
        self._restart_at_s = at_s

    def next_deadline(self) -> float:
        """Return the instant at which `advance` has something to do; infinity: never."""
        if self._restart_at_s is not None:
            return self._restart_at_s
        return min(self.replica.next_event(), self._busy_until_s)

    def advance(self, now: float) -> list[ModelEvent]:
        """Move on to `now`; return all that happened since this was last asked, in order."""
        while (at_s := self.next_deadline()) <= now:
            self._happen(at_s)
        self._collect(now)
        events, self._events = self._events, []
        return events

    def _happen(self, at_s: float) -> None:
        if self._restart_at_s is not None:
            self._restart_at_s = None
            self._take_part()
            self._tell(Kind.RESTARTED, None, at_s)
        elif self._busy is not None and self._busy_until_s <= at_s:
            self._end(self._busy, at_s)
        else:
            self._collect(at_s)
            self._settle(at_s)

    def _collect(self, now: float) -> None:
        """Turn what happened to sequences into events, telling garbage from sense."""
        for what, job, at_s in self.replica.moments(now):
            if what is What.STARTED:
                self._tell(Kind.STARTED, job, at_s)
                continue
            bad = self.memory.garbage or job in self._tainted
            self._tell(Kind.STEPPED if what is What.STEPPED else Kind.FINISHED, job, at_s, bad)
            if what is What.FINISHED:
                self._tainted.discard(job)

    def _settle(self, now: float) -> None:
        """Do what follows of itself: a crash on unmapped memory, the end of a drain."""
        stepping = self._busy is None and self.scheduler is not Scheduler.PAUSED_ALL
        if stepping and self.replica.running and self.memory.asleep:
            self.kill(now, reason="illegal memory access")
        elif self._draining and self._busy is None and not self.replica.running:
            self._occupy(self._draining.pop(0), now)

    # The serial loop.

    def _turn(self, now: float) -> None:
        while self._loop and self._busy is None and not self.dead:
            self._begin(self._loop.popleft(), now)

    def _begin(self, call: ControlCall, now: float) -> None:
        pauses = call.name == "pause" or (call.name == "sleep" and self.profile.pauses_scheduler)
        if pauses and not call.fails and not call.noop:
            self._pause(call, now)
            if self.scheduler is Scheduler.PAUSED_NEW and self.replica.running:
                self._draining.append(call)
                return
        self._occupy(call, now)

    def _occupy(self, call: ControlCall, now: float) -> None:
        takes_s = self._takes_s(call)
        if takes_s <= 0:
            self._end(call, now)
            return
        self._count_load()
        self._busy, self._busy_until_s = call, now + takes_s
        self._gate(now)

    def _takes_s(self, call: ControlCall) -> float:
        own_s = 0.0
        if call.name == "sleep" and self.memory.sleeps(call.level):
            own_s = self.times.sleep_s[min(call.level, 2) - 1]
        elif call.name == "wake_up" and self.memory.depth:
            own_s = self.times.wake_s[self.memory.depth - 1] * self.memory.wake_share(call.tags)
        elif call.name == "collective_rpc":
            own_s = {"reload_weights": self.times.reload_s, "nap": call.seconds}.get(
                call.method, 0.0
            )
        return call.slow_s + (0.0 if call.fails or call.noop else own_s)

    def _end(self, call: ControlCall, now: float) -> None:
        self._busy, self._busy_until_s = None, math.inf
        if call.die == "before":
            self._loop.appendleft(call)  # so that it is answered with the others
            self.kill(now, reason=f"died in {call.name}")
            return
        answer = self._effect(call, now)
        if answer is None:
            self._loop.appendleft(call)
            self.kill(now, reason="illegal memory access")
            return
        self._tell(Kind.ANSWERED, call.id, now, answer)
        if call.die == "after":
            self.kill(now, reason=f"died after {call.name}")
            return
        self._gate(now)
        self._settle(now)
        self._turn(now)

    def _effect(self, call: ControlCall, now: float) -> ControlAnswer | None:
        """Do what the call is for; None: it crashed the engine."""
        if call.fails:
            self._wake_failed |= call.name == "wake_up"
            return ControlAnswer(False, f"{call.name} failed")
        match call.name:
            case "sleep":
                if not call.noop:
                    self.memory.sleep(call.level)
                    self._take_part()
                self.operations["sleep"] += 1
                return ControlAnswer(True, call.level)
            case "wake_up":
                return self._wake(call)
            case "collective_rpc":
                return self._rpc(call)
            case "reset_prefix_cache":
                done = not self.replica.running and not call.noop
                self.memory.prefixes_stale &= not done
                return ControlAnswer(True, done)
            case _:
                return self._pausing(call, now)

    def _wake(self, call: ControlCall) -> ControlAnswer | None:
        if self._wake_failed and not self.profile.safe_wake_retry:
            return None  # maps mapped blocks (vllm#34600)
        self._wake_failed = False
        left = self.memory.left_asleep(call.tags)
        if self._part is not None and not call.noop and not self._part.fits(left):
            self._wake_failed = True
            return ControlAnswer(False, FULL)
        if not call.noop:
            if self.memory.wake(call.tags) is Woken.CRASH:
                return None
            if not self.memory.asleep or not self.profile.partial_wake_stays_paused:
                self._resume()
            self._take_part()
        self.operations["wake"] += 1
        return ControlAnswer(True, not self.memory.asleep)

    def _rpc(self, call: ControlCall) -> ControlAnswer | None:
        if call.method not in RPC_METHODS:
            return ControlAnswer(False, f"no worker method {call.method!r}")
        if call.method == "reload_weights" and not call.noop:
            was_garbage = not self.memory.weights_valid
            if not self.memory.reload():
                return None
            if was_garbage and self.scheduler is not Scheduler.PAUSED_ALL:
                # What they have computed so far stays in their cache and in their text.
                self._tainted.update(self.replica.running_jobs())
        return ControlAnswer(True)

    def _pausing(self, call: ControlCall, now: float) -> ControlAnswer:
        match call.name:
            case "is_sleeping":
                paused = self.profile.pauses_scheduler and self.scheduler is not Scheduler.RUNNING
                return ControlAnswer(True, bool(self.memory.asleep) or paused)
            case "is_paused":
                return ControlAnswer(True, self.scheduler is not Scheduler.RUNNING)
            case "resume":
                self._resume()
            case "abort_requests":
                self._abort_all(now)
            case _:
                pass  # pause: all of it happened when the call began
        return ControlAnswer(True)

    # The scheduler.

    def _pause(self, call: ControlCall, now: float) -> None:
        self._count_load()
        if call.mode == "wait":
            if self.scheduler is Scheduler.RUNNING:
                self.scheduler = Scheduler.PAUSED_NEW
        else:
            self.scheduler = Scheduler.PAUSED_ALL
        if call.name == "pause":
            self.rejects_new = self.profile.pause_rejects and call.mode != "keep"
        self._gate(now)
        if call.mode == "abort":
            self._abort_all(now)

    def _abort_all(self, now: float) -> None:
        self.replica.gate(now, run=False, admit=False)  # none starts in the place of another
        for job in self.replica.jobs():
            self.replica.abort(job, now)
            self._tainted.discard(job)
            self._tell(Kind.ABORTED, job, now)
        self._load = 0, 0
        self._gate(now)

    def _resume(self) -> None:
        self.scheduler = Scheduler.RUNNING
        self.rejects_new = False

    def _gate(self, now: float) -> None:
        idle = self._busy is None
        self.replica.gate(
            now,
            run=idle and self.scheduler is not Scheduler.PAUSED_ALL,
            admit=idle and self.scheduler is Scheduler.RUNNING,
        )

    def _tell(self, kind: Kind, key: Hashable, at_s: float, value: object = None) -> None:
        self._events.append(ModelEvent(kind, key, at_s, value))
