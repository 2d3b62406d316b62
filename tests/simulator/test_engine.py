"""The model engine's sleep and wake, quirk by quirk and release by release."""

import pytest
from engine_bench import RELEASES, TIMES, Bench, staged

from simulator.standin.engine import ControlAnswer, Scheduler, Times
from simulator.standin.releases import SINCE, profile_of


def test_the_table_of_releases_is_the_one_of_the_sources() -> None:
    kinder = {name: [v for v in RELEASES if getattr(profile_of(v), name)] for name in SINCE}
    assert kinder == {
        "clears_prefix_cache": ["0.16", "0.23", "0.30", "0.33"],
        "gauge": ["0.16", "0.23", "0.30", "0.33"],
        "pauses_scheduler": ["0.23", "0.30", "0.33"],
        "partial_wake_stays_paused": ["0.30", "0.33"],
        "safe_wake_retry": ["0.30", "0.33"],
        "kv_first_is_safe": ["0.30", "0.33"],
        "reset_tells_success": ["0.30", "0.33"],
        "sleeps_after_partial_wake": ["0.33"],
        "honest_gauge": ["0.33"],
        "json_answers": ["0.33"],
        "counts_operations": ["0.33"],
        "pause_rejects": ["0.33"],
    }
    assert profile_of("0.32.1").json_answers
    assert not profile_of("v0.31.0").json_answers
    assert profile_of("1.0").pause_rejects


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("level", [1, 2])
def test_sleep_and_the_staged_wake_give_a_sound_engine_everywhere(version: str, level: int) -> None:
    bench = Bench(version)
    assert not bench.is_sleeping()
    assert bench.do("sleep", level=level) == level
    assert bench.now == TIMES.sleep_s[level - 1]
    assert bench.is_sleeping()
    assert bench.engine.memory.depth == level
    slept_s = bench.now
    staged(bench)
    assert bench.now - slept_s == pytest.approx(TIMES.wake_s[level - 1] + TIMES.reload_s)
    assert not bench.is_sleeping()
    assert bench.engine.proven_awake
    bench.submit("a")
    bench.run(4.0)
    assert bench.became("a") == ["started", "finished"]
    staged(bench)  # again, from the top: harmless
    assert bench.engine.proven_awake
    assert bench.engine.deaths == 0


@pytest.mark.parametrize("version", RELEASES)
def test_a_plain_wake_from_level_1_is_sound_and_from_level_2_serves_garbage(version: str) -> None:
    for level, garbage in ((1, ""), (2, "!")):
        bench = Bench(version)
        bench.do("sleep", level=level)
        assert bench.do("wake_up") is True  # it says: all awake
        assert not bench.is_sleeping()
        assert bench.engine.memory.gauge["awake"] == 1
        bench.submit("a")
        bench.run(4.0)
        assert bench.became("a") == ["started", "finished" + garbage]
        bench.do("collective_rpc")
        bench.submit("b")
        bench.run(4.0)
        assert bench.became("b") == ["started", "finished"]


def test_what_began_on_garbage_stays_garbage_after_the_reload() -> None:
    bench = Bench(times=Times(reload_s=1.0))
    bench.do("sleep", level=2)
    bench.do("wake_up")
    bench.submit("early", 1.0, steps=2, step_work=1.0)
    bench.run(1.0)
    bench.do("collective_rpc")
    bench.submit("late", 1.0)
    bench.run(9.0)
    assert bench.became("early") == ["started", "stepped!", "stepped!", "finished!"]
    assert bench.became("late") == ["started", "finished"]


def test_a_request_to_a_sleeper_waits_in_silence_or_kills_it() -> None:
    for version in RELEASES:
        bench = Bench(version)
        bench.do("sleep")
        bench.submit("a")
        if version == "0.16":
            assert bench.engine.dead
            assert bench.events[-1].value == "illegal memory access"
            continue
        bench.run(3600.0)
        assert bench.became("a") == []
        assert bench.engine.reported_load == (0, 0)
        bench.do("wake_up")
        bench.run(4.0)
        assert bench.became("a") == ["started", "finished"]


def test_a_held_request_that_leaves_is_gone_after_the_wake() -> None:
    bench = Bench()
    bench.do("sleep")
    bench.submit("a")
    assert bench.engine.abort("a", bench.now)
    bench.do("wake_up")
    bench.run(9.0)
    assert bench.became("a") == []


@pytest.mark.parametrize("version", RELEASES)
def test_sleep_aborts_what_is_inside_or_dies_of_it(version: str) -> None:
    bench = Bench(version, slots=1)
    bench.submit("running")
    bench.submit("waiting")
    number = bench.call("sleep")
    bench.run(10.0)
    if version == "0.16":
        assert bench.answer(number) == ControlAnswer(True, 1)  # it did say 200
        assert bench.engine.dead
    else:
        assert bench.became("running") == ["started", "aborted"]
        assert bench.became("waiting") == ["aborted"]
        assert bench.engine.memory.depth == 1


def test_sleep_that_waits_lets_the_running_end_and_keeps_the_waiting() -> None:
    bench = Bench(slots=1, times=Times(sleep_s=(1.0, 1.0)))
    bench.submit("running")
    bench.submit("waiting")
    number = bench.call("sleep", mode="wait")
    bench.run(3.0)
    assert bench.answer(number) is None
    assert bench.is_sleeping()  # it says so while it drains
    bench.run(1.0)
    assert bench.became("running") == ["started", "finished"]
    assert bench.answer(number) is None
    bench.run(1.0)
    assert bench.answer(number) == ControlAnswer(True, 1)
    assert bench.engine.reported_load == (0, 1)  # as 0.32 was seen to do
    bench.do("wake_up")
    bench.run(4.0)
    assert bench.became("waiting") == ["started", "finished"]


def test_sleep_that_keeps_freezes_the_running() -> None:
    bench = Bench(times=Times())
    bench.submit("a")
    bench.run(1.0)
    bench.do("sleep", mode="keep")
    bench.run(100.0)
    assert bench.engine.reported_load == (1, 0)  # its gauges stand still too
    bench.do("wake_up")
    bench.run(2.9)
    assert bench.became("a") == ["started"]
    bench.run(0.1)
    assert bench.became("a") == ["started", "finished"]


def test_a_wake_into_a_draining_sleep_leaves_memory_asleep_and_the_scheduler_running() -> None:
    bench = Bench()
    bench.submit("a")
    sleep = bench.call("sleep", mode="wait")
    assert bench.do("wake_up") is True
    bench.submit("b")  # it runs beside a: the drain lasts longer
    bench.finish(sleep)
    assert (bench.engine.memory.depth, bench.engine.scheduler) == (1, Scheduler.RUNNING)
    bench.submit("c")
    assert bench.engine.dead


@pytest.mark.parametrize("version", RELEASES)
def test_level_2_on_a_level_1_sleeper_is_a_silent_no_op(version: str) -> None:
    bench = Bench(version)
    bench.do("sleep", level=1)
    began_s = bench.now
    assert bench.do("sleep", level=2) == 2
    assert bench.now == began_s  # the workers were not asked
    assert bench.engine.memory.depth == 1
    assert bench.engine.memory.gauge == {"awake": 0, "weights_offloaded": 0, "discard_all": 1}
    bench.do("wake_up")
    assert bench.engine.proven_awake  # the weights were there all along


@pytest.mark.parametrize("version", RELEASES)
def test_escalation_by_a_partial_wake_works_from_031_and_lies_before(version: str) -> None:
    bench = Bench(version)
    bench.do("sleep", level=1)
    bench.do("wake_up", tags=("weights",))
    bench.do("sleep", level=2)
    assert bench.is_sleeping()
    assert bench.engine.memory.gauge["discard_all"] == 1
    dropped = bench.engine.memory.asleep == ("weights", "kv_cache")
    assert dropped is (version == "0.33")


def test_what_sleeps_already_keeps_its_level_when_the_rest_is_put_to_sleep() -> None:
    bench = Bench()
    bench.do("sleep", level=1)
    bench.do("wake_up", tags=("kv_cache",))
    bench.do("sleep", level=2)
    bench.do("wake_up")
    assert bench.engine.proven_awake  # the weights never left the host's memory


@pytest.mark.parametrize("version", RELEASES)
def test_a_partial_wake_resumes_the_scheduler_and_kills_before_024(version: str) -> None:
    bench = Bench(version)
    bench.do("sleep", level=2)
    if version == "0.16":
        return  # it does not even survive the request
    bench.submit("a")
    number = bench.call("wake_up", tags=("weights",))
    bench.run(4.5)
    assert bench.answer(number) == ControlAnswer(True, False)
    if version == "0.23":
        assert bench.engine.dead
        return
    assert bench.is_sleeping()
    assert bench.became("a") == []
    assert (bench.engine.memory.gauge["awake"] == 1) is (version == "0.30")
    bench.do("collective_rpc")
    bench.do("wake_up", tags=("kv_cache",))
    bench.run(4.0)
    assert bench.became("a") == ["started", "finished"]


@pytest.mark.parametrize("tags", [("kv",), ("weights", "kv_cache"), ("weights",)])
def test_a_tag_that_does_not_sleep_makes_the_whole_wake_a_no_op(tags: tuple[str, ...]) -> None:
    bench = Bench()
    bench.do("sleep", level=2)
    bench.do("wake_up", tags=("weights",))
    began_s = bench.now
    assert bench.do("wake_up", tags=tags) is False
    assert bench.now == began_s
    assert bench.engine.memory.asleep == ("kv_cache",)


@pytest.mark.parametrize("version", RELEASES)
def test_kv_first_at_level_2_kills_before_027(version: str) -> None:
    bench = Bench(version)
    bench.do("sleep", level=2)
    answer = bench.do("wake_up", tags=("kv_cache",))
    if version in {"0.16", "0.23"}:
        assert isinstance(answer, ControlAnswer)
        assert not answer.ok
        assert bench.engine.dead
    else:
        assert bench.engine.memory.asleep == ("weights",)


@pytest.mark.parametrize("version", RELEASES)
def test_a_wake_may_be_tried_again_from_025(version: str) -> None:
    bench = Bench(version)
    bench.do("sleep", level=1)
    failed = bench.do("wake_up", fails=True)
    assert failed == ControlAnswer(False, "wake_up failed")
    assert bench.is_sleeping()
    bench.do("wake_up")
    assert bench.engine.dead is (version in {"0.16", "0.23"})
