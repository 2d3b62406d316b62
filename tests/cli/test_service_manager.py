"""Under a service manager: it is told what goes on, its sockets are taken, its units are right."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from on_stage import Stage, stage
from stopwatch import PATIENCE_S

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "conf" / "systemd"
HAND_OVER = """
import os, sys
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, "-m", "tornado_frontdoor.cli", *sys.argv[1:]])
"""


@contextlib.contextmanager
def manager(folder: Path) -> Iterator[tuple[socket.socket, str]]:
    """Listen as a service manager does."""
    path = str(folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        sock.settimeout(PATIENCE_S)
        yield sock, path


def heard(sock: socket.socket) -> dict[str, str]:
    """Return the next thing that was told, other than that all is well."""
    while True:
        told = dict(line.split("=", 1) for line in sock.recv(4096).decode().splitlines())
        if told != {"WATCHDOG": "1"}:
            return told


def serve(
    made: Stage, fds: list[socket.socket], environment: dict[str, str], engine: int = 1
) -> "subprocess.Popen[str]":
    """Start a front door as a service manager does, its sockets from descriptor 3 on."""
    config = made.configure(engine=engine)

    def hand_over() -> None:
        for number, sock in enumerate(fds):
            os.dup2(sock.fileno(), 3 + number)

    return subprocess.Popen(
        [sys.executable, "-c", HAND_OVER, "serve", "--config", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        preexec_fn=hand_over,  # noqa: PLW1509 - there are no threads here
        pass_fds=range(3, 3 + len(fds)),
        text=True,
    )


def test_it_says_that_it_serves_reloads_and_stops(tmp_path: Path):
    with (
        manager(tmp_path) as (sock, address),
        stage(tmp_path) as made,
        serve(made, [], {"NOTIFY_SOCKET": address}) as process,
    ):
        try:
            told = heard(sock)
            assert (told["READY"], told["MAINPID"]) == ("1", str(process.pid))
            assert told["STATUS"].startswith("serving 1 upstreams by ")
            process.send_signal(signal.SIGHUP)
            told = heard(sock)
            assert told["RELOADING"] == "1"
            assert int(told["MONOTONIC_USEC"]) > 0
            assert heard(sock)["READY"] == "1"
            process.send_signal(signal.SIGTERM)
            assert heard(sock) == {"STOPPING": "1", "STATUS": "draining"}
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def test_the_watchdog_hears_that_the_loop_turns(tmp_path: Path):
    with manager(tmp_path) as (sock, address), stage(tmp_path) as made:
        environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"}
        with serve(made, [], environment) as process:
            try:
                told = [sock.recv(4096) for _ in range(4)]
                assert told[0].startswith(b"READY=1")
                assert told[1:] == [b"WATCHDOG=1"] * 3
                process.send_signal(signal.SIGSTOP)  # the loop turns no more
                sock.settimeout(0.6)
                under_way = 2  # what was on its way when it was stopped
                with contextlib.suppress(TimeoutError):
                    for _ in range(under_way + 1):
                        sock.recv(4096)
                        under_way -= 1
                assert under_way >= 0
            finally:
                process.kill()


def test_it_serves_on_the_sockets_that_it_was_handed(tmp_path: Path):
    with (
        socket.create_server(("127.0.0.1", 0)) as public,
        socket.create_server(("127.0.0.1", 0)) as admin,
        stage(tmp_path) as made,
    ):
        environment = {"LISTEN_FDS": "2", "LISTEN_FDNAMES": "frontdoor.socket:admin"}
        with serve(made, [public, admin], environment) as process:
            try:
                assert process.stdout is not None
                ports = [sock.getsockname()[1] for sock in (public, admin)]
                lines = [process.stdout.readline().rpartition(":")[2].strip() for _ in range(2)]
                assert lines == [str(port) for port in ports]
                with urlopen(f"http://127.0.0.1:{ports[0]}/health", timeout=PATIENCE_S) as answer:
                    assert json.load(answer)["status"] == "ok"
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE_S) == 0
            finally:
                process.kill()


@pytest.mark.skipif(
    shutil.which("systemd-socket-activate") is None, reason="needs systemd-socket-activate"
)
def test_systemd_hands_it_the_sockets_on_which_the_first_client_already_waits(tmp_path: Path):
    """By the real tool: it listens, and starts the front door when somebody connects."""
    with stage(tmp_path) as made:
        config = made.configure()
        with socket.socket() as one, socket.socket() as other:
            for sock in (one, other):
                sock.bind(("127.0.0.1", 0))
            public, admin = (sock.getsockname()[1] for sock in (one, other))
        command = [
            *("systemd-socket-activate", "--fdname=public:admin"),
            *("-l", f"127.0.0.1:{public}", "-l", f"127.0.0.1:{admin}"),
            *("-E", f"PYTHONPATH={ROOT}", "-E", "PATH", sys.executable),
            *("-m", "tornado_frontdoor.cli", "serve", "--config", str(config)),
        ]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT, text=True
        ) as process:
            try:
                assert process.stdout is not None
                until_it_listens(public, process)
                with urlopen(f"http://127.0.0.1:{public}/health", timeout=PATIENCE_S) as answer:
                    assert json.load(answer)["status"] == "ok"
                lines = [process.stdout.readline().rpartition(":")[2].strip() for _ in range(2)]
                assert lines == [str(public), str(admin)]
                with urlopen(
                    f"http://127.0.0.1:{admin}/admin/status", timeout=PATIENCE_S
                ) as answer:
                    assert "upstreams" in json.load(answer)
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE_S) == 0
            finally:
                process.kill()


def until_it_listens(port: int, process: "subprocess.Popen[str]") -> None:
    """Look at it from outside: a connection would start something."""
    deadline_s = time.monotonic() + PATIENCE_S
    while f":{port:04X} 00000000:0000 0A" not in Path("/proc/net/tcp").read_text():
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.parametrize("handed_on", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_restart_on_sockets_that_somebody_holds_refuses_nobody(tmp_path: Path, handed_on: bool):
    """Clients keep their connections, streams are under way, and it takes a while to drain.

    `handed_on`: the one that is restarted has the place of another, by SIGUSR2.
    """
    with stage(tmp_path) as made, socket.create_server(("127.0.0.1", 0), backlog=64) as public:
        _, engine = made.engine("--tokens", "8", "--gap-ms", "50")
        environment = {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "public"}
        ended: list[str] = []
        over = threading.Event()
        port = public.getsockname()[1]
        clients = [threading.Thread(target=stream, args=(port, ended, over)) for _ in range(4)]
        processes = [serve(made, [public], environment, engine)]
        try:
            for client in clients:
                client.start()
            until_more(ended, processes[0])
            processes[0].send_signal(signal.SIGUSR2 if handed_on else signal.SIGTERM)
            assert processes[0].wait(PATIENCE_S) == 0
            if handed_on:
                end_successor(made.folder)
            processes.append(serve(made, [public], environment, engine))
            until_more(ended, processes[1])
        finally:
            over.set()
            for client in clients:
                client.join()
            for process in processes:
                process.kill()
                process.communicate()
        assert {*ended} == {"200, whole"}, ended


def end_successor(folder: Path) -> None:
    """Tell the process that has taken over to end, and wait until it has."""

    def is_it(path: Path) -> bool:
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            return b"--take-over" in words and str(folder / "frontdoor.toml").encode() in words
        return False

    (pid,) = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if is_it(path)]
    os.kill(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + PATIENCE_S
    while is_it(Path(f"/proc/{pid}/cmdline")):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def stream(port: int, ended: list[str], over: threading.Event) -> None:
    """Ask again and again, on one connection for as long as it is there."""
    body = json.dumps({"model": "reasoning", "messages": [], "stream": True})
    wire, used = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S), False
    while not over.is_set():
        try:
            wire.request("POST", "/v1/chat/completions", body)
            answer = wire.getresponse()
            whole = b"[DONE]" in answer.read()
            ended.append(f"{answer.status}, {'whole' if whole else 'cut'}")
            used = not answer.will_close
        except (http.client.RemoteDisconnected, ConnectionError) as error:
            wire.close()
            if not used:  # else it was closed while nothing was under way on it
                ended.append(repr(error))
            used = False
    wire.close()


def until_more(ended: list[str], process: "subprocess.Popen[str]") -> None:
    """Wait until some more requests have ended."""
    enough = len(ended) + 8
    while len(ended) < enough:
        assert process.poll() is None
        time.sleep(0.01)


def test_what_is_meant_for_another_process_is_left_alone(tmp_path: Path):
    with stage(tmp_path) as made:
        os.environ |= {"LISTEN_PID": "1", "LISTEN_FDS": "1"}
        try:
            _, public, _ = made.serve()
        finally:
            del os.environ["LISTEN_PID"], os.environ["LISTEN_FDS"]
        with urlopen(f"http://127.0.0.1:{public}/health", timeout=PATIENCE_S) as answer:
            assert answer.status == 200


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_units_are_clean_and_hardened(tmp_path: Path):
    """Their program is another place here; all else is as it stands."""
    for unit in UNITS.iterdir():
        text = unit.read_text(encoding="utf-8")
        text = text.replace("/opt/frontdoor/bin/frontdoor", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    units = [str(path) for path in sorted(tmp_path.iterdir())]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    service = str(tmp_path / "frontdoor.service")
    subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=20", service],
        capture_output=True,
        check=True,
    )


def test_a_stand_in_can_listen_where_other_machines_reach_it(tmp_path: Path):
    with stage(tmp_path) as made:
        process = made.start("stand-in", "--port", "0", "--host", "0.0.0.0")  # noqa: S104
        assert process.line().startswith("listening stand-in http://0.0.0.0:")
