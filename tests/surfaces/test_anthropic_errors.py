"""Errors on `/llm`: one envelope, the status clients act on, the words they know."""

import json
from typing import Any

import pytest
from anthropic_bench import COUNT_TOKENS, bench, completion
from hypothesis import given
from hypothesis import strategies as st

from tornado_frontdoor.core.decisions import Outcome, Reason, Refusal, SleepDepth
from tornado_frontdoor.surfaces.anthropic import AnthropicSurface
from tornado_frontdoor.surfaces.anthropic.errors import engine_failure
from tornado_frontdoor.surfaces.base import Document


def refuse(refusal: Refusal, status: Any = 529, request_id: str = "01J") -> Document:
    document = AnthropicSurface(status, str).refuse(refusal, request_id)
    body = json.loads(document.body)
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert set(body["error"]) == {"type", "message"}
    headers = dict(document.headers)
    assert headers["request-id"] == body["request_id"]
    assert headers["request-id"].startswith("req_")
    assert headers["Content-Type"] == "application/json"
    return document


def kind(document: Document) -> str:
    found: str = json.loads(document.body)["error"]["type"]
    return found


@pytest.mark.parametrize(
    ("reason", "status", "error_type"),
    [
        (Reason.QUEUE_FULL, 529, "overloaded_error"),
        (Reason.QUEUE_TIMEOUT, 529, "overloaded_error"),
        (Reason.MODEL_WAKING, 503, "api_error"),
        (Reason.UPSTREAM_DOWN, 503, "api_error"),
        (Reason.DRAINING, 503, "api_error"),
        (Reason.CLUSTER_OUTAGE, 503, "api_error"),
        (Reason.UPSTREAM_ERROR, 502, "api_error"),
        (Reason.UPSTREAM_TIMEOUT, 504, "timeout_error"),
        (Reason.MODEL_NOT_FOUND, 404, "not_found_error"),
        (Reason.BAD_REQUEST, 400, "invalid_request_error"),
        (Reason.BODY_TOO_LARGE, 413, "request_too_large"),
        (Reason.BUFFERS_FULL, 529, "overloaded_error"),
        (Reason.REQUEST_TIMEOUT, 408, "invalid_request_error"),
        (Reason.NOT_FOUND, 404, "not_found_error"),
        (Reason.METHOD_NOT_ALLOWED, 405, "invalid_request_error"),
    ],
)
def test_each_reason_has_its_status_and_type(reason: Reason, status: int, error_type: str) -> None:
    document = refuse(Refusal(reason, "why"))
    assert (document.status, kind(document)) == (status, error_type)
    assert json.loads(document.body)["error"]["message"] == "why"


def test_every_reason_can_be_rendered() -> None:
    for reason in Reason:
        refuse(Refusal(reason, "why", "gpu", 5.0, SleepDepth.SLEEPING, 2.0, "param"))


@pytest.mark.parametrize("reason", [Reason.QUEUE_FULL, Reason.QUEUE_TIMEOUT])
def test_full_line_can_be_told_in_the_way_that_is_retried_longer(reason: Reason) -> None:
    document = refuse(Refusal(reason, "full", retry_after_s=7.0), status=503)
    assert (document.status, kind(document)) == (503, "api_error")


@pytest.mark.parametrize(
    ("after_s", "seconds", "milliseconds"),
    [(7.0, "7", "7000"), (6.2, "7", "6200"), (0.0, "1", "1"), (59.0, "59", "59000"),
     (600.0, "600", "59000")],
)  # fmt: skip
def test_retry_after_comes_in_whole_seconds_and_beside_it_what_sdks_prefer(
    after_s: float, seconds: str, milliseconds: str
) -> None:
    headers = dict(refuse(Refusal(Reason.QUEUE_FULL, "full", retry_after_s=after_s)).headers)
    assert headers["Retry-After"] == seconds
    assert headers["retry-after-ms"] == milliseconds
    assert headers["x-should-retry"] == "true"


def test_what_no_retry_can_help_promises_none() -> None:
    headers = dict(refuse(Refusal(Reason.BAD_REQUEST, "no")).headers)
    assert not {"Retry-After", "retry-after-ms", "x-should-retry"} & set(headers)


def test_request_id_is_written_in_the_dialects_form_once() -> None:
    for request_id in ("01J", "req_01J"):
        headers = dict(refuse(Refusal(Reason.BAD_REQUEST, "x"), request_id=request_id).headers)
        assert headers["request-id"] == "req_01J"


def failed(
    status: int, body: bytes | dict[str, Any] = b"", headers: Any = (), **more: Any
) -> tuple[Document, dict[str, Any]]:
    document, ending = bench.answer(body, status=status, headers=headers, **more)
    expected = Outcome.UPSTREAM_ERROR if document.status >= 500 else Outcome.SERVED
    assert ending.outcome is expected
    envelope = json.loads(document.body)
    assert (envelope["type"], envelope["request_id"]) == ("error", "req_r1")
    error: dict[str, Any] = envelope["error"]
    assert error["message"]
    return document, error


@pytest.mark.parametrize(
    ("engine", "status", "error_type"),
    [
        (400, 400, "invalid_request_error"),
        (405, 400, "invalid_request_error"),
        (415, 400, "invalid_request_error"),
        (418, 400, "invalid_request_error"),
        (422, 400, "invalid_request_error"),
        (501, 400, "invalid_request_error"),
        (401, 401, "authentication_error"),
        (403, 403, "permission_error"),
        (404, 404, "not_found_error"),
        (409, 409, "conflict_error"),
        (413, 413, "request_too_large"),
        (429, 429, "rate_limit_error"),
        (500, 500, "api_error"),
        (502, 502, "api_error"),
        (503, 503, "api_error"),
        (504, 504, "timeout_error"),
        (529, 529, "overloaded_error"),
        (507, 500, "api_error"),
        (201, 502, "api_error"),
        (301, 502, "api_error"),
        (307, 502, "api_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_status_of_the_engine_keeps_its_meaning(
    engine: int, status: int, error_type: str, stream: bool
) -> None:
    document, error = failed(engine, {"error": {"message": "why"}}, stream=stream)
    assert (document.status, error) == (status, {"type": error_type, "message": "why"})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "m", "type": "T", "code": 400}}', "m"),
        (b'{"error": "Unauthorized"}', "Unauthorized"),
        (b'{"object": "error", "message": "m"}', "m"),
        (b'{"detail": "m"}', "m"),
        (b'{"detail": [{"loc": ["body"], "msg": "m"}]}', '[{"loc":["body"],"msg":"m"}]'),
        (b'{"type": "error", "error": {"type": "x", "message": "m"}}', "m"),
        (b'{"error": {"message": {"error": "m"}}}', "m"),
        (b'"m"', "m"),
        (b"  m  \n", "m"),
        (b"<html><body>m</body></html>", "<html><body>m</body></html>"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", "The engine answered with status 400"),
        (b"{}", "The engine answered with status 400"),
        (b"null", "The engine answered with status 400"),
        (b"[]", "The engine answered with status 400"),
        (b'{"error": {}}', "The engine answered with status 400"),
        (b'{"error": {"code": 5}}', "The engine answered with status 400"),
    ],
)
def test_message_of_the_engine_is_found_in_every_shape(body: bytes, message: str) -> None:
    assert failed(400, body)[1]["message"] == message


def test_an_error_that_is_no_legal_json_number_is_told_all_the_same() -> None:
    failure = engine_failure(400, [], b'{"error": [Infinity, NaN]}')
    assert "inf" in str(failure).lower()


def test_endless_error_bodies_are_cut() -> None:
    _, error = failed(500, b"x" * 10_000_000)
    assert error["message"] == "x" * 199 + "…"
    _, error = failed(500, {"error": {"message": "é" * 10_000}})
    assert error["message"] == "é" * 199 + "…"


def test_control_codes_of_an_error_reach_no_terminal() -> None:
    _, error = failed(500, {"error": {"message": "a\x1b[31mb\nc"}})
    assert error["message"] == "a\\x1b[31mb\\nc"


def test_credential_that_the_engine_refuses_is_not_tried_again() -> None:
    document, error = failed(401, b'{"error":"Unauthorized"}')
    assert error == {"type": "authentication_error", "message": "Unauthorized"}
    assert dict(document.headers)["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("value", "expected"),
    [("5", ("5", "5000")), ("2.5", ("3", "2500")), ("600", ("600", "59000")), ("soon", None),
     ("-1", None), ("1e9", None), ("", None)],
)  # fmt: skip
@pytest.mark.parametrize("status", [429, 503, 529])
def test_retry_after_of_the_engine_is_kept(
    status: int, value: str, expected: tuple[str, str] | None
) -> None:
    document, _ = failed(status, b'{"error": "busy"}', [("Retry-After", value)])
    headers = dict(document.headers)
    found = (
        (headers["Retry-After"], headers["retry-after-ms"]) if "Retry-After" in headers else None
    )
    assert found == expected


def test_retry_after_beside_other_errors_is_not_passed_on() -> None:
    document, _ = failed(400, b"no", [("Retry-After", "5")])
    assert "Retry-After" not in dict(document.headers)


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        (
            (
                "This model's maximum context length is 8192 tokens. However, you requested 100 "
                "output tokens and your prompt contains 20000 input tokens, for 20100 in all."
            ),
            "prompt is too long: 20000 tokens > 8192 maximum",
        ),
        (
            (
                "This model's maximum context length is 8192 tokens. However, your prompt contains "
                "at least 8193 input tokens.\nPlease reduce it."
            ),
            "prompt is too long: 8193 tokens > 8192 maximum",
        ),
        (
            (
                "This model's maximum context length is 8192 tokens. However, your request "
                "contains 900000 characters"
            ),
            "prompt is too long: 8193 tokens > 8192 maximum",
        ),
        (
            "Input length (9000) exceeds model's maximum context length (8192).",
            "prompt is too long: 9000 tokens > 8192 maximum",
        ),
        (
            "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
            "prompt is too long: 9000 tokens > 8192 maximum",
        ),
        (
            "This prompt is longer than the maximum model length of 8192.",
            "prompt is too long: 8193 tokens > 8192 maximum",
        ),
        (
            (
                "This model's maximum context length is 8192 tokens. However, you requested 20000 "
                "tokens (18000 in the messages, 2000 in the completion)."
            ),
            "prompt is too long: 18000 tokens > 8192 maximum",
        ),
        (
            (
                "This model's maximum context length is 8192 tokens. However, you requested 10000 "
                "tokens (8000 in the messages, 2000 in the completion)."
            ),
            "prompt is too long: 10000 tokens > 8192 maximum",
        ),
    ],
)
def test_overlong_prompt_is_told_in_words_that_clients_compact_on(
    text: str, rewritten: str
) -> None:
    for status, body in ((400, {"error": {"message": text}}), (500, {"error": text})):
        document, error = failed(status, body)
        assert document.status == 400
        assert error == {"type": "invalid_request_error", "message": rewritten}


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=64000 cannot be greater than max_model_len=8192",
        "maximum context length is 8192 tokens and your prompt contains 500 input tokens",
        "max_tokens must be at least 1, got -1.",
    ],
)
def test_every_other_message_goes_on_unchanged(text: str) -> None:
    assert failed(400, {"error": {"message": text}})[1]["message"] == text


@given(st.integers(100, 999), st.binary(max_size=200))
def test_no_error_body_at_all_upsets_the_mapping(status: int, body: bytes) -> None:
    failure = engine_failure(status, [], body)
    assert failure.status >= 400
    assert failure.message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "message", "detail", "code", "status", "type", "x"]), inner
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from([200, 307, 400, 500, 503]), json_values)
def test_no_json_at_all_upsets_the_mapping(status: int, value: Any) -> None:
    failure = engine_failure(status, [], json.dumps(value).encode())
    assert 400 <= failure.status < 600
    assert 0 < len(failure.message) <= 4096


# Counting


def test_count_is_the_engines_own() -> None:
    document, ending = bench.answer(
        {"count": 42, "max_model_len": 8192, "tokens": [1, 2]}, path=COUNT_TOKENS
    )
    assert (document.status, ending.outcome) == (200, Outcome.SERVED)
    assert json.loads(document.body) == {"input_tokens": 42}


def test_count_is_found_wherever_it_stands() -> None:
    document, _ = bench.answer({"tokens": [1, 2], "max_model_len": 8192, "count": 2},
                               path=COUNT_TOKENS)  # fmt: skip
    assert json.loads(document.body) == {"input_tokens": 2}


def test_long_list_of_tokens_is_not_read_to_its_end() -> None:
    relay = bench.decode(bench.question(), path=COUNT_TOKENS).relay
    relay.head(200, [])
    relay.data(b'{"count":200000,"max_model_len":262144,"tokens":[1')
    for read in range(1000):  # noqa: B007 - its last value is the result
        relay.data(b",12345" * 200)
        if relay.ending is not None:
            break
    assert read < 100
    assert relay.ending is not None
    assert relay.ending.document is not None
    assert json.loads(relay.ending.document.body) == {"input_tokens": 200000}
    assert ("request-id", "req_r1") in list(relay.ending.document.headers)


def test_short_list_of_tokens_is_read_to_its_end_and_the_connection_kept() -> None:
    relay = bench.decode(bench.question(), path=COUNT_TOKENS).relay
    relay.head(200, [])
    relay.data(b'{"count":3,"max_model_len":8192,"tokens":[1')
    assert relay.ending is None
    relay.data(b",2,3]}")
    assert relay.ending is None


@pytest.mark.parametrize("status", [404, 405, 501])
def test_engine_without_a_tokenizer_gives_no_number(status: int) -> None:
    document, error = failed(status, {"detail": "Not Found"}, path=COUNT_TOKENS)
    assert (document.status, error["type"]) == (404, "not_found_error")


@pytest.mark.parametrize("body", [b"{}", b'{"count": "5"}', b'{"count": true}', b'{"count": null}'])
def test_answer_without_a_count_gives_no_number(body: bytes) -> None:
    document, error = failed(200, body, path=COUNT_TOKENS)
    assert (document.status, error["type"]) == (404, "not_found_error")


@pytest.mark.parametrize(("status", "expected"), [(400, 400), (503, 503), (500, 500)])
def test_count_that_fails_is_an_error_and_no_number(status: int, expected: int) -> None:
    document, _ = failed(status, {"error": {"message": "no"}}, path=COUNT_TOKENS)
    assert document.status == expected


def test_count_keeps_an_engine_error_in_a_success_for_what_it_is() -> None:
    document, _ = failed(200, b"not json", path=COUNT_TOKENS)
    assert document.status == 502


def test_success_says_nothing_of_errors() -> None:
    document, _ = bench.answer(completion({"content": "x"}))
    assert "x-should-retry" not in dict(document.headers)
