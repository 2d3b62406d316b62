"""Waking on request, step by step, before a model engine that is unkind where vLLM is.

Ids in docstrings are those of the catalogue of public faults (V vLLM, S swappers and idle timers, K
scale-to-zero proxies).
"""

import pytest
from wake_engines import VERSIONS
from wake_scenes import Scene, befalls, of, refusals, transitions

from tornado_frontdoor.core.decisions import EngineState, SleepDepth, WakeEnded
from tornado_frontdoor.engines.base import CANARY

STAGED = ["wake_weights", "reload_weights", "wake_kv_cache", "canary"]


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("level", [1, 2])
def test_a_crowd_before_a_sleeping_engine_makes_one_wake_and_all_are_served(scene, version, level):
    """Cases V1, V4, V5, S24: the site fails for a request inside a half-awake engine."""
    site = scene.site(version=version, asleep=level, cap=4)
    for _ in range(20):
        site.arrive(1.0)
    assert site.gate.state is EngineState.WAKING
    assert (site.gate.in_flight, site.gate.queued) == (0, 20)
    scene.pass_s(60.0)
    assert site.ends["served"] == 20
    assert site.gate.wakes_total == 1
    assert transitions(site)[-1] == "canary"
    assert transitions(site).count("canary") == 1


def test_the_weights_of_an_offloaded_engine_are_loaded_before_its_cache_wakes(scene):
    """Cases V5, V16."""
    site = scene.site(asleep=2)
    site.arrive(1.0)
    scene.pass_s(30.0)
    assert transitions(site) == STAGED


def test_an_operators_wake_takes_the_same_way(scene):
    """Case V16."""
    site = scene.site(asleep=2)
    site.call(site.gate.wake_now)
    scene.pass_s(30.0)
    assert transitions(site) == STAGED
    assert site.ends["wake done"] == 1


def test_a_sleeper_of_level_1_reads_no_checkpoint(scene):
    site = scene.site(asleep=1)
    site.arrive(1.0)
    scene.pass_s(5.0)
    assert transitions(site) == ["wake_up", "canary"]
    assert site.ends["served"] == 1


@pytest.mark.parametrize("told", [{"version": "0.11"}, {"manners": {"tells_level": False}}])
def test_a_level_that_nobody_knows_is_taken_for_2(scene, told):
    site = scene.site(asleep=1, **told)
    assert site.gate.state is EngineState.OFFLOADED
    site.arrive(1.0)
    scene.pass_s(40.0)
    assert "reload_weights" in transitions(site)
    assert site.ends["served"] == 1


def test_an_awake_engine_is_proven_before_the_first_caller(scene):
    """Case K6: what it cannot answer yet, the canary takes."""
    site = scene.site(settled=False)
    site.arrive(1.0)
    assert site.gate.queued == 1
    scene.pass_s(0.25)
    assert site.gate.state is EngineState.WAKING, "a look found it awake, no canary has come back"
    scene.pass_s(5.0)
    assert site.ends["served"] == 1
    assert site.gate.wakes_total == 0, "a canary alone is no wake"


def test_without_a_canary_the_look_is_the_proof(scene):
    site = scene.site(asleep=1, canary=False)
    site.arrive(1.0)
    scene.pass_s(5.0)
    assert transitions(site) == ["wake_up"]
    assert site.ends["served"] == 1


def test_a_canary_that_cannot_be_sung_keeps_nobody_out(scene):
    """An engine of another kind answers 404 at the canary's path."""
    site = scene.site(asleep=1)
    befalls(site, "unsupported", CANARY)
    site.arrive(1.0)
    scene.pass_s(5.0)
    assert site.ends["served"] == 1


def test_a_canary_that_finds_the_engine_not_ready_is_sung_again(scene):
    """Cases K3, K6: callers are held, and see nothing of it."""
    site = scene.site(asleep=1)
    befalls(site, "fails", CANARY, 3)
    site.arrive(1.0)
    scene.pass_s(20.0)
    assert site.ends["served"] == 1
    assert transitions(site).count("wake_up") == 1, "the engine is awake: only the proof is redone"


def test_an_engine_that_dies_with_its_first_token_kills_a_canary_and_no_caller(scene):
    """Case V14."""
    site = scene.site(asleep=1)
    befalls(site, "die", CANARY, 1)
    site.arrive(1.0)
    scene.pass_s(5.0)
    assert site.gate.state is EngineState.DOWN
    assert site.gate.queued == 1
    scene.pass_s(70.0)
    assert site.ends["served"] == 1


def test_when_all_callers_have_left_before_the_first_step_nothing_is_woken(scene):
    """Case S10."""
    site = scene.site(asleep=1, manners={"delay_s": 1.0})
    scene.pass_s(3.0)
    site.arrive(1.0)
    (caller,) = site.inside.values()
    site.leave(caller)
    scene.pass_s(30.0)
    assert transitions(site) == []
    assert site.gate.state is EngineState.SLEEPING


def test_when_all_callers_have_left_after_it_the_wake_goes_on_alone(scene):
    """Case S11."""
    site = scene.site(asleep=2)
    site.arrive(1.0)
    scene.pass_s(5.0)
    (caller,) = site.inside.values()
    site.leave(caller)
    site.arrive(1.0)
    scene.pass_s(40.0)
    assert site.gate.wakes_total == 1
    assert site.ends["served"] == 1


def test_waiters_get_their_slots_in_the_instant_it_is_awake(scene):
    """Cases S27, K2."""
    site = scene.site(asleep=1, idle_sleep_s=0.5)
    site.arrive(1.0)
    scene.wait_for(lambda: site.gate.state is EngineState.AWAKE)
    assert site.gate.in_flight == 1


def test_one_more_than_cap_and_line_is_refused_at_once_also_while_it_sleeps(scene):
    """Case S8: the same bound in every state."""
    site = scene.site(asleep=1, cap=2, queue=1)
    for _ in range(4):
        site.arrive(1.0)
    assert [refusal.reason.value for refusal in refusals(site)] == ["queue_full"]
    assert site.gate.queued == 3


def test_slow_control_calls_are_not_taken_for_a_death(scene):
    """Case K4: 900 ms each way."""
    site = scene.site(asleep=1, manners={"delay_s": 0.45})
    site.arrive(1.0)
    scene.pass_s(20.0)
    assert site.ends["served"] == 1
    assert site.states[EngineState.DOWN] == 0


def test_looks_that_take_too_long_are_given_longer(scene):
    """Case K4: slower than any look waits at first."""
    site = scene.site(manners={"delay_s": 2.0})
    site.arrive(1.0)
    scene.pass_s(60.0)
    assert site.ends["served"] == 1


def test_a_wake_found_by_the_look_is_not_done_twice(scene):
    """Case V19: out of band, or by an earlier front door, it was just woken."""
    site = scene.site(asleep=1)
    scene.hand(site, "wake_up")
    scene.pass_s(2.5)
    site.arrive(1.0)
    scene.pass_s(3.0)
    assert transitions(site) == ["canary"]
    assert site.ends["served"] == 1
    assert site.gate.wakes_total == 0


def test_an_offloaded_engine_that_another_hand_woke_is_not_trusted(scene):
    """Case V5: its weights may never have been loaded, and nothing else would tell."""
    site = scene.site(asleep=2)
    scene.hand(site, "wake_up")
    scene.pass_s(40.0)
    assert "reload_weights" in transitions(site)
    assert site.gate.state is EngineState.AWAKE
    site.arrive(1.0)
    scene.pass_s(5.0)
    assert site.ends["served"] == 1


def test_half_awake_is_not_awake(scene):
    """Case V20: its cache was woken out of band and nothing else."""
    site = scene.site(asleep=2)
    scene.hand(site, "wake_up", tags=("kv_cache",))
    scene.pass_s(10.0)
    assert site.gate.state is EngineState.OFFLOADED
    site.arrive(1.0)
    scene.pass_s(40.0)
    assert site.ends["served"] == 1


def test_how_long_a_wake_took_is_told_and_learned(scene):
    site = scene.site(asleep=1)
    site.arrive(1.0)
    scene.pass_s(5.0)
    (ended,) = of(site, WakeEnded)
    assert ended == WakeEnded(SleepDepth.SLEEPING, True, 2.5)
    assert site.gate.learned_s == {"sleeping": 2.5}
