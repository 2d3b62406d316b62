"""The network of a world: listeners and connections of the local family, by host and port.

The real listeners, the real libcurl and the clients of the world all come here for their sockets.
Whoever connects where nobody listens is refused; all else is the kernel's.

libcurl knows the machine's clock alone. What it wants to be woken for later (its limit for
connecting) is left out: these connections are there at once, and its reckoning of what is left of
such a limit, in whole milliseconds, would make a world depend on how busy the machine is.
"""

import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch  # noqa: TID251 - of sockets, which are not ours

import pycurl

_WORLDS = itertools.count()


class _Listening(socket.socket):
    """A local socket that gives itself out for one of the internet."""

    address = ("", 0)

    def getsockname(self) -> tuple[str, int]:
        return self.address


class _Handed:
    """A connection for libcurl, which copies the descriptor: ours is closed as it is let go."""

    def __init__(self, made: socket.socket) -> None:
        self._descriptor = made.detach()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)


class Network:
    """Everybody's sockets in one world."""

    def __init__(self) -> None:
        self._name = f"\0frontdoor-{os.getpid()}-{next(_WORLDS)}"
        self._ports = itertools.count(1000)

    def bind(self, port: int, address: str = "", **options: Any) -> list[socket.socket]:
        """Listen, as Tornado's `bind_sockets` does."""
        listening = _Listening(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.address = (address, port or next(self._ports))
        listening.bind(f"{self._name}-{listening.address[1]}")
        listening.setblocking(False)
        listening.listen(options.get("backlog", 128))
        return [listening]

    def connect(self, port: int) -> socket.socket:
        """Return a connection; raises ConnectionRefusedError."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.connect(f"{self._name}-{port}")
        except OSError as error:
            made.close()
            raise ConnectionRefusedError(str(error)) from error
        made.setblocking(False)
        return made

    def open_for_curl(self, _purpose: int, address: Any) -> Any:
        """Return a connection to where libcurl wants to go, or what tells it that there is none."""
        try:
            return _Handed(self.connect(address.addr[1]))
        except ConnectionRefusedError:
            return pycurl.SOCKET_BAD

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Have front door, engines and libcurl take their sockets from here."""
        from simulator.standin import server
        from tornado_frontdoor.proxy.curl import client
        from tornado_frontdoor.proxy.downstream import server as public

        def make_handle() -> Any:
            handle = make()
            handle.setopt(pycurl.OPENSOCKETFUNCTION, self.open_for_curl)
            handle.setopt(pycurl.SOCKOPTFUNCTION, lambda *_: pycurl.SOCKOPT_ALREADY_CONNECTED)
            return handle

        make = client.Handle
        with ExitStack() as stack:
            stack.enter_context(patch.object(public, "bind_sockets", self.bind))
            stack.enter_context(patch.object(server, "bind_sockets", self.bind))
            stack.enter_context(patch.object(client, "Handle", make_handle))
            stack.enter_context(patch.object(client.UpstreamClient, "_arm", lambda *_: None))
            yield
