"""How much an engine's speed varies by itself: from time to time in a log, and from log to log.

Rule 1: how slow it is has a part of its log and a part of its time (nested error components, as
        Fuller and Battese, 1973, have them); who ran at one time shares both.
Rule 2: a run that is foretold is a log of its own: it has parts of its own.
Rule 3: logs differ from each other about as much as the quarters of one do, unless they say
        otherwise: that is the prior (half of Student's t), and one log alone says nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.traffic.distributions import Floats
from simulator.traffic.pace import STEADY, EnginePace

Index = NDArray[np.int64]

OF_A_TIME = 30
"""Requests that make up a time of their own, where that makes not more than `MOST_TIMES`."""
MOST_TIMES = 20
LONG_TIMES = 4
"""Of a log, to see how much it varies in the long run."""
TRIED = np.array([0.0, *np.geomspace(0.005, 1.5, 19)])
"""Deviations that are tried, of times and of logs: of the speed, as shares of it."""
LEAST = 0.01
"""Logs of an engine whose speed seems constant differ by that much."""
TAILS = LONG_TIMES - 1.0
"""Degrees of freedom of the prior: quarters of a log know its deviation no better."""


@dataclass(frozen=True, slots=True)
class LogTimes:
    """Which time each request is of, and which log each time is of; both are numbered from 0."""

    of_request: Index
    log_of: Index

    @classmethod
    def of(cls, instants: Sequence[Floats], most: int = MOST_TIMES) -> "LogTimes":
        """Cut logs into times with about as many requests each, given when each began."""
        of_request, log_of, count = [], [], 0
        for log, begins in enumerate(instants):
            times = min(most, max(1, len(begins) // OF_A_TIME))
            rank = np.empty(len(begins), dtype=np.int64)
            rank[np.argsort(begins, kind="stable")] = np.arange(len(begins))
            of_request.append(count + rank * times // max(1, len(begins)))
            log_of += [log] * times
            count += times
        return cls(np.concatenate(of_request), np.array(log_of))

    @property
    def count(self) -> int:
        """How many there are in all logs."""
        return len(self.log_of)

    @property
    def logs(self) -> int:
        """How many logs there are."""
        return int(self.log_of[-1]) + 1

    def pace(self, by: "Variation", instants: Sequence[Floats]) -> EnginePace:
        """Return how speed varies within a run, given when the requests of each log began."""
        span_s = sum(float(np.ptp(begins)) for begins in instants)
        if by.of_times < LEAST or not span_s:
            return STEADY
        return EnginePace(deviation=by.of_times, time_s=span_s / self.count)


@dataclass(frozen=True, slots=True)
class Variation:
    """Deviations of the speed, as shares of it, and of what is left of each request."""

    of_times: float
    of_logs: float
    noise: float = 1.0
    """In the unit of what was measured."""

    def drawn(self, rng: np.random.Generator, times: LogTimes) -> Floats:
        """Return how many times as long all might take in each time, if this is how it varies."""
        of_logs = self.of_logs * rng.standard_normal(times.logs)
        off = of_logs[times.log_of] + self.of_times * rng.standard_normal(times.count)
        slower: Floats = np.exp(off)
        return slower

    def whitened(self, columns: Floats, scale: Floats, times: LogTimes) -> Floats:
        """Return columns whose rest is independent if this is how the speed varies.

        `scale` is what a request's measurement grows by where all is so much slower.
        """
        stay = _Stay.of(self, _sums(scale[:, None] ** 2, times)[:, 0], times)
        parts = _sums(scale[:, None] * columns, times)
        off = (stay.off_times[:, None] * parts)[times.of_request] * scale[:, None]
        log_scale = stay.times[times.of_request] * scale
        columns = columns - off
        whole = _sums(log_scale[:, None] * columns, times)
        logs = np.zeros((times.logs, columns.shape[1]))
        np.add.at(logs, times.log_of, whole)
        of_log = times.log_of[times.of_request]
        made: Floats = columns - (stay.off_logs[:, None] * logs)[of_log] * log_scale[:, None]
        return made


@dataclass(frozen=True, slots=True)
class _Stay:
    """What is left of a time's and of a log's common part, and what is taken off for it."""

    times: Floats
    off_times: Floats
    off_logs: Floats

    @classmethod
    def of(cls, variation: Variation, squares: Floats, times: LogTimes) -> "_Stay":
        noise = variation.noise**2
        of_times = 1 / np.sqrt(1 + variation.of_times**2 / noise * squares)
        log_squares = np.bincount(times.log_of, of_times**2 * squares, minlength=times.logs)
        of_logs = 1 / np.sqrt(1 + variation.of_logs**2 / noise * log_squares)
        return cls(
            of_times,
            np.divide(1 - of_times, squares, out=np.zeros_like(squares), where=squares > 0),
            np.divide(1 - of_logs, log_squares, out=np.zeros_like(of_logs), where=log_squares > 0),
        )


def _sums(columns: Floats, times: LogTimes) -> Floats:
    sums: Floats = np.column_stack(
        [np.bincount(times.of_request, column, minlength=times.count) for column in columns.T]
    )
    return sums


@dataclass(frozen=True, slots=True)
class Posterior:
    """Variations that are tried and how likely each is, given the logs."""

    tried: tuple[Variation, ...]
    chances: Floats

    @property
    def typical(self) -> Variation:
        """The median of times, so that chance is taken for none; of logs the root mean square."""
        by_times = self.chances.reshape(len(TRIED), -1).sum(1)
        of_times = TRIED[np.searchsorted(np.cumsum(by_times), 0.5)]
        of_logs = np.sqrt(self.chances @ np.array([each.of_logs**2 for each in self.tried]))
        return Variation(float(of_times), float(of_logs), self.tried[0].noise)

    def drawn(self, rng: np.random.Generator) -> Variation:
        """Return one of those that may be."""
        return self.tried[rng.choice(len(self.tried), p=self.chances)]


def variation_of(
    measured: Floats, columns: Floats, scale: Floats, instants: Sequence[Floats]
) -> Posterior:
    """Return how the speed varies, given what was measured and the columns that explain it.

    `instants` are those at which the requests of each log began.
    """
    long_run = _posterior(measured, columns, scale, LogTimes.of(instants, LONG_TIMES), TRIED)
    usual = np.full_like(TRIED, long_run.typical.of_times)
    return _posterior(measured, columns, scale, LogTimes.of(instants), usual)


def _posterior(
    measured: Floats, columns: Floats, scale: Floats, times: LogTimes, usual: Floats
) -> Posterior:
    """Return what times say; `usual` is by how much logs differ where times deviate as tried.

    By restricted likelihood (REML): what the columns could explain as well is not taken for a
    difference of logs, nor the other way round.
    """
    whole = np.column_stack([columns, measured])
    gram, parts = whole.T @ whole, _sums(scale[:, None] * whole, times)
    squares = np.maximum(_sums(scale[:, None] ** 2, times)[:, 0], 1e-300)
    freedom = max(1, len(measured) - columns.shape[1] - times.count)
    # What is left of each request is known best where what its time has in common is taken off.
    size = np.sqrt(np.maximum(np.diagonal(gram)[:-1], 1e-300))
    left, _ = _left(gram - (parts.T / squares) @ parts, size)
    noise = max(1e-12, float(left) / freedom) ** 0.5
    of_log = np.arange(times.logs)[:, None] == times.log_of
    shared = 1 / (1 + (TRIED[:, None] / noise) ** 2 * squares)
    within = gram - np.einsum("tk,ki,kj->tij", (1 - shared) / squares, parts, parts)
    logs = np.einsum("tk,lk,ki->tli", shared, of_log, parts)
    log_squares = np.einsum("tk,lk->tl", shared * squares, of_log)[:, None, :]
    kept = 1 / (1 + (TRIED[:, None] / noise) ** 2 * log_squares)
    between = np.einsum("tql,tli,tlj->tqij", (1 - kept) / log_squares, logs, logs)
    rest, determinant = _left(within[:, None] - between, size)
    determinant += -np.log(shared).sum(1)[:, None] - np.log(kept).sum(2)
    chances = _prior(usual) - 0.5 * (determinant + rest / noise**2)
    weights = np.exp(chances - chances.max()).ravel()
    pairs = [(float(a), float(b)) for a in TRIED for b in TRIED]
    return Posterior(tuple(Variation(*pair, noise) for pair in pairs), weights / weights.sum())


def _left(gram: Floats, size: Floats) -> tuple[Floats, Floats]:
    """Return the squares that the columns leave of the last one, and their log determinant.

    `size` is that of the columns before anything was taken off: of some nothing may be left.
    """
    even = gram[..., :-1, :-1] / (size[:, None] * size) + 1e-10 * np.eye(len(size))
    evened = gram[..., :-1, -1] / size
    explained = np.linalg.solve(even, evened[..., None])[..., 0]
    left = np.maximum(0.0, gram[..., -1, -1] - (explained * evened).sum(-1))
    return left, np.linalg.slogdet(even)[1]


def _prior(usual: Floats) -> Floats:
    """Return the log chance of each pair of deviations, before any log is seen."""
    edges = np.concatenate([[0.0], (TRIED[1:] + TRIED[:-1]) / 2, [TRIED[-1]]])
    width = np.log(np.diff(edges))
    scale = np.maximum(LEAST, usual)[:, None]
    density = -0.5 * (TAILS + 1) * np.log1p((TRIED / scale) ** 2 / TAILS) - np.log(scale)
    prior: Floats = density + width + width[:, None]
    return prior
