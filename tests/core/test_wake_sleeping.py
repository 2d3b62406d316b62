"""Falling asleep: when, when not, how deep, and what comes of it."""

import pytest
from wake_scenes import TIMES, Scene, befalls, of, refusals, transitions

from tornado_frontdoor.core.decisions import Answered, EngineState, Note, Verdict
from tornado_frontdoor.core.wake.policy import SleepPolicy
from tornado_frontdoor.engines import vllm


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_an_idle_engine_sleeps_and_later_deeper(scene):
    site = scene.site(idle_sleep_s=60.0, idle_offload_s=300.0)
    site.arrive(1.0)
    scene.pass_s(1.0)
    ended_s = scene.now
    scene.wait_for(lambda: site.gate.state is EngineState.SLEEPING)
    assert scene.now - ended_s == pytest.approx(60.0 + TIMES.sleep_s[0], abs=0.5)
    scene.wait_for(lambda: site.gate.state is EngineState.OFFLOADED)
    assert scene.now - ended_s == pytest.approx(300.0 + TIMES.sleep_s[1] + 1.8, abs=0.5)
    assert transitions(site) == ["sleep_1", "wake_weights", "sleep_2"]
    assert site.door.engine.memory.depth == 2, "and not only by its gauge"


@pytest.mark.parametrize("version", ["0.16", "0.22", "0.30", "0.31", "0.33"])
def test_deeper_is_truly_deeper_in_every_release(scene, version):
    site = scene.site(version=version, idle_sleep_s=10.0, idle_offload_s=30.0)
    scene.pass_s(60.0)
    assert site.door.engine.memory.depth == 2
    assert site.gate.state is EngineState.OFFLOADED
    site.arrive(1.0)
    scene.pass_s(60.0)
    assert site.ends["served"] == 1


def test_both_tiers_at_once_go_straight_to_the_deeper(scene):
    site = scene.site(idle_sleep_s=10.0, idle_offload_s=10.0)
    scene.pass_s(15.0)
    assert transitions(site) == ["sleep_2"]


def test_a_tier_of_0_is_never(scene):
    """Case K8: there is no other way to say never, and no default that means it."""
    site = scene.site(idle_sleep_s=0.0, idle_offload_s=0.0)
    scene.pass_s(100_000.0)
    assert site.gate.state is EngineState.AWAKE
    with pytest.raises(TypeError, match="idle_sleep_s"):
        SleepPolicy(idle_offload_s=1.0)  # type: ignore[call-arg]
    for wrong in ({"idle_sleep_s": -1.0}, {"hold_sleeping_s": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            scene.site(key="wrong", **wrong)


def test_an_engine_that_was_awake_before_us_and_is_never_called_falls_asleep(scene):
    """Case K9."""
    site = scene.site(idle_sleep_s=60.0)
    scene.pass_s(70.0)
    assert site.gate.state is EngineState.SLEEPING


def test_looks_are_no_activity(scene):
    """Case V21: one a second for all of the idle time."""
    site = scene.site(idle_sleep_s=3600.0, probe_period_s=1.0)
    scene.pass_s(3610.0)
    assert site.gate.state is EngineState.SLEEPING


def test_a_long_stream_is_not_idle(scene):
    """Case K7."""
    site = scene.site(idle_sleep_s=60.0)
    site.arrive(7200.0)
    scene.pass_s(7190.0)
    assert site.gate.state is EngineState.AWAKE
    scene.pass_s(80.0)
    assert site.gate.state is EngineState.SLEEPING
    assert site.ends["served"] == 1


def test_idle_time_runs_from_the_end_of_a_request_not_from_its_arrival(scene):
    site = scene.site(idle_sleep_s=60.0)
    site.arrive(50.0)
    scene.pass_s(100.0)
    assert site.gate.state is EngineState.AWAKE
    scene.pass_s(15.0)
    assert site.gate.state is EngineState.SLEEPING


def test_an_idle_time_shorter_than_the_wake_puts_nobody_to_sleep_again(scene):
    """Cases S3, S4: it runs from the last answer."""
    site = scene.site(asleep=2, idle_sleep_s=10.0)
    site.arrive(1.0)
    scene.wait_for(lambda: site.ends["served"] == 1)
    ended_s = scene.now
    scene.wait_for(lambda: site.gate.state is EngineState.FALLING_ASLEEP)
    assert scene.now - ended_s == pytest.approx(10.0, abs=0.3)


def test_who_comes_while_it_falls_is_held_and_served_and_so_are_those_after(scene):
    """Case S1: and a second idle cycle works."""
    site = scene.site(idle_sleep_s=10.0)
    for _ in range(3):
        scene.wait_for(lambda: site.gate.state is EngineState.FALLING_ASLEEP)
        site.arrive(1.0)
        scene.wait_for(lambda: not site.inside, 20.0)
    assert site.ends["served"] == 3
    assert transitions(site)[:3] == ["sleep_1", "wake_up", "canary"]


def test_who_comes_in_the_instant_of_the_timer_is_served_without_a_wait(scene):
    site = scene.site(idle_sleep_s=10.0, manners={"delay_s": 0.5})
    scene.wait_for(lambda: site.gate.wake_step is not None)
    site.arrive(30.0)
    assert site.gate.in_flight == 1
    scene.pass_s(29.0)
    assert transitions(site) == []


def test_work_of_another_hand_keeps_it_awake_until_it_is_done(scene):
    """Case V3: `/sleep` would cut it off."""
    site = scene.site(idle_sleep_s=10.0)
    site.door.engine.submit(("foreign", 1), 100.0, scene.now)
    scene.pass_s(90.0)
    assert transitions(site) == []
    site.call(lambda: site.gate.sleep_now(1))
    scene.pass_s(0.0)
    (answer,) = of(site, Answered)
    assert answer.verdict is Verdict.BUSY
    assert "1 requests of somebody else" in answer.detail
    scene.pass_s(30.0)
    assert site.gate.state is EngineState.SLEEPING


def test_an_engine_that_does_not_show_its_work_is_put_to_sleep_by_operators_only(scene):
    site = scene.site(idle_sleep_s=10.0, manners={"shows_work": False})
    scene.pass_s(60.0)
    assert site.gate.state is EngineState.AWAKE
    site.call(lambda: site.gate.sleep_now(1))
    scene.pass_s(10.0)
    assert site.gate.state is EngineState.SLEEPING


def test_an_engine_that_dies_of_its_sleep_is_down_and_not_asleep(scene):
    """Case V3."""
    site = scene.site(idle_sleep_s=10.0)
    befalls(site, "die_after", vllm.SLEEP_1)
    scene.pass_s(20.0)
    assert site.gate.state is EngineState.DOWN


def test_a_sleep_that_did_nothing_is_not_believed(scene):
    """Case V17."""
    site = scene.site(idle_sleep_s=10.0)
    befalls(site, "noop", vllm.SLEEP_1, 1)
    scene.pass_s(15.0)
    assert site.states[EngineState.SLEEPING] == 0
    scene.pass_s(40.0)
    assert site.gate.state is EngineState.SLEEPING


def test_a_gauge_that_tells_another_level_is_told_to_the_operator(scene):
    """Case V17."""
    site = scene.site()
    scene.hand(site, "sleep", level=2, slow_s=1.0)
    site.call(lambda: site.gate.sleep_now(1))
    scene.pass_s(30.0)
    assert site.gate.state is EngineState.OFFLOADED


def test_a_sleep_that_never_answers_bounds_everybody_and_nothing_goes_on_top(scene):
    """Case V23."""
    site = scene.site(idle_sleep_s=10.0, hold_sleeping_s=30.0)
    befalls(site, "hang", vllm.SLEEP_1, 1)
    scene.pass_s(11.0)
    site.arrive(1.0)
    scene.pass_s(600.0)
    assert transitions(site) == ["sleep_1"], "no wake on top of it"
    assert [refusal.reason.value for refusal in refusals(site)] == ["model_waking"]
    assert site.gate.state is EngineState.UNKNOWN
    assert any("sleep_1 timed out" in note.text for note in of(site, Note))
    scene.kill(site)
    scene.pass_s(70.0)
    site.arrive(1.0)
    scene.pass_s(5.0)
    assert site.ends["served"] == 1


def test_a_sleep_that_fails_is_tried_once_more_and_then_not_at_once(scene):
    """Case S6: it recovers by itself."""
    site = scene.site(idle_sleep_s=10.0)
    befalls(site, "fails", vllm.SLEEP_1, 2)
    scene.pass_s(14.0)
    assert transitions(site).count("sleep_1") == 2
    site.arrive(1.0)
    scene.pass_s(3.0)
    assert site.ends["served"] == 1
    scene.pass_s(40.0)
    assert site.gate.state is EngineState.SLEEPING


def test_who_comes_before_a_second_try_stops_it(scene):
    """Law 7: nothing is put to sleep while anyone is inside."""
    site = scene.site(idle_sleep_s=10.0)
    befalls(site, "fails", vllm.SLEEP_1, 2)
    scene.wait_for(lambda: site.gate.state is EngineState.FALLING_ASLEEP)
    site.arrive(1.0)
    scene.pass_s(5.0)
    assert site.ends["served"] == 1
    assert transitions(site).count("sleep_1") == 1


def test_who_comes_on_the_way_down_turns_it_around_before_the_weights_are_gone(scene):
    site = scene.site(asleep=1, idle_offload_s=60.0)
    scene.wait_for(lambda: site.gate.state is EngineState.FALLING_ASLEEP)
    site.arrive(1.0)
    scene.pass_s(10.0)
    assert transitions(site) == ["wake_weights", "wake_up", "canary"]
    assert site.ends["served"] == 1


def test_an_engine_without_sleep_mode_is_always_awake_and_said_to_be_so_once(scene):
    """Case V18."""
    site = scene.site(key="plain", manners={"supports_sleep": False}, idle_sleep_s=10.0)
    site.arrive(1.0)
    scene.pass_s(1000.0)
    assert site.ends["served"] == 1
    assert site.gate.sleep_support is False
    assert transitions(site) == []
    site.call(lambda: site.gate.sleep_now(1))
    assert of(site, Answered) == [
        Answered("sleep", Verdict.UNSUPPORTED, "the engine has no sleep mode", 1)
    ]
    assert len(of(site, Note)) == 0, "it was said when it was found out"


class TestOperators:
    """What they ask for is answered once."""

    def test_sleep_is_answered_when_it_sleeps(self, scene):
        site = scene.site()
        site.call(lambda: site.gate.sleep_now(2))
        scene.pass_s(0.25)
        assert of(site, Answered) == []
        scene.pass_s(5.0)
        assert of(site, Answered) == [Answered("sleep", Verdict.DONE, level=2)]
        site.call(lambda: site.gate.sleep_now(1))
        assert of(site, Answered)[1:] == [Answered("sleep", Verdict.DONE, level=1)], (
            "deeper than asked"
        )

    def test_sleep_is_refused_while_anyone_is_inside(self, scene):
        site = scene.site()
        site.arrive(10.0)
        site.call(lambda: site.gate.sleep_now(1))
        assert of(site, Answered) == [Answered("sleep", Verdict.BUSY, "1 is inside", 1)]
        assert site.gate.state is EngineState.AWAKE

    def test_a_caller_who_comes_first_wins(self, scene):
        site = scene.site(manners={"delay_s": 0.5})
        site.call(lambda: site.gate.sleep_now(1))
        site.arrive(1.0)
        assert of(site, Answered) == [Answered("sleep", Verdict.BUSY, "somebody came", 1)]
        scene.pass_s(5.0)
        assert transitions(site) == []

    def test_a_model_put_to_sleep_stays_so_until_somebody_asks_for_it(self, scene):
        """Case V21."""
        site = scene.site(idle_sleep_s=0.0)
        site.call(lambda: site.gate.sleep_now(1))
        scene.pass_s(10_000.0)
        assert site.gate.state is EngineState.SLEEPING
        site.arrive(1.0)
        scene.pass_s(10.0)
        assert site.ends["served"] == 1

    def test_wake_is_answered_when_it_is_awake_and_idleness_begins_then(self, scene):
        site = scene.site(asleep=1, idle_sleep_s=50.0)
        site.call(site.gate.wake_now)
        scene.pass_s(5.0)
        assert of(site, Answered) == [Answered("wake", Verdict.DONE)]
        scene.pass_s(40.0)
        assert site.gate.state is EngineState.AWAKE

    def test_wake_while_it_falls_is_answered_after_both(self, scene):
        site = scene.site()
        site.call(lambda: site.gate.sleep_now(1))
        scene.pass_s(1.0)
        site.call(site.gate.wake_now)
        scene.pass_s(20.0)
        assert of(site, Answered) == [
            Answered("sleep", Verdict.DONE, level=1),
            Answered("wake", Verdict.DONE),
        ]

    def test_a_wake_that_fails_is_answered_too(self, scene):
        site = scene.site(asleep=1)
        befalls(site, "fails", vllm.WAKE)
        site.call(site.gate.wake_now)
        scene.pass_s(5.0)
        (answer,) = of(site, Answered)
        assert answer.verdict is Verdict.FAILED
        assert "wake_up failed: 500" in answer.detail
