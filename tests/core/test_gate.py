"""The gate as drivers see it: decisions with words and return times, one instant for each call."""

from random import Random
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.model.invariants import QueueWitness
from tornado_frontdoor.core.clock import ManualClock
from tornado_frontdoor.core.decisions import Admit, Decision, Outcome, Reason, Refuse
from tornado_frontdoor.core.gate import AdmissionLimits, Gate
from tornado_frontdoor.core.request import Ticket, TicketState, UpstreamKey


def gate(
    clock: ManualClock,
    cap: int | None = 1,
    queue: int = 1,
    timeout_s: float = 2.0,
    key: str = "reasoning",
) -> Gate:
    limits = AdmissionLimits(cap=cap, queue=queue, queue_timeout_s=timeout_s)
    return Gate(UpstreamKey(key), limits, clock, Random(1))


def come(gate: Gate, weight: int = 1) -> tuple[Ticket, list[Decision]]:
    ticket = Ticket(weight)
    return ticket, [*gate.arrive(ticket)]


def refusals(decisions: list[Decision]) -> list[Refuse]:
    return [decision for decision in decisions if isinstance(decision, Refuse)]


class CountingClock(ManualClock):
    """A clock that cannot be read twice without being noticed."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def now(self) -> float:
        self.reads += 1
        self.advance(1.0)
        return super().now()


class TestDecisions:
    """What leaves a gate."""

    def test_a_free_slot_admits_in_the_same_call(self) -> None:
        door = gate(ManualClock())
        ticket, decisions = come(door)
        assert decisions == [Admit(ticket, 0.0, 0.0)]
        assert (door.in_flight, door.queued) == (1, 0)

    def test_who_waits_is_named_by_no_decision_yet(self) -> None:
        door = gate(ManualClock())
        come(door)
        ticket, decisions = come(door)
        assert decisions == []
        assert door.waiting() == (ticket,)

    def test_a_full_line_says_how_long_it_is_and_when_to_come_back(self) -> None:
        """F23, F55: each refusal that a retry can cure carries a computed time of its own."""
        door = gate(ManualClock())
        come(door)
        come(door)
        (refused,) = refusals(come(door)[1])
        assert refused.refusal.reason is Reason.QUEUE_FULL
        assert refused.refusal.upstream == "reasoning"
        assert "1 places" in refused.refusal.detail
        assert refused.refusal.retry_after_s == 2.0

    def test_a_limit_that_comes_says_which_it_was(self) -> None:
        clock = ManualClock()
        door = gate(clock)
        come(door)
        ticket, _ = come(door)
        clock.set(2.0)
        (refused,) = refusals([*door.expire()])
        assert refused.ticket is ticket
        assert refused.refusal.reason is Reason.QUEUE_TIMEOUT
        assert "2 s" in refused.refusal.detail
        assert refused.refusal.retry_after_s is not None

    def test_too_heavy_a_request_is_told_so_and_not_to_come_back(self) -> None:
        (refused,) = refusals(come(gate(ManualClock(), cap=2), weight=3)[1])
        assert refused.refusal.reason is Reason.BAD_REQUEST
        assert refused.refusal.retry_after_s is None
        assert refused.refusal.param == "n"
        assert "3 sequences" in refused.refusal.detail
        assert "admits 2" in refused.refusal.detail

    def test_a_drain_refuses_the_line_and_lets_flights_end(self) -> None:
        door = gate(ManualClock(), queue=3)
        flying, _ = come(door)
        waiting = [come(door)[0] for _ in range(2)]
        refused = refusals([*door.drain()])
        assert [one.ticket for one in refused] == waiting
        assert {one.refusal.reason for one in refused} == {Reason.DRAINING}
        assert {one.refusal.retry_after_s for one in refused} == {5.0}
        assert flying.state is TicketState.IN_FLIGHT
        assert refusals(come(door)[1])[0].refusal.reason is Reason.DRAINING

    def test_new_limits_are_in_force_at_once(self) -> None:
        """F14: also what the gate says of itself."""
        door = gate(ManualClock())
        come(door)
        ticket, _ = come(door)
        new = AdmissionLimits(cap=2, queue=5, queue_timeout_s=1.0)
        assert [decision.ticket for decision in door.change_limits(new)] == [ticket]
        assert door.limits == new
        assert door.in_flight == 2

    def test_a_second_finish_is_counted_and_does_nothing(self) -> None:
        """F31."""
        door = gate(ManualClock())
        ticket, _ = come(door)
        for _ in range(2):
            assert not door.finish(ticket, Outcome.SERVED)
        assert (door.in_flight, door.duplicate_finishes) == (0, 1)

    @pytest.mark.parametrize("outcome", Outcome)
    def test_every_end_gives_the_slot_back(self, outcome: Outcome) -> None:
        """F7, F8, F34, F42: time-outs, aborts and errors take the way out that success takes."""
        door = gate(ManualClock())
        flying, _ = come(door)
        waiting, _ = come(door)
        assert [one.ticket for one in door.finish(flying, outcome)] == [waiting]
        door.finish(waiting, outcome)
        assert (door.in_flight, door.queued) == (0, 0)


class TestReturnTimes:
    """Promises made to those who are refused."""

    def test_a_crowd_is_not_sent_back_in_one_instant(self) -> None:
        """F55: a constant brings the whole crowd back together, and blocks it for nothing."""
        clock = ManualClock()
        door = gate(clock, cap=6, queue=8, timeout_s=30.0)
        tickets = [come(door) for _ in range(40)]
        clock.set(2.0)
        for ticket, _ in tickets:
            if ticket.state is TicketState.IN_FLIGHT:
                door.finish(ticket, Outcome.SERVED)
        later = [refusals(come(door)[1]) for _ in range(40)]
        times = [one.refusal.retry_after_s for refused in later for one in refused]
        assert len(times) == len(set(times)) > 20
        assert all(time_s is not None and 1.0 <= time_s <= 59.0 for time_s in times)

    def test_follow_how_long_slots_were_held(self) -> None:
        clock = ManualClock()
        door = gate(clock, queue=0)
        for _ in range(3):
            ticket, _ = come(door)
            clock.advance(6.0)
            door.finish(ticket, Outcome.SERVED)
        come(door)
        assert refusals(come(door)[1])[0].refusal.retry_after_s == 6.0
        assert refusals(come(door)[1])[0].refusal.retry_after_s == 12.0

    def test_do_not_learn_from_those_who_only_waited(self) -> None:
        clock = ManualClock()
        door = gate(clock)
        come(door)
        waiting, _ = come(door)
        clock.advance(0.5)
        door.finish(waiting, Outcome.CLIENT_GONE_QUEUED)
        come(door)
        assert refusals(come(door)[1])[0].refusal.retry_after_s == 2.0


def test_the_clock_is_read_once_in_each_call() -> None:
    clock = CountingClock()
    door = gate(clock, queue=2, timeout_s=100.0)
    tickets = [come(door)[0] for _ in range(4)]
    calls = [
        lambda: door.finish(tickets[0], Outcome.SERVED),
        door.expire,
        lambda: door.change_limits(door.limits),
        door.drain,
    ]
    for call in calls:
        before = clock.reads
        call()
        assert clock.reads == before + 1
    assert clock.reads == 8
    before = clock.reads
    assert (door.in_flight, door.queued, door.next_deadline(), door.waiting()) == (1, 0, None, ())
    assert clock.reads == before, "asking costs no time"


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("a", "b")),
        st.sampled_from(("arrive", "arrive", "finish", "expire")),
        st.integers(0, 9),
        st.integers(0, 4).map(lambda halves: halves / 2),
    ),
    max_size=60,
)
Story = list[tuple[str, str, int, float]]


def told(story: Story, key: str | None) -> list[str]:
    """Play a story before two gates, or only the part of one of them; return what gate `a` says."""
    clock = ManualClock()
    doors = {name: gate(clock, cap=2, queue=2, key=name) for name in "ab"}
    tickets: dict[str, list[Ticket]] = {"a": [], "b": []}
    said = []
    for name, event, who, pause_s in story:
        clock.advance(pause_s)
        if key not in (None, name):
            continue
        door, mine = doors[name], tickets[name]
        if event == "arrive":
            mine.append(Ticket(1 + who % 2))
            decisions = door.arrive(mine[-1])
        elif event == "finish" and mine:
            decisions = door.finish(mine[who % len(mine)], Outcome.SERVED)
        else:
            decisions = door.expire()
        if name == "a":
            said.append(f"{clock.now()} {decisions!r} {door.in_flight} {door.queued}")
    return said


@given(EVENTS)
def test_gates_share_nothing(story: Story) -> None:
    """F18, F36: what happens before one upstream changes no answer of another."""
    assert told(story, None) == told(story, "a")


@given(EVENTS)
def test_a_story_told_twice_is_the_same_story(story: Story) -> None:
    """Law 9."""
    assert told(story, None) == told(story, None)


def test_what_a_gate_decides_keeps_the_laws() -> None:
    """The witness as the live proxy and the simulator use it: on the gate's own decisions."""
    clock = ManualClock()
    door = gate(clock, cap=3, queue=4, timeout_s=3.0)
    witness = QueueWitness(3, 4, 3.0)
    rng = Random(7)
    inside: list[Ticket] = []
    for _ in range(3000):
        clock.advance(rng.choice((0.0, 0.0, 0.5, 1.0)))
        now = clock.now()
        flying = [ticket for ticket in inside if ticket.state is not TicketState.GONE]
        if flying and rng.random() < 0.4:
            ticket = rng.choice(flying)
            decisions = door.finish(ticket, Outcome.SERVED)
            witness.ended(now, ticket.number, Outcome.SERVED)
        elif rng.random() < 0.3:
            decisions = door.expire()
        else:
            ticket = Ticket(rng.choice((1, 1, 2)))
            inside.append(ticket)
            decisions = door.arrive(ticket)
            witness.arrived(now, ticket.number, ticket.weight)
        witness.decided(now, decisions)
        witness.settled(now)
        witness.agree(door.in_flight, door.queued)
        inside = [ticket for ticket in inside if ticket.state is not TicketState.GONE]
    assert witness.in_flight_max == 3
    assert witness.queued_max == 4
    assert len(witness.ends) == 3


def test_ten_thousand_come_and_go_within_a_quarter_of_a_second() -> None:
    door = gate(ManualClock(), cap=6, queue=8)
    best_s = float("inf")
    for _ in range(5):
        start_s = thread_time()  # of ours, whatever else the machine does
        for _ in range(10_000):
            ticket = Ticket()
            door.arrive(ticket)
            door.finish(ticket, Outcome.SERVED)
        best_s = min(best_s, thread_time() - start_s)
        if best_s < 0.25:
            break
    assert best_s < 0.25


def test_a_long_line_costs_no_more_than_a_short_one() -> None:
    """O(1): leaving from the middle of twenty thousand, and letting the next one in."""

    def seconds(queue: int) -> float:
        door = gate(ManualClock(), cap=1, queue=queue)
        tickets = [come(door)[0] for _ in range(queue + 1)]
        middle = tickets[queue // 2 : queue // 2 + 400]
        start_s = thread_time()  # of ours, whatever else the machine does
        for ticket in middle:
            door.finish(ticket, Outcome.CLIENT_GONE_QUEUED)
            door.next_deadline()
        return thread_time() - start_s

    short_s = min(seconds(1_000) for _ in range(3))
    long_s = min(seconds(20_000) for _ in range(3))
    assert long_s < 8 * short_s + 0.005
