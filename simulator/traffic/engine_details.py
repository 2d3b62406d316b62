"""What an engine does besides reading prompts and making tokens: each is optional.

Rule 1: what a request meets by chance (a cached prefix, how many drafts are accepted) is a function
        of the replication and the request, so that it is the same at every cap and queue.
Rule 2: chance changes no mean: a profile's seconds a token are those with speculation.
"""

from dataclasses import dataclass
from math import floor, inf

import numpy as np

from simulator.engine_model.kv_memory import KvCache
from simulator.traffic.distributions import unit
from simulator.traffic.streams import Purpose, Streams

BLOCK_TOKENS = 16
"""Of a block of keys and values: vLLM's on GPUs; 128 on CPUs."""
_QUANTILES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCache:
    """A share of the requests goes on with a conversation, whose share of the prompt is cached."""

    continued: float
    cached: float

    @property
    def mean(self) -> float:
        """The share of all prompt tokens that is cached."""
        return self.continued * self.cached

    def __str__(self) -> str:
        return f"{self.continued:g},{self.cached:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Drafts in each step; each is accepted with a chance, up to the first that is not.

    `deviation` is how far that chance differs between requests, as their texts do.
    """

    drafts: int
    acceptance: float
    deviation: float = 0.0

    def __post_init__(self) -> None:
        if self.deviation and self.deviation**2 >= self.acceptance * (1 - self.acceptance):
            raise ValueError(
                f"no shares have a mean of {self.acceptance:g} and a deviation of "
                f"{self.deviation:g}"
            )

    @property
    def tokens_a_step(self) -> float:
        """Mean tokens that a step makes, over many requests of the same length."""
        return float(1 / np.mean(1 / _made(self.drafts, self._chances())))

    def chance(self, rng: np.random.Generator) -> float:
        """Return the chance of one request."""
        if not self.deviation:
            return self.acceptance
        return float(rng.beta(*self._shape()))

    def steps(self, tokens: float, rng: np.random.Generator) -> int:
        """Return the steps that one request takes for so many tokens."""
        chance, count = self.chance(rng), max(1, round(tokens))
        failed = rng.geometric(1 - chance, count) if chance < 1 else np.full(count, inf)
        made = np.cumsum(np.minimum(failed - 1, self.drafts) + 1)
        return int(np.searchsorted(made, count)) + 1

    def _shape(self) -> tuple[float, float]:
        mean = self.acceptance
        whole = mean * (1 - mean) / self.deviation**2 - 1
        return mean * whole, (1 - mean) * whole

    def _chances(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        if not self.deviation:
            return np.array([self.acceptance])
        return np.random.default_rng(0).beta(*self._shape(), _QUANTILES)

    def __str__(self) -> str:
        return f"{self.drafts},{self.acceptance:g}" + f",{self.deviation:g}" * bool(self.deviation)


def _made(
    drafts: int, chance: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return 1 + chance + chance^2 + ...: Leviathan et al. 2023, equation 1."""
    return np.asarray(sum(chance**power for power in range(drafts + 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDetails:
    """All of them; without any the engine is the plain one."""

    kv_tokens: float = inf
    kv_block_tokens: int = BLOCK_TOKENS
    prefix_caching: bool = True
    """Whether a preempted request finds again what nobody has overwritten."""
    prefix: PrefixCache | None = None
    speculation: Speculation | None = None

    @property
    def plain(self) -> bool:
        """Whether nothing has to be done for them."""
        return not self.paged and self.prefix is None and self.speculation is None

    @property
    def paged(self) -> bool:
        """Whether memory can be short."""
        return self.kv_tokens < inf

    @property
    def random(self) -> bool:
        """Whether two replications of the same requests differ."""
        prefix = self.prefix
        return self.speculation is not None or (prefix is not None and 0 < prefix.continued < 1)

    @property
    def cache(self) -> KvCache:
        """What a replica has for keys and values."""
        return KvCache(
            tokens=self.kv_tokens, block_tokens=self.kv_block_tokens, keeps=self.prefix_caching
        )

    @property
    def document(self) -> dict[str, object]:
        """Their keys in a profile's file; none where it does nothing besides."""
        document: dict[str, object] = {}
        if self.paged:
            document |= {"kv_tokens": self.kv_tokens, "kv_block_tokens": self.kv_block_tokens}
            document["prefix_caching"] = self.prefix_caching
        if (prefix := self.prefix) is not None:
            document |= {"continued_share": prefix.continued, "cached_share": prefix.cached}
        if (speculation := self.speculation) is not None:
            document |= {"draft_tokens": speculation.drafts, "acceptance": speculation.acceptance}
            document["acceptance_deviation"] = speculation.deviation
        return document


PLAIN = EngineDetails()


class Chances:
    """What the requests of one replication meet."""

    def __init__(self, details: EngineDetails, streams: Streams) -> None:
        self._details = details
        self._place = (streams.seed, streams.replication)
        speculation = details.speculation
        self._a_step = 1.0 if speculation is None else speculation.tokens_a_step

    def cached(self, index: int, prompt: float) -> float:
        """Return the tokens of a request's prompt that need not be read: whole blocks."""
        prefix = self._details.prefix
        if prefix is None or unit(*self._place, Purpose.LATE, 4, index) >= prefix.continued:
            return 0.0
        block = self._details.kv_block_tokens
        return block * floor(min(prefix.cached * prompt, prompt - 1) / block)

    def work(self, index: int, tokens: float) -> float:
        """Return what so many further tokens take, in tokens of mean cost."""
        speculation = self._details.speculation
        if speculation is None or tokens <= 0:
            return tokens
        rng = np.random.default_rng((*self._place, int(Purpose.LATE), 5, index))
        return speculation.steps(tokens, rng) * self._a_step
