"""The simulator's prediction beside what was measured, in standard errors of one such run.

The same cap, line, limit, rate and holds go through `frontdoor simulate`, in many replications of
as many requests as the run had, from an empty start like its own: their spread is the sampling
error of the run, whatever the requests have to do with one another. Beside them stand the exact
values where theory has them: those of a run without end.
"""

import json
import math
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtrit

from loadtests.harness.processes import FRONTDOOR, ROOT
from loadtests.harness.scenarios import StandInEngine

REPLICATIONS = 200
ERRORS_ALLOWED = 4.0
TIMEOUT_S = 300


class UnavailableError(Exception):
    """There is no prediction, and why."""


@dataclass(frozen=True, slots=True)
class Row:
    """One number: measured, predicted, the standard error of one run, and exact for a long one."""

    name: str
    measured: float
    predicted: float
    error: float
    exact: float | None = None

    @property
    def errors(self) -> float:
        """The difference in standard errors."""
        difference = self.measured - self.predicted
        if self.error == 0:
            return 0.0 if math.isclose(difference, 0, abs_tol=1e-3) else math.inf
        return difference / self.error

    @property
    def agrees(self) -> bool:
        """Whether chance explains the difference."""
        return abs(self.errors) <= ERRORS_ALLOWED


def predict(
    engine: StandInEngine,
    rate: float,
    hold: str,
    seed: int,
    summary: Mapping[str, Any],
    outcomes: Mapping[str, int],
) -> list[Row]:
    """Return measured against predicted; raises UnavailableError.

    `outcomes` are the front door's own: a client of Anthropic's dialect cannot tell a full queue
    from a wait in vain.
    """
    counts = summary["models"].get(engine.model, {})
    requests = sum(counts.values())
    if not counts.get("served"):
        raise UnavailableError(f"{engine.model} served nothing")
    document = _simulate(engine, rate, hold, requests, seed)
    measured = _measured(summary, engine.model, outcomes)
    scale = math.sqrt(REPLICATIONS) / float(stdtrit(REPLICATIONS - 1, 0.975))
    rows = []
    for name, value in measured.items():
        metric = document["metrics"].get(name)
        if metric is not None and metric["mean"] is not None:
            error = (metric["ci95"] or 0.0) * scale
            exact = document.get("exact", {}).get(name)
            rows.append(Row(name, value, metric["mean"], error, exact))
    return rows


def _measured(
    summary: Mapping[str, Any], model: str, outcomes: Mapping[str, int]
) -> dict[str, float]:
    counts, waits = summary["models"][model], summary["waits"][model]
    requests = sum(counts.values())
    return {
        "served_share": counts["served"] / requests,
        "rejected_share": outcomes["queue_full"] / requests,
        "timed_out_share": outcomes["queue_timeout"] / requests,
        "wait_mean_s": waits["mean"],
        "wait_p50_s": waits["p50"],
        "wait_p95_s": waits["p95"],
        "wait_p99_s": waits["p99"],
    }


def _simulate(engine: StandInEngine, rate: float, hold: str, requests: int, seed: int) -> Any:
    command = [
        *(*FRONTDOOR, "simulate", "--cap", str(engine.cap), "--queue", str(engine.queue)),
        *("--timeout", f"{engine.queue_timeout_s:g}", "--slots", str(engine.slots)),
        *("--rate", f"{rate:g}", "--service", hold if ":" in hold else f"hold:{hold}"),
        *("--requests", str(requests), "--warmup", "0", "--reps", str(REPLICATIONS)),
        *("--seed", str(seed), "--json"),
    ]
    try:
        answer = subprocess.run(  # noqa: S603 - our own command
            command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"frontdoor simulate took more than {TIMEOUT_S} s") from None
    if answer.returncode == 2:
        raise UnavailableError("this front door has no simulate that takes these options")
    if answer.returncode != 0:
        raise UnavailableError(f"frontdoor simulate failed: {answer.stderr.strip()[-200:]}")
    try:
        return json.loads(answer.stdout)
    except ValueError:
        raise UnavailableError("frontdoor simulate printed no JSON") from None
