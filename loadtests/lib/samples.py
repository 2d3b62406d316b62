"""What was measured, exactly: every value is kept, and percentiles are values that occurred.

Locust's own statistics round response times to two digits, so that 2.45 s and 2.5 s are one; they
are fine for its pages and useless for an objective of 2.45 s.
"""

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}

Digest = dict[str, float]


class Samples:
    """The counts and values of one process; those of workers are added on the master."""

    def __init__(self) -> None:
        self.outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """How often each outcome was met, by group of requests."""
        self.models: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """`served`, `refused`, `left` and `failed` by model: what an engine's counters must say."""
        self.values: defaultdict[str, defaultdict[str, array[float]]] = defaultdict(
            lambda: defaultdict(lambda: array("d"))
        )
        """Seconds, by group and name of what was measured."""
        self.failures: Counter[str] = Counter()
        self.offered: Counter[str] = Counter()
        """`due` and `begun` requests of open-loop arrivals."""

    def count(self, model: str, group: str, kind: str, outcome: str) -> None:
        """Count one request that ended."""
        self.models[model][kind] += 1
        self.outcomes[group][outcome] += 1
        if kind == "failed":
            self.failures[f"{group}: {outcome}"] += 1

    def measure(self, group: str, name: str, *seconds: float) -> None:
        """Keep values."""
        self.values[group][name].extend(seconds)

    def take(self) -> dict[str, Any]:
        """Return everything as plain values and begin anew: what a worker reports."""
        plain = {
            "outcomes": {group: dict(counts) for group, counts in self.outcomes.items()},
            "models": {model: dict(counts) for model, counts in self.models.items()},
            "values": {
                group: {name: list(values) for name, values in named.items()}
                for group, named in self.values.items()
            },
            "failures": dict(self.failures),
            "offered": dict(self.offered),
        }
        for part in (self.outcomes, self.models, self.values, self.failures, self.offered):
            part.clear()
        return plain

    def add(self, plain: Mapping[str, Any]) -> None:
        """Add what another process took."""
        for group, counts in plain["outcomes"].items():
            self.outcomes[group].update(counts)
        for model, counts in plain["models"].items():
            self.models[model].update(counts)
        for group, named in plain["values"].items():
            for name, values in named.items():
                self.values[group][name].extend(values)
        self.failures.update(plain["failures"])
        self.offered.update(plain["offered"])

    def together(self, name: str, groups: Iterable[str] | None = None) -> list[float]:
        """Return the values of one name, over some groups or all."""
        chosen = self.values if groups is None else groups
        return [value for group in chosen for value in self.values[group].get(name, ())]


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all are not above; NaN without values."""
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def digest(values: Iterable[float]) -> Digest:
    """Return count, mean, percentiles and maximum, in seconds."""
    ordered = sorted(values)
    if not ordered:
        return {"count": 0}
    return {
        "count": len(ordered),
        "mean": math.fsum(ordered) / len(ordered),
        **{name: percentile(ordered, share) for name, share in SHARES.items()},
        "max": ordered[-1],
    }
