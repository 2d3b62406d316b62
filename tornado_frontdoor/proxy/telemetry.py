"""What an operator sees: one access line for each request, and Prometheus metrics.

Counters grow when a request ends (those of each request: `tallies.py`); what is read at a scrape is
in `gauges.py`.
"""

import asyncio
import gzip
import platform
from collections.abc import Callable, Iterable, Mapping
from itertools import permutations, product
from time import monotonic, time_ns
from typing import Any, Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
)
from prometheus_client.exposition import choose_encoder

from tornado_frontdoor.core.decisions import (
    EngineState,
    FellAsleep,
    Outcome,
    SleepDepth,
    SleepReason,
    WakeEnded,
)
from tornado_frontdoor.core.request import CanonicalRequest
from tornado_frontdoor.engines.base import STOPPED
from tornado_frontdoor.proxy.gauges import GateGauges, GateReading, LogCounters
from tornado_frontdoor.proxy.logs import LineSink, now, writer_of
from tornado_frontdoor.proxy.records import Record
from tornado_frontdoor.proxy.tallies import BUCKETS_S, RequestTallies

SLEEP_LEVEL = {1: "1", 2: "2", STOPPED: "stopped"}


EDGE_REFUSALS = (
    *(("public", "key"), ("public", "malformed"), ("public", "tls")),
    *(("admin", "token"), ("admin", "host"), ("admin", "origin"), ("admin", "malformed")),
)
"""Who refuses a call by its head, and for what."""


class Tracer(Protocol):
    """Who makes spans of requests."""

    def begin(self, record: Record, request: CanonicalRequest) -> CanonicalRequest:
        """Take a request that comes; returns what its engine is to be asked."""
        ...

    def ended(self, record: Record, outcome: Outcome, total_s: float) -> None:
        """Take one that has ended."""
        ...


class Telemetry:
    """Counts what ended and writes its line. `state_names` are the values of the state gauge."""

    def __init__(
        self,
        access_log: LineSink,
        readings: Callable[[], Iterable[GateReading]],
        state_names: tuple[str, ...],
        version: str,
    ) -> None:
        self._write = writer_of(access_log)
        self.registry = CollectorRegistry()
        self.registry.register(GateGauges(readings, state_names))
        self.registry.register(LogCounters(access_log))
        ProcessCollector(registry=self.registry)
        Gauge(
            "frontdoor_asyncio_tasks",
            "Tasks on the event loop now: one for each connection of a client, and few besides",
            registry=self.registry,
        ).set_function(_count_tasks)
        self._tallies = RequestTallies()
        self.registry.register(self._tallies)
        self._edge_refusals = Counter(
            "frontdoor_edge_refusals_total",
            "Calls refused by their heads: wrong tokens, foreign hosts and pages, no HTTP at all",
            ["listener", "reason"],
            registry=self.registry,
        )
        self._by_key = Counter(
            "frontdoor_key_requests_total",
            "Requests that ended, by whose key they brought",
            ["key", "outcome"],
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
        self._sleeps = Counter(
            "frontdoor_sleeps_total",
            "Engines that fell asleep, by how deep and by whose wish",
            ["upstream", "level", "reason"],
            registry=self.registry,
        )
        self._evictions = Counter(
            "frontdoor_evictions_total",
            "Engines that were put to sleep so that another one fits on the GPU",
            ["upstream", "for"],
            registry=self.registry,
        )
        self._canaries = Counter(
            "frontdoor_canaries_total",
            "Canaries, by what they have shown",
            ["upstream", "result"],
            registry=self.registry,
        )
        self._out_of_memory = Counter(
            "frontdoor_out_of_memory_wakes_total",
            "Wakes that ended as a GPU was full",
            ["upstream"],
            registry=self.registry,
        )
        self._since_s: dict[str, float] = {}
        self.tracing: Tracer | None = None
        """Makes spans of requests, where they are wanted."""
        self.observers: list[Callable[[str, Any], None]] = []
        """Hear of each request that ended, and its line, and of each engine's state, as a dict."""
        build = Gauge(
            "frontdoor_build_info",
            "What runs; always 1",
            ["version", "python"],
            registry=self.registry,
        )
        build.labels(version, platform.python_version()).set(1)
        self._reload_went_well = Gauge(
            "frontdoor_config_last_reload_successful",
            "1 where the file that was read last is in force",
            registry=self.registry,
        )
        self._reloaded_at = Gauge(
            "frontdoor_config_last_reload_success_timestamp_seconds",
            "When the configuration in force was read",
            registry=self.registry,
        )

    def know(
        self, surfaces: Iterable[str], upstreams: Mapping[str, bool], keys: Iterable[str] = ()
    ) -> None:
        """Let every counter exist from 0 on; `upstreams` says of each whether it can sleep.

        A counter that appears with its first failure has no rate for it.
        """
        for surface, upstream in product((*surfaces, ""), (*upstreams, "")):
            self._tallies.ended(surface, upstream)
        for key, outcome in product(keys, Outcome):
            self._by_key.labels(key, outcome.label)
        for listener, reason in EDGE_REFUSALS:
            self._edge_refusals.labels(listener, reason)
        for upstream in upstreams:
            self._tallies.of(upstream)
        sleepers = [upstream for upstream, sleeps in upstreams.items() if sleeps]
        for pair in permutations(sleepers, 2):
            self._evictions.labels(*pair)
        for upstream in sleepers:
            self._know_sleeper(upstream)

    def _know_sleeper(self, upstream: str) -> None:
        self._out_of_memory.labels(upstream)
        for depth in SleepDepth:
            self._wake_seconds.labels(upstream, depth.value)
            for result in ("succeeded", "failed"):
                self._wakes.labels(upstream, depth.value, result)
        for level, reason in product(SLEEP_LEVEL.values(), SleepReason):
            self._sleeps.labels(upstream, level, reason.value)

    def reloaded(self, *, went_well: bool) -> None:
        """Take that the configuration was read."""
        self._reload_went_well.set(went_well)
        if went_well:
            self._reloaded_at.set(time_ns() / 1e9)

    def record(self, record: Record, outcome: Outcome) -> None:
        """Count a request that has ended and write its access line."""
        line = record.line(outcome, now())
        upstream = record.upstream
        self._tallies.ended(record.surface, upstream or "")[outcome.label] += 1
        if record.known_key is not None:
            self._by_key.labels(record.known_key, outcome.label).inc()
        if upstream is not None:
            tally = self._tallies.of(upstream)
            tally.queue_wait.observe(record.waited_s)
            tally.total.observe_of(line.total_s, record.request_id)
            if record.first_byte_s is not None:
                tally.first_byte.observe(record.first_byte_s)
            tally.tokens_in += record.tokens_in or 0
            tally.tokens_out += record.tokens_out or 0
        self._write(line)
        if self.tracing is not None:
            self.tracing.ended(record, outcome, line.total_s)
        for observe in self.observers:
            observe("request", line)

    def refused_at_edge(self, listener: str, reason: str) -> None:
        """Count what was refused before anybody looked at what it asks for."""
        self._edge_refusals.labels(listener, reason).inc()

    def wake_ended(self, upstream: str, ended: WakeEnded) -> None:
        """Count a wake."""
        result = "succeeded" if ended.succeeded else "failed"
        self._wakes.labels(upstream, ended.depth.value, result).inc()
        if ended.succeeded:
            self._wake_seconds.labels(upstream, ended.depth.value).observe(ended.took_s)

    def fell_asleep(self, upstream: str, asleep: FellAsleep) -> None:
        """Count a sleep, and for whom it made room."""
        level = SLEEP_LEVEL.get(asleep.level, "unknown")
        self._sleeps.labels(upstream, level, asleep.reason.value).inc()
        if asleep.room_for:
            self._evictions.labels(upstream, asleep.room_for).inc()

    def canary_ended(self, upstream: str, result: str) -> None:
        """Count a canary."""
        self._canaries.labels(upstream, result).inc()

    def out_of_memory(self, upstream: str) -> None:
        """Count a wake that ended as a GPU was full."""
        self._out_of_memory.labels(upstream).inc()

    def engine_changed(self, upstream: str, state: EngineState) -> None:
        """Tell whoever looks of every state."""
        self._since_s[upstream] = monotonic()
        for observe in self.observers:
            observe("engine", {"time": now(), "upstream": upstream, "state": state.value})

    def state_since_s(self, upstream: str) -> float | None:
        """Return for how long an engine has been as it is; None where it never changed."""
        since_s = self._since_s.get(upstream)
        return None if since_s is None else round(monotonic() - since_s, 1)

    def scrape(self, accept: str = "", encodings: str = "") -> tuple[bytes, list[tuple[str, str]]]:
        """Return all metrics as text and its headers; OpenMetrics, gzip where they are taken."""
        encoder, content_type = choose_encoder(accept)
        body = encoder(self.registry)
        headers = [("Content-Type", content_type), ("Vary", "Accept, Accept-Encoding")]
        if "gzip" in encodings:
            return gzip.compress(body, 1), [*headers, ("Content-Encoding", "gzip")]
        return body, headers


def _count_tasks() -> float:
    return len(asyncio.all_tasks())
