"""The surface: which paths, which engine, which relay; and one decision in this dialect."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal
from urllib.parse import unquote

from msgspec.structs import replace

from tornado_frontdoor.core.catalog import Catalog, Target
from tornado_frontdoor.core.decisions import Reason, Refusal
from tornado_frontdoor.core.request import CanonicalRequest
from tornado_frontdoor.surfaces.anthropic import errors
from tornado_frontdoor.surfaces.anthropic.counting import CountRelay
from tornado_frontdoor.surfaces.anthropic.fields import encode_request, invalid
from tornado_frontdoor.surfaces.anthropic.models import model_page, one_model
from tornado_frontdoor.surfaces.anthropic.native import (
    FORWARDED,
    NativeStream,
    native_body,
    native_count,
    native_message,
)
from tornado_frontdoor.surfaces.anthropic.relays import StreamRelay, WholeRelay
from tornado_frontdoor.surfaces.anthropic.request import chat_request, count_request
from tornado_frontdoor.surfaces.anthropic.response import Asked, message
from tornado_frontdoor.surfaces.anthropic.stream import MessageStream
from tornado_frontdoor.surfaces.base import (
    NESTED_TOO_DEEPLY,
    DecodedRequest,
    Document,
    ListedModel,
    Refused,
    ResponseTranslator,
    Route,
    RouteKind,
    SurfaceRequest,
)
from tornado_frontdoor.surfaces.bodies import JsonBody, read_json
from tornado_frontdoor.surfaces.keep_alive import without_keep_alive
from tornado_frontdoor.surfaces.steering import Steering, unsteered

MESSAGES = "/llm/v1/messages"
COUNT_TOKENS = "/llm/v1/messages/count_tokens"
CHAT = "/v1/chat/completions"
_MODELS = "/llm/v1/models"

_ROUTES: dict[str, tuple[RouteKind, tuple[str, ...]]] = {
    MESSAGES: (RouteKind.ENGINE, ("POST",)),
    COUNT_TOKENS: (RouteKind.ENGINE, ("POST",)),
    _MODELS: (RouteKind.MODELS, ("GET", "HEAD")),
    "/llm": (RouteKind.PROBE, ("HEAD", "GET")),
    "/llm/": (RouteKind.PROBE, ("HEAD", "GET")),
}
_BARE = ("/v1/messages", "/v1/messages/count_tokens")
"""What clients ask for whose base URL lacks `/llm`."""
_TRACING = ("traceparent", "tracestate")


class AnthropicSurface:
    """`/llm/*`. `id_source` gives random letters and digits, 24 of them or so, for ids.

    `overloaded_status` is what a full queue answers with: 529 as documented, or 503, which some
    clients retry for longer. `bare`: `/v1/messages` is served as `/llm/v1/messages` too.
    """

    name = "anthropic"
    prefix = "/llm"

    def __init__(
        self,
        overloaded_status: Literal[529, 503],
        id_source: Callable[[], str],
        steering: Steering = "remove",
        *,
        bare: bool = True,
    ) -> None:
        self.prefixes: tuple[str, ...] = (self.prefix, *(_BARE if bare else ()))
        self._overloaded_status = overloaded_status
        self._new_id = id_source
        self._steering: Steering = steering

    def route(self, method: str, path: str) -> Route:
        """Find an allowed path; raises Refused."""
        argument = None
        if path in _BARE and path in self.prefixes:
            path = self.prefix + path
        known = _ROUTES.get(path)
        if known is None and path.startswith(_MODELS + "/"):
            known, argument = _ROUTES[_MODELS], unquote(path[len(_MODELS) + 1 :])
            path = _MODELS
        if known is None:
            raise Refused(Reason.NOT_FOUND, f"There is nothing at {method} {path}")
        kind, methods = known
        if method not in methods:
            raise Refused(Reason.METHOD_NOT_ALLOWED, f"{path} does not take {method}")
        return Route(kind, path, argument)

    def decode(self, call: SurfaceRequest, catalog: Catalog) -> DecodedRequest:
        """Translate a call; what cannot be translated is refused before anyone is woken."""
        try:
            return self._decode(call, catalog)
        except RecursionError as error:
            raise Refused(Reason.BAD_REQUEST, NESTED_TOO_DEEPLY) from error

    def _decode(self, call: SurfaceRequest, catalog: Catalog) -> DecodedRequest:
        body, said_s = without_keep_alive(read_json(call.body))
        spelt = _model(body)
        target = catalog.resolve(spelt)
        if target is None:
            raise Refused(Reason.MODEL_NOT_FOUND, f"model: {spelt}", "model", spelt)
        asked = Asked(spelt, target.served_name, request_id_of(call.request_id), self._new_id)
        counts = call.route.path == COUNT_TOKENS
        if target.anthropic == "native":
            body = unsteered(body, self._steering)
            decoded = _native(call, body, target, asked, counts=counts)
        else:
            version = call.headers.get("anthropic-version", "")
            translated = _counted if counts else _translated
            decoded = translated(call, body, target, asked, version)
        if said_s is None:
            return decoded
        return replace(decoded, request=replace(decoded.request, keep_alive_s=said_s))

    def models(self, call: SurfaceRequest, listing: Sequence[ListedModel]) -> Document:
        """List every name that can be asked for, or one of them."""
        wanted = call.route.argument
        page = model_page(listing, call.query) if wanted is None else one_model(listing, wanted)
        headers = [
            ("Content-Type", "application/json"),
            ("request-id", request_id_of(call.request_id)),
        ]
        return Document(200, headers, page)

    def refuse(self, refusal: Refusal, request_id: str) -> Document:
        """Render a refusal in the envelope of this dialect."""
        failure = errors.refused(refusal, self._overloaded_status)
        return errors.document(failure, request_id_of(request_id))


def request_id_of(request_id: str) -> str:
    """Return a request's id as this dialect writes it."""
    return request_id if request_id.startswith("req_") else f"req_{request_id}"


def _model(body: JsonBody) -> str:
    model = body.fields.get("model")
    if model is None:
        raise invalid("model", "field required")
    if not isinstance(model, str):
        raise invalid("model", "must be a string")
    return model


def _translated(
    call: SurfaceRequest, body: JsonBody, target: Target, asked: Asked, version: str
) -> DecodedRequest:
    translation = chat_request(body.fields, target, version)
    asked = asked._replace(
        ignored=translation.ignored,
        hides_thinking=translation.hides_thinking,
        manages_context=translation.manages_context,
        one_tool_at_a_time=translation.one_tool_at_a_time,
        buffers_arguments=target.traits.tool_args == "buffer",
    )
    streams = "stream" in translation.body
    relay: ResponseTranslator = (
        StreamRelay(asked, MessageStream(asked)) if streams else WholeRelay(asked, message)
    )
    sent = encode_request(translation.body, body)
    return _exchange(call, target, asked, sent, relay, path=CHAT, streams=streams)


def _counted(
    call: SurfaceRequest, body: JsonBody, target: Target, asked: Asked, version: str
) -> DecodedRequest:
    counted = count_request(body.fields, target, version)
    sent = encode_request(counted, body)
    return _exchange(call, target, asked, sent, CountRelay(asked), path="/tokenize")


def _native(
    call: SurfaceRequest, body: JsonBody, target: Target, asked: Asked, *, counts: bool
) -> DecodedRequest:
    sent, streams = native_body(body, target, counts=counts)
    relay: ResponseTranslator
    if counts:
        relay = CountRelay(asked, native_count)
    elif streams:
        relay = StreamRelay(asked, NativeStream(asked))
    else:
        relay = WholeRelay(asked, native_message)
    path = call.route.path.removeprefix(AnthropicSurface.prefix)
    return _exchange(call, target, asked, sent, relay, path=path, streams=streams)


def _exchange(
    call: SurfaceRequest,
    target: Target,
    asked: Asked,
    sent: bytes,
    relay: ResponseTranslator,
    *,
    path: str,
    streams: bool = False,
) -> DecodedRequest:
    native = target.anthropic == "native"
    request = CanonicalRequest(
        surface=AnthropicSurface.name,
        model=asked.model,
        upstream=target.upstream,
        path=path,
        body=sent,
        content_type="application/json",
        stream=streams,
        headers=_to_engine(call.headers, FORWARDED if native else ()),
        takes_slot=call.route.path != COUNT_TOKENS,
    )
    return DecodedRequest(request, target, relay)


def _to_engine(headers: Mapping[str, str], forwarded: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return what an engine is told: the caller's key in the one form that engines know."""
    passed = [(name, headers[name]) for name in (*_TRACING, *forwarded) if name in headers]
    key = headers.get("x-api-key")  # wins where both are given
    authorization = f"Bearer {key}" if key else headers.get("authorization")
    if authorization:
        passed.append(("authorization", authorization))
    return tuple(passed)
