"""What an operator sees: one access line for each request, and Prometheus metrics.

Counters and histograms grow when a request ends. Gauges are not kept: they are read from the gates
when somebody scrapes, so that they cannot drift from the truth.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from time import monotonic
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tornado_frontdoor.core.decisions import Outcome, WakeEnded
from tornado_frontdoor.core.printable import printable
from tornado_frontdoor.proxy.logs import LineSink, LogWriter, access_line, now

BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)


class GateReading(NamedTuple):
    """One gate as it is at this moment, for gauges."""

    upstream: str
    in_flight: int
    cooling: int
    cap: int | None
    queued: int
    queue: int
    state: str
    oldest_wait_s: float


class Record:
    """What is known of one request when it ends. Times in seconds."""

    __slots__ = (
        "arrived_s",
        "bytes_in",
        "bytes_out",
        "first_byte_s",
        "held_s",
        "model",
        "request_id",
        "status",
        "stream",
        "surface",
        "upstream",
        "waited_s",
        "weight",
    )

    def __init__(self, request_id: str, surface: str, arrived_s: float) -> None:
        self.request_id = request_id
        self.surface = surface
        self.arrived_s = arrived_s
        self.model: str | None = None
        self.upstream: str | None = None
        self.status = 0
        self.stream = False
        self.weight = 0
        self.waited_s = 0.0
        self.held_s = 0.0
        self.first_byte_s: float | None = None
        self.bytes_in = 0
        self.bytes_out = 0


class Telemetry:
    """Counts what ended and writes its line. `state_names` are the values of the state gauge."""

    def __init__(
        self,
        access_log: LineSink,
        readings: Callable[[], Iterable[GateReading]],
        state_names: tuple[str, ...],
    ) -> None:
        self._access_log = access_log
        self.registry = CollectorRegistry()
        self._style = access_log.style if isinstance(access_log, LogWriter) else "json"
        self.registry.register(_GateGauges(readings, state_names))
        self.registry.register(_LogCounters(access_log))
        ProcessCollector(registry=self.registry)
        Gauge(
            "frontdoor_asyncio_tasks",
            "Tasks on the event loop now: one for each connection of a client, and few besides",
            registry=self.registry,
        ).set_function(_count_tasks)
        self._requests = Counter(
            "frontdoor_requests_total",
            "Requests that ended, by how",
            ["surface", "upstream", "outcome"],
            registry=self.registry,
        )
        self._queue_wait = self._histogram("frontdoor_queue_wait_seconds", "Time in the queue")
        self._first_byte = self._histogram(
            "frontdoor_first_byte_seconds", "From arrival to the first byte of the answer"
        )
        self._total = self._histogram(
            "frontdoor_request_seconds", "From arrival to the end of the answer"
        )

        self._edge_refusals = Counter(
            "frontdoor_edge_refusals_total",
            "Calls refused by their heads: wrong tokens, foreign hosts and pages, no HTTP at all",
            ["listener", "reason"],
            registry=self.registry,
        )
        self._wakes = Counter(
            "frontdoor_wakes_total",
            "Wakes that ended, by the depth they began at and by what came of them",
            ["upstream", "depth", "result"],
            registry=self.registry,
        )
        self._wake_seconds = Histogram(
            "frontdoor_wake_seconds",
            "How long wakes took that succeeded",
            ["upstream", "depth"],
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        # Finding a metric by its labels costs more than counting on it.
        self._count = cache(self._label_count)
        self._histograms = cache(self._label_histograms)

    def _histogram(self, name: str, help_text: str) -> Histogram:
        return Histogram(name, help_text, ["upstream"], buckets=BUCKETS_S, registry=self.registry)

    def _label_count(self, surface: str, upstream: str, outcome: Outcome) -> Counter:
        return self._requests.labels(surface, upstream, outcome.label)

    def _label_histograms(self, upstream: str) -> tuple[Histogram, Histogram, Histogram]:
        return (
            self._queue_wait.labels(upstream),
            self._first_byte.labels(upstream),
            self._total.labels(upstream),
        )

    def record(self, record: Record, outcome: Outcome) -> None:
        """Count a request that has ended and write its access line."""
        total_s = monotonic() - record.arrived_s
        self._count(record.surface, record.upstream or "", outcome).inc()
        if record.upstream is not None:
            queue_wait, first_byte, total = self._histograms(record.upstream)
            queue_wait.observe(record.waited_s)
            total.observe(total_s)
            if record.first_byte_s is not None:
                first_byte.observe(record.first_byte_s)
        line = {
            "request_id": record.request_id,
            "surface": record.surface,
            "model": None if record.model is None else printable(record.model),
            "upstream": record.upstream,
            "outcome": outcome.label,
            "code": outcome.code,
            "status": record.status,
            "waited_s": round(record.waited_s, 6),
            "held_s": round(record.held_s, 6),
            "first_byte_s": None if record.first_byte_s is None else round(record.first_byte_s, 6),
            "total_s": round(total_s, 6),
            "bytes_in": record.bytes_in,
            "bytes_out": record.bytes_out,
            "weight": record.weight,
            "stream": record.stream,
        }
        with suppress(OSError, ValueError):  # nobody reads it, or it is closed: requests go on
            self._access_log.write(access_line(self._style, now(), line))

    def refused_at_edge(self, listener: str, reason: str) -> None:
        """Count what was refused before anybody looked at what it asks for."""
        self._edge_refusals.labels(listener, reason).inc()

    def wake_ended(self, upstream: str, ended: WakeEnded) -> None:
        """Count a wake."""
        result = "succeeded" if ended.succeeded else "failed"
        self._wakes.labels(upstream, ended.depth.value, result).inc()
        if ended.succeeded:
            self._wake_seconds.labels(upstream, ended.depth.value).observe(ended.took_s)

    def scrape(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


def _count_tasks() -> float:
    return len(asyncio.all_tasks())


class _GateGauges(Collector):
    """Reads every gate at scrape time."""

    def __init__(
        self, readings: Callable[[], Iterable[GateReading]], state_names: tuple[str, ...]
    ) -> None:
        self._readings = readings
        self._state_names = state_names

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield the gauges."""
        in_flight = _gauge("frontdoor_in_flight", "Slots of requests that are under way now")
        cooling = _gauge(
            "frontdoor_cooling", "Slots of requests that were broken off, until the engine lets go"
        )
        cap = _gauge("frontdoor_cap", "Slots that may be taken; absent where there is no cap")
        depth = _gauge("frontdoor_queue_depth", "Requests that wait now")
        limit = _gauge("frontdoor_queue_limit", "Places in the queue")
        oldest = _gauge(
            "frontdoor_queue_oldest_wait_seconds",
            "How long the one in the queue waits who has waited longest; 0: nobody waits",
        )
        state = GaugeMetricFamily(
            "frontdoor_engine_state",
            "1 for the state the engine is in",
            labels=["upstream", "state"],
        )
        for reading in self._readings():
            key = [reading.upstream]
            in_flight.add_metric(key, reading.in_flight)
            cooling.add_metric(key, reading.cooling)
            depth.add_metric(key, reading.queued)
            limit.add_metric(key, reading.queue)
            oldest.add_metric(key, reading.oldest_wait_s)
            if reading.cap is not None:
                cap.add_metric(key, reading.cap)
            for name in self._state_names:
                state.add_metric([reading.upstream, name], float(name == reading.state))
        yield from (in_flight, cooling, cap, depth, limit, oldest, state)


class _LogCounters(Collector):
    """Reads at scrape time how many lines were lost."""

    def __init__(self, log: LineSink) -> None:
        self._log = log

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Yield the counter."""
        dropped = self._log.dropped if isinstance(self._log, LogWriter) else 0
        yield CounterMetricFamily(
            "frontdoor_log_lines_dropped", "Lines nobody read fast enough", value=dropped
        )


def _gauge(name: str, help_text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, labels=["upstream"])
