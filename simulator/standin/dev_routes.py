"""vLLM's development routes over a model engine: `/sleep`, `/wake_up`, and those beside them.

Rule 1: level, mode and tags count in the query only; a JSON body is ignored, without a word.
Rule 2: a call takes effect even when its caller has left.
Rule 3: what a release did not check, or did not answer, is not checked and not answered here.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from simulator.standin.counters import Counters
from simulator.standin.encoders import dumps, error_document
from simulator.standin.engine import ControlAnswer, ControlCall, EngineModel, ModelEvent
from simulator.standin.faults import FaultRule, Faults
from simulator.standin.ports import EngineDriver, HttpExchange
from simulator.standin.requests import BadCall

ROUTES: dict[tuple[str, str], str] = {
    ("POST", "/sleep"): "sleep",
    ("POST", "/wake_up"): "wake_up",
    ("GET", "/is_sleeping"): "is_sleeping",
    ("POST", "/collective_rpc"): "collective_rpc",
    ("POST", "/reset_prefix_cache"): "reset_prefix_cache",
    ("POST", "/pause"): "pause",
    ("POST", "/resume"): "resume",
    ("GET", "/is_paused"): "is_paused",
    ("POST", "/abort_requests"): "abort_requests",
}
TRANSITIONS = ("sleep", "wake_up", "collective_rpc")
_MODES = ("abort", "wait", "keep")

Query = Mapping[str, Sequence[str]]


class Control:
    """The control calls of one stand-in."""

    def __init__(
        self, engine: EngineModel, counters: Counters, faults: Faults, drive: EngineDriver
    ) -> None:
        self._engine = engine
        self._counters = counters
        self._faults = faults
        self._drive = drive
        self._numbers = itertools.count()
        self._open: dict[object, tuple[ControlCall, HttpExchange, FaultRule, dict[str, Any]]] = {}

    def accept(self, exchange: HttpExchange, name: str) -> None:
        """Take one control call in."""
        now = self._drive.now()
        entry = self._enter_in_the_book(exchange, name, now)
        method = _method(exchange.body) if name == "collective_rpc" else None
        fault = self._faults.strike(name, method or name)
        if fault.kind == "drop":
            exchange.cut()
            return
        try:
            call = self._understand(exchange, name, fault)
        except BadCall as bad:
            entry["status"] = bad.status
            exchange.answer(bad.status, dumps(error_document(bad.status, bad.message)))
            return
        self._open[call.id] = call, exchange, fault, entry
        self._engine.call(call, now)
        self._drive.pump()

    def on_answer(self, event: ModelEvent) -> None:
        """Answer the call that came through."""
        call, exchange, fault, entry = self._open.pop(event.key)
        answer = event.value
        assert isinstance(answer, ControlAnswer)
        status = 200 if answer.ok else (fault.status if call.fails else 500)
        entry["status"] = status
        entry["ended_s"] = event.at_s
        if call.name == "wake_up" and answer.ok:
            self._faults.fresh = True
        if fault.kind == "mute":
            return
        if answer.ok:
            exchange.answer(200, self._document(call, answer))
        else:
            exchange.answer(status, dumps(error_document(status, str(answer.value))))

    def _enter_in_the_book(self, exchange: HttpExchange, name: str, now: float) -> dict[str, Any]:
        """Record the call as it came, for tests to read."""
        entry: dict[str, Any] = {
            "call": name,
            "query": {key: list(values) for key, values in exchange.query.items()},
            "body": exchange.body.decode(errors="replace"),
            "at_s": now,
            "ended_s": None,
            "status": None,
            "in_flight": self._counters.in_flight,
        }
        if name in TRANSITIONS and self._engine.busy is not None:
            self._counters.control_overlaps += 1
        self._counters.control_calls.append(entry)
        return entry

    def _understand(self, exchange: HttpExchange, name: str, fault: FaultRule) -> ControlCall:
        level, mode = 1, "abort"
        if name in {"sleep", "pause"}:
            level, mode = self._level_and_mode(exchange.query, name)
        method, seconds = "", 0.0
        if name == "collective_rpc":
            method, seconds = _rpc(exchange.body)
        elif name == "abort_requests":
            _object(exchange.body)
        tags = exchange.query.get("tags")
        return ControlCall(
            id=next(self._numbers),
            name=name,
            level=level,
            mode=mode,  # type: ignore[arg-type] # one of `_MODES`
            tags=tuple(tags) if tags else None,
            method=method,
            seconds=seconds,
            slow_s=fault.slow_s,
            fails=fault.kind == "fail",
            noop=fault.kind == "noop",
            die=_DEATHS.get(fault.kind, ""),
        )

    def _level_and_mode(self, query: Query, name: str) -> tuple[int, str]:
        profile = self._engine.profile
        bad = 400 if profile.json_answers else 500  # raw strings, until they are used
        level_text = query.get("level", ["1"])[-1]
        mode = query.get("mode", ["abort"])[-1]
        if name == "sleep" and not profile.pauses_scheduler:
            mode = "abort"  # not looked at
        if mode not in _MODES:
            raise BadCall(bad, f"Invalid mode {mode!r}: must be one of {_MODES}")
        try:
            level = int(level_text)
        except ValueError:
            raise BadCall(bad, f"Invalid level {level_text!r}") from None
        if profile.json_answers and not 0 <= level <= 2:
            raise BadCall(400, f"Invalid level {level}: must be 0, 1 or 2")
        return level, mode

    def _document(self, call: ControlCall, answer: ControlAnswer) -> bytes:
        profile = self._engine.profile
        document: dict[str, Any] | None = None
        match call.name:
            case "sleep" if profile.json_answers:
                document = {"status": "sleeping", "level": answer.value}
            case "wake_up" if profile.json_answers:
                status = "awake" if answer.value else "sleeping"
                document = {"status": status, "tags": call.tags and list(call.tags)}
            case "is_sleeping" | "is_paused":
                document = {call.name: answer.value}
            case "collective_rpc":
                document = {"results": [None]}
            case "reset_prefix_cache" if profile.reset_tells_success:
                document = {"success": answer.value}
            case "pause" | "resume" | "abort_requests":
                past = {"pause": "paused", "resume": "resumed", "abort_requests": "aborted"}
                document = {"status": past[call.name]}
            case _:
                pass
        return dumps(document) if document is not None else b""


_DEATHS: dict[str, Literal["", "before", "after"]] = {"die": "before", "die_after": "after"}


def _method(body: bytes) -> str | None:
    try:
        return _rpc(body)[0]
    except BadCall:
        return None


def _rpc(body: bytes) -> tuple[str, float]:
    """Return the worker method, and how long a `nap` is to last."""
    asked = _object(body)
    if not asked.get("method"):
        raise BadCall(400, "Missing 'method' in request body")
    return str(asked["method"]), float((asked.get("kwargs") or {}).get("seconds", 0))


def _object(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a call must bring."""
    try:
        asked = json.loads(body)
    except ValueError as error:
        raise BadCall(400, f"JSON decode error: {error}") from None
    if not isinstance(asked, dict):
        raise BadCall(400, "Request body must be a JSON object")
    return asked
