"""From what requests took to what a token and a prompt cost, all at once.

Rule 1: others' prompts slow decoding down, and decoding slows prompts down. So costs of tokens and
        of prompts are fitted together, or each would be paid for twice:
          decode time   = first x tokens + growth x tokens x (batch - 1)
                          + prompt cost x others' prompt tokens + overhead x others' prompts
          first token   = prompt cost x prompt tokens read meanwhile + overhead x prompts read
                          + the iterations that these took, and its own, at the batch's speed
Rule 2: costs are not negative (non-negative least squares); the batch is who decoded meanwhile.
Rule 3: growth is a line, or a power of the batch where that explains the log clearly better.
Rule 4: how sure the costs are comes from fits to the log's times drawn anew, as fast as the engine
        may have been then (`variation`); a run that is foretold varies in the same way. The costs
        themselves are the plain fit's: one that weighs times by how the speed seems to vary takes
        what a time of large batches has in common for chance (11 % off on a recorded GPU).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from simulator.study.occupancy import Occupancy
from simulator.study.variation import LogTimes, Posterior, variation_of
from simulator.traffic.benchmarks import Timings
from simulator.traffic.distributions import Floats
from simulator.traffic.pace import EnginePace
from simulator.traffic.service_profiles import CHUNK_TOKENS, Draw, TokenTimes

POWERS = np.arange(0.0, 1.01, 0.02)
FIRST_TOKENS_WEIGH = 0.02
"""First tokens say what prompts cost where no prompt ever met a decoding request; where many did,
decode times know better, as a first token also waits for the scheduler."""
WHILE_READING = (0.1, 0.3, 0.5, 0.7, 1.0)
"""Tokens made a second while a prompt is read, as a share of those made otherwise: the share that
explains the log best is taken."""
CLEARLY = 1.5
"""A power must explain so much more than a line: near each other, the line foretells better."""
REDRAWN = 40
"""Fits to times drawn anew: enough for a deviation that is 10 % right."""


@dataclass(frozen=True, slots=True)
class TokenFit:
    """The costs and how well they explain the log."""

    token: TokenTimes
    prompt_token_s: float
    prompt_overhead_s: float
    draws: tuple[Draw, ...]
    """The same from redrawn times: first, growth, power, prompt token, overhead."""
    decode_error: float
    """Median relative error of the decode times."""
    pace: EnginePace
    batch: tuple[float, float, float]
    """Least, mean and largest number that decoded together."""


class _Equations(NamedTuple):
    """One row for each request: what its decoding and its first token were made of."""

    tokens: Floats
    batch: Floats
    prompt_meanwhile: Floats
    prompts_meanwhile: Floats
    took_s: Floats
    chunks: Floats
    batch_before: Floats
    prompt_before: Floats
    prompts_before: Floats
    first_s: Floats

    def taken(self, index: NDArray[np.int64]) -> "_Equations":
        """Return the rows with these numbers."""
        return _Equations(*(column[index] for column in self))

    @property
    def met(self) -> Floats:
        """The others that decoded as the first token was made."""
        return np.where(self.chunks > 0, self.batch_before, 0.0)

    def costs(self, power: float | None) -> Floats:
        """Return first, growth (of a line), prompt token and overhead.

        With a power, a token costs `first` x batch^power.
        """
        decoding, reading = self._columns(power)
        above = 1 / max(1e-12, float(np.sqrt(np.mean(self.took_s**2))))
        below = FIRST_TOKENS_WEIGH / max(1e-12, float(np.sqrt(np.mean(self.first_s**2))))
        matrix = np.vstack([decoding * above, reading * below])
        target = np.concatenate([self.took_s * above, self.first_s * below])
        scale = np.maximum(np.linalg.norm(matrix, axis=0), 1e-300)
        costs, _ = nnls(matrix / scale, target)
        solved: Floats = costs / scale
        return solved

    def _columns(self, power: float | None) -> tuple[Floats, Floats]:
        """Return what decode times and first tokens are made of, a column for each cost."""
        decoding: tuple[Floats, ...]
        reading: tuple[Floats, ...]
        if power is None:
            decoding = (self.tokens, self.tokens * (self.batch - 1))
            reading = (self.chunks + 1, self.chunks * (self.batch_before - 1) + self.met)
        else:
            decoding = (self.tokens * self.batch**power,)
            reading = (self.chunks * self.batch_before**power + (self.met + 1) ** power,)
        return (
            np.column_stack([*decoding, self.prompt_meanwhile, self.prompts_meanwhile]),
            np.column_stack([*reading, self.prompt_before, self.prompts_before]),
        )

    def slower(self, factor: Floats) -> "_Equations":
        """Return the same of an engine that took so many times as long."""
        return self._replace(took_s=self.took_s * factor, first_s=self.first_s * factor)

    def decode_s(self, costs: Floats, power: float | None) -> Floats:
        """Return the decode times that these costs would make."""
        if power is None:
            tokens = self.tokens * (costs[0] + costs[1] * (self.batch - 1))
        else:
            tokens = self.tokens * costs[0] * self.batch**power
        modelled: Floats = (
            tokens + costs[-2] * self.prompt_meanwhile + costs[-1] * self.prompts_meanwhile
        )
        return modelled

    def variation(self, costs: Floats, power: float | None, begins: Sequence[Floats]) -> Posterior:
        """Return how the speed varies beside what costs and requests explain."""
        decoding, _ = self._columns(power)
        modelled = self.decode_s(costs, power)
        return variation_of(self.took_s, decoding[:, costs > 0], modelled, begins)

    def misfit(self, costs: Floats, power: float | None) -> float:
        """Return the mean square of what the decode times are off."""
        return float(np.mean((self.decode_s(costs, power) - self.took_s) ** 2))


def _named(costs: Floats, power: float | None) -> Draw:
    growth = float(costs[1]) if power is None else 0.0
    first, prompt_s, overhead_s = (float(costs[at]) for at in (0, -2, -1))
    return max(first, 1e-9), growth, power or 0.0, prompt_s, overhead_s


def _together(logs: Sequence[Timings], share: float) -> _Equations:
    parts = [_equations(log, share) for log in logs]
    return _Equations(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _batch(log: Timings, share: float) -> Floats:
    """Return the mean number that decoded with each request, token by token.

    While prompts are read, few tokens are made: a mean over time would count that time too much.
    """
    instants = np.concatenate([log.first_s, log.last_s, log.scheduled_s, log.first_s])
    ones = np.ones(len(log.first_s))
    nothing = np.zeros(2 * len(ones))
    order = np.argsort(instants, kind="stable")
    instants = instants[order]
    decoding = np.cumsum(np.concatenate([ones, -ones, nothing])[order])[:-1]
    reading = np.cumsum(np.concatenate([nothing, ones, -ones])[order])[:-1]
    weight = np.where(reading > 0, share, 1.0) * np.diff(instants)
    until = [np.concatenate([[0.0], np.cumsum(values)]) for values in (decoding * weight, weight)]
    batch, spent = (
        np.interp(log.last_s, instants, total) - np.interp(log.first_s, instants, total)
        for total in until
    )
    mean = np.divide(batch, spent, out=np.ones_like(batch), where=spent > 0)
    batch_mean: Floats = np.maximum(mean, 1.0)
    return batch_mean


def _equations(log: Timings, share: float) -> _Equations:
    decoding = Occupancy(log.first_s, log.last_s)
    order = np.argsort(log.first_s)
    instants = log.first_s[order]
    read = np.concatenate([[0.0], np.cumsum(log.prompt[order])])

    def between(since: Floats, until: Floats) -> tuple[Floats, Floats]:
        """Return the prompt tokens and the prompts that were read in between."""
        low = np.searchsorted(instants, since, side="right")
        high = np.searchsorted(instants, until, side="right")
        return read[high] - read[low], (high - low).astype(np.float64)

    meanwhile, before = between(log.first_s, log.last_s), between(log.scheduled_s, log.first_s)
    return _Equations(
        log.output - 1,
        _batch(log, share),
        *meanwhile,
        log.last_s - log.first_s,
        before[0] / CHUNK_TOKENS * (decoding.at(log.scheduled_s) > 0),
        decoding.company(log.scheduled_s, log.first_s),
        *before,
        log.first_s - log.scheduled_s,
    )


def fit_together(logs: Sequence[Timings]) -> TokenFit:
    """Return the costs that explain all logs at once."""
    shares = (_together(logs, share) for share in WHILE_READING)
    whole = min(shares, key=lambda each: each.misfit(each.costs(None), None))
    power: float | None = min(
        map(float, POWERS), key=lambda each: whole.misfit(whole.costs(each), each)
    )
    curve = whole.misfit(whole.costs(power), power)
    if whole.misfit(whole.costs(None), None) <= CLEARLY * curve:
        power = None
    costs, begins = whole.costs(power), [log.first_s for log in logs]
    posterior, times = whole.variation(costs, power, begins), LogTimes.of(begins)
    rng = np.random.default_rng(1)
    draws = (_drawn(whole, posterior, power, times, rng) for _ in range(REDRAWN))
    first, growth, exponent, prompt_s, overhead_s = _named(costs, power)
    modelled = whole.decode_s(costs, power)
    return TokenFit(
        TokenTimes(first_s=first, per_sequence_s=growth, power=exponent),
        prompt_s,
        overhead_s,
        tuple(draws),
        float(np.median(np.abs(modelled - whole.took_s) / np.maximum(whole.took_s, 1e-9))),
        times.pace(posterior.typical, begins),
        (float(whole.batch.min()), float(whole.batch.mean()), float(whole.batch.max())),
    )


def _drawn(
    whole: _Equations,
    posterior: Posterior,
    power: float | None,
    times: LogTimes,
    rng: np.random.Generator,
) -> Draw:
    """Return the costs of another run, fitted to what the logs might have been."""
    by = posterior.drawn(rng)
    index = rng.integers(0, len(whole.tokens), len(whole.tokens))
    drawn = whole.taken(index).slower(by.drawn(rng, times)[times.of_request[index]])
    costs = drawn.costs(power) * np.exp(by.of_logs * rng.standard_normal())
    return _named(costs, power)
