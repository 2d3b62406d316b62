"""What is counted for each request, as plain numbers; Prometheus' objects are made at a scrape.

`prometheus_client` takes a lock and walks its buckets for each number, a twentieth of what a
request costs: too much for what one thread counts and somebody reads every few seconds.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from time import time_ns

from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tornado_frontdoor.core.decisions import Outcome

BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
EXEMPLAR_FROM_S = 0.25
"""Who looks for an example looks for a slow one."""

_BOUNDS = [*map(str, BUCKETS_S), "+Inf"]


class Durations:
    """A histogram of seconds."""

    __slots__ = ("_counts", "_examples", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * len(_BOUNDS)
        self._examples: dict[int, Exemplar] = {}
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(BUCKETS_S, seconds)] += 1
        self._sum_s += seconds

    def observe_of(self, seconds: float, request_id: str) -> None:
        """Count one; a slow one is kept as an example."""
        bucket = bisect_left(BUCKETS_S, seconds)
        self._counts[bucket] += 1
        self._sum_s += seconds
        if seconds >= EXEMPLAR_FROM_S:
            self._examples[bucket] = Exemplar({"request_id": request_id}, seconds, time_ns() / 1e9)

    def show(self, family: HistogramMetricFamily, labels: list[str]) -> None:
        """Add the buckets to what is scraped."""
        buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
        below = 0
        for number, bound in enumerate(_BOUNDS):
            below += self._counts[number]
            example = self._examples.get(number)
            buckets.append((bound, below, example) if example else (bound, below))
        family.add_metric(labels, buckets, self._sum_s)


class UpstreamTally:
    """What is counted for the requests of one upstream."""

    __slots__ = ("first_byte", "queue_wait", "tokens_in", "tokens_out", "total")

    def __init__(self) -> None:
        self.queue_wait = Durations()
        self.first_byte = Durations()
        self.total = Durations()
        self.tokens_in = self.tokens_out = 0


class RequestTallies(Collector):
    """Counts requests that ended, by how, and for how long they took."""

    def __init__(self) -> None:
        self._ended: dict[tuple[str, str], dict[str, int]] = {}
        self._upstreams: dict[str, UpstreamTally] = {}
        self._since_s = time_ns() / 1e9

    def of(self, upstream: str) -> UpstreamTally:
        """Return the tally of an upstream."""
        tally = self._upstreams.get(upstream)
        if tally is None:
            tally = self._upstreams[upstream] = UpstreamTally()
        return tally

    def ended(self, surface: str, upstream: str) -> dict[str, int]:
        """Return how many have ended, by outcome, each of which is there from 0 on."""
        counts = self._ended.get((surface, upstream))
        if counts is None:
            counts = {outcome.label: 0 for outcome in Outcome}
            self._ended[surface, upstream] = counts
        return counts

    def collect(self) -> Iterable[Metric]:
        """Yield what was counted."""
        requests = CounterMetricFamily(
            "frontdoor_requests",
            "Requests that ended, by how",
            labels=["surface", "upstream", "outcome"],
        )
        for (surface, upstream), counts in self._ended.items():
            for outcome, count in counts.items():
                requests.add_metric([surface, upstream, outcome], count, self._since_s)
        yield requests
        yield from self._durations()
        tokens = CounterMetricFamily(
            "frontdoor_tokens",
            "Tokens, as far as engines tell them",
            labels=["upstream", "kind"],
        )
        for upstream, tally in self._upstreams.items():
            tokens.add_metric([upstream, "prompt"], tally.tokens_in, self._since_s)
            tokens.add_metric([upstream, "completion"], tally.tokens_out, self._since_s)
        yield tokens

    def _durations(self) -> Iterator[HistogramMetricFamily]:
        waits = _histogram("frontdoor_queue_wait_seconds", "Time in the queue")
        first_bytes = _histogram(
            "frontdoor_first_byte_seconds", "From arrival to the first byte of the answer"
        )
        totals = _histogram("frontdoor_request_seconds", "From arrival to the end of the answer")
        for upstream, tally in self._upstreams.items():
            for family, durations in (
                (waits, tally.queue_wait),
                (first_bytes, tally.first_byte),
                (totals, tally.total),
            ):
                durations.show(family, [upstream])
                family.add_sample(f"{family.name}_created", {"upstream": upstream}, self._since_s)
        yield from (waits, first_bytes, totals)


def _histogram(name: str, help_text: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, help_text, labels=["upstream"])
