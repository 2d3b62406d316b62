"""Speed, memory, second opinions and other machines: what takes its time."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from scenes import EXP_2, result_of, scene

from simulator.reports.json_document import metrics_document
from simulator.study.cluster import ClusterError
from simulator.study.experiment import Plan, experiment
from simulator.study.statistics import sigmas
from simulator.traffic.workload import Renewal

PROGRAM = """
import resource, sys, time
from scenes import scene
from simulator.study.experiment import Plan, replicate
from simulator.traffic.workload import Renewal
count = int(sys.argv[1])
world = scene(arrivals=Renewal(rate=2.85), requests=count, warmup=1000)
replicate(scene(requests=5000), Plan(driver="heap"), 0).metrics()
before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began_s = time.process_time()
replicate(world, Plan(driver="heap"), 0).metrics()
spent_s = time.process_time() - began_s
print(spent_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib)
"""


def measured(count):
    """Return seconds of CPU and KiB that so many requests take in a process of their own."""
    folders = f"import sys; sys.path[:0] = {[*sys.path]!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", folders + PROGRAM, str(count)],
        capture_output=True,
        check=True,
        text=True,
        timeout=600,
    )
    spent_s, grown_kib = map(float, done.stdout.split())
    return spent_s, grown_kib


def test_memory_does_not_grow_with_the_number_of_requests():
    _, grown_kib = measured(300_000)
    # Kept as they are, the values alone of 300,000 requests would be more than twice as large.
    assert grown_kib < 12_000


@pytest.mark.slow
def test_a_million_requests_take_flat_memory_and_cost_grows_linearly():
    few_s, few_kib = measured(250_000)
    many_s, many_kib = measured(1_000_000)
    assert many_kib < few_kib + 4_000
    assert many_s < 4 * few_s * 1.35


def test_simulator_is_fast_enough_to_be_used():
    # A floor far below what is measured on a quiet machine, so that only a blunder fails it.
    for driver, floor in (("heap", 40_000), ("simpy", 30_000)):
        began_s = time.process_time()
        experiment([scene(requests=20_000)], Plan(driver=driver, replications=1))
        assert 20_000 / (time.process_time() - began_s) > floor


@pytest.mark.slow
def test_ciw_is_of_the_same_opinion():
    import ciw

    def opinion(seed):
        ciw.seed(seed)
        network = ciw.create_network(
            arrival_distributions=[ciw.dists.Exponential(2.85)],
            service_distributions=[ciw.dists.Exponential(0.5)],
            reneging_time_distributions=[ciw.dists.Deterministic(3.0)],
            number_of_servers=[6],
            queue_capacities=[8],
        )
        simulation = ciw.Simulation(network)
        simulation.simulate_until_max_time(8000)
        records = [
            record
            for record in simulation.get_all_records(only=["service", "rejection", "renege"])
            if record.arrival_date > 200
        ]
        waits = [r.waiting_time for r in records if r.record_type == "service"]
        share = {
            kind: sum(r.record_type == kind for r in records) / len(records)
            for kind in ("rejection", "renege")
        }
        return share["rejection"], share["renege"], sum(waits) / len(waits)

    theirs = [opinion(seed) for seed in range(12)]
    ours = result_of(
        scene(arrivals=Renewal(rate=2.85), timeout_s=3.0, service=EXP_2, requests=22_000),
        replications=12,
    )
    for at, name in enumerate(("rejected_share", "timed_out_share", "wait_mean_s")):
        mean = ours.estimate(name).mean
        assert abs(sigmas([opinion[at] for opinion in theirs], mean)) < 4, name


@pytest.mark.slow
def test_dask_computes_the_same():
    # In a process of its own: a cluster leaves threads and sockets to its interpreter's end.
    program = f"""
import sys; sys.path[:0] = {[*sys.path]!r}
from distributed import LocalCluster
from scenes import scene
from simulator.study.experiment import Plan, experiment
from simulator.reports.json_document import as_json, metrics_document
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=False,
                      dashboard_address=None) as cluster:
        (result,) = experiment([scene(requests=500)], Plan(replications=6, jobs=2,
                               dask=cluster.scheduler_address))
    print(as_json(metrics_document(result)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True, timeout=120
    )
    from simulator.reports.json_document import as_json

    (here,) = experiment([scene(requests=500)], Plan(replications=6))
    assert done.stdout.strip() == as_json(metrics_document(here))


def test_ctrl_c_ends_all_processes_at_once_and_quietly():
    program = (
        f"import signal, sys; sys.path[:0] = {[*sys.path]!r}\n"
        "from scenes import scene\n"
        "from simulator.study.experiment import Plan, experiment\n"
        "if __name__ == '__main__':\n"
        # A shell that started us in the background has us ignore it, and our children with us.
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    try:\n"
        "        experiment([scene(requests=5_000_000)], Plan(replications=2, jobs=2))\n"
        "    except KeyboardInterrupt:\n"
        "        sys.exit(130)\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", program],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline_s = time.monotonic() + 60
        while sum(_cpu_s(child) > 1 for child in _children(started.pid)) < 2:
            assert time.monotonic() < deadline_s, "two workers were to start"
            time.sleep(0.05)
        os.killpg(started.pid, signal.SIGINT)
        _, complaint = started.communicate(timeout=20)
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.communicate()
    assert (started.returncode, complaint) == (130, "")


def _children(pid):
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _cpu_s(process):
    try:
        return sum(process.cpu_times()[:2])
    except psutil.NoSuchProcess:
        return 0.0


@pytest.mark.slow
def test_cluster_that_does_not_answer_is_named():
    plan = Plan(replications=2, dask="tcp://127.0.0.1:1")
    with pytest.raises(ClusterError, match="no Dask scheduler"):
        experiment([scene(requests=500)], plan)


@pytest.mark.slow
def test_cluster_whose_workers_all_died_is_waited_for_for_a_bounded_time():
    """A run of minutes on one worker, which is killed as soon as it has done something."""
    pytest.importorskip("distributed")
    script = """
import os, signal
from math import inf
from distributed import LocalCluster
from simulator.model.scenario import Scenario
from simulator.study import cluster as ours
from simulator.study.experiment import Plan, experiment
from simulator.traffic.distributions import Distribution
from simulator.traffic.service import Service
from simulator.traffic.workload import Renewal

def killed(done, of_all):
    for nanny in there.workers.values():
        nanny.auto_restart = False
    for nanny in there.workers.values():
        os.kill(nanny.pid, signal.SIGKILL)

if __name__ == "__main__":
    ours.ALONE_S = 0.5
    world = Scenario(cap=6, queue=8, timeout_s=inf, arrivals=Renewal(rate=2.4), requests=20_000,
                     service=Service(seconds=Distribution("exp", 2.0)))
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None,
                      silence_logs=50) as there:
        plan = Plan(replications=500, dask=there.scheduler_address)
        try:
            experiment([world], plan, killed)
        except ours.ClusterError as error:
            print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert "has had no worker for" in done.stdout, done.stderr[-2000:]
    assert "`dask worker tcp://127.0.0.1:" in done.stdout
