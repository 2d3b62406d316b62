"""What is done to front doors that share gates, and to their Redis, at full load."""

import signal
import threading
import time
from collections.abc import Callable

from loadtests.harness import laws
from loadtests.harness.cluster import LEASE_S, ClusterRun, Fault, FaultTimes, RunningDoor
from loadtests.harness.processes import Child

SLOW_S = 0.1
"""Each way, when Redis is slow."""


def _kill_a_member(run: ClusterRun) -> FaultTimes:
    return _kill(run, "member")


def _kill_the_owner(run: ClusterRun) -> FaultTimes:
    return _kill(run, "owner")


def _kill(run: ClusterRun, role: str) -> FaultTimes:
    door = run.find(role)
    door.child.send(signal.SIGKILL)
    began_s = time.monotonic()
    run.crowd.doors = [other.public for other in run.doors if other is not door]
    full_s = run.time_to_full(began_s)
    run.stage.stop(door.child)
    run.replace(door)
    return FaultTimes(began_s, full_s)


def _pause_a_member(run: ClusterRun) -> FaultTimes:
    return _pause(run, run.find("member").child)


def _pause_the_owner(run: ClusterRun) -> FaultTimes:
    return _pause(run, run.find("owner").child)


def _pause_redis(run: ClusterRun) -> FaultTimes:
    return _pause(run, run.redis)


def _pause(run: ClusterRun, child: Child) -> FaultTimes:
    began_s = time.monotonic()
    child.send(signal.SIGSTOP)
    end = threading.Timer(3 * LEASE_S, child.send, [signal.SIGCONT])
    end.start()
    try:
        full_s = run.time_to_full(began_s)
    finally:
        end.cancel()
        child.send(signal.SIGCONT)
    run.wait_until_whole()
    return FaultTimes(began_s, full_s)


def _redis_killed_and_empty(run: ClusterRun) -> FaultTimes:
    began_s = time.monotonic()
    for door in run.doors:
        door.way.close()  # nobody listens where there is no Redis
    run.redis.send(signal.SIGKILL)
    run.stage.stop(run.redis)
    time.sleep(3 * LEASE_S)
    run.redis = run.start_redis()
    for door in run.doors:
        door.way.open()
    run.wait_until_whole()
    return FaultTimes(began_s, run.time_to_full(began_s))


def _cut_a_member_off(run: ClusterRun) -> FaultTimes:
    return _cut_off(run, run.find("member"))


def _cut_the_owner_off(run: ClusterRun) -> FaultTimes:
    return _cut_off(run, run.find("owner"))


def _cut_off(run: ClusterRun, door: RunningDoor) -> FaultTimes:
    return _trouble(run, door.way.cut, door.way.heal)


def _slow_redis(run: ClusterRun) -> FaultTimes:
    def slow() -> None:
        for door in run.doors:
            door.way.delay_s = SLOW_S

    def heal() -> None:
        for door in run.doors:
            door.way.heal()

    return _trouble(run, slow, heal)


def _trouble(run: ClusterRun, begin: Callable[[], None], heal: Callable[[], None]) -> FaultTimes:
    began_s = time.monotonic()
    begin()
    end = threading.Timer(3 * LEASE_S, heal)
    end.start()
    try:
        full_s = run.time_to_full(began_s)
    finally:
        end.cancel()
        heal()
    run.wait_until_whole()
    return FaultTimes(began_s, full_s)


def _rolling_restart(run: ClusterRun) -> FaultTimes:
    began_s = time.monotonic()
    for old in [*run.doors]:
        run.replace(old)
        code = run.stage.stop(old.child)
        run.wait_until_whole()
        run.laws.append(laws.Finding(f"a door that is told to stop ends with {code}", code == 0))
    return FaultTimes(began_s, run.time_to_full(began_s))


FAULTS: tuple[Fault, ...] = (
    _kill_a_member,
    _kill_the_owner,
    _pause_a_member,
    _pause_the_owner,
    _redis_killed_and_empty,
    _pause_redis,
    _slow_redis,
    _cut_a_member_off,
    _cut_the_owner_off,
    _rolling_restart,
)
