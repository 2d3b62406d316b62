"""What a log says happened, by the simulator's names, so that both can stand in one table.

Rule 1: whoever held a slot to the end of its answer, or of what came of it, counts as served here,
        as the replay takes the seconds that it took. Nobody is lost in one row and served in the
        other.
"""

from simulator.model.records import Metrics
from simulator.model.tally import Tally
from simulator.traffic.access_log import RAN, AccessLog


def observed_metrics(log: AccessLog) -> Metrics:
    """Return what the log says happened, by the simulator's names."""
    offered = len(log.outcomes)
    served = [at for at, outcome in enumerate(log.outcomes) if outcome in RAN]
    waits = Tally()
    latencies = Tally()
    assert log.rows.service_s is not None
    for at in served:
        waits.add(float(log.waits_s[at]))
        latencies.add(float(log.waits_s[at] + log.rows.service_s[at]))

    def share(*outcomes: str) -> float:
        return sum(outcome in outcomes for outcome in log.outcomes) / offered

    return {
        "rejected_share": share("queue_full"),
        "timed_out_share": share("queue_timeout"),
        "served_share": len(served) / offered,
        "lost_share": 1 - len(served) / offered,
        "left_share": share("client_gone_queued"),
        "wait_mean_s": waits.mean,
        **_named("wait", waits),
        **_named("latency", latencies),
    }


def _named(name: str, tally: Tally) -> Metrics:
    p50, p95, p99 = tally.percentiles((0.5, 0.95, 0.99))
    return {f"{name}_p50_s": p50, f"{name}_p95_s": p95, f"{name}_p99_s": p99}
