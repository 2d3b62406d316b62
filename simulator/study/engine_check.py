"""A fitted engine held against a run that was measured: the same requests, simulated.

Rule 1: requests come when they came, and are as large as they were; nothing else is taken from the
        run that is foretold.
Rule 2: a value is right when it is inside the interval that the fit leaves open, or close.
Rule 3: a run through a front door has limits, so it also tells who was lost and how long the others
        waited; what it knows no size of, as it was refused, is as large as a random other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from simulator.model.scenario import Scenario
from simulator.study.experiment import Plan, experiment
from simulator.study.observed import observed_metrics
from simulator.traffic.access_log import AccessLog
from simulator.traffic.benchmarks import Timings
from simulator.traffic.distributions import Floats
from simulator.traffic.service import Rows, Service
from simulator.traffic.service_profiles import ServiceProfile
from simulator.traffic.workload import Replay

CLOSE, CLOSE_OF_FIRST_TOKENS = 0.05, 0.16
"""First tokens are known no better: the scheduler's turns, of which the model knows none, are a
larger part of them. Two recorded runs of vLLM 0.19 were met within 6 and 15 %."""
SHARES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


CLOSE_SHARE, CLOSE_WAIT_S = 0.01, 0.1
"""Of shares and waits, which may be 0: in themselves, not of what was measured."""


@dataclass(frozen=True, slots=True)
class EngineValue:
    """One value: measured, simulated, and within what the fit leaves it open.

    `close` is a share of what was measured, `close_by` a distance.
    """

    name: str
    measured: float
    simulated: float
    low: float
    high: float
    close: float = CLOSE
    close_by: float = 0.0

    @property
    def off(self) -> float:
        """How far off, as a share of what was measured."""
        return self.simulated / self.measured - 1 if self.measured else inf

    @property
    def right(self) -> bool:
        """Whether it is inside the interval, or close."""
        near = abs(self.simulated - self.measured) <= self.close_by
        return near or self.low <= self.measured <= self.high or abs(self.off) <= self.close


def check_engine(
    profile: ServiceProfile, run: Timings, slots: int, plan: Plan
) -> list[EngineValue]:
    """Return the latencies, first tokens and token times of a run beside the simulated ones."""
    order = np.argsort(run.came_s, kind="stable")
    came_s, prompt, output, first_s, last_s = (
        column[order] for column in (run.came_s, run.prompt, run.output, run.first_s, run.last_s)
    )
    world = Scenario(
        cap=slots,
        slots=slots,
        queue=len(came_s),
        timeout_s=inf,
        arrivals=Replay(rows=Rows(came_s - came_s[0], prompt, output)),
        service=Service(profile=profile),
    )
    (result,) = experiment([world], plan)
    token_s = (last_s - first_s) / np.maximum(output - 1, 1)
    measured: Sequence[tuple[str, str, Floats]] = (
        ("latency", "latency_{}_s", last_s - came_s),
        ("first token", "first_token_{}_s", first_s - came_s),
        ("a further token", "tpot_{}_s", token_s),
    )
    found = []
    for label, metric, values in measured:
        for name, share in SHARES if label != "a further token" else SHARES[:2]:
            made = result.estimate(metric.format(name))
            assert made.mean is not None
            taken = float(np.quantile(values, share))
            low, high = max(0.0, made.low), made.high
            if made.ci95 is None:
                low = high = made.mean
            close = CLOSE_OF_FIRST_TOKENS if label == "first token" else CLOSE
            found.append(EngineValue(f"{label}, {name}", taken, made.mean, low, high, close))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsOfLog:
    """The limits that a front door had while a log was written."""

    cap: int
    queue: int
    timeout_s: float


LOGGED = (
    ("lost", "lost_share"),
    *((f"latency, {name}", f"latency_{name}_s") for name, _ in SHARES),
    ("wait, mean", "wait_mean_s"),
    ("wait, p95", "wait_p95_s"),
)


def check_log(
    service: Service, log: AccessLog, rows: Rows, limits: LimitsOfLog, slots: int, plan: Plan
) -> list[EngineValue]:
    """Return what a log says happened beside what is simulated of its very requests."""
    world = Scenario(
        cap=limits.cap,
        slots=slots,
        queue=limits.queue,
        timeout_s=limits.timeout_s,
        arrivals=Replay(rows=rows),
        service=service,
    )
    (result,) = experiment([world], plan)
    observed = observed_metrics(log)
    found = []
    for label, metric in LOGGED:
        taken, made = observed[metric], result.estimate(metric)
        if taken is None or made.mean is None:
            continue
        low, high = (made.mean, made.mean) if made.ci95 is None else (made.low, made.high)
        near = CLOSE_SHARE if metric.endswith("_share") else CLOSE_WAIT_S
        by = 0.0 if metric.startswith("latency") else near
        found.append(EngineValue(label, taken, made.mean, max(0.0, low), high, close_by=by))
    return found
