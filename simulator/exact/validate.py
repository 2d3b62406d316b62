"""The simulator beside exact theory: cases, their exact values, and the distance in sigmas.

Rule 1: a case is a scenario and exact values of its metrics, by the metrics' names.
Rule 2: beyond `LIMIT` sigmas a value is wrong. With a fixed seed the answer does not depend on the
        day: a version passes or it does not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import exp, inf

from scipy.special import ndtri

from simulator.exact.closed_form import BoundedQueue, endless_queue_timed_out, erlang_b, idle_tiers
from simulator.exact.markov_chains import (
    closed_loop,
    constant_service_wait,
    falling_speed,
    gamma_arrivals,
    modulated_arrivals,
    retrials,
    two_replicas_at_random,
)
from simulator.model.scenario import Scenario, Tiers
from simulator.study.experiment import Result
from simulator.study.statistics import sigmas
from simulator.traffic.distributions import Distribution
from simulator.traffic.retries import Retry
from simulator.traffic.service import Service
from simulator.traffic.workload import Closed, Modulated, Renewal

LIMIT = 4.0

CAP, QUEUE, MEAN_S = 6, 8, 2.0
ENDLESS = 100_000
EXP = Service(seconds=Distribution("exp", MEAN_S))


@dataclass(frozen=True, slots=True)
class Case:
    """One scenario and what theory says about it."""

    name: str
    scenario: Scenario
    exact: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Finding:
    """One metric of one case."""

    case: str
    metric: str
    exact: float
    simulated: float | None
    sigmas: float

    @property
    def wrong(self) -> bool:
        """Whether chance does not explain the difference."""
        return abs(self.sigmas) > LIMIT

    @property
    def relative(self) -> float | None:
        """The difference as a share of the exact value."""
        if self.simulated is None or not self.exact:
            return None
        return self.simulated / self.exact - 1


def findings(case: Case, result: Result) -> list[Finding]:
    """Return the comparison of every metric that has an exact value."""
    return [
        Finding(
            case.name,
            metric,
            exact,
            result.estimate(metric).mean,
            _off(result, metric, exact),
        )
        for metric, exact in case.exact.items()
    ]


def _off(result: Result, metric: str, exact: float) -> float:
    """Return the distance in sigmas; of what never happened, by the chance that it does not."""
    values = result.values(metric)
    if metric.endswith("_share") and exact > 0 and not any(values):
        expected = exact * result.counts()["offered"]
        return float(ndtri(exp(-expected)))
    return sigmas(values, exact)


def cases(requests: int, *, full: bool) -> list[Case]:
    """Return the cases to run, each with `requests` requests in a replication."""
    base = Scenario(
        cap=CAP,
        queue=QUEUE,
        timeout_s=inf,
        arrivals=Renewal(rate=CAP / MEAN_S),
        service=EXP,
        requests=requests,
        warmup=max(requests // 20, 500),
    )
    return [
        *_lines(base, full=full),
        *_insensitive(base),
        *_endless(base),
        *_batches(base),
        *_arrivals(base, full=full),
        *_retrials(base, full=full),
        *_replicas(base, full=full),
        *_tiers(base),
    ]


def _lines(base: Scenario, *, full: bool) -> Iterator[Case]:
    loads = (0.5, 0.8, 0.95, 1.2, 2.0) if full else (0.8, 1.2)
    timeouts_s = (inf, 1.0, 3.0, 5.0) if full else (inf, 3.0)
    for load in loads:
        for timeout_s in timeouts_s:
            rate = load * CAP / MEAN_S
            line = BoundedQueue(CAP, QUEUE, rate, MEAN_S, timeout_s)
            told = "no timeout" if timeout_s == inf else f"timeout {timeout_s:g} s"
            yield Case(
                f"M/M/6/14, load {load:g}, {told}",
                replace(base, arrivals=Renewal(rate=rate), timeout_s=timeout_s),
                line.metrics(),
            )


def _insensitive(base: Scenario) -> Iterator[Case]:
    exact = {"rejected_share": erlang_b(CAP, 4.8)}
    for law in (
        Distribution("const", MEAN_S),
        Distribution("exp", MEAN_S),
        Distribution("lognormal", MEAN_S, 1.0),
    ):
        scenario = replace(base, queue=0, arrivals=Renewal(rate=2.4), service=Service(seconds=law))
        yield Case(f"Erlang B, service {law}", scenario, exact)


def _endless(base: Scenario) -> Iterator[Case]:
    scenario = replace(base, queue=ENDLESS, arrivals=Renewal(rate=2.4))
    lost = endless_queue_timed_out(CAP, 2.4, MEAN_S, 3.0)
    yield Case("M/M/6+D, 3 s", replace(scenario, timeout_s=3.0), {"timed_out_share": lost})
    _, wait_s = constant_service_wait(CAP, 2.4, MEAN_S)
    constant = replace(scenario, service=Service(seconds=Distribution("const", MEAN_S)))
    yield Case("M/D/6", constant, {"wait_mean_s": wait_s})


def _batches(base: Scenario) -> Iterator[Case]:
    slowdown = 0.05

    def speed(batch: int) -> float:
        return 1 / (1 + slowdown * (batch - 1))

    scenario = replace(base, arrivals=Renewal(rate=2.4))
    flow = falling_speed(CAP, QUEUE, 2.4, MEAN_S, speed)
    yield Case(
        "speed falls with the batch",
        replace(scenario, service=replace(EXP, slowdown=slowdown)),
        {
            "rejected_share": flow.rejected,
            "goodput_per_s": flow.goodput_per_s,
            "wait_mean_s": flow.wait_mean_s,
        },
    )
    lost = falling_speed(CAP, 0, 2.4, MEAN_S, speed).rejected
    for law in (Distribution("const", MEAN_S), Distribution("lognormal", MEAN_S, 1.0)):
        yield Case(
            f"speed falls with the batch, no line, work {law}",
            replace(scenario, queue=0, service=Service(seconds=law, slowdown=slowdown)),
            {"rejected_share": lost},
        )


def _arrivals(base: Scenario, *, full: bool) -> Iterator[Case]:
    for cv, load in ((2.0, 0.8), (0.5, 1.2), *(((2.0, 0.5), (0.5, 0.95)) if full else ())):
        rate = load * CAP / MEAN_S
        line = gamma_arrivals(CAP, QUEUE, rate, MEAN_S, cv)
        yield Case(
            f"Gamma arrivals, CV {cv:g}, load {load:g}",
            replace(base, arrivals=Renewal(rate=rate, cv=cv)),
            {"rejected_share": line.rejected, "wait_mean_s": line.wait_of_admitted_s},
        )
    flow = closed_loop(CAP, QUEUE, 20, 10.0, MEAN_S)
    yield Case(
        "closed loop of 20",
        replace(base, arrivals=Closed(clients=20, think_s=10.0)),
        {
            "goodput_per_s": flow.goodput_per_s,
            "utilization": flow.utilization,
            "wait_mean_s": flow.wait_mean_s,
        },
    )
    if full:
        low = 2.4 / (8 * 20 / 140 + 120 / 140)
        line = modulated_arrivals(CAP, QUEUE, (8 * low, low), (20.0, 120.0), MEAN_S)
        yield Case(
            "MMPP arrivals, load 0.8",
            replace(base, arrivals=Modulated(rate=2.4, ratio=8, high_s=20, low_s=120)),
            {"rejected_share": line.rejected, "wait_mean_s": line.wait_of_admitted_s},
        )


def _retrials(base: Scenario, *, full: bool) -> Iterator[Case]:
    for load, chance in ((0.8, 0.8), *(((0.8, 1.0), (0.5, 1.0)) if full else ())):
        rate = load * CAP / MEAN_S
        law = retrials(CAP, QUEUE, rate, MEAN_S, 10.0, chance)
        retry = Retry(kind="exp", pause_s=10.0, chance=chance)
        yield Case(
            f"retrials, load {load:g}, each with chance {chance:g}",
            replace(base, arrivals=Renewal(rate=rate), retry=retry),
            {
                "first_attempt_refused_share": law.first_rejected,
                "attempt_refused_share": law.attempt_rejected,
                "attempts_per_request": law.attempts_per_request,
                "served_share": law.finally_served,
            },
        )


def _replicas(base: Scenario, *, full: bool) -> Iterator[Case]:
    scenario = replace(base, arrivals=Renewal(rate=2.4), replicas=2, slots=4)
    for cap in (5, 6, 7, 8) if full else (6,):
        law = two_replicas_at_random(cap, QUEUE, 4, 2.4, MEAN_S)
        yield Case(
            f"two replicas of 4 at random, cap {cap}",
            replace(scenario, cap=cap, balancing="random"),
            {
                "rejected_share": law.rejected,
                "hidden_wait_mean_s": law.hidden_wait_mean_s,
                "wait_mean_s": law.wait_mean_s,
            },
        )
    line = BoundedQueue(CAP, QUEUE, 2.4, MEAN_S)
    yield Case(
        "two replicas of 4, least outstanding, cap 6",
        replace(scenario, balancing="least", service=replace(EXP, slowdown=1e-12)),
        {"rejected_share": line.rejected, "hidden_wait_mean_s": 0.0},
    )


def _tiers(base: Scenario) -> Iterator[Case]:
    for rate_per_h in (2.0, 0.5):
        shares = idle_tiers(rate_per_h, (900.0, 10800.0))
        yield Case(
            f"idle tiers, {rate_per_h:g} requests an hour",
            replace(
                base,
                arrivals=Renewal(rate=rate_per_h / 3600),
                service=Service(seconds=Distribution("const", 0.0)),
                tiers=Tiers(idle_s=(900.0, 10800.0), wake_s=(0.0, 0.0), fall_s=(0.0, 0.0)),
            ),
            {
                "awake_share": shares.awake,
                "sleeping_share": shares.sleeping,
                "offloaded_share": shares.offloaded,
                "wakes_from_sleeping_per_h": shares.wakes_from_sleeping_per_h,
                "wakes_from_offloaded_per_h": shares.wakes_from_offloaded_per_h,
                "cold_share": shares.cold,
            },
        )
