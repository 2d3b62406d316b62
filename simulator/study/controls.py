"""How much more than was asked came in a replication: chance that a mean can be freed of.

Rule 1: only what is known without a simulation counts: the mean gap of a renewal stream, the mean
        of a law of seconds. All points see the same requests, so what a replication had too much
        of shifts all points alike, and more replications of the same ones do not show it.
Rule 2: a mean is moved by what a straight line through the replications makes of the surplus
        (control variates), its error is that of the line there, and it never leaves the range
        of what was seen. With few replications a line says nothing, and nothing is moved.
"""

from collections.abc import Sequence
from math import fsum, sqrt

import numpy as np

from simulator.model.scenario import Scenario
from simulator.study.statistics import SampleMean, sample_of, skewness
from simulator.traffic.streams import Purpose, Streams
from simulator.traffic.workload import Renewal

FEWEST = 10
"""Replications for a line."""

Surplus = tuple[float, ...]


def surplus_of(scenario: Scenario, streams: Streams) -> Surplus:
    """Return by how much gaps and work were longer than their law's, as shares; () if unknown."""
    arrivals, service = scenario.arrivals, scenario.service
    if not isinstance(arrivals, Renewal) or scenario.requests is None or service.uncertain:
        return ()
    first, last = scenario.warmup, scenario.requests
    if first >= last:
        return ()
    blocks, rng = arrivals.blocks(streams), streams.of(Purpose.WORK)
    instants, works, count = [np.zeros(1)], [], 0
    while count < last:
        rows = next(blocks).taken(slice(0, last - count))
        count += len(rows.at_s)
        instants.append(rows.at_s)
        if service.seconds is not None:
            works.append(service.seconds.draw(rng, len(rows.at_s)))
    at_s = np.concatenate(instants)
    gap_s = float(at_s[last] - at_s[first]) / (last - first)
    if service.seconds is None or not service.seconds.random:
        return (gap_s * arrivals.rate - 1,)
    work_s = float(np.concatenate(works)[first:].mean())
    return gap_s * arrivals.rate - 1, work_s / service.seconds.mean - 1


def corrected(values: Sequence[float], surpluses: Sequence[Surplus]) -> SampleMean:
    """Return what the values say of their mean, freed of the surplus where that is known."""
    plain, count = sample_of(values), len(values)
    if count < FEWEST or not all(surpluses):
        return plain
    rest = [value - plain.mean for value in values]
    mean, spread = plain.mean, 1 / count
    freedom = count - 1
    before: list[tuple[list[float], float, float]] = []
    for control in zip(*surpluses, strict=True):
        off = fsum(control) / count
        column = [value - off for value in control]
        for other, square, other_off in before:  # what it has besides those
            share = _product(column, other) / square
            column = [a - share * b for a, b in zip(column, other, strict=True)]
            off -= share * other_off
        square = _product(column, column)
        if square <= 1e-18 * count:
            continue
        slope = _product(rest, column) / square
        rest = [a - slope * b for a, b in zip(rest, column, strict=True)]
        mean -= slope * off
        spread += off * off / square
        freedom -= 1
        before.append((column, square, off))
    error = sqrt(_product(rest, rest) / freedom * spread)
    mean = min(max(mean, min(values)), max(values))
    return SampleMean(mean, error, freedom, skewness(rest))


def _product(first: Sequence[float], second: Sequence[float]) -> float:
    return fsum(a * b for a, b in zip(first, second, strict=True))
