"""What is told in doubt: to operators who ask for different things, of probes without answer."""

import pytest
from wake_scenes import Scene, befalls, of, refusals, transitions

from tornado_frontdoor.core.decisions import (
    Answered,
    CanaryEnded,
    EngineState,
    Note,
    Outcome,
    SleepDepth,
    Verdict,
    WakeEnded,
)
from tornado_frontdoor.core.wake.operator_requests import SILENT
from tornado_frontdoor.core.wake.policy import Backoff
from tornado_frontdoor.engines import vllm
from tornado_frontdoor.engines.base import (
    PROBE,
    PROBE_IDLE,
    VERIFY_ASLEEP,
    VERIFY_AWAKE,
    Report,
    Seen,
    StepResult,
)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def told(site) -> list[str]:
    return [note.text for note in of(site, Note)]


def test_two_operators_each_get_their_own_answer(scene):
    """The first asked for level 1, and that is under way when the second asks for level 2."""
    site = scene.site()
    site.call(lambda: site.gate.sleep_now(1))
    scene.wait_for(lambda: site.gate.state is EngineState.FALLING_ASLEEP)
    site.call(lambda: site.gate.sleep_now(2))
    assert of(site, Answered) == [
        Answered("sleep", Verdict.BUSY, "the engine is falling_asleep", 2)
    ]
    scene.pass_s(10.0)
    assert of(site, Answered)[1:] == [Answered("sleep", Verdict.DONE, "", 1)]
    assert site.gate.state is EngineState.SLEEPING


def test_an_operator_who_is_overruled_is_told_so(scene):
    site = scene.site(manners={"delay_s": 0.5})
    site.call(lambda: site.gate.sleep_now(1))
    site.call(lambda: site.gate.sleep_now(2))
    overruled = "another operator wants it asleep at level 2"
    assert of(site, Answered) == [Answered("sleep", Verdict.BUSY, overruled, 1)]
    scene.pass_s(20.0)
    assert of(site, Answered)[1:] == [Answered("sleep", Verdict.DONE, "", 2)]


@pytest.mark.parametrize(
    ("asleep", "level", "step"),
    [
        *((1, None, step) for step in (PROBE, VERIFY_AWAKE)),
        *((2, None, step) for step in (PROBE, VERIFY_AWAKE)),
        *((0, level, VERIFY_ASLEEP) for level in (1, 2)),
    ],
)
def test_an_operator_is_answered_once_the_longest_look_was_in_vain(scene, asleep, level, step):
    """Before the first step, or after the last one: an engine may be silent for ever."""
    site = scene.site(asleep=asleep)
    befalls(site, "hang", step)
    order = site.gate.wake_now if level is None else lambda: site.gate.sleep_now(level)
    site.call(order)
    name = "wake" if level is None else "sleep"
    scene.wait_for(lambda: of(site, Answered) != [], within_s=300.0)
    assert of(site, Answered) == [Answered(name, Verdict.FAILED, SILENT, level)]
    site.door.rule = None
    scene.pass_s(300.0)
    assert len(of(site, Answered)) == 1


def test_an_operator_is_answered_where_nobody_knows_the_state(scene):
    site = scene.site(settled=False)
    befalls(site, "hang", PROBE)
    site.call(site.gate.wake_now)
    assert scene.wait_for(lambda: of(site, Answered) != []) < 90.0
    assert of(site, Answered) == [Answered("wake", Verdict.FAILED, SILENT)]
    assert site.gate.state is EngineState.UNKNOWN


def test_a_wake_of_an_earlier_front_door_outlasts_any_silence(scene):
    """It is nobody's order: the engine is half awake and has to get there."""
    site = scene.site(asleep=2)
    befalls(site, "hang", VERIFY_AWAKE)
    site.call(site.gate.wake_now)
    scene.wait_for(lambda: site.gate.wake_step == VERIFY_AWAKE.label)
    scene.restart()
    befalls(site, "hang", PROBE)
    scene.pass_s(200.0)
    assert site.gate._wake._requests.wake


def test_busy_names_what_it_is_busy_with(scene):
    site = scene.site(asleep=1)
    site.call(site.gate.wake_now)
    site.call(lambda: site.gate.sleep_now(1))
    (answer,) = of(site, Answered)
    assert answer.detail == "an operator wants it awake"


def test_an_engine_that_serves_us_is_not_closed_over_errors_of_its_state(scene):
    """Its weights would be loaded again under the stream."""
    site = scene.site()
    site.arrive(60.0)
    befalls(site, "fails", PROBE)
    scene.pass_s(50.0)
    assert site.gate.state is EngineState.AWAKE
    assert transitions(site) == []
    scene.pass_s(20.0)
    assert site.ends["served"] == 1
    assert len([text for text in told(site) if "does not tell its state" in text]) == 1


def test_errors_of_its_state_count_once_a_caller_has_complained(scene):
    site = scene.site()
    site.arrive(60.0)
    site.arrive(60.0)
    befalls(site, "fails", PROBE)
    scene.pass_s(20.0)
    ticket = next(iter(site.inside.values()))
    site.finish(ticket, Outcome.UPSTREAM_TIMEOUT)
    scene.pass_s(6.0)
    assert site.gate.state is not EngineState.AWAKE


def test_an_idle_engine_whose_state_is_an_error_twice_is_not_taken_for_awake(scene):
    site = scene.site()
    befalls(site, "fails", PROBE)
    scene.pass_s(20.0)
    assert site.gate.state is EngineState.OFFLOADED


def test_a_probe_without_answer_is_told_once(scene):
    site = scene.site()
    befalls(site, "hang", PROBE)
    scene.pass_s(120.0)
    assert len(told(site)) == 2, told(site)
    assert "did not answer in time" in told(site)[0]


def test_that_level_2_is_off_is_told_once(scene):
    site = scene.site(asleep=2)
    befalls(site, "fails", vllm.RELOAD)
    site.arrive(1.0)
    scene.pass_s(100.0)
    assert len([text for text in told(site) if text.startswith("level 2 is off")]) == 1


def test_a_canary_that_cannot_be_asked_is_told(scene):
    site = scene.site(asleep=1)
    site.door.rule = lambda step: "unsupported" if step.label == "canary" else ""
    site.arrive(1.0)
    scene.pass_s(10.0)
    assert site.ends["served"] == 1
    proof = site.gate.proof
    assert proof is not None
    assert (proof["last"], proof["quarantined"]) == ("unproven", False)
    assert CanaryEnded("unproven", str(proof["detail"])) in of(site, CanaryEnded)


def test_who_waits_in_vain_at_a_state_that_nobody_knows_is_told_just_that(scene):
    site = scene.site(settled=False, hold_sleeping_s=5.0)
    befalls(site, "hang", PROBE)
    site.arrive(1.0)
    scene.pass_s(10.0)
    (refusal,) = refusals(site)
    assert "has not shown yet that it is awake" in refusal.detail


def test_the_oldest_wait_is_that_of_the_head(scene):
    site = scene.site(asleep=1)
    assert site.gate.oldest_wait_s is None
    site.arrive(1.0)
    scene.pass_s(0.5)
    site.arrive(1.0)
    scene.pass_s(0.5)
    assert site.gate.oldest_wait_s == 1.0
    assert repr(site.gate) == "<Gate text waking in_flight=0/2 queued=2>"
    assert repr(site.gate._wake) == f"<WakeStateMachine waking {site.gate.wake_step} inside=2>"
    assert PROBE_IDLE.label not in repr(site.gate._wake)


def test_one_error_of_its_state_is_chance(scene):
    site = scene.site()
    befalls(site, "fails", PROBE, 1)
    scene.pass_s(20.0)
    assert site.states[EngineState.OFFLOADED] == 0
    assert transitions(site) == []


def test_what_comes_of_an_earlier_call_is_not_that_of_the_one_under_way(scene):
    site = scene.site()
    befalls(site, "hang", PROBE)
    scene.pass_s(5.5)
    site.report(Report(1, StepResult.LOST))
    assert site.gate.state is EngineState.AWAKE


def test_an_engine_that_is_busy_when_it_is_to_prove_itself_has_not_failed(scene):
    site = scene.site(asleep=1)
    site.door.perform = lambda order, _now: site.asked.append(order)  # type: ignore[method-assign]
    site.asked = []  # type: ignore[attr-defined]
    site.arrive(1.0)
    asleep = Seen(True, 1, 0, 0, "0.33", "0")
    begun = [(PROBE, StepResult.DONE), (vllm.WAKE, StepResult.DONE)]
    for number, (step, ending) in enumerate([*begun, *[(VERIFY_AWAKE, StepResult.TIMED_OUT)] * 4]):
        scene.wait_for(lambda number=number: len(site.asked) > number)
        assert site.asked[-1].step is step
        site.report(Report(site.asked[-1].number, ending, asleep if step is PROBE else None))
    assert site.gate.state is EngineState.WAKING


def test_a_release_that_a_second_wake_can_kill_is_looked_at_first(scene):
    site = scene.site(version="0.24", asleep=1)
    befalls(site, "fails", vllm.WAKE, 1)
    site.arrive(1.0)
    scene.pass_s(1.5)
    assert transitions(site) == ["wake_up"]
    scene.wait_for(lambda: site.ends["served"] == 1)
    assert site.gate._wake.wake_backoff == Backoff(), "what worked has no pause before it"


def test_a_gpu_is_kept_while_a_call_may_have_its_effect_that_was_given_up(scene):
    first = scene.site("first", devices=(0,))
    second = scene.site("second", devices=(0,), asleep=1)
    first.call(lambda: first.gate.sleep_now(1))
    scene.wait_for(lambda: first.gate.state is EngineState.FALLING_ASLEEP)
    first.call(first.gate.lost)
    second.arrive(1.0)
    assert second.gate.wake_step == "gpu"
    scene.wait_for(lambda: second.ends["served"] == 1)
    (ended,) = of(second, WakeEnded)
    assert ended.took_s <= 2.5, "the wait for the GPU is no part of it"


def test_a_sleep_that_keeps_failing_is_tried_ever_more_rarely(scene):
    site = scene.site(idle_sleep_s=0.5)
    befalls(site, "fails", vllm.SLEEP_1)
    scene.pass_s(60.0)
    assert 4 <= transitions(site).count("sleep_1") <= 12


def test_an_operator_need_not_wait_for_the_end_of_a_pause(scene):
    site = scene.site(asleep=1, hold_sleeping_s=500.0)
    befalls(site, "fails", vllm.WAKE, 8)
    site.arrive(1.0)
    scene.wait_for(lambda: transitions(site).count("wake_up") == 8)
    scene.pass_s(2.0)
    site.call(site.gate.wake_now)
    assert scene.wait_for(lambda: site.gate.state is EngineState.AWAKE) < 10.0


def test_a_wake_that_is_overdue_says_so_and_is_expected_to_take_longer_and_longer(scene):
    site = scene.site(asleep=1, hold_sleeping_s=1.0)
    site.gate._estimates.observe(SleepDepth.SLEEPING, 4.0)
    befalls(site, "hang", vllm.WAKE)
    lefts = []
    for _ in range(4):
        site.arrive(1.0)
        scene.pass_s(10.0)
        lefts.append(refusals(site)[-1].estimated_wake_s)
    assert lefts == [3.0, 7.0, 17.0, 27.0], "what is left, then as long again as it is late"
    assert "takes 27 s longer to wake than it should" in refusals(site)[-1].detail
    assert site.gate.expected_wait_s(0) == 36.0, "told everywhere alike"
