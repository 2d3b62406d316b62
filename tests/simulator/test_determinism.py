"""One seed, one answer: byte for byte, for any number of jobs, either driver, any hash seed."""

import json
import os
import subprocess
import sys

import pytest
from scenes import scene

from simulator.cli.options import simulate_of
from simulator.reports.json_document import as_json, simulate_document
from simulator.study.experiment import Plan, arrivals_of, experiment, observe, replicate
from simulator.traffic.retries import Retry
from simulator.traffic.workload import Closed, Renewal

OPTIONS = {
    "--cap": "6",
    "--queue": "8",
    "--timeout": "3",
    "--rho": "1.2",
    "--retry": "openai",
    "--replicas": "2x3",
    "--pick": "random",
    "--requests": "600",
    "--reps": "6",
}


def document(**changes):
    command = simulate_of({**OPTIONS, **changes})
    (result,) = experiment(command.scenarios, command.plan)
    return as_json(simulate_document(command, result))


def test_json_is_the_same_for_any_jobs_and_either_driver():
    one = document(**{"--jobs": "1"})
    assert document(**{"--jobs": "2"}) == one
    assert document(**{"--jobs": "4", "--driver": "heap"}) == one
    assert document(**{"--jobs": "1", "--driver": "heap", "--check": True}) == one


def test_another_seed_is_another_answer():
    assert document(**{"--jobs": "1", "--seed": "2"}) != document(**{"--jobs": "1"})


def test_json_is_the_same_for_any_hash_seed():
    program = (
        "import json, sys\n"
        "from simulator.cli.commands import simulate\n"
        "simulate(json.loads(sys.argv[1]))\n"
    )
    given = json.dumps({**OPTIONS, "--json": True, "--jobs": "1"})
    printed = {
        subprocess.run(
            [sys.executable, "-c", program, given],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.getcwd()},
            capture_output=True,
            check=True,
            text=True,
            timeout=60,
        ).stdout
        for hash_seed in ("0", "1", "4242")
    }
    assert len(printed) == 1
    assert json.loads(printed.pop()) == json.loads(document())


def test_no_instant_and_no_program_is_in_the_json():
    parsed = json.loads(document())
    assert set(parsed) == {"parameters", "seed", "replications", "load", "counts", "metrics"}
    assert not {"driver", "jobs", "check"} & set(parsed["parameters"])


def test_arrivals_can_be_had_as_a_list():
    world = scene(requests=300)
    arrivals = arrivals_of(world, 7, 2)
    assert len(arrivals) == 300
    _, journal = observe(world, Plan(seed=7, driver="heap"), 2)
    assert [entry.at_s for entry in journal if entry.what == "arrived"] == [
        request[0] for request in arrivals
    ]
    with pytest.raises(TypeError, match="closed loop"):
        arrivals_of(scene(arrivals=Closed(clients=2, think_s=1.0)), 1, 0)


def test_replication_is_the_same_alone_and_among_others():
    world = scene(requests=500, arrivals=Renewal(rate=4.0), retry=Retry(kind="anthropic"))
    plan = Plan(driver="heap", replications=3)
    (result,) = experiment([world], plan)
    assert result.replications[2].metrics == replicate(world, plan, 2).metrics()


def test_common_random_numbers_make_differences_sharper():
    from simulator.study.statistics import estimate, paired

    plan = Plan(driver="heap", replications=12)
    shorter, longer = experiment([scene(queue=8), scene(queue=12)], plan)
    alone = [estimate(result.values("wait_mean_s")).ci95 for result in (shorter, longer)]
    together = paired(longer.values("wait_mean_s"), shorter.values("wait_mean_s"))
    assert together.mean > 0
    assert together.ci95**2 < (alone[0] ** 2 + alone[1] ** 2) / 2


@pytest.mark.parametrize("jobs", [1, 3])
def test_progress_is_told_up_to_the_end(jobs):
    told = []
    plan = Plan(driver="heap", replications=5, jobs=jobs)
    experiment([scene(requests=200)] * 2, plan, lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1]
    assert [done for done, _ in told] == list(range(1, len(told) + 1))
