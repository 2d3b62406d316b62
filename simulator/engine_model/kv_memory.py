"""A replica whose sequences share a KV cache, as vLLM's scheduler shares it when it is short.

Rule 1: a sequence holds its whole prompt from its start, cached or not, and each token it makes.
        Blocks are taken whole, so half a block of each sequence is waste on average.
Rule 2: who waits starts when its whole prompt fits beside all others, in order of arrival; until
        then it waits inside the engine, where nobody sees it.
Rule 3: where the cache is full, the newest of the running gives up: it goes to the head of the
        queue, and what it had is read anew as a prompt when it fits. Nobody starts at that instant.
Rule 4: with prefix caching it need not read anew what the others have not overwritten meanwhile.
Rule 5: one that runs alone may hold more than there is; an engine would have refused it.

All decoding sequences make tokens at one common rate, so what is held is a straight line over the
common work: a number, a slope, and the instant at which it meets the capacity.
"""

import math
from dataclasses import dataclass

from simulator.engine_model.replica import (
    Job,
    JobId,
    Moment,
    Prefill,
    Replica,
    Speed,
    What,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """What an engine has for keys and values, in tokens."""

    tokens: float
    block_tokens: int = 16
    keeps: bool = True
    """Whether what a preempted sequence gave up can be found again (prefix caching)."""


@dataclass(slots=True, eq=False)
class _Sequence(Job):
    held: float = 0.0
    """Tokens that it holds as it starts; each of its `weight` sequences does."""
    cached: float = 0.0
    """Of these, what is in the cache already."""
    begun: float = 0.0
    """The common work at which it began to decode."""
    decodes: bool = False
    gave_up_at: float | None = None
    """What the engine had taken of its cache in all when this was preempted."""


class PagedReplica(Replica):
    """A replica that runs out of memory; otherwise as `Replica` is."""

    def __init__(self, slots: int, speed: Speed, prefill: Prefill | None, cache: KvCache) -> None:
        super().__init__(slots, speed, prefill)
        self._cache = cache
        self._waste = cache.block_tokens / 2
        self._order: list[_Sequence] = []  # the running, as they started
        self._base = 0.0  # held = base + decoding x common work
        self._noted_s = self._noted_work = 0.0
        self._area = 0.0
        self._taken = 0.0
        self.read_anew = 0.0
        """Prompt tokens read a second time, since the beginning."""
        self.most_held = 0.0

    def held(self, now: float) -> float:
        """Return the tokens that are held now."""
        return self._base + self._decoding * self._work_done(now)

    def held_area(self, now: float) -> float:
        """Return the area under `held` from the beginning on; `now` is before the next event."""
        work = self._work_done(now)
        mean = self._base + self._decoding * (work + self._noted_work) / 2
        return self._area + mean * (now - self._noted_s)

    def start(  # noqa: PLR0913 - one more than what any replica is told of a job
        self,
        job: JobId,
        work: float,
        now: float,
        *,
        steps: int = 0,
        step_work: float = 0.0,
        weight: int = 1,
        prompt: float = 0.0,
        cached: float = 0.0,
    ) -> bool:
        """Take a job in, as `Replica.start` does; `cached` of its prompt need not be read."""
        self._numbers += 1
        weight = min(weight, self.slots)
        new = _Sequence(
            job, self._numbers, weight, prompt, work, steps, step_work, held=prompt, cached=cached
        )
        return self._take_in(new, now)

    def gate(self, now: float, *, run: bool, admit: bool) -> None:
        """Set what may run and start, as `Replica.gate` does."""
        self._note(now)
        super().gate(now, run=run, admit=admit)

    def next_event(self) -> float:
        """Return the instant of the next event; infinity when nothing is going on."""
        return min(super().next_event(), self._full_event())

    def _full_event(self) -> float:
        if len(self._order) < 2 or not self._decoding or not self._runs:
            return math.inf
        left = (self._cache.tokens - self._base) / self._decoding - self._anchor_work
        return self._anchor_s + left / self._rate if left > 0 else self._anchor_s

    def _happen(self, at_s: float) -> None:
        if self._full_event() < super().next_event():
            self._preempt(at_s)
        else:
            super()._happen(at_s)

    def _preempt(self, now: float) -> None:
        """Let the newest of the running give up what it has."""
        self._now_s = now
        self._note(now)
        old = self._order[-1]
        made, left = 0.0, old.work
        if old.decodes:
            made = self._work_done(now) - old.begun
            left = max(0.0, old.target - self._work_done(now))
        jobs, queue = self._jobs.copy(), self._queue
        self._drop(old)
        new = _Sequence(
            old.id,
            old.number,
            old.weight,
            old.prompt,
            left,
            old.steps,
            old.step_work,
            held=old.held + made,
            gave_up_at=self._taken,
        )
        jobs[old.id] = new
        self._jobs = jobs
        self._queue = {old.id: new, **queue}
        self._moments.append(Moment(What.PREEMPTED, old.id, now))
        self._look_ahead()

    def _fill(self, now: float) -> None:
        """Start waiting jobs while the head of the queue fits, in slots and in memory."""
        while self._admits and self._queue:
            job = next(iter(self._queue.values()))
            assert isinstance(job, _Sequence)
            if self.running + job.weight > self.slots:
                return
            need = job.weight * (job.held + self._waste)
            if self._order and self.held(now) + need >= self._cache.tokens:
                return
            self._note(now)
            again = job.gave_up_at is not None
            if job.gave_up_at is not None and self._cache.keeps:
                overwritten = (self._taken - job.gave_up_at) / job.weight
                job.cached = max(0.0, job.held - overwritten)
            # The last token is always read: it is what the next one is made from.
            job.prompt = max(1.0, job.held - job.cached) if job.held else 0.0
            self.read_anew += again * job.weight * job.prompt
            self._order.append(job)
            self._base += need
            self._taken += job.weight * (job.held - job.cached)
            self._begin(job, now, What.RESUMED if again else What.STARTED)

    def _decode(self, job: Job, now: float) -> None:
        assert isinstance(job, _Sequence)
        self._note(now)
        job.begun, job.decodes = self._work_done(now), True
        self._base -= job.weight * job.begun
        super()._decode(job, now)

    def _drop(self, job: Job, ended_at: float | None = None) -> None:
        assert isinstance(job, _Sequence)
        if job.running:
            self._note(self._now_s)
            self._order.remove(job)
            self._base -= job.weight * (job.held + self._waste - job.begun * job.decodes)
        super()._drop(job, ended_at)

    def _rerate(self, now: float, work: float | None = None) -> None:
        self._note(now)
        super()._rerate(now, work)

    def _note(self, now: float) -> None:
        """Write down what was held up to now, before anything about it changes."""
        work = self._work_done(now)
        held = self._base + self._decoding * work
        if now > self._noted_s:
            made = self._decoding * (work - self._noted_work)
            self._area += (held - made / 2) * (now - self._noted_s)
            self._taken += made
        self.most_held = max(self.most_held, held)
        self._noted_s, self._noted_work = now, work
