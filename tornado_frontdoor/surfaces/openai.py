"""The OpenAI dialect: `/v1/*` passes through; refusals are RFC 9457 problems with an `error`.

The engine speaks this dialect itself, so a body goes on byte for byte (except for the model's name)
and an answer comes back byte for byte (see `pass_through`).
"""

from collections.abc import Sequence
from json import dumps
from typing import Any
from urllib.parse import unquote

from tornado_frontdoor.core.catalog import Catalog, Target
from tornado_frontdoor.core.decisions import Reason, Refusal
from tornado_frontdoor.core.printable import quoted
from tornado_frontdoor.core.request import CanonicalRequest
from tornado_frontdoor.surfaces.base import (
    NESTED_TOO_DEEPLY,
    DecodedRequest,
    Document,
    ListedModel,
    Refused,
    Route,
    RouteKind,
    SurfaceRequest,
)
from tornado_frontdoor.surfaces.bodies import read_json, with_model
from tornado_frontdoor.surfaces.headers import to_engine
from tornado_frontdoor.surfaces.keep_alive import without_keep_alive
from tornado_frontdoor.surfaces.multipart import read_multipart, rewritten
from tornado_frontdoor.surfaces.pass_through import RESPONSES, PassThrough
from tornado_frontdoor.surfaces.retry_headers import STATUS, retry_headers
from tornado_frontdoor.surfaces.steering import (
    STEERING_FIELDS,
    Steering,
    refusal_of,
    unsteered,
)
from tornado_frontdoor.surfaces.weight import (
    CHAT,
    CHOICES,
    COMPLETIONS,
    EMBEDDINGS,
    RERANK,
    SCORE,
    choices_of,
    weight_of,
)

_MODELS = "/v1/models"

_ENGINE_PATHS = frozenset(
    {
        CHAT,
        COMPLETIONS,
        RESPONSES,
        EMBEDDINGS,
        SCORE,
        RERANK,
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/tokenize",
        "/detokenize",
    }
)
_WITHOUT_SLOT = frozenset({"/tokenize", "/detokenize"})

_TYPE: dict[Reason, tuple[str, str]] = {
    Reason.QUEUE_FULL: ("overloaded", "The queue for this upstream is full"),
    Reason.QUEUE_TIMEOUT: ("overloaded", "No slot came free in time"),
    Reason.CLIENT_DEADLINE: ("overloaded", "The wait would outlast the client's time limit"),
    Reason.MODEL_WAKING: ("model_waking", "The model is waking"),
    Reason.MODEL_ASLEEP: ("model_asleep", "The model sleeps"),
    Reason.UPSTREAM_DOWN: ("model_waking", "The model's engine is restarting"),
    Reason.DRAINING: ("draining", "The front door is shutting down"),
    Reason.CLUSTER_OUTAGE: ("cluster_outage", "The front doors have lost touch with one another"),
    Reason.UPSTREAM_ERROR: ("upstream_error", "The engine failed"),
    Reason.UPSTREAM_TIMEOUT: ("upstream_timeout", "The engine did not answer in time"),
    Reason.MODEL_NOT_FOUND: ("invalid_request_error", "There is no such model"),
    Reason.BAD_REQUEST: ("invalid_request_error", "The request cannot be served as it is"),
    Reason.BODY_TOO_LARGE: ("invalid_request_error", "The body is too large"),
    Reason.BUFFERS_FULL: ("overloaded", "Too many large bodies wait"),
    Reason.REQUEST_TIMEOUT: ("invalid_request_error", "The body did not come"),
    Reason.NOT_FOUND: ("invalid_request_error", "There is nothing at this path"),
    Reason.METHOD_NOT_ALLOWED: ("invalid_request_error", "The path does not take this method"),
    Reason.UNSUPPORTED_MEDIA_TYPE: ("invalid_request_error", "The body is of the wrong type"),
    Reason.HEAD_TOO_LARGE: ("invalid_request_error", "The request's head is too large"),
    Reason.INVALID_API_KEY: ("invalid_request_error", "The key is missing or wrong"),
    Reason.MODEL_NOT_ALLOWED: ("invalid_request_error", "The key is not for this model"),
}


class OpenAISurface:
    """`/v1/*`, and vLLM's `/tokenize` and `/detokenize`.

    `steering` says what becomes of fields that steer an engine past its gate.
    """

    name = "openai"
    prefixes: tuple[str, ...] = ("/v1", "/tokenize", "/detokenize")

    def __init__(self, steering: Steering = "remove") -> None:
        self._steering: Steering = steering

    def route(self, method: str, path: str) -> Route:
        """Find an allowed path; everything else is not found, whatever the engine would answer."""
        if method == "POST" and path in _ENGINE_PATHS:
            return Route(RouteKind.ENGINE, path)
        reads = method in ("GET", "HEAD")
        if reads and path == _MODELS:
            return Route(RouteKind.MODELS, path)
        if reads and path.startswith(_MODELS + "/"):
            return Route(RouteKind.MODELS, _MODELS, unquote(path[len(_MODELS) + 1 :]))
        raise Refused(Reason.NOT_FOUND, f"There is nothing at {method} {path}")

    def decode(self, call: SurfaceRequest, catalog: Catalog) -> DecodedRequest:
        """Find the model in the body or by the route's default; leave the rest to the engine."""
        try:
            return self._decode(call, catalog)
        except RecursionError as error:
            raise Refused(Reason.BAD_REQUEST, NESTED_TOO_DEEPLY) from error

    def _decode(self, call: SurfaceRequest, catalog: Catalog) -> DecodedRequest:
        content_type = call.headers.get("content-type", "application/json")
        if content_type.lower().startswith("multipart/"):
            return self._decode_multipart(call, catalog, content_type)
        received = unsteered(read_json(call.body), self._steering)
        parsed, keep_alive_s = without_keep_alive(received)
        named = parsed.fields.get("model")
        if named is not None and not isinstance(named, str):
            raise Refused(Reason.BAD_REQUEST, "model must be a string", "model")
        target, spelt = _target(catalog, call.route.path, named, catalog.routes.chat_default)
        body = parsed.source
        if named is not None and named != target.served_name:
            body = with_model(parsed, target.served_name)
        if call.route.path == RESPONSES and target.max_weight and parsed.fields.get("background"):
            # It would return at once and go on generating outside of the cap.
            raise Refused(
                Reason.BAD_REQUEST,
                f"{target.upstream} admits no background responses",
                "background",
            )
        request = CanonicalRequest(
            surface=self.name,
            model=spelt,
            upstream=target.upstream,
            path=call.route.path,
            body=body,
            content_type=content_type,
            headers=to_engine(call.headers),
            stream=parsed.fields.get("stream") is True,
            weight=weight_of(call.route.path, parsed.fields, target.max_weight),
            takes_slot=call.route.path not in _WITHOUT_SLOT,
            keep_alive_s=keep_alive_s,
        )
        return DecodedRequest(request, target, PassThrough(call.route.path, request.weight))

    def _decode_multipart(
        self, call: SurfaceRequest, catalog: Catalog, content_type: str
    ) -> DecodedRequest:
        unwanted = () if self._steering == "pass" else STEERING_FIELDS
        form = read_multipart(content_type, call.body, ("model", *CHOICES), unwanted)
        if form.whole and self._steering == "refuse":
            raise refusal_of(STEERING_FIELDS.intersection(form.values))
        named = form.values.get("model") or None
        default = catalog.routes.multipart_chat_default
        target, spelt = _target(catalog, call.route.path, named, default)
        body = rewritten(
            call.body, form, None if named == target.served_name else target.served_name
        )
        request = CanonicalRequest(
            surface=self.name,
            model=spelt,
            upstream=target.upstream,
            path=call.route.path,
            body=body,
            content_type=content_type,
            headers=to_engine(call.headers),
            stream=False,
            weight=choices_of(form.values),
        )
        return DecodedRequest(request, target, PassThrough(call.route.path))

    def models(self, call: SurfaceRequest, listing: Sequence[ListedModel]) -> Document:
        """List every name that can be asked for, or one of them."""
        wanted = call.route.argument
        if wanted is None:
            data = [_model_entry(model) for model in listing]
            return _json(200, {"object": "list", "data": data})
        for model in listing:
            if model.name.lower() == wanted.lower():
                return _json(200, _model_entry(model))
        raise Refused(Reason.MODEL_NOT_FOUND, f"There is no model {quoted(wanted)}", "model")

    def refuse(self, refusal: Refusal, request_id: str) -> Document:
        """Render a refusal as a problem document that OpenAI's SDK reads too."""
        error_type, title = _TYPE[refusal.reason]
        code = refusal.reason.value
        if refusal.reason is Reason.UPSTREAM_DOWN:
            code = Reason.MODEL_WAKING.value
        status = STATUS[refusal.reason]
        error: dict[str, Any] = {
            "type": error_type,
            "code": code,
            "message": refusal.detail,
            "param": refusal.param,
        }
        retry = retry_headers(refusal)
        problem: dict[str, Any] = {
            "type": f"urn:frontdoor:problem:{code.replace('_', '-')}",
            "title": title,
            "status": status,
            "detail": refusal.detail,
            "instance": f"urn:frontdoor:request:{request_id}",
            "upstream": refusal.upstream,
            "retry_after_s": int(retry[0][1]) if retry else None,
        }
        if refusal.sleep_depth is not None:
            waking = {
                "sleep_depth": refusal.sleep_depth.value,
                "estimated_wake_seconds": refusal.estimated_wake_s,
            }
            problem |= waking
            error |= waking
        problem["error"] = error
        return Document(
            status, [("Content-Type", "application/problem+json"), *retry], dumps(problem).encode()
        )


def _target(
    catalog: Catalog, path: str, named: str | None, chat_default: str | None
) -> tuple[Target, str]:
    """Return who serves the request, and the name it was asked for by; raises Refused."""
    spelt = named
    if path == EMBEDDINGS and catalog.routes.embeddings is not None:
        spelt = catalog.routes.embeddings
    elif spelt is None and path in (CHAT, COMPLETIONS):
        spelt = chat_default
    if spelt is None:
        raise Refused(Reason.BAD_REQUEST, f"{path} needs a model", "model")
    target = catalog.resolve(spelt)
    if target is None:
        detail = f"There is no model {quoted(spelt)}; /v1/models lists those there are"
        raise Refused(Reason.MODEL_NOT_FOUND, detail, "model", spelt)
    return target, spelt


def _model_entry(model: ListedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_s,
        "owned_by": "frontdoor",
        "root": model.target.served_name,
        "max_model_len": model.target.traits.max_model_len,
        "frontdoor": {
            "upstream": model.target.upstream,
            "state": model.state,
            "sleep_depth": model.sleep_depth,
        },
    }


def _json(status: int, value: object) -> Document:
    return Document(status, [("Content-Type", "application/json")], dumps(value).encode())
