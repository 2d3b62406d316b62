"""A vLLM that is asked by numbers of tokens, and what it counts of itself.

Prompts are tokens rather than words, so that lengths are exact and nothing is cached by accident.
"""

import json
import random
import re
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.request import Request, urlopen

import numpy as np

from simulator.study.calibrate import fit_benchmarks
from simulator.traffic.benchmarks import Timings
from simulator.traffic.service_profiles import ServiceProfile

VOCABULARY = 3000
TIMEOUT_S = 300.0
RANDOM = random.Random(7)


class TimedCall(NamedTuple):
    """One request as it went; instants of the monotonic clock."""

    prompt: int
    output: int
    sent_s: float
    first_s: float
    last_s: float
    gaps_s: tuple[float, ...]


class VllmCounts(NamedTuple):
    """What vLLM counts of itself."""

    preemptions: float
    queue_s: float
    queued: float
    prefix_asked: float
    prefix_hit: float
    accepted: float


NAMES = (
    *("num_preemptions_total", "request_queue_time_seconds_sum"),
    *("request_queue_time_seconds_count", "prefix_cache_queries_total", "prefix_cache_hits_total"),
    "spec_decode_num_accepted_tokens_total",
)


@dataclass(frozen=True, slots=True)
class KnownVllm:
    """A vLLM, and what it says of its cache."""

    url: str
    model: str
    kv_tokens: int
    block_tokens: int
    prefix_caching: bool

    def counters(self) -> VllmCounts:
        """Return its counts as they are."""
        text = page(f"{self.url}/metrics")
        return VllmCounts(*(_counted(text, name) for name in NAMES))

    def ask(self, prompt: Sequence[int], output: int) -> TimedCall:
        """Ask for `output` tokens and read the stream."""
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": output,
            "ignore_eos": True,
            "stream": True,
            "temperature": 0,
        }
        head = {"Content-Type": "application/json"}
        request = Request(f"{self.url}/v1/completions", json.dumps(body).encode(), head)
        sent_s = time.monotonic()
        with urlopen(request, timeout=TIMEOUT_S) as answer:
            instants = [time.monotonic() for line in answer if line.startswith(b"data: {")]
        gaps = tuple(np.diff(instants).tolist())
        return TimedCall(len(prompt), output, sent_s, instants[0], instants[-1], gaps)


def page(url: str) -> str:
    """Return the text behind a URL."""
    with urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def _counted(text: str, name: str) -> float:
    found = re.findall(rf"^vllm:{name}\{{[^}}]*\}} (\S+)", text, re.MULTILINE)
    return sum(map(float, found))


def engine_at(url: str, model: str) -> KnownVllm:
    """Return the engine at a URL; raises SystemExit where it is not a vLLM."""
    text = page(f"{url}/metrics")
    line = next((one for one in text.splitlines() if one.startswith("vllm:cache_config_info")), "")
    facts = dict(re.findall(r'(\w+)="([^"]*)"', line))
    if not facts:
        raise SystemExit(f"{url} is not a vLLM that tells of its cache")
    tokens, block = int(float(facts["kv_cache_size_tokens"])), int(facts["block_size"])
    return KnownVllm(url, model, tokens, block, facts["enable_prefix_caching"] == "True")


def words(count: int) -> list[int]:
    """Return a prompt of so many tokens that came never before."""
    return [RANDOM.randrange(10, VOCABULARY) for _ in range(count)]


def crowd(engine: KnownVllm, sizes: Iterable[tuple[int, int]]) -> list[TimedCall]:
    """Ask for all of them at once, a hundredth of a second apart."""
    asked = [(words(prompt), output) for prompt, output in sizes]
    with ThreadPoolExecutor(len(asked)) as pool:
        futures = []
        for prompt, output in asked:
            futures.append(pool.submit(engine.ask, prompt, output))
            time.sleep(0.01)
        return [future.result() for future in futures]


def fitted(engine: KnownVllm, budget: int, seconds: float) -> ServiceProfile:
    """Return the engine's speed, measured where its memory is not short."""
    calls: list[TimedCall] = []
    engine.ask(words(16), 4)
    room = engine.kv_tokens
    for level in (1, 2, 4, 6):
        until_s = time.monotonic() + seconds / 4
        most = min(1500, int(0.6 * room / level) - 32)

        def ask(_: int, until_s: float = until_s, most: int = most) -> list[TimedCall]:
            made = []
            while time.monotonic() < until_s:
                prompt = RANDOM.choice((8, most // 4, most))
                made.append(engine.ask(words(prompt), RANDOM.choice((8, 16, 32))))
            return made

        with ThreadPoolExecutor(level) as pool:
            calls += [call for part in pool.map(ask, range(level)) for call in part]
    columns = np.array([call[:5] for call in calls], dtype=np.float64).T
    fit = fit_benchmarks([Timings(*columns)], "fitted", engine.url)
    assert isinstance(fit.profile, ServiceProfile)
    return replace(fit.profile, chunk_tokens=budget)
