"""Exact answers from solved Markov chains: batches, bursts, closed loops, retrials, replicas.

Rule 1: nothing here knows the simulator; the symbols are those of `theory.py`.
Rule 2: a chain that is cut somewhere is cut where its tail is below 1e-9.

Sources: birth-death, GI/M/c/K embedded at arrivals and level-dependent chains are in any book on
queues; M/D/c is Crommelin's chain (1932).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp

import numpy as np
from scipy.linalg import expm, logm

from simulator.traffic.distributions import Floats


@dataclass(frozen=True, slots=True)
class Chain:
    """A birth-death chain over 0..K: a bounded line whose rates depend on its state."""

    births: tuple[float, ...]
    deaths: tuple[float, ...]
    """From state 1 on."""

    def states(self) -> list[float]:
        """Return the probabilities."""
        weights = [1.0]
        for birth, death in zip(self.births, self.deaths, strict=True):
            weights.append(weights[-1] * birth / death)
        total = sum(weights)
        return [weight / total for weight in weights]


@dataclass(frozen=True, slots=True)
class Flow:
    """What goes through a bounded line."""

    offered_per_s: float
    rejected: float
    goodput_per_s: float
    wait_mean_s: float
    service_mean_s: float
    utilization: float


def _flow(cap: int, states: list[float], births: list[float]) -> Flow:
    """Return the flow for births in every state, the last of which is turned away."""
    offered = sum(p * b for p, b in zip(states, births, strict=True))
    turned = states[-1] * births[-1]
    goodput = offered - turned
    waiting = sum(max(0, n - cap) * p for n, p in enumerate(states))
    running = sum(min(n, cap) * p for n, p in enumerate(states))
    return Flow(
        offered, turned / offered, goodput, waiting / goodput, running / goodput, running / cap
    )


def falling_speed(
    cap: int, queue: int, rate: float, mean_s: float, speed: Callable[[int], float]
) -> Flow:
    """Return the flow when each of n in service runs at `speed(n)` times the speed of one."""
    places = cap + queue
    running = [min(n, cap) for n in range(1, places + 1)]
    deaths = tuple(m * speed(m) / mean_s for m in running)
    births = [rate] * (places + 1)
    return _flow(cap, Chain((rate,) * places, deaths).states(), births)


def closed_loop(cap: int, queue: int, clients: int, think_s: float, mean_s: float) -> Flow:
    """Return the flow of clients that think and ask; one that is refused thinks again."""
    places = min(cap + queue, clients)
    births = [(clients - n) / think_s for n in range(places + 1)]
    deaths = tuple(min(n, cap) / mean_s for n in range(1, places + 1))
    states = Chain(tuple(births[:places]), deaths).states()
    if places == clients:
        births[-1] = 0.0
    return _flow(cap, states, births)


def stationary(generator: Floats) -> Floats:
    """Return the stationary law of a Markov chain in continuous time."""
    size = len(generator)
    equations = np.vstack([generator.T, np.ones(size)])
    answer: Floats = np.linalg.lstsq(equations, np.append(np.zeros(size), 1.0), rcond=None)[0]
    return answer


def _deaths(cap: int, places: int, mean_s: float) -> Floats:
    generator = np.zeros((places + 1, places + 1))
    for n in range(1, places + 1):
        generator[n, n - 1] = min(n, cap) / mean_s
        generator[n, n] = -generator[n, n - 1]
    return generator


@dataclass(frozen=True, slots=True)
class RenewalLine:
    """What a newcomer of GI/M/c/K finds."""

    rejected: float
    at_once: float
    wait_of_admitted_s: float


def gamma_arrivals(cap: int, queue: int, rate: float, mean_s: float, cv: float) -> RenewalLine:
    """Return what newcomers find when gaps are Gamma with that CV (GI/M/c/K).

    The chain is embedded at arrivals; over one gap the deaths act as the matrix power
    (I - theta Q)^(-k) with k = 1/CV^2 and theta the scale.
    """
    places = cap + queue
    shape = cv**-2
    scale = 1 / (rate * shape)
    base = np.eye(places + 1) - scale * _deaths(cap, places, mean_s)
    over_a_gap = expm(-shape * np.real(logm(base)))
    after_arrival = np.zeros((places + 1, places + 1))
    for n in range(places + 1):
        after_arrival[n, min(n + 1, places)] = 1.0
    step = after_arrival @ over_a_gap
    found = stationary(step - np.eye(places + 1))
    rejected = float(found[-1])
    waits = sum(found[n] * (n - cap + 1) * mean_s / cap for n in range(cap, places))
    return RenewalLine(rejected, float(found[:cap].sum()), float(waits / (1 - rejected)))


def modulated_arrivals(
    cap: int, queue: int, rates: tuple[float, float], dwells_s: tuple[float, float], mean_s: float
) -> RenewalLine:
    """Return what newcomers find when arrivals are MMPP(2)."""
    places = cap + queue
    size = places + 1
    generator = np.zeros((2 * size, 2 * size))
    for phase in (0, 1):
        for n in range(size):
            here = phase * size + n
            generator[here, (1 - phase) * size + n] += 1 / dwells_s[phase]
            if n < places:
                generator[here, here + 1] += rates[phase]
            if n:
                generator[here, here - 1] += min(n, cap) / mean_s
    np.fill_diagonal(generator, generator.diagonal() - generator.sum(axis=1))
    law = stationary(generator)
    found = sum(rates[phase] * law[phase * size : (phase + 1) * size] for phase in (0, 1))
    assert isinstance(found, np.ndarray)
    found = found / found.sum()
    rejected = float(found[-1])
    waits = sum(found[n] * (n - cap + 1) * mean_s / cap for n in range(cap, places))
    return RenewalLine(rejected, float(found[:cap].sum()), float(waits / (1 - rejected)))


@dataclass(frozen=True, slots=True)
class Retrials:
    """What becomes of requests that come back."""

    first_rejected: float
    attempt_rejected: float
    attempts_per_request: float
    orbit_mean: float
    finally_served: float


def retrials(
    cap: int,
    queue: int,
    rate: float,
    mean_s: float,
    return_s: float,
    chance: float,
    orbit: int = 400,
) -> Retrials:
    """Return the law of refused requests that come back after Exp(`return_s`) with `chance`.

    The orbit is cut at `orbit`; the chain is solved level by level from above (its orbit goes up
    by one from the full state only).
    """
    places = cap + queue
    size = places + 1
    up = np.zeros((size, size))
    up[-1, -1] = rate * chance

    def down(level: int) -> Floats:
        moves = np.zeros((size, size))
        for n in range(size):
            if n < places:
                moves[n, n + 1] = level / return_s
            else:
                moves[n, n] = level / return_s * (1 - chance)
        return moves

    def local(level: int) -> Floats:
        moves = _deaths(cap, places, mean_s)
        for n in range(places):
            moves[n, n + 1] += rate
            moves[n, n] -= rate
        leaving = down(level).sum(axis=1)
        if level < orbit:
            leaving = leaving + up.sum(axis=1)
        return moves - np.diag(leaving)

    # pi_(l+1) = pi_l R_l with R_l = up (-(local + R_(l+1) down))^-1, from the highest level down.
    ratios: list[Floats] = []
    ratio: Floats = np.zeros((size, size))
    for level in range(orbit, 0, -1):
        inner = local(level) + ratio @ down(level + 1)
        ratio = up @ np.linalg.inv(-inner)
        ratios.append(ratio)
    ratios.reverse()
    law = [stationary(local(0) + ratios[0] @ down(1))]
    for ratio in ratios:
        law.append(law[-1] @ ratio)
    total = sum(float(level.sum()) for level in law)
    full = sum(float(level[-1]) for level in law) / total
    orbit_mean = sum(k * float(level.sum()) for k, level in enumerate(law)) / total
    returning_full = sum(k * float(level[-1]) for k, level in enumerate(law)) / total
    attempts = rate + orbit_mean / return_s
    refused = rate * full + returning_full / return_s
    return Retrials(
        full,
        refused / attempts,
        attempts / rate,
        orbit_mean,
        1 - refused * (1 - chance) / rate,
    )


@dataclass(frozen=True, slots=True)
class TwoReplicas:
    """What two replicas behind one cap come to."""

    rejected: float
    goodput_per_s: float
    somebody_hidden: float
    hidden_wait_mean_s: float
    wait_mean_s: float


_Spread = tuple[int, int, int]
"""Inside the first replica, inside the second, in the queue."""


def two_replicas_at_random(
    cap: int, queue: int, slots: int, rate: float, mean_s: float
) -> TwoReplicas:
    """Return the solved chain of two replicas of `slots`, each admitted request picking blindly."""
    states: list[_Spread] = [
        (first, total - first, line)
        for total in range(cap + 1)
        for first in range(total + 1)
        for line in range(queue + 1 if total == cap else 1)
    ]
    index = {state: at for at, state in enumerate(states)}
    generator = np.zeros((len(states), len(states)))
    for state in states:
        for target, speed in _spread_moves(state, cap, queue, slots, rate, mean_s):
            generator[index[state], index[target]] += speed
            generator[index[state], index[state]] -= speed
    law = stationary(generator)
    full = np.array([a + b == cap and line == queue for a, b, line in states])
    hidden = np.array([max(0, a - slots) + max(0, b - slots) for a, b, _ in states])
    waiting = np.array([line for _, _, line in states])
    rejected = float(law[full].sum())
    goodput = rate * (1 - rejected)
    return TwoReplicas(
        rejected,
        goodput,
        float(law[hidden > 0].sum()),
        float(hidden @ law) / goodput,
        float(waiting @ law) / goodput,
    )


def _spread_moves(
    state: _Spread, cap: int, queue: int, slots: int, rate: float, mean_s: float
) -> Iterator[tuple[_Spread, float]]:
    """Yield where a state goes and how fast."""
    first, second, line = state
    if first + second < cap:
        yield (first + 1, second, 0), rate / 2
        yield (first, second + 1, 0), rate / 2
    elif line < queue:
        yield (first, second, line + 1), rate
    after = (
        ((first - 1, second), min(first, slots) / mean_s),
        ((first, second - 1), min(second, slots) / mean_s),
    )
    for (a, b), speed in after:
        if not speed:
            continue
        if line:
            yield (a + 1, b, line - 1), speed / 2
            yield (a, b + 1, line - 1), speed / 2
        else:
            yield (a, b, 0), speed


def constant_service_wait(cap: int, rate: float, service_s: float) -> tuple[float, float]:
    """Return the share that waits and the mean wait of M/D/c with an endless line.

    Crommelin's chain: over one service time everyone in service leaves, so the number inside goes
    from n to max(n - c, 0) + Poisson(lambda D).
    """
    load = rate * service_s
    size = cap * 80
    steps: Floats = np.zeros((size, size))
    chances = [exp(-load)]
    for k in range(1, size):
        chances.append(chances[-1] * load / k)
    for n in range(size):
        start = max(n - cap, 0)
        steps[n, start:] = chances[: size - start]
        steps[n, -1] += 1 - steps[n].sum()
    law = stationary(steps - np.eye(size))
    waits = 1 - float(law[:cap].sum())
    waiting = float(sum((n - cap) * law[n] for n in range(cap, size)))
    return waits, waiting / rate
