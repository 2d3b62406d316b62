"""One upstream's gate: its line and, where its engine can sleep, its waking, behind one entry.

What drives it calls `arrive` for a new ticket, `finish` for one that ended in whatever way, and
`expire` at `next_deadline()`. Each call returns decisions in the order in which they were made; the
driver carries them out and decides nothing. The clock is read once in each call, in its first line,
so that both machines see one instant.
"""

from collections.abc import Sequence

from tornado_frontdoor.core.admission import (
    AdmissionController,
    AdmissionLimits,
    Move,
    Turned,
)
from tornado_frontdoor.core.clock import Clock
from tornado_frontdoor.core.decisions import Admit, Decision, Outcome, Reason, Refusal, Refuse
from tornado_frontdoor.core.pacing import Pacer, Randomness
from tornado_frontdoor.core.request import Ticket, TicketState, UpstreamKey

__all__ = ["AdmissionLimits", "Gate"]

DRAINING_RETRY_AFTER_S = 5.0
"""A front door that goes away is usually replaced within seconds."""


class Gate:
    """The only way to an upstream, whatever route or dialect a request came by."""

    def __init__(
        self, key: UpstreamKey, limits: AdmissionLimits, clock: Clock, rng: Randomness
    ) -> None:
        self.key = key
        self._clock = clock
        self._admission = AdmissionController(limits)
        self._pacer = Pacer(rng)

    # What can be asked: always computed from state, never counted alongside it

    @property
    def limits(self) -> AdmissionLimits:
        """The limits in force."""
        return self._admission.limits

    @property
    def in_flight(self) -> int:
        """Slots taken now."""
        return self._admission.in_flight

    @property
    def queued(self) -> int:
        """Tickets that wait now."""
        return self._admission.queued

    @property
    def duplicate_finishes(self) -> int:
        """How often a ticket was finished that was gone already; above 0 is a driver's bug."""
        return self._admission.duplicate_finishes

    def waiting(self) -> tuple[Ticket, ...]:
        """Return the line, head first."""
        return self._admission.waiting()

    def next_deadline(self) -> float | None:
        """Return the instant at which `expire` must be called, or None."""
        return self._admission.next_deadline()

    # What can happen

    def arrive(self, ticket: Ticket) -> Sequence[Decision]:
        """Admit the ticket, refuse it, or let it wait: then no decision names it yet."""
        now = self._clock.now()
        return self._decide(self._admission.arrive(ticket, now), now)

    def finish(self, ticket: Ticket, outcome: Outcome) -> Sequence[Decision]:  # noqa: ARG002
        """End a ticket that waits or is in flight; call it when the transfer is over, not before.

        `outcome` says how it ended; admission treats all ends alike, which is the point.
        """
        now = self._clock.now()
        if ticket.state is TicketState.IN_FLIGHT:
            self._pacer.observe(now - ticket.admitted_s)
        return self._decide(self._admission.finish(ticket, now), now)

    def expire(self) -> Sequence[Decision]:
        """Refuse those whose limit has come."""
        now = self._clock.now()
        return self._decide(self._admission.expire(now), now)

    def drain(self) -> Sequence[Decision]:
        """Refuse the line and all newcomers; those in flight run to their end."""
        now = self._clock.now()
        return self._decide(self._admission.drain(), now)

    def change_limits(self, limits: AdmissionLimits) -> Sequence[Decision]:
        """Put new limits in force at once, without losing a ticket."""
        now = self._clock.now()
        return self._decide(self._admission.change_limits(limits, now), now)

    # How

    def _decide(self, moves: Sequence[Move], now: float) -> Sequence[Decision]:
        if not moves:
            return ()
        return [
            move if isinstance(move, Admit) else Refuse(move.ticket, self._refusal(move, now))
            for move in moves
        ]

    def _refusal(self, turned: Turned, now: float) -> Refusal:
        limits = self._admission.limits
        match turned.reason:
            case Reason.QUEUE_FULL:
                detail = (
                    f"All {limits.cap} slots of {self.key} are taken and all {limits.queue} "
                    "places in its line too"
                )
                return Refusal(turned.reason, detail, self.key, self._retry_after_s(now))
            case Reason.QUEUE_TIMEOUT:
                detail = f"No slot of {self.key} came free within {limits.queue_timeout_s:g} s"
                return Refusal(turned.reason, detail, self.key, self._retry_after_s(now))
            case Reason.DRAINING:
                detail = "The front door is shutting down"
                return Refusal(turned.reason, detail, self.key, DRAINING_RETRY_AFTER_S)
            case _:
                detail = (
                    f"The request needs {turned.ticket.weight} sequences at once, "
                    f"and {self.key} admits {limits.cap}"
                )
                return Refusal(turned.reason, detail, self.key, param="n")

    def _retry_after_s(self, now: float) -> float:
        cap = self._admission.limits.cap or 1
        return self._pacer.retry_after_s(now, cap, self._admission.queued)
