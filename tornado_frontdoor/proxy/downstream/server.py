"""A listening socket whose connections are bounded, and which outlives a lack of descriptors.

At the bound, room is made by closing who has been waiting longest with nothing to show (see
`Listener.make_room`); where nobody is, newcomers wait in the kernel's backlog. When the system has
no descriptor left, accepting pauses and one line says so: Tornado's own accept loop would raise on
every turn, write a traceback each time and leave no processor for anybody.
"""

import asyncio
import errno
import logging
import os
import socket
from ssl import SSL_ERROR_EOF, SSLContext, SSLEOFError, SSLError

from tornado.iostream import IOStream, SSLIOStream
from tornado.netutil import bind_sockets, ssl_wrap_socket
from tornado.tcpserver import TCPServer

from tornado_frontdoor.config import Address
from tornado_frontdoor.proxy.downstream.http1 import ClientConnection, Delegate
from tornado_frontdoor.proxy.downstream.streams import FedStream, FedTlsStream

LOG = logging.getLogger("frontdoor")

BACKLOG = 1024
"""Connections that the kernel may keep for us: a crowd comes in one instant."""
ACCEPTED_AT_ONCE = 128
"""Then the loop looks after the others."""
PAUSE_S = 0.25
"""How often a full or starved listener looks whether it is better."""
_STARVED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class CannotBind(Exception):  # noqa: N818 - said to an operator as it stands
    """An address cannot be bound; the message says which and why."""


def bind(name: str, address: Address) -> list[socket.socket]:
    """Return sockets that listen at an address; raises CannotBind, which names the listener."""
    try:
        return bind_sockets(address.port, address.host, backlog=BACKLOG)
    except OSError as error:
        why = "it is in use" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
        if isinstance(error, socket.gaierror):
            why = "its host is not known"
        raise CannotBind(f"cannot listen on {address} ({name} listener): {why}") from error


class ConnectionHost:
    """Whose connections they are: begins requests on them, closes one that can be spared."""

    def __init__(self) -> None:
        self.connections: dict[ClientConnection, None] = {}
        """In the order they came, so that whatever is done to all of them is done in that order."""

    @property
    def max_connections(self) -> int:
        """How many there may be."""
        raise NotImplementedError

    def make_room(self) -> bool:
        """Close a connection that shows nothing; False: all are at work."""
        raise NotImplementedError

    def handshake_failed(self) -> None:
        """Take that somebody did not get through with TLS."""
        raise NotImplementedError

    def start_request(self, connection: ClientConnection) -> Delegate:
        """Return who takes the next request of a connection."""
        raise NotImplementedError

    def is_idle(self, connection: ClientConnection) -> None:
        """Take that a connection awaits a request."""
        raise NotImplementedError

    def on_close(self, connection: ClientConnection) -> None:
        """Take that a connection is over."""
        raise NotImplementedError


class Server(TCPServer):
    """Accepts connections for a host, `max_connections` of them at once at most."""

    def __init__(self, name: str, host: ConnectionHost, tls: SSLContext | None = None) -> None:
        super().__init__(ssl_options=tls)
        self._name = name
        self._host = host
        self._tls = tls
        self._listening: list[socket.socket] = []
        self._paused: asyncio.TimerHandle | None = None
        self._starving = False

    def add_socket(self, sock: socket.socket) -> None:
        """Accept what comes to a listening socket."""
        self._listening.append(sock)
        self._watch()

    @property
    def sockets(self) -> list[socket.socket]:
        """The sockets on which it listens."""
        return [*self._listening]

    def hold(self) -> None:
        """Accept nobody for now: who comes waits in the kernel's queue, for whoever accepts."""
        self._unwatch()
        if self._paused is not None:
            self._paused.cancel()

    def stop(self) -> None:
        """Accept no more; connections that are open stay."""
        self._unwatch()
        if self._paused is not None:
            self._paused.cancel()
        for sock in self._listening:
            sock.close()
        self._listening.clear()

    async def close_all_connections(self) -> None:
        """Close every connection and wait for it to be over."""
        for connection in list(self._host.connections):
            connection.stream.close()
        while self._host.connections:  # noqa: ASYNC110 - each is over after a turn of the loop
            await asyncio.sleep(0)

    def _handle_connection(self, connection: socket.socket, address: tuple[object, ...]) -> None:
        """Serve a connection: on streams of our own, for the rest as Tornado does."""
        try:
            if self._tls is None:
                stream = FedStream(connection)
            else:
                stream = FedTlsStream(
                    ssl_wrap_socket(
                        connection, self._tls, server_side=True, do_handshake_on_connect=False
                    )
                )
        except SSLError as error:
            if error.args[0] != SSL_ERROR_EOF:
                raise
            connection.close()
        except OSError as error:  # closed as soon as it was made, by a scan of ports
            if error.errno not in (errno.ECONNABORTED, errno.EINVAL):
                raise
            connection.close()
        else:
            self.handle_stream(stream, address)

    def handle_stream(self, stream: IOStream, address: tuple[object, ...]) -> None:
        """Serve a connection that Tornado has made."""
        assert isinstance(stream, FedStream)
        peer = str(address[0]) if address else ""
        self._host.connections[ClientConnection(stream, peer, self._host)] = None
        if isinstance(stream, SSLIOStream):
            stream.wait_for_handshake().add_done_callback(self._shook_hands)

    def _shook_hands(self, handshake: "asyncio.Future[SSLIOStream]") -> None:
        error = None if handshake.cancelled() else handshake.exception()
        # Whoever only looks whether the port is open says nothing, and is none of these.
        if isinstance(error, SSLError) and not isinstance(error, SSLEOFError):
            self._host.handshake_failed()

    # Accepting

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        for sock in self._listening:
            loop.add_reader(sock.fileno(), self._accept, sock)

    def _unwatch(self) -> None:
        loop = asyncio.get_running_loop()
        for sock in self._listening:
            loop.remove_reader(sock.fileno())

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if (
                len(self._host.connections) >= self._host.max_connections
                and not self._host.make_room()
            ):
                self._pause(f"all {self._host.max_connections} connections are at work")
                return
            try:
                connection, address = sock.accept()
            except BlockingIOError:
                self._starving = False
                return
            except ConnectionAbortedError:
                continue  # closed while it waited to be accepted
            except OSError as error:
                if error.errno not in _STARVED:
                    raise
                self._host.make_room()
                self._pause(f"no descriptor is left ({error.strerror})")
                return
            connection.setblocking(False)
            self._handle_connection(connection, address)

    def _pause(self, why: str) -> None:
        if not self._starving:
            self._starving = True
            LOG.warning("%s listener: %s; new connections wait", self._name, why)
        self._unwatch()
        self._paused = asyncio.get_running_loop().call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._paused = None
        self._watch()
