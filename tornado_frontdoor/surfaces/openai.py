"""The OpenAI dialect: `/v1/*` passes through; refusals are RFC 9457 problems with an `error`.

The engine speaks this dialect itself, so a body goes on byte for byte (except for the model's name)
and an answer comes back byte for byte. What is read of a stream is only what tells a whole answer
from a broken one: OpenAI's own client takes a stream that just ends for a success.
"""

from collections import deque
from collections.abc import Sequence
from json import dumps
from typing import Any
from urllib.parse import unquote

from tornado_frontdoor.core.catalog import Catalog, Target
from tornado_frontdoor.core.decisions import Outcome, Reason, Refusal
from tornado_frontdoor.core.printable import quoted
from tornado_frontdoor.core.request import CanonicalRequest
from tornado_frontdoor.surfaces.base import (
    DecodedRequest,
    Document,
    Ending,
    Head,
    Headers,
    ListedModel,
    Refused,
    Route,
    RouteKind,
    SurfaceRequest,
)
from tornado_frontdoor.surfaces.bodies import read_json, with_model
from tornado_frontdoor.surfaces.headers import (
    BadHeadError,
    body_length,
    to_client,
    to_engine,
    value_of,
)
from tornado_frontdoor.surfaces.multipart import read_multipart, rewritten
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

RESPONSES = "/v1/responses"
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
_ENDS_WITH_DONE = frozenset({CHAT, COMPLETIONS})

SMALL_PIECE_BYTES = 64
"""A piece below it is joined with the next one, so that four hold any `[DONE]` or error's head."""

_TYPE: dict[Reason, tuple[str, str]] = {
    Reason.QUEUE_FULL: ("overloaded", "The queue for this upstream is full"),
    Reason.QUEUE_TIMEOUT: ("overloaded", "No slot came free in time"),
    Reason.MODEL_WAKING: ("model_waking", "The model is waking"),
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
        if method == "GET" and path == _MODELS:
            return Route(RouteKind.MODELS, path)
        if method == "GET" and path.startswith(_MODELS + "/"):
            return Route(RouteKind.MODELS, _MODELS, unquote(path[len(_MODELS) + 1 :]))
        raise Refused(Reason.NOT_FOUND, f"There is nothing at {method} {path}")

    def decode(self, call: SurfaceRequest, catalog: Catalog) -> DecodedRequest:
        """Find the model in the body or by the route's default; leave the rest to the engine."""
        content_type = call.headers.get("content-type", "application/json")
        if content_type.lower().startswith("multipart/"):
            return self._decode_multipart(call, catalog, content_type)
        received = read_json(call.body)
        parsed = unsteered(received, self._steering)
        named = parsed.fields.get("model")
        if named is not None and not isinstance(named, str):
            raise Refused(Reason.BAD_REQUEST, "model must be a string", "model")
        target, spelt = _target(catalog, call.route.path, named, catalog.routes.chat_default)
        body = call.body if parsed is received else parsed.text.encode()
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
        )
        return DecodedRequest(request, target, PassThrough(call.route.path))

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


class PassThrough:
    """Relays an answer byte for byte, and knows a broken stream from a whole one."""

    def __init__(self, path: str) -> None:
        self.ending: Ending | None = None
        self._path = path
        self._status = 0
        self._streams = False
        # The last pieces hold what tells how a stream ended; older ones are never looked at again.
        self._tail: deque[bytes] = deque(maxlen=4)

    def head(self, status: int, headers: Headers) -> Head | None:
        """Pass the status and what a client may see; a redirect is never relayed."""
        if not (200 <= status < 300 or 400 <= status < 600):
            kind = "a redirect" if status < 400 else "no HTTP status"
            self._refuse(f"The engine answered with {kind} ({status})")
            return None
        try:
            length = body_length(status, headers)
        except BadHeadError as error:
            self._refuse(f"The engine's answer has {error}")
            return None
        self._status = status
        self._streams = value_of(headers, "content-type").startswith("text/event-stream")
        # A stream that breaks off gets an event of ours, for which its own length has no room.
        return Head(status, to_client(headers), None if self._streams else length)

    def data(self, chunk: bytes) -> bytes:
        """Pass a piece on as it is."""
        if self._tail and len(self._tail[-1]) < SMALL_PIECE_BYTES:
            self._tail[-1] += chunk  # an end may come byte by byte
        else:
            self._tail.append(chunk)
        return chunk

    def end(self) -> Ending:
        """Judge the whole: an engine's polite end is not yet a success."""
        tail = b"".join(self._tail)
        if self._status >= 500:
            cause = f"the engine answered {self._status}: {tail[:300].decode('utf-8', 'replace')}"
            return Ending(Outcome.UPSTREAM_ERROR, whole=True, cause=cause)
        if _aborted(tail):
            cause = "the engine aborted it and ended politely: was it put to sleep by another hand?"
            return Ending(Outcome.UPSTREAM_ERROR, whole=True, cause=cause)
        if not self._streams or self._path not in _ENDS_WITH_DONE:
            return Ending(Outcome.SERVED)
        error_at = max(tail.find(b'data: {"error"'), tail.find(b'data:{"error"'))
        if error_at >= 0:
            error = tail[error_at + 5 :][:300].decode("utf-8", "replace")
            cause = f"the engine told an error inside its stream: {error}"
            return Ending(Outcome.UPSTREAM_ERROR, whole=True, cause=cause)
        if b"[DONE]" in tail or _finished(tail):
            return Ending(Outcome.SERVED)
        return Ending(
            Outcome.UPSTREAM_ERROR,
            self.broken(Reason.UPSTREAM_ERROR, "The engine ended its stream before the answer did"),
            cause="the engine ended its stream before the answer did",
        )

    def broken(self, reason: Reason, detail: str) -> bytes:
        """Return an error event in vLLM's form; nothing where the body is no stream of events."""
        if not self._streams:
            return b""
        error = {
            "message": detail,
            "type": _TYPE[reason][0],
            "param": None,
            "code": STATUS[reason],
        }
        event = b"data: " + dumps({"error": error}).encode() + b"\n\n"
        whole_frame = not self._tail or self._tail[-1].endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))
        return event if whole_frame else b"\n\n" + event

    def keep_alive(self) -> bytes:
        """Send nothing of ours: some parsers of this dialect stumble over comments."""
        return b""

    def _refuse(self, detail: str) -> None:
        refusal = Refusal(Reason.UPSTREAM_ERROR, detail)
        self.ending = Ending(Outcome.UPSTREAM_ERROR, refusal=refusal)


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


def _aborted(tail: bytes) -> bool:
    # A sleep by another hand ends every request so, and it looks like a success otherwise.
    return b'"finish_reason":"abort"' in tail or b'"finish_reason": "abort"' in tail


def _finished(tail: bytes) -> bool:
    return b'"finish_reason":"' in tail or b'"finish_reason": "' in tail


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
