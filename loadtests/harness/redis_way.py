"""Ways to Redis that stall, drop, delay and refuse: TCP proxies, all on one thread of their own.

Rule 1: a delay is a latency, not a bandwidth: whatever comes is passed on that much later.
Rule 2: what is under way while a way is cut comes once it is healed, in order, as TCP has it.
Rule 3: a way that drops breaks what is open, and swallows whatever new connections say.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

Result = TypeVar("Result")

CALL_TIMEOUT_S = 10.0
LINGER_NEVER = struct.pack("ii", 1, 0)
"""Closing a socket resets the connection."""


@dataclass(slots=True)
class WayState:
    """What is wrong with a way, and what is open on it."""

    delay_s: float = 0.0
    flows: bool = True
    drops: bool = False
    pipes: set["Pipe"] = field(default_factory=set)


class RedisWay:
    """One way to a local port. Its methods may be called from any thread."""

    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, to: int) -> None:
        self.port = 0
        self._to = to
        self._state = WayState()
        self._server: asyncio.Server | None = None
        self._connecting: set[asyncio.Task[None]] = set()
        self.open()

    def open(self) -> None:
        """Take connections, at the same port as before."""
        self._run(self._open())

    def refuse(self) -> None:
        """Refuse connections from now on; those that are open stay."""
        self._do(self._close_server)

    def lead_to(self, port: int) -> None:
        """Lead to another Redis from now on; what is open breaks."""
        self._to = port
        self._do(self._break_all)

    def cut(self) -> None:
        """Let nothing through, in either direction."""
        self._state.flows = False

    def delay(self, seconds: float) -> None:
        """Let everything take so long, in either direction."""
        self._state.delay_s = seconds

    def drop(self) -> None:
        """Reset all connections; new ones are taken, and nothing they say arrives."""
        self._state.drops = True
        self._do(self._break_all)

    def heal(self) -> None:
        """Let everything through, first what was under way."""
        state = self._state
        dropped, state.drops = state.drops, False
        state.delay_s, state.flows = 0.0, True
        self._do(self._break_all if dropped else self._pump_all)

    # On the thread of the ways

    @classmethod
    def _thread(cls) -> asyncio.AbstractEventLoop:
        if cls._loop is None:
            cls._loop = asyncio.new_event_loop()
            threading.Thread(target=cls._loop.run_forever, daemon=True).start()
        return cls._loop

    def _run(self, what: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(what, self._thread()).result(CALL_TIMEOUT_S)

    def _do(self, what: Callable[[], None]) -> None:
        async def do() -> None:
            what()

        self._run(do())

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: End(self._state, self._take), "127.0.0.1", self.port
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def _close_server(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _break_all(self) -> None:
        for pipe in [*self._state.pipes]:
            pipe.reset()

    def _pump_all(self) -> None:
        for pipe in [*self._state.pipes]:
            pipe.pump()

    def _take(self, near: "End") -> None:
        if not self._state.drops:
            task = asyncio.get_running_loop().create_task(self._connect(near))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, near: "End") -> None:
        loop = asyncio.get_running_loop()
        try:
            _, far = await loop.create_connection(
                lambda: End(self._state, lambda _: None), "127.0.0.1", self._to
            )
        except OSError:
            near.pipe.reset()
            return
        near.pipe.lead_to(far.pipe)
        far.pipe.lead_to(near.pipe)


class Pipe:
    """One direction of a connection: what was read from `source` and waits to be written."""

    def __init__(self, state: WayState, source: asyncio.Transport) -> None:
        self.source = source
        self._state = state
        self._sink: asyncio.Transport | None = None
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        state.pipes.add(self)

    def lead_to(self, other: "Pipe") -> None:
        """Write to the other end of the connection from now on."""
        self._sink = other.source
        self.pump()

    def take(self, piece: bytes) -> None:
        """Take what was read."""
        if not self._state.drops:
            now = asyncio.get_running_loop().time()
            self._pieces.append((now + self._state.delay_s, piece))
            self.pump()

    def pump(self) -> None:
        """Write what is due."""
        state, pieces, loop = self._state, self._pieces, asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        while self._sink is not None and state.flows and pieces:
            wait_s = pieces[0][0] - loop.time()
            if wait_s > 0 and state.delay_s:
                self._timer = loop.call_later(wait_s, self.pump)
                return
            self._sink.write(pieces.popleft()[1])

    def end(self) -> None:
        """Take that its source has ended."""
        self._state.pipes.discard(self)
        if self._sink is not None:
            self._sink.close()

    def reset(self) -> None:
        """Break the connection, so that its end hears it at once."""
        sock = self.source.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NEVER)
        self.source.abort()


class End(asyncio.Protocol):
    """One end of a connection; `on_made` takes it when it is there."""

    pipe: Pipe

    def __init__(self, state: WayState, on_made: Callable[["End"], None]) -> None:
        self._state = state
        self._on_made = on_made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read."""
        assert isinstance(transport, asyncio.Transport)
        self.pipe = Pipe(self._state, transport)
        self._on_made(self)

    def data_received(self, data: bytes) -> None:
        """Take a piece."""
        self.pipe.take(data)

    def connection_lost(self, _: Exception | None) -> None:
        """End the other end, too."""
        self.pipe.end()
