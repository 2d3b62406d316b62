"""The command line: what it prints, how it ends, what it does with signals."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from on_stage import ROOT, Stage, run, stage
from stopwatch import PATIENCE_S


def ask(port: int, path: str, body: object = None) -> tuple[int, Any]:
    """Make one call; return status and JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data, headers)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def open_stream(port: int, **knobs: object) -> tuple[socket.socket, Any]:
    """Begin a stream; return the socket and a file of the answer, its head read."""
    body = json.dumps(
        {"model": "reasoning", "messages": [], "stream": True, "stand_in": knobs}
    ).encode()
    sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    sock.sendall(head % len(body) + body)
    answer = sock.makefile("rb")
    assert b"200" in answer.readline()
    while answer.readline() != b"\r\n":
        pass
    return sock, answer


def until(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.02)


# Wrong usage


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["serve", "--nonsense"],
        ["serve", "extra"],
        ["stand-in"],
        ["stand-in", "--port", "x"],
        ["stand-in", "--port", "0", "--slots", "many"],
        ["stand-in", "--port", "0", "--hold", "soon"],
        ["stand-in", "--port", "0", "--vllm", "9"],
        ["stand-in", "--port", "0", "--faults", "x=y"],
        ["serve", "--listen", "nowhere"],
        ["serve", "--listen", "127.0.0.1:99999"],
        ["serve", "--admin-listen", "0.0.0.0:0"],
        ["demo", "--listen", "x"],
        ["check", "--config", "/nonexistent/x.toml"],
        ["serve", "--config", "/nonexistent/x.toml"],
        ["serve", "--config", "/"],
    ],
)
def test_wrong_usage_is_said_in_a_few_lines_with_code_2(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert 1 <= len(done.stderr.splitlines()) <= 60
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nonsense"], "there is no command 'nonsense'; there are serve, demo, "),
        (["serve", "--nonsense"], "this cannot be read: serve --nonsense\n"),
        (["wake"], "this cannot be read: wake\n"),
        (
            ["pin", "text", "--for", "1h", "--until=18:00"],
            "frontdoor pin: --for and --until cannot both be given\n",
        ),
        (
            ["unpin", "text", "--for", "1h"],
            "unpin text --for 1h\nUsage:\n  frontdoor unpin MODEL [--replica URL] [--admin",
        ),
        (["pin", "text", "--for", ""], "frontdoor pin: the time must be seconds, or a duration"),
        (["sleep", "text", "--for="], "frontdoor sleep: the time must be seconds, or a duration"),
        (["pin", "text", "--until", ""], "frontdoor pin: the time '' must be of the form 18:00"),
        (["simulate", "--cap", "6"], "\nTry: frontdoor simulate --help\n"),
        ([], "\n  calibrate "),
        (["status", "--admin", "x"], "--admin: x: must be http://HOST:PORT or https://HOST:PORT\n"),
    ],
)
def test_wrong_usage_is_told_by_what_was_typed(arguments: list[str], told: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert "unmatched" not in done.stderr


def test_the_public_listener_asked_as_the_admin_one_is_named(tmp_path: Path) -> None:
    with stage(tmp_path) as on:
        _, engine = on.engine()
        _, public, _ = on.serve(engine=engine)
        done = run("status", "--admin", f"http://127.0.0.1:{public}")
        assert done.returncode == 1
        assert done.stderr == (
            "frontdoor: There is nothing at GET /admin/status: is this the admin listener?\n"
        )


def test_every_fault_of_a_file_has_a_line_with_its_key(tmp_path: Path) -> None:
    with stage(tmp_path) as on:
        path = on.configure(cap=8, queue=-1, queue_timeout_s=0)
        path.write_text(path.read_text() + '\n[routes]\nchat_default = "x"\nsurprise = 1\n')
        for command in ("check", "serve"):
            done = run(command, "--config", str(path))
            assert done.returncode == 2
            assert done.stdout == ""
            lines = done.stderr.splitlines()
            for key in (
                "upstreams.reasoning.admission.cap",
                "upstreams.reasoning.admission.queue",
                "upstreams.reasoning.admission.queue_timeout_s",
                "routes.surprise",
            ):
                assert any(line.startswith(f"{path}: {key}: ") for line in lines), (key, lines)


@pytest.mark.parametrize("key", ["cap", "queue", "queue_timeout_s", "slots"])
def test_no_limit_has_a_silent_default(tmp_path: Path, key: str) -> None:
    with stage(tmp_path) as on:
        path = on.configure()
        kept = [line for line in path.read_text().splitlines() if not line.startswith(f"{key} =")]
        path.write_text("\n".join(kept))
        done = run("check", "--config", str(path))
        assert done.returncode == 2
        assert f"upstreams.reasoning.admission.{key}: " in done.stderr


def test_check_says_what_a_file_means(tmp_path: Path) -> None:
    with stage(tmp_path) as on:
        path = on.configure()
        done = run("check", "--config", str(path))
        assert (done.returncode, done.stderr) == (0, "")
        assert "reasoning" in done.stdout
        found = json.loads(run("check", "--json", "--config", str(path)).stdout)
        assert "reasoning" in json.dumps(found)
        by_environment = run("check", FRONTDOOR_CONFIG=str(path))
        assert by_environment.stdout == done.stdout


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m tornado_frontdoor.cli --help | head -1; exit 0"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    with stage(tmp_path) as on:
        path = on.configure()
        command = f"{sys.executable} -m tornado_frontdoor.cli check --config {path} | true"
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, check=False, cwd=ROOT
        )
        assert done.stderr == ""


# Serving


def test_an_occupied_port_is_one_clear_line_with_code_1(tmp_path: Path) -> None:
    with stage(tmp_path) as on, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        path = str(on.configure())
        for option in ("--listen", "--admin-listen"):
            done = run("serve", "--config", path, option, f"127.0.0.1:{port}")
            assert done.returncode == 1
            assert done.stdout == ""
            assert len(done.stderr.splitlines()) == 1, done.stderr
            assert f"127.0.0.1:{port}" in done.stderr
            assert "in use" in done.stderr
        done = run("stand-in", "--port", str(port))
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


def test_it_says_where_it_listens_and_nothing_else(tmp_path: Path) -> None:
    """Also where no engine answers; what it says is exact, for whoever starts it by a script."""
    with stage(tmp_path) as on:
        process, public, admin = on.serve()
        assert ask(public, "/health")[1]["status"] == "ok"
        assert ask(admin, "/admin/status")[0] == 200
        assert ask(public, "/v1/chat/completions", {"model": "reasoning"})[0] == 503
        process.signal(signal.SIGTERM)
        assert process.code() == 0
        assert process._lines.empty()
        lines = [json.loads(line) for line in process.errors.splitlines() if line[0] == "{"]
        outcomes = [line["outcome"] for line in lines if "outcome" in line]
        assert outcomes == ["model_waking"]
        assert [line for line in lines if "is down" in line.get("message", "")]
        assert "Traceback" not in process.errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(tmp_path: Path, number: signal.Signals) -> None:
    """The stream ends whole, the line is refused, new connections are not taken, code 0."""
    with stage(tmp_path) as on:
        _, engine = on.engine()
        process, public, admin = on.serve(engine=engine, cap=1, queue=2)
        # More than the buffers on its way take: it ends when we read it, not sooner.
        sock, answer = open_stream(public, tokens=40, bytes_per_token=1_000_000)
        waiting, queued = send_chat(public)
        until(lambda: inside(admin) == (1, 1))
        process.signal(number)
        assert queued.readline().startswith(b"HTTP/1.1 503")
        with pytest.raises(ConnectionRefusedError):
            until(lambda: bool(ask(public, "/health")), 1)
        assert answer.read().rstrip().endswith(b"0")
        assert process.code() == 0
        close(sock, answer, waiting, queued)
        outcomes = [
            json.loads(x)["outcome"] for x in process.errors.splitlines() if '"outcome"' in x
        ]
        assert sorted(outcomes) == ["draining", "served"]


TOLD_AT_ONCE = """
import asyncio, os, sys
from functools import partial
from pathlib import Path
from tornado_frontdoor.config import load
from tornado_frontdoor.proxy.serving import serve_until_stopped
read = partial(load, Path(sys.argv[1]))
tell = lambda *_: os.kill(os.getpid(), int(sys.argv[2]))
sys.exit(asyncio.run(serve_until_stopped(read(), read, tell)))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_instant_in_which_it_says_that_it_listens_is_heeded(
    tmp_path: Path, number: signal.Signals
) -> None:
    line = [sys.executable, "-c", TOLD_AT_ONCE, str(Stage(tmp_path).configure()), str(int(number))]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def send_chat(port: int) -> tuple[socket.socket, Any]:
    sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    body = b'{"model":"reasoning","messages":[]}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    sock.sendall(head % len(body) + body)
    return sock, sock.makefile("rb")


def close(*things: Any) -> None:
    for thing in things:
        thing.close()


def inside(admin: int) -> tuple[int, int]:
    status = ask(admin, "/admin/status")[1]["upstreams"]["reasoning"]
    return status["in_flight"], status["queued"]


def test_a_drain_that_takes_too_long_is_cut_short(tmp_path: Path) -> None:
    with stage(tmp_path) as on:
        _, engine = on.engine("--tokens", "4000", "--gap-ms", "25")
        process, public, _ = on.serve(engine=engine, drain_timeout_s=0.5)
        sock, answer = open_stream(public)
        began_s = time.monotonic()
        process.signal(signal.SIGTERM)
        assert process.code() == 0
        assert 0.4 < time.monotonic() - began_s < 20
        body = answer.read()
        assert b"[DONE]" not in body
        assert b'"error"' in body
        close(sock, answer)


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with stage(tmp_path) as on:
        _, engine = on.engine("--tokens", "4000", "--gap-ms", "25")
        process, public, admin = on.serve(engine=engine, drain_timeout_s=60)
        sock, answer = open_stream(public)
        process.signal(signal.SIGTERM)
        until(lambda: not connects(public))
        began_s = time.monotonic()
        process.signal(signal.SIGTERM)
        assert process.code() == 0
        assert time.monotonic() - began_s < 20
        close(sock, answer)
        assert admin


def connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def test_sighup_reads_the_file_again(tmp_path: Path) -> None:
    with stage(tmp_path) as on:
        _, engine = on.engine("--hold", "60")
        process, public, admin = on.serve(engine=engine, cap=1, queue=4)
        held = [send_chat(public) for _ in range(4)]
        until(lambda: inside(admin) == (1, 3))
        on.configure(engine=engine, cap=3, queue=4)
        process.signal(signal.SIGHUP)
        until(lambda: inside(admin) == (3, 1))
        on.configure(engine=engine, cap=8, queue=4)
        process.signal(signal.SIGHUP)
        until(lambda: "unchanged" in process.errors)
        assert "upstreams.reasoning.admission.cap" in process.errors
        assert inside(admin) == (3, 1)
        for pair in held:
            close(*pair)
        until(lambda: inside(admin) == (0, 0))
        process.signal(signal.SIGTERM)
        assert process.code() == 0
        assert "Traceback" not in process.errors


def test_a_client_of_each_kind_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    with stage(tmp_path) as on:
        _, engine = on.engine("--tokens", "50", "--gap-ms", "5")
        process, public, admin = on.serve(engine=engine, cap=2, queue=20)

        def descriptors() -> int:
            return len(list(Path(f"/proc/{process.popen.pid}/fd").iterdir()))

        ask(public, "/v1/chat/completions", {"model": "reasoning", "stand_in": {"tokens": 1}})
        ask(admin, "/admin/status")
        before = descriptors()
        for n in range(24):
            sock, answer = send_chat(public)
            if n % 3 == 0:
                answer.readline()
            close(sock, answer)
        until(lambda: inside(admin) == (0, 0))
        # Two calls may be in flight, so two connections to the engine may stay open for reuse.
        until(lambda: descriptors() <= before + 4)
        process.signal(signal.SIGTERM)
        assert process.code() == 0


def test_the_demo_serves_and_ends(tmp_path: Path) -> None:
    with stage(tmp_path) as on:
        process = on.start("demo", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
        public, admin = process.port("public"), process.port("admin")
        until(lambda: process._lines.qsize() > 10)
        status, models = ask(public, "/v1/models")
        assert status == 200
        assert {"reasoning", "text", "ocr", "embed"} <= {model["id"] for model in models["data"]}
        assert ask(admin, "/admin/status")[1]["upstreams"]["reasoning"]["cap"] == 6
        body = {"model": "text", "messages": [], "max_tokens": 2}
        assert ask(public, "/v1/chat/completions", body)[0] == 200
        process.signal(signal.SIGINT)
        assert process.code() in (0, 130)
        assert "Traceback" not in process.errors


def test_a_log_whose_reader_has_gone_stops_nobody(tmp_path: Path) -> None:
    """`frontdoor serve 2>&1 | head -3` must go on serving."""
    made = Stage(tmp_path)
    path = made.configure()
    with subprocess.Popen(
        [sys.executable, "-m", "tornado_frontdoor.cli", "serve", "--config", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            port = int(process.stdout.readline().rsplit(":", 1)[1])
            process.stderr.close()
            for _ in range(3):
                assert ask(port, "/v1/nothing")[0] == 404
                assert ask(port, "/v1/chat/completions", {"model": "reasoning"})[0] == 503
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
