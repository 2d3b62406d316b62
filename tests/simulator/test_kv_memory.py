"""The replica that runs out of memory: by hand, by its laws, and beside one that never does."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine_model.kv_memory import KvCache, PagedReplica
from simulator.engine_model.replica import Prefill, Replica, What

NO_WASTE = {"block_tokens": 0}


def replica_of(tokens: float, **changes: Any) -> PagedReplica:
    """Return four slots, ten tokens a second each whatever the batch; prompts take no time."""
    given = {"slots": 4, "prefill": None, "keeps": False, **NO_WASTE, **changes}
    cache = KvCache(tokens=tokens, block_tokens=given["block_tokens"], keeps=given["keeps"])
    return PagedReplica(given["slots"], lambda _: 10.0, given["prefill"], cache)


def story(replica: PagedReplica) -> list[tuple[str, Any, float]]:
    """Run to the end; return what happened, to whom and when."""
    told = [(m.what.name.lower(), m.job, m.at_s) for m in replica.drain()]
    while (at_s := replica.next_event()) < math.inf:
        told += [(m.what.name.lower(), m.job, round(m.at_s, 9)) for m in replica.moments(at_s)]
    return told


def test_the_newest_gives_up_when_the_cache_is_full_and_goes_on_when_another_has_ended():
    replica = replica_of(100)
    replica.start("a", 60.0, 0.0, prompt=10.0)
    replica.start("b", 60.0, 0.0, prompt=10.0)
    # Both hold 10 + 40 after 4 s; b has then 20 tokens to make, and 50 to hold before it may.
    assert story(replica) == [
        ("started", "a", 0.0),
        ("started", "b", 0.0),
        ("preempted", "b", 4.0),
        ("finished", "a", 6.0),
        ("resumed", "b", 6.0),
        ("finished", "b", 8.0),
    ]
    assert replica.read_anew == 50.0
    assert replica.most_held == 100.0
    assert replica.held(8.0) == 0.0
    # From 20 to 100 in 4 s, from 50 to 70 in 2 s, and b's 50 to 70 in 2 s.
    assert replica.held_area(8.0) == pytest.approx(240 + 120 + 120)


def test_a_prompt_that_does_not_fit_waits_inside_and_nobody_overtakes_it():
    replica = replica_of(100)
    replica.start("a", 20.0, 0.0, prompt=60.0)
    assert not replica.start("large", 10.0, 0.0, prompt=50.0)
    assert not replica.start("small", 10.0, 0.0, prompt=5.0)
    assert (replica.running, replica.waiting) == (1, 2)
    told = story(replica)
    assert [entry for entry in told if entry[0] == "started"] == [
        ("started", "a", 0.0),
        ("started", "large", 2.0),
        ("started", "small", 2.0),
    ]


def test_one_that_gave_up_goes_on_before_those_who_never_began():
    replica = replica_of(100, slots=2)
    for job in "abc":
        replica.start(job, 60.0, 0.0, prompt=10.0)
    told = story(replica)
    assert [entry for entry in told if entry[2] == 6.0] == [
        ("finished", "a", 6.0),
        ("resumed", "b", 6.0),
        ("started", "c", 6.0),
    ]


def test_what_it_gave_up_is_read_anew_as_a_prompt_but_for_what_prefix_caching_has_left():
    prefill = Prefill(cost_s=0.1, budget_tokens=1_000_000)
    lasts = {}
    for keeps in (False, True):
        replica = replica_of(100, prefill=prefill, keeps=keeps)
        replica.start("a", 60.0, 0.0)
        replica.start("b", 60.0, 0.0)
        told = story(replica)
        assert ("preempted", "b", 5.0) in told
        # a goes on from 50 to 60 and overwrites 10 of b's 50; the last token is read at any rate.
        assert replica.read_anew == pytest.approx(10.0 if keeps else 50.0)
        lasts[keeps] = told[-1][2]
    assert lasts == {True: pytest.approx(6.0 + 1.0 + 1.0), False: pytest.approx(6.0 + 5.0 + 1.0)}


def test_a_cached_prefix_is_held_but_not_read():
    prefill = Prefill(cost_s=0.01, budget_tokens=1_000_000)
    replica = replica_of(1000, prefill=prefill)
    replica.start("a", 10.0, 0.0, prompt=200.0, cached=160.0)
    assert replica.held(0.0) == 200.0
    assert story(replica)[-1] == ("finished", "a", pytest.approx(0.4 + 1.0))
    assert replica.read_anew == 0.0


def test_one_that_runs_alone_may_hold_more_than_there_is():
    replica = replica_of(50)
    replica.start("a", 100.0, 0.0, prompt=10.0)
    replica.start("b", 10.0, 0.0, prompt=60.0)
    assert story(replica) == [
        ("started", "a", 0.0),
        ("finished", "a", 10.0),
        ("started", "b", 10.0),
        ("finished", "b", 11.0),
    ]


def test_one_that_leaves_gives_its_memory_back_whether_it_runs_or_waits_to_go_on():
    replica = replica_of(100)
    for job in "abc":
        replica.start(job, 60.0, 0.0, prompt=10.0)
    replica.moments(3.0)  # c gave up after 70 / 3 tokens each
    assert replica.running_jobs() == ["a", "b"]
    assert replica.abort("c", 3.0)
    assert replica.abort("a", 3.0)
    assert replica.held(3.0) == pytest.approx(40.0)
    replica.start("d", 10.0, 3.0, prompt=20.0)
    assert replica.running == 2
    story(replica)
    assert replica.held(100.0) == pytest.approx(0.0)
    assert replica.running == replica.waiting == 0


def test_a_sequence_of_several_holds_several_times_as_much():
    replica = replica_of(100)
    replica.start("pair", 10.0, 0.0, prompt=20.0, weight=2)
    assert replica.held(0.0) == 40.0
    assert not replica.start("other", 10.0, 0.0, prompt=70.0)
    assert replica.moments(0.5)[0].what is What.STARTED
    assert replica.held(0.5) == pytest.approx(50.0)


def test_a_closed_gate_holds_what_there_is():
    replica = replica_of(100)
    replica.start("a", 60.0, 0.0, prompt=10.0)
    replica.start("b", 60.0, 0.0, prompt=10.0)
    replica.gate(1.0, run=False, admit=False)
    assert replica.next_event() == math.inf
    assert replica.held(9.0) == 40.0
    replica.gate(9.0, run=True, admit=True)
    assert ("preempted", "b", 12.0) in story(replica)
    assert replica.held_area(16.0) == pytest.approx(240 + 120 + 120 + 8 * 40)


sizes = st.lists(
    st.tuples(st.floats(0.0, 3.0), st.integers(1, 60), st.integers(1, 80)), min_size=1, max_size=14
)


@given(sizes, st.integers(40, 200), st.booleans())
def test_nobody_is_lost_nobody_overtakes_and_memory_is_never_exceeded_by_two(
    plan: list[tuple[float, int, int]], tokens: int, keeps: bool
) -> None:
    replica = replica_of(
        tokens, prefill=Prefill(cost_s=0.001, budget_tokens=64), keeps=keeps, block_tokens=2
    )
    now, moments = 0.0, []

    def run(until_s: float) -> None:
        while (at_s := replica.next_event()) <= until_s and at_s < math.inf:
            moments.extend(replica.moments(at_s))
            if len(replica.running_jobs()) > 1:
                assert replica.held(at_s) <= tokens * (1 + 1e-9)

    for number, (gap_s, prompt, output) in enumerate(plan):
        now += gap_s
        run(now)
        replica.start(number, float(output), now, prompt=float(prompt))
        moments.extend(replica.drain())
    run(math.inf)
    everybody = list(range(len(plan)))
    by_what = {what: [m.job for m in moments if m.what is what] for what in What}
    assert by_what[What.STARTED] == everybody
    assert sorted(by_what[What.FINISHED]) == everybody
    assert sorted(by_what[What.PREEMPTED]) == sorted(by_what[What.RESUMED])
    assert replica.held(moments[-1].at_s) == pytest.approx(0.0, abs=1e-6)


@given(sizes)
def test_memory_that_is_never_short_changes_nothing(plan: list[tuple[float, int, int]]) -> None:
    prefill = Prefill(cost_s=0.001, budget_tokens=64)
    paged, plain = replica_of(1e9, prefill=prefill), Replica(4, lambda _: 10.0, prefill)
    ended: list[list[Any]] = [[], []]
    for place, replica in enumerate((paged, plain)):
        now = 0.0
        for number, (gap_s, prompt, output) in enumerate(plan):
            now += gap_s
            ended[place] += replica.moments(now)
            replica.start(number, float(output), now, prompt=float(prompt))
        ended[place] += replica.moments(1e9)
    assert ended[0] == ended[1]
