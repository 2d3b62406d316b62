"""The witness of promises: of whom it holds that a place is theirs, and of whom not."""

import pytest

from simulator.model.event_loop import DRIVERS
from simulator.model.promises import PromiseWitness
from simulator.model.scenario import Scenario
from simulator.study.experiment import Plan, observe
from simulator.traffic.distributions import Distribution
from simulator.traffic.retries import Advice, Retry
from simulator.traffic.service import Service
from simulator.traffic.workload import Renewal


def test_from_one_who_comes_when_told_nothing_is_kept():
    witness = PromiseWitness(places=2)
    witness.promised("a", 0.0, 5.0)
    witness.promised("b", 0.0, 6.0)
    assert witness.most_kept("a", 5.0) == 0


def test_from_others_and_from_who_comes_early_no_more_is_kept_than_are_due():
    witness = PromiseWitness(places=2)
    witness.promised("a", 0.0, 5.0)
    assert witness.most_kept("c", 4.0) == 1
    assert witness.most_kept("a", 4.0) == 1


def test_for_one_who_was_promised_two_instants_no_place_is_kept():
    witness = PromiseWitness(places=2)
    witness.promised("a", 0.0, 5.0)
    witness.promised("a", 2.0, 7.0)
    assert witness.most_kept("c", 5.0) == 0
    witness.promised("b", 5.0, 5.0)
    assert witness.most_kept("a", 9.0) == 1


def test_a_twin_is_expected_again_when_all_its_instants_have_passed():
    witness = PromiseWitness(places=2)
    witness.promised("a", 0.0, 5.0)
    witness.promised("a", 2.0, 7.0)
    witness.promised("a", 11.0, 5.0)
    witness.promised("b", 11.0, 5.0)
    assert witness.most_kept("a", 16.0) == 1
    witness.promised("a", 18.1, 5.0)
    witness.promised("b", 18.1, 5.0)
    assert witness.most_kept("a", 23.1) == 0


@pytest.mark.parametrize("driver", DRIVERS)
def test_clients_that_come_back_sooner_than_they_were_told_break_no_law(driver):
    """Who comes early, is refused again and comes a third time is one of twins to the gate."""
    scenario = Scenario(
        cap=6,
        replicas=2,
        queue=4,
        timeout_s=3.0,
        arrivals=Renewal(rate=2.4),
        service=Service(seconds=Distribution("exp", 2.0), slowdown=0.1),
        retry=Retry(kind="fixed", pause_s=2.0, times=2),
        advice=Advice(kind="const", pause_s=3.0),
        return_places=2,
        patience_told="heeded",
        cooling_s=0.3,
        requests=700,
        warmup=50,
    )
    _, journal = observe(scenario, Plan(seed=56, driver=driver), 0)
    assert any(entry.what == "queue_full" for entry in journal)
