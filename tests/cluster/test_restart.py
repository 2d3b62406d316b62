"""One front door of a cluster is replaced by its next process, whose limits may differ."""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest
from on_stage import Process, Stage, stage
from redis_server import RedisServer
from stopwatch import PATIENCE_S

from tornado_frontdoor.config import load
from tornado_frontdoor.proxy.cluster.agreement import limits_in

LEASE_S = 2


def until(condition: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def configured(made: Stage, redis: RedisServer, name: str, cap: int) -> Path:
    path = made.configure(f"{name}.toml", cap=cap)
    cluster = f'[cluster]\nredis = "{redis.url}"\nlease_s = {LEASE_S}\n'
    text = path.read_text().replace("[server]", f'{cluster}\n[server]\nstate_dir = "{name}"\n')
    path.write_text(text)
    return path


def get(port: int, path: str) -> tuple[int, bytes]:
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
        return answer.status, answer.read()


def begin(made: Stage, path: Path) -> tuple[Process, int, int]:
    """Start a front door, and wait until it knows who owns the gates."""
    door = made.start("serve", "--config", str(path))
    public, admin = door.port("public"), door.port("admin")

    def knows() -> bool:
        told = json.loads(get(admin, "/admin/status")[1])["cluster"]
        return told["role"] in ("owner", "member")

    until(knows)
    return door, public, admin


@pytest.mark.slow
def test_one_whose_new_file_has_other_limits_than_the_others_stays(
    redis: RedisServer, tmp_path: Path
) -> None:
    with stage(tmp_path) as made:
        old, public, _ = begin(made, configured(made, redis, "a", cap=6))
        begin(made, configured(made, redis, "b", cap=6))
        configured(made, redis, "a", cap=5)
        old.signal(signal.SIGUSR2)
        until(lambda: "did not take over" in old.errors)
        assert "the limits of its upstreams differ" in old.errors
        assert re.search(r"admission.cap of \S+ is 6 there and 5 here", old.errors)
        assert "handing over" not in old.errors
        assert get(public, "/health")[0] == 200


@pytest.mark.slow
def test_one_that_is_alone_hands_over_to_other_limits(redis: RedisServer, tmp_path: Path) -> None:
    with stage(tmp_path) as made:
        old, public, admin = begin(made, configured(made, redis, "a", cap=6))
        configured(made, redis, "a", cap=5)
        old.signal(signal.SIGUSR2)
        assert old.port("public") == public  # the next one says so on the same stdout
        found = re.search(r"process (\d+) was started to take over", old.errors)
        assert found
        try:
            assert old.code() == 0, old.errors
            shown = json.loads(get(admin, "/admin/status")[1])["upstreams"]["reasoning"]
            assert shown["cap"] == 5
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(found[1]), signal.SIGTERM)


def test_replicas_without_devices_are_named_as_before_there_were_devices(tmp_path: Path) -> None:
    """Another name keeps doors of this release out of a cluster of the last one: tell operators."""
    path = tmp_path / "frontdoor.toml"

    def named(devices: str) -> str:
        path.write_text(
            '[cluster]\nredis = "redis://a/0"\n[gpu]\nmemory_gib = 80\n'
            f"[upstreams.a]\nreplicas = [{{ url = 'http://a:1', slots = 4{devices} }}]\n"
            "[upstreams.a.admission]\ncap = 3\nqueue = 8\nqueue_timeout_s = 30\n"
            "[upstreams.a.gpu]\ndevices = [0]\nutilization = 0.5\n"
            '[models.a]\nupstream = "a"\n'
        )
        return limits_in(load(path)).fingerprint

    assert named("") == "0a8af29e996b"
    assert named(", devices = [1]") != "0a8af29e996b"
