"""Streams that die, fall silent, or never were one: an error, and never a polite end."""

import json
from itertools import pairwise
from typing import Any

import pytest
from anthropic_bench import (
    DONE,
    EVENT_STREAM,
    JSON,
    ROLE,
    Streamed,
    bench,
    call_delta,
    chunk,
    sse,
    usage_chunk,
)

from tornado_frontdoor.core.decisions import Outcome, Reason

Json = dict[str, Any]


# Deaths


def broken_stream(*payloads: Json | str | bytes) -> Streamed:
    pieces = [p if isinstance(p, bytes) else sse(p) for p in payloads]
    result = bench.stream(*pieces)
    assert result.ending.outcome is Outcome.UPSTREAM_ERROR
    assert not result.ending.whole
    return result


@pytest.mark.parametrize(
    "payloads",
    [
        [],
        [DONE],
        [ROLE, DONE],
        [ROLE, chunk({"content": "x"})],
        [ROLE, chunk({"content": "x"}), DONE],
        [ROLE, chunk({"content": "x"}), usage_chunk(), DONE],
        [ROLE, chunk({"content": "x"}), b'data: {"choices":'],
        [ROLE, b"data: {oops}\n\n", chunk({"content": "x"}, "stop"), DONE],
        [ROLE, b"data: [1]\n\n"],
        [ROLE, b"data: 5\n\n"],
        [ROLE, {"choices": {"a": 1}}],
        [ROLE, {"choices": [5]}],
        [ROLE, {"choices": [{"delta": "x"}]}],
        [ROLE, chunk({"content": ["x"]})],
        [ROLE, chunk({"tool_calls": {"a": 1}})],
        [ROLE, chunk({"tool_calls": [5]})],
        [ROLE, chunk({"tool_calls": [{"function": 5}]})],
        [ROLE, chunk({"tool_calls": [{"id": 5, "function": {}}]})],
        [ROLE, chunk({"content": "x"}, "abort"), DONE],
        [ROLE, chunk({"content": "x"}, "error"), DONE],
        [ROLE, {"error": {"message": "boom", "type": "InternalServerError", "code": 500}}, DONE],
        [ROLE, {"error": "boom"}],
        [ROLE, b"event: error\ndata: {}\n\n"],
    ],
)
def test_stream_that_is_not_whole_ends_with_an_error_and_no_end(payloads: list[Any]) -> None:
    result = broken_stream(*payloads)
    assert result.error["type"] == "api_error"
    assert "message_delta" not in result.kinds


def test_content_before_the_death_is_passed_on() -> None:
    result = broken_stream(ROLE, chunk({"content": "half"}, "abort"))
    assert b'"text":"half"' in result.data
    assert "content_block_stop" not in result.kinds


@pytest.mark.parametrize(
    ("code", "kind"),
    [(400, "invalid_request_error"), (429, "rate_limit_error"), (500, "api_error"),
     (503, "overloaded_error"), ("503", "overloaded_error"), (504, "timeout_error"),
     (None, "api_error"), ("server_error", "api_error")],
)  # fmt: skip
def test_error_of_the_engine_keeps_its_meaning_and_its_words(code: Any, kind: str) -> None:
    error = broken_stream(ROLE, {"error": {"message": "boom", "code": code}}, DONE).error
    assert error == {"type": kind, "message": "boom"}


def test_overlong_prompt_is_told_in_words_that_clients_know() -> None:
    text = "This model's maximum context length is 8192 tokens. It contains 20000 input tokens."
    error = broken_stream({"error": {"message": text, "code": 400}}).error
    assert error["type"] == "invalid_request_error"
    assert error["message"] == "prompt is too long: 20000 tokens > 8192 maximum"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [(Reason.UPSTREAM_TIMEOUT, "timeout_error"), (Reason.UPSTREAM_ERROR, "api_error")],
)
def test_engine_that_dies_or_falls_silent_is_an_error_event(reason: Reason, kind: str) -> None:
    relay = bench.decode(bench.question(stream=True)).relay
    relay.head(200, EVENT_STREAM)
    relay.data(sse(chunk({"content": "x"})) + b'data: {"half')
    event = relay.broken(reason, "gpu: silent for 120 s")
    assert event.startswith(b"event: error\ndata: ")
    assert json.loads(event.split(b"data: ")[1]) == {
        "type": "error",
        "error": {"type": kind, "message": "gpu: silent for 120 s"},
        "request_id": "req_r1",
    }


def test_frame_without_an_end_is_an_error() -> None:
    relay = bench.decode(bench.question(stream=True)).relay
    relay.head(200, EVENT_STREAM)
    relay.data(b"data: ")
    for _ in range(17):
        relay.data(b"x" * 1024 * 1024)
    assert relay.ending is not None
    assert relay.ending.outcome is Outcome.UPSTREAM_ERROR
    assert b"event: error" in relay.ending.data


# Silence


def test_silence_is_filled_with_comments_and_then_with_pings() -> None:
    relay = bench.decode(bench.question(stream=True)).relay
    relay.head(200, EVENT_STREAM)
    assert relay.keep_alive() == b": keep-alive\n\n"
    relay.data(sse(chunk({"content": "x"})))
    assert relay.keep_alive() == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_pings_do_not_change_the_message() -> None:
    relay = bench.decode(bench.question(stream=True)).relay
    relay.head(200, EVENT_STREAM)
    pieces = [sse(ROLE), sse(chunk({"content": "x"})), sse(chunk({}, "stop")), sse(DONE)]
    out = b"".join(piece for chunk_ in pieces for piece in (relay.keep_alive(), relay.data(chunk_)))
    assert relay.ending is not None
    result = Streamed(out, relay.ending, [])
    assert result.kinds.count("ping") == 3
    assert result.message()["content"][0]["text"] == "x"


def test_client_hears_something_while_its_arguments_are_held() -> None:
    start = sse(chunk(call_delta(0, "a", "f")))
    piece = sse(chunk(call_delta(0, arguments="x")))
    result = bench.stream(start, *[piece] * 1000, traits={"tool_args": "buffer"})
    assert 2 <= result.data.count(b"event: ping") <= 5
    silent = [bool(piece) for piece in result.pieces]
    places = [number for number, said in enumerate(silent) if said]
    assert max(later - earlier for earlier, later in pairwise(places)) <= 256


# No stream at all


def test_error_instead_of_a_stream_is_a_document_with_its_status() -> None:
    document, ending = bench.answer(
        {"error": {"message": "bad", "code": 400}}, status=400, stream=True
    )
    assert (document.status, ending.outcome) == (400, Outcome.SERVED)
    assert json.loads(document.body)["error"] == {"type": "invalid_request_error", "message": "bad"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"error": {"message": "boom", "code": 503}}', 503),
        (b'{"error": "boom"}', 502),
        (b'{"choices": [{"message": {"content": "x"}}]}', 502),
        (b"<html>", 502),
        (b"", 502),
    ],
)
def test_whole_answer_to_a_streaming_question_is_never_a_success(body: bytes, status: int) -> None:
    document, ending = bench.answer(body, stream=True, headers=JSON)
    assert (document.status, ending.outcome) == (status, Outcome.UPSTREAM_ERROR)


def test_error_status_with_an_event_stream_is_no_stream() -> None:
    document, _ = bench.answer(b'{"error": "busy"}', status=503, headers=EVENT_STREAM, stream=True)
    assert document.status == 503
