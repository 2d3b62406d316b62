"""The controller and the naive line side by side, driven by Hypothesis, which shrinks its finds."""

from collections.abc import Callable

from depth import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from naive_line import NaiveLine, Seen, seen

from simulator.model.invariants import QueueWitness
from tornado_frontdoor.core.admission import AdmissionController, AdmissionLimits
from tornado_frontdoor.core.decisions import Outcome
from tornado_frontdoor.core.request import Ticket, TicketState

SPAN_S = st.integers(0, 16).map(lambda quarters: quarters / 4)
LIMITS = st.builds(
    AdmissionLimits,
    cap=st.one_of(st.none(), st.integers(1, 4)),
    queue=st.integers(0, 4),
    queue_timeout_s=st.integers(1, 12).map(lambda quarters: quarters / 4),
    cooling_limit_s=st.integers(0, 8).map(lambda quarters: quarters / 4),
)
WHO = st.integers(0, 99)


class AdmissionMachine(RuleBasedStateMachine):
    """Each rule is one event, some time after the last; the driver is as late as it likes."""

    @initialize(limits=LIMITS)
    def open(self, limits: AdmissionLimits) -> None:
        self.now = 0.0
        self.line = AdmissionController(limits)
        self.model = NaiveLine(
            limits.cap, limits.queue, limits.queue_timeout_s, limits.cooling_limit_s
        )
        self.witness = QueueWitness(
            limits.cap,
            limits.queue,
            limits.queue_timeout_s,
            cooling_limit_s=limits.cooling_limit_s,
        )
        self.tickets: list[Ticket] = []

    @rule(weight=st.integers(1, 3), pause_s=SPAN_S)
    def arrive(self, weight: int, pause_s: float) -> None:
        self.now += pause_s
        ticket = Ticket(weight)
        self.tickets.append(ticket)
        told = seen(self.line.arrive(ticket, self.now))
        self.judge(
            told,
            self.model.arrive(weight, self.now),
            lambda: self.witness.arrived(self.now, ticket.number, weight),
        )

    @precondition(lambda self: self.tickets)
    @rule(who=WHO, pause_s=SPAN_S)
    def finish(self, who: int, pause_s: float) -> None:
        self.now += pause_s
        ticket = self.tickets[who % len(self.tickets)]
        if ticket.state is TicketState.GONE:
            before = self.line.duplicate_finishes
            assert self.line.finish(ticket, self.now) == ()
            assert self.line.duplicate_finishes == before + 1
            return
        cooled = ticket.state is TicketState.COOLING
        told = seen(self.line.finish(ticket, self.now))
        self.judge(
            told,
            self.model.finish(ticket.number, self.now),
            lambda: (
                self.witness.let_go(self.now, ticket.number)
                if cooled
                else self.witness.ended(self.now, ticket.number, Outcome.SERVED)
            ),
        )

    @precondition(lambda self: self.in_state(TicketState.IN_FLIGHT))
    @rule(who=WHO, pause_s=SPAN_S)
    def cool(self, who: int, pause_s: float) -> None:
        self.now += pause_s
        flying = self.in_state(TicketState.IN_FLIGHT)
        ticket = flying[who % len(flying)]
        told = seen(self.line.cool(ticket, self.now))
        self.judge(
            told,
            self.model.cool(ticket.number, self.now),
            lambda: self.witness.cools(self.now, ticket.number, Outcome.CLIENT_GONE_STREAMING),
        )

    def in_state(self, state: TicketState) -> list[Ticket]:
        return [ticket for ticket in self.tickets if ticket.state is state]

    @rule(pause_s=SPAN_S)
    def expire(self, pause_s: float) -> None:
        self.now += pause_s
        self.judge(seen(self.line.expire(self.now)), self.model.expire(self.now))

    @precondition(lambda self: self.line.next_deadline() is not None)
    @rule()
    def expire_at_the_deadline(self) -> None:
        deadline_s = self.line.next_deadline()
        assert deadline_s is not None
        self.now = max(self.now, deadline_s)
        told = seen(self.line.expire(self.now))
        assert told, "expire at next_deadline() makes progress"
        self.judge(told, self.model.expire(self.now))

    @rule(limit_s=st.sampled_from((0.5, 1.0, 2.0, 8.0, float("inf"))), pause_s=SPAN_S)
    def pause(self, limit_s: float, pause_s: float) -> None:
        self.now += pause_s
        self.judge(
            seen(self.line.pause(limit_s, self.now)),
            self.model.pause(limit_s, self.now),
            lambda: self.witness.paused(self.now, limit_s),
        )

    @precondition(lambda self: self.line.paused)
    @rule(pause_s=SPAN_S)
    def resume(self, pause_s: float) -> None:
        self.now += pause_s
        self.judge(
            seen(self.line.resume(self.now)),
            self.model.resume(self.now),
            lambda: self.witness.resumed(self.now),
        )

    @rule(limits=LIMITS, pause_s=SPAN_S)
    def change_limits(self, limits: AdmissionLimits, pause_s: float) -> None:
        self.now += pause_s
        told = (limits.cap, limits.queue, limits.queue_timeout_s)
        self.judge(
            seen(self.line.change_limits(limits, self.now)),
            self.model.change_limits(*told, self.now, limits.cooling_limit_s),
            lambda: self.witness.limits_changed(self.now, *told, limits.cooling_limit_s),
        )

    @precondition(lambda self: len(self.tickets) > 8)
    @rule()
    def drain(self) -> None:
        self.judge(
            seen(self.line.drain(self.now)),
            self.model.drain(),
            lambda: self.witness.drained(self.now),
        )

    def judge(
        self, told: list[Seen], right: list[Seen], tell: Callable[[], None] | None = None
    ) -> None:
        assert told == right
        if tell is not None:
            tell()
        for one in told:
            if one.cooled:
                self.witness.cooled(self.now, one.number)
            elif one.reason is None:
                self.witness.admitted(self.now, one.number, one.waited_s, one.paused_s)
            else:
                self.witness.refused(self.now, one.number, one.reason)
        self.witness.settled(self.now)

    @invariant()
    def the_books_agree(self) -> None:
        waiting = [ticket.number for ticket in self.line.waiting()]
        assert waiting == [waiter.number for waiter in self.model.waiting]
        assert self.line.next_deadline() == self.model.next_deadline()
        self.witness.agree(self.line.in_flight, self.line.queued, self.line.cooling)
        in_flight = [ticket.weight for ticket in self.in_state(TicketState.IN_FLIGHT)]
        assert sum(in_flight) == self.line.in_flight
        cooling = [ticket.weight for ticket in self.in_state(TicketState.COOLING)]
        assert sum(cooling) == self.line.cooling


TestAdmissionMachine = AdmissionMachine.TestCase
TestAdmissionMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None, derandomize=True
)
