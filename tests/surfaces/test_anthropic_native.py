"""Engines that speak Anthropic Messages themselves: passed through, guarded at the end."""

import json
from typing import Any

import pytest
from anthropic_bench import COUNT_TOKENS, EVENT_STREAM, Streamed, bench

from tornado_frontdoor.core.decisions import Outcome, Reason
from tornado_frontdoor.surfaces.base import Refused

Json = dict[str, Any]


def event(kind: str | None, **payload: Any) -> bytes:
    line = "" if kind is None else f"event: {kind}\n"
    return f"{line}data: {json.dumps({'type': kind, **payload}, ensure_ascii=False)}\n\n".encode()


START = event(
    "message_start",
    message={
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "reasoning",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 0},
    },
)
BLOCK = (
    event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    + event("content_block_delta", index=0, delta={"type": "text_delta", "text": "渐🙂"})
    + event("content_block_stop", index=0)
)
DELTA = event(
    "message_delta",
    delta={"stop_reason": "end_turn", "stop_sequence": None},
    usage={"output_tokens": 2},
)
STOP = event("message_stop")


def native(*pieces: bytes, **more: Any) -> Streamed:
    return bench.stream(*pieces, anthropic="native", **more)


def test_body_goes_on_byte_for_byte_but_for_the_models_name() -> None:
    body = b'{ "model" : "claude-x", "max_tokens":5, "odd": [1.0, "\\u00e9", 1e2],"messages":[ ] }'
    request = bench.decode(body, anthropic="native").request
    assert request.body == body.replace(b"claude-x", b"reasoning")
    assert (request.path, request.stream, request.takes_slot) == ("/v1/messages", False, True)


def test_stream_flag_is_read() -> None:
    assert bench.decode(bench.question(stream=True), anthropic="native").request.stream


def test_max_tokens_is_clamped_here_too() -> None:
    exchange = bench.decode(
        bench.question(max_tokens=64_000, odd="é"), anthropic="native", max_model_len=8192
    )
    sent = json.loads(exchange.request.body)
    assert sent == bench.question(max_tokens=8192, odd="é") | {"model": "reasoning"}
    with pytest.raises(Refused):
        bench.decode(bench.question(max_tokens=None), anthropic="native")


def test_version_and_beta_are_told_to_the_engine_and_the_key_as_a_bearer() -> None:
    headers = {"anthropic-version": "v", "anthropic-beta": "b", "x-api-key": "k", "x-app": "cli"}
    request = bench.decode(bench.question(), anthropic="native", headers=headers).request
    assert dict(request.headers) == {
        "anthropic-version": "v",
        "anthropic-beta": "b",
        "authorization": "Bearer k",
    }


def test_stream_is_passed_frame_for_frame_under_the_name_that_was_asked_for() -> None:
    result = native(START + BLOCK + DELTA + STOP)
    assert result.ending.outcome is Outcome.SERVED
    message = result.message()
    assert message["model"] == "claude-x"
    assert message["content"][0]["text"] == "渐🙂"
    assert BLOCK + DELTA in result.data


def test_any_cut_gives_the_same_stream() -> None:
    data = START + BLOCK + DELTA + STOP
    whole = native(data).data
    for cut in range(len(data)):
        assert native(data[:cut], data[cut:]).data == whole
    crlf = data.replace(b"\n", b"\r\n")
    assert native(*(crlf[i : i + 1] for i in range(len(crlf)))).data == whole


def test_end_is_told_at_once_and_nothing_after_it() -> None:
    relay = bench.decode(bench.question(stream=True), anthropic="native").relay
    relay.head(200, EVENT_STREAM)
    data = relay.data(START + DELTA + STOP + b"data: [DONE]\n\n")
    assert data.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    assert relay.ending is not None
    assert relay.ending.outcome is Outcome.SERVED


def test_events_without_a_name_line_get_one() -> None:
    payload = b'data: {"type":"content_block_stop","index":0}\n\n'
    result = native(START + payload)
    assert b"event: content_block_stop\n" + payload in result.data


def test_several_data_lines_stay_one_event() -> None:
    frame = b'event: odd\ndata: {"a":\ndata: 1}\n\n'
    assert frame in native(START + frame).data


def test_pings_of_the_engine_pass_and_ours_come_between_frames() -> None:
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'
    relay = bench.decode(bench.question(stream=True), anthropic="native").relay
    relay.head(200, EVENT_STREAM)
    assert relay.keep_alive().startswith(b":")
    data = START + ping + BLOCK + DELTA + STOP
    out = b""
    for start in range(0, len(data), 7):  # cut within frames: ours must not land inside of one
        out += relay.data(data[start : start + 7]) + relay.keep_alive()
        if relay.ending is not None:
            break
    assert relay.ending is not None
    result = Streamed(out.rpartition(b"event: ping")[0], relay.ending, [])
    assert result.message()["content"][0]["text"] == "渐🙂"
    assert ping in out


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [START],
        [START, BLOCK],
        [START, BLOCK, DELTA],
        [START, BLOCK, STOP],
        [START, BLOCK, DELTA.replace(b'"end_turn"', b"null"), STOP],
        [START, BLOCK, b"data: [DONE]\n\n"],
        [START, b'event: error\ndata: {"type":"error","error":{"message":"boom"}}\n\n'],
        [START, b'event: error\ndata: {"error":"boom"}\n\n'],
        [START, b'data: {"error":{"message":"boom","code":500}}\n\n'],
        [START, b"data: oops\n\n"],
        [START, b"event: message_delta\ndata: oops\n\n"],
    ],
)
def test_message_that_is_not_whole_ends_with_an_error(pieces: list[bytes]) -> None:
    result = native(*pieces)
    assert result.ending.outcome is Outcome.UPSTREAM_ERROR
    assert result.error["type"] == "api_error"


def test_engine_that_dies_within_a_frame_leaves_no_half_frame() -> None:
    relay = bench.decode(bench.question(stream=True), anthropic="native").relay
    relay.head(200, EVENT_STREAM)
    sent = relay.data(START + BLOCK[:30])
    assert sent.endswith(b"\n\n")
    assert relay.broken(Reason.UPSTREAM_TIMEOUT, "silent").startswith(b"event: error\n")


MESSAGE: Json = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "reasoning",
    "content": [{"type": "text", "text": "x"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 2},
}


def test_whole_message_is_passed_under_the_name_that_was_asked_for() -> None:
    body = json.dumps(MESSAGE).encode()
    document, ending = bench.answer(body, anthropic="native")
    assert ending.outcome is Outcome.SERVED
    assert document.body == body.replace(b'"reasoning"', b'"claude-x"')


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (MESSAGE | {"stop_reason": None}, 500),
        ({"error": {"message": "boom"}}, 500),
        ({"choices": []}, 502),
        (b"<html>", 502),
        (json.dumps(MESSAGE).encode("utf-16"), 502),
    ],
)
def test_message_that_is_none_is_the_engines_fault(body: Any, status: int) -> None:
    document, ending = bench.answer(body, anthropic="native")
    assert (document.status, ending.outcome) == (status, Outcome.UPSTREAM_ERROR)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"message": "bad", "type": "BadRequestError", "code": 400}}',
        b'{"type": "error", "error": {"type": "invalid_request_error", "message": "bad"}}',
        b'{"error": "bad"}',
    ],
)
def test_errors_come_in_one_envelope(body: bytes, stream: bool) -> None:
    document, _ = bench.answer(body, status=400, stream=stream, anthropic="native")
    assert json.loads(document.body)["error"] == {"type": "invalid_request_error", "message": "bad"}


def test_counts_go_to_the_engines_own_counter() -> None:
    question = {"model": "claude-x", "messages": []}
    request = bench.decode(question, path=COUNT_TOKENS, anthropic="native").request
    assert (request.path, request.takes_slot) == ("/v1/messages/count_tokens", False)
    document, _ = bench.answer({"input_tokens": 5}, path=COUNT_TOKENS, anthropic="native")
    assert json.loads(document.body) == {"input_tokens": 5}
    for status, body in ((404, b""), (200, b"{}"), (405, b"")):
        document, _ = bench.answer(body, status=status, path=COUNT_TOKENS, anthropic="native")
        assert document.status == 404
