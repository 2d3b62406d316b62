"""On which terms a request uses an engine: whether it wakes it, counts as use, keeps it awake."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wake_scenes import LIMITS, Scene, of, refusals, transitions

from tornado_frontdoor.core.decisions import EngineState, FellAsleep, Reason, SleepReason
from tornado_frontdoor.core.request import WakeTerms
from tornado_frontdoor.core.wake.policy import Idleness, KeepAlive, SleepPolicy

IF_AWAKE = WakeTerms(wakes=False)
NEVER = WakeTerms(wakes=False, counts=False)
STRAY = pytest.mark.parametrize("terms", [IF_AWAKE, NEVER], ids=["if-awake", "never"])


@pytest.fixture
def scene():
    return Scene()


def kept(seconds: float, by: str = "alice") -> WakeTerms:
    return WakeTerms(keep_alive_s=seconds, by=by, request_id="r1")


# Waking


@STRAY
@pytest.mark.parametrize("asleep", [1, 2])
def test_a_stray_request_wakes_nothing_and_is_told_why(scene, terms, asleep):
    site = scene.site(asleep=asleep)
    site.arrive(1.0, terms)
    scene.pass_s(10.0)
    (told,) = refusals(site)
    assert told.reason is Reason.MODEL_ASLEEP
    assert told.retry_after_s is not None
    assert "wakes no engine" in told.detail
    assert transitions(site) == []


@STRAY
def test_a_stray_request_is_served_by_an_engine_that_is_awake(scene, terms):
    site = scene.site()
    site.arrive(1.0, terms)
    scene.pass_s(2.0)
    assert site.ends == {"served": 1}


def test_a_stray_request_does_not_wait_for_a_wake_of_others(scene):
    for terms in (IF_AWAKE, NEVER):
        site = scene.site(f"text-{terms.counts}", asleep=1)
        site.arrive(1.0)
        site.arrive(1.0, terms)
        scene.pass_s(20.0)
        assert site.ends == {"served": 1, "model_asleep": 1}


@STRAY
def test_a_stray_request_that_waits_for_a_slot_is_refused_when_its_engine_is_lost(scene, terms):
    site = scene.site(cap=1)
    site.arrive(100.0)
    site.arrive(1.0, terms)
    site.arrive(1.0)
    site.call(site.gate.lost)
    (told,) = refusals(site)
    assert told.reason is Reason.MODEL_ASLEEP
    assert site.gate.queued == 1, "who is worth a wake waits for it"
    site.leave(next(iter(site.inside.values())))
    scene.pass_s(100.0)


# What counts as use


def test_if_awake_counts_as_use_and_never_does_not(scene):
    for terms, stays in ((IF_AWAKE, True), (NEVER, False)):
        site = scene.site(f"text-{stays}", idle_sleep_s=60.0)
        scene.pass_s(50.0)
        site.arrive(1.0, terms)
        scene.pass_s(20.0)
        assert (site.gate.state is EngineState.AWAKE) is stays
        assert site.ends == {"served": 1}


def test_never_does_not_keep_an_engine_awake_by_what_it_says(scene):
    site = scene.site(idle_sleep_s=60.0)
    site.arrive(1.0, NEVER._replace(keep_alive_s=inf))
    scene.pass_s(70.0)
    assert site.gate.state is EngineState.SLEEPING


def test_nothing_busy_is_put_to_sleep_also_by_one_that_does_not_count(scene):
    site = scene.site(idle_sleep_s=60.0)
    site.arrive(600.0, NEVER)
    scene.pass_s(590.0)
    assert site.gate.state is EngineState.AWAKE
    scene.pass_s(20.0)
    assert site.ends == {"served": 1}
    assert site.gate.state is EngineState.SLEEPING


# keep_alive


@pytest.mark.parametrize(("keep_s", "asleep_after_s"), [(0.0, 0.0), (20.0, 20.0), (300.0, 300.0)])
def test_keep_alive_stands_for_the_first_idle_tier(scene, keep_s, asleep_after_s):
    site = scene.site(idle_sleep_s=60.0)
    site.arrive(1.0, kept(keep_s))
    scene.wait_for(lambda: site.ends["served"])
    ended_s = scene.now
    scene.wait_for(lambda: site.gate.state is EngineState.FALLING_ASLEEP)
    assert scene.now - ended_s == pytest.approx(asleep_after_s, abs=0.6)
    scene.pass_s(10.0)
    assert of(site, FellAsleep)[-1].reason is SleepReason.KEEP_ALIVE


def test_who_comes_after_has_all_of_the_idle_tier(scene):
    site = scene.site(idle_sleep_s=60.0)
    site.arrive(1.0, kept(30.0))
    scene.pass_s(20.0)
    site.arrive(1.0)
    scene.pass_s(55.0)
    assert site.gate.state is EngineState.AWAKE
    scene.pass_s(15.0)
    assert of(site, FellAsleep)[-1].reason is SleepReason.IDLE


def test_for_good_is_until_the_limit_of_the_configuration(scene):
    site = scene.site(idle_sleep_s=60.0, max_keep_alive_s=500.0)
    site.arrive(1.0, kept(inf))
    scene.pass_s(495.0)
    assert site.gate.state is EngineState.AWAKE
    scene.pass_s(20.0)
    assert site.gate.state is EngineState.SLEEPING


def test_a_limit_of_0_leaves_callers_no_say(scene):
    site = scene.site(idle_sleep_s=60.0, max_keep_alive_s=0.0)
    site.arrive(1.0, kept(0.0))
    scene.pass_s(50.0)
    assert site.gate.state is EngineState.AWAKE


def test_keep_alive_puts_nothing_to_sleep_that_has_no_idle_tier_or_is_pinned(scene):
    for name, limits in (("no tier", {}), ("pinned", {"idle_sleep_s": 60.0, "pinned": True})):
        site = scene.site(name, **limits)
        site.arrive(1.0, kept(0.0))
        scene.pass_s(1000.0)
        assert site.gate.state is EngineState.AWAKE


def test_what_was_said_is_over_once_the_engine_sleeps_whoever_wanted_that(scene):
    site = scene.site(idle_sleep_s=60.0)
    site.arrive(1.0, kept(900.0))
    scene.pass_s(10.0)
    assert site.gate.keep_alive is not None
    site.call(lambda: site.gate.sleep_now(1))
    scene.pass_s(10.0)
    assert site.gate.keep_alive is None
    site.arrive(1.0)
    scene.pass_s(30.0)
    assert site.gate.state is EngineState.AWAKE
    scene.pass_s(60.0)
    assert site.gate.state is EngineState.SLEEPING


POLICY = SleepPolicy(**{**LIMITS, "idle_sleep_s": 60.0, "idle_offload_s": 600.0})
BOTH = frozenset({1, 2})


def test_of_two_callers_the_longer_wish_counts_and_only_its_owner_shortens_it():
    idle = Idleness(0.0).ended(10.0, kept(300.0), 1000.0)
    other = idle.ended(20.0, kept(0.0, "bob"), 1000.0)
    assert other.due(POLICY, 0, BOTH, -inf).at_s == 310.0
    own = idle.ended(20.0, kept(0.0), 1000.0)
    assert own.due(POLICY, 0, BOTH, -inf).at_s == 20.0


def test_the_deeper_tier_stays_as_it_is():
    idle = Idleness(0.0).ended(10.0, kept(0.0), 1000.0)
    assert idle.due(POLICY, 0, BOTH, -inf)[:2] == (10.0, 1)
    assert idle.due(POLICY, 1, BOTH, -inf)[:2] == (610.0, 2)
    long = Idleness(0.0).ended(10.0, kept(700.0), 1000.0)
    assert long.due(POLICY, 0, BOTH, -inf)[:2] == (710.0, 2)


WISH = st.one_of(st.none(), st.floats(0.0, 2000.0), st.just(inf))
STORY = st.lists(st.tuples(st.floats(0.0, 500.0), WISH, st.sampled_from(["a", "b"])), max_size=8)


@given(STORY)
def test_an_engine_is_never_due_before_any_wish_that_still_stands(story):
    """And once a wish is over, what comes next is what the tiers alone would say."""
    now, most_s = 0.0, 1000.0
    idle = Idleness(0.0)
    for gap_s, said_s, by in story:
        now += gap_s
        terms = None if said_s is None else kept(said_s, by)
        before = idle.keep
        idle = idle.ended(now, terms, most_s)
        due = idle.due(POLICY, 0, BOTH, -inf)
        assert due.at_s <= now + max(most_s, POLICY.idle_sleep_s)
        if isinstance(before, KeepAlive) and (said_s is None or before.by != by):
            assert due.at_s >= before.until_s
        if said_s is None:
            assert due.at_s >= now + POLICY.idle_sleep_s
        else:
            assert due.at_s >= now + min(said_s, most_s)
