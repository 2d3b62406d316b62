"""What an engine can serve at most, and what is offered to it: the first question of every study.

Rule 1: both are means over a long time. A queue bridges bursts; it never makes an engine faster.
Rule 2: the capacity is that of a full cap: every slot taken, prompts read one after another.
Rule 3: memory bounds it as slots do: no more run than hold what the KV cache has. What preemptions
        waste is not in it.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf

import numpy as np

from simulator.model.scenario import Scenario
from simulator.traffic.distributions import Distribution, Floats
from simulator.traffic.servegen import Windows
from simulator.traffic.workload import Modulated, Renewal, Replay


@dataclass(frozen=True, slots=True)
class Load:
    """Requests a second: offered (None where answers decide it) and served at most."""

    offered_per_s: float | None
    served_at_most_per_s: float | None

    @property
    def share(self) -> float | None:
        """What is offered as a share of what can be served."""
        if self.offered_per_s is None or not self.served_at_most_per_s:
            return None
        return self.offered_per_s / self.served_at_most_per_s

    @property
    def overloaded(self) -> bool:
        """Whether more is offered than can be served, whatever the queue."""
        return self.share is not None and self.share > 1

    def verdict(self, cap: int) -> str | None:
        """Return the sentence for an overloaded engine, or None."""
        if not self.overloaded:
            return None
        assert self.offered_per_s is not None
        assert self.served_at_most_per_s is not None
        return (
            f"overloaded: at cap {cap} this engine serves at most {self.served_at_most_per_s:.3g} "
            f"requests a second; {self.offered_per_s:.3g} are offered"
        )


def load_of(scenario: Scenario) -> Load:
    """Return the load of a scenario."""
    return Load(offered_per_s(scenario), capacity_per_s(scenario))


def offered_per_s(scenario: Scenario) -> float | None:
    """Return the mean rate of new requests; None for a burst and a closed loop."""
    match scenario.arrivals:
        case Renewal(rate=rate) | Modulated(rate=rate):
            return rate
        case Replay() as replay:
            span_s = float(replay.rows.at_s[-1]) * replay.stretch
            return len(replay.rows.at_s) * replay.thin / span_s if span_s else None
        case Windows() as windows:
            expected = sum(window.rate for window in windows.windows) * windows.factor
            return expected / len(windows.windows)
        case _:
            return None


def capacity_per_s(scenario: Scenario) -> float | None:
    """Return the requests a second that a full cap can serve; None where work takes no time."""
    service = scenario.service
    # Where slots are short, the rest of the cap waits inside the engine.
    slots = min(scenario.cap, scenario.replicas * scenario.slots) / _mean_weight(scenario)
    batch = max(1.0, slots / scenario.replicas)
    if service.profile is None:
        seconds = _mean_seconds(scenario)
        if not seconds:
            return None
        return slots / (1 + service.slowdown * (batch - 1)) / seconds
    prompt, output = _mean_tokens(scenario)
    profile = service.profile
    if (prefix := profile.details.prefix) is not None:
        prompt *= 1 - prefix.mean
    batch = min(batch, max(1.0, kv_batch(scenario)))
    read_s = (profile.prompt_overhead_s + prompt * profile.prompt_token_s) if prompt else 0.0
    chunk_s = profile.chunk_tokens * profile.prompt_token_s
    reading = 0.0
    decoding = batch
    for _ in range(20):  # settles at once: who reads a prompt does not decode meanwhile
        reading = min(1.0, read_s / chunk_s * decoding / output) if chunk_s else 0.0
        decoding = max(1.0, batch - reading)
    return scenario.replicas / (output * profile.token.at_mean(decoding) / decoding + read_s)


def kv_batch(scenario: Scenario) -> float:
    """Return how many requests hold what the KV cache of one replica has, on average over time."""
    profile = scenario.service.profile
    if profile is None or not profile.details.paged:
        return inf
    held = held_mean(scenario) + profile.details.kv_block_tokens / 2
    return profile.details.kv_tokens / held / _mean_weight(scenario)


def kv_binds_at(scenario: Scenario) -> int | None:
    """Return the smallest cap, at most the slots, whose requests hold more than memory has."""
    batch = kv_batch(scenario)
    cap = ceil(scenario.replicas * batch * _mean_weight(scenario)) if batch < inf else 0
    return cap if 0 < cap <= scenario.replicas * scenario.slots else None


def held_mean(scenario: Scenario) -> float:
    """Return the tokens that a running request holds, on average over the time that it runs.

    Who answers at length is met for longer: a prompt counts by the tokens that follow it.
    """
    arrivals = scenario.arrivals
    factor = scenario.service.factor
    if isinstance(arrivals, Replay) and arrivals.rows.output is not None:
        output = np.maximum(1.0, arrivals.rows.output)
        prompt = np.zeros_like(output) if arrivals.rows.prompt is None else arrivals.rows.prompt
        known = ~(np.isnan(prompt) | np.isnan(output))
        return _held(prompt[known], output[known]) * factor
    if isinstance(arrivals, Windows) and arrivals.has_sizes:
        prompt_mean, output_mean = arrivals.mean_sizes
        return (prompt_mean + output_mean / 2) * factor
    return _held_by_law(scenario.service.prompt, scenario.service.output) * factor


@lru_cache(maxsize=64)
def _held_by_law(prompt: Distribution, output: Distribution) -> float:
    rng = np.random.default_rng(0)
    return _held(prompt.draw(rng, _DRAWN), np.maximum(1.0, output.draw(rng, _DRAWN)))


_DRAWN = 200_000


def _held(prompt: Floats, output: Floats) -> float:
    whole = float(output.sum())
    return float(((prompt + output / 2) * output).sum()) / whole if whole else 0.0


def _mean_weight(scenario: Scenario) -> float:
    if isinstance(scenario.arrivals, Replay) and scenario.arrivals.rows.weight is not None:
        return max(1.0, float(scenario.arrivals.rows.weight.mean()))
    return 1.0


def _mean_seconds(scenario: Scenario) -> float:
    service, arrivals = scenario.service, scenario.arrivals
    if service.seconds is not None:
        return service.seconds.mean
    assert isinstance(arrivals, Replay)
    assert arrivals.rows.service_s is not None
    known = arrivals.rows.service_s[arrivals.rows.service_s == arrivals.rows.service_s]
    return float(known.mean()) * service.factor if len(known) else 0.0


def _mean_tokens(scenario: Scenario) -> tuple[float, float]:
    """Return the mean tokens of a prompt and of an answer."""
    service, arrivals = scenario.service, scenario.arrivals
    prompt, output = service.prompt.mean, max(1.0, service.output.mean)
    if isinstance(arrivals, Replay) and arrivals.rows.output is not None:
        output = max(1.0, float(arrivals.rows.output.mean()))
        prompt = 0.0 if arrivals.rows.prompt is None else float(arrivals.rows.prompt.mean())
    elif isinstance(arrivals, Windows) and arrivals.has_sizes:
        prompt, output = arrivals.mean_sizes
    return prompt * service.factor, output * service.factor
