"""What a study is asked: points that differ in their limits only, and how to compute them."""

from dataclasses import dataclass
from pathlib import Path

from simulator.model.scenario import Scenario
from simulator.study.experiment import Plan
from simulator.traffic.access_log import AccessLog


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRequest:
    """What is asked: points that differ in their limits only, and how to compute them."""

    scenarios: tuple[Scenario, ...]
    plan: Plan
    traffic: dict[str, object]
    """The traffic in words, for the report."""
    json: bool = False
    plot: Path | None = None
    slo: dict[str, float]
    headroom: float = 0.0
    """So much more traffic a recommended point must bear."""
    log: AccessLog | None = None
    judged: str = ""
    """What of the traffic replications are, where they are parts of it."""

    @property
    def told(self) -> str:
        """What was read of a trace and what was left out; empty where there is none."""
        return str(getattr(self.scenarios[0].arrivals, "told", ""))
