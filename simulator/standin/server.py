"""A stand-in for a vLLM server: its HTTP surface over the model engine, for tests and demos.

    stand_in = StandIn(StandInOptions(models=("reasoning",), slots=8, hold=2))
    port = stand_in.listen()        # on the running loop; port 0 picks a free one
    ...
    await stand_in.close()

It answers the OpenAI routes of vLLM, `/v1/messages`, and with `sleep_mode` the development routes
(`control.py`); `replies.py` has what one request can order, `faults.py` what can go wrong with
calls. Beside vLLM's routes:

    GET  /stand-in/stats     the counters (`counters.py`), deaths, and what the engine truly is
    GET  /stand-in/history   when sequences came and went, by the monotonic clock, since the reset
    POST /stand-in/reset     counters and faults begin anew; what is in flight stays
    POST /stand-in/faults    {"spec": "wake_up=fail*1", "clear": true}: more rules, now
    POST /stand-in/kill      {"restart_s": 2, "abrupt": false, "accept_s": 0}: the engine dies;
                             abrupt cuts connections, otherwise streams end in vLLM's error event;
                             after the restart connections are accepted but not served for accept_s

A dead engine's port refuses connections until the engine is back, awake.
"""

import asyncio
import itertools
import random
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.netutil import bind_sockets

from simulator.standin.counters import Counters
from simulator.standin.dev_routes import Control
from simulator.standin.disconnects import ClientWatcher
from simulator.standin.engine import EngineModel, Kind, ModelEvent, Times
from simulator.standin.exchange import WebExchange
from simulator.standin.faults import Faults
from simulator.standin.inference import Inference
from simulator.standin.options import StandInOptions
from simulator.standin.releases import profile_of
from simulator.standin.requests import Defaults, ServiceTime
from simulator.standin.routes import StandInRoutes

__all__ = ["StandIn", "StandInOptions", "run"]

MAX_BODY_BYTES = 256 * 2**20


class StandIn:
    """One stand-in on the running loop."""

    def __init__(self, options: StandInOptions) -> None:
        self.options = options
        self.port = 0
        self._loop = asyncio.get_running_loop()
        self.started_s = _wall_clock_s()
        self._log: TextIO | None = None
        if options.log is not None:
            self._log = Path(options.log).open("a", encoding="utf-8")  # noqa: SIM115 - see close
        self._counters = Counters(self._log, self._loop.time)
        self._faults = Faults(options.faults)
        self._departures = ClientWatcher(self._loop)
        self._engine = EngineModel(
            options.slots,
            profile=profile_of(options.vllm),
            times=Times(
                sleep_s=options.sleep_s,
                wake_s=options.wake_s,
                reload_s=options.reload_s,
                restart_s=options.restart_s,
            ),
            speed=options.speed or (lambda batch: 1 / (1 + options.slowdown * (batch - 1))),
            prefill=options.prefill,
            part=options.gpu_part,
        )
        defaults = Defaults(
            options.models, options.tokens, options.gap_ms / 1000, options.max_model_len
        )
        hold = ServiceTime.parse(options.hold), random.Random(options.seed)
        self._inference = Inference(
            self._engine,
            self._counters,
            self._faults,
            self,
            defaults,
            hold,
            options.max_num_queued_reqs,
        )
        self._control = Control(self._engine, self._counters, self._faults, self)
        self._numbers = itertools.count(1)
        self._routes = StandInRoutes(
            options,
            self._engine,
            self._counters,
            self._faults,
            self._inference,
            self._control,
            self,
        )
        self._server: HTTPServer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._backlog: list[ModelEvent] = []
        self._pumping_at_s: float | None = None
        self._abrupt = False
        self._accept_s = 0.0
        self._parked: list[WebExchange] | None = None
        self._closing: asyncio.Task[None] | None = None

    # Life.

    def listen(self, port: int | None = None, host: str | None = None) -> int:
        """Accept connections, at one address at a time; return the port.

        Raises OSError when that is taken.
        """
        assert self._server is None, f"it listens already, on port {self.port}"
        host = self.options.host if host is None else host
        sockets = bind_sockets(self.options.port if port is None else port, host)
        self.port = sockets[0].getsockname()[1]
        self._host = host
        self._server = _OrderedServer(
            self._on_request,
            idle_connection_timeout=self.options.keep_alive_s,
            max_body_size=MAX_BODY_BYTES,
            max_buffer_size=MAX_BODY_BYTES,
        )
        self._server.add_sockets(sockets)
        return self.port

    async def close(self) -> None:
        """Stop at once: connections are cut, nothing is left behind on the loop."""
        if self._timer is not None:
            self._timer.cancel()
        self._inference.on_death(abrupt=True)
        server, self._server = self._server, None
        if server is not None:
            server.stop()
            await server.close_all_connections()
        if self._closing is not None:
            await self._closing
        self._departures.close()
        if self._log is not None:
            self._log.close()

    # What drives the engine.

    def now(self) -> float:
        """Return monotonic seconds; everything that was due before has happened."""
        if self._pumping_at_s is not None:
            return self._pumping_at_s
        now = self._loop.time()
        self._backlog += self._engine.advance(now)
        return now

    def created_s(self) -> int:
        """Return the wall clock in seconds."""
        return int(_wall_clock_s())

    def pump(self) -> None:
        """Carry out what has become due, then set the one timer for what comes next."""
        if self._pumping_at_s is not None:
            return
        self._pumping_at_s = now = self.now()
        try:
            while events := self._take(now):
                for event in events:
                    self._carry_out(event)
                self._inference.flush()
        finally:
            self._pumping_at_s = None
        self._arm()

    def _take(self, now: float) -> list[ModelEvent]:
        events = self._backlog + self._engine.advance(now)
        self._backlog = []
        return events

    def _carry_out(self, event: ModelEvent) -> None:
        match event.kind:
            case Kind.ANSWERED:
                self._control.on_answer(event)
            case Kind.DIED:
                self._die()
            case Kind.RESTARTED:
                self._come_back()
            case _:
                self._inference.on_event(event)

    def _arm(self) -> None:
        deadline = self._engine.next_deadline()
        if self._timer is not None:
            if self._timer.when() <= deadline and not self._timer.cancelled():
                return  # it fires early and arms again: cheaper than a new one each time
            self._timer.cancel()
            self._timer = None
        if deadline < float("inf"):
            self._timer = self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.pump()

    def _die(self) -> None:
        self._inference.on_death(abrupt=self._abrupt)
        self._abrupt = False
        server, self._server = self._server, None
        if server is not None:
            server.stop()
            self._closing = self._loop.create_task(_close(server))

    def _come_back(self) -> None:
        self._faults.fresh = True
        self.started_s = _wall_clock_s()
        self.listen(self.port, self._host)
        if self._accept_s > 0:
            self._parked = []
            self._loop.call_later(self._accept_s, self._serve_parked)
            self._accept_s = 0.0

    def _serve_parked(self) -> None:
        parked, self._parked = self._parked, None
        for exchange in parked or ():
            self._routes.serve(exchange)

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back after some seconds."""
        self._loop.call_later(seconds, callback)

    def kill(self, restart_s: float | None, *, abrupt: bool, accept_s: float) -> None:
        """Let the engine die, now."""
        self._abrupt, self._accept_s = abrupt, accept_s
        self._engine.kill(self.now(), restart_s=restart_s)
        self.pump()

    def _on_request(self, request: HTTPServerRequest) -> None:
        exchange = WebExchange(
            request, next(self._numbers), self._departures, self.options.notice_ms / 1000
        )
        if self._parked is not None:
            self._parked.append(exchange)
        else:
            self._routes.serve(exchange)


def _wall_clock_s() -> float:
    return datetime.now(UTC).timestamp()


class _InOrder(dict[object, None]):
    """A set that goes by the order of arrival, as far as Tornado needs one."""

    def add(self, item: object) -> None:
        """Take an item."""
        self[item] = None

    remove = dict.__delitem__


class _OrderedServer(HTTPServer):
    """Closes its connections in the order they came.

    Tornado keeps them in a set, whose order is another in each process: a death of the engine would
    not be the same one each time.
    """

    def initialize(self, *arguments: Any, **options: Any) -> None:
        """Set up as Tornado does."""
        super().initialize(*arguments, **options)
        self._connections = _InOrder()  # type: ignore[assignment]


async def _close(server: HTTPServer) -> None:
    await asyncio.sleep(0.01)  # the last words of streams are on their way
    await server.close_all_connections()


def run(options: StandInOptions) -> int:
    """Serve until SIGTERM (0) or Ctrl-C (130); 1 when it cannot listen, said on stderr."""
    return asyncio.run(_run(options))


async def _run(options: StandInOptions) -> int:
    stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        asyncio.get_running_loop().add_signal_handler(number, _stop, stopped, code)
    try:
        stand_in = StandIn(options)
    except OSError as error:
        print(f"frontdoor stand-in: cannot write {options.log}: {error.strerror}", file=sys.stderr)
        return 1
    try:
        port = stand_in.listen()
        print(f"listening stand-in http://{options.host}:{port}", flush=True)
        return await stopped
    except OSError as error:
        where = f"{options.host}:{options.port}"
        print(f"frontdoor stand-in: cannot listen on {where}: {error.strerror}", file=sys.stderr)
        return 1
    finally:
        await stand_in.close()


def _stop(stopped: asyncio.Future[int], code: int) -> None:
    if not stopped.done():
        stopped.set_result(code)
