"""The gate of an engine that sleeps, as drivers and callers see it: holds, words, return times."""

import sys
from dataclasses import replace
from random import Random

import pytest
from wake_scenes import LIMITS, Scene, befalls, of, refusals

from tornado_frontdoor.core.clock import ManualClock
from tornado_frontdoor.core.decisions import (
    Admit,
    Changed,
    EngineState,
    Outcome,
    Perform,
    Reason,
    RoomDecided,
    SleepDepth,
)
from tornado_frontdoor.core.gate import AdmissionLimits, Gate, GateError, SleepConfig, SleepPolicy
from tornado_frontdoor.core.gpu_ledger import GpuLedger
from tornado_frontdoor.core.request import Ticket, UpstreamKey
from tornado_frontdoor.engines import vllm
from tornado_frontdoor.engines.base import PROBE, Report, Seen, StepResult


@pytest.fixture
def scene() -> Scene:
    return Scene()


class TestHolds:
    """How long callers wait for an engine, and what they are told when that was in vain."""

    @pytest.mark.parametrize(
        ("asleep", "hold", "depth", "retry_after_s"),
        [
            (1, "hold_sleeping_s", SleepDepth.SLEEPING, 10),
            (2, "hold_offloaded_s", SleepDepth.OFFLOADED, 60),
        ],
    )
    def test_a_hold_in_vain_is_told_with_its_depth(self, scene, asleep, hold, depth, retry_after_s):
        site = scene.site(asleep=asleep, **{hold: 1.0})
        site.arrive(1.0)
        scene.pass_s(0.75)
        assert refusals(site) == []
        scene.pass_s(0.25)
        (told,) = refusals(site)
        assert told.reason is Reason.MODEL_WAKING
        assert told.sleep_depth is depth
        assert told.retry_after_s == retry_after_s
        assert told.estimated_wake_s > 0
        assert "text is waking from" in told.detail
        assert "within 1 s" in told.detail
        assert told.upstream == "text"

    def test_the_wake_goes_on_after_its_callers_were_refused(self, scene):
        site = scene.site(asleep=2, hold_offloaded_s=1.0)
        site.arrive(1.0)
        scene.pass_s(60.0)
        assert site.gate.state is EngineState.AWAKE

    def test_the_estimate_is_what_is_left_of_the_wake(self, scene):
        site = scene.site(asleep=1, hold_sleeping_s=1.0)
        site.gate._estimates.observe(SleepDepth.SLEEPING, 9.0)
        site.arrive(1.0)
        scene.pass_s(2.0)
        assert refusals(site)[0].estimated_wake_s == 8.0

    def test_time_held_does_not_count_against_the_wait_for_a_slot(self, scene):
        site = scene.site(asleep=2, cap=1)
        for _ in range(2):
            site.arrive(20.0)
        scene.pass_s(80.0)
        assert site.ends["served"] == 2
        held = [admit.paused_s for admit in of(site, Admit)]
        assert held[0] == held[1] > 20.0

    def test_before_the_first_look_callers_are_held_as_for_level_1(self, scene):
        """It has only to show that it is awake, as far as anybody knows."""
        site = scene.site(settled=False, hold_sleeping_s=3.0)
        befalls(site, "hang", PROBE)
        site.arrive(1.0)
        assert site.gate.sleep_depth is SleepDepth.SLEEPING
        scene.pass_s(2.5)
        assert refusals(site) == []
        scene.pass_s(0.5)
        assert [told.sleep_depth for told in refusals(site)] == [SleepDepth.SLEEPING]

    def test_who_came_before_the_first_look_is_held_for_what_it_finds(self, scene):
        site = scene.site(settled=False, asleep=2, hold_sleeping_s=3.0)
        site.arrive(1.0)
        scene.pass_s(60.0)
        assert site.ends["served"] == 1, "after a wake of 23 s"

    def test_a_newcomer_is_held_by_the_settings_of_now_and_who_waits_as_was_promised(self, scene):
        site = scene.site(asleep=1, hold_sleeping_s=25.0)
        befalls(site, "hang", vllm.WAKE)
        site.arrive(1.0)
        scene.pass_s(1.0)
        policy = replace(site.wake_limits, hold_sleeping_s=2.0)
        site.call(lambda: site.gate.change_limits(site.limits, policy))
        site.arrive(1.0)
        scene.pass_s(2.0)
        (newcomer,) = refusals(site)
        assert "within 2 s" in newcomer.detail
        scene.pass_s(21.5)
        assert len(refusals(site)) == 1
        scene.pass_s(0.5)
        assert "within 25 s" in refusals(site)[1].detail

    def test_back_at_level_1_newcomers_are_held_for_it_and_who_waits_as_was_promised(self, scene):
        site = scene.site(hold_sleeping_s=3.0, hold_restarting_s=70.0)
        scene.kill(site)
        site.arrive(1.0)
        scene.pass_s(60.0)
        scene.hand(site, "sleep", level=1)
        site.meddled = True
        befalls(site, "hang", vllm.WAKE)
        scene.wait_for(lambda: site.gate.wake_step == "wake_up")
        assert site.gate.sleep_depth is SleepDepth.SLEEPING
        site.arrive(1.0)
        scene.pass_s(3.0)
        (newcomer,) = refusals(site)
        assert "within 3 s" in newcomer.detail
        assert site.gate.queued == 1
        scene.pass_s(7.0)
        assert "within 70 s" in refusals(site)[1].detail

    def test_who_waits_for_a_restart_is_not_sent_away_by_better_news(self, scene):
        """The engine is back after 60 s, asleep, and its hold would be over since 30 s."""
        site = scene.site(hold_sleeping_s=30.0)
        scene.kill(site)
        site.arrive(1.0)
        scene.pass_s(60.0)
        scene.hand(site, "sleep", level=1)
        site.meddled = True
        scene.pass_s(30.0)
        assert refusals(site) == []
        assert site.ends["served"] == 1

    def test_with_nobody_waiting_a_hold_shrinks_again(self, scene):
        site = scene.site(asleep=1, hold_sleeping_s=1.0, hold_restarting_s=300.0)
        scene.kill(site)
        scene.pass_s(6.0)
        assert site.gate.state is EngineState.DOWN
        scene.pass_s(60.0)
        site.call(lambda: site.gate.sleep_now(1))
        scene.pass_s(10.0)
        befalls(site, "slow", vllm.WAKE)
        site.arrive(1.0)
        scene.pass_s(1.0)
        assert [told.sleep_depth for told in refusals(site)] == [SleepDepth.SLEEPING]

    def test_an_uncapped_upstream_says_how_many_may_wait(self, scene):
        site = scene.site(asleep=1, cap=None, queue=2)
        for _ in range(3):
            site.arrive(1.0)
        (told,) = refusals(site)
        assert told.reason is Reason.QUEUE_FULL
        assert told.detail == "All 2 places to wait for text are taken"
        scene.pass_s(5.0)
        assert site.ends["served"] == 2

    def test_a_request_that_can_never_run_wakes_nobody(self, scene):
        site = scene.site(asleep=1, cap=2)
        decisions = site.gate.arrive(Ticket(3))
        assert [type(decision).__name__ for decision in decisions] == ["Refuse"]
        assert site.gate.state is EngineState.SLEEPING


class TestStatus:
    """What an operator can ask."""

    def test_a_gate_without_sleep_is_awake_and_refuses_to_talk_of_waking(self):
        gate = Gate(UpstreamKey("a"), limits(), ManualClock(), Random(1))
        assert gate.state is EngineState.AWAKE
        assert (gate.sleep_depth, gate.wake_step, gate.wakes_total) == (None, None, 0)
        assert gate.sleep_support is False
        for wish in (gate.wake_now, gate.lost, gate.hear_ledger, lambda: gate.sleep_now(1)):
            with pytest.raises(GateError, match="a has no sleep table"):
                wish()

    def test_it_tells_where_a_wake_is(self, scene):
        site = scene.site(asleep=2)
        site.arrive(1.0)
        scene.pass_s(0.25)
        assert site.gate.wake_step == "wake_weights"
        scene.pass_s(5.0)
        assert site.gate.wake_step == "reload_weights"
        scene.pass_s(60.0)
        assert site.gate.wake_step is None
        assert site.gate.sleep_depth is None
        assert site.gate.sleep_support is True

    def test_activity_is_the_last_arrival_or_end(self, scene):
        site = scene.site()
        assert site.gate.idle_for_s() is None
        site.arrive(10.0)
        scene.pass_s(4.0)
        assert site.gate.idle_for_s() == 4.0
        scene.pass_s(10.0)
        assert site.gate.idle_for_s() == 4.0

    def test_states_are_told_in_order_and_who_wanted_them(self, scene):
        site = scene.site(asleep=1)
        site.arrive(1.0)
        scene.pass_s(5.0)
        assert of(site, Changed) == [
            Changed(EngineState.WAKING, by="a request"),
            Changed(EngineState.AWAKE),
        ]


class TestGpus:
    """Gates that share a GPU, with news that is late."""

    def test_news_of_a_gpu_that_was_given_back_meanwhile_begins_nothing(self):
        gpus = GpuLedger()
        first, second, third = (asleep_gate(key, gpus) for key in "abc")
        tickets = {}
        for gate in (first, second, third):
            tickets[gate.key] = Ticket()
            gate.arrive(tickets[gate.key])
        assert first.wake_step == "probe"
        freed = first.finish(tickets[first.key], Outcome.CLIENT_GONE_QUEUED)
        assert RoomDecided(second.key) in freed
        freed = second.finish(tickets[second.key], Outcome.CLIENT_GONE_QUEUED)
        assert RoomDecided(third.key) in freed
        second.arrive(Ticket())
        assert second.hear_ledger() == [], "the old news, late"
        assert second.wake_step == "gpu"
        assert [type(order) for order in third.hear_ledger()] == [Perform]


class TestLimits:
    """A configuration that is read again."""

    def test_a_new_idle_time_wakes_nobody_and_puts_nobody_to_sleep(self, scene):
        """Cases S13, S14: nor does it disturb a wake."""
        awake = scene.site("a", idle_sleep_s=100.0)
        asleep = scene.site("b", asleep=1)
        waking = scene.site("c", asleep=2)
        waking.arrive(1.0)
        scene.pass_s(5.0)
        for site in (awake, asleep, waking):
            for idle_s in (50.0, 60.0, 70.0, 80.0, 90.0):
                new = SleepPolicy(**{**LIMITS, "idle_sleep_s": idle_s})
                site.call(lambda site=site, new=new: site.gate.change_limits(site.limits, new))
        assert (awake.gate.state, asleep.gate.state) == (EngineState.AWAKE, EngineState.SLEEPING)
        scene.pass_s(40.0)
        assert waking.gate.wakes_total == 1
        assert waking.ends["served"] == 1
        assert awake.gate.state is EngineState.AWAKE
        scene.pass_s(60.0)
        assert awake.gate.state is EngineState.SLEEPING

    def test_a_shorter_hold_is_in_force_at_once_for_those_who_come(self, scene):
        site = scene.site(asleep=2)
        new = SleepPolicy(**{**LIMITS, "hold_offloaded_s": 1.0})
        site.call(lambda: site.gate.change_limits(site.limits, new))
        site.arrive(1.0)
        scene.pass_s(1.0)
        assert len(refusals(site)) == 1


def limits() -> AdmissionLimits:
    return AdmissionLimits(cap=6, queue=8, queue_timeout_s=30.0)


def calls_of_pairs(gate: Gate) -> float:
    """Return how many calls an arrival and its end take at a gate, which no machine changes."""
    called = 0

    def count(_frame: object, event: str, _what: object) -> None:
        nonlocal called
        called += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        for _ in range(100):
            ticket = Ticket()
            gate.arrive(ticket)
            gate.finish(ticket, Outcome.SERVED)
    finally:
        sys.setprofile(None)
    return called / 100


def asleep_gate(key: str, gpus: GpuLedger) -> Gate:
    gate = Gate(
        UpstreamKey(key),
        limits(),
        ManualClock(),
        Random(1),
        SleepConfig(kind=vllm.KIND, limits=SleepPolicy(**{**LIMITS, "devices": (0,)}), gpus=gpus),
    )
    (order,) = [order for order in gate.expire() if isinstance(order, Perform)]
    gate.report(Report(order.number, StepResult.DONE, Seen(True, 1, 0, 0, "0.33.0")))
    assert gate.state is EngineState.SLEEPING
    return gate


def awake_gate() -> Gate:
    gate = Gate(
        UpstreamKey("a"),
        limits(),
        ManualClock(),
        Random(1),
        SleepConfig(kind=vllm.KIND, limits=SleepPolicy(**{**LIMITS, "canary": False})),
    )
    (order,) = [order for order in gate.expire() if isinstance(order, Perform)]
    gate.report(Report(order.number, StepResult.DONE, Seen(False, 0, 0, 0, "0.33.0")))
    assert gate.state is EngineState.AWAKE
    return gate


def test_an_engine_that_can_sleep_does_not_slow_its_gate_by_much():
    plain = Gate(UpstreamKey("a"), limits(), ManualClock(), Random(1))
    assert calls_of_pairs(plain) < 10
    assert calls_of_pairs(awake_gate()) < 60
