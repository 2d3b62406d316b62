"""Both loops of simulated time, and whole replications in both: the same to the last bit."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes import EXP_2, scene

from simulator.model.attempt import Attempt
from simulator.model.event_loop import DRIVERS, Order
from simulator.model.gates import new_gate
from simulator.model.scenario import Tiers
from simulator.study.experiment import Plan, observe
from simulator.traffic.distributions import NEVER, Distribution
from simulator.traffic.retries import NO_RETRY, Retry
from simulator.traffic.service import Rows, Service
from simulator.traffic.streams import Streams
from simulator.traffic.workload import Closed, Renewal, Replay
from tornado_frontdoor.core.decisions import Outcome
from tornado_frontdoor.core.limits import COOLING_LIMIT_S
from tornado_frontdoor.core.request import Ticket, TicketState

EVENTS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.1 + 0.2, 0.3, 1.0]), st.sampled_from(Order)),
    max_size=30,
)


@pytest.mark.parametrize("name", DRIVERS)
@given(events=EVENTS)
def test_events_go_by_instant_then_kind_then_age(name, events):
    driver = DRIVERS[name]()
    seen = []
    for number, (at_s, order) in enumerate(events):
        driver.at(at_s, order, lambda what: seen.append((driver.now(), what)), (order, number))
    driver.run()
    expected = sorted((at_s, order, number) for number, (at_s, order) in enumerate(events))
    assert [(at_s, *what) for at_s, what in seen] == expected


@pytest.mark.parametrize("name", DRIVERS)
def test_events_may_put_in_further_ones_for_this_instant(name):
    driver = DRIVERS[name]()
    seen = []

    def arrive(_):
        seen.append("arrival")
        driver.at(driver.now(), Order.COMPLETION, lambda _: seen.append("completion"), None)

    driver.at(1.0, Order.ARRIVAL, arrive, None)
    driver.at(1.0, Order.ARRIVAL, lambda _: seen.append("second arrival"), None)
    driver.run()
    assert seen == ["arrival", "completion", "second arrival"]


GRID = st.integers(0, 12).map(lambda quarters: quarters / 4)
"""Coarse, so that arrivals, ends, limits and departures meet in one instant."""


@st.composite
def worlds(draw):
    count = draw(st.integers(1, 40))
    gaps = draw(st.lists(GRID, min_size=count, max_size=count))
    sizes = draw(st.lists(GRID, min_size=count, max_size=count))
    weights = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    patience = st.one_of(st.just(float("inf")), GRID.map(lambda value: value + 0.25))
    rows = Rows(
        np.cumsum(gaps),
        service_s=np.array(sizes),
        weight=np.array(weights, dtype=float),
        patience_s=np.array(draw(st.lists(patience, min_size=count, max_size=count))),
    )
    retries = [NO_RETRY, Retry(kind="fixed", pause_s=0.5, times=2), Retry(kind="openai")]
    tiers = [None, Tiers(idle_s=(1.0, 2.0), wake_s=(0.5, 2.0), fall_s=(0.5, 0.25), hold_s=(1, 3))]
    return scene(
        cap=draw(st.integers(1, 5)),
        queue=draw(st.integers(0, 5)),
        timeout_s=draw(st.sampled_from([0.25, 1.0, 2.0, 30.0])),
        arrivals=Replay(rows=rows),
        service=Service(recorded=True, slowdown=draw(st.sampled_from([0.0, 0.5]))),
        retry=draw(st.sampled_from(retries)),
        hang_up=draw(st.sampled_from([0.0, 0.4])),
        cooling_s=draw(st.sampled_from([0.0, 0.25, 3.0])),
        slots=draw(st.integers(3, 8)),
        replicas=draw(st.integers(1, 2)),
        balancing=draw(st.sampled_from(["least", "random", "round-robin"])),
        tiers=draw(st.sampled_from(tiers)),
        requests=None,
        warmup=0,
    )


@settings(max_examples=examples(40))
@given(world=worlds(), seed=st.integers(0, 9))
def test_any_world_keeps_the_laws_and_is_the_same_in_both_drivers(world, seed):
    journals, books = [], []
    for driver in DRIVERS:
        records, journal = observe(world, Plan(seed=seed, driver=driver))
        journals.append([str(entry) for entry in journal])
        books.append((records.counts(), records.metrics()))
    assert journals[0] == journals[1]
    assert books[0] == books[1]
    counts = books[0][0]
    ends = {name: n for name, n in counts.items() if name not in {"offered", "attempts"}}
    assert counts["offered"] == sum(ends.values()) == len(world.arrivals.rows.at_s)


STEADY = {
    "plain": scene(requests=2000, warmup=100),
    "timeout": scene(requests=2000, warmup=100, timeout_s=3.0, arrivals=Renewal(rate=3.6)),
    "closed loop": scene(requests=2000, warmup=100, arrivals=Closed(clients=20, think_s=5.0)),
    "sdk": scene(requests=2000, warmup=100, arrivals=Renewal(rate=4.0), retry=Retry(kind="openai")),
    "two replicas": scene(requests=2000, warmup=100, replicas=2, slots=4, balancing="random"),
    "impatient": scene(
        requests=2000,
        warmup=100,
        patience=Distribution("exp", 1.0),
        hang_up=0.2,
        arrivals=Renewal(rate=4),
    ),
    "tiers": scene(
        requests=500,
        warmup=0,
        arrivals=Renewal(rate=1 / 60),
        service=EXP_2,
        tiers=Tiers(idle_s=(30.0, 200.0), hold_s=(5.0, 60.0)),
    ),
}


@pytest.mark.parametrize("name", STEADY)
def test_steady_streams_are_the_same_in_both_drivers_and_keep_the_laws(name):
    first, second = (observe(STEADY[name], Plan(driver=driver)) for driver in ("simpy", "heap"))
    assert [str(entry) for entry in first[1]] == [str(entry) for entry in second[1]]
    assert first[0].metrics() == second[0].metrics()


def test_attempt_is_at_a_gate_what_a_ticket_is():
    seen = []
    for ticket in (Attempt((0.0, 1.0, 0.0, inf, 2), 7), Ticket(2)):
        assert repr(ticket) == "<Ticket 0 weight=2 NEW>"
        loop = DRIVERS["heap"]()
        gate = new_gate(scene(cap=2), loop, Streams(1, 0))
        first = Ticket(2)
        gate.arrive(first)
        gate.arrive(ticket)
        assert ticket.state is TicketState.QUEUED
        gate.finish(first, Outcome.SERVED)
        gate.cool(ticket, Outcome.CLIENT_GONE_STREAMING)
        gate.finish(ticket, Outcome.CLIENT_GONE_STREAMING)
        names = set(Ticket.__slots__) - {"paused_s"}  # of one that expired or left the queue
        seen.append({name: getattr(ticket, name) for name in names})
    assert seen[0] == seen[1]


def test_fluid_replica_and_free_slots_are_the_same_engine():
    plain = scene(requests=3000)
    fluid = replace(plain, service=replace(EXP_2, slowdown=1e-300))
    assert plain.always_has_slots
    assert not fluid.always_has_slots
    found = [observe(world, Plan(driver="heap"))[0].metrics() for world in (plain, fluid)]
    for name, value in found[0].items():
        expected = None if value is None else pytest.approx(value, rel=1e-9, abs=1e-9)
        assert found[1][name] == expected, name


def test_clients_that_hang_up_leave_nothing_behind_in_their_replica():
    # Were their slots still counted, the less busy replica would be picked wrongly.
    service = replace(EXP_2, slowdown=1e-300)
    world = scene(
        requests=3000,
        warmup=0,
        arrivals=Renewal(rate=4.0),
        replicas=2,
        slots=3,
        service=service,
        hang_up=0.4,
    )
    (records, _) = observe(world, Plan(driver="heap"))
    assert records.counts()["left"] > 300
    assert records.metrics()["hidden_wait_mean_s"] == 0


@pytest.mark.parametrize("cooling_s", [0.3, 5.0])
def test_an_engine_that_notices_late_never_holds_more_than_the_cap(cooling_s):
    """With as many slots as the cap a request would wait in the engine if a slot came too early."""
    world = scene(
        requests=3000,
        warmup=0,
        cap=4,
        slots=4,
        arrivals=Renewal(rate=4.0),
        service=replace(EXP_2, slowdown=1e-300),
        hang_up=0.4,
        cooling_s=cooling_s,
    )
    (records, _) = observe(world, Plan(driver="heap"))
    assert records.counts()["left"] > 300
    hidden_s = records.metrics()["hidden_wait_mean_s"]
    # Past the limit the gate waits no longer, and the engine holds what it has not noticed.
    assert (hidden_s == 0) == (cooling_s < COOLING_LIMIT_S)


def test_patience_of_never_is_no_patience_at_all():
    assert NEVER.mean == float("inf")
    (records, _) = observe(scene(requests=1000, arrivals=Renewal(rate=9.0)), Plan(driver="heap"))
    assert records.counts()["left"] == 0
