"""Which scenarios theory knows the answers of: `exact_metrics` has them by the metrics' names."""

from math import inf, isfinite

from simulator.exact.closed_form import BoundedQueue
from simulator.model.scenario import Scenario
from simulator.traffic.workload import Renewal


def exact_metrics(scenario: Scenario) -> dict[str, float]:
    """Return the exact values where theory has them: M/M/c/K+D and nothing besides."""
    arrivals, service = scenario.arrivals, scenario.service
    plain = (
        isinstance(arrivals, Renewal)
        and arrivals.cv == 1
        and scenario.always_has_slots
        and scenario.retry.kind == "none"
        and not scenario.patience.random
        and scenario.patience.mean == inf
        and not scenario.hang_up
        and (scenario.tiers is None or not scenario.tiers.sleeps)
        and not scenario.fair_share
    )
    if not plain or service.seconds is None or service.seconds.kind != "exp":
        return {}
    assert isinstance(arrivals, Renewal)
    queue = BoundedQueue(
        scenario.cap, scenario.queue, arrivals.rate, service.seconds.mean, scenario.timeout_s
    )
    exact = queue.metrics()
    return exact if all(isfinite(value) for value in exact.values()) else {}
