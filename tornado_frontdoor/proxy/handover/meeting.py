"""Where a front door and the one that takes its place meet: a socket in `server.state_dir`.

The one that runs listens there. The next one asks, and gets the listening sockets themselves, as
HAProxy does it: one queue of connections in the kernel for both, so that none is lost between them.
With `SO_REUSEPORT` each would have a queue of its own, and whatever waits in the first one's is
reset when that is closed.
"""

import asyncio
import json
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

LOG = logging.getLogger("frontdoor")

SOCKET_NAME = "frontdoor.sock"
PROTOCOL = 1
ASK_S = 30.0
"""How long the next one waits for its answer: what is to be on the disk is written meanwhile."""
WORD_S = 5.0
SOCKETS_MAX = 16
LINE_BYTES = 64 * 1024 * 1024


class CannotTakeOver(Exception):  # noqa: N818 - said to an operator as it stands
    """The front door that runs does not give itself up; the message says why."""


class Petition(NamedTuple):
    """A process that wants to take the place of this one."""

    connection: socket.socket
    pid: int


class Given(NamedTuple):
    """What a front door gave away: its listening sockets by their addresses, and its words."""

    connection: socket.socket
    sockets: Mapping[str, list[socket.socket]]
    rest: bytes
    """What it has said since."""
    held: bool
    """Whether a service manager holds them, too, and keeps those who connect while nobody is."""


class MeetingPoint:
    """Listens in `folder` for the process that is to take the place of this one."""

    def __init__(self, folder: Path, on_ask: Callable[[Petition], Awaitable[None]]) -> None:
        self._folder = folder
        self._on_ask = on_ask
        self._sock: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, *, instead: bool) -> None:
        """Listen, `instead` of whoever does; where that cannot be, nobody can take over."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with _reach(self._folder) as (path, descriptor):
                if not instead and _somebody_at(path):
                    LOG.info("another front door uses %s: none can take this one's place", path)
                    return
                with suppress(FileNotFoundError):
                    os.unlink(SOCKET_NAME, dir_fd=descriptor)
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                sock.bind(path)
                os.chmod(SOCKET_NAME, 0o600, dir_fd=descriptor)
        except OSError as error:
            LOG.info("nobody can take this front door's place: %s", error)
            return
        sock.listen(1)
        sock.setblocking(False)
        self._sock = sock
        asyncio.get_running_loop().add_reader(sock.fileno(), self._accept, sock)

    def close(self, *, given: bool = False) -> None:
        """Listen no more; `given`: the socket's name is the next one's by now."""
        sock, self._sock = self._sock, None
        if sock is None:
            return
        asyncio.get_running_loop().remove_reader(sock.fileno())
        sock.close()
        if not given:
            with suppress(OSError):
                (self._folder / SOCKET_NAME).unlink()

    def _accept(self, sock: socket.socket) -> None:
        with suppress(OSError):
            connection, _ = sock.accept()
            task = asyncio.get_running_loop().create_task(self._meet(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _meet(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(WORD_S):
                word = json.loads(await loop.sock_recv(connection, 4096))
            known = word["protocol"] == PROTOCOL
        except (OSError, ValueError, KeyError, TypeError, TimeoutError):
            known = False
        if not known:
            LOG.warning("somebody asked to take over and was not understood")
            refuse(connection, "it does not understand a front door of that release")
            return
        await self._on_ask(Petition(connection, _pid_of(connection)))


def refuse(connection: socket.socket, why: str) -> None:
    """Say that nothing is given away."""
    with suppress(OSError), connection:
        connection.send(json.dumps({"refused": why}).encode() + b"\n")


def give(
    connection: socket.socket, sockets: Mapping[str, list[socket.socket]], *, held: bool
) -> None:
    """Give the listening sockets; keys are the addresses as they are configured."""
    descriptors = [sock.fileno() for several in sockets.values() for sock in several]
    counts = {address: len(several) for address, several in sockets.items()}
    word = {"protocol": PROTOCOL, "sockets": counts, "held": held}
    head = json.dumps(word).encode() + b"\n"
    socket.send_fds(connection, [head], descriptors)


def ask(folder: Path) -> Given | None:
    """Ask whoever listens in `folder` for everything; None: nobody does. Raises CannotTakeOver.

    Blocks until it has answered: the process that asks has nothing else to do yet.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(ASK_S)
    try:
        with _reach(folder) as (path, _):
            connection.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    try:
        connection.sendall(json.dumps({"protocol": PROTOCOL}).encode())
        head, descriptors, _, _ = socket.recv_fds(connection, LINE_BYTES, SOCKETS_MAX)
        line, _, rest = head.partition(b"\n")
        word: Any = json.loads(line) if head else None
    except (OSError, ValueError) as error:
        connection.close()
        raise CannotTakeOver(f"the front door that runs gave no answer: {error}") from error
    if word is None:
        connection.close()
        raise CannotTakeOver("the front door that ran ended before it gave its place away")
    if "refused" in word:
        connection.close()
        raise CannotTakeOver(f"the front door that runs stays: {word['refused']}")
    left = iter(descriptors)
    sockets = {
        address: [socket.socket(fileno=next(left)) for _ in range(count)]
        for address, count in word["sockets"].items()
    }
    for sock in (one for several in sockets.values() for one in several):
        sock.setblocking(False)
        sock.set_inheritable(False)
    return Given(connection, sockets, rest, bool(word.get("held")))


@contextmanager
def _reach(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield a name of the socket that is short however long that of its folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}", descriptor
    finally:
        os.close(descriptor)


def _somebody_at(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(path)
        except OSError:
            return False
    return True


def _pid_of(connection: socket.socket) -> int:
    size = struct.calcsize("3i")
    pid: int = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )[0]
    return pid
