"""Exact answers in closed form: what the simulator is tested against, and `validate` prints.

Rule 1: nothing here knows the simulator. `chains.py` has the answers that need a solved chain.
Rule 2: shares are of arrivals. c is the cap, q the queue, lambda the rate, a the offered load
        lambda / mu with mu = 1 / mean service, tau the queue timeout.

Sources: the bounded line with a fixed timeout is Movaghar's M(n)/M/m/FCFS/K+G (1996, 1998) with a
constant deadline; the rest is in any book on queues.
"""

from dataclasses import dataclass
from math import exp, factorial, inf, log

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, gammaln, logsumexp

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BoundedQueue:
    """M/M/c/K+D: Poisson arrivals, exponential service, c slots, q places, timeout tau."""

    cap: int
    queue: int
    rate: float
    mean_s: float
    timeout_s: float = inf

    def _states(self) -> tuple[Floats, Floats]:
        """Return the logarithms of the probabilities of 0..c in service, and of 1..q waiting.

        Logarithms, because the terms of a long line or of many slots are no floats.
        """
        load = self.rate * self.mean_s
        served = np.arange(self.cap + 1)
        below = served * log(load) - gammaln(served + 1)
        k = np.arange(1, self.queue + 1)
        line = below[-1] + k * log(load / self.cap) + self._log_done(k, self.timeout_s)
        total = logsumexp(np.concatenate([below, line]))
        return below - total, line - total

    def _log_done(self, count: NDArray[np.int_], within_s: float) -> Floats:
        """Return the logarithm of the chance that a full system ends so many services in time."""
        if within_s == inf:
            return np.zeros(len(count))
        with np.errstate(divide="ignore"):  # no chance at all is minus infinity
            return np.log(gammainc(count, self.cap * within_s / self.mean_s))

    @property
    def rejected(self) -> float:
        """Share that finds slots and line full."""
        below, line = self._states()
        return exp(line[-1] if self.queue else below[-1])

    @property
    def at_once(self) -> float:
        """Share that is served without waiting."""
        return float(np.exp(self._states()[0][:-1]).sum())

    @property
    def timed_out(self) -> float:
        """Share that waits for `timeout_s` in vain."""
        if self.timeout_s == inf or not self.queue:
            return 0.0
        full = self._states()[0][-1]
        j = np.arange(self.queue)
        terms = j * log(self.rate * self.timeout_s) - gammaln(j + 1)
        return exp(full - self.cap * self.timeout_s / self.mean_s + logsumexp(terms))

    def served_within(self, wait_s: float) -> float:
        """Share that is served after waiting at most `wait_s`, those served at once included."""
        return self._served_within(wait_s, self._states()[0])

    def _served_within(self, wait_s: float, below: Floats) -> float:
        j = np.arange(self.queue)
        load = self.rate * self.mean_s / self.cap
        waited = below[-1] + j * log(load) + self._log_done(j + 1, wait_s)
        return float(np.exp(below[:-1]).sum() + np.exp(waited).sum())

    @property
    def served(self) -> float:
        """Share that is served."""
        return self.served_within(self.timeout_s)

    @property
    def utilization(self) -> float:
        """Mean share of the slots that is taken."""
        return self.rate * self.served * self.mean_s / self.cap

    @property
    def queue_length_mean(self) -> float:
        """Mean number that waits."""
        return float(np.arange(1, self.queue + 1) @ np.exp(self._states()[1]))

    @property
    def wait_mean_s(self) -> float:
        """Mean wait of the served."""
        lost_s = 0.0 if self.timeout_s == inf else self.timeout_s * self.timed_out
        return (self.queue_length_mean / self.rate - lost_s) / self.served

    def wait_percentile_s(self, share: float) -> float:
        """Return the wait that this share of the served does not exceed."""
        target = share * self.served
        if self.at_once >= target:
            return 0.0
        below, _ = self._states()
        low, high = 0.0, self.timeout_s if self.timeout_s < inf else self.mean_s
        while self.timeout_s == inf and self._served_within(high, below) < target:
            high *= 2
        for _ in range(60):
            middle = (low + high) / 2
            enough = self._served_within(middle, below) >= target
            low, high = (low, middle) if enough else (middle, high)
        return high

    def metrics(self) -> dict[str, float]:
        """Return all of it by the names of the simulator's metrics."""
        return {
            "rejected_share": self.rejected,
            "timed_out_share": self.timed_out,
            "served_share": self.served,
            "lost_share": 1 - self.served,
            "goodput_per_s": self.rate * self.served,
            "utilization": self.utilization,
            "queue_length_mean": self.queue_length_mean,
            "wait_mean_s": self.wait_mean_s,
            "wait_p50_s": self.wait_percentile_s(0.50),
            "wait_p95_s": self.wait_percentile_s(0.95),
            "wait_p99_s": self.wait_percentile_s(0.99),
        }


def erlang_b(cap: int, load: float) -> float:
    """Return the share lost without a queue, whatever the law of service."""
    blocked = 1.0
    for k in range(1, cap + 1):
        blocked = load * blocked / (k + load * blocked)
    return blocked


def erlang_c(cap: int, load: float) -> float:
    """Return the share that waits in an endless line; the load is below the cap."""
    blocked = erlang_b(cap, load)
    return blocked / (1 - load / cap * (1 - blocked))


def endless_queue_timed_out(cap: int, rate: float, mean_s: float, timeout_s: float) -> float:
    """Return the share that times out in an endless line (M/M/c+D)."""
    load, drain = rate * mean_s, cap / mean_s
    excess = rate - drain
    below = sum(factorial(cap) / factorial(j) * load ** (j - cap) for j in range(cap))
    if excess:
        grown = exp(excess * timeout_s)
        above = drain * ((grown - 1) / excess + grown / drain)
    else:
        grown, above = 1.0, drain * (timeout_s + 1 / drain)
    return grown / (below + above)


@dataclass(frozen=True, slots=True)
class IdleShares:
    """Shares of time by depth, and what requests meet, for instant service and wake."""

    awake: float
    sleeping: float
    offloaded: float
    wakes_from_sleeping_per_h: float
    wakes_from_offloaded_per_h: float
    cold: float


def idle_tiers(rate_per_h: float, idle_s: tuple[float, float]) -> IdleShares:
    """Return the shares of an engine that sleeps after two idle times (Poisson arrivals)."""
    first, second = (exp(-rate_per_h * limit_s / 3600) for limit_s in idle_s)
    return IdleShares(
        1 - first,
        first - second,
        second,
        rate_per_h * (first - second),
        rate_per_h * second,
        first,
    )


def burst_served(count: int, cap: int, queue: int, mean_s: float, timeout_s: float) -> float:
    """Return the expected number served of a burst, exponential service."""
    admitted = min(count, cap)
    waiting = min(max(0, count - cap), queue)
    drain = cap / mean_s
    served = (gammainc(j, drain * timeout_s) for j in range(1, waiting + 1))
    return admitted + float(sum(served))
