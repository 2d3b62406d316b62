"""Clients that come back, that say how long they wait, and that share slots by key."""

from dataclasses import replace

import pytest
from scenes import EXP_2, burst, result_of, scene

from simulator.cli.option_parser import UsageError, advice, named_numbers
from simulator.cli.options import simulate_of
from simulator.study.statistics import sigmas
from simulator.traffic.distributions import Distribution
from simulator.traffic.keys import ClientKey, key_at
from simulator.traffic.retries import Advice, Retry
from simulator.traffic.workload import Closed, Renewal

OPENAI = Retry(kind="openai")


def test_more_of_a_burst_is_served_the_better_it_is_told_when_to_come_back():
    def served(**changes):
        world = burst(service=EXP_2, retry=OPENAI, **changes)
        return result_of(world, replications=30).estimate("served_share").mean

    nothing = served(advice=Advice(kind="none"))
    constant = served(advice=Advice(kind="const", pause_s=2.0))
    promised = served()
    assert 0.4 < nothing < 0.5 < constant < 0.75
    assert promised > 0.99


@pytest.mark.slow
def test_kept_places_serve_those_who_would_be_lost_near_saturation():
    def served(places):
        world = scene(
            arrivals=Renewal(rate=2.85), timeout_s=30.0, retry=OPENAI, return_places=places
        )
        return result_of(world, replications=4).estimate("served_share").mean

    assert served(0) < 0.985
    assert served(None) > 0.995


@pytest.mark.parametrize("places", [0, 4, 8])
def test_before_clients_that_never_come_back_no_place_is_kept(places):
    def told(return_places):
        result = result_of(scene(return_places=return_places), replications=2, check=True)
        return result.counts(), result.estimate("wait_mean_s")

    assert told(places) == told(None)


def test_who_would_wait_in_vain_is_told_at_once():
    def counts(how):
        world = scene(
            queue=24,
            arrivals=Renewal(rate=3.6),
            patience=Distribution("const", 4.0),
            patience_told=how,
            requests=2000,
        )
        return result_of(world, replications=3, check=True).counts()

    heeded, ignored = counts("heeded"), counts("ignored")
    assert "client_deadline" not in ignored
    assert heeded["client_deadline"] > 0
    assert heeded["left"] < 0.75 * ignored["left"]
    assert heeded["served"] == pytest.approx(ignored["served"], rel=0.02)


CROWD = scene(
    queue=200,
    arrivals=Closed(clients=101, think_s=1.0),
    keys=(ClientKey("A", 100), ClientKey("B", 1)),
    requests=2500,
    warmup=500,
)


def test_one_client_beside_a_hundred_waits_for_one_slot_as_theory_says():
    """Always full, Exp(2 s), cap 6: the next end is Exp(1/3 s) away, and it is B's."""
    world = replace(CROWD, fair_share=True)
    result = result_of(world, replications=8)
    assert abs(sigmas(result.values("wait_mean_s[B]"), 1 / 3)) < 4
    assert result.estimate("wait_mean_s[A]").mean > 25
    assert result.estimate("utilization").mean == pytest.approx(1.0, abs=0.001)


def test_in_order_of_arrival_it_waits_as_long_as_all():
    result = result_of(CROWD, replications=2)
    waits = [result.estimate(f"wait_mean_s[{key}]").mean for key in "AB"]
    assert waits[1] == pytest.approx(waits[0], rel=0.1)


@pytest.mark.slow
def test_both_saturated_they_have_what_their_shares_say():
    world = scene(
        queue=200,
        arrivals=Closed(clients=80, think_s=0.5),
        keys=(ClientKey("A", 40, 1.0), ClientKey("B", 40, 2.0)),
        fair_share=True,
        requests=4_000,
        warmup=1_000,
    )
    result = result_of(world, replications=2)
    # By Little: 40 clients, served at 1/s and at 2/s of 3/s; the rest of their time they wait.
    assert result.estimate("wait_mean_s[A]").mean == pytest.approx(40 - 2.5, rel=0.1)
    assert result.estimate("wait_mean_s[B]").mean == pytest.approx(20 - 2.5, rel=0.1)


def test_every_event_of_a_shared_queue_keeps_the_laws():
    weights = [ClientKey("A", 20), ClientKey("B", 5, 2.0), ClientKey("C", 1)]
    world = replace(
        CROWD, queue=8, arrivals=Closed(clients=26, think_s=0.5), keys=tuple(weights), retry=OPENAI
    )
    result = result_of(replace(world, fair_share=True), replications=2, check=True)
    plain = result_of(world, replications=2, check=True)
    served = [one.estimate("served_share[C]").mean for one in (result, plain)]
    assert served[0] > 0.99 > served[1]


def test_keys_alone_change_nothing():
    plain = scene(arrivals=Renewal(rate=2.85))
    keyed = scene(arrivals=Renewal(rate=2.85), keys=(ClientKey("A", 3), ClientKey("B", 1)))
    one, other = (result_of(world, replications=2) for world in (plain, keyed))
    assert one.counts() == other.counts()
    assert one.estimate("wait_mean_s") == other.estimate("wait_mean_s")


def test_a_stream_is_split_by_the_parts_of_its_keys():
    keys = (ClientKey("A", 3), ClientKey("B", 1))
    assert [key_at(keys, at).name for at in (0.0, 2.9, 3.0, 3.9, 4.0)] == ["A", "A", "B", "B", "B"]


def test_what_is_asked_is_what_is_reported():
    told = {
        "--cap": "6",
        "--queue": "8",
        "--clients": "11",
        "--think": "1",
        "--keys": "A=10,B=1",
        "--shares": "B=2",
        "--fair-share": True,
        "--retry": "openai",
        "--advice": "const:2",
        "--return-places": "3",
    }
    world = simulate_of(told).scenarios[0]
    assert world.keys == (ClientKey("A", 10), ClientKey("B", 1, 2))
    assert (world.fair_share, str(world.advice), world.places_for_returns) == (True, "const:2", 3)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"--fair-share": True}, "--fair-share: goes with --keys only"),
        ({"--keys": "A=1", "--shares": "B=1"}, "--shares: 'B' is not one of the keys"),
        (
            {"--keys": "A=9", "--clients": "10", "--think": "1"},
            "--keys: make up 9 clients, not 10",
        ),
        ({"--keys": "A=1,A=2"}, "--keys: 'A=2' is not NAME=NUMBER, each name once"),
        ({"--advice": "soon"}, "--advice: 'soon' is not one of promise, none, const:S"),
    ],
)
def test_what_does_not_go_together_is_a_fault(given, fault):
    with pytest.raises(UsageError) as error:
        simulate_of({"--cap": "6", "--queue": "8", **given})
    assert fault in str(error.value)


def test_advice_is_spelt_as_it_is_read():
    for text in ("promise", "none", "const:2"):
        assert str(advice(text)) == text
    assert named_numbers("A=1, B=2.5") == {"A": 1.0, "B": 2.5}
    assert Advice(kind="const", pause_s=2.0).told_s(None) == 2.0
    assert Advice().told_s(600.0) == 59.0
    assert Advice(kind="none").told_s(5.0) is None
