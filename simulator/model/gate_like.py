"""What the model drives: the real gate or a witness before it; what its wake machine is told."""

from collections.abc import Sequence
from typing import Protocol

from simulator.model.scenario import Tiers
from tornado_frontdoor.core.decisions import Decision, EngineState, Outcome
from tornado_frontdoor.core.replicas import Replicas
from tornado_frontdoor.core.request import Ticket
from tornado_frontdoor.core.wake.policy import SleepPolicy
from tornado_frontdoor.engines.base import Report


class GateLike(Protocol):
    """The part of `Gate` that the model drives; a witness may stand before the real one."""

    def arrive(self, ticket: Ticket) -> Sequence[Decision]:
        """See `Gate`."""
        ...

    def finish(self, ticket: Ticket, outcome: Outcome) -> Sequence[Decision]:
        """See `Gate`."""
        ...

    def cool(self, ticket: Ticket, outcome: Outcome) -> Sequence[Decision]:
        """See `Gate`."""
        ...

    def expire(self) -> Sequence[Decision]:
        """See `Gate`."""
        ...

    @property
    def cooling(self) -> int:
        """See `Gate`."""
        ...

    def next_deadline(self) -> float | None:
        """See `Gate`."""
        ...

    def report(self, report: Report, replica: str | None = None) -> Sequence[Decision]:
        """See `Gate`."""
        ...

    @property
    def replicas(self) -> Replicas | None:
        """See `Gate`."""
        ...

    @property
    def state(self) -> EngineState:
        """See `Gate`."""
        ...


def wake_limits(tiers: Tiers) -> SleepPolicy:
    """Return the tiers as the wake machine takes them."""
    return SleepPolicy(
        idle_sleep_s=tiers.idle_s[0],
        idle_offload_s=tiers.idle_s[1],
        hold_sleeping_s=tiers.hold_s[0],
        hold_offloaded_s=tiers.hold_s[1],
        hold_restarting_s=300.0,
        retry_after_sleeping_s=tiers.retry_after_s[0],
        retry_after_offloaded_s=tiers.retry_after_s[1],
        retry_after_restarting_s=600.0,
        canary=False,  # it would take no time here
        probe_period_s=LOOK_PERIOD_S,
    )


LOOK_PERIOD_S = 1e6
"""Nobody else touches a simulated engine, so there is nothing to be seen between transitions."""
