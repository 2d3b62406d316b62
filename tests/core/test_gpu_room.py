"""Who may be in the memory of a GPU, who makes room for whom, and when."""

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest
from depth import parse_seeds
from room_worlds import World

from tornado_frontdoor.core.gpu_occupant import (
    Granted,
    MakeRoom,
    Moving,
    NeverFits,
    Occupant,
    RoomLimits,
    StayAwake,
)
from tornado_frontdoor.core.gpu_room import plan
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.engines.base import STOPPED

A, B, C, D = (UpstreamKey(key) for key in "ABCD")
ONE_GPU = RoomLimits(device_gib={0: 20.0}, stay_factor=3.0, max_turn_wait_s=60.0)
NOW = 1000.0


def engine(key: UpstreamKey, **facts: object) -> Occupant:
    """Return an engine of 8 GiB, awake and idle on GPU 0, whose switch costs 5 s."""
    given: dict[str, object] = {
        "upstream": key,
        "devices": (0,),
        "awake_gib": 8.0,
        "switch_cost_s": 5.0,
        **facts,
    }
    return Occupant(**given)  # type: ignore[arg-type]


def asks(key: UpstreamKey, since_s: float = NOW, **facts: object) -> Occupant:
    given: dict[str, object] = {
        "level": 1,
        "asks": Moving.WAKING,
        "asks_since_s": since_s,
        "oldest_waiter_s": since_s,
    }
    return engine(key, **(given | facts))


def busy(key: UpstreamKey, **facts: object) -> Occupant:
    return engine(key, **({"in_flight": 1} | facts))


def orders(*occupants: Occupant, limits: RoomLimits = ONE_GPU, now: float = NOW) -> list[object]:
    return [*plan(occupants, limits, now).orders]


def test_what_fits_wakes_at_once():
    assert orders(engine(A), asks(B)) == [Granted(B)]


def test_the_least_recently_used_idle_engine_makes_room():
    """Case S24: one victim, and no more than are needed."""
    found = orders(engine(A, active_s=NOW - 5), engine(B, active_s=NOW - 50), asks(C))
    assert found == [MakeRoom(B, 1, C)]


def test_an_idle_one_goes_before_one_with_work_however_recently_it_was_used():
    found = orders(busy(A, active_s=1), engine(B, active_s=NOW - 1), asks(C))
    assert found == [MakeRoom(B, 1, C)]


def test_two_make_room_where_one_is_not_enough():
    found = orders(engine(A, active_s=1), engine(B, active_s=2), asks(C, awake_gib=16.0))
    assert found == [MakeRoom(A, 1, C), MakeRoom(B, 1, C)]


def test_whom_it_goes_without_is_left_alone():
    """A is the first to go, but B alone is enough and needed in any case."""
    small = engine(A, awake_gib=2.0, active_s=1)
    found = orders(small, engine(B, awake_gib=16.0, active_s=2), asks(C, awake_gib=16.0))
    assert found == [MakeRoom(B, 1, C)]


def test_one_of_a_lower_priority_goes_first():
    found = orders(engine(A, active_s=1, priority=1), engine(B, active_s=2), asks(C))
    assert found == [MakeRoom(B, 1, C)]


def test_pinned_ones_stay_and_the_sum_is_told():
    """Cases S23, S34."""
    found = orders(engine(A, pinned=True), engine(B, pinned=True), asks(C))
    assert found == [
        NeverFits(C, "GPU 0 has 20.0 GiB; C needs 8.0 beside 8.0 of A + 8.0 of B"),
    ]


def test_one_that_is_larger_than_its_gpu_never_fits():
    assert orders(asks(A, awake_gib=21.0)) == [
        NeverFits(A, "GPU 0 has 20.0 GiB; A needs 21.0"),
    ]


def test_one_that_takes_turns_with_all_others_may_go_beyond_the_limit_by_what_sleepers_leave():
    limits = replace(ONE_GPU, whole_gib={0: 24.0})
    sleeper = engine(A, level=1, asleep_gib=2.0)
    assert orders(sleeper, asks(B, awake_gib=19.0), limits=limits) == [Granted(B)]
    assert orders(sleeper, asks(B, awake_gib=23.0), limits=limits) == [
        NeverFits(B, "GPU 0 has 24.0 GiB; B needs 23.0 beside 2.0 of A"),
    ]
    awake = engine(C, awake_gib=1.0)
    beside = orders(sleeper, awake, asks(B, awake_gib=19.0), limits=limits)
    assert beside == [MakeRoom(C, 1, B)], "the limit holds while there is more to be freed"


def test_one_that_never_fits_keeps_nobody_waiting():
    found = orders(asks(A, 1.0, awake_gib=21.0), asks(B, 2.0))
    assert [type(order) for order in found] == [NeverFits, Granted]


def test_wakes_take_turns_by_their_oldest_waiter():
    """Case S28: two that want to wake never choose the same room."""
    found = plan([engine(A), asks(B, 2.0), asks(C, 1.0)], ONE_GPU, NOW)
    assert found.orders == (Granted(C), MakeRoom(A, 1, B))
    assert found.waits_for == {B: "room made by A"}


def test_a_small_one_does_not_pass_one_that_waits_for_room():
    found = orders(busy(A, woke_s=NOW), asks(B, 1.0, awake_gib=16.0), asks(C, 2.0, awake_gib=1.0))
    assert found == []


def test_one_transition_at_a_time_on_a_gpu():
    """Case V9."""
    found = plan([engine(A, moving=Moving.WAKING), asks(B)], ONE_GPU, NOW)
    assert found.orders == ()
    assert found.waits_for == {B: "another transition on GPU 0"}


def test_other_gpus_do_not_wait():
    """Case S6."""
    limits = replace(ONE_GPU, device_gib={0: 20.0, 1: 20.0})
    found = orders(engine(A, moving=Moving.WAKING), asks(B, devices=(1,)), limits=limits)
    assert found == [Granted(B)]


def test_an_engine_on_two_gpus_needs_room_on_both():
    limits = replace(ONE_GPU, device_gib={0: 10.0, 1: 10.0})
    found = orders(engine(A), engine(B, devices=(1,)), asks(C, devices=(0, 1)), limits=limits)
    assert found == [MakeRoom(A, 1, C), MakeRoom(B, 1, C)]


def test_falling_asleep_needs_its_turn_and_no_room():
    falling = engine(A, asks=Moving.SLEEPING, goes_to=1)
    assert orders(falling, asks(B, 1.0, awake_gib=16.0)) == [Granted(A)]
    assert orders(falling, engine(B, moving=Moving.WAKING)) == []


def test_falling_deeper_waits_for_room_and_sends_nobody_away():
    """From level 1 to 2 the weights come back for a moment."""
    deeper = engine(A, level=1, asks=Moving.SLEEPING, goes_to=2)
    assert orders(deeper, engine(B)) == [Granted(A)]
    assert orders(deeper, engine(B), engine(C)) == []
    assert orders(deeper, asks(C)) == [Granted(C)], "a wake goes first"


# When those with work make room


def test_one_with_work_stays_for_its_time_then_makes_room():
    a, b = busy(A, woke_s=NOW - 14), busy(B, pinned=True)
    before = plan([a, b, asks(C, NOW - 10)], ONE_GPU, NOW)
    assert before.orders == ()
    assert before.next_s == NOW + 1
    assert orders(a, b, asks(C, NOW - 10), now=NOW + 1) == [MakeRoom(A, 1, C)]


def test_whose_own_queue_is_older_stays_until_the_other_waited_long_enough():
    a = busy(A, woke_s=NOW - 100, oldest_waiter_s=NOW - 20)
    found = plan([a, busy(B, pinned=True), asks(C, NOW - 10)], ONE_GPU, NOW)
    assert found.orders == ()
    assert found.next_s == NOW + 50
    later = orders(a, busy(B, pinned=True), asks(C, NOW - 10), now=NOW + 50)
    assert later == [MakeRoom(A, 1, C)]


def test_a_stay_is_never_longer_than_the_longest_turn():
    slow = busy(A, woke_s=NOW, switch_cost_s=1e6)
    assert plan([slow, busy(B, pinned=True), asks(C)], ONE_GPU, NOW).next_s == NOW + 60


def test_idle_ones_are_left_alone_while_they_are_not_enough():
    """A alone would not do, and B may not go yet: A would sleep for nothing."""
    found = orders(engine(A), busy(B, woke_s=NOW), asks(C, awake_gib=16.0))
    assert found == []


def test_who_could_not_make_room_is_left_alone_for_a_while():
    a = engine(A, rests_until_s=NOW + 3)
    found = plan([a, busy(B, pinned=True), asks(C)], ONE_GPU, NOW)
    assert found.orders == ()
    assert found.next_s == NOW + 3


def test_who_was_told_stays_when_nobody_needs_it_any_more():
    """Case S10."""
    assert orders(engine(A, goes_to=1), engine(B)) == [StayAwake(A)]


def test_what_is_being_freed_is_not_asked_for_twice():
    assert orders(engine(A, goes_to=1), engine(B), asks(C)) == []
    sleeping = engine(A, goes_to=1, moving=Moving.SLEEPING)
    assert orders(sleeping, engine(B), asks(C)) == []


def test_what_is_being_freed_for_one_is_no_room_for_another():
    found = orders(engine(A, goes_to=1), engine(B), asks(C, 1.0), asks(D, 2.0))
    assert found == [MakeRoom(B, 1, D)]


# How deep


def test_the_host_has_to_have_room_for_weights_that_are_kept():
    limits = replace(ONE_GPU, host_gib=10.0)
    kept = engine(A, level=1, weights_gib=6.0, awake_gib=8.0)
    victim = engine(B, weights_gib=6.0)
    found = orders(kept, victim, engine(C, pinned=True), asks(D), limits=limits)
    assert found == [MakeRoom(B, 2, D)]


def test_weights_of_two_that_go_at_once_are_added_up():
    limits = replace(ONE_GPU, host_gib=10.0)
    a, b = engine(A, active_s=1, weights_gib=6.0), engine(B, active_s=2, weights_gib=6.0)
    found = orders(a, b, asks(C, awake_gib=16.0), limits=limits)
    assert found == [MakeRoom(A, 1, C), MakeRoom(B, 2, C)]


def test_weights_of_two_that_go_for_different_ones_are_added_up():
    limits = replace(ONE_GPU, device_gib={0: 10.0, 1: 10.0}, host_gib=10.0)
    a, b = engine(A, weights_gib=6.0), engine(B, devices=(1,), weights_gib=6.0)
    found = orders(a, b, asks(C, 1.0), asks(D, 2.0, devices=(1,)), limits=limits)
    assert found == [MakeRoom(A, 1, C), MakeRoom(B, 2, D)]


def test_the_residue_of_sleepers_goes_where_sleep_is_not_enough():
    """Case S30, V10: three sleepers leave 2 GiB each on a GPU of 20."""
    sleepers = [
        engine(key, level=1, asleep_gib=2.0, levels=(1, 2, STOPPED), active_s=number)
        for number, key in enumerate((A, B, C))
    ]
    found = orders(*sleepers, asks(D, awake_gib=17.0, level=STOPPED))
    assert found == [MakeRoom(A, STOPPED, D), MakeRoom(B, STOPPED, D)]


def test_one_that_wants_to_wake_is_not_stopped_for_another():
    waits = asks(A, NOW - 1, asleep_gib=2.0, levels=(1, STOPPED), awake_gib=19.0)
    found = plan([waits, asks(B, NOW - 2, awake_gib=19.0)], ONE_GPU, NOW)
    assert found.orders == ()
    assert set(found.waits_for) == {A, B}


def test_an_engine_without_devices_needs_no_room():
    assert orders(asks(A, devices=(), awake_gib=0.0)) == [Granted(A)]


def test_a_gpu_without_a_limit_only_keeps_the_order():
    limits = RoomLimits(device_gib={})
    assert orders(engine(A), engine(B), engine(C), asks(D), limits=limits) == [Granted(D)]
    moving = engine(A, moving=Moving.WAKING)
    assert orders(moving, asks(D), limits=limits) == []


# Groups


def test_of_a_group_the_one_that_is_idle_sleeps_for_the_one_that_is_asked_for():
    for devices in ((), (0,)):
        there = engine(A, groups=("big",), devices=devices)
        asking = asks(B, groups=("big",), devices=devices)
        assert orders(there, asking) == [MakeRoom(A, 1, B)]
        gone = replace(there, level=1)
        assert orders(gone, asking) == [Granted(B)]


def test_of_a_group_one_that_is_busy_has_its_time_and_nobody_else_is_sent_away():
    limits = RoomLimits(device_gib={}, stay_factor=3.0, max_turn_wait_s=60.0)
    working = busy(A, groups=("big",), woke_s=NOW - 1)
    asking = asks(B, groups=("big",))
    idle = engine(C)
    assert orders(working, asking, idle, limits=limits) == []
    assert plan([working, asking, idle], limits, NOW).next_s == NOW + 14
    assert orders(working, asking, idle, limits=limits, now=NOW + 14) == [MakeRoom(A, 1, B)]


def test_an_engine_in_two_groups_needs_its_turn_in_both():
    asking = asks(C, groups=("one", "two"))
    there = [engine(A, groups=("one",)), engine(B, groups=("two",))]
    made = orders(*there, asking)
    assert sorted(order.upstream for order in made) == [A, B]


def test_a_pinned_one_keeps_its_group_and_the_others_are_told_so():
    there = engine(A, groups=("big",), pinned=True)
    (never,) = orders(there, asks(B, groups=("big",)))
    assert never == NeverFits(B, "group big has room for one; A stays awake")


def test_who_waits_for_a_transition_in_its_group_knows_it():
    there = engine(A, groups=("big",), devices=(), level=1, moving=Moving.SLEEPING, goes_to=3)
    made = plan([there, asks(B, groups=("big",), devices=())], ONE_GPU, NOW)
    assert made.waits_for == {B: "another transition in group big"}


def test_groups_do_not_count_as_memory():
    there = engine(A, groups=("big",))
    other = engine(B, groups=("small",))
    assert orders(there, other, asks(C, groups=("third",), awake_gib=4.0)) == [Granted(C)]


SEEDS = os.environ.get("FRONTDOOR_SEEDS")


@pytest.mark.parametrize(
    "seeds", [range(40), pytest.param(range(40, 1000), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_worlds_keep_memory_order_and_turns(seeds: Sequence[int]) -> None:
    seeds = parse_seeds(SEEDS) if SEEDS else seeds
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
        except AssertionError as broken:
            tail = "\n".join(world.lines[-20:])
            pytest.fail(f"{broken}\n{tail}\nreplay: python tests/core/room_worlds.py {seed}")


def test_of_two_that_take_turns_none_waits_longer_than_is_set_for_its_turn_to_begin() -> None:
    turns = []
    for seed in range(25):
        world = World(seed, two=True)
        world.run()
        taken = [turn for car in world.cars.values() for turn in car.turns]
        assert max(taken, default=0.0) <= world.limits.max_turn_wait_s + 1e-6
        turns += taken
    assert len(turns) > 200, "nobody had to take turns"
