"""`frontdoor demo` as a process: engines fall asleep and wake before one's eyes; Ctrl-C ends it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from stopwatch import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
IDLE_S = 5.0
"""After which the demo's `embed` falls asleep."""
"""For a start, and for a transition, on a busy machine."""


class Demo:
    """A running demo, and every state of its `embed` that was seen, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tmp"
        self.folder.mkdir()
        self.errors = folder / "stderr"
        self.states: list[str] = []
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-W", "error", "-m", "tornado_frontdoor.cli", "demo"),
                    *("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"),
                ],
                env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.folder)},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline().split() for _ in range(2)]
        assert [line[:2] for line in lines] == [["listening", "public"], ["listening", "admin"]]
        self.public, self.admin = (line[2] for line in lines)

    def look(self) -> dict[str, Any]:
        """Ask for the status, and note a new state of `embed`."""
        upstreams: dict[str, Any] = self.call(f"{self.admin}/admin/status")[0]["upstreams"]
        if [state := upstreams["embed"]["state"]] != self.states[-1:]:
            self.states.append(state)
        return upstreams

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> float:
        """Look until a condition holds; return the seconds that it took."""
        began_s = time.monotonic()
        while not condition(self.look()):
            assert time.monotonic() - began_s < PATIENCE_S, (self.states, self.errors.read_text())
            time.sleep(0.01)
        return time.monotonic() - began_s

    def call(self, url: str, body: object = None) -> tuple[Any, Message]:
        """Return the JSON and the headers of a good answer."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(url, data, {"Content-Type": "application/json"})  # noqa: S310 - http
        with urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310 - http
            return json.load(answer), answer.headers

    def end(self) -> tuple[int, str]:
        """Press Ctrl-C; return the exit code and what was printed since the two lines."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.stdout is not None
        printed = self.process.stdout.read()
        return self.process.wait(PATIENCE_S), printed


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    running = Demo(tmp_path)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


def test_an_engine_of_the_demo_falls_asleep_and_wakes_for_a_request(demo: Demo) -> None:
    demo.until(lambda upstreams: all(u["state"] == "awake" for u in upstreams.values()))
    assert demo.until(lambda upstreams: upstreams["embed"]["sleeping"]) < IDLE_S + 5
    assert demo.states[-3:] == ["awake", "falling_asleep", "sleeping"]
    answer, headers = demo.call(f"{demo.public}/v1/embeddings", {"input": "hello"})
    assert answer["data"]
    assert 1000 <= float(headers["X-Frontdoor-Wait-Ms"]) < 5000  # its engine takes a second
    upstreams = demo.look()
    assert (upstreams["embed"]["state"], upstreams["embed"]["wakes_total"]) == ("awake", 1)
    assert upstreams["text"]["wakes_total"] == 0  # nobody else was woken

    code, printed = demo.end()
    assert code in (0, 130)
    assert f"bin/frontdoor status --admin {demo.admin}" in printed
    assert "-w '%{http_code}\\n' \\\n" in printed  # as README.md has it, to be pasted
    told = demo.errors.read_text()
    for state in ("falling_asleep", "sleeping", "waking", "awake"):
        assert f"embed is {state}" in told
    assert "Traceback" not in told
    assert not [*demo.folder.iterdir()]


def test_ctrl_c_in_the_middle_of_a_transition_leaves_nothing(demo: Demo) -> None:
    demo.until(lambda upstreams: upstreams["embed"]["state"] == "falling_asleep")
    code, _ = demo.end()
    assert code in (0, 130)
    assert "Traceback" not in demo.errors.read_text()
    assert not [*demo.folder.iterdir()]
