"""Several engines behind one name, each of which sleeps by itself: who is woken, who sleeps."""

from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replica_scene import POLICY, Scene

from tornado_frontdoor.core.decisions import EngineState, Outcome, Reason, SleepReason, Verdict
from tornado_frontdoor.core.gate import AdmissionLimits
from tornado_frontdoor.core.gpu_ledger import GpuLedger
from tornado_frontdoor.core.request import TicketState, WakeTerms
from tornado_frontdoor.core.schedule import Wish
from tornado_frontdoor.core.standing import (
    NOTHING,
    OrderKind,
    OrderOwner,
    Standing,
    StandingOrder,
    standing,
)
from tornado_frontdoor.core.wake_rule import Candidate, Stands, wanted

SERVES, COMES, SLEEPS, LOST = Stands


def engines(*stands: tuple[str, float, Stands] | tuple[str, float, Stands, int]) -> list[Candidate]:
    return [Candidate(*one) for one in stands]


class TestRule:
    """Whom those who wait want awake."""

    @pytest.mark.parametrize(
        ("several", "weights", "room", "names"),
        [
            ([("a", 4, SLEEPS), ("b", 4, SLEEPS)], [1], 7, "a"),
            ([("a", 4, SLEEPS), ("b", 4, SLEEPS)], [1] * 4, 7, "a"),
            ([("a", 4, SLEEPS), ("b", 4, SLEEPS)], [1] * 5, 7, "ab"),
            ([("a", 4, SLEEPS), ("b", 4, COMES)], [1] * 4, 7, "b"),
            ([("a", 4, SLEEPS), ("b", 4, COMES)], [1] * 5, 7, "ab"),
            ([("a", 0, SERVES), ("b", 4, SLEEPS)], [1], 3, "b"),
            ([("a", 2, SERVES), ("b", 4, COMES)], [1, 1], 7, ""),
            ([("a", 4, SLEEPS, 2), ("b", 4, SLEEPS, 1)], [1], 7, "b"),
            ([("a", 4, SLEEPS), ("b", 4, SLEEPS)], [1] * 9, 4, "a"),
            ([("a", 4, SLEEPS), ("b", 4, SLEEPS)], [1] * 9, 0, ""),
            ([("a", 4, SLEEPS), ("b", 4, SLEEPS)], [], 7, ""),
            ([("a", 1, SERVES), ("b", 2, SLEEPS), ("c", 8, SLEEPS)], [4], 9, "c"),
            ([("a", 1, SERVES), ("b", 2, SLEEPS)], [4, 1], 9, ""),
            ([("a", 4, LOST), ("b", 4, SLEEPS)], [1], 7, "b"),
            ([("a", 4, LOST), ("b", 4, SLEEPS)], [1] * 5, 7, "ab"),
            ([("a", inf, SLEEPS)], [1] * 99, inf, "a"),
            ([], [1], 7, ""),
        ],
    )
    def test_as_many_as_those_who_wait_need(self, several, weights, room, names):
        assert wanted(engines(*several), weights, room) == set(names)

    @given(
        st.lists(st.tuples(st.integers(0, 4), st.sampled_from(Stands), st.integers(1, 3))),
        st.lists(st.integers(1, 4)),
        st.integers(0, 12),
    )
    def test_no_more_than_that_and_never_too_few(self, several, weights, room):
        found = [Candidate(str(n), *one) for n, one in enumerate(several)]
        names = wanted(found, weights, room)
        chosen = [one for one in found if one.name in names and one.stands is not LOST]
        assert not any(one.stands is SERVES for one in chosen)
        may, left = [], room
        for weight in weights:
            left -= weight
            if left < 0:
                break
            may.append(weight)
        for one in chosen:  # each of them takes somebody, so one less slot each could be too few
            assert one.free > 0
        assert len(chosen) <= len(may)
        able = [one for one in found if one.stands is not LOST]
        if may and not names:  # nobody needs more: the first fits where one serves, or nowhere
            first = [one for one in able if one.free >= may[0]]
            assert not first or any(one.stands is SERVES for one in first)


class TestWaking:
    """Requests, and whom they wake."""

    def test_one_request_wakes_one_engine_and_is_served_by_it(self):
        scene = Scene()
        scene.pass_time(1.0)
        ticket = scene.come()
        scene.pass_time(5.0)
        assert scene.states() == "awake sleeping"
        assert ticket.replica == "a"
        assert scene.engines["b"].steps == ["probe"] * len(scene.engines["b"].steps)
        assert scene.gate.wakes_total == 1

    def test_a_crowd_wakes_as_many_as_it_needs(self):
        scene = Scene(slots=(4, 4, 4), levels=(1, 1, 1))
        scene.pass_time(1.0)
        for _ in range(6):
            scene.come()
        scene.pass_time(5.0)
        assert scene.states() == "awake awake sleeping"
        assert [engine.inside for engine in scene.engines.values()] == [4, 2, 0]

    def test_more_than_the_cap_lets_in_wake_nobody(self):
        scene = Scene(cap=4)
        scene.pass_time(1.0)
        for _ in range(20):
            scene.come()
        scene.pass_time(5.0)
        assert scene.states() == "awake sleeping"
        assert (scene.gate.in_flight, scene.gate.queued) == (4, 16)

    def test_when_all_that_are_awake_are_full_the_next_wakes_another(self):
        scene = Scene(levels=(0, 1))
        scene.pass_time(1.0)
        for _ in range(4):
            scene.come()
        assert scene.states() == "awake sleeping"
        late = scene.come()
        assert late.state is TicketState.QUEUED
        scene.pass_time(5.0)
        assert late.replica == "b"

    def test_without_a_queue_the_next_wakes_another_too(self):
        """Slots that only the sleeping one has are places; those beyond the cap are not."""
        scene = Scene(levels=(0, 1), queue=0, cap=6)
        scene.pass_time(1.0)
        crowd = [scene.come() for _ in range(7)]
        assert [one.state for one in crowd[3:]] == [
            TicketState.IN_FLIGHT,
            TicketState.QUEUED,
            TicketState.QUEUED,
            TicketState.GONE,
        ]
        scene.pass_time(5.0)
        assert [one.replica for one in crowd[3:6]] == ["a", "b", "b"]

    def test_slots_of_one_that_is_drained_are_no_places(self):
        scene = Scene(levels=(0, 1), queue=0, cap=6)
        scene.pass_time(1.0)
        scene.take(scene.gate.drain_engine("b"))
        crowd = [scene.come() for _ in range(5)]
        assert crowd[4].state is TicketState.GONE

    def test_the_one_that_is_soonest_awake_is_woken(self):
        scene = Scene(levels=(2, 1))
        scene.pass_time(1.0)
        assert scene.come().replica is None
        scene.pass_time(5.0)
        assert scene.states() == "offloaded awake"

    def test_a_key_wakes_the_engine_that_it_is_at_home_at(self):
        homes = set()
        for key in range(8):
            scene = Scene(pick="affinity")
            scene.pass_time(1.0)
            ticket = scene.come(affinity=b"%d" % key)
            scene.pass_time(5.0)
            homes.add(ticket.replica)
        assert homes == {"a", "b"}

    def test_a_wake_that_is_wanted_no_more_is_dropped_before_its_first_step(self):
        gpus = GpuLedger()
        scene = Scene(devices=((0,), (0,)), gpus=gpus)
        scene.pass_time(1.0)
        crowd = [scene.come() for _ in range(5)]
        assert [scene.state(name).value for name in "ab"] == ["waking", "waking"]
        for ticket in crowd[1:]:
            scene.end(ticket, Outcome.CLIENT_GONE_QUEUED)
        scene.pass_time(5.0)
        assert scene.states() == "awake sleeping"
        assert "wake_up" not in scene.engines["b"].steps

    def test_one_that_cannot_be_woken_is_passed_over(self):
        scene = Scene()
        scene.pass_time(1.0)
        scene.kill("a")
        scene.pass_time(1.0)
        ticket = scene.come()
        scene.pass_time(5.0)
        assert (ticket.replica, scene.states()) == ("b", "down awake")

    def test_a_request_that_wakes_nobody_wakes_nobody(self):
        scene = Scene(levels=(0, 1))
        scene.pass_time(1.0)
        for _ in range(4):
            scene.come()
        stray = scene.come()
        scene.end(stray, Outcome.CLIENT_GONE_QUEUED)
        ticket = type(stray)()
        ticket.terms = WakeTerms(wakes=False)
        scene.waiting.append(ticket)
        scene.take(scene.gate.arrive(ticket))
        scene.pass_time(5.0)
        assert scene.gate.sleeper("b").wakes_total <= 1
        assert ticket.state is TicketState.QUEUED

    @pytest.mark.parametrize(
        ("dead", "reason", "hold_s"),
        [
            ("ab", Reason.UPSTREAM_DOWN, POLICY.hold_restarting_s),
            ("", Reason.MODEL_WAKING, POLICY.hold_sleeping_s),
        ],
    )
    def test_while_none_is_awake_callers_wait_as_for_the_soonest_and_are_told_so(
        self, dead, reason, hold_s
    ):
        scene = Scene(levels=(2, 1))
        scene.pass_time(1.0)
        for name in dead:
            scene.kill(name)
        scene.slow = 1000.0  # no step comes to an end in time
        ticket = scene.come()
        assert ticket.promised_s == hold_s
        scene.pass_time(hold_s + 1)
        assert [one.refusal.reason for one in scene.refused] == [reason]

    def test_one_that_is_drained_is_woken_for_nobody_and_sleeps_by_itself(self):
        scene = Scene(levels=(0, 1))
        scene.pass_time(1.0)
        scene.take(scene.gate.drain_engine("a"))
        ticket = scene.come()
        scene.pass_time(20.0)
        assert (ticket.replica, scene.states()) == ("b", "sleeping awake")
        scene.take(scene.gate.drain_engine("b"))
        late = scene.come()
        scene.pass_time(5.0)
        assert late.state is TicketState.QUEUED
        scene.take(scene.gate.drain_engine("a", undo=True))
        scene.pass_time(5.0)
        assert late.replica == "a"

    @pytest.mark.parametrize("levels", [(0, 0), (1, 2)])
    def test_where_all_are_drained_nobody_is_held_for_longer_than_the_queue_allows(self, levels):
        scene = Scene(levels=levels)
        scene.take(scene.gate.change_limits(AdmissionLimits(cap=7, queue=20, queue_timeout_s=8.0)))
        scene.pass_time(1.0)
        for name in "ab":
            scene.take(scene.gate.drain_engine(name))
        scene.come()
        scene.pass_time(7.0)
        assert not scene.refused
        scene.pass_time(2.0)
        (refused,) = scene.refused
        assert refused.refusal.reason is Reason.QUEUE_TIMEOUT  # no wake was to come, nor too late
        assert refused.refusal.sleep_depth is None
        assert "within 8 s: every replica is drained" in refused.refusal.detail
        assert refused.refusal.retry_after_s > 0
        scene.take(scene.gate.drain_engine("a", undo=True))
        later = scene.come()
        scene.pass_time(25.0)
        assert later.replica == "a"


class TestSleeping:
    """Each falls asleep by itself."""

    def test_an_idle_one_sleeps_while_another_serves(self):
        scene = Scene(levels=(0, 0))
        held = scene.come()
        scene.pass_time(15.0)
        assert scene.states() == "awake sleeping"
        assert [(name, fell.reason) for name, fell in scene.fell] == [("b", SleepReason.IDLE)]
        scene.pass_time(100.0)
        assert scene.states() == "awake sleeping", "it holds a slot"
        scene.end(held)
        scene.pass_time(15.0)
        assert scene.states() == "sleeping sleeping"
        assert scene.gate.state is EngineState.SLEEPING

    def test_a_slot_that_cools_keeps_it_awake(self):
        scene = Scene(levels=(0, 0), policy=replace(POLICY, idle_sleep_s=0.5))
        scene.pass_time(0.3)
        ticket = scene.come()
        scene.inside.remove(ticket)
        scene.engines["a"].inside = 0
        scene.gate.cool(ticket, Outcome.CLIENT_GONE_STREAMING)
        steps = len(scene.engines["a"].steps)
        deadline_s = scene.gate.next_deadline()
        scene.clock.advance(1.0)
        for one in scene.gate.expire():
            assert "Changed" not in repr(one) or "'b'" in repr(one)
        assert scene.state("a") is EngineState.AWAKE
        assert (deadline_s, steps) != (None, 0)

    def test_the_upstream_is_as_its_best_engine_and_says_so_once(self):
        scene = Scene()
        scene.pass_time(1.0)
        scene.come()
        scene.pass_time(5.0)
        whole = [state.value for name, state in scene.changes if not name]
        assert whole == ["sleeping", "waking", "awake"]

    def test_an_operator_puts_one_to_sleep_and_wakes_it(self):
        scene = Scene(levels=(0, 0))
        scene.pass_time(1.0)
        scene.take(scene.gate.sleep_now(2, "b"))
        scene.pass_time(5.0)
        assert scene.states() == "awake offloaded"
        scene.take(scene.gate.wake_now("bob", "b"))
        scene.pass_time(30.0)
        assert scene.state("b") is not EngineState.OFFLOADED
        told = [(name, one.request, one.verdict) for name, one in scene.answers]
        assert told == [("b", "sleep", Verdict.DONE), ("b", "wake", Verdict.DONE)]

    def test_a_pin_is_of_one_engine_and_an_order_to_sleep_turns_nobody_away_while_another_may_wake(
        self,
    ):
        scene = Scene(levels=(0, 0))
        scene.pass_time(1.0)
        scene.take(scene.gate.stand(_order(OrderKind.PIN), "b"))
        scene.pass_time(20.0)
        assert scene.states() == "sleeping awake"
        scene.take(scene.gate.stand(_order(OrderKind.ASLEEP), "b"))
        scene.pass_time(5.0)
        assert scene.states() == "sleeping sleeping"
        ticket = scene.come()
        scene.pass_time(5.0)
        assert (ticket.replica, scene.states()) == ("a", "awake sleeping")
        scene.end(ticket)
        scene.take(scene.gate.stand(_order(OrderKind.ASLEEP), "a"))
        scene.come()
        assert [one.refusal.reason for one in scene.refused] == [Reason.MODEL_ASLEEP]

    def test_replicas_on_one_gpu_take_turns_there(self):
        scene = Scene(devices=((0,), (0,)), levels=(1, 1))
        scene.pass_time(1.0)
        for _ in range(6):
            scene.come()
        scene.pass_time(1.0)
        moving = [engine.busy for engine in scene.engines.values()]
        assert sum(moving) == 1
        scene.pass_time(10.0)
        assert scene.states() == "awake awake"


def _order(kind: OrderKind) -> Standing:
    order = StandingOrder(kind, OrderOwner.OPERATOR, "bob")
    return standing(order, Wish(), pinned=False, instant_s=0.0)


ACTS = ("come", "come", "come", "end", "end", "leave", "wait", "wait", "kill", "back", "drain")
MORE = (*ACTS, "sleep", "wake", "stand", "out of band", "undrain")


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    devices=st.sampled_from([(), ((0,), (1,), (2,)), ((0,), (0,), (1,)), ((0,), (0,), (0,))]),
    idle_s=st.sampled_from([0.0, 0.5, 5.0]),
    cap=st.integers(1, 9),
    pick=st.sampled_from(["least", "affinity"]),
)
def test_no_story_breaks_a_law_and_in_the_end_all_are_served(seed, devices, idle_s, cap, pick):
    rng = Random(seed)
    slots = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
    levels = [rng.randint(0, 2) for _ in slots]
    policy = replace(POLICY, idle_sleep_s=idle_s, idle_offload_s=idle_s and idle_s + 5)
    scene = Scene(
        slots, levels, cap=min(cap, sum(slots)), policy=policy, devices=devices, pick=pick
    )
    for _ in range(rng.randint(5, 40)):
        _act(scene, rng, rng.choice(MORE))
    for name, engine in scene.engines.items():  # peace
        scene.take(scene.gate.drain_engine(name, undo=True))
        scene.take(scene.gate.stand(NOTHING, name))
        if engine.dead:
            engine.come_back()
    for _ in range(200):
        scene.pass_time(3.0)
        for ticket in [*scene.inside]:
            scene.end(ticket)
        if not scene.waiting and not scene.inside:
            break
    assert not [*scene.waiting, *scene.inside], scene.states()
    ticket = scene.come()
    scene.pass_time(100.0)
    assert ticket.state is TicketState.IN_FLIGHT, scene.states()
    assert scene.engines[ticket.replica].level == 0
    scene.end(ticket)
    assert scene.gate.in_flight == scene.gate.queued == 0
    for name, fell in scene.fell:
        assert fell.reason is not SleepReason.OUT_OF_BAND or name in scene.meddled


def _act(scene: Scene, rng: Random, act: str) -> None:
    name = rng.choice([*scene.engines])
    engine = scene.engines[name]
    match act:
        case "come":
            scene.come(rng.choice((1, 1, 2, 4)), rng.choice((None, b"x", b"y")))
        case "end" if scene.inside:
            scene.end(
                rng.choice(scene.inside), rng.choice((Outcome.SERVED, Outcome.UPSTREAM_ERROR))
            )
        case "leave" if scene.waiting:
            scene.end(rng.choice(scene.waiting), Outcome.CLIENT_GONE_QUEUED)
        case "wait":
            scene.pass_time(rng.choice((0.0, 0.05, 0.5, 3.0, 20.0)))
        case "kill" if rng.random() < 0.3 and not engine.dead:
            scene.kill(name)
        case "back" if engine.dead:
            engine.come_back()
        case "drain" | "undrain":
            scene.take(scene.gate.drain_engine(name, undo=act == "undrain"))
        case _:
            _order_or_meddle(scene, rng, act, name)


def _order_or_meddle(scene: Scene, rng: Random, act: str, name: str) -> None:
    engine = scene.engines[name]
    match act:
        case "sleep":
            scene.take(scene.gate.sleep_now(rng.randint(1, 2), name))
        case "wake":
            scene.take(scene.gate.wake_now("bob", name))
        case "stand":
            order = rng.choice((NOTHING, _order(OrderKind.PIN), _order(OrderKind.ASLEEP)))
            scene.take(scene.gate.stand(order, name))
        case "out of band" if not (engine.dead or engine.busy or engine.inside):
            scene.meddle(name, rng.randint(0, 1))
        case _:
            pass
