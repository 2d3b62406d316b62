"""Idle tiers: production's wake machine before an engine that takes its time."""

import numpy as np
import pytest
from scenes import scene

from simulator.model.event_loop import DRIVERS
from simulator.model.scenario import Scenario, Tiers
from simulator.study.experiment import Plan, observe
from simulator.traffic.distributions import Distribution
from simulator.traffic.retries import Retry
from simulator.traffic.service import Rows, Service
from simulator.traffic.workload import Renewal, Replay

TIERS = Tiers(idle_s=(10.0, 100.0), wake_s=(3.0, 20.0), fall_s=(2.0, 1.0), hold_s=(5.0, 60.0))


def day(instants, tiers=TIERS, **changes):
    """Requests of 1 s at these instants; returns the records and what the journal says of each."""
    rows = Rows(np.array(instants), service_s=np.ones(len(instants)))
    world = scene(
        arrivals=Replay(rows=rows),
        service=Service(recorded=True),
        tiers=tiers,
        requests=None,
        warmup=0,
        **changes,
    )
    records, journal = observe(world, Plan(driver="heap"))
    return records, [(entry.at_s, entry.what) for entry in journal]


def test_engine_starts_awake_and_serves_at_once():
    _, journal = day([1.0])
    assert journal == [(1.0, "arrived"), (1.0, "admitted"), (2.0, "served")]


def test_request_wakes_a_sleeping_engine_and_waits_for_that():
    # Idle from 2 on, asleep from 12 to 14, so that the wake runs from 50 to 53.
    _, journal = day([1.0, 50.0])
    assert journal[3:] == [(50.0, "arrived"), (53.0, "admitted"), (54.0, "served")]


def test_deeper_sleep_takes_longer_to_wake_from():
    # Level 2 is due at 102 and reached at 103.
    _, journal = day([1.0, 150.0])
    assert journal[3:] == [(150.0, "arrived"), (170.0, "admitted"), (171.0, "served")]


def test_request_that_comes_during_the_fall_waits_for_its_end_and_the_wake():
    # Falling from 12 to 14; nobody wakes an engine into its sleep.
    _, journal = day([1.0, 12.5])
    assert journal[3:] == [(12.5, "arrived"), (17.0, "admitted"), (18.0, "served")]


def test_idle_time_runs_from_the_last_end():
    # 11.5 is less than 10 after the end at 2, so the engine is awake; it would sleep from 22.5 on.
    _, journal = day([1.0, 11.5, 22.4])
    assert [at_s for at_s, what in journal if what == "admitted"] == [1.0, 11.5, 22.4]


def test_one_wake_serves_all_who_came_meanwhile():
    records, journal = day([1.0, 50.0, 50.5, 51.0, 52.9])
    assert [at_s for at_s, what in journal if what == "admitted"][1:] == [53.0] * 4
    assert records.metrics()["cold_share"] == pytest.approx(4 / 5)


def test_hold_that_is_shorter_than_the_wake_refuses():
    short = Tiers(idle_s=(10.0, 0.0), wake_s=(3.0, 0.0), fall_s=(2.0, 0.0), hold_s=(2.0, 60.0))
    records, journal = day([1.0, 50.0, 52.0], tiers=short)
    assert (52.0, "model_waking") in journal
    assert records.counts()["model_waking"] == 1
    # The one that came at 52 waited for 1 s only.
    assert (53.0, "admitted") in journal


def test_refused_caller_comes_back_when_told_and_finds_the_engine_awake():
    short = Tiers(
        idle_s=(30.0, 0.0),
        wake_s=(3.0, 0.0),
        fall_s=(2.0, 0.0),
        hold_s=(2.0, 60.0),
        retry_after_s=(10.0, 60.0),
    )
    records, journal = day([1.0, 100.0], tiers=short, retry=Retry(kind="anthropic"))
    assert journal[-3:] == [(112.0, "arrived"), (112.0, "admitted"), (113.0, "served")]
    assert records.counts()["attempts"] == 3


def test_tier_of_zero_is_never_used():
    only_deep = Tiers(idle_s=(0.0, 100.0), wake_s=(3.0, 20.0), fall_s=(2.0, 1.0))
    _, journal = day([1.0, 50.0, 200.0], tiers=only_deep)
    assert [at_s for at_s, what in journal if what == "admitted"] == [1.0, 50.0, 220.0]


def test_shares_of_time_sum_to_one():
    records, _ = day([1.0, 50.0, 400.0, 401.0, 900.0])
    metrics = records.metrics()
    names = ("awake_share", "sleeping_share", "offloaded_share", "in_transition_share")
    assert sum(metrics[name] for name in names) == pytest.approx(1.0)
    assert metrics["offloaded_share"] > 0.3


def test_engine_that_does_not_wake_in_time_is_not_taken_for_awake():
    # The wake machine gives a wake up after 300 s and tries again; nothing is served meanwhile.
    stuck = Tiers(idle_s=(10.0, 0.0), wake_s=(301.0, 0.0), fall_s=(2.0, 0.0), hold_s=(30.0, 60.0))
    records, journal = day([1.0, 50.0], tiers=stuck)
    assert [what for _, what in journal].count("admitted") == 1
    assert records.counts()["model_waking"] == 1


def test_replicas_sleep_and_wake_each_by_itself_as_those_who_wait_need():
    # The second is idle from the start on, the first from the end of a request on.
    pair = {"replicas": 2, "slots": 1, "cap": 2}
    records, journal = day([1.0, 50.0, 50.5, 60.0], **pair)
    admitted = [at_s for at_s, what in journal if what == "admitted"]
    assert admitted == [1.0, 53.0, 53.5, 60.0]
    assert records.metrics()["wakes_from_sleeping_per_h"] > 0
    # Whichever has room first takes who waits, whomever that one has woken.
    _, journal = day([1.0, 50.0, 53.2], **pair)
    assert [at_s for at_s, what in journal if what == "admitted"] == [1.0, 53.0, 54.0]


@pytest.mark.parametrize("driver", ["heap", "simpy"])
def test_replicas_that_sleep_are_the_same_in_either_driver(driver):
    rows = Rows(np.array([1.0, 50.0, 50.1, 50.2, 70.0, 200.0]), service_s=np.ones(6))
    world = scene(
        arrivals=Replay(rows=rows),
        service=Service(recorded=True),
        tiers=TIERS,
        requests=None,
        warmup=0,
        replicas=3,
        slots=1,
        cap=3,
    )
    _, journal = observe(world, Plan(driver=driver))
    _, other = observe(world, Plan(driver="heap"))
    assert [str(one) for one in journal] == [str(one) for one in other]


@pytest.mark.parametrize("driver", DRIVERS)
def test_without_a_queue_the_second_of_two_engines_is_woken_too(driver):
    scenario = Scenario(
        cap=6,
        queue=0,
        timeout_s=30.0,
        arrivals=Renewal(rate=2.4),
        service=Service(seconds=Distribution("lognormal", 2.0, 1.0)),
        replicas=2,
        slots=4,
        hang_up=0.2,
        cooling_s=3.0,
        tiers=Tiers(idle_s=(1.0, 0.0), hold_s=(30.0, 180.0)),
        requests=300,
        warmup=0,
    )
    _, journal = observe(scenario, Plan(seed=22, driver=driver), 1)
    assert max(entry.in_flight for entry in journal) == 6, "more than one engine runs at once"
