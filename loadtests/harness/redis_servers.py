"""A real Redis, installed where it is missing: killed, stopped, followed by a replica that lags."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable

from loadtests.harness.processes import BrokenError, Child, Stage, wait_for

START_TIMEOUT_S = 30.0
PROGRAMS = ("redis-server", "valkey-server")
INSTALL = (("apt-get", "update"), ("apt-get", "install", "--yes", "redis-server"))


def find_program(say: Callable[[str], None]) -> str:
    """Return a Redis server's program, which is installed if it has to be; raises BrokenError."""
    if found := _program():
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        say("redis-server is not installed: installing it with apt-get")
        # At runlevel 1 no service is started.
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        for command in INSTALL:
            subprocess.run(command, env=environment, capture_output=True, check=False)  # noqa: S603
        if found := _program():
            return found
        raise BrokenError("redis-server is not installed, and apt-get could not; nothing was tried")
    raise BrokenError(
        "redis-server is not installed, and only root can with apt-get: "
        "sudo apt-get install redis-server; nothing was tried"
    )


def _program() -> str | None:
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class RedisServer:
    """One server, without files of its own; `follows`: the port of the one whose replica it is."""

    def __init__(self, stage: Stage, name: str, program: str, follows: int | None = None) -> None:
        self.port = free_port()
        self._stage = stage
        self._name = name
        self._starts = 0
        # Elsewhere than the reports: a replica writes down what it is sent.
        self._command = [
            *(program, "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--save", "", "--appendonly", "no", "--dir", tempfile.gettempdir()),
            *("--dbfilename", f"{name}-{self.port}.rdb", "--repl-diskless-load", "swapdb"),
            *("--repl-diskless-sync-delay", "0"),
        ]
        if follows is not None:
            self._command += ["--replicaof", f"127.0.0.1 {follows}"]
        self.child: Child
        self.start()

    def start(self) -> None:
        """Start it, empty."""
        self._starts += 1
        self.child = self._stage.start(f"{self._name}-{self._starts}", self._command)
        if not wait_for(lambda: self.ask("PING") == "+PONG", START_TIMEOUT_S):
            raise BrokenError(f"redis-server did not start: {self.child.out.read_text()[-500:]}")

    def stop(self) -> None:
        """End it."""
        self._stage.stop(self.child)

    def ask(self, command: str) -> str:
        """Return the first line of what it answers; nothing where it does not."""
        with contextlib.suppress(OSError):
            connection = socket.create_connection(("127.0.0.1", self.port), 2)
            with connection, connection.makefile("rw", newline="\r\n") as file:
                file.write(f"{command}\n")
                file.flush()
                return file.readline().strip()
        return ""

    def value(self, section: str, name: str) -> str:
        """Return one value of what it tells of itself."""
        with contextlib.suppress(OSError):
            connection = socket.create_connection(("127.0.0.1", self.port), 2)
            with connection, connection.makefile("rw", newline="\r\n") as file:
                file.write(f"INFO {section}\nQUIT\n")
                file.flush()
                lines = (line.strip().partition(":") for line in file)
                return next((value for key, _, value in lines if key == name), "")
        return ""


def free_port() -> int:
    """Return a port on which nobody listens now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
