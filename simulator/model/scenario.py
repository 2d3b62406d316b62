"""One point of what can be asked: limits, traffic, engine, clients, idle tiers. Only values.

A scenario is frozen, can be pickled, and says everything: one seed and one scenario give one
result, wherever and however often it is computed.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from simulator.traffic.distributions import NEVER, Distribution
from simulator.traffic.keys import ClientKey
from simulator.traffic.retries import NO_RETRY, TOLD, Advice, Retry
from simulator.traffic.service import Service
from simulator.traffic.streams import Streams
from simulator.traffic.workload import Arrivals, Burst, Closed, Replay
from tornado_frontdoor.core.limits import COOLING_LIMIT_S, default_return_places

PatienceTold = Literal["no", "ignored", "heeded"]
Balancing = Literal["least", "random", "round-robin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """When an idle engine falls asleep and how long that and its wake take; pairs by level (1, 2).

    An idle time of 0 means never. `hold_s` is how long a request may wait for a wake.
    """

    idle_s: tuple[float, float]
    wake_s: tuple[float, float] = (3.0, 45.0)
    fall_s: tuple[float, float] = (10.0, 1.0)
    hold_s: tuple[float, float] = (30.0, 180.0)
    retry_after_s: tuple[float, float] = (10.0, 60.0)

    @property
    def sleeps(self) -> bool:
        """Whether an idle time of either level ever ends."""
        return any(self.idle_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class EachRequest:
    """What each request is to get at most, in seconds; a lost one got nothing of it."""

    wait_s: float = inf
    first_token_s: float = inf
    """First attempt to first token."""
    token_s: float = inf
    """Each token after the first, on average."""
    latency_s: float = inf

    @property
    def of_tokens(self) -> bool:
        """Whether only an engine whose tokens are known can tell it."""
        return self.first_token_s < inf or self.token_s < inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that decides a result, but for the seed and the number of replications.

    `slots` are those of each replica. `requests` None: as many as the arrivals have. The first
    `warmup` requests fill the system and are not measured. `hang_up` is the share of clients that
    leave after an evenly spread part of their answer; the engine works on for `cooling_s` until it
    has noticed, and the slot is not given on before that or `cooling_limit_s`, whichever is less.
    `return_places` None: half of the queue. Where `patience_told` is not "no", clients say how long
    they wait, as SDKs do, and try again after it; the gate heeds it or not. `fair_share`: slots are
    shared by `keys`.
    """

    cap: int
    queue: int
    timeout_s: float
    arrivals: Arrivals | Closed
    service: Service
    replicas: int = 1
    slots: int = 8
    balancing: Balancing = "least"
    retry: Retry = NO_RETRY
    advice: Advice = TOLD
    return_places: int | None = None
    patience: Distribution = NEVER
    patience_told: PatienceTold = "no"
    keys: tuple[ClientKey, ...] = ()
    fair_share: bool = False
    hang_up: float = 0.0
    cooling_s: float = 0.0
    cooling_limit_s: float = COOLING_LIMIT_S
    tiers: Tiers | None = None
    each: EachRequest | None = None
    gpu_cost_per_h: float = 0.0
    """What all GPUs of this upstream cost."""
    requests: int | None = None
    warmup: int = 0

    @property
    def terminating(self) -> bool:
        """Whether the run ends with its last request rather than sampling a steady state."""
        return isinstance(self.arrivals, Burst)

    @property
    def places_for_returns(self) -> int:
        """How many of the last places are kept for those who come back when told."""
        if self.return_places is None:
            return default_return_places(self.queue)
        return min(self.return_places, self.queue)

    @property
    def random(self) -> bool:
        """Whether two replications differ."""
        return (
            self.arrivals.random
            or self.service.random(rows_have_sizes=self.arrivals.has_sizes)
            or self.patience.random
            or self.hang_up > 0
            or self.retry.kind not in {"none", "fixed"}
            or (self.replicas > 1 and self.balancing == "random")
        )

    @property
    def always_has_slots(self) -> bool:
        """Whether an admitted request never waits inside a replica, nor slows another down."""
        weighs = isinstance(self.arrivals, Replay) and self.arrivals.rows.weight is not None
        spread = self.replicas == 1 or (self.balancing == "least" and not weighs)
        steady = (
            self.service.profile is None
            and self.service.slowdown == 0
            and not self.service.uncertain
        )
        given_on_early = self.hang_up > 0 and self.cooling_s > self.cooling_limit_s
        fits = self.cap <= self.replicas * self.slots
        return steady and spread and fits and not given_on_early

    @property
    def below_slots(self) -> bool:
        """Whether the cap leaves the engine a slot, as `frontdoor check` asks."""
        return self.cap < self.replicas * self.slots

    def drawn(self, streams: Streams) -> "Scenario":
        """Return the scenario of one replication: before one engine of those it may be."""
        if not self.service.uncertain:
            return self
        return replace(self, service=self.service.drawn(streams))

    def at(self, cap: int, queue: int, timeout_s: float) -> "Scenario":
        """Return the same traffic before other limits."""
        return replace(self, cap=cap, queue=queue, timeout_s=timeout_s)

    def stressed(self, *, rate: float = 1.0, service: float = 1.0) -> "Scenario":
        """Return the scenario with `rate` times the arrivals and `service` times the work."""
        arrivals = self.arrivals if rate == 1 else self.arrivals.faster(rate)
        return replace(self, arrivals=arrivals, service=self.service.slower(service))
