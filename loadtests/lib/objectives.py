"""Objectives of a run, and whether they were met: `waited_p95_s=2.5,failed_share=0`.

Names are `VALUE_STATISTIC_s` (`total_p99_s`, `first_token_p50_s`, `gap_mean_s`, `waited_max_s`),
over all groups, or a share of all requests: `failed_share`, `refused_share`, `left_share`. A value
that is named `refused`, `left` or `failed` is how long such requests took.
"""

from dataclasses import dataclass

from loadtests.lib.samples import Samples, digest

VALUES = (
    *("total", "waited", "added", "first_token", "visible", "gap", "lag"),
    *("refused", "left", "failed"),
)
STATISTICS = ("mean", "p50", "p95", "p99", "max")
SHARES = ("failed", "refused", "left", "served")


@dataclass(frozen=True, slots=True)
class Objective:
    """A name and the most that it may be."""

    name: str
    most: float


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """What an objective came to; None: nothing was measured, which misses it."""

    objective: Objective
    value: float | None

    @property
    def met(self) -> bool:
        """Whether it was met."""
        return self.value is not None and self.value <= self.objective.most


def parse(text: str) -> list[Objective]:
    """Read objectives; raises ValueError that names the wrong one."""
    return [_parse(part.strip()) for part in text.split(",") if part.strip()]


def judge(objective: Objective, samples: Samples) -> ObjectiveResult:
    """Hold an objective against what was measured."""
    kind = objective.name.removesuffix("_share")
    if kind in SHARES:
        counts = samples.models.values()
        total = sum(sum(count.values()) for count in counts)
        value = sum(count[kind] for count in counts) / total if total else None
        return ObjectiveResult(objective, value)
    name, statistic = objective.name.removesuffix("_s").rsplit("_", 1)
    return ObjectiveResult(objective, digest(samples.together(name)).get(statistic))


def _parse(text: str) -> Objective:
    name, equals, most = text.partition("=")
    value, _, statistic = name.removesuffix("_s").rpartition("_")
    known = name.removesuffix("_share") in SHARES or (
        name.endswith("_s") and value in VALUES and statistic in STATISTICS
    )
    try:
        if equals and known:
            return Objective(name, float(most))
    except ValueError:
        pass
    raise ValueError(f"{text!r} is not NAME=MOST, as in waited_p95_s=2.5 or failed_share=0")
