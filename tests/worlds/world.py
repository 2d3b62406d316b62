"""One world: the whole front door, its engines and its callers, from one seed.

The front door is the real one, from its listeners to libcurl, its journal and its dialects; the
engines are stand-ins, unkind where vLLM is unkind. Only the clock is virtual and the network local
(`virtual_time.py`, `network.py`). What happens is drawn beforehand as a list of acts, each with a
seed of its own: a failing world shrinks by leaving acts out.

After every turn of the loop the laws of `simulator/model/invariants.py` are looked at that can be
seen from without, of the gates that were told anything in it and of those whose deadline has come;
of all gates every few turns. The others when all is over.
"""

import asyncio
import io
import json
import logging
import math
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch  # noqa: TID251 - of the disk and of chance, which are not ours

import callers
from liar import Liar
from network import Network
from tornado.ioloop import IOLoop
from virtual_time import VirtualLoop, virtual_clock

from simulator.standin.server import StandIn, StandInOptions
from tornado_frontdoor.config import load
from tornado_frontdoor.core.decisions import EngineState
from tornado_frontdoor.core.gate import Gate
from tornado_frontdoor.proxy import app as app_module
from tornado_frontdoor.proxy.app import App
from tornado_frontdoor.proxy.gate_driver import GateDriver

LASTS_S = 60.0
ALL_EVERY_TURNS = 16
"""How often gates are looked at that nobody told anything; to any change of one there is a word."""
SPILL_FROM_BYTES = 100_000
PATIENCE_S = 600.0
"""Longer than all limits of a world together: who waits for more waits for ever."""
NEVER_SERVED = {
    *("queue_full", "queue_timeout", "client_gone_queued", "bad_request"),
    *("model_not_found", "body_too_large"),
}
DISK = 1
"""How often the journal's disk is full, to 70 who ask."""
FAULTS = (
    *("is_sleeping=hang*1", "is_sleeping=fail*1", "is_sleeping=slow:1*2", "is_sleeping=drop*1"),
    *("wake_up=slow:2*1", "wake_up=fail*1", "wake_up=mute*1", "wake_up=die*1", "wake_up=noop*1"),
    *("reload_weights=fail*1", "reload_weights=slow:3*1", "reload_weights=die_after*1"),
    *("sleep=slow:2*1", "sleep=fail*1", "sleep=mute*1", "sleep=die*1", "sleep=noop*1"),
    *("chat=slow:3*2", "chat=fail:500*1", "chat=drop*1", "chat=die*1", "chat=mute*1"),
    *("metrics=hang*1", "version=fail*1", "inference=die_on_first*1"),
)

CONFIGURATION = """
[server]
listen = "127.0.0.1:1"
admin_listen = "127.0.0.1:2"
state_dir = "state"
max_body_mib = 1
drain_timeout_s = 8
write_stall_timeout_s = 5

[upstreams.{name}]
url = "http://127.0.0.1:11"
read_timeout_s = 6
chunk_timeout_s = 3
[upstreams.{name}.admission]
slots = 8
cap = {cap}
queue = {queue}
queue_timeout_s = {queue_timeout_s}

[models.reasoning]
upstream = "{name}"
aliases = ["thinker"]

[upstreams.liar]
url = "http://127.0.0.1:13"
read_timeout_s = 6
chunk_timeout_s = 3
[upstreams.liar.admission]
slots = 8
cap = {cap}
queue = {queue}
queue_timeout_s = {queue_timeout_s}

[models.liar]
upstream = "liar"
dialect.max_model_len = 1000
"""
SLEEPER = """
[upstreams.text]
url = "http://127.0.0.1:12"
read_timeout_s = 6
chunk_timeout_s = 3
[upstreams.text.sleep]
idle_sleep_s = {idle_sleep_s}
idle_offload_s = {idle_offload_s}
hold_sleeping_s = 8
hold_offloaded_s = 15
hold_restarting_s = 20
[upstreams.text.admission]
slots = 8
cap = {cap}
queue = {queue}
queue_timeout_s = {queue_timeout_s}

[models.text]
upstream = "text"
"""


class Act(NamedTuple):
    """Something that happens from without, at an instant of the world."""

    at_s: float
    what: str
    seed: int


class LawBrokenError(AssertionError):
    """A world in which something happened that must not."""


class _Failing(sqlite3.Connection):
    """A database whose disk is full while the world says so."""

    full = False

    def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
        if self.full and sql.startswith("INSERT"):
            raise sqlite3.OperationalError("database or disk is full")
        return super().execute(sql, *rest)


class World:
    """One of them. `run` returns the trace; raises LawBrokenError, or what a part raised."""

    def __init__(self, seed: int, without: Iterable[int] = ()) -> None:
        self.rng = Random(seed)
        self.settings: dict[str, Any] = {
            "name": "reasoning",
            "cap": self.rng.randint(1, 4),
            "queue": self.rng.randint(0, 4),
            "queue_timeout_s": self.rng.choice((0.5, 3, 10)),
            "idle_sleep_s": self.rng.choice((0, 2, 5)),
            "idle_offload_s": self.rng.choice((0, 8)),
        }
        self.has_text = True
        self.release = self.rng.choice(("0.16", "0.23", "0.30", "0.33"))
        acts = draw_acts(self.rng)
        left_out = set(without)
        self.acts = [act for number, act in enumerate(acts) if number not in left_out]
        self.seed = seed
        self.loop: VirtualLoop
        self.network = Network()
        self.public, self.admin = 1, 2
        self.trace: list[str] = []
        self._troubles: list[str] = []
        self._life: asyncio.Task[None] | None = None
        self._broken: LawBrokenError | None = None
        self._told: set[GateDriver] = set()
        self._due_s: dict[GateDriver, float] = {}
        self._next_due_s = math.inf
        self._in_flight: Counter[GateDriver] = Counter()
        self._queued: Counter[GateDriver] = Counter()
        self._seen: dict[str, tuple[int, bool]] = {}
        self._deaths: Counter[str] = Counter()
        self._died: set[str] = set()
        self._sequences: Counter[str] = Counter()
        self.disk_failed = self.meddled = self._looks_slow = False
        self.happened: Counter[str] = Counter()

    # What callers are given

    def connect(self, port: int) -> Any:
        """Return a connection; raises ConnectionRefusedError."""
        return self.network.connect(port)

    def told(self, caller: int, *what: object) -> None:
        """Take note of what a caller was told."""
        *rest, last = what
        if len(what) == 4:  # status, whole, length, request id: the id is chance's, not the seed's
            if isinstance(last, str):
                assert last not in self._seen, "two answers with one request id"
                assert isinstance(what[0], int)
                self._seen[last] = what[0], bool(what[1])
            what = tuple(rest)
        self.trace.append(f"{self.loop.time():.6f} {caller} {what}")

    # The whole of it

    def run(self) -> str:
        """Let it happen; return a digest of all that was told to whom and when."""
        self.loop = VirtualLoop(Random(self.seed))
        root = logging.getLogger()
        handler = _Errors(self._troubles)
        root.addHandler(handler)
        self.loop.set_exception_handler(self._unhandled)
        with ExitStack() as stack:
            stack.callback(root.removeHandler, handler)
            stack.callback(self.loop.close)
            stack.callback(asyncio.set_event_loop, None)
            asyncio.set_event_loop(self.loop)
            stack.enter_context(virtual_clock(self.loop))
            stack.enter_context(self.network.in_place())
            stack.enter_context(patch.object(sys, "excepthook", self._uncaught))
            stack.enter_context(patch.object(app_module, "Random", lambda: Random(1)))
            stack.enter_context(patch.object(sqlite3, "connect", self._open))
            stack.enter_context(patch.object(GateDriver, "_carry_out", self._noted()))
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=_fast_folder()))
            self.path = Path(folder) / "frontdoor.toml"
            self._life = self.loop.create_task(self._live())
            try:
                self.loop.run_until_complete(self._life)
            except asyncio.CancelledError:
                assert self._broken is not None
                raise self._broken from None
        return sha256("\n".join(self.trace).encode()).hexdigest()[:16]

    async def _live(self) -> None:
        IOLoop.current().time = self.loop.time  # type: ignore[method-assign]
        quick = {"sleep_s": (0.2, 0.2), "wake_s": (0.3, 1.0), "reload_s": 0.5, "restart_s": 2.0}
        text = {"vllm": self.release, "sleep_mode": True, **quick}
        self.engines = {
            "reasoning": StandIn(StandInOptions(models=("reasoning",), port=11, restart_s=2)),
            "text": StandIn(StandInOptions(models=("text",), port=12, **text)),  # type: ignore[arg-type]
        }
        for engine in self.engines.values():
            engine.listen()
        liar = Liar(Random(self.seed))
        (sock,) = self.network.bind(13)
        server = await asyncio.start_server(liar.serve, sock=sock)
        self._write()
        self.log = io.StringIO()
        self.app = App(load(self.path), lambda: load(self.path), self.log)
        self._spill_early()
        self.app.start()
        self.loop.after_each_turn = self._look
        try:
            await self._happen()
            await self._come_to_rest()
            self._judge()
        finally:
            self.loop.after_each_turn = lambda: None
            await self.app.close()
            server.close()
            await liar.close()
            for engine in self.engines.values():
                await engine.close()
            await asyncio.sleep(0.1)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        self._hold(not left, f"tasks are left: {left}")
        self._hold(not self._troubles, "; ".join(self._troubles))

    async def _happen(self) -> None:
        tasks: list[asyncio.Task[None]] = []
        for number, act in enumerate(self.acts):
            await asyncio.sleep(max(0.0, act.at_s - self.loop.time()))
            self.happened[act.what] += 1
            tasks.append(self.loop.create_task(self._act(number, act)))
        for engine in self.engines.values():
            engine._faults.clear()
        _Failing.full = False
        tasks.append(self.loop.create_task(asyncio.sleep(0)))
        try:
            done, late = await asyncio.wait(tasks, timeout=PATIENCE_S)
            self._hold(not late, f"{len(late)} callers wait for ever: {self._state()}")
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _come_to_rest(self) -> None:
        """Law 6: in the end nobody is inside, here or at the engines; the drain finds nobody."""
        until_s = self.loop.time() + 60
        while any(self._remains().values()) and self.loop.time() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(0.25)
        remains = {name: count for name, count in self._remains().items() if count}
        self._hold(not remains, f"law 6: not at rest: {remains}; {self._state()}")
        began_s = self.loop.time()
        await self.app.drain()
        self._hold(self.loop.time() - began_s < 0.1, "a drain of nobody takes time")

    # Acts

    async def _act(self, number: int, act: Act) -> None:
        rng = Random(act.seed)
        calls: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
            "ask": callers.ask,
            "babble": callers.babble,
            "operate": callers.operate,
        }
        if act.what in calls:
            models = ["reasoning", "thinker", "text", "text", "reasoning", "text", "liar"]
            await calls[act.what](self, number, rng, models)
            return
        engine = self.engines[rng.choice(("reasoning", "text", "text"))]
        match act.what:
            case "kill":
                engine.kill(rng.choice((0.5, 3, 10)), abrupt=rng.random() < 0.5, accept_s=0)
            case "fault":
                fault = rng.choice(FAULTS)
                # It computes nothing while it answers a slow look, awake as it is.
                self._looks_slow |= fault.startswith(("is_sleeping=slow", "is_sleeping=hang"))
                engine._faults.add(fault)
            case "disk":
                self.disk_failed = _Failing.full = True
                with patch.object(self.app._bodies, "make", _no_room):
                    await asyncio.sleep(rng.choice((0.1, 4)))
                _Failing.full = False
            case "meddle":
                await self._meddle(rng)
            case "hangup":
                self._change(rng)

    async def _meddle(self, rng: Random) -> None:
        """Reach an engine past the front door."""
        self.meddled = True
        wire = await callers.dial(self, 12)
        if wire is not None:
            path = rng.choice(("/sleep?level=1", "/sleep?level=2", "/wake_up"))
            wire.writer.write(callers.request(path, b""))
            await asyncio.sleep(1)
            await wire.close()

    def _change(self, rng: Random) -> None:
        """Change the configuration and have it read again: limits, names, or what is wrong."""
        match rng.randrange(5):
            case 0:
                self.path.write_text("[server")
                self.app.reread()
                expected = "unchanged"
                self._troubles[:] = [t for t in self._troubles if not _is_fault(t, expected)]
                return
            case 1:
                self.has_text = not self.has_text or rng.random() < 0.7
            case 2:
                self.settings["name"] = rng.choice(("reasoning", "deep"))
            case _:
                self.settings["cap"] = rng.randint(1, 4)
                self.settings["queue"] = rng.randint(0, 4)
                self.settings["queue_timeout_s"] = rng.choice((0.5, 3, 10))
        self._write()
        self.app.reread()
        self._spill_early()

    def _spill_early(self) -> None:
        """Have bodies go to files that are smaller than any setting says: bytes take time."""
        self.app._bodies.spill_from_bytes = SPILL_FROM_BYTES

    def _write(self) -> None:
        text = CONFIGURATION + (SLEEPER if self.has_text else "")
        self.path.write_text(text.format_map(self.settings))

    # Laws

    def _gates(self) -> list[Gate]:
        everyone = self.app.pool.everyone()
        return [driver.gate for u in everyone for driver in (u.keeper, u.side_door)]

    def _look(self) -> None:
        """Look at the laws that hold between any two turns of the loop; end where one is broken."""
        if self._broken is None:
            try:
                self._hold_to_the_laws()
            except LawBrokenError as broken:
                self._broken = broken
                assert self._life is not None
                self._life.cancel()

    def _hold_to_the_laws(self) -> None:
        """Look after each turn, so as quickly as can be: words are made for what is broken only."""
        now_s = self.loop.time()
        everyone = self.app.pool.everyone()
        for key, engine in self.engines.items():
            sequences, before = engine._counters.sequences, self._sequences[key]
            if sequences > before:
                # Beside those who were let in there may be a canary; a lowered cap takes time.
                url = f"http://127.0.0.1:{engine.port}"
                caps = [u.keeper.gate.limits.cap or 0 for u in everyone if u.settings.url == url]
                most = max(caps, default=0) + (key == "text")
                if sequences > most:
                    self._broken_law(f"law 1: {sequences} sequences in {key}, above {most}")
            self._sequences[key] = sequences
            if engine._engine.deaths != self._deaths[key]:
                self._deaths[key] = engine._engine.deaths
                self._died.update(engine._counters.order)
        whole = self.loop.turns % ALL_EVERY_TURNS == 0 or now_s > self._next_due_s
        if not whole and not self._told:
            return
        drivers = {driver for one in everyone for driver in (one.keeper, one.side_door)}
        if whole:
            self._due_s.clear()
        else:
            drivers &= self._told
        self._told.clear()
        for driver in drivers:
            self._hold_gate(driver, now_s)
        self._next_due_s = min(self._due_s.values()) + 1e-6

    def _noted(self) -> Callable[[GateDriver, Any], None]:
        """Return what every word to a gate ends with, made to leave a note that there was one."""
        carry_out, told = GateDriver._carry_out, self._told

        def noting(driver: GateDriver, decisions: Any) -> None:
            told.add(driver)
            carry_out(driver, decisions)

        return noting

    def _hold_gate(self, driver: GateDriver, now_s: float) -> None:
        gate = driver.gate
        in_flight, queued, cap = gate.in_flight, gate.queued, gate.limits.cap
        if cap is not None and (in_flight or queued):
            taken = in_flight + gate.cooling
            # A cap that was lowered is above what runs until enough of it has ended.
            if taken > cap and in_flight > self._in_flight[driver]:
                self._broken_law(f"law 1: {in_flight} in flight above cap {cap}")
            awake = gate.state is EngineState.AWAKE
            # While the engine is not awake, all who may be inside are in the queue.
            bound = gate.limits.queue + (0 if awake else cap)
            if queued > bound and queued > self._queued[driver]:
                self._broken_law(f"law 1: {queued} queued above {bound}")
            if queued and awake:
                head = gate.waiting()[0]
                if taken + head.weight <= cap:
                    self._broken_law(f"law 3: {head} waits beside a free slot ({taken} of {cap})")
        deadline_s = gate.next_deadline()
        if deadline_s is not None and deadline_s < now_s - 1e-6:
            self._broken_law(f"law 5: a deadline of {gate.key} has passed")
        self._due_s[driver] = math.inf if deadline_s is None else deadline_s
        self._in_flight[driver], self._queued[driver] = in_flight, queued

    def _broken_law(self, what: str) -> None:
        raise LawBrokenError(f"at {self.loop.time():.3f} s: {what}")

    def _remains(self) -> dict[str, int]:
        gates = self._gates()
        return {
            "in flight": sum(gate.in_flight for gate in gates),
            "queued": sum(gate.queued for gate in gates),
            "cooling": sum(getattr(gate, "cooling", 0) for gate in gates),
            "finished twice": sum(gate.duplicate_finishes for gate in gates),
            "requests": len(self.app.door.under_way),
            "watched": len(self.app._departures),
            "files": self.app._bodies.files,
            "bytes in memory": self.app._bodies.memory.held_bytes,
            "bytes on disk": self.app._bodies.held_bytes,
            "at the engines": sum(e._counters.in_flight for e in self.engines.values()),
        }

    def _judge(self) -> None:
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        lines = [line for line in lines if "outcome" in line]
        counted = Counter(line["request_id"] for line in lines)
        self._hold(max(counted.values(), default=1) == 1, "law 4: a request with two access lines")
        for request_id, (status, whole) in self._seen.items():
            self._hold(request_id in counted, f"law 4: {request_id} ({status}) has no access line")
            (line,) = (line for line in lines if line["request_id"] == request_id)
            self._hold(line["status"] == status, f"the client saw {status}, the line says {line}")
            served = line["outcome"] == "served"
            self._hold(whole or not served or status != 200, f"served, and cut short: {line}")
        # What an engine took with it when it died may have been asked for once more, in vain.
        started = {i for engine in self.engines.values() for i in engine._counters.order}
        started -= self._died
        for line in lines:
            if line["outcome"] in NEVER_SERVED:
                reached = line["request_id"] in started
                self._hold(not reached, f"law 8: it reached the engine: {line}")
        self.happened.update(line["outcome"] for line in lines)
        if not self.meddled:
            counters = self.engines["text"]._counters
            self._hold(counters.garbage_pieces == 0, "law 7: an engine computed garbage")
            asleep = counters.not_proven_awake and not self._looks_slow
            self._hold(not asleep, "law 7: a request met a sleeping engine")
            sleeps = [c for c in counters.control_calls if c["call"] == "sleep"]
            self._hold(not any(c["in_flight"] for c in sleeps), "law 7: asleep with one inside")

    def _hold(self, condition: object, what: str) -> None:
        if not condition:
            self._broken_law(what)

    def _state(self) -> str:
        return "; ".join(
            f"{gate.key}: {gate.state.value} {gate.wake_step} "
            f"{gate.in_flight} in flight, {gate.queued} queued"
            for gate in self._gates()
        )

    # Below the front door

    def _open(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
        return sqlite3.dbapi2.connect(*arguments, factory=_Failing, **options)  # type: ignore[attr-defined, no-any-return]

    def _uncaught(self, _: object, error: BaseException, __: object) -> None:
        """Take what escaped into libcurl, which would print it and go on."""
        self._troubles.append(f"in libcurl: {error!r}")

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._troubles.append(f"{context['message']}: {context.get('exception')!r}")


class _Errors(logging.Handler):
    """Keeps what is logged as an error: nothing that happens here may end up there."""

    def __init__(self, troubles: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._troubles = troubles

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record's text."""
        self._troubles.append(logging.Formatter().format(record))


def _no_room() -> int:
    raise OSError(28, "No space left on device")


def _is_fault(text: str, expected: str) -> bool:
    return expected in text or "frontdoor.toml" in text


def _fast_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - the disk is not tried


def draw_acts(rng: Random) -> list[Act]:
    """Draw what happens: mostly people who ask, in crowds and alone."""
    kinds = ("ask", "babble", "operate", "kill", "fault", "disk", "meddle", "hangup")
    weights = (70, 6, 8, 3, 6, DISK, 1 if rng.random() < 0.3 else 0, 5)
    acts: list[Act] = []
    now_s = 0.0
    while now_s < LASTS_S and len(acts) < 60:
        now_s += rng.choice((0, 0, 0.001, 0.1, 1, 4, 9))
        (what,) = rng.choices(kinds, weights)
        acts.append(Act(now_s, what, rng.getrandbits(32)))
    return acts
