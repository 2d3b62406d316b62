"""The engine's model held against a real vLLM: memory, chunks, prefixes, drafts.

Rule 1: what is compared are counts (tokens, preemptions, steps) wherever there are counts, so that
        a busy machine cannot spoil it. Seconds are fitted to the engine first.
Rule 2: what is tried is what the engine was started with: drafts; a small KV cache, by crowds and
        by clients in a loop; a large one, by prompts that were read before and by long ones.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, NamedTuple

import numpy as np

from simulator.engine_model.kv_memory import KvCache, PagedReplica
from simulator.engine_model.replica import What
from simulator.traffic.engine_details import Speculation
from simulator.traffic.service_profiles import ServiceProfile
from tryouts.vllm_counts import KnownVllm, crowd, engine_at, fitted, words

Say = Callable[..., None]
LOOPED = 80
"""Requests of a closed loop."""
FIT_S = 24.0
SMALL_CACHE = 20_000
"""Tokens below which memory is what is tried."""


# What the model says


class CrowdTold(NamedTuple):
    """What the model makes of a crowd."""

    preemptions: int
    read_anew: float
    hidden_s: float
    whole_s: float
    order: tuple[int, ...]


def foretold(
    profile: ServiceProfile, engine: KnownVllm, slots: int, came: Sequence[tuple[float, int, int]]
) -> CrowdTold:
    """Return what becomes of requests that come at these instants with these sizes."""
    cache = KvCache(
        tokens=engine.kv_tokens, block_tokens=engine.block_tokens, keeps=engine.prefix_caching
    )
    replica = PagedReplica(slots, profile.speed, profile.prefill, cache)
    books = _Books(replica)
    for number, (at_s, prompt, output) in enumerate(came):
        books.run(at_s)
        books.start(number, at_s, prompt, output)
    books.run(math.inf)
    return books.told()


def looped(
    profile: ServiceProfile,
    engine: KnownVllm,
    slots: int,
    sizes: Sequence[tuple[int, int]],
    clients: int,
) -> CrowdTold:
    """Return the same of clients that ask one after the other."""
    cache = KvCache(
        tokens=engine.kv_tokens, block_tokens=engine.block_tokens, keeps=engine.prefix_caching
    )
    books = _Books(PagedReplica(slots, profile.speed, profile.prefill, cache))
    for number, (prompt, output) in enumerate(sizes):
        while number - len(books.order) >= clients:
            books.run(books.replica.next_event())
        books.start(number, books.now, prompt, output)
    books.run(math.inf)
    return books.told()


class _Books:
    """What happens in a replica, and who comes."""

    def __init__(self, replica: PagedReplica) -> None:
        self.replica = replica
        self.now = 0.0
        self.order: list[int] = []
        self._came: dict[int, float] = {}
        self._started: dict[int, float] = {}
        self._preemptions = 0

    def run(self, until_s: float) -> None:
        while (at_s := self.replica.next_event()) <= until_s and at_s < math.inf:
            self.now = at_s
            self._note(self.replica.moments(at_s))

    def start(self, number: int, at_s: float, prompt: int, output: int) -> None:
        self._came[number] = self.now = at_s
        self.replica.start(number, 1.0, at_s, steps=1, step_work=output - 1.0, prompt=prompt)
        self._note(self.replica.drain())

    def told(self) -> CrowdTold:
        waited = [at_s - self._came[number] for number, at_s in self._started.items()]
        hidden_s = sum(waited) / len(waited)
        anew = self.replica.read_anew
        return CrowdTold(self._preemptions, anew, hidden_s, self.now, tuple(self.order))

    def _note(self, moments: Iterable[Any]) -> None:
        for what, job, at_s in moments:
            if what is What.STARTED:
                self._started[job] = at_s
            elif what is What.PREEMPTED:
                self._preemptions += 1
            elif what is What.FINISHED:
                self.order.append(job)


# What is tried


def try_details(say: Say, url: str, model: str, *, slots: int, budget: int, drafts: int) -> None:
    """Hold the model against the engine at a URL, by what it was started with."""
    engine = engine_at(url, model)
    say(
        f"KV cache of {engine.kv_tokens} tokens in blocks of {engine.block_tokens}, prefix caching "
        f"{'on' if engine.prefix_caching else 'off'}, {budget} tokens in an iteration"
    )
    if drafts:
        try_speculation(say, engine, drafts)
        return
    profile = fitted(engine, budget, FIT_S)
    token = profile.token
    say(
        f"fitted: {token.first_s * 1e3:.2f} ms a token, {token.per_sequence_s * 1e3:+.3f} ms a "
        f"further sequence (power {token.power:g}), {profile.prompt_token_s * 1e6:.1f} us a prompt "
        f"token, {profile.prompt_overhead_s * 1e3:.2f} ms a prompt"
    )
    if engine.kv_tokens < SMALL_CACHE:
        try_memory(say, engine, profile, slots)
    else:
        if engine.prefix_caching:
            try_prefixes(say, engine, profile)
        try_chunks(say, engine, budget)


def try_memory(say: Say, engine: KnownVllm, profile: ServiceProfile, slots: int) -> None:
    """Compare preemptions, waits inside and the order of ends."""
    room = engine.kv_tokens
    prompt, output = room // (2 * slots), int(0.19 * room)
    for count in (slots // 2, slots, slots + 4):
        before = engine.counters()
        calls = crowd(engine, [(prompt, output)] * count)
        after = engine.counters()
        first_s = calls[0].sent_s
        came = [(call.sent_s - first_s, call.prompt, call.output) for call in calls]
        model = foretold(profile, engine, slots, came)
        real = int(after.preemptions - before.preemptions)
        order = sorted(range(count), key=lambda number: calls[number].last_s)
        whole_s = max(call.last_s for call in calls) - first_s
        waited_s = (after.queue_s - before.queue_s) / (after.queued - before.queued)
        say(
            f"{count} at once, {prompt} + {output} tokens: {real} preemptions, model "
            f"{model.preemptions}; all done after {whole_s:.2f} s, model {model.whole_s:.2f} s; "
            f"waited inside {waited_s:.2f} s, model {model.hidden_s:.2f} s",
            holds=abs(real - model.preemptions) <= max(1, 0.2 * real),
        )
        say(f"    ended in the order {order}, model {list(model.order)}")
    for clients in (slots, slots + 4):
        _try_loop(say, engine, profile, slots, clients)


def _try_loop(
    say: Say, engine: KnownVllm, profile: ServiceProfile, slots: int, clients: int
) -> None:
    """Compare clients that ask for many sizes, one request after the other: no clock is in it."""
    room, rng = engine.kv_tokens, Random(11)
    sizes = [(rng.randrange(8, room // 8), rng.randrange(8, room // 5)) for _ in range(LOOPED)]
    left = iter(enumerate(sizes))
    lock = threading.Lock()

    def client(_: int) -> None:
        while True:
            with lock:
                number, size = next(left, (-1, (0, 0)))
                if number < 0:
                    return
            engine.ask(words(size[0]), size[1])

    before = engine.counters()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    after = engine.counters()
    real = after.preemptions - before.preemptions
    waited_s = (after.queue_s - before.queue_s) / LOOPED
    model = looped(profile, engine, slots, sizes, clients)
    say(
        f"{LOOPED} requests of {clients} clients: {real:.0f} preemptions, model "
        f"{model.preemptions}; waited inside {waited_s:.2f} s, model {model.hidden_s:.2f} s",
        holds=abs(real - model.preemptions) <= max(4, 0.25 * real),
    )


def try_chunks(say: Say, engine: KnownVllm, budget: int) -> None:
    """Compare how many tokens others make while a long prompt is read."""
    for others in (1, 3, 6):
        length = min(6000, 24 * budget)
        made = []
        for _ in range(3):
            with ThreadPoolExecutor(others) as pool:
                streams = [pool.submit(_decode_beside, engine) for _ in range(others)]
                time.sleep(0.4)
                call = engine.ask(words(length), 2)
                counts = [
                    sum(call.sent_s < at_s < call.first_s for at_s in stream.result())
                    for stream in streams
                ]
            made.append(float(np.mean(counts)))
        model = length / (budget - others)
        real = float(np.median(made))
        say(
            f"a prompt of {length} beside {others} that decode: each makes {real:.1f} tokens while "
            f"it is read, model {model:.1f}",
            holds=abs(real - model) <= max(2.0, 0.15 * model),
        )


def _decode_beside(engine: KnownVllm) -> list[float]:
    call = engine.ask(words(16), 900)
    return (call.first_s + np.cumsum((0.0, *call.gaps_s))).tolist()  # type: ignore[no-any-return]


def try_prefixes(say: Say, engine: KnownVllm, profile: ServiceProfile) -> None:
    """Compare what is cached, and what that is worth."""
    block = engine.block_tokens
    for length, share in ((2000, 0.5), (2000, 0.9), (6000, 0.97)):
        shared = words(int(length * share))
        engine.ask(shared, 2)
        before = engine.counters()
        first_s = []
        for _ in range(8):
            call = engine.ask(shared + words(length - len(shared)), 2)
            first_s.append(call.first_s - call.sent_s)
        after = engine.counters()
        hit = (after.prefix_hit - before.prefix_hit) / 8
        cached = block * math.floor(min(share * length, length - 1) / block)
        whole_s = np.median(
            [(c := engine.ask(words(length), 2)).first_s - c.sent_s for _ in range(8)]
        )
        saved = 1 - np.median(first_s) / whole_s
        read = [profile.prompt_overhead_s + n * profile.prompt_token_s for n in (length, cached)]
        model = 1 - (read[0] - cached * profile.prompt_token_s) / read[0]
        say(
            f"{length} tokens, {share:.0%} of them asked before: {hit:.0f} found, model {cached}; "
            f"the first token comes {saved:.0%} sooner, model {model:.0%}",
            holds=abs(hit - cached) <= block,
        )


def try_speculation(say: Say, engine: KnownVllm, drafts: int) -> None:
    """Compare the steps that requests take with those of the law."""
    output, taken = 200, []
    for _ in range(60):
        before = engine.counters().accepted
        engine.ask(words(24), output)
        taken.append(engine.counters().accepted - before)
    accepted = np.array(taken)
    steps = output - 1 - accepted  # each makes one token, and what was accepted besides
    chance = _acceptance(drafts, float(accepted.sum() / steps.sum()))
    by_request = [_acceptance(drafts, one) for one in accepted / steps]
    # Of the spread between requests, what is chance within one is left out.
    within = np.mean(
        [one * (1 - one) / count for one, count in zip(by_request, steps, strict=True)]
    )
    deviation = math.sqrt(max(0.0, float(np.var(by_request) - within)))
    law = Speculation(drafts=drafts, acceptance=chance, deviation=deviation)
    rng = np.random.default_rng(1)
    model = np.array([law.steps(output - 1, rng) for _ in range(4000)], dtype=np.float64)
    real_cv, model_cv = steps.std() / steps.mean(), model.std() / model.mean()
    say(
        f"{drafts} drafts, accepted with chance {chance:.3f}, deviation {deviation:.3f}: "
        f"{steps.mean():.1f} steps for {output} tokens, model {model.mean():.1f}; spread "
        f"{real_cv:.3f}, model {model_cv:.3f}",
        holds=abs(steps.mean() / model.mean() - 1) < 0.1 and abs(real_cv - model_cv) < 0.1,
    )


def _acceptance(drafts: int, accepted: float) -> float:
    """Return the chance at which so many drafts of a step are accepted on average."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        made = sum(middle**power for power in range(1, drafts + 1))
        low, high = (middle, high) if made < accepted else (low, middle)
    return low
