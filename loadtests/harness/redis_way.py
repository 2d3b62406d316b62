"""One front door's way to Redis, which can be cut, slowed, and closed for a while."""

import contextlib
import socket
import threading
import time

PIECE_BYTES = 65536


class RedisWay:
    """Forwards connections to a local port; what is under way while it is cut comes later."""

    def __init__(self, to: int) -> None:
        self.delay_s = 0.0
        """How long each piece takes, in either direction."""
        self._to = to
        self._flows = threading.Event()
        self._flows.set()
        self._listener: socket.socket | None = None
        self.port = 0
        self.open()

    def open(self) -> None:
        """Take connections, at the same port as before."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Refuse connections from now on."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def cut(self) -> None:
        """Let nothing through, in either direction."""
        self._flows.clear()

    def heal(self) -> None:
        """Let everything through, first what was under way."""
        self.delay_s = 0.0
        self._flows.set()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    near.close()
                    continue
                for one, other in ((near, far), (far, near)):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := one.recv(PIECE_BYTES):
                self._flows.wait()
                if self.delay_s:
                    time.sleep(self.delay_s)
                other.sendall(piece)
        for sock in (one, other):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
