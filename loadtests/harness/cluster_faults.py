"""What is done to front doors that share gates, and to their Redis, at full load."""

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

from loadtests.harness.cluster import (
    CAP,
    DOORS,
    LEASE_S,
    ClusterRun,
    FaultCase,
    RunningDoor,
)
from loadtests.harness.processes import Child, wait_for
from loadtests.harness.redis_way import RedisWay

SLOW_S = 0.1
"""Each way, when Redis is slow."""
VERY_SLOW_S = 0.9
"""Each way: an answer takes longer than the lease."""
TROUBLE_S = 3 * LEASE_S
WATCH_S = 3 * LEASE_S
"""After a kill, before another door takes the place: what runs hides a fault for a while."""
FULL_S = 2.0
"""After a kill of the owner, with this lease."""
HOUR_S = 3600
JOIN_TIMEOUT_S = 30.0
LAG_S = 0.5


# Killed


def _kill(run: ClusterRun, doors: Sequence[RunningDoor]) -> None:
    run.killed |= {door.public for door in doors}
    run.begins()
    for door in doors:
        door.child.send(signal.SIGKILL)
    time.sleep(WATCH_S)
    for door in doors:
        run.retire(door)
    run.add(len(doors))


def _kill_a_member(run: ClusterRun) -> None:
    _kill(run, [run.find("member")])


def _kill_the_owner(run: ClusterRun) -> None:
    _kill(run, [run.find("owner")])


def _kill_both(run: ClusterRun) -> None:
    _kill(run, [run.find("owner"), run.find("member")])


# Stopped, and going on


def _stop(children: Sequence[Child]) -> None:
    for child in children:
        child.send(signal.SIGSTOP)
    time.sleep(TROUBLE_S)
    for child in children:
        child.send(signal.SIGCONT)


def _stop_doors(run: ClusterRun, *roles: str) -> None:
    doors = [run.find(role) for role in roles]
    run.troubled |= {door.public for door in doors}
    _stop([door.child for door in doors])


def _stop_a_member(run: ClusterRun) -> None:
    _stop_doors(run, "member")


def _stop_the_owner(run: ClusterRun) -> None:
    _stop_doors(run, "owner")


def _stop_both(run: ClusterRun) -> None:
    _stop_doors(run, "owner", "member")


# Redis


def _everywhere(run: ClusterRun) -> None:
    run.troubled |= {door.public for door in run.doors}


def _stop_redis(run: ClusterRun) -> None:
    _everywhere(run)
    _stop([run.redis.child])


def _empty_redis(run: ClusterRun) -> None:
    _everywhere(run)
    for door in run.doors:
        door.way.refuse()  # nobody listens where there is no Redis
    run.redis.child.send(signal.SIGKILL)
    run.redis.stop()
    time.sleep(TROUBLE_S)
    run.redis.start()
    for door in run.doors:
        door.way.open()


def _fail_over(run: ClusterRun) -> None:
    _fail_over_behind(run, lambda: time.sleep(LAG_S))


def _fail_over_without_the_owner(run: ClusterRun) -> None:
    """Have a replica take over that has missed the last change of owner, and why there was one."""

    def missed() -> None:
        owner = run.find("owner")
        run.killed.add(owner.public)
        owner.child.send(signal.SIGKILL)
        run.retire(owner)
        run.find("owner")
        time.sleep(LAG_S)

    _fail_over_behind(run, missed)
    run.add()


def _fail_over_behind(run: ClusterRun, missed: Callable[[], None]) -> None:
    """Have a replica take over that has missed something."""
    _everywhere(run)
    old, way = run.redis, RedisWay(run.redis.port)
    new = run.start_redis(follows=way.port)
    follows = wait_for(lambda: new.value("replication", "master_link_status") == "up", 30)
    run.said.append(("the replica follows before it lags", follows))
    way.cut()
    missed()
    run.begins()
    old.child.send(signal.SIGKILL)
    old.stop()
    new.ask("REPLICAOF NO ONE")
    way.refuse()
    for door in run.doors:
        door.way.lead_to(new.port)
    run.redis = new


# The way to Redis


def _trouble(
    run: ClusterRun, doors: Sequence[RunningDoor], begin: Callable[[RedisWay], None]
) -> None:
    run.troubled |= {door.public for door in doors}
    for door in doors:
        begin(door.way)
    time.sleep(TROUBLE_S)
    for door in doors:
        door.way.heal()


def _cut_a_member_off(run: ClusterRun) -> None:
    _trouble(run, [run.find("member")], RedisWay.cut)


def _cut_the_owner_off(run: ClusterRun) -> None:
    _trouble(run, [run.find("owner")], RedisWay.cut)


def _cut_all_off(run: ClusterRun) -> None:
    _trouble(run, run.doors, RedisWay.cut)


def _drop_a_member(run: ClusterRun) -> None:
    _trouble(run, [run.find("member")], RedisWay.drop)


def _drop_the_owner(run: ClusterRun) -> None:
    _trouble(run, [run.find("owner")], RedisWay.drop)


def _slow(run: ClusterRun) -> None:
    _trouble(run, run.doors, lambda way: way.delay(SLOW_S))


def _very_slow(run: ClusterRun) -> None:
    _trouble(run, run.doors, lambda way: way.delay(VERY_SLOW_S))


# Other doors


def _other_limits(run: ClusterRun) -> None:
    way = RedisWay(run.redis.port)
    name = run.name("stranger")
    child = run.start_door(name, run.configure(name, way, cap=CAP - 1))
    ended = wait_for(lambda: child.ended, JOIN_TIMEOUT_S)
    code = run.stage.stop(child)
    lines = child.log.read_text().splitlines()
    said = "; ".join(lines)
    one_line = len(lines) == 1 and "limits" in lines[0]
    run.said.append((f"it ends with {code} and one line: {said}", ended and code > 0 and one_line))


def _clocks(run: ClusterRun) -> None:
    """Have doors whose clocks are an hour ahead and an hour behind, and kill the owner."""
    library = _fake_clock()
    if library is None:
        run.said.append(("not tried: no faketime here (apt-get install faketime)", True))
        return
    for old, shift_s in zip([*run.doors], (HOUR_S, -HOUR_S, 0), strict=True):
        shifted = (f"LD_PRELOAD={library}", f"FAKETIME={shift_s:+d}s", "FAKETIME_NO_CACHE=1")
        run.add(environment=shifted if shift_s else ())
        run.wait_until_whole()
        run.retire(old)
        run.wait_until_whole()
    _kill_the_owner(run)


def _fake_clock() -> str | None:
    """Return the library that shifts clocks, both the wall's and the monotonic one."""
    if shutil.which("faketime") is None:
        return None
    told = subprocess.run(
        ["faketime", "-f", "+1s", "printenv", "LD_PRELOAD"],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip() or None


def _rolling_restart(run: ClusterRun) -> None:
    for old in [*run.doors]:
        run.add()
        run.wait_until_whole()
        code = run.retire(old)
        run.said.append((f"a door that is told to stop ends with {code}", code == 0))
        run.wait_until_whole()


def _hand_over(run: ClusterRun) -> None:
    """Have each door's place taken by a new process, with its sockets."""
    for old in [*run.doors]:
        name = run.name("successor")
        child = run.start_door(name, old.configuration, (), "--take-over")
        public, admin = child.listening(2)[:2]
        code = run.stage.end_of(old.child, JOIN_TIMEOUT_S)
        kept = (public, admin) == (old.public, old.admin)
        said = f"a door whose place is taken ends with {code}, and its addresses stay"
        run.said.append((said, code == 0 and kept))
        new = RunningDoor(name, child, old.way, old.configuration, public, admin)
        run.doors = [new if door is old else door for door in run.doors]
        run.wait_until_whole()


FAULTS: tuple[FaultCase, ...] = (
    FaultCase("member killed", _kill_a_member, full_s=FULL_S),
    FaultCase("owner killed", _kill_the_owner, full_s=FULL_S),
    FaultCase("owner and member killed", _kill_both),
    FaultCase("member stopped", _stop_a_member),
    FaultCase("owner stopped", _stop_the_owner),
    FaultCase("owner and member stopped", _stop_both),
    FaultCase("member cut off", _cut_a_member_off),
    FaultCase("owner cut off", _cut_the_owner_off),
    FaultCase("all cut off", _cut_all_off),
    FaultCase("member's packets dropped", _drop_a_member, outage=True),
    FaultCase("owner's packets dropped", _drop_the_owner, outage=True),
    FaultCase("Redis slow", _slow),
    FaultCase("Redis very slow", _very_slow, outage=True),
    FaultCase("Redis stopped", _stop_redis),
    FaultCase("Redis back empty", _empty_redis, outage=True),
    FaultCase("Redis fails over", _fail_over),
    FaultCase("Redis fails over, owner killed", _fail_over_without_the_owner),
    FaultCase("clocks an hour apart", _clocks),
    FaultCase("other limits", _other_limits, graceful=True),
    FaultCase("rolling restart", _rolling_restart, graceful=True),
    FaultCase("hand-over of all", _hand_over, graceful=True),
)
assert DOORS == 3  # what is done to owner and member leaves one
