"""What is read at the moment of a scrape: the gates, and how many lines the log has lost.

None of it is kept alongside the truth, so that none can drift from it.
"""

from collections.abc import Callable, Iterable
from itertools import product
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tornado_frontdoor.proxy.logs import LineSink, LogWriter


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
    returns_expected: int = 0
    returns_kept: int = 0
    came_back: int = 0
    stayed_away: int = 0
    replicas: tuple[tuple[str, int, bool], ...] = ()
    """Where there are several: address, slots taken, and whether it is picked for newcomers."""
    replica_states: tuple[tuple[str, str], ...] = ()
    """Where each of several sleeps by itself: address and state."""
    orders: tuple[tuple[str, str], ...] = ()
    """What holds it awake or asleep: kind and owner."""


class GateGauges(Collector):
    """Reads every gate at scrape time."""

    def __init__(
        self, readings: Callable[[], Iterable[GateReading]], state_names: tuple[str, ...]
    ) -> None:
        self._readings = readings
        self._state_names = state_names

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the gauges, and what gates have counted."""
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
        expected = _gauge(
            "frontdoor_returns_expected",
            "Refused callers who were told when to come back, and whose time has not passed",
        )
        kept = _gauge(
            "frontdoor_return_places_kept", "Places of the queue that are kept for them now"
        )
        returns = CounterMetricFamily(
            "frontdoor_returns",
            "Refused callers who came back when they were told, or did not",
            labels=["upstream", "result"],
        )
        state = GaugeMetricFamily(
            "frontdoor_engine_state",
            "1 for the state the engine is in",
            labels=["upstream", "state"],
        )
        taken = GaugeMetricFamily(
            "frontdoor_replica_slots_taken",
            "Slots in flight or cooling at one of several engines",
            labels=["upstream", "replica"],
        )
        available = GaugeMetricFamily(
            "frontdoor_replica_available",
            "1 where newcomers are sent to this one of several engines",
            labels=["upstream", "replica"],
        )
        of_replica = GaugeMetricFamily(
            "frontdoor_replica_state",
            "1 for the state that this one of several engines that sleep is in",
            labels=["upstream", "replica", "state"],
        )
        orders = GaugeMetricFamily(
            "frontdoor_standing_orders",
            "1 for each order that holds the engine awake or asleep",
            labels=["upstream", "kind", "owner"],
        )
        for reading in self._readings():
            key = [reading.upstream]
            for kind, owner in reading.orders:
                orders.add_metric([reading.upstream, kind, owner], 1.0)
            for replica, used, picked in reading.replicas:
                taken.add_metric([reading.upstream, replica], used)
                available.add_metric([reading.upstream, replica], float(picked))
            for (replica, now), name in product(reading.replica_states, self._state_names):
                of_replica.add_metric([reading.upstream, replica, name], float(name == now))
            in_flight.add_metric(key, reading.in_flight)
            cooling.add_metric(key, reading.cooling)
            depth.add_metric(key, reading.queued)
            limit.add_metric(key, reading.queue)
            oldest.add_metric(key, reading.oldest_wait_s)
            expected.add_metric(key, reading.returns_expected)
            kept.add_metric(key, reading.returns_kept)
            returns.add_metric([reading.upstream, "came_back"], reading.came_back)
            returns.add_metric([reading.upstream, "stayed_away"], reading.stayed_away)
            if reading.cap is not None:
                cap.add_metric(key, reading.cap)
            for name in self._state_names:
                state.add_metric([reading.upstream, name], float(name == reading.state))
        yield from (taken, available, of_replica, orders, expected, kept, returns)
        yield from (in_flight, cooling, cap, depth, limit, oldest, state)


class LogCounters(Collector):
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
