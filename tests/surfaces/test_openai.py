"""The OpenAI dialect: what passes, for whom it is, and how a refusal reads."""

import json

import pytest

from tornado_frontdoor.core.catalog import Catalog, Routes, Target
from tornado_frontdoor.core.decisions import Outcome, Reason, Refusal, SleepDepth
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.surfaces.base import Ending, ListedModel, Refused, RouteKind, SurfaceRequest
from tornado_frontdoor.surfaces.openai import OpenAISurface
from tornado_frontdoor.surfaces.pass_through import PassThrough

SURFACE = OpenAISurface()
TEXT = Target(
    model="Qwen3.6-35B-A3B-FP8",
    served_name="Qwen3.6-35B-A3B-FP8",
    upstream=UpstreamKey("text"),
    aliases=("claude-*",),
    max_weight=6,
)
OCR = Target(model="OvisOCR2", served_name="ovis", upstream=UpstreamKey("ocr"))
EMBED = Target(model="Embed", served_name="Embed", upstream=UpstreamKey("embed"))
CATALOG = Catalog(
    [TEXT, OCR, EMBED],
    Routes(
        chat_default="Qwen3.6-35B-A3B-FP8", multipart_chat_default="OvisOCR2", embeddings="Embed"
    ),
)
CHAT = "/v1/chat/completions"


def decode(path, body, catalog=CATALOG, **headers):
    route = SURFACE.route("POST", path)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"content-type": "application/json"} | {
        k.replace("_", "-"): v for k, v in headers.items()
    }
    return SURFACE.decode(SurfaceRequest(route, "", given, raw, "id"), catalog)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/score", "/v1/audio/translations"])
def test_a_public_path_goes_to_an_engine(path):
    assert SURFACE.route("POST", path).kind is RouteKind.ENGINE


HIDDEN = """
/v1/messages /v1/load_lora_adapter /v1/unload_lora_adapter /invocations /ping /sleep /wake_up
/is_sleeping /collective_rpc /reset_prefix_cache /pause /resume /abort_requests /metrics /docs
/openapi.json /server_info /v1/chat/completions/batch /v1/chat/completions/render /pooling
/v1/responses/resp_1/cancel /inference/v1/generate /tokenizer_info /scale_elastic_ep /admin/status
/V1/chat/completions /v1/chat/completions/ /v1/Chat/completions / /v1 /v1/
""".split()


@pytest.mark.parametrize("path", HIDDEN)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_everything_else_is_not_found(method, path):
    with pytest.raises(Refused) as refused:
        SURFACE.route(method, path)
    assert refused.value.refusal.reason is Reason.NOT_FOUND


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_a_public_path_by_another_method_is_not_found(method):
    with pytest.raises(Refused):
        SURFACE.route(method, CHAT)


def test_a_body_goes_on_byte_for_byte_when_the_name_is_the_served_one():
    body = b'{"model" : "Qwen3.6-35B-A3B-FP8",\n "messages":[] }'
    assert decode(CHAT, body).request.body == body


@pytest.mark.parametrize("spelt", ["qwen3.6-35b-a3b-fp8", "claude-sonnet-5", "CLAUDE-x"])
def test_another_spelling_reaches_the_engine_as_the_served_name(spelt):
    exchange = decode(CHAT, {"model": spelt, "messages": []})
    assert exchange.request.model == spelt
    assert json.loads(exchange.request.body)["model"] == "Qwen3.6-35B-A3B-FP8"
    assert exchange.request.upstream == "text"


def test_an_unknown_model_is_not_found():
    with pytest.raises(Refused) as refused:
        decode(CHAT, {"model": "gpt-9", "messages": []})
    assert refused.value.refusal.reason is Reason.MODEL_NOT_FOUND
    assert "gpt-9" in refused.value.refusal.detail


@pytest.mark.parametrize(
    ("path", "body", "upstream"),
    [
        (CHAT, {}, "text"),
        ("/v1/completions", {"prompt": "x"}, "text"),
        ("/v1/embeddings", {"input": "x"}, "embed"),
        ("/v1/embeddings", {"input": "x", "model": "ovisocr2"}, "embed"),
    ],
)
def test_a_route_has_a_model_where_the_body_names_none(path, body, upstream):
    assert decode(path, body).request.upstream == upstream


@pytest.mark.parametrize("path", ["/v1/score", "/v1/rerank", "/v1/responses", "/tokenize"])
def test_elsewhere_a_model_must_be_named(path):
    with pytest.raises(Refused) as refused:
        decode(path, {})
    assert refused.value.refusal.reason is Reason.BAD_REQUEST
    assert refused.value.refusal.param == "model"


def multipart_body(model):
    field = (
        f'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n' if model else ""
    )
    file = (
        '--b\r\nContent-Disposition: form-data; name="f"; filename="x"\r\n\r\n\x00\x01\r\n--b--\r\n'
    )
    return (field + file).encode()


def test_multipart_chat_without_a_model_is_for_the_default_and_unchanged():
    body = multipart_body(None)
    exchange = decode(CHAT, body, content_type="multipart/form-data; boundary=b")
    assert (exchange.request.upstream, exchange.request.body) == ("ocr", body)


def test_multipart_with_the_served_name_is_unchanged():
    body = multipart_body("Embed")
    exchange = decode(
        "/v1/audio/transcriptions", body, content_type="multipart/form-data; boundary=b"
    )
    assert (exchange.request.upstream, exchange.request.body) == ("embed", body)


def test_multipart_by_another_name_changes_only_that_name():
    exchange = decode(
        "/v1/audio/transcriptions",
        multipart_body("ovisOCR2"),
        content_type="multipart/form-data; boundary=b",
    )
    assert exchange.request.body == multipart_body("ovis")


def test_a_background_response_is_refused_where_there_is_a_cap():
    with pytest.raises(Refused) as refused:
        decode("/v1/responses", {"model": "claude-x", "background": True})
    assert refused.value.refusal.param == "background"
    assert (
        decode("/v1/responses", {"model": "Embed", "background": True}).request.upstream == "embed"
    )


def test_tokenizing_takes_no_slot():
    assert not decode("/tokenize", {"model": "claude-x"}).request.takes_slot
    assert decode(CHAT, {}).request.takes_slot


def test_headers_that_steer_the_engine_stay_outside():
    exchange = decode(
        CHAT,
        {},
        authorization="Bearer k",
        x_vllm_priority="-1",
        x_data_parallel_rank="3",
        x_session_id="s",
        x_request_id="mine",
        connection="keep-alive",
        te="trailers",
        host="h",
        content_length="2",
        accept_encoding="gzip",
    )
    assert dict(exchange.request.headers) == {"authorization": "Bearer k"}


# Answers


def relay_stream(*chunks, path=CHAT, status=200):
    relay = PassThrough(path)
    relay.head(status, [("Content-Type", "text/event-stream; charset=utf-8")])
    for chunk in chunks:
        assert relay.data(chunk) == chunk
    return relay


TOKEN = b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":null}]}\n\n'
STOP = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def test_a_whole_stream_was_served():
    assert relay_stream(TOKEN, STOP, DONE).end() == Ending(Outcome.SERVED)


def test_a_stream_that_finished_without_its_last_line_was_served():
    """S30: complete although the end marker is missing."""
    assert relay_stream(TOKEN, STOP).end().outcome is Outcome.SERVED


def test_a_stream_that_just_ends_gets_an_error_event():
    ending = relay_stream(TOKEN, TOKEN).end()
    assert ending.outcome is Outcome.UPSTREAM_ERROR
    assert not ending.whole
    assert json.loads(ending.data.removeprefix(b"data: "))["error"]["type"] == "upstream_error"


def test_an_error_event_after_half_a_frame_is_a_frame_of_its_own():
    event = relay_stream(TOKEN, b'data: {"cho').broken(Reason.UPSTREAM_TIMEOUT, "silent")
    assert event.startswith(b"\n\ndata: {")
    assert b"[DONE]" not in event


@pytest.mark.parametrize(
    "last",
    [
        b'data: {"error":{"message":"EngineDead","code":500}}\n\n',
        b'data: {"choices":[{"delta":{},"finish_reason":"abort"}]}\n\n',
        b'data: {"choices":[{"delta":{},"finish_reason": "abort"}]}\n\n',
    ],
)
def test_a_failure_inside_of_a_polite_stream_is_counted_as_one(last):
    ending = relay_stream(TOKEN, last, DONE).end()
    assert (ending.outcome, ending.whole) == (Outcome.UPSTREAM_ERROR, True)


def test_an_abort_in_a_whole_answer_is_counted_as_a_failure():
    relay = PassThrough(CHAT)
    relay.head(200, [("content-type", "application/json")])
    relay.data(b'{"choices":[{"finish_reason":"abort"}]}')
    assert relay.end().outcome is Outcome.UPSTREAM_ERROR


def test_an_engines_own_error_passes_through():
    relay = PassThrough(CHAT)
    assert relay.head(400, [("Content-Type", "application/json")]) is not None
    assert relay.data(b'{"error":{}}') == b'{"error":{}}'
    assert relay.end().outcome is Outcome.SERVED


def test_a_redirect_is_never_relayed():
    relay = PassThrough(CHAT)
    assert relay.head(307, [("Location", "http://engine/secret")]) is None
    assert relay.ending is not None
    assert relay.ending.refusal is not None
    assert relay.ending.refusal.reason is Reason.UPSTREAM_ERROR


def test_what_a_client_sees_of_the_engines_headers():
    relay = PassThrough(CHAT)
    head = relay.head(
        200,
        [
            ("Server", "uvicorn"),
            ("Content-Type", "application/json"),
            ("Transfer-Encoding", "chunked"),
            ("Connection", "close, X-Hop"),
            ("X-Hop", "1"),
            ("X-Request-Id", "engine's"),
            ("Openai-Version", "1"),
        ],
    )
    assert head is not None
    assert list(head.headers) == [("Content-Type", "application/json"), ("Openai-Version", "1")]


# Refusals

RETRYABLE = [
    (Reason.QUEUE_FULL, 503, "overloaded"),
    (Reason.QUEUE_TIMEOUT, 503, "overloaded"),
    (Reason.MODEL_WAKING, 503, "model_waking"),
    (Reason.UPSTREAM_DOWN, 503, "model_waking"),
    (Reason.DRAINING, 503, "draining"),
    (Reason.CLUSTER_OUTAGE, 503, "cluster_outage"),
    (Reason.BUFFERS_FULL, 503, "overloaded"),
]
FINAL = [
    (Reason.UPSTREAM_ERROR, 502, "upstream_error"),
    (Reason.UPSTREAM_TIMEOUT, 504, "upstream_timeout"),
    (Reason.MODEL_NOT_FOUND, 404, "invalid_request_error"),
    (Reason.BAD_REQUEST, 400, "invalid_request_error"),
    (Reason.BODY_TOO_LARGE, 413, "invalid_request_error"),
    (Reason.REQUEST_TIMEOUT, 408, "invalid_request_error"),
    (Reason.NOT_FOUND, 404, "invalid_request_error"),
]


@pytest.mark.parametrize(("reason", "status", "error_type"), RETRYABLE)
def test_a_retryable_refusal_says_when_to_come_back(reason, status, error_type):
    """F23: every 503 carries a Retry-After."""
    document = SURFACE.refuse(Refusal(reason, "why", "text", retry_after_s=6.4), "abc")
    headers = dict(document.headers)
    body = json.loads(document.body)
    assert document.status == body["status"] == status
    assert headers["Content-Type"] == "application/problem+json"
    assert (headers["Retry-After"], headers["retry-after-ms"]) == ("7", "6400")
    assert headers["x-should-retry"] == "true"
    assert body["error"]["type"] == error_type
    assert body["error"]["message"] == body["detail"] == "why"
    assert body["instance"] == "urn:frontdoor:request:abc"
    assert (body["upstream"], body["retry_after_s"]) == ("text", 7)


@pytest.mark.parametrize(("reason", "status", "error_type"), FINAL)
def test_a_final_refusal_invites_no_retry(reason, status, error_type):
    document = SURFACE.refuse(Refusal(reason, "why"), "abc")
    assert document.status == status
    assert "Retry-After" not in dict(document.headers)
    assert json.loads(document.body)["error"]["type"] == error_type


def test_a_waking_model_says_how_deep_and_how_long_in_both_places():
    refusal = Refusal(
        Reason.MODEL_WAKING, "waking", "text", 600, SleepDepth.RESTARTING, estimated_wake_s=45.0
    )
    document = SURFACE.refuse(refusal, "abc")
    body = json.loads(document.body)
    for place in (body, body["error"]):
        assert (place["sleep_depth"], place["estimated_wake_seconds"]) == ("restarting", 45.0)
    headers = dict(document.headers)
    assert (headers["Retry-After"], headers["retry-after-ms"]) == ("600", "59000")


# Models


def test_models_are_listed_by_every_name_with_their_engines_state():
    listing = [ListedModel(n, t, "asleep", "sleeping", 5) for n, t in CATALOG.names()]
    call = SurfaceRequest(SURFACE.route("GET", "/v1/models"), "", {}, b"", "id")
    data = json.loads(SURFACE.models(call, listing).body)["data"]
    assert [entry["id"] for entry in data] == ["Qwen3.6-35B-A3B-FP8", "OvisOCR2", "Embed"]
    assert data[0]["frontdoor"] == {
        "upstream": "text",
        "state": "asleep",
        "sleep_depth": "sleeping",
    }


def test_one_model_is_found_by_its_id_also_with_a_slash():
    target = Target(model="Qwen/Qwen3", served_name="q", upstream=UpstreamKey("text"))
    listing = [ListedModel("Qwen/Qwen3", target, "awake", None, 5)]
    for path in ("/v1/models/Qwen/Qwen3", "/v1/models/qwen%2Fqwen3"):
        call = SurfaceRequest(SURFACE.route("GET", path), "", {}, b"", "id")
        assert json.loads(SURFACE.models(call, listing).body)["id"] == "Qwen/Qwen3"
    with pytest.raises(Refused) as refused:
        SURFACE.models(
            SurfaceRequest(SURFACE.route("GET", "/v1/models/no"), "", {}, b"", "id"), listing
        )
    assert refused.value.refusal.reason is Reason.MODEL_NOT_FOUND
