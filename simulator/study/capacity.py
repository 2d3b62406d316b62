"""What an engine can serve at most, and what is offered to it: the first question of every study.

Rule 1: both are means over a long time. A queue bridges bursts; it never makes an engine faster.
Rule 2: the capacity is that of a full cap: every slot taken, prompts read one after another.
"""

from dataclasses import dataclass

from simulator.model.scenario import Scenario
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
    read_s = (profile.prompt_overhead_s + prompt * profile.prompt_token_s) if prompt else 0.0
    chunk_s = profile.chunk_tokens * profile.prompt_token_s
    reading = 0.0
    decoding = batch
    for _ in range(20):  # settles at once: who reads a prompt does not decode meanwhile
        reading = min(1.0, read_s / chunk_s * decoding / output) if chunk_s else 0.0
        decoding = max(1.0, batch - reading)
    return scenario.replicas / (output * profile.token.at_mean(decoding) / decoding + read_s)


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
