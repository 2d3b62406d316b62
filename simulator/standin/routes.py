"""The routes of a stand-in: which call is whose, and those that need no engine to be answered."""

import contextlib
import functools
import json
import re
from collections.abc import Callable
from typing import Any

from simulator.standin.counters import Counters
from simulator.standin.dev_routes import ROUTES as CONTROL_ROUTES
from simulator.standin.dev_routes import Control
from simulator.standin.encoders import dumps, error_document
from simulator.standin.engine import EngineModel
from simulator.standin.faults import Faults
from simulator.standin.inference import Inference
from simulator.standin.options import StandInOptions
from simulator.standin.other_endpoints import detokenized, metrics, models, tokenized
from simulator.standin.ports import Host, HttpExchange
from simulator.standin.requests import Dialect, prompt_text

JSON = "application/json"


class StandInRoutes:
    """All routes of one stand-in."""

    def __init__(
        self,
        options: StandInOptions,
        engine: EngineModel,
        counters: Counters,
        faults: Faults,
        inference: Inference,
        control: Control,
        drive: Host,
    ) -> None:
        self._options = options
        self._engine = engine
        self._counters = counters
        self._faults = faults
        self._inference = inference
        self._control = control
        self._drive = drive
        self._routes = self._make_routes()

    def _make_routes(self) -> dict[tuple[str, str], Callable[[HttpExchange], None]]:
        options = self._options
        routes: dict[tuple[str, str], Callable[[HttpExchange], None]] = {
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("POST", "/v1/messages/count_tokens"): self._count_tokens,
            ("POST", "/invocations"): self._invocations,
            ("GET", "/v1/models"): self._look("models", self._models),
            ("GET", "/health"): self._look("health", lambda: (b"", JSON)),
            ("GET", "/ping"): lambda exchange: exchange.answer(200),
            ("POST", "/ping"): lambda exchange: exchange.answer(200),
            ("GET", "/load"): lambda exchange: exchange.answer(200, dumps({"server_load": 0})),
            ("GET", "/version"): self._look(
                "version", lambda: (dumps({"version": options.vllm}), JSON)
            ),
            ("GET", "/metrics"): self._look("metrics", self._metrics),
            ("GET", "/stand-in/stats"): self._stats,
            ("GET", "/stand-in/history"): self._history,
            ("POST", "/stand-in/reset"): self._reset,
            ("POST", "/stand-in/faults"): self._more_faults,
            ("POST", "/stand-in/kill"): self._kill,
        }
        for path, dialect in _DIALECTS.items():
            routes["POST", path] = functools.partial(self._infer, dialect=dialect)
        if options.sleep_mode:
            routes["GET", "/server_info"] = self._look("server_info", self._server_info)
            for key, name in CONTROL_ROUTES.items():
                routes[key] = functools.partial(self._control.accept, name=name)
        return routes

    def serve(self, exchange: HttpExchange) -> None:
        """Answer one call, now or when the engine gets to it."""
        route = self._routes.get((exchange.method, exchange.path))
        if route is not None:
            route(exchange)
            return
        paths = {path for _, path in self._routes}
        if exchange.path in paths:
            exchange.answer(405, dumps({"detail": "Method Not Allowed"}))
        elif exchange.path.rstrip("/") in paths:
            location = f"http://{exchange.host}{exchange.path.rstrip('/')}"
            exchange.answer(307, headers=(("Location", location),))
        else:
            exchange.answer(404, dumps({"detail": "Not Found"}))

    def _look(
        self, name: str, document: Callable[[], tuple[bytes, str]]
    ) -> Callable[[HttpExchange], None]:
        """Return a route that only looks: answered at once, also asleep and mid-wake."""

        def look(exchange: HttpExchange) -> None:
            fault = self._faults.strike(name)
            if self._engine.dead and name == "health":
                exchange.answer(503)
                return
            if fault.kind in {"hang", "mute"}:
                return
            if fault.kind == "drop":
                exchange.cut()
            elif fault.kind == "fail":
                exchange.answer(fault.status, dumps(error_document(fault.status, name)))
            elif fault.slow_s:
                self._drive.later(fault.slow_s, lambda: exchange.answer(200, *document()))
            else:
                exchange.answer(200, *document())
            if fault.kind.startswith("die"):
                self._engine.kill(self._drive.now(), reason=f"died in {name}")
                self._drive.pump()

        return look

    def _infer(self, exchange: HttpExchange, dialect: Dialect) -> None:
        if dialect == "audio":
            exchange.body, exchange.content_type = _form(exchange), JSON
        self._inference.accept(exchange, dialect)

    def _invocations(self, exchange: HttpExchange) -> None:
        """Answer the other door: any body, by its fields."""
        for key, dialect in _BY_FIELD.items():
            if f'"{key}"'.encode() in exchange.body:
                self._inference.accept(exchange, dialect)
                return
        exchange.answer(400, dumps(error_document(400, "Cannot find suitable handler")))

    def _server_info(self) -> tuple[bytes, str]:
        scheduler = {"scheduler_config": {"max_num_seqs": self._options.slots}}
        return dumps({"vllm_config": scheduler | {"parallel_config": {}}, "vllm_env": {}}), JSON

    def _models(self) -> tuple[bytes, str]:
        options = self._options
        return models(options.models, self._drive.created_s(), options.max_model_len), JSON

    def _metrics(self) -> tuple[bytes, str]:
        ended = self._counters.ended
        reasons = {"stop": ended["finished"], "abort": ended["aborted"]}
        model = self._options.models[0]
        text = metrics(self._engine, model, reasons, self._drive.started_s)
        return text, "text/plain; version=1.0.0; charset=utf-8"

    def _tokenize(self, exchange: HttpExchange) -> None:
        if (body := _read(exchange)) is not None:
            exchange.answer(200, tokenized(body, self._options.max_model_len))

    def _detokenize(self, exchange: HttpExchange) -> None:
        if (body := _read(exchange)) is not None:
            exchange.answer(200, detokenized(body))

    def _count_tokens(self, exchange: HttpExchange) -> None:
        if (body := _read(exchange)) is not None:
            count = len(prompt_text("messages", body).encode())
            exchange.answer(200, dumps({"input_tokens": count}))

    # The stand-in's own routes.

    def _stats(self, exchange: HttpExchange) -> None:
        engine = self._engine
        self._drive.now()
        self._drive.pump()
        truth = {
            "deaths": engine.deaths,
            "injected": dict(self._faults.injected),
            "engine": {
                "dead": engine.dead,
                "depth": engine.memory.depth,
                "asleep": list(engine.memory.asleep),
                "weights_valid": engine.memory.weights_valid,
                "scheduler": engine.scheduler.name.lower(),
                "busy": engine.busy,
            },
        }
        exchange.answer(200, dumps(self._counters.snapshot() | truth))

    def _history(self, exchange: HttpExchange) -> None:
        self._drive.now()
        self._drive.pump()
        exchange.answer(200, dumps(self._counters.history()))

    def _reset(self, exchange: HttpExchange) -> None:
        self._counters.reset()
        self._faults.clear()
        exchange.answer(200, b"{}")

    def _more_faults(self, exchange: HttpExchange) -> None:
        body = _read(exchange)
        if body is None:
            return
        if body.get("clear"):
            self._faults.clear()
        try:
            self._faults.add(str(body.get("spec", "")))
        except ValueError as error:
            exchange.answer(400, dumps(error_document(400, str(error))))
        else:
            exchange.answer(200, b"{}")

    def _kill(self, exchange: HttpExchange) -> None:
        body = _read(exchange)
        if body is None:
            return
        exchange.answer(200, b"{}")
        self._drive.kill(
            body.get("restart_s"),
            abrupt=bool(body.get("abrupt")),
            accept_s=float(body.get("accept_s", 0)),
        )


_DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/embeddings": "embeddings",
    "/v1/score": "score",
    "/score": "score",
    "/v1/rerank": "rerank",
    "/v2/rerank": "rerank",
    "/rerank": "rerank",
    "/v1/audio/transcriptions": "audio",
    "/v1/audio/translations": "audio",
}
_BY_FIELD: dict[str, Dialect] = {
    "messages": "chat",
    "prompt": "completions",
    "documents": "rerank",
    "text_1": "score",
    "input": "embeddings",
}
_FIELD = re.compile(rb'name="(\w+)"\r\n\r\n(.*?)\r\n--', re.DOTALL)


def _form(exchange: HttpExchange) -> bytes:
    """Return a form's text fields as a JSON body; files are dropped."""
    fields: dict[str, Any] = {
        name.decode(): value.decode(errors="replace")
        for name, value in _FIELD.findall(exchange.body)
    }
    if "stand_in" in fields:
        with contextlib.suppress(ValueError):
            fields["stand_in"] = json.loads(fields["stand_in"])
    return dumps(fields)


def _read(exchange: HttpExchange) -> dict[str, Any] | None:
    """Return a JSON object (an empty body is one), or answer 400 and return None."""
    try:
        body = json.loads(exchange.body or b"{}")
    except ValueError as error:
        exchange.answer(400, dumps(error_document(400, f"JSON decode error: {error}")))
        return None
    if isinstance(body, dict):
        return body
    exchange.answer(400, dumps(error_document(400, "Input should be a valid dictionary")))
    return None
