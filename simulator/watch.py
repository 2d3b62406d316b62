"""Witnesses between the model and its gate: the laws as they are kept, and a journal to look at.

Rule 1: a witness changes nothing. It passes on every call and every decision as they are.
"""

from collections.abc import Sequence
from typing import NamedTuple

from simulator.driver import Driver
from simulator.invariants import LineWitness
from simulator.model import HeldGate
from simulator.scenario import Scenario
from tornado_frontdoor.core.decisions import Admit, Decision, Outcome, Refuse
from tornado_frontdoor.core.request import Ticket


class Entry(NamedTuple):
    """One decision or event, with the gauges right after it."""

    at_s: float
    what: str
    number: int
    in_flight: int
    queued: int

    def __str__(self) -> str:
        return f"{self.at_s!r} {self.what} {self.number} {self.in_flight} {self.queued}"


class WatchedGate:
    """The real gate with a `LineWitness` beside it; raises its `LawError` at the first fault."""

    def __init__(self, gate: HeldGate, scenario: Scenario, driver: Driver) -> None:
        self._gate = gate
        self._driver = driver
        self._witness = LineWitness(
            scenario.cap, scenario.queue, scenario.timeout_s, tolerance_s=_ROUNDING_S
        )
        self._arrivals = 0
        self.journal: list[Entry] | None = None

    def arrive(self, ticket: Ticket) -> Sequence[Decision]:
        """Pass on and judge."""
        self._arrivals += 1
        self._witness.arrived(self._driver.time_s, self._arrivals, ticket.weight)
        decisions = self._gate.arrive(ticket)
        self._note("arrived", ticket.number)
        return self._judged(decisions)

    def finish(self, ticket: Ticket, outcome: Outcome) -> Sequence[Decision]:
        """Pass on and judge."""
        self._witness.ended(self._driver.time_s, ticket.number, outcome)
        decisions = self._gate.finish(ticket, outcome)
        self._note(outcome.label, ticket.number)
        return self._judged(decisions)

    def expire(self) -> Sequence[Decision]:
        """Pass on and judge."""
        return self._judged(self._gate.expire())

    def hold(self, limit_s: float) -> Sequence[Decision]:
        """Pass on and judge."""
        self._witness.held(self._driver.time_s, limit_s)
        return self._judged(self._gate.hold(limit_s))

    def resume(self) -> Sequence[Decision]:
        """Pass on and judge."""
        self._witness.resumed(self._driver.time_s)
        return self._judged(self._gate.resume())

    def next_deadline(self) -> float | None:
        """Pass on."""
        return self._gate.next_deadline()

    def at_rest(self) -> None:
        """Judge the end, at which nobody is inside."""
        self._witness.at_rest()
        assert self._gate.duplicate_finishes == 0, "a visit was finished twice"

    def _judged(self, decisions: Sequence[Decision]) -> Sequence[Decision]:
        now = self._driver.time_s
        self._witness.decided(now, decisions)
        self._witness.settled(now)
        self._witness.agree(self._gate.in_flight, self._gate.queued)
        for decision in decisions:
            if isinstance(decision, Admit):
                self._note("admitted", decision.ticket.number)
            elif isinstance(decision, Refuse):
                self._note(decision.refusal.reason.value, decision.ticket.number)
        return decisions

    def _note(self, what: str, number: int) -> None:
        if self.journal is not None:
            gate = self._gate
            self.journal.append(
                Entry(self._driver.time_s, what, number, gate.in_flight, gate.queued)
            )


_ROUNDING_S = 1e-6
"""The witness adds up the time between events; the gate takes one difference. In 10^7 s of
simulated time the sums drift apart by less than this."""
