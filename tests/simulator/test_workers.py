"""Processes that carry tasks out: what they are sent, and what they map instead."""

import os
import pickle
import subprocess
import sys
from operator import attrgetter

import numpy as np
import psutil
import pytest
from scenes import scene

from simulator.study.experiment import Plan, Wanted, carried_out, experiment
from simulator.study.workers import LARGE_BYTES, LocalPool, Shelf, call
from simulator.traffic.service import Rows
from simulator.traffic.workload import Renewal, Replay

ROWS = 20_000


def test_large_array_is_written_once_and_mapped():
    shelf = Shelf()
    large, small = np.arange(ROWS, dtype=np.float64), np.arange(10.0)
    packed = [shelf.packed((attrgetter("flags.writeable"), (each,), {})) for each in (large, small)]
    again = shelf.packed((np.sum, (large,), {}))
    assert max(map(len, (*packed, again))) < 1000 < LARGE_BYTES <= large.nbytes
    assert [call(each) for each in packed] == [False, True]
    assert call(again) == large.sum()
    folder = shelf.folder
    assert os.listdir(folder) == ["0.npy"]
    shelf.clear()
    assert not os.path.exists(folder)


def test_array_goes_with_the_task_where_no_file_can_be_written(monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    shelf = Shelf()
    monkeypatch.setattr(np, "save", full)
    large = np.arange(ROWS, dtype=np.float64)
    packed = shelf.packed((np.sum, (large,), {}))
    assert len(packed) > LARGE_BYTES
    assert call(packed) == large.sum()
    shelf.clear()


@pytest.mark.slow
def test_recording_gives_the_same_in_another_process():
    rng = np.random.default_rng(1)
    at_s = np.cumsum(rng.exponential(0.5, ROWS))
    replay = Replay(rows=Rows(at_s), bootstrap_s=60.0)
    assert len(pickle.dumps(replay)) > LARGE_BYTES
    world = scene(arrivals=replay, requests=300, warmup=0)
    plan = Plan(driver="heap", replications=2)
    (here,) = experiment([world], plan)
    pool = LocalPool(1)
    try:
        (there,) = experiment([world], plan, pool=pool)
        assert pool.submit(os.getpid).result(timeout=60) != os.getpid()
    finally:
        pool.shutdown()
    assert [each.metrics for each in here.replications] == [
        each.metrics for each in there.replications
    ]


def test_what_is_wanted_comes_back_in_order_whatever_is_carried_out_first():
    short, long = (scene(requests=n, arrivals=Renewal(rate=2.0), warmup=0) for n in (50, 200))
    plan = Plan(driver="heap", jobs=1)
    done = carried_out([Wanted(short, range(1, 3)), Wanted(long, range(3))], plan)
    assert [[each.counts["offered"] for each in made] for made in done] == [[50] * 2, [200] * 3]
    (all_of_them,) = experiment([short], Plan(driver="heap", replications=3))
    assert [each.metrics for each in done[0]] == [
        each.metrics for each in all_of_them.replications[1:]
    ]


POOL = """
import os, time
from simulator.study.workers import LocalPool
if __name__ == "__main__":
    pool = LocalPool(2)
    pids = {pool.submit(os.getpid).result()}
    tasks = [pool.submit(time.sleep, 600) for _ in range(2)]
    print(*pids, *pool._pool._processes, flush=True)
    tasks[0].result()
"""


def test_processes_end_with_who_started_them_whatever_ends_it(tmp_path):
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
        parent.wait(60)
        _, alive = psutil.wait_procs(workers, timeout=60)
        for left in alive:
            left.kill()
        assert not alive
