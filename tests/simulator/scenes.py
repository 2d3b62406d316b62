"""Scenarios that several tests start from: the front door of the tables, cap 6 and queue 8."""

from math import inf

from simulator.model.scenario import Scenario
from simulator.study.experiment import Plan, experiment
from simulator.traffic.distributions import Distribution
from simulator.traffic.service import Service
from simulator.traffic.workload import Burst, Renewal

HOLD_2 = Service(seconds=Distribution("const", 2.0))
EXP_2 = Service(seconds=Distribution("exp", 2.0))


def scene(**changes):
    """A steady stream at load 0.8 without a timeout."""
    usual = {
        "cap": 6,
        "queue": 8,
        "timeout_s": inf,
        "arrivals": Renewal(rate=2.4),
        "service": EXP_2,
        "requests": 4000,
        "warmup": 400,
    }
    return Scenario(**{**usual, **changes})


def burst(**changes):
    """40 requests at one instant, each of 2 s."""
    usual = {
        "cap": 6,
        "queue": 8,
        "timeout_s": 30.0,
        "arrivals": Burst(count=40),
        "service": HOLD_2,
    }
    return Scenario(**{**usual, **changes})


def result_of(scenario, **plan):
    """The result of one scenario, in this process."""
    (result,) = experiment([scenario], Plan(**{"driver": "heap", **plan}))
    return result
