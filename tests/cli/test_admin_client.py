"""The admin commands speak with the admin listener that was named, and with nobody else."""

import contextlib
import http.server
import io
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from on_stage import run, stage
from rich.console import Console

from tornado_frontdoor.cli.admin_client import status_tables


class Recorder(http.server.ThreadingHTTPServer):
    """Answers whatever comes with one status, and keeps what came."""

    def __init__(self, status: int = 200, location: str | None = None) -> None:
        self.seen: list[str] = []
        recorder = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                recorder.seen.append(f"{self.requestline}\n{self.headers}")
                self.send_response(status)
                if location:
                    self.send_header("Location", location)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            do_POST = do_CONNECT = do_GET  # noqa: N815 - the library's names

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextlib.contextmanager
def recorder(status: int = 200, location: str | None = None) -> Iterator[Recorder]:
    with Recorder(status, location) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "command", [("status",), ("wake", "reasoning"), ("sleep", "reasoning"), ("reload",)]
)
def test_no_admin_command_goes_through_a_proxy_of_the_environment(command: tuple[str, ...]):
    with recorder() as proxy, recorder(404) as admin:
        through = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy"), proxy.url)
        done = run(*command, "--admin", admin.url, FRONTDOOR_ADMIN_TOKEN="secret", **through)
        assert done.returncode == 1
        assert not proxy.seen
        assert "Bearer secret" in admin.seen[0]


def test_a_redirect_is_not_followed_with_the_token():
    with recorder() as other, recorder(307, other.url) as admin:
        done = run("status", "--admin", admin.url, FRONTDOOR_ADMIN_TOKEN="secret")
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert not other.seen


def test_health_is_0_while_it_serves_and_1_when_it_does_not(tmp_path: Path):
    with stage(tmp_path) as on:
        process, public, _ = on.serve()
        url = f"http://127.0.0.1:{public}"
        done = run("health", url)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        process.signal(signal.SIGTERM)
        assert process.code() == 0
        gone = run("health", url)
    assert (gone.returncode, gone.stderr.count("\n")) == (1, 1)
    with recorder(503) as draining:
        assert run("health", draining.url).returncode == 1
    assert run("health", "127.0.0.1:8080").returncode == 2


def test_reload_puts_a_new_file_in_force_and_says_what_waits_for_a_start(tmp_path: Path):
    with stage(tmp_path) as on:
        process, _, admin = on.serve(cap=6)
        url = f"http://127.0.0.1:{admin}"
        on.configure(cap=3)
        done = run("reload", "--admin", url)
        assert (done.returncode, done.stdout) == (0, "the configuration was read again\n")
        assert '"cap": 3' in run("status", "--json", "--admin", url).stdout
        path = on.configure(cap=3)
        path.write_text(path.read_text().replace("[server]", '[server]\nstate_dir = "other"'))
        done = run("reload", "--admin", url)
        assert done.returncode == 0
        assert done.stdout.startswith("server.state_dir changes with the next start\n")
        process.signal(signal.SIGTERM)
        assert process.code() == 0


def test_reload_says_what_is_wrong_with_the_file_and_changes_nothing(tmp_path: Path):
    with stage(tmp_path) as on:
        _, _, admin = on.serve(cap=6)
        url = f"http://127.0.0.1:{admin}"
        on.configure(cap=8)
        done = run("reload", "--admin", url)
        assert (done.returncode, done.stdout) == (1, "")
        assert "upstreams.reasoning.admission.cap" in done.stderr
        assert "the configuration in force is unchanged" in done.stderr
        assert '"cap": 6' in run("status", "--json", "--admin", url).stdout


@pytest.mark.parametrize(
    ("now", "shown"),
    [
        ({}, "cluster: owner, epoch 3, 3 doors; this one is b"),
        ({"role": "member", "doors": ["b"]}, "cluster: member, epoch 3, 1 door; this one is b"),
        (
            {"role": "alone", "outage": True, "splits": True},
            "epoch 3, 3 doors; an outage: it goes on with its share; this one is b",
        ),
        ({"same_limits": False}, "its limits differ from the owner's, which hold"),
    ],
)
def test_status_shows_what_a_door_is_in_its_cluster(now: dict[str, object], shown: str):
    cluster = {
        "door": "b",
        "role": "owner",
        "epoch": 3,
        "doors": ["a", "b", "c"],
        "outage": False,
        "on_outage": "split",
        "splits": False,
        "same_limits": True,
    }
    answer = {"version": "1", "uptime_s": 1.0, "upstreams": {}, "cluster": cluster | now}
    assert shown in str(status_tables(answer)[-1])


def test_status_shows_replicas_of_long_addresses_on_a_narrow_terminal():
    urls = [f"http://text-predictor-{n}.llm-serving.svc.cluster.local:8000" for n in (0, 1)]
    replicas = [{"url": url, "state": "up", "taken": 1, "slots": 4} for url in urls]
    upstream = {
        "state": "awake",
        "wake_step": None,
        "in_flight": 2,
        "cap": 6,
        "queued": 3,
        "queue": 8,
        "last_activity_s": 1.0,
        "sleep_support": False,
        "wakes_total": 0,
        "models": ["text"],
        "replicas": replicas,
    }
    console = Console(file=io.StringIO(), width=80)
    answer = {"version": "1", "uptime_s": 1.0, "upstreams": {"reasoning": upstream}}
    for table in status_tables(answer):
        console.print(table)
    shown = console.file.getvalue()
    for word in ("reasoning", "awake", "2 of 6", "3 of 8", "1 of 4", "in flight", "slots taken"):
        assert word in shown, shown
    together = "".join(line.split("│")[2].strip() for line in shown.splitlines() if "http" in line)
    assert all(url[:30] in together for url in urls), shown
    assert "…" not in shown
