"""Several engines behind one gate: picked, bounded, lost, drained and changed, by the pure core."""

from collections import Counter
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from replica_scene import has_room

from tornado_frontdoor.core.admission import AdmissionController, AdmissionLimits
from tornado_frontdoor.core.clock import ManualClock
from tornado_frontdoor.core.decisions import EngineState, Outcome, Reason, Refuse
from tornado_frontdoor.core.gate import Gate
from tornado_frontdoor.core.replicas import (
    LOAD_BOUND,
    PROBE_DOWN_S,
    PROBE_UP_S,
    Engines,
    Replicas,
)
from tornado_frontdoor.core.request import Ticket, TicketState, UpstreamKey


def made(pick="least", **slots):
    return Replicas(Engines(slots, pick), 0.0)


def placed(replicas, weight=1, affinity=None):
    ticket = Ticket(weight)
    ticket.affinity = affinity
    replicas.place(ticket)
    return ticket


def used(replicas):
    return {replica.name: replica.used for replica in replicas}


class TestPicking:
    """Which replica takes a ticket."""

    def test_least_is_by_the_share_of_the_slots_and_the_first_of_equals(self):
        replicas = made(a=2, b=4)
        names = [placed(replicas).replica for _ in range(6)]
        assert names == ["a", "b", "b", "a", "b", "b"]
        assert not has_room(replicas, 1)

    def test_a_weight_goes_where_it_fits_as_a_whole(self):
        replicas = made(a=2, b=4)
        assert placed(replicas, 3).replica == "b"
        assert not has_room(replicas, 3)
        assert replicas.heaviest == 4

    def test_affinity_keeps_a_key_together_and_spreads_the_keys(self):
        replicas = made("affinity", a=8, b=8, c=8)
        keys = [str(number).encode() for number in range(60)]
        homes = {}
        for key in keys:
            ticket = placed(replicas, affinity=key)
            homes[key] = ticket.replica
            replicas.give_back(ticket)
        assert all(count >= 8 for count in Counter(homes.values()).values())
        replicas.seen("b", 1.0, up=False)
        for key in keys:  # only the keys of the one that is gone move
            ticket = placed(replicas, affinity=key)
            assert ticket.replica == homes[key] or homes[key] == "b"
            replicas.give_back(ticket)

    def test_affinity_takes_no_replica_far_above_its_share(self):
        replicas = made("affinity", a=8, b=8)
        names = [placed(replicas, affinity=b"one for all").replica for _ in range(8)]
        most = max(Counter(names).values())
        assert most <= LOAD_BOUND * 8 / 2 + 1
        assert len(set(names)) == 2

    def test_affinity_of_a_single_engine_without_a_bound_is_to_that_one(self):
        assert placed(made("affinity", a=inf), affinity=b"key").replica == "a"

    def test_who_is_moved_leaves_its_replica_and_never_goes_to_one_without_room(self):
        replicas = made(a=1, b=1)
        first, second = placed(replicas), placed(replicas)
        assert not replicas.move(first)
        replicas.give_back(second)
        assert replicas.move(first)
        assert (first.replica, used(replicas)) == ("b", {"a": 0, "b": 1})


class TestChanges:
    """Replicas that die, are drained, come and go."""

    def test_one_that_is_down_drained_or_removed_is_picked_for_nobody(self):
        replicas = made(a=4, b=4, c=4, d=4)
        replicas.seen("a", 0.0, up=False)
        replicas.drain("b")
        replicas.change(Engines({"a": 4, "b": 4, "d": 4}), 0.0)
        assert {placed(replicas).replica for _ in range(4)} == {"d"}
        assert not has_room(replicas, 1)
        assert [replica.state for replica in replicas] == ["down", "drained", "up"]

    def test_one_that_is_removed_goes_when_nobody_is_on_it_and_may_come_back_before(self):
        replicas = made(a=1, b=1)
        ticket = placed(replicas)
        replicas.change(Engines({"b": 1}), 0.0)
        assert "a" not in replicas
        assert len(replicas._all) == 2
        replicas.change(Engines({"a": 2, "b": 1}), 0.0)
        assert used(replicas)["a"] == 1
        replicas.change(Engines({"b": 1}), 0.0)
        replicas.give_back(ticket)
        assert list(replicas._all) == ["b"]

    def test_looks_come_sooner_at_one_that_is_down(self):
        replicas = made(a=1, b=1)
        assert replicas.next_probe_s() == PROBE_UP_S
        assert replicas.due(PROBE_UP_S) == ["a", "b"]
        replicas.seen("a", 3.0, up=False)
        assert replicas.next_probe_s() == 3.0 + PROBE_DOWN_S
        assert replicas.due(4.0) == ["a", "b"]
        never = Replicas(Engines({"a": 1}, probe_up_s=inf), 0.0)
        assert never.next_probe_s() == inf
        never.seen("a", 5.0, up=False)
        assert never.next_probe_s() == 5.0 + PROBE_DOWN_S


@pytest.fixture
def clock():
    return ManualClock(0.0)


def gate_of(clock, *, hold_down_s=0.0, cap=3, queue=4, **slots):
    limits = AdmissionLimits(cap=cap, queue=queue, queue_timeout_s=30.0)
    replicas = Replicas(Engines(slots, hold_down_s=hold_down_s), clock.now())
    return Gate(UpstreamKey("up"), limits, clock, _Middle(), replicas=replicas)


class _Middle:
    def random(self):
        return 0.5

    def uniform(self, low, high):
        return (low + high) / 2


def come(gate, weight=1):
    ticket = Ticket(weight)
    return ticket, gate.arrive(ticket)


class TestGate:
    """What a gate makes of it."""

    def test_while_nobody_is_there_callers_are_told_so_at_once_unless_they_may_wait(self, clock):
        gate = gate_of(clock, a=2, b=2)
        gate.engine_seen("a", up=False)
        assert gate.state is EngineState.AWAKE
        gate.engine_seen("b", up=False)
        assert gate.state is EngineState.DOWN
        ticket, decisions = come(gate)
        assert not decisions
        assert gate.next_deadline() == clock.now()
        (refuse,) = gate.expire()
        assert isinstance(refuse, Refuse)
        assert refuse.refusal.reason is Reason.UPSTREAM_DOWN
        assert refuse.refusal.retry_after_s == 15.0
        assert ticket.state is TicketState.GONE

    def test_who_may_wait_is_served_by_the_first_that_comes_back(self, clock):
        gate = gate_of(clock, hold_down_s=60.0, a=2, b=2)
        for name in "ab":
            gate.engine_seen(name, up=False)
        tickets = [come(gate)[0] for _ in range(4)]
        clock.advance(20.0)
        gate.engine_seen("b", up=True)
        states = [ticket.state for ticket in tickets]
        assert states == [TicketState.IN_FLIGHT] * 2 + [TicketState.QUEUED] * 2
        gate.engine_seen("a", up=True)
        assert [ticket.replica for ticket in tickets] == ["b", "b", "a", None]
        gate.finish(tickets[0], Outcome.SERVED)
        assert tickets[3].replica == "a"

    def test_what_fits_in_no_replica_at_all_is_refused_and_blocks_nobody(self, clock):
        gate = gate_of(clock, cap=5, a=3, b=3)
        ticket, (refuse,) = come(gate, weight=4)
        assert refuse.refusal.reason is Reason.BAD_REQUEST
        assert ticket.state is TicketState.GONE

    def test_a_drained_replica_keeps_its_requests_and_gets_no_more(self, clock):
        gate = gate_of(clock, cap=3, a=2, b=2)
        first, second = come(gate)[0], come(gate)[0]
        gate.drain_engine("a")
        third, fourth = come(gate)[0], come(gate)[0]
        assert (first.replica, second.replica, third.replica) == ("a", "b", "b")
        assert fourth.state is TicketState.QUEUED
        gate.finish(first, Outcome.SERVED)
        assert fourth.state is TicketState.QUEUED, "the slot that came free is a drained one's"
        gate.drain_engine("a", undo=True)
        assert fourth.replica == "a"


class SeveralEngines(RuleBasedStateMachine):
    """Weights and engines of any kind that come, go, die and are drained, in any order."""

    @initialize(cap=st.integers(1, 9), pick=st.sampled_from(["least", "affinity"]))
    def open(self, cap, pick):
        self.now = 0.0
        self.engines = Engines({"a": 4, "b": 4}, pick)
        self.replicas = Replicas(self.engines, 0.0)
        limits = AdmissionLimits(cap=cap, queue=6, queue_timeout_s=1e9, cooling_limit_s=1e9)
        self.queue = AdmissionController(limits, self.replicas)
        self.tickets = []

    def inside(self, *states):
        return [ticket for ticket in self.tickets if ticket.state in states]

    @rule(weight=st.integers(1, 5), key=st.sampled_from([None, b"x", b"y", b"z"]))
    def arrive(self, weight, key):
        ticket = Ticket(weight)
        ticket.affinity = key
        self.tickets.append(ticket)
        self.queue.arrive(ticket, self.now)

    @precondition(lambda self: self.tickets)
    @rule(who=st.integers(0, 99), cools=st.booleans())
    def end(self, who, cools):
        ticket = self.tickets[who % len(self.tickets)]
        if ticket.state is TicketState.GONE:
            return
        (self.queue.cool if cools else self.queue.finish)(ticket, self.now)

    @precondition(lambda self: self.inside(TicketState.IN_FLIGHT))
    @rule(who=st.integers(0, 99))
    def move(self, who):
        flying = self.inside(TicketState.IN_FLIGHT)
        self.replicas.move(flying[who % len(flying)])

    @rule(who=st.sampled_from("abc"), up=st.booleans())
    def seen(self, who, up):
        self.replicas.seen(who, self.now, up=up)
        self.queue.change_limits(self.queue.limits, self.now)

    @rule(who=st.sampled_from("ab"), undo=st.booleans())
    def drain(self, who, undo):
        if who in self.replicas:
            self.replicas.drain(who, undo=undo)
            self.queue.change_limits(self.queue.limits, self.now)

    @rule(slots=st.dictionaries(st.sampled_from("abc"), st.integers(1, 5), min_size=1))
    def change(self, slots):
        self.replicas.change(Engines(slots, self.engines.pick), self.now)
        self.queue.change_limits(self.queue.limits, self.now)

    @invariant()
    def the_books_agree(self):
        taken = Counter()
        for ticket in self.inside(TicketState.IN_FLIGHT, TicketState.COOLING):
            taken[ticket.replica] += ticket.weight
        for name, replica in self.replicas._all.items():
            assert replica.used == taken.pop(name, 0)
        assert not taken, "slots at an engine that nobody knows"

    @invariant()
    def nobody_waits_beside_room(self):
        waiting = self.queue.waiting()
        if waiting:
            room = self.queue.in_flight + self.queue.cooling + waiting[0].weight
            fits = room <= self.queue.limits.cap and has_room(self.replicas, waiting[0].weight)
            assert not fits
            assert waiting[0].weight <= self.replicas.heaviest


TestSeveralEngines = SeveralEngines.TestCase
TestSeveralEngines.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, derandomize=True
)
