"""Percentiles of several short replications: of all their values, not the mean of each one's.

Rule 1: a percentile of few requests that follow each other is too low, near saturation by a tenth
        and more, and their mean is as far off however many there are. Of all values together it is
        so much less.
Rule 2: each replication's share in that is its pseudo-value (delete-one jackknife): R times the
        percentile of all, less R - 1 times that of all the others. Their mean is the percentile of
        all with its own lowness taken off; they are treated as values of independent replications.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from simulator.model.tally import Spread
from simulator.traffic.distributions import Floats

_PERCENTILE = re.compile(r"(.+)_p(\d+)_s$")


def pseudo_values(metric: str, spreads: Sequence[Mapping[str, Spread]]) -> list[float] | None:
    """Return a replication's share in a percentile of all, each; None where they have none."""
    named = _PERCENTILE.match(metric)
    if named is None or len(spreads) < 2 or not all(named[1] in each for each in spreads):
        return None
    each = [spread[named[1]] for spread in spreads]
    share, count = int(named[2]) / 100, len(each)
    values = np.concatenate([spread.values for spread in each])
    weights = np.concatenate([spread.weights for spread in each])
    owners = np.repeat(np.arange(count), [len(spread.values) for spread in each])
    order = np.argsort(values, kind="stable")
    values, weights, owners = values[order], weights[order], owners[order]
    whole = _percentile(values, weights, share)
    others = [_percentile(values, np.where(owners == n, 0, weights), share) for n in range(count)]
    return [count * whole - (count - 1) * other for other in others]


def _percentile(ordered: Floats, weights: Floats, share: float) -> float:
    """Return the value that this share of the weight does not exceed, between two if need be.

    A step would be multiplied by the number of replications.
    """
    sums = np.cumsum(weights)
    middles = sums - (weights - 1) / 2
    return float(np.interp(share * float(sums[-1]), middles, ordered))
