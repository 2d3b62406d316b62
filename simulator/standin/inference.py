"""Requests inside a stand-in: from the body to the last byte, in step with the model engine.

Rule 1: the engine model decides when anything happens; here it is only told to the client.
Rule 2: a request is counted as ended before its last byte goes out, and its slot is free by then.
Rule 3: an answer is produced no faster than its client reads it.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import assert_never

from simulator.standin.counters import Counters
from simulator.standin.encoders import (
    DEAD,
    Chat,
    Completion,
    Encoder,
    dumps,
    error_document,
)
from simulator.standin.engine import EngineModel, Kind, ModelEvent
from simulator.standin.faults import FaultRule, Faults
from simulator.standin.named_events import Messages, Responses
from simulator.standin.other_endpoints import pooled
from simulator.standin.ports import EngineDriver, HttpExchange
from simulator.standin.requests import Ask, BadCall, Defaults, Dialect, Script, ServiceTime, read

BLOCK_BYTES = 65_536
"""Most that is handed to a connection before asking again whether its client keeps up."""
BUSY = "The engine is currently busy. Please retry later."


@dataclass(slots=True, eq=False)
class Inside:
    """One request inside."""

    exchange: HttpExchange
    ask: Ask
    encoder: Encoder | None
    fault: FaultRule
    started: bool = False
    live: bool = True
    sent: int = 0
    """Parts sent so far: the opening, then the chunks."""
    pending: deque[bool] = field(default_factory=deque)
    """Parts that are due, each with whether it is garbage."""
    finish: str | None = None
    garbage: bool = False
    waits_for_reader: bool = False


_FATAL = ("die_on_first", "die_after")
_VOICES: dict[str, Callable[[Ask, str, int], Encoder]] = {
    "chat": Chat,
    "completions": Completion,
    "responses": Responses,
    "messages": Messages,
}


class Inference:
    """All requests inside one stand-in."""

    def __init__(
        self,
        engine: EngineModel,
        counters: Counters,
        faults: Faults,
        drive: EngineDriver,
        defaults: Defaults,
        hold: tuple[ServiceTime, random.Random],
        max_inside: int | None,
    ) -> None:
        self._engine = engine
        self._counters = counters
        self._faults = faults
        self._drive = drive
        self._defaults = defaults
        self._service_time, self._rng = hold
        self._max_inside = max_inside
        self._live: dict[Inside, None] = {}
        self._dirty: dict[Inside, None] = {}

    def accept(self, exchange: HttpExchange, dialect: Dialect) -> None:
        """Take a request in, or refuse it as vLLM would."""
        now = self._drive.now()  # once: the engine must not die between the look and the entry
        fault = self._faults.strike(dialect, "inference")
        if fault.kind == "drop":
            exchange.cut()
            return
        try:
            ask = self._understand(exchange, dialect, fault)
        except BadCall as bad:
            self._counters.refused += 1
            exchange.answer(bad.status, _refusal(dialect, bad))
            return
        self._enter(exchange, ask, fault, now)
        if fault.kind == "die":
            self._engine.kill(now, reason=f"died in {dialect}")
        self._drive.pump()

    def _understand(self, exchange: HttpExchange, dialect: Dialect, fault: FaultRule) -> Ask:
        if fault.kind == "fail":
            raise BadCall(fault.status, "the model is not ready yet")
        if self._engine.dead:
            raise BadCall(500, DEAD)
        if self._engine.rejects_new:
            raise BadCall(503, "The engine is paused. Please retry later.")
        if self._max_inside is not None and self._counters.in_flight >= self._max_inside:
            raise BadCall(503, BUSY)
        return read(dialect, exchange.body, exchange.content_type, self._defaults)

    def _hold_s(self, ask: Ask) -> float:
        return (ask.hold or self._service_time).draw(self._rng)

    def _enter(self, exchange: HttpExchange, ask: Ask, fault: FaultRule, now: float) -> None:
        make = _VOICES.get(ask.dialect)
        encoder = make(ask, exchange.request_id, self._drive.created_s()) if make else None
        inside = Inside(exchange, ask, encoder, fault, garbage=fault.kind == "garbage")
        self._live[inside] = None
        self._counters.accept(ask.weight, proven_awake=self._engine.proven_awake)
        exchange.when_gone(lambda: self._leave(inside))
        chunks = max(ask.script.count, ask.break_after or 0) if encoder else 0
        # One that is to kill the engine as it starts must not come to its end in that instant.
        endless = ask.silent or fault.kind in {"die", *_FATAL}
        work = float("inf") if endless else self._hold_s(ask) + fault.slow_s
        steps = 0
        if ask.stream and encoder:
            exchange.begin_stream()  # the 200 comes before a slot does
            steps = chunks
        else:
            work += chunks * ask.gap_s
        self._engine.submit(
            inside,
            work,
            now,
            steps=steps,
            step_work=ask.gap_s,
            weight=ask.weight,
            prompt=ask.prompt_tokens,
        )

    def on_event(self, event: ModelEvent) -> None:
        """Take in what the engine did to one sequence; `flush` tells it."""
        inside = event.key
        assert isinstance(inside, Inside)
        if not inside.live:
            return
        match event.kind:
            case Kind.STARTED:
                self._start(inside)
                return
            case Kind.STEPPED:
                inside.pending.append(bool(event.value))
            case Kind.FINISHED:
                inside.pending.append(bool(event.value))
                inside.finish = inside.ask.finish
            case Kind.ABORTED:
                inside.finish = "abort"
            case Kind.ANSWERED | Kind.DIED | Kind.RESTARTED:
                raise AssertionError(f"{event.kind} is about no sequence")
        self._dirty[inside] = None

    def on_death(self, *, abrupt: bool) -> None:
        """Tell everybody inside that the engine is dead, as vLLM does, or just cut."""
        for inside in list(self._live):
            self._end(inside, "failed")
            if abrupt:
                inside.exchange.cut()
            elif inside.ask.stream and inside.encoder:
                inside.exchange.send(inside.encoder.failing(DEAD))
                inside.exchange.end_stream()
            else:
                inside.exchange.answer(500, dumps(error_document(500, DEAD)))

    def flush(self) -> None:
        """Tell the clients what has become due."""
        dirty, self._dirty = self._dirty, {}
        for inside in dirty:
            if inside.live and inside.fault.kind != "mute":
                if inside.ask.stream and inside.encoder:
                    self._tell(inside)
                elif inside.finish is not None:
                    self._answer(inside)

    def _start(self, inside: Inside) -> None:
        inside.started = True
        self._counters.start(inside.exchange.request_id)
        self._faults.fresh = False
        if inside.fault.kind in _FATAL:
            self._engine.kill(self._drive.now(), reason=f"died in {inside.ask.dialect}")

    def _leave(self, inside: Inside) -> None:
        if inside.live:
            self._end(inside, "aborted")
            inside.exchange.cut()
            self._drive.pump()

    def _end(self, inside: Inside, how: str) -> None:
        """Count the end; whatever of it is still in the engine is dropped there."""
        inside.live = False
        del self._live[inside]
        if not self._engine.dead:
            self._engine.abort(inside, self._drive.now())
        self._counters.end(how, inside.ask.weight, started=inside.started)

    # A plain answer.

    def _answer(self, inside: Inside) -> None:
        ask, exchange = inside.ask, inside.exchange
        garbage = inside.garbage or any(inside.pending)
        if ask.break_after is not None and inside.finish != "abort":
            self._break(inside)
            return
        document = self._document(inside, garbage)
        self._counters.garbage_pieces += ask.script.count if garbage else 0
        self._end(inside, "aborted" if inside.finish == "abort" else "finished")
        exchange.answer(200, document)

    def _document(self, inside: Inside, garbage: bool) -> bytes:
        ask, request_id = inside.ask, inside.exchange.request_id
        created_s, finish = self._drive.created_s(), inside.finish or "stop"
        if ask.dialect == "audio":
            return dumps({"text": ask.script.joined("text"), "usage": {"type": "duration"}})
        if inside.encoder is None:
            return pooled(ask, request_id, created_s, garbage=garbage)
        if finish == "abort":  # what was computed of it is lost with it
            cut_short = replace(ask, script=Script(0))
            return _VOICES[ask.dialect](cut_short, request_id, created_s).document(
                finish, garbage=False
            )
        return inside.encoder.document(finish, garbage=garbage)

    # A streamed answer.

    def _tell(self, inside: Inside) -> None:
        """Send what is due, as far as the client reads, and the end when all is told."""
        encoder, exchange = inside.encoder, inside.exchange
        assert encoder is not None
        events: list[bytes] = []
        size = 0
        while inside.pending:
            if exchange.blocked:
                self._wait_for_reader(inside)
                return
            if inside.ask.break_after is not None and inside.sent > inside.ask.break_after:
                exchange.send(events)
                self._break(inside)
                return
            for event in self._part(inside, encoder, inside.pending.popleft()):
                events.append(event)
                size += len(event)
            if size > BLOCK_BYTES:
                exchange.send(events)
                events, size = [], 0
        if inside.finish is not None:
            self._close(inside, encoder, events)
        elif events:
            exchange.send(events)

    def _part(self, inside: Inside, encoder: Encoder, garbage: bool) -> list[bytes]:
        number = inside.sent
        inside.sent += 1
        if number == 0:
            return encoder.opening()
        garbage = garbage or inside.garbage
        self._counters.garbage_pieces += garbage
        return encoder.chunk(number - 1, garbage=garbage)

    def _close(self, inside: Inside, encoder: Encoder, events: list[bytes]) -> None:
        finish = inside.finish or "stop"
        if finish != "abort" and inside.ask.break_after is not None:
            inside.exchange.send(events)
            self._break(inside)
            return
        if inside.sent == 0:
            events += encoder.opening()
        events += encoder.closing(finish, max(0, inside.sent - 1))
        self._end(inside, "aborted" if finish == "abort" else "finished")
        inside.exchange.send(events)
        inside.exchange.end_stream()

    def _wait_for_reader(self, inside: Inside) -> None:
        if not inside.waits_for_reader:
            inside.waits_for_reader = True
            inside.exchange.when_drained(lambda: self._resume(inside))

    def _resume(self, inside: Inside) -> None:
        inside.waits_for_reader = False
        if inside.live:
            self._tell(inside)

    # A broken answer.

    def _break(self, inside: Inside) -> None:
        """Go wrong as the request ordered."""
        exchange, encoder, how = inside.exchange, inside.encoder, inside.ask.break_how
        streamed = inside.ask.stream and encoder is not None
        if how == "stall":
            inside.pending.clear()
            if inside in self._engine.replica:
                self._engine.stall(inside)
            return
        self._end(inside, "failed")
        match how:
            case "die":
                exchange.cut()
            case "fail" if streamed and encoder is not None:
                exchange.send(encoder.failing(DEAD))
                exchange.end_stream()
            case "fail":
                exchange.answer(500, dumps(error_document(500, DEAD)))
            case "end" if streamed:
                exchange.end_stream()
            case "end":
                exchange.answer(200)
            case _:
                assert_never(how)


def _refusal(dialect: Dialect, bad: BadCall) -> bytes:
    if dialect == "messages" and bad.status in {404, 503}:
        kind = {404: "not_found_error", 503: "overloaded_error"}[bad.status]
        return dumps({"type": "error", "error": {"type": kind, "message": bad.message}})
    return dumps(error_document(bad.status, bad.message, bad.param))
