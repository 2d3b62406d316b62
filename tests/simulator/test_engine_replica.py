"""The fluid replica against sums done by hand, and against a slow model that knows no trick."""

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine_model.replica import Moment, Prefill, Replica, What


def half_slower(batch: int) -> float:
    """Return 1, 2/3, 1/2, ...: each further sequence costs half of one."""
    return 1 / (1 + 0.5 * (batch - 1))


def ends(replica: Replica, until: float = math.inf) -> list[tuple[Any, Any]]:
    """Run to the end (or `until`) and return who finished when."""
    finished = []
    while (at_s := replica.next_event()) <= until and at_s < math.inf:
        finished += [(job, at_s) for job in replica.advance(at_s)]
    return finished


def test_a_sequence_slows_down_when_another_joins_and_recovers_when_it_goes() -> None:
    replica = Replica(4, half_slower)
    replica.start("a", 3.0, 0.0)
    replica.start("b", 1.0, 1.0)  # a has done 1 of 3; both go at 2/3
    assert ends(replica) == [("b", pytest.approx(2.5)), ("a", pytest.approx(3.5))]


def test_a_departure_speeds_up_those_who_stay() -> None:
    replica = Replica(4, half_slower)
    replica.start("a", 3.0, 0.0)
    replica.start("b", 9.0, 1.0)
    assert replica.abort("b", 2.0)  # a has done 1 + 2/3
    assert not replica.abort("b", 2.0)
    assert ends(replica) == [("a", pytest.approx(2.0 + 4 / 3))]


def test_sequences_above_the_slots_wait_in_order_and_start_as_slots_come_free() -> None:
    replica = Replica(2)
    started = [replica.start(job, work, 0.0) for job, work in (("a", 2.0), ("b", 1.0), ("c", 5.0))]
    assert started == [True, True, False]
    replica.start("d", 1.0, 0.5)
    assert (replica.running, replica.waiting) == (2, 2)
    assert replica.moments(1.0)[2:] == [
        Moment(What.FINISHED, "b", 1.0),
        Moment(What.STARTED, "c", 1.0),
    ]
    assert ends(replica) == [("a", 2.0), ("d", 3.0), ("c", 6.0)]


def test_one_that_leaves_the_line_never_starts_and_holds_nobody_up() -> None:
    replica = Replica(1)
    for job in "abc":
        replica.start(job, 1.0, 0.0)
    replica.abort("b", 0.5)
    assert ends(replica) == [("a", 1.0), ("c", 2.0)]


def test_a_heavy_head_of_the_line_is_not_overtaken() -> None:
    replica = Replica(4)
    replica.start("a", 1.0, 0.0, weight=3)
    assert not replica.start("b", 1.0, 0.0, weight=2)
    assert not replica.start("c", 1.0, 0.0)  # would fit
    assert replica.start("big", 1.0, 0.5, weight=99) is False
    assert ends(replica) == [("a", 1.0), ("b", 2.0), ("c", 2.0), ("big", 3.0)]


def test_steps_are_told_one_by_one_and_the_last_is_the_end() -> None:
    replica = Replica(1)
    replica.start("a", 2.0, 0.0, steps=2, step_work=0.5)
    assert replica.moments(9.0) == [
        Moment(What.STARTED, "a", 0.0),
        Moment(What.STEPPED, "a", 2.0),
        Moment(What.STEPPED, "a", 2.5),
        Moment(What.FINISHED, "a", 3.0),
    ]


def test_a_long_prompt_slows_those_who_decode_meanwhile() -> None:
    # 0.1 s an iteration, 1.1 s with 100 tokens of a prompt at 10 ms each: what "a" leaves of 101.
    replica = Replica(4, lambda _: 10.0, Prefill(cost_s=0.01, budget_tokens=101))
    replica.start("a", 10.0, 0.0)
    replica.start("b", 5.0, 0.5, prompt=200.0)  # read in two chunks: until 2.7
    # a: 5 tokens, 2 more until 2.7, the last 3 at full speed.
    assert ends(replica) == [("a", pytest.approx(3.0)), ("b", pytest.approx(3.2))]


def test_prompts_are_read_one_after_the_other_and_alone_at_their_own_cost() -> None:
    prefill = Prefill(cost_s=0.01, budget_tokens=100, overhead_s=0.05)
    replica = Replica(4, lambda _: 1000.0, prefill)
    replica.start("a", 0.0, 0.0, prompt=100.0)
    replica.start("b", 0.0, 0.0, prompt=50.0)
    replica.start("c", 0.0, 0.0, prompt=100.0)
    replica.abort("b", 0.5)
    assert ends(replica) == [("a", pytest.approx(1.05)), ("c", pytest.approx(2.1))]


def test_a_closed_gate_stops_work_and_an_unadmitting_one_only_starts() -> None:
    replica = Replica(1)
    replica.start("a", 2.0, 0.0)
    replica.gate(1.0, run=False, admit=False)
    assert replica.next_event() == math.inf
    replica.gate(5.0, run=True, admit=False)
    assert not replica.start("b", 1.0, 5.0)
    assert ends(replica) == [("a", 6.0)]
    assert (replica.running, replica.waiting) == (0, 1)
    replica.gate(7.0, run=True, admit=True)
    assert ends(replica) == [("b", 8.0)]


def test_a_stalled_sequence_keeps_its_slot_and_slows_the_others() -> None:
    replica = Replica(2, half_slower)
    replica.start("a", 1.0, 0.0)
    replica.stall("a")
    replica.start("b", 1.0, 0.0)
    replica.start("c", 1.0, 0.0)
    assert ends(replica) == [("b", pytest.approx(1.5)), ("c", pytest.approx(3.0))]
    assert replica.running_jobs() == ["a"]
    replica.abort("a", 3.0)
    assert replica.running == 0


def test_eight_slots_of_two_seconds_saturate_at_four_a_second() -> None:
    replica = Replica(8)
    for number in range(800):  # offered: 8 a second for 100 s
        replica.advance(number / 8)
        replica.start(number, 2.0, number / 8)
    replica.advance(100.0)
    # The slot of number k < 8 ends jobs at k/8 + 2, k/8 + 4, ...: 50 the first, 49 each other.
    assert 800 - len(replica.jobs()) == 50 + 7 * 49


def test_calls_out_of_order_are_the_callers_bug() -> None:
    replica = Replica(1)
    replica.start("a", 1.0, 0.0)
    with pytest.raises(AssertionError, match="advance"):
        replica.start("b", 1.0, 2.0)
    with pytest.raises(AssertionError, match="inside already"):
        replica.start("a", 1.0, 0.0)
    replica.advance(5.0)
    with pytest.raises(AssertionError, match="backwards"):
        replica.abort("a", 4.0)


@given(
    st.lists(
        st.tuples(st.floats(0, 3, width=32), st.floats(0, 5, width=32)), min_size=1, max_size=30
    ),
    st.integers(1, 4),
)
def test_at_a_constant_speed_ends_are_exact_to_the_last_bit(
    jobs: list[tuple[float, float]], slots: int
) -> None:
    replica = Replica(slots)
    now = 0.0
    works: dict[int, float] = {}
    started: dict[Any, float] = {}
    finished: dict[Any, float] = {}
    moments: list[Moment] = []
    for number, (gap, work) in enumerate(jobs):
        now += gap
        moments += replica.moments(now)
        works[number] = work
        replica.start(number, work, now)
    moments += replica.moments(now + 1e6)
    for what, job, at_s in moments:
        (started if what is What.STARTED else finished)[job] = at_s
    assert list(started) == list(range(len(jobs)))
    assert finished == {job: started[job] + works[job] for job in works}


@dataclass
class NaiveReplica:
    """The same thing with every remaining work written out and stepped from event to event."""

    slots: int
    work: dict[int, float] = field(default_factory=dict)
    line: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    time_s: float = 0.0
    ended: list[tuple[int, float]] = field(default_factory=list)

    def advance(self, now: float) -> None:
        while True:
            self._fill()
            if not self.running:
                break
            speed = half_slower(len(self.running))
            first = min(self.running, key=lambda job: self.work[job])
            at_s = self.time_s + self.work[first] / speed
            if at_s > now:
                break
            self._step(at_s, speed)
            self.work[first] = 0.0
            self.running.remove(first)
            self.ended.append((first, at_s))
        if self.running:
            self._step(now, half_slower(len(self.running)))
        self.time_s = now

    def abort(self, job: int) -> None:
        for place in (self.line, self.running):
            if job in place:
                place.remove(job)

    def _step(self, now: float, speed: float) -> None:
        for job in self.running:
            self.work[job] -= (now - self.time_s) * speed
        self.time_s = now

    def _fill(self) -> None:
        while self.line and len(self.running) < self.slots:
            self.running.append(self.line.pop(0))


@given(
    st.lists(
        st.tuples(st.floats(0.01, 2), st.floats(0.01, 4), st.booleans(), st.integers(0, 20)),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 5),
)
def test_the_heap_agrees_with_the_naive_model(
    plan: list[tuple[float, float, bool, int]], slots: int
) -> None:
    replica, naive = Replica(slots, half_slower), NaiveReplica(slots)
    now, ended = 0.0, []
    for number, (gap, work, leaves, who) in enumerate(plan):
        now += gap
        naive.advance(now)
        while (at_s := replica.next_event()) <= now:
            ended += [(job, at_s) for job in replica.advance(at_s)]
        replica.start(number, work, now)
        naive.work[number] = work
        naive.line.append(number)
        naive.advance(now)
        if leaves:
            replica.abort(who, now)
            naive.abort(who)
    ended += ends(replica)
    naive.advance(1e6)
    expected = dict(naive.ended)
    assert dict(ended) == {job: pytest.approx(expected[job], abs=1e-6) for job in expected}
    assert replica.running == replica.waiting == 0
