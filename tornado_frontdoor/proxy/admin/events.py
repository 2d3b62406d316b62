"""What happens, as it happens, for whoever looks: one stream of server-sent events a viewer.

A viewer gets a `snapshot` first, then `request`, `engine`, `queue` and `log` events, a few writes a
second whatever the rate. Ids let one that was cut off resume with the requests it has missed. One
that reads too slowly misses events and gets a new snapshot. Nobody looks: nothing is made.
"""

import asyncio
import json
from collections import deque
from collections.abc import Iterable, Sequence
from secrets import token_hex
from time import monotonic
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import asdict

from tornado_frontdoor.proxy.downstream.client import Client
from tornado_frontdoor.proxy.records import AccessLine

REQUESTS_KEPT = 300
TICK_S = 0.2
SIGN_OF_LIFE_S = 15.0
HISTORY_S = 10.0
_HEADERS = (
    ("Content-Type", "text/event-stream; charset=utf-8"),
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),
)

Fields = dict[str, Any]


class Observable(Protocol):
    """What there is to see."""

    def engines(self) -> dict[str, Fields]:
        """Return each upstream as `/admin/status` has it."""
        ...

    def together(self) -> Fields:
        """Return what concerns all engines: `gpus`, `cluster`; None where there is no such."""
        ...

    def queues(self) -> dict[str, list[Fields]]:
        """Return who is inside each upstream, those who wait by their places."""
        ...

    def log_lines(self) -> Iterable[str]:
        """Return the last lines of the log that are no request's."""
        ...

    def history(self) -> list[Fields]:
        """Return the last hours by the minute."""
        ...

    def config(self) -> Sequence[Sequence[str]]:
        """Return the configuration in force: the same object while it is the same."""
        ...

    def rest(self) -> Fields:
        """Return what else a snapshot has."""
        ...


class Viewer:
    """One client that looks."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.behind = False
        self.stale = False
        """It has missed events: a snapshot is due."""

    def send(self, data: bytes) -> None:
        """Send a piece; a viewer that falls behind gets nothing more until it has caught up."""
        if not self.client.write(data):
            self.behind = True


class _Ended(Struct):
    """A request that ended; encoded once, when somebody wants it."""

    number: int
    line: AccessLine
    encoded: str | None = None

    def text(self) -> str:
        """Return its line as JSON."""
        if self.encoded is None:
            self.encoded = json.dumps(asdict(self.line))
        return self.encoded


class EventHub:
    """Keeps the last requests and tells viewers what happens."""

    def __init__(self, source: Observable) -> None:
        self._source = source
        self._start = token_hex(4)
        self._number = 0
        self._requests: deque[_Ended] = deque(maxlen=REQUESTS_KEPT)
        self._viewers: set[Viewer] = set()
        self._pending: list[bytes] = []
        self._engines: dict[str, Fields] = {}
        self._queues: dict[str, list[Fields]] = {}
        self._together: Fields = {}
        self._config: Sequence[Sequence[str]] = ()
        self._last_line: str | None = None
        self._sent_s = self._history_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._viewers)

    def happened(self, kind: str, told: Any) -> None:
        """Take an event: a request that ended, or another state of an engine."""
        self._number += 1
        if kind == "request":
            ended = _Ended(self._number, told)
            self._requests.append(ended)
            if self._viewers:
                self._pending.append(self._frame(kind, ended.text(), self._number))
        elif self._viewers:
            self._pending.append(self._frame(kind, json.dumps(told), self._number))

    def join(self, client: Client, last_id: str | None) -> None:
        """Show a client what is and what happens until it leaves."""
        viewer = Viewer(client)
        client.on_gone = lambda: self._leave(viewer)
        client.on_drained = lambda: self._caught_up(viewer)
        client.open(200, _HEADERS, None)
        if not self._viewers:
            self._engines, self._queues = self._source.engines(), self._source.queues()
            self._together, self._config = self._source.together(), self._source.config()
            self._last_line = next(iter(reversed([*self._source.log_lines()])), None)
            self._arm()
        self._flush()
        self._viewers.add(viewer)
        missed = self._missed(last_id)
        if missed is None:
            viewer.send(self._snapshot())
        else:
            viewer.send(self._snapshot(with_requests=False) + b"".join(missed))

    def close(self) -> None:
        """Let everybody go."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for viewer in [*self._viewers]:
            viewer.client.finish()
        self._viewers.clear()

    # How

    def _leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)
        if not self._viewers:
            self._pending.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _caught_up(self, viewer: Viewer) -> None:
        viewer.behind, viewer.stale = False, True

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._look()
        self._flush()
        if self._viewers:
            self._arm()

    def _look(self) -> None:
        """Make events of what has changed since the last look."""
        engines, queues = self._source.engines(), self._source.queues()
        for name, engine in engines.items():
            if _steady(engine) != _steady(self._engines.get(name, {})):
                self._tell("engine", {"upstream": name, **engine})
        for name, inside in queues.items():
            before = self._queues.get(name, [])
            if [*map(_progress, inside)] != [*map(_progress, before)]:
                self._tell("queue", {"upstream": name, "inside": inside})
        self._engines, self._queues = engines, queues
        together = self._source.together()
        for name, value in together.items():
            if _steady(value) != _steady(self._together.get(name)):
                self._tell(name, {"now": value})
        self._together = together
        config = self._source.config()
        if config is not self._config:
            self._config = config
            self._tell("config", {"config": config})
        if monotonic() - self._history_s > HISTORY_S:
            self._history_s = monotonic()
            self._tell("history", {"minutes": self._source.history()[-2:]})
        fresh = self._fresh_lines()
        if fresh:
            self._last_line = fresh[0]
            self._tell("log", {"lines": fresh[::-1]})

    def _fresh_lines(self) -> list[str]:
        """Return the lines of the log since the last look, newest first."""
        fresh: list[str] = []
        for line in reversed([*self._source.log_lines()]):
            if line is self._last_line:
                break
            fresh.append(line)
        return fresh

    def _flush(self) -> None:
        data = b"".join(self._pending)
        self._pending.clear()
        now_s = monotonic()
        if not data and now_s - self._sent_s > SIGN_OF_LIFE_S:
            data = b":\n\n"
        if data:
            self._sent_s = now_s
        snapshot = b""
        for viewer in [*self._viewers]:
            if viewer.behind:
                continue
            if viewer.stale:
                viewer.stale = False
                snapshot = snapshot or self._snapshot()
                viewer.send(snapshot)
            elif data:
                viewer.send(data)

    def _missed(self, last_id: str | None) -> list[bytes] | None:
        """Return the requests that ended after an id; None where that cannot be known."""
        start, _, number = (last_id or "").partition("-")
        if start != self._start or not number.isdecimal():
            return None
        seen = int(number)
        kept = self._requests
        if len(kept) == REQUESTS_KEPT and kept[0].number > seen + 1:
            return None
        return [self._frame("request", one.text(), one.number) for one in kept if one.number > seen]

    def _snapshot(self, *, with_requests: bool = True) -> bytes:
        """Return a snapshot; without requests: those that the viewer has are still good."""
        snapshot = {
            "engines": self._source.engines(),
            "queues": self._source.queues(),
            **self._source.together(),
            "log": [*self._source.log_lines()],
            "history": self._source.history(),
            **self._source.rest(),
        }
        requests = f"[{','.join(one.text() for one in self._requests)}]"
        text = f'{{"requests": {requests if with_requests else "null"}, {json.dumps(snapshot)[1:]}'
        return self._frame("snapshot", text, self._number)

    def _tell(self, kind: str, fields: Fields) -> None:
        self._pending.append(self._frame(kind, json.dumps(fields)))

    def _frame(self, kind: str, text: str, number: int | None = None) -> bytes:
        mark = "" if number is None else f"id: {self._start}-{number}\n"
        return f"{mark}event: {kind}\ndata: {text}\n\n".encode()


def _progress(inside: Fields) -> tuple[Any, ...]:
    """Return what of a request under way a viewer has to hear of."""
    return inside["request_id"], inside["state"], inside["replica"], inside["first_byte_s"]


def _steady(value: Any) -> Any:
    """Return a value without what changes by itself in it."""
    if isinstance(value, dict):
        return {name: _steady(one) for name, one in value.items() if name not in _BY_THEMSELVES}
    return [_steady(one) for one in value] if isinstance(value, list) else value


_BY_THEMSELVES = frozenset(
    {"last_activity_s", "oldest_wait_s", "since_s", "waits_s", "transition_s", "left_s"}
)
