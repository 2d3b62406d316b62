"""What goes wrong: failing steps, deaths, other hands, neighbours, a front door that is killed."""

import pytest
from wake_engines import VERSIONS
from wake_scenes import Scene, befalls, of, refusals, transitions

from tornado_frontdoor.core.decisions import Answered, EngineState, Note, SleepDepth, WakeEnded
from tornado_frontdoor.core.wake.policy import FIRST_PAUSE_S, LONGEST_PAUSE_S, Backoff
from tornado_frontdoor.engines import vllm


@pytest.fixture
def scene() -> Scene:
    return Scene()


class TestFailures:
    """One retry, then a pause that grows."""

    def test_a_step_that_fails_once_costs_its_callers_a_second(self, scene):
        """Case S5."""
        site = scene.site(asleep=2)
        befalls(site, "fails", vllm.RELOAD, 1)
        site.arrive(1.0)
        scene.pass_s(30.0)
        assert site.ends["served"] == 1
        assert site.gate.wakes_total == 1
        assert transitions(site).count("reload_weights") == 2

    def test_a_wake_that_keeps_failing_is_tried_ever_less_often(self, scene):
        """Case S32: clients poll each second for half an hour."""
        site = scene.site(asleep=1)
        befalls(site, "fails", vllm.WAKE)
        for _ in range(1800):
            site.arrive(1.0)
            scene.pass_s(1.0)
        assert site.gate.wakes_total < 16
        assert site.ends["served"] == 0

    def test_who_was_held_in_vain_is_told_when_it_is_tried_again(self, scene):
        """Case S32."""
        site = scene.site(asleep=1)
        befalls(site, "fails", vllm.WAKE)
        for _ in range(900):
            site.arrive(1.0)
            scene.pass_s(1.0)
        site.decisions.clear()
        site.arrive(1.0)
        scene.pass_s(31.0)
        told = refusals(site)[-1]
        assert told.retry_after_s > 10
        assert "the last try failed (wake_up failed: 500)" in told.detail

    def test_after_a_failure_the_next_request_finds_a_clean_start(self, scene):
        """Case S5."""
        site = scene.site(asleep=1)
        befalls(site, "fails", vllm.WAKE, 2)
        site.arrive(1.0)
        scene.pass_s(20.0)
        assert site.ends["served"] == 1
        assert [ended.succeeded for ended in of(site, WakeEnded)] == [False, True]

    def test_an_operator_does_not_wait_for_the_pause(self, scene):
        site = scene.site(asleep=1)
        befalls(site, "fails", vllm.WAKE, 8)
        for _ in range(60):
            site.arrive(1.0)
            scene.pass_s(1.0)
        site.call(site.gate.wake_now)
        scene.pass_s(4.0)
        assert site.gate.state is EngineState.AWAKE

    @pytest.mark.parametrize("version", ["0.16", "0.22", "0.24"])
    def test_a_wake_that_failed_is_not_repeated_at_once_where_that_kills(self, scene, version):
        site = scene.site(version=version, asleep=1)
        befalls(site, "fails", vllm.WAKE, 1)
        site.arrive(1.0)
        scene.pass_s(1.5)
        assert transitions(site) == ["wake_up"]
        scene.pass_s(90.0)
        assert site.ends["served"] == 1, "later it is, or the engine has died of it and restarted"

    def test_weights_that_cannot_be_loaded_keep_level_2_out_of_use(self, scene):
        """Case V6: nobody is let in, it goes back to sleep, and level 1 is the deepest from now."""
        site = scene.site(asleep=2, idle_sleep_s=20.0, idle_offload_s=40.0, hold_offloaded_s=60.0)
        befalls(site, "fails", vllm.RELOAD)
        site.arrive(1.0)
        scene.pass_s(120.0)
        assert [refusal.reason.value for refusal in refusals(site)] == ["model_waking"]
        assert site.gate.state is EngineState.OFFLOADED
        assert "sleep_2" in transitions(site)
        assert site.door.engine.memory.depth == 2, "its weights are off the GPU again"
        assert "reload_weights failed: 500" in site.gate.sleep_fault
        assert any("level 2 is off" in note.text for note in of(site, Note))
        scene.kill(site)
        scene.pass_s(120.0)
        scene.pass_s(200.0)
        assert site.gate.state is EngineState.SLEEPING

    def test_level_2_is_in_use_again_when_the_storage_is_back(self, scene):
        site = scene.site(asleep=2, idle_offload_s=40.0)
        befalls(site, "fails", vllm.RELOAD, 4)
        site.arrive(1.0)
        scene.pass_s(100.0)
        assert site.ends["served"] == 1
        assert site.gate.sleep_fault is None

    def test_a_step_that_times_out_is_not_repeated_before_a_look_was_answered(self, scene):
        site = scene.site(asleep=1)
        befalls(site, "hang", vllm.WAKE, 1)
        site.arrive(1.0)
        scene.pass_s(900.0)
        assert transitions(site) == ["wake_up"]
        assert site.gate.state is EngineState.UNKNOWN

    def test_the_pause_doubles_up_to_its_longest(self):
        pause = Backoff()
        found = []
        for _ in range(12):
            pause = pause.failed(1000.0)
            found.append(pause.until_s - 1000.0)
        assert found[:4] == [FIRST_PAUSE_S, 4.0, 8.0, 16.0]
        assert found[-1] == LONGEST_PAUSE_S
        assert not Backoff().on(1000.0)
        assert Backoff().failed(1000.0).until_s == 1000.0 + FIRST_PAUSE_S


class TestDeaths:
    """Nobody at the address."""

    def test_callers_are_held_while_it_restarts_and_then_served(self, scene):
        site = scene.site()
        scene.kill(site)
        site.arrive(1.0)
        assert site.gate.state is EngineState.DOWN, "its connection was refused"
        scene.pass_s(0.0)
        assert site.gate.queued == 1, "and it waits"
        scene.pass_s(63.0)
        assert site.ends["served"] == 1
        assert of(site, WakeEnded)[-1].depth is SleepDepth.RESTARTING
        assert site.gate.learned_s["restarting"] == pytest.approx(60.5, abs=1.0)

    def test_who_waits_for_a_restart_waits_no_more_than_a_second_longer(self, scene):
        """Case K2: the pause between looks does not grow while somebody waits."""
        site = scene.site()
        scene.kill(site)
        site.arrive(0.0)
        took_s = scene.wait_for(lambda: site.ends["served"] == 1)
        assert 60.0 <= took_s <= 61.75

    def test_a_restart_that_takes_too_long_is_refused_with_its_depth(self, scene):
        site = scene.site(hold_restarting_s=30.0)
        scene.kill(site)
        site.arrive(1.0)
        scene.pass_s(31.0)
        (told,) = refusals(site)
        assert told.reason.value == "upstream_down"
        assert told.sleep_depth is SleepDepth.RESTARTING
        assert told.retry_after_s == 600

    def test_a_death_while_it_sleeps_is_noticed(self, scene):
        site = scene.site(asleep=1)
        scene.kill(site)
        scene.pass_s(6.0)
        assert site.gate.state is EngineState.DOWN
        scene.pass_s(75.0)
        assert site.gate.state is EngineState.AWAKE

    @pytest.mark.parametrize("tells", [True, False])
    def test_an_offloaded_engine_that_comes_back_is_trusted_if_it_is_another_process(
        self, scene, tells
    ):
        site = scene.site(asleep=2, manners={"tells_process": tells})
        scene.kill(site)
        scene.pass_s(120.0)
        assert site.gate.state is EngineState.AWAKE
        assert ("reload_weights" in transitions(site)) is not tells

    @pytest.mark.parametrize("step", [vllm.WAKE_WEIGHTS, vllm.RELOAD, vllm.WAKE_KV_CACHE])
    @pytest.mark.parametrize("fault", ["die", "die_after", "cut", "slow"])
    def test_trouble_in_any_step_of_a_wake_reaches_no_caller(self, scene, step, fault):
        site = scene.site(asleep=2, hold_restarting_s=900.0, hold_offloaded_s=900.0)
        befalls(site, fault, step, 1)
        site.arrive(1.0)
        scene.pass_s(300.0)
        assert site.ends["served"] == 1
        assert site.ends["upstream_error"] == 0


class TestOtherHands:
    """The engine's own endpoints are open to all."""

    def test_a_sleep_by_another_hand_is_found_within_a_probe_period(self, scene):
        """Case V22."""
        site = scene.site()
        scene.hand(site, "sleep", level=1)
        scene.pass_s(9.5)
        assert site.gate.state is EngineState.SLEEPING

    def test_a_caller_inside_an_engine_put_to_sleep_gets_it_woken(self, scene):
        """Case V22: its request waits inside the engine, in silence."""
        site = scene.site()
        site.meddled = True
        scene.hand(site, "sleep", level=2, mode="keep")
        site.arrive(1.0)
        scene.pass_s(60.0)
        assert site.ends["served"] == 1

    def test_an_end_that_a_sleep_would_explain_is_looked_into_at_once(self, scene):
        """Case V22: requests cut off by a sleep end with `abort`."""
        site = scene.site()
        site.meddled = True
        site.arrive(100.0)
        scene.pass_s(0.5)
        looks = len(site.door.steps)
        scene.hand(site, "sleep", level=1)
        assert site.ends["upstream_error"] == 1
        scene.pass_s(0.0)
        assert len(site.door.steps) == looks + 1

    def test_a_gauge_that_believes_a_sleep_that_did_nothing_is_not_believed(self, scene):
        """`/sleep?level=1` on a sleeper of level 2: the gauge says 1, the weights are gone."""
        site = scene.site(asleep=2)
        scene.hand(site, "sleep", level=1)
        scene.pass_s(6.0)
        site.arrive(1.0)
        scene.pass_s(40.0)
        staged = ["wake_weights", "reload_weights", "wake_kv_cache", "canary"]
        assert transitions(site) == staged
        assert site.ends["served"] == 1

    def test_a_control_call_of_another_hand_is_not_a_death(self, scene):
        site = scene.site()
        scene.hand(site, "collective_rpc", method="nap", seconds=60.0)
        scene.pass_s(50.0)
        assert site.gate.state is EngineState.AWAKE
        assert site.states[EngineState.DOWN] == 0


class TestNeighbours:
    """Engines that share a GPU, and those that do not."""

    def test_a_wake_waits_for_the_sleep_of_its_neighbour_and_others_do_not(self, scene):
        """Case V9: the site fails when two transitions meet."""
        first = scene.site("a", devices=(0,))
        second = scene.site("b", asleep=1, devices=(0,))
        third = scene.site("c", asleep=1, devices=(1,))
        first.call(lambda: first.gate.sleep_now(1))
        scene.pass_s(0.25)
        second.arrive(1.0)
        third.arrive(0.25)
        scene.pass_s(3.0)
        assert second.gate.state is EngineState.WAKING
        assert second.gate.wake_step == "gpu"
        assert transitions(second) == []
        assert third.ends["served"] == 1
        scene.pass_s(10.0)
        assert second.ends["served"] == 1

    def test_two_that_wait_for_one_gpu_are_served_in_turn(self, scene):
        """Case S28."""
        sites = [scene.site(key, asleep=2, devices=(0,)) for key in "abc"]
        for site in sites:
            site.arrive(1.0)
        scene.pass_s(90.0)
        assert [site.ends["served"] for site in sites] == [1, 1, 1]

    def test_a_neighbour_that_hangs_keeps_its_gpu_and_nothing_else(self, scene):
        """Case S6: callers of its neighbour get an answer, and all recovers without a restart."""
        first = scene.site("a", devices=(0,), idle_sleep_s=10.0)
        second = scene.site("b", asleep=1, devices=(0,), hold_sleeping_s=30.0)
        third = scene.site("c", asleep=1, devices=(1,))
        befalls(first, "hang", vllm.SLEEP_1, 1)
        scene.pass_s(12.0)
        second.arrive(1.0)
        third.arrive(1.0)
        scene.pass_s(300.0)
        assert [told.reason.value for told in refusals(second)] == ["model_waking"]
        assert third.ends["served"] == 1
        second.arrive(1.0)
        scene.pass_s(60.0)
        assert transitions(second) == [], "the call was given up, and still hangs in the engine"
        scene.kill(first)
        second.arrive(1.0)
        scene.pass_s(20.0)
        assert second.ends["served"] == 1

    def test_who_is_not_wanted_any_more_gives_its_turn_up(self, scene):
        """Case S10."""
        first = scene.site("a", devices=(0,))
        second = scene.site("b", asleep=1, devices=(0,))
        first.call(lambda: first.gate.sleep_now(1))
        scene.pass_s(0.25)
        second.arrive(1.0)
        (caller,) = second.inside.values()
        second.leave(caller)
        scene.pass_s(30.0)
        assert transitions(second) == []
        assert second.gate.state is EngineState.SLEEPING


class TestDraining:
    """A front door that goes away."""

    def test_nothing_is_woken_any_more_and_who_waits_is_refused(self, scene):
        """Case S36: B waits for A when the signal comes."""
        first = scene.site("a", devices=(0,))
        second = scene.site("b", asleep=1, devices=(0,))
        first.call(lambda: first.gate.sleep_now(1))
        scene.pass_s(0.25)
        second.arrive(1.0)
        for site in (first, second):
            site.line.drained(scene.now)
            site.call(site.gate.drain)
        scene.pass_s(60.0)
        assert [told.reason.value for told in refusals(second)] == ["draining"]
        assert transitions(second) == []

    def test_a_wake_under_way_goes_on_and_idleness_is_over(self, scene):
        site = scene.site(asleep=1, idle_sleep_s=5.0)
        site.arrive(1.0)
        scene.pass_s(1.0)
        site.line.drained(scene.now)
        site.call(site.gate.drain)
        scene.pass_s(60.0)
        assert transitions(site) == ["wake_up", "canary"]
        site.call(site.gate.wake_now)
        site.call(lambda: site.gate.sleep_now(1))
        assert {answer.request for answer in of(site, Answered)} == {"wake", "sleep"}


class TestRestarts:
    """The front door is killed; another one starts with what was written down."""

    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize("level", [1, 2])
    @pytest.mark.parametrize("after_s", [0.0, 0.5, 2.5, 3.0, 10.0, 23.5, 24.5, 26.0])
    def test_a_wake_cut_anywhere_is_finished_and_nobody_gets_garbage(
        self, scene, version, level, after_s
    ):
        site = scene.site(version=version, asleep=level, manners={"delay_s": 0.5})
        site.arrive(1.0)
        scene.pass_s(after_s)
        scene.restart()
        site.arrive(1.0)
        scene.pass_s(90.0)
        assert site.ends["served"] >= 1
        assert site.gate.state is EngineState.AWAKE

    def test_a_wake_that_had_begun_is_finished_also_if_nobody_waits(self, scene):
        site = scene.site(asleep=2)
        site.arrive(1.0)
        scene.pass_s(5.0)
        scene.restart()
        scene.pass_s(60.0)
        assert site.gate.state is EngineState.AWAKE

    @pytest.mark.parametrize("after_s", [0.0, 0.25, 2.0, 4.25])
    def test_a_sleep_cut_anywhere_leaves_an_engine_that_wakes(self, scene, after_s):
        site = scene.site(idle_sleep_s=10.0, idle_offload_s=10.0, manners={"delay_s": 0.5})
        scene.wait_for(lambda: site.gate.state is EngineState.FALLING_ASLEEP)
        scene.pass_s(after_s)
        scene.restart()
        site.arrive(1.0)
        scene.pass_s(60.0)
        assert site.ends["served"] == 1

    def test_the_level_is_known_again_without_a_gauge(self, scene):
        site = scene.site(manners={"tells_level": False}, idle_sleep_s=10.0)
        scene.wait_for(lambda: site.gate.state is EngineState.SLEEPING)
        scene.restart()
        scene.pass_s(1.0)
        assert site.gate.state is EngineState.SLEEPING

    def test_what_was_learned_is_known_again(self, scene):
        site = scene.site(asleep=1)
        site.arrive(1.0)
        scene.pass_s(10.0)
        scene.restart()
        assert site.gate.learned_s == {"sleeping": 2.5}

    def test_a_gpu_on_which_something_had_begun_is_not_given_to_a_neighbour(self, scene):
        """Case V9, over a restart: the call goes on in the engine."""
        second = scene.site("b", asleep=1, devices=(0,))
        first = scene.site("a", devices=(0,))
        first.call(lambda: first.gate.sleep_now(1))
        scene.pass_s(1.0)
        scene.restart()
        second.arrive(1.0)
        scene.pass_s(1.0)
        assert transitions(second) == []
        scene.pass_s(20.0)
        assert second.ends["served"] == 1
