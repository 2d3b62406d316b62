"""The model engine's serial loop: what blocks, what a call does when it goes wrong, death."""

import math

import pytest
from engine_bench import Bench

from simulator.standin.engine import ControlAnswer, Kind, Mode, Times


@pytest.mark.parametrize("name", ["sleep", "wake_up", "collective_rpc"])
def test_looks_wait_behind_a_transition_and_running_sequences_stand_still(name: str) -> None:
    bench = Bench(times=Times(sleep_s=(3.0, 3.0), wake_s=(3.0, 3.0), reload_s=3.0))
    mode: Mode = "keep"
    if name == "wake_up":
        bench.do("sleep", mode=mode)
    bench.submit("a", 1.0)
    transition = bench.call(name, mode=mode)
    look = bench.call("is_sleeping")
    bench.run(2.9)
    assert (bench.answer(transition), bench.answer(look)) == (None, None)
    assert "finished" not in bench.became("a")
    bench.run(0.1)
    assert bench.answer(transition) is not None
    assert bench.answer(look) == ControlAnswer(True, name == "sleep")


def test_a_nap_stalls_streams_for_its_whole_length() -> None:
    bench = Bench()
    bench.submit("a", 1.0)
    bench.run(0.5)
    assert bench.do("collective_rpc", method="nap", seconds=3.0) is None
    bench.run(0.5)
    assert bench.became("a") == ["started", "finished"]
    assert bench.now == 4.0


def test_gauges_tell_of_the_last_step_and_not_of_who_came_to_a_blocked_engine() -> None:
    bench = Bench()
    bench.submit("a", 1.0)
    nap = bench.call("collective_rpc", method="nap", seconds=3.0)
    bench.submit("b", 1.0)
    assert bench.engine.reported_load == (1, 0)
    bench.finish(nap)
    assert bench.engine.reported_load == (2, 0)
    bench.do("sleep")
    assert bench.engine.reported_load == (0, 0)
    bench.submit("c", 1.0)
    assert bench.engine.reported_load == (0, 0)
    bench.do("wake_up")
    assert bench.engine.reported_load == (1, 0)


def test_sleeps_and_wakes_are_counted_also_those_that_do_nothing() -> None:
    bench = Bench()
    for _ in range(2):
        bench.do("sleep")
    bench.do("wake_up", tags=("weights",))
    assert dict(bench.engine.operations) == {"sleep": 2, "wake": 1}


def test_reloading_unmapped_weights_kills() -> None:
    bench = Bench()
    bench.do("sleep", level=1)
    bench.do("collective_rpc")
    assert bench.engine.dead


def test_an_unknown_worker_method_fails_and_changes_nothing() -> None:
    bench = Bench()
    assert bench.do("collective_rpc", method="fly").ok is False
    assert bench.engine.proven_awake


def test_a_prefix_cache_is_not_reset_while_its_blocks_are_held() -> None:
    bench = Bench()
    bench.submit("a")
    assert bench.do("reset_prefix_cache") is False
    bench.run(4.0)
    assert bench.do("reset_prefix_cache") is True


def test_before_011_answers_are_stale_after_a_wake_until_the_reset() -> None:
    bench = Bench("0.8")
    bench.do("sleep")
    bench.do("wake_up")
    bench.submit("a", 1.0)
    bench.run(1.0)
    bench.do("reset_prefix_cache")
    bench.submit("b", 1.0)
    bench.run(1.0)
    assert (bench.became("a")[-1], bench.became("b")[-1]) == ("finished!", "finished")


def test_level_0_only_pauses_and_the_tag_scheduling_resumes() -> None:
    bench = Bench()
    bench.do("sleep", level=0)
    assert bench.is_sleeping()
    assert bench.engine.memory.gauge == {"awake": 0, "weights_offloaded": 0, "discard_all": 0}
    bench.submit("a")
    bench.run(9.0)
    assert bench.became("a") == []
    bench.do("wake_up", tags=("scheduling",))
    bench.run(4.0)
    assert bench.became("a") == ["started", "finished"]


@pytest.mark.parametrize("version", ["0.30", "0.33"])
def test_pause_makes_newcomers_fail_from_033(version: str) -> None:
    bench = Bench(version)
    bench.do("pause")
    assert bench.do("is_paused") is True
    assert bench.is_sleeping()
    assert bench.engine.rejects_new is (version == "0.33")
    bench.do("resume")
    assert not bench.engine.rejects_new
    assert not bench.is_sleeping()


def test_death_answers_every_call_and_loses_every_sequence_until_the_restart() -> None:
    bench = Bench()
    bench.submit("a")
    sleeping = bench.call("sleep", mode="wait")
    napping = bench.call("collective_rpc", method="nap", seconds=9.0)
    waiting = bench.call("is_sleeping")
    bench.engine.kill(bench.now, restart_s=5.0)
    late = bench.call("is_sleeping")
    answers = [bench.answer(number) for number in (sleeping, napping, waiting, late)]
    assert [answer and answer.ok for answer in answers] == [False] * 4
    assert bench.became("a") == ["started"]
    bench.run(4.9)
    assert bench.engine.dead
    bench.run(0.1)
    assert bench.events[-1].kind is Kind.RESTARTED
    assert bench.engine.proven_awake
    bench.submit("a")
    bench.run(4.0)
    assert bench.became("a")[-1] == "finished"


@pytest.mark.parametrize(("die", "answered"), [("before", False), ("after", True)])
def test_a_call_may_kill_in_place_of_its_effect_or_after_its_answer(
    die: str, answered: bool
) -> None:
    bench = Bench(times=Times())
    number = bench.call("sleep", die=die)
    answer = bench.answer(number)
    assert answer is not None
    assert answer.ok is answered
    assert bench.engine.dead


def test_a_call_that_hangs_blocks_the_loop_for_ever() -> None:
    bench = Bench()
    hung = bench.call("sleep", slow_s=math.inf)
    look = bench.call("is_sleeping")
    bench.run(1e6)
    assert (bench.answer(hung), bench.answer(look)) == (None, None)


def test_a_call_with_no_effect_still_tells_success() -> None:
    bench = Bench()
    assert bench.do("sleep", noop=True) == 1
    assert bench.engine.proven_awake
    bench.do("sleep", level=2)
    bench.do("wake_up", tags=("weights",))
    assert bench.do("collective_rpc", noop=True) is None
    bench.do("wake_up", tags=("kv_cache",))
    assert not bench.is_sleeping()
    assert not bench.engine.proven_awake


def test_abort_requests_ends_everything_and_starts_nothing_in_its_place() -> None:
    bench = Bench(slots=1)
    for job in "abc":
        bench.submit(job)
    bench.do("abort_requests")
    assert bench.became("a") == ["started", "aborted"]
    assert bench.became("b") == bench.became("c") == ["aborted"]
    bench.submit("d", 1.0)
    bench.run(1.0)
    assert bench.became("d") == ["started", "finished"]
