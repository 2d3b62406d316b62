"""Results as JSON for scripts; the texts for people are in `pages.py`.

Rule 1: the JSON depends on scenario, seed and version only: no instant, no path of a program, no
        number of jobs and no driver is in it.
Rule 2: what is unknown or infinite is null; nothing is left out of what the contract lists.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite

from simulator.exact.known import exact_metrics
from simulator.model.records import Metrics
from simulator.model.scenario import Scenario
from simulator.study.capacity import kv_binds_at, load_of
from simulator.study.experiment import Plan, Result
from simulator.study.request import StudyRequest
from simulator.study.statistics import Estimate
from simulator.study.sweep import Choice, Point
from simulator.traffic.distributions import Distribution
from simulator.traffic.service import Service
from simulator.traffic.service_profiles import CHUNK_TOKENS

LISTED = (
    *("rejected_share", "timed_out_share", "served_share", "lost_share", "goodput_per_s"),
    *("utilization", "queue_length_mean"),
    *("wait_mean_s", "wait_p50_s", "wait_p95_s", "wait_p99_s"),
    *("latency_p50_s", "latency_p95_s", "latency_p99_s"),
    *("in_flight_max", "queue_depth_max", "hidden_wait_mean_s", "attempts_per_request"),
)
"""The contract's metrics, in its order; others follow."""


def service_text(service: Service) -> str:
    """Return a service law as it is written in an option."""
    if service.recorded:
        return "as recorded"
    if service.profile is not None:
        return f"profile:{service.profile.name}"
    assert service.seconds is not None
    return str(service.seconds).replace("const:", "hold:")


def parameters(scenario: Scenario, traffic: Mapping[str, object]) -> dict[str, object]:
    """Return every parameter that was used, whether it was given or not."""
    service = scenario.service
    used: dict[str, object] = {
        "cap": scenario.cap,
        "queue": scenario.queue,
        "timeout_s": _finite(scenario.timeout_s),
        **traffic,
        "service": service_text(service),
        "service_alone_mean_s": service.mean_alone_s,
        "slowdown": service.slowdown,
        "slowdown_ci95": 1.96 * service.slowdown_error,
        "slots": scenario.slots,
        "replicas": scenario.replicas,
        "pick": scenario.balancing,
        "retry": str(scenario.retry),
        **_returning(scenario),
        **_by_key(scenario),
        "patience": _law_text(scenario.patience),
        **({} if scenario.patience_told == "no" else {"patience_told": scenario.patience_told}),
        "hang_up": scenario.hang_up,
        "cooling_s": scenario.cooling_s,
        "cooling_limit_s": scenario.cooling_limit_s,
        "sleep_s": None,
        "wake_s": None,
        "fall_s": None,
        "hold_limit_s": None,
        "requests": scenario.requests,
        "warmup": scenario.warmup,
    }
    if scenario.each is not None:
        limits = asdict(scenario.each)
        used["each"] = {name: limit for name, limit in limits.items() if isfinite(limit)}
    if scenario.gpu_cost_per_h:
        used["gpu_cost_per_h"] = scenario.gpu_cost_per_h
    if (tiers := scenario.tiers) is not None:
        used |= {"sleep_s": list(tiers.idle_s), "wake_s": list(tiers.wake_s)}
        used |= {"fall_s": list(tiers.fall_s), "hold_limit_s": list(tiers.hold_s)}
    if (profile := service.profile) is not None:
        recorded = scenario.arrivals.has_sizes
        used["prompt_tokens"] = "as recorded" if recorded else str(service.prompt)
        used["output_tokens"] = "as recorded" if recorded else str(service.output)
        used["profile_source"] = profile.source
        if profile.chunk_tokens != CHUNK_TOKENS:
            used["max_num_batched_tokens"] = profile.chunk_tokens
        used |= profile.details.document
    used |= service.pace.document
    if service.source:
        used["profile_source"] = service.source
    return used


def _law_text(law: Distribution) -> str:
    return str(law) if isfinite(law.mean) else "none"


def _by_key(scenario: Scenario) -> dict[str, object]:
    """Return what bears on keys; nothing where clients bring none."""
    if not scenario.keys:
        return {}
    return {
        "keys": ",".join(str(key) for key in scenario.keys),
        "shares": ",".join(f"{key.name}={key.share:g}" for key in scenario.keys),
        "fair_share": scenario.fair_share,
    }


def _returning(scenario: Scenario) -> dict[str, object]:
    """Return what bears on those who come back; nothing where nobody does."""
    if scenario.retry.kind == "none":
        return {}
    return {"advice": str(scenario.advice), "return_places": scenario.places_for_returns}


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def metrics_document(result: Result) -> dict[str, dict[str, float | None]]:
    """Return all metrics with their intervals: the listed ones first."""
    estimates = result.estimates()
    names = [*LISTED, *(name for name in estimates if name not in LISTED)]
    return {name: estimate_document(estimates[name]) for name in names}


def estimate_document(value: Estimate) -> dict[str, float | None]:
    """Return one estimate; the ends where its interval is lopsided."""
    ends = {} if value.ends is None else {"low": value.low, "high": value.high}
    return {"mean": value.mean, "ci95": value.ci95, **ends}


def load_document(scenario: Scenario) -> dict[str, object]:
    """Return what is offered, what can be served at most, and whether that is too much."""
    load = load_of(scenario)
    return {
        "offered_per_s": load.offered_per_s,
        "served_at_most_per_s": load.served_at_most_per_s,
        "overloaded": load.overloaded,
        **({} if (binds := kv_binds_at(scenario)) is None else {"kv_binds_at_cap": binds}),
    }


def simulate_document(command: StudyRequest, result: Result) -> dict[str, object]:
    """Return what `simulate --json` prints."""
    scenario = command.scenarios[0]
    document: dict[str, object] = {
        "parameters": parameters(scenario, command.traffic),
        **_sampling(command.plan),
        "load": load_document(scenario),
        "counts": result.counts(),
        "metrics": metrics_document(result),
    }
    if exact := exact_metrics(scenario):
        document["exact"] = exact
    if scenario.terminating:
        document["timeline"] = [list(entry) for entry in result.replications[0].timeline]
    return document


def _sampling(plan: Plan) -> dict[str, object]:
    return {"seed": plan.seed, "replications": plan.replications}


def sweep_document(command: StudyRequest, choice: Choice) -> dict[str, object]:
    """Return what `sweep --json` and `replay --json` print."""
    used = parameters(command.scenarios[0], command.traffic)
    for name in ("cap", "queue", "timeout_s"):
        del used[name]
    recommended = choice.recommended
    return {
        "parameters": used,
        **_sampling(command.plan),
        "slo": command.slo,
        "headroom": command.headroom,
        "points": [
            {
                **limits_document(point),
                "metrics": metrics_document(point.result),
                "load": load_document(point.scenario),
                "below_slots": point.allowed,
                "pareto": point.pareto,
                "keeps_limits": point.keeps_limits,
                "like_recommended": point.alike,
            }
            for point in choice.points
        ],
        "recommended": None if recommended is None else limits_document(recommended),
        "confidence": choice.confidence,
        "holds_with_headroom": choice.holds_with_headroom,
        "uncertain": choice.uncertain,
        "why": choice.why,
    }


def limits_document(point: Point) -> dict[str, object]:
    """Return the limits of a point."""
    scenario = point.scenario
    return {
        "cap": scenario.cap,
        "queue": scenario.queue,
        "timeout_s": _finite(scenario.timeout_s),
    }


def observed_document(observed: Metrics) -> dict[str, float | None]:
    """Return what a log says of itself."""
    return dict(observed)


def as_json(document: Mapping[str, object]) -> str:
    """Return the document as text; the same document gives the same bytes."""
    return json.dumps(document, indent=2, allow_nan=False)
