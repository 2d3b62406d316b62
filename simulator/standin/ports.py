"""Where a stand-in meets the world: an HTTP exchange, and the clock that drives its engine.

Everything but `exchange.py` and `stand_in.py` knows only these, and no server.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol


class HttpExchange(Protocol):
    """One HTTP exchange, as far as it concerns an answer."""

    request_id: str
    method: str
    path: str
    host: str
    body: bytes
    content_type: str

    @property
    def query(self) -> Mapping[str, Sequence[str]]:
        """Return the query, with every value of a repeated name."""
        ...

    def answer(
        self,
        status: int,
        body: bytes = ...,
        content_type: str = ...,
        headers: tuple[tuple[str, str], ...] = ...,
    ) -> None:
        """Answer as a whole."""
        ...

    def begin_stream(self) -> None:
        """Send 200 and the head of an event stream."""
        ...

    def send(self, events: list[bytes]) -> None:
        """Send each event as one chunk."""
        ...

    def end_stream(self) -> None:
        """End the stream properly."""
        ...

    def cut(self) -> None:
        """Close the connection, whatever was sent."""
        ...

    @property
    def blocked(self) -> bool:
        """Whether the client is behind with reading."""
        ...

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call back once when it has caught up."""
        ...

    def when_gone(self, callback: Callable[[], None]) -> None:
        """Call back once when the client leaves before its answer is complete."""
        ...


class EngineDriver(Protocol):
    """What moves the engine model on."""

    def now(self) -> float:
        """Return the engine's time, having moved it on to the present."""
        ...

    def pump(self) -> None:
        """Carry out what has become due."""
        ...

    def created_s(self) -> int:
        """Return the wall clock, for `created`."""
        ...


class Host(EngineDriver, Protocol):
    """What a stand-in's process does beside driving its engine."""

    started_s: float
    """The wall clock when the engine's process began."""

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back after some seconds."""
        ...

    def kill(self, restart_s: float | None, *, abrupt: bool, accept_s: float) -> None:
        """Let the engine die, now."""
        ...
