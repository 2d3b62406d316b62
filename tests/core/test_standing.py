"""Standing orders: who outranks whom, what operators say, and what it does to an engine."""

from itertools import product
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wake_scenes import Scene, of, refusals, transitions

from tornado_frontdoor.core.decisions import (
    Answered,
    EngineState,
    FellAsleep,
    Reason,
    SleepReason,
    Verdict,
)
from tornado_frontdoor.core.gpu_occupant import RoomLimits
from tornado_frontdoor.core.schedule import Wish
from tornado_frontdoor.core.standing import (
    NOTHING,
    OrderKind,
    OrderOwner,
    Said,
    Standing,
    StandingOrder,
    after,
    standing,
)

PIN, KEEP, ASLEEP = OrderKind
OPERATOR, SCHEDULE, CONFIGURATION = OrderOwner
FREE = Wish()


def by_operator(kind: OrderKind, until_s: float = inf, **more) -> StandingOrder:
    return StandingOrder(kind, OPERATOR, "alice", until_s, **more)


def held(*orders: StandingOrder | None, wish: Wish = FREE, pinned: bool = False) -> Standing:
    operator = orders[0] if orders else None
    return standing(operator, wish, pinned=pinned, instant_s=0.0)


# Who outranks whom: each operator's order with each wish of a schedule, pinned and not

AWAKE_NOW, ASLEEP_NOW = Wish(True, 50.0, "day"), Wish(False, 60.0, "night")
EXPECTED = {  # (operator, schedule, pinned) -> what it comes to
    (None, FREE, False): "free",
    (None, FREE, True): "pinned",
    **{(None, AWAKE_NOW, pinned): "pinned" for pinned in (False, True)},
    **{(None, ASLEEP_NOW, pinned): "asleep" for pinned in (False, True)},
    **{(PIN, wish, pinned): "pinned" for wish in (FREE, AWAKE_NOW) for pinned in (False, True)},
    **{(PIN, ASLEEP_NOW, pinned): "pinned" for pinned in (False, True)},
    (KEEP, FREE, False): "kept",
    (KEEP, FREE, True): "kept pinned",
    **{(KEEP, AWAKE_NOW, pinned): "kept pinned" for pinned in (False, True)},
    # What is below one who wants it asleep adds nothing.
    **{(KEEP, ASLEEP_NOW, pinned): "kept" for pinned in (False, True)},
    **{
        (ASLEEP, wish, pinned): "asleep"
        for wish in (FREE, AWAKE_NOW, ASLEEP_NOW)
        for pinned in (False, True)
    },
}


@pytest.mark.parametrize(
    ("kind", "wish", "pinned"),
    [*product((None, *OrderKind), (FREE, AWAKE_NOW, ASLEEP_NOW), (False, True))],
)
def test_the_first_by_rank_counts(kind, wish, pinned):
    order = None if kind is None else by_operator(kind)
    came = held(order, wish=wish, pinned=pinned)
    words = [("kept", came.kept), ("pinned", came.pinned), ("asleep", came.asleep)]
    told = " ".join(word for word, holds in words if holds) or "free"
    assert told == EXPECTED[kind, wish, pinned]
    owners = [order.owner for order in came.orders]
    assert owners == sorted(owners, key=list(OrderOwner).index)


def test_it_says_when_it_changes_by_itself():
    assert held(by_operator(PIN, 20.0), wish=ASLEEP_NOW).next_s == 20.0
    assert held(by_operator(PIN, 90.0), wish=ASLEEP_NOW).next_s == 60.0
    assert held(wish=Wish(None, 30.0)).next_s == 30.0
    assert held(pinned=True).next_s == inf


def test_by_another_clock_it_is_the_same():
    order = by_operator(ASLEEP, 20.0)
    came = held(order, wish=AWAKE_NOW).moved(100.0)
    assert [one.until_s for one in came.orders] == [120.0, 150.0]
    assert (came.asleep, came.next_s) == (came.orders[0], 120.0)
    assert NOTHING.moved(5.0) == NOTHING


# What operators say: each order with each word

NEW = by_operator(PIN, 99.0)
WORDS = {
    (None, Said.ORDER): NEW,
    (None, Said.UNPIN): None,
    (None, Said.WAKE): None,
    (None, Said.SLEEP): None,
    **{(kind, Said.ORDER): NEW for kind in OrderKind},
    **{(kind, said): None for kind in (PIN, KEEP) for said in (Said.UNPIN, Said.SLEEP)},
    **{(kind, Said.WAKE): "stays" for kind in (PIN, KEEP)},
    **{(ASLEEP, said): "stays" for said in (Said.UNPIN, Said.SLEEP)},
    (ASLEEP, Said.WAKE): None,
}


@pytest.mark.parametrize(("kind", "said"), [*product((None, *OrderKind), Said)])
def test_what_becomes_of_an_order_by_a_word(kind, said):
    before = None if kind is None else by_operator(kind, 10.0)
    expected = WORDS[kind, said]
    new = NEW if said in (Said.ORDER, Said.WAKE) else None
    assert after(before, said, FREE, new) == (before if expected == "stays" else expected)


@pytest.mark.parametrize("kind", [None, ASLEEP])
def test_who_wakes_it_against_its_schedule_keeps_it_awake_until_that_changes(kind):
    before = None if kind is None else by_operator(kind)
    new = StandingOrder(KEEP, OPERATOR, "bob")
    came = after(before, Said.WAKE, ASLEEP_NOW, new)
    assert came == new._replace(until_s=60.0)
    assert not held(came, wish=ASLEEP_NOW).asleep


ORDERS = st.one_of(
    st.none(), st.builds(by_operator, st.sampled_from(OrderKind), st.floats(1.0, 100.0))
)
WISHES = st.builds(Wish, st.sampled_from([None, True, False]), st.floats(1.0, 100.0))


@given(ORDERS, WISHES, st.booleans())
def test_an_order_that_ends_leaves_what_was_before(order, wish, pinned):
    """And nothing changes before the instant that was told."""
    came = standing(order, wish, pinned=pinned, instant_s=0.0)
    without = standing(None, wish, pinned=pinned, instant_s=0.0)
    if order is not None:
        over = standing(order, wish, pinned=pinned, instant_s=order.until_s)
        assert over == without
    shortly = standing(order, wish, pinned=pinned, instant_s=came.next_s * 0.999)
    assert shortly == came


# An engine


@pytest.fixture
def scene() -> Scene:
    return Scene()


def stand(site, *orders, **more) -> None:
    site.call(lambda: site.gate.stand(held(*orders, **more)))


def test_a_pin_keeps_idle_tiers_away_and_its_end_gives_them_back(scene):
    site = scene.site(idle_sleep_s=60.0)
    stand(site, by_operator(PIN))
    scene.pass_s(1000.0)
    assert site.gate.state is EngineState.AWAKE
    stand(site)
    scene.pass_s(10.0)
    assert site.gate.state is EngineState.SLEEPING
    assert of(site, FellAsleep)[-1].reason is SleepReason.IDLE


def test_a_keep_does_so_too(scene):
    site = scene.site(idle_sleep_s=60.0)
    stand(site, by_operator(KEEP))
    scene.pass_s(1000.0)
    assert site.gate.state is EngineState.AWAKE


def test_a_pin_that_comes_in_time_calls_a_fall_off(scene):
    site = scene.site(idle_sleep_s=60.0, manners={"delay_s": 1.0})
    scene.wait_for(lambda: site.gate.wake_step is not None)
    stand(site, by_operator(PIN))
    scene.pass_s(200.0)
    assert (site.gate.state, transitions(site)) == (EngineState.AWAKE, [])


@pytest.mark.parametrize("level", [None, 2])
def test_one_that_is_to_be_asleep_sleeps_at_once_and_no_request_wakes_it(scene, level):
    site = scene.site()
    stand(site, by_operator(ASLEEP, 5000.0, level=level, ends="until noon"))
    scene.pass_s(10.0)
    asleep = of(site, FellAsleep)[-1]
    assert (asleep.level, asleep.reason, asleep.by) == (level or 1, SleepReason.OPERATOR, "alice")
    for _ in range(3):
        site.arrive(1.0)
    scene.pass_s(100.0)
    assert site.ends == {"model_asleep": 3}
    told = refusals(site)
    assert all(one.reason is Reason.MODEL_ASLEEP for one in told)
    assert "until noon, by operator (alice)" in told[0].detail
    assert all(1 <= one.retry_after_s <= 59 for one in told)
    assert len({one.return_s for one in told}) == 3, "not all at one instant"
    stand(site)
    site.arrive(1.0)
    scene.pass_s(60.0)
    assert site.ends["served"] == 1


def test_retry_after_is_what_is_left_when_that_is_less(scene):
    site = scene.site()
    stand(site, by_operator(ASLEEP, scene.now + 20.0))
    site.arrive(1.0)
    assert refusals(site)[0].retry_after_s == pytest.approx(20.0)


def test_one_that_is_busy_lets_its_requests_end_and_refuses_its_queue(scene):
    site = scene.site(cap=1)
    site.arrive(300.0)
    site.arrive(1.0)
    stand(site, by_operator(ASLEEP))
    assert site.ends == {"model_asleep": 1}
    scene.pass_s(290.0)
    assert site.gate.state is EngineState.AWAKE
    scene.pass_s(20.0)
    assert site.gate.state is EngineState.SLEEPING
    assert site.ends == {"model_asleep": 1, "served": 1}


def test_one_that_wakes_goes_back_to_sleep(scene):
    site = scene.site(asleep=2)
    site.arrive(1.0)
    scene.wait_for(lambda: site.gate.wake_step == "reload_weights")
    stand(site, wish=ASLEEP_NOW)
    scene.pass_s(100.0)
    assert site.gate.state is EngineState.SLEEPING
    assert of(site, FellAsleep)[-1].reason is SleepReason.SCHEDULE
    assert site.ends == {"model_asleep": 1}


def test_an_order_to_sleep_outranks_a_pin_of_the_configuration(scene):
    site = scene.site(pinned=True)
    stand(site, by_operator(ASLEEP))
    scene.pass_s(10.0)
    assert site.gate.state is EngineState.SLEEPING


def test_an_operators_sleep_goes_on_when_orders_change(scene):
    site = scene.site()
    site.call(lambda: site.gate.sleep_now(1))
    stand(site, by_operator(KEEP))
    scene.pass_s(10.0)
    assert of(site, Answered)[-1].verdict is Verdict.DONE


def test_a_pin_that_comes_while_it_makes_room_calls_that_off(scene):
    scene.gpus.limits = RoomLimits(device_gib={0: 10.0}, stay_factor=0.0)
    mine = {"devices": (0,), "awake_gib": 8.0, "asleep_gib": 0.5}
    site = scene.site("A", **mine)
    other = scene.site("B", asleep=1, hold_sleeping_s=20.0, **mine)
    site.arrive(60.0)
    other.arrive(1.0)
    assert site.gate.makes_room
    stand(site, by_operator(PIN))
    assert not site.gate.makes_room
    site.arrive(1.0)
    scene.pass_s(100.0)
    assert (site.gate.state, site.ends) == (EngineState.AWAKE, {"served": 2})
    assert of(site, FellAsleep) == []
    (told,) = refusals(other)
    assert "A" in told.detail


def test_another_makes_room_in_the_place_of_one_that_is_pinned_meanwhile(scene):
    scene.gpus.limits = RoomLimits(device_gib={0: 18.0}, stay_factor=0.0)
    mine = {"devices": (0,), "awake_gib": 8.0, "asleep_gib": 0.5, "hold_sleeping_s": 200.0}
    first, second = scene.site("A", priority=-1, **mine), scene.site("C", **mine)
    asking = scene.site("B", asleep=1, **mine)
    first.arrive(60.0)
    second.arrive(30.0)
    asking.arrive(1.0)
    assert (first.gate.makes_room, second.gate.makes_room) == (True, False)
    stand(first, by_operator(PIN))
    scene.pass_s(1.0)
    assert (first.gate.makes_room, second.gate.makes_room) == (False, True)
    scene.pass_s(100.0)
    assert first.gate.state is EngineState.AWAKE
    assert of(second, FellAsleep)[-1].reason is SleepReason.ROOM
    assert asking.ends == {"served": 1}


STORY = st.lists(
    st.tuples(
        st.floats(0.1, 40.0),
        st.sampled_from(["request", "long", "stray", "pin", "keep", "asleep", "none", "pinned"]),
    ),
    max_size=10,
)


@given(STORY)
def test_nothing_busy_is_put_to_sleep_and_nothing_pinned_whatever_is_ordered(story):
    """The site holds the laws of the gate meanwhile; in the end it serves."""
    scene = Scene()
    site = scene.site(idle_sleep_s=20.0, idle_offload_s=50.0)
    for gap_s, what in story:
        scene.pass_s(gap_s)
        before = len(of(site, FellAsleep))
        awake = site.gate.state is EngineState.AWAKE and site.gate.wake_step is None
        if what in ("request", "long"):
            site.arrive(30.0 if what == "long" else 1.0)
        elif what == "none":
            stand(site)
        elif what == "pinned":
            stand(site, pinned=True)
        elif what != "stray":
            stand(site, by_operator(OrderKind(what)))
        if what in ("pin", "pinned") and awake:
            scene.pass_s(200.0)
            assert len(of(site, FellAsleep)) == before
    stand(site)
    site.arrive(1.0)
    scene.wait_for(lambda: not site.inside, 300.0)
    assert site.ends["served"] >= 1
