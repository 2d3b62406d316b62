"""A restart under load: one process takes the place of another, and no client notices."""

import contextlib
import http.client
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.request import urlopen

import pytest
from on_stage import Stage, stage
from stopwatch import PATIENCE_S

BODY = json.dumps({"model": "reasoning", "messages": [], "stream": True}).encode()
PATH = "/v1/chat/completions"
CLIENTS = 12
CAP = 4


class Crowd:
    """Clients, each with a request under way, half of them on connections that they keep."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.ended: Counter[str] = Counter()
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._one, args=(bool(n % 2),)) for n in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _one(self, keeps: bool) -> None:
        connection = None
        while not self._over.is_set():
            connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, 60)
            try:
                connection.request("POST", PATH, BODY, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                body = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.ended[repr(error)] += 1
            else:
                whole = answer.status == 200 and b"data: [DONE]" in body
                self.ended["served" if whole else f"{answer.status} {body[-200:]!r}"] += 1
                if keeps and not answer.will_close:
                    continue
            connection.close()
            connection = None
        if connection is not None:
            connection.close()


def stats(port: int) -> dict[str, int]:
    with urlopen(f"http://127.0.0.1:{port}/stand-in/stats", timeout=PATIENCE_S) as answer:
        found: dict[str, int] = json.load(answer)
        return found


def until(condition, within_s: float = PATIENCE_S) -> None:
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def configured(made: Stage, engine: int) -> Path:
    path = made.configure(engine=engine, cap=CAP, queue=50)
    text = path.read_text().replace("[server]", '[server]\nstate_dir = "state"\n')
    path.write_text(text)
    return path


@pytest.mark.slow
def test_a_restart_under_load_refuses_nobody_cuts_no_stream_and_keeps_the_cap(tmp_path: Path):
    with stage(tmp_path) as made:
        _, engine = made.engine("--slots", "8", "--tokens", "8", "--gap-ms", "25")
        path = configured(made, engine)
        old = made.start("serve", "--config", str(path))
        public, _ = old.port("public"), old.port("admin")
        crowd = Crowd(public)
        try:
            for _ in range(3):
                served = crowd.ended["served"]
                until(lambda n=served: crowd.ended["served"] > n + 20)
                new = made.start("serve", "--config", str(path), "--take-over")
                assert new.port("public") == public
                assert old.code() == 0, old.errors
                old = new
            served = crowd.ended["served"]
            until(lambda n=served: crowd.ended["served"] > n + 20)
        finally:
            crowd.close()
        assert set(crowd.ended) == {"served"}, crowd.ended
        told = stats(engine)
        assert told["max_sequences"] == CAP
        assert told["sequences"] == 0
        old.signal(signal.SIGTERM)
        assert old.code() == 0


@pytest.mark.slow
def test_a_front_door_that_is_told_to_starts_its_own_successor(tmp_path: Path):
    with stage(tmp_path) as made:
        _, engine = made.engine()
        path = configured(made, engine)
        old = made.start("serve", "--config", str(path))
        public, _ = old.port("public"), old.port("admin")
        old.signal(signal.SIGUSR2)
        assert old.port("public") == public  # the next one says so on the same stdout
        assert old.code() == 0
        found = re.search(r"process (\d+) was started to take over", old.errors)
        assert found
        try:
            with urlopen(f"http://127.0.0.1:{public}/health", timeout=PATIENCE_S) as answer:
                assert answer.status == 200
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(found[1]), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("more", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR2"])
def test_signals_in_the_last_moment_do_not_change_how_it_ends(tmp_path: Path, more: str):
    with stage(tmp_path) as made:
        door = made.start("serve", "--config", str(configured(made, 9)))
        door.port("public"), door.port("admin")
        door.signal(signal.SIGTERM)
        until(lambda: "draining" in door.errors)
        while door.popen.poll() is None:
            door.signal(signal.Signals[more])
            time.sleep(0.001)
        assert door.code() == 0, door.errors
        assert "was started to take over" not in door.errors


def runs(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        return state not in "ZX"  # ended, and perhaps nobody here asks how
    return False


def successors(errors: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"process (\d+) was started to take over", errors)]


def test_stopped_as_its_successor_starts_neither_goes_on(tmp_path: Path):
    with stage(tmp_path) as made:
        door = made.start("serve", "--config", str(configured(made, 9)))
        door.port("public"), door.port("admin")
        door.signal(signal.SIGUSR2)
        door.signal(signal.SIGTERM)
        assert door.code() == 0, door.errors
        for pid in successors(door.errors):
            until(lambda pid=pid: not runs(pid))
        assert "did not take over" not in door.errors


def test_stopped_while_it_hands_over_neither_goes_on(tmp_path: Path):
    with stage(tmp_path) as made:
        door = made.start("serve", "--config", str(configured(made, 9)))
        door.port("public"), door.port("admin")
        door.signal(signal.SIGUSR2)
        until(lambda: "handing over to process" in door.errors)
        door.signal(signal.SIGTERM)
        assert door.code() == 0, door.errors
        (pid,) = successors(door.errors)
        if "serves now" not in door.errors:  # else it came too late to end both
            until(lambda: not runs(pid))
        else:
            os.kill(pid, signal.SIGTERM)


def test_a_successor_that_takes_its_time_is_not_forgotten(tmp_path: Path):
    with stage(tmp_path) as made:
        door = made.start("serve", "--config", str(configured(made, 9)))
        door.port("public"), door.port("admin")
        door.signal(signal.SIGUSR2)
        until(lambda: successors(door.errors))
        (pid,) = successors(door.errors)
        os.kill(pid, signal.SIGSTOP)
        door.signal(signal.SIGUSR2)
        until(lambda: "has yet to take over" in door.errors)
        door.signal(signal.SIGTERM)
        assert door.code() == 0, door.errors
        os.kill(pid, signal.SIGCONT)
        until(lambda: not runs(pid))
        assert len(successors(door.errors)) == 1


def test_of_many_calls_for_a_successor_one_is_heeded(tmp_path: Path):
    with stage(tmp_path) as made:
        door = made.start("serve", "--config", str(configured(made, 9)))
        public, _ = door.port("public"), door.port("admin")
        door.signal(signal.SIGUSR2)
        until(lambda: successors(door.errors))
        (pid,) = successors(door.errors)
        os.kill(pid, signal.SIGSTOP)
        for calls in range(1, 20):
            door.signal(signal.SIGUSR2)
            until(lambda n=calls: door.errors.count("has yet to take over") == n)
        os.kill(pid, signal.SIGCONT)
        assert door.port("public") == public  # the next one says so on the same stdout
        assert door.code() == 0, door.errors
        assert successors(door.errors) == [pid]
        os.kill(pid, signal.SIGTERM)
        assert "was started before, and has yet to take over" in door.errors


@pytest.mark.slow
def test_a_successor_that_cannot_start_leaves_the_front_door_as_it_is(tmp_path: Path):
    with stage(tmp_path) as made:
        _, engine = made.engine()
        path = configured(made, engine)
        old = made.start("serve", "--config", str(path))
        public, _ = old.port("public"), old.port("admin")
        path.write_text("[server")
        old.signal(signal.SIGUSR2)
        until(lambda: "did not take over" in old.errors)
        with urlopen(f"http://127.0.0.1:{public}/health", timeout=PATIENCE_S) as answer:
            assert answer.status == 200
