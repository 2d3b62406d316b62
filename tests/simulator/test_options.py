"""Options: what was not given has its value, and every fault is one line that names the option."""

from math import inf

import pytest

from simulator.cli.option_parser import retry, wholes
from simulator.cli.options import UsageError, replay_of, simulate_of, sweep_of
from simulator.reports.json_document import parameters
from simulator.traffic.distributions import Distribution
from simulator.traffic.workload import Burst, Closed, Modulated, Renewal


def simulate(text="", **more):
    """Return the command of `simulate --cap 6 --queue 8 TEXT`, as docopt would hand it over."""
    given = {"--cap": "6", "--queue": "8", "--jobs": "1", **more}
    words = text.split()
    while words:
        option = words.pop(0)
        given[option] = words.pop(0) if words and not words[0].startswith("--") else True
    return simulate_of(given)


def faults(text="", **more):
    with pytest.raises(UsageError) as caught:
        simulate(text, **more)
    return caught.value.faults


def test_bare_command_takes_the_documented_values():
    command = simulate()
    (scenario,) = command.scenarios
    assert scenario.timeout_s == 30
    assert scenario.arrivals == Renewal(rate=2.4)
    assert scenario.service.seconds == Distribution("exp", 2.0)
    assert (scenario.requests, scenario.warmup) == (20_000, 1000)
    assert (scenario.slots, scenario.replicas, scenario.balancing) == (8, 1, "least")
    assert (command.plan.seed, command.plan.replications, command.plan.driver) == (1, 20, "simpy")


def test_every_parameter_that_was_used_is_told():
    used = parameters(simulate().scenarios[0], simulate().traffic)
    assert used["rate_per_s"] == pytest.approx(2.4)
    assert (used["rho"], used["service"], used["retry"]) == (0.8, "exp:2", "none")
    assert used["timeout_s"] == 30
    assert simulate("--timeout none").scenarios[0].timeout_s == inf


def test_nothing_random_needs_one_replication():
    assert simulate("--burst 40 --service hold:2").plan.replications == 1
    assert simulate("--burst 40 --service hold:2 --reps 5").plan.replications == 5
    assert simulate("--burst 40 --service exp:2").plan.replications == 20
    assert simulate("--burst 40 --service hold:2 --hang-up 0.1").plan.replications == 20


@pytest.mark.parametrize(
    ("text", "arrivals"),
    [
        ("--rate 3", Renewal(rate=3.0)),
        ("--rho 0.5", Renewal(rate=1.5)),
        ("--rate 3 --arrivals-law gamma:2", Renewal(rate=3.0, cv=2.0)),
        (
            "--rate 3 --arrivals-law mmpp:8,20,120",
            Modulated(rate=3.0, ratio=8.0, high_s=20.0, low_s=120.0),
        ),
        ("--burst 40", Burst(count=40)),
        ("--clients 10 --think 5", Closed(clients=10, think_s=5.0)),
    ],
)
def test_arrivals(text, arrivals):
    assert simulate(text).scenarios[0].arrivals == arrivals


def test_load_is_that_of_the_largest_cap_in_a_sweep():
    given = {"--cap": "4..8", "--queue": "0,4", "--timeout": "5,none", "--jobs": "1"}
    command = sweep_of(given)
    assert len(command.scenarios) == 5 * 2 * 2
    assert {scenario.arrivals for scenario in command.scenarios} == {Renewal(rate=3.2)}
    assert command.slo == {"lost_share": 0.01, "wait_p95_s": 5.0}


def test_tiers_take_pairs():
    tiers = simulate("--sleep 900,10800 --wake 2,40").scenarios[0].tiers
    assert (tiers.idle_s, tiers.wake_s, tiers.fall_s) == ((900, 10800), (2, 40), (10, 1))


def test_lists_may_mix_ranges():
    assert wholes(0)("4..6,8,5") == [4, 5, 6, 8]


@pytest.mark.parametrize("text", ["none", "openai", "anthropic", "fixed:2,3", "exp:10,0.8"])
def test_retries_are_written_as_they_are_read(text):
    assert str(retry(text)) == text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("--cap 0", "--cap: must be at least 1, not 0"),
        ("--cap six", "--cap: 'six' is not a whole number"),
        ("--queue -1", "--queue: must be at least 0, not -1"),
        ("--timeout 0", "--timeout: must be above 0, not 0"),
        ("--timeout nan", "--timeout: 'nan' is not a finite number"),
        ("--service fast", "--service: 'fast' is not one of hold:S, exp:S, lognormal:S,SIGMA, "),
        ("--service exp:0", "--service: must be above 0, not 0"),
        ("--service lognormal:2", "--service: needs two numbers and a comma, not '2'"),
        ("--rate 1 --burst 3", "--burst: does not go with --rate"),
        ("--clients 3", "--clients: needs --think: how long they think"),
        ("--think 3", "--think: goes with --clients only"),
        ("--thin 0.5", "--thin: goes with --trace only"),
        ("--arrivals-law gamma:2 --burst 3", "--arrivals-law: goes with --rate or --rho only"),
        ("--arrivals-law zipf", "--arrivals-law: 'zipf' is not one of poisson, gamma:CV"),
        (
            "--rate 1 --arrivals-law mmpp:1e12,1e-12,1e12",
            "--arrivals-law: 1e+12 requests come before it changes",
        ),
        ("--wake 1,2", "--wake: goes with --sleep only"),
        ("--sleep 100,50", "--sleep: level 2 after 50 s is not later than level 1"),
        ("--sleep 1", "--sleep: needs two numbers and a comma, not '1'"),
        ("--retry sometimes", "--retry: 'sometimes' is not one of none, openai"),
        ("--patience lognormal:1,1", "--patience: 'lognormal:1,1' is not one of none, exp:S"),
        ("--replicas 2", "--replicas: '2' is not RxS, e.g. 2x4"),
        ("--replicas 2x4 --slots 8", "--slots: --replicas says it already"),
        ("--pick best", "--pick: 'best' is not one of least, random, round-robin"),
        ("--driver salabim", "--driver: 'salabim' is not one of simpy, heap"),
        ("--requests 10 --warmup 10", "--warmup: 10 of 10 requests leaves none to measure"),
        ("--burst 9 --requests 10", "--requests: a burst is as long as it is"),
        ("--service hold:0", "--rho: a service time of 0 makes no load: give --rate"),
        ("--prompt exp:10", "--prompt: goes with a --service profile of tokens only"),
        ("--plot run.gif", "--plot: 'run.gif' ends in none of .html, .png, .svg"),
        ("--trace nowhere.csv", "--trace: cannot read nowhere.csv"),
        (
            "--service profile:nothing",
            "--service: 'nothing' is not a file and not one of dense-32b",
        ),
    ],
)
def test_fault_is_one_line_that_names_its_option(text, fault):
    (only,) = faults(text)
    assert only.startswith(fault)


def test_all_faults_are_told_at_once():
    assert len(faults("--cap 0 --service fast --think 2 --reps none")) == 4


@pytest.mark.parametrize("slo", ["wait", "wait_p95_s=soon", "colour=3", "wait_p95_s=-1"])
def test_limit_on_nothing_is_a_fault(slo):
    given = {"--cap": "6", "--queue": "8", "--timeout": "5", "--slo": slo, "--jobs": "1"}
    with pytest.raises(UsageError, match="--slo"):
        sweep_of(given)


def test_missing_log_is_a_fault():
    with pytest.raises(UsageError, match="cannot read nowhere"):
        replay_of({"LOG": "nowhere", "--cap": "6", "--queue": "8"})


def test_numbers_that_cannot_be_reckoned_with_are_refused():
    assert faults("--rate 1e300") == ["--rate: '1e300' is not within 1e-12 to 1e+12"]
    assert faults("--rate 1e-300") == ["--rate: '1e-300' is not within 1e-12 to 1e+12"]
