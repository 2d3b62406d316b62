"""The steps of each sequence, release by release, as the engine would be asked."""

import pytest

from tornado_frontdoor.core.wake import sequence
from tornado_frontdoor.engines import vllm
from tornado_frontdoor.engines.base import (
    CANARY,
    PROBE_IDLE,
    PROBE_STEPS,
    VERIFY_ASLEEP,
    VERIFY_AWAKE,
    Step,
)
from tornado_frontdoor.engines.vllm import UNKNOWN_RELEASE, quirks_of

RELEASES = ("0.8.5", "0.11.0", "0.16.0", "0.17.0", "0.23.0", "0.25.1", "0.30.0", "0.31.0", "0.33.1")


def paths(steps: tuple[Step, ...]) -> list[str]:
    """Return what the engine is asked for at each step; a probe by the name of its call."""
    calls = [vllm.KIND.state if step.probes else step.call for step in steps]
    return [call.path if call else step.label for call, step in zip(calls, steps, strict=True)]


def wake_steps(version: str | None, level: int, *, canary: bool) -> tuple[Step, ...]:
    return sequence.wake_steps(vllm.KIND, version, level, canary=canary)


def sleep_steps(version: str | None, level: int, *, asleep: bool) -> tuple[Step, ...]:
    return sequence.sleep_steps(vllm.KIND, version, level, asleep=asleep)


def wakes(version: str | None, level: int) -> list[str]:
    return paths(wake_steps(version, level, canary=True))


@pytest.mark.parametrize("version", ["0.17.0", "0.22", "0.24.0", "0.33.1", None, "0.1.dev1+g123"])
def test_offloaded_weights_are_loaded_before_the_scheduler_can_run(version):
    """Case V5, V16: weights, reload, cache, each tag a call of its own, then the proof."""
    assert wakes(version, 2) == [
        "/wake_up?tags=weights",
        "/collective_rpc",
        "/wake_up?tags=kv_cache",
        "/is_sleeping",
        "canary",
    ]
    assert vllm.RELOAD.call is not None
    assert vllm.RELOAD.call.body == '{"method": "reload_weights"}'


def test_before_tags_left_the_rest_asleep_all_wakes_at_once_and_prefixes_are_reset():
    """Case V12: stale prefixes give wrong text after a wake."""
    reset = ["/reset_prefix_cache", "/is_sleeping", "canary"]
    assert wakes("0.16.0", 2) == ["/wake_up", "/collective_rpc", *reset]
    assert wakes("0.8.5", 1) == ["/wake_up", *reset]


def test_a_level_1_sleeper_wakes_at_once_and_reads_no_checkpoint():
    assert wakes("0.33.0", 1) == ["/wake_up", "/is_sleeping", "canary"]
    assert wakes(None, 1) == ["/wake_up", "/is_sleeping", "canary"]


def test_of_an_engine_that_was_seen_awake_only_the_canary_is_left():
    assert wakes("0.33.0", 0) == ["canary"]
    assert wake_steps("0.33.0", 0, canary=False) == ()


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("level", [1, 2])
def test_every_wake_ends_with_its_proof(version, level):
    steps = wake_steps(version, level, canary=False)
    assert steps[-1] is VERIFY_AWAKE
    assert not any(step.probes for step in steps[:-1])


def test_level_and_mode_go_in_the_query():
    """Case V17: vLLM does not read a body there."""
    awake = sleep_steps("0.32.0", 2, asleep=False)
    assert paths(awake) == ["/is_sleeping", "/sleep?level=2&mode=abort", "/is_sleeping"]
    assert not any(step.call.body for step in awake if step.call)
    old = sleep_steps("0.16.0", 1, asleep=False)
    assert paths(old)[1] == "/sleep?level=1"


def test_deeper_asleep_by_way_of_the_weights_where_that_works():
    """`/sleep?level=2` on a level 1 sleeper is a silent no-op in every release."""
    steps = sleep_steps("0.31.0", 2, asleep=True)
    assert paths(steps)[1:3] == ["/wake_up?tags=weights", "/sleep?level=2&mode=abort"]


@pytest.mark.parametrize("version", ["0.17.0", "0.30.0", None])
def test_deeper_asleep_by_a_whole_wake_elsewhere_and_only_if_it_has_nothing_to_do(version):
    steps = sleep_steps(version, 2, asleep=True)
    assert steps[:4] == (PROBE_IDLE, vllm.WAKE, PROBE_IDLE, vllm.SLEEP_2)


def test_every_fall_begins_with_a_look_at_the_gauges_and_ends_with_a_look():
    for version in RELEASES:
        for level, asleep in ((1, False), (2, False), (2, True)):
            steps = sleep_steps(version, level, asleep=asleep)
            assert steps[0] is PROBE_IDLE
            assert steps[-1] is VERIFY_ASLEEP


@pytest.mark.parametrize("version", [None, "", "nonsense", "0", "x.y", "0.1.dev7+g1", "0.33rc1"])
def test_a_release_that_cannot_be_told_gets_the_careful_choice(version):
    assert quirks_of(version) is UNKNOWN_RELEASE
    assert UNKNOWN_RELEASE.staged
    assert not UNKNOWN_RELEASE.wakes_again


def test_versions_are_compared_as_numbers():
    assert quirks_of("v0.31.1rc2") == quirks_of("0.31.0") != quirks_of("0.9.0")
    assert quirks_of("1.0.0") == quirks_of("0.33.0")


def test_no_two_steps_are_one():
    steps = (*vllm.STEPS, *PROBE_STEPS, CANARY)
    assert len(set(steps)) == len(steps)
    assert all(0 < step.timeout_s <= 900 for step in steps)
    assert not any("health" in path for path in paths(steps)), "/health proves nothing"
