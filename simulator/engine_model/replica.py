"""A fluid model of one engine replica: sequences share a machine whose speed falls with the batch.

Rule 1: rates change only at events (start, prefill's end, finish, abort, gate), never in between.
Rule 2: no speed is frozen at a start; a sequence slows down when others join it.
Rule 3: above `slots` sequences wait in a queue of the replica's own, unseen from outside.
Rule 4: no clock is read; every method is told the instant, and instants never run backwards.

All decoding sequences run at one common rate, so one number, the work that a sequence decoding
since the beginning would have done, orders all their ends: a heap gives O(log n) an event, and
nothing is recomputed when a rate changes. Where the rate is 1 whatever the batch, a sequence that
starts at s with work w ends at exactly s + w, without rounding. The instant of the next event is
found once after each change (`_look_ahead`), however often it is asked.
"""

import math
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum, auto
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple

JobId = Hashable
Speed = Callable[[int], float]
"""Work units a second that each of n decoding sequences gets (> 0 for n >= 1)."""
Rates = tuple[float | None, float]
"""Of those who decode, and of the prompt that is read; None: as before, as nobody does."""


def alone_speed(batch: int) -> float:  # noqa: ARG001 - the signature of a Speed
    """A speed that does not fall: work is then counted in seconds."""
    return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """What reading prompts costs: `cost_s` a token, `budget_tokens` in one iteration.

    Prompts are read one at a time in arrival order. The budget is vLLM's max_num_batched_tokens:
    of n sequences that decode meanwhile each takes one token of it, and the prompt has the rest, so
    an iteration takes 1/speed(n) + (budget_tokens - n) x cost_s and gives each of them one unit of
    work. Alone, p tokens take p x cost_s + `overhead_s`.
    """

    cost_s: float
    budget_tokens: int
    overhead_s: float = 0.0


class What(Enum):
    """What became of a job."""

    STARTED = auto()
    """It took its slots."""
    STEPPED = auto()
    """It ended one of its steps and goes on with the next."""
    PREEMPTED = auto()
    """It had to give its slots back, and waits to read anew what it had."""
    RESUMED = auto()
    """It took its slots again."""
    FINISHED = auto()
    """It ended its last step and gave its slots back."""


# Python 3.11 takes long to find a member of an enumeration; these are met with each request.
_STARTED, _STEPPED, _FINISHED = What.STARTED, What.STEPPED, What.FINISHED


class Moment(NamedTuple):
    """One thing that happened, at the instant it happened."""

    what: What
    job: JobId
    at_s: float


@dataclass(slots=True, eq=False)
class Job:
    """One job inside; what a subclass does not use stays as it is."""

    id: JobId
    number: int
    weight: int
    prompt: float
    work: float
    steps: int
    step_work: float
    target: float = 0.0
    running: bool = False
    gone: bool = False


class Replica:
    """`slots` sequences at once, the rest in a queue; first come, first served.

    `speed` is asked once for each batch size. Work is in whatever unit `speed` gives a second:
    seconds with `alone_speed`, tokens with a speed in tokens a second.
    """

    def __init__(
        self, slots: int, speed: Speed = alone_speed, prefill: Prefill | None = None
    ) -> None:
        if slots < 1:
            raise ValueError(f"a replica has at least one slot, not {slots}")
        self.slots = slots
        self.running = 0
        """Slots taken, whether their sequences decode or are still reading their prompt."""
        self._speed = [1.0, *(speed(n) for n in range(1, slots + 1))]
        if min(self._speed) <= 0:
            raise ValueError("a speed must be above 0 for every batch")
        self._prefill = prefill
        self._jobs: dict[JobId, Job] = {}  # all of them, in order of arrival
        self._queue: dict[JobId, Job] = {}
        self._heap: list[tuple[float, int, Job]] = []
        self._reading: deque[Job] = deque()
        self._decoding = 0
        self._numbers = 0
        self._moments: list[Moment] = []
        self._runs = True
        self._admits = True
        self._now_s = 0.0
        self._anchor_s = 0.0  # where the common work stood at `_anchor_work`
        self._anchor_work = 0.0
        self._rate = self._speed[1]
        self._read_left = 0.0  # of the head of `_reading`, at `_read_anchor_s`
        self._read_anchor_s = 0.0
        self._read_rate = 0.0
        self._next_s = math.inf
        self._reads_next = False  # whether the next event is a prompt's end
        # Rates by batch: of those who decode alone, and of both while a prompt is read.
        self._rates: list[Rates] = [(None, 0.0), *((speed, 0.0) for speed in self._speed[1:])]
        self._reading_rates: list[Rates] = []
        if prefill is not None:
            self._reading_rates = [
                _rates_beside(prefill, batch, self._speed[batch]) for batch in range(slots + 1)
            ]

    @property
    def waiting(self) -> int:
        """Jobs in the replica's own queue."""
        return len(self._queue)

    def __contains__(self, job: JobId) -> bool:
        return job in self._jobs

    def jobs(self) -> list[JobId]:
        """Return all jobs inside, running and waiting, in order of arrival."""
        return list(self._jobs)

    def running_jobs(self) -> list[JobId]:
        """Return the jobs that hold slots, in order of arrival."""
        return [job.id for job in self._jobs.values() if job.running]

    def start(
        self,
        job: JobId,
        work: float,
        now: float,
        *,
        steps: int = 0,
        step_work: float = 0.0,
        weight: int = 1,
        prompt: float = 0.0,
    ) -> bool:
        """Take a job in; return whether it runs at once rather than waits.

        It reads `prompt` tokens (only with a `prefill`), does `work`, then `steps` further steps
        of `step_work` each. `weight` is the number of slots it takes, never more than there are.
        The caller must have advanced past every earlier event.
        """
        self._numbers += 1
        weight = min(weight, self.slots)
        return self._take_in(Job(job, self._numbers, weight, prompt, work, steps, step_work), now)

    def _take_in(self, new: Job, now: float) -> bool:
        self._reach(now)
        assert new.id not in self._jobs, f"job {new.id!r} is inside already"
        self._jobs[new.id] = self._queue[new.id] = new
        self._fill(now)
        if new.running:
            self._look_ahead()
        return new.running

    def abort(self, job: JobId, now: float) -> bool:
        """Drop a job, running or waiting; False when it is not inside (any more)."""
        self._reach(now)
        gone = self._jobs.get(job)
        if gone is None:
            return False
        self._drop(gone)
        self._fill(now)
        self._look_ahead()
        return True

    def stall(self, job: JobId) -> None:
        """Let a decoding job keep its slots and get nowhere, until it is aborted."""
        stalled = self._jobs[job]
        if stalled in self._reading or not stalled.running:
            raise ValueError(f"job {job!r} does not decode")
        stalled.gone = True  # its entry in the heap; a job that never ends needs none
        stalled.target = math.inf
        self._look_ahead()

    def gate(self, now: float, *, run: bool, admit: bool) -> None:
        """Set whether running sequences proceed (`run`) and waiting ones may start (`admit`)."""
        self._reach(now)
        if run != self._runs:
            self._anchor(now)
            self._runs = run
        self._admits = admit
        self._fill(now)
        self._look_ahead()

    def next_event(self) -> float:
        """Return the instant of the next event; infinity when nothing is going on."""
        return self._next_s

    def advance(self, now: float) -> list[JobId]:
        """Move on to `now`; return the jobs that finished, in order."""
        return [moment.job for moment in self.moments(now) if moment.what is What.FINISHED]

    def moments(self, now: float) -> list[Moment]:
        """Move on to `now`; return all that happened since this was last asked, in order."""
        while (at_s := self.next_event()) <= now:
            self._happen(max(at_s, self._now_s))
        self._now_s = max(now, self._now_s)
        return self.drain() if self._moments else []

    def drain(self) -> list[Moment]:
        """Return what happened since this was last asked, without moving on."""
        moments, self._moments = self._moments, []
        return moments

    def _reach(self, now: float) -> None:
        assert now >= self._now_s, f"time does not run backwards: {now} < {self._now_s}"
        assert self.next_event() >= now, "advance to the events before `now` first"
        self._now_s = now

    def _look_ahead(self) -> None:
        """Find the next event, after whatever changed: a prompt's end goes before an equal one."""
        heap = self._heap
        while heap and heap[0][2].gone:
            heappop(heap)
        self._next_s, self._reads_next = math.inf, False
        if not self._runs:
            return
        if heap:
            # Rounding may have carried the common work an ulp past a target: never into the past.
            left = heap[0][0] - self._anchor_work
            self._next_s = self._anchor_s + left / self._rate if left > 0 else self._anchor_s
        if self._reading:
            left, read_s = self._read_left, self._read_anchor_s
            if left > 0:
                read_s += left / self._read_rate
            if read_s <= self._next_s:
                self._next_s, self._reads_next = read_s, True

    def _happen(self, at_s: float) -> None:
        if self._reads_next:
            self._end_reading(at_s)
        elif self._heap[0][2].steps > 0:
            target, number, job = self._heap[0]
            job.steps -= 1
            job.target = target + job.step_work
            heapreplace(self._heap, (job.target, number, job))
            self._moments.append(Moment(_STEPPED, job.id, at_s))
        else:
            target, _, job = self._heap[0]
            self._moments.append(Moment(_FINISHED, job.id, at_s))
            self._now_s = at_s
            self._drop(job, ended_at=target)
            if self._queue:
                self._fill(at_s)
        self._look_ahead()

    def _drop(self, job: Job, ended_at: float | None = None) -> None:
        """Forget a job; `ended_at` is the common work at its end, known without rounding."""
        job.gone = True
        del self._jobs[job.id]
        if not job.running:
            del self._queue[job.id]
            return
        self.running -= job.weight
        if job in self._reading:
            if job is self._reading[0]:
                self._reading.popleft()
                self._begin_reading(self._now_s)
            else:
                self._reading.remove(job)
        else:
            self._decoding -= job.weight
        self._rerate(self._now_s, ended_at)

    def _fill(self, now: float) -> None:
        """Start waiting jobs while the head of the queue fits; nobody overtakes it."""
        while self._admits and self._queue:
            job = next(iter(self._queue.values()))
            if self.running + job.weight > self.slots:
                return
            self._begin(job, now, _STARTED)

    def _begin(self, job: Job, now: float, what: What) -> None:
        """Take a job out of the queue and give it its slots."""
        del self._queue[job.id]
        job.running = True
        self.running += job.weight
        self._moments.append(Moment(what, job.id, now))
        if self._prefill is not None and job.prompt > 0:
            self._reading.append(job)
            if job is self._reading[0]:
                self._begin_reading(now)
        else:
            self._decode(job, now)
        self._rerate(now)

    def _decode(self, job: Job, now: float) -> None:
        self._decoding += job.weight
        job.target = self._work_done(now) + job.work
        heappush(self._heap, (job.target, job.number, job))

    def _begin_reading(self, now: float) -> None:
        """Turn to the prompt at the head of those to be read, if any."""
        assert self._prefill is not None
        self._read_anchor_s = now
        if self._reading:
            overhead = self._prefill.overhead_s / self._prefill.cost_s
            self._read_left = self._reading[0].prompt + overhead

    def _end_reading(self, at_s: float) -> None:
        self._now_s = at_s
        job = self._reading.popleft()
        self._begin_reading(at_s)
        self._decode(job, at_s)
        self._rerate(at_s)

    def _work_done(self, now: float) -> float:
        if not self._runs:
            return self._anchor_work
        return self._anchor_work + (now - self._anchor_s) * self._rate

    def _anchor(self, now: float, work: float | None = None) -> None:
        """Write down where everything stands, so that rates may change from here on."""
        self._anchor_work = self._work_done(now) if work is None else work
        self._anchor_s = now
        if self._reading and self._runs:
            self._read_left -= (now - self._read_anchor_s) * self._read_rate
        self._read_anchor_s = now

    def _rerate(self, now: float, work: float | None = None) -> None:
        """Set the rates for the batch as it is now; unchanged rates leave no rounding behind."""
        rates = self._reading_rates if self._reading else self._rates
        rate, read_rate = rates[self._decoding]
        if rate is None:
            rate = self._rate  # nobody decodes
        if rate != self._rate or read_rate != self._read_rate:
            self._anchor(now, work)
            self._rate, self._read_rate = rate, read_rate


def _rates_beside(prefill: Prefill, batch: int, speed: float) -> Rates:
    """Return the rates of a prompt that is read and of a batch that decodes meanwhile."""
    chunk = max(1, prefill.budget_tokens - batch)
    iteration_s = chunk * prefill.cost_s
    if not batch:
        return None, chunk / iteration_s
    iteration_s += 1 / speed
    return 1 / iteration_s, chunk / iteration_s
