"""Streamed answers: chunks in, events out, each judged by the official types and client."""

from typing import Any

import pytest
from anthropic_bench import (
    DONE,
    EVENT_STREAM,
    ROLE,
    bench,
    blocks,
    call_delta,
    chunk,
    finished,
    sse,
    streamed,
    usage_chunk,
)

from tornado_frontdoor.core.decisions import Outcome
from tornado_frontdoor.surfaces.base import ResponseTranslator

Json = dict[str, Any]


def ended(relay: ResponseTranslator) -> bool:
    return relay.ending is not None


# The shape


def test_plain_answer_event_by_event() -> None:
    result = bench.stream(sse(ROLE, chunk({"content": "Hi"}), *finished()))
    assert result.events == [
        ("message_start", {
            "type": "message_start",
            "message": {
                "id": "msg_000000000000000000000001",
                "type": "message",
                "role": "assistant",
                "model": "claude-x",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "stop_details": None,
                "container": None,
                "usage": {"input_tokens": 0, "output_tokens": 0, "service_tier": "standard"},
            },
        }),
        ("content_block_start", {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        }),
        ("content_block_delta", {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "Hi"},
        }),
        ("content_block_stop", {"type": "content_block_stop", "index": 0}),
        ("message_delta", {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"input_tokens": 11, "output_tokens": 7},
        }),
        ("message_stop", {"type": "message_stop"}),
    ]  # fmt: skip


def test_head_commits_to_a_stream_that_nobody_buffers() -> None:
    relay = bench.decode(bench.question(stream=True)).relay
    head = relay.head(200, EVENT_STREAM)
    assert head is not None
    assert head.status == 200
    assert dict(head.headers) == {
        "Content-Type": "text/event-stream; charset=utf-8",
        "Cache-Control": "no-cache",
        "X-Accel-Buffering": "no",
        "request-id": "req_r1",
        "x-frontdoor-model": "reasoning",
    }


def test_each_chunk_is_passed_on_at_once() -> None:
    result = bench.stream(*(sse(p) for p in (ROLE, chunk({"content": "a"}), chunk({"content": "b"}),
                                             *finished())))  # fmt: skip
    first, second, third, finish, usage, _ = result.pieces
    assert b"message_start" in first
    assert b'"text":"a"' in second
    assert b'"text":"b"' in third
    assert finish == usage == b""


def test_end_is_told_with_the_engines_end_mark_and_not_later() -> None:
    relay = bench.decode(bench.question(stream=True)).relay
    relay.head(200, EVENT_STREAM)
    relay.data(sse(chunk({"content": "x"}, "stop")))
    assert not ended(relay)
    data = relay.data(sse(DONE))
    assert data.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    assert relay.ending is not None
    assert (relay.ending.outcome, relay.ending.data) == (Outcome.SERVED, b"")
    assert relay.data(sse(chunk({"content": "late"}), DONE)) == b""


def test_first_chunk_may_bring_content_already() -> None:
    assert blocks(chunk({"role": "assistant", "content": "Hi"}), *finished()) == ["Hi"]


def test_finish_may_come_with_the_last_content() -> None:
    assert blocks(ROLE, chunk({"content": "Hi"}, "stop"), DONE) == ["Hi"]


def test_two_role_chunks_make_one_message() -> None:
    result = bench.stream(sse(ROLE, ROLE, chunk({"content": "x"}), *finished()))
    assert result.kinds.count("message_start") == 1


def test_no_content_is_one_empty_text_as_it_is_unstreamed() -> None:
    assert blocks(ROLE, *finished()) == [""]


def test_finish_and_end_mark_in_two_pieces_make_one_end() -> None:
    result = bench.stream(sse(chunk({"content": "x"}, "stop")), sse(DONE), sse(DONE))
    assert result.kinds.count("message_stop") == 1
    assert result.kinds.count("message_delta") == 1


def test_end_mark_twice_and_data_after_it_are_passed_over() -> None:
    assert blocks(chunk({"content": "x"}, "stop"), DONE, DONE, chunk({"content": "y"})) == ["x"]


def test_second_finish_is_passed_over() -> None:
    message = streamed(chunk({"content": "x"}, "length"), chunk({}, "stop"), DONE)
    assert message["stop_reason"] == "max_tokens"


def test_finish_without_an_end_mark_is_complete() -> None:
    assert blocks(ROLE, chunk({"content": "x"}), chunk({}, "stop"), usage_chunk()) == ["x"]


def test_last_frame_needs_no_empty_line() -> None:
    data = sse(ROLE, chunk({"content": "x"}, "stop"))
    assert bench.streamed_message(data[:-2])["content"][0]["text"] == "x"


def test_other_choices_are_passed_over() -> None:
    other = chunk({"content": "other"})
    other["choices"][0]["index"] = 1
    assert blocks(ROLE, other, chunk({"content": "x"}, "stop"), DONE) == ["x"]


# Reasoning and text


def test_reasoning_comes_in_a_block_of_its_own() -> None:
    payloads = [
        chunk({"reasoning": "a"}), chunk({"reasoning": "b"}), chunk({"content": "Hi"}),
        chunk({"content": "!"}), *finished(),
    ]  # fmt: skip
    assert blocks(*payloads) == [("thinking", "ab"), "Hi!"]


def test_reasoning_and_text_in_one_chunk_are_both_kept() -> None:
    both = chunk({"reasoning": "a", "content": "b"})
    assert blocks(both, chunk({"content": "c"}), *finished()) == [("thinking", "a"), "bc"]


def test_reasoning_after_text_is_a_new_block() -> None:
    payloads = [chunk({"content": "a"}), chunk({"reasoning": "b"}), chunk({"content": "c"})]
    assert blocks(*payloads, *finished()) == ["a", ("thinking", "b"), "c"]


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning": "a"},
        {"reasoning_content": "a"},
        {"reasoning": "a", "reasoning_content": "a"},
        {"reasoning": None, "reasoning_content": "a"},
    ],
)
def test_reasoning_is_found_under_either_name_and_not_doubled(delta: Json) -> None:
    assert blocks(chunk(delta), chunk({"content": "x"}), *finished()) == [("thinking", "a"), "x"]


def test_hidden_thinking_is_a_signed_block_without_text() -> None:
    thinking = {"type": "adaptive", "display": "omitted"}
    payloads = [chunk({"reasoning": "a"}), chunk({"reasoning": "b"}), chunk({"content": "x"})]
    assert blocks(*payloads, *finished(), thinking=thinking) == [("thinking", ""), "x"]


def test_signature_comes_once_and_last_in_its_block() -> None:
    result = bench.stream(sse(chunk({"reasoning": "a"}), chunk({"reasoning": "b"}), *finished()))
    kinds = [p["delta"]["type"] for k, p in result.events if k == "content_block_delta"]
    assert kinds == ["thinking_delta", "thinking_delta", "signature_delta"]


def test_blocks_begin_with_their_fields_empty_and_present() -> None:
    payloads = [chunk({"reasoning": "a"}), chunk({"content": "x"}), chunk(call_delta(0, "c", "f"))]
    result = bench.stream(sse(*payloads, *finished()))
    starts = [p["content_block"] for k, p in result.events if k == "content_block_start"]
    assert starts == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "c", "name": "f", "input": {}},
    ]


def test_refusal_of_the_model_is_text_and_ends_as_a_refusal() -> None:
    message = streamed(chunk({"refusal": "n"}), chunk({"refusal": "o"}), *finished())
    assert message["content"][0]["text"] == "no"
    assert message["stop_reason"] == "refusal"


@pytest.mark.parametrize("text", ["渐🙂é", "a\u2028b\u2029c\x85d", 'q"\\\n\r\t\x00\x7f', "\ufeff"])
def test_text_is_the_same_wherever_the_bytes_are_cut(text: str) -> None:
    data = sse(ROLE, chunk({"reasoning": text}), chunk({"content": text}), *finished())
    results = [bench.stream(data[:cut], data[cut:]) for cut in range(len(data))]
    assert {got.ending.outcome for got in results} == {Outcome.SERVED}
    # A client that gets the same bytes gets the same message: each is put together once.
    for got in {got.data: got for got in results}.values():
        assert [b.get("thinking") or b["text"] for b in got.message()["content"]] == [text, text]


def test_lone_surrogate_does_not_break_the_stream() -> None:
    result = bench.stream(b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n')
    assert b'"text":"\\ud83d"' in result.data


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_frames_in_every_lawful_form_are_read(newline: str) -> None:
    text = newline.join(
        [
            "\ufeff: OPENROUTER PROCESSING", "", 'data:{"choices":[{"delta":{"content":"a"}}]}', "",
            "event: x", "id: 1", "retry: 5",
            'data: {"choices":[{"delta":', 'data: {"content":"b"}, "finish_reason":"stop"}]}', "",
            "data: [DONE] ", "", "",
        ]
    )  # fmt: skip
    data = text.encode()
    for cut in range(len(data)):
        assert bench.streamed_message(data[:cut], data[cut:])["content"][0]["text"] == "ab"


# Stop reasons and usage


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (chunk({"content": "x"}, "stop"), ("end_turn", None)),
        (chunk({"content": "x"}, "stop", stop_reason="X"), ("stop_sequence", "X")),
        (chunk({"content": "x"}, "stop", matched_stop="X"), ("stop_sequence", "X")),
        (chunk({"content": "x"}, "stop", stop_reason=2), ("end_turn", None)),
        (chunk({"content": "x"}, "length"), ("max_tokens", None)),
        (chunk({"content": "x"}, "content_filter"), ("refusal", None)),
        (chunk({"content": "x"}, "repetition"), ("end_turn", None)),
        (chunk(call_delta(0, "a", "f", "{}"), "stop"), ("tool_use", None)),
        (chunk(call_delta(0, "a", "f", "{}"), "tool_calls"), ("tool_use", None)),
        (chunk(call_delta(0, "a", "f", "{"), "stop"), ("tool_use", None)),
        (chunk(call_delta(0, "a", "f", "{"), "length"), ("max_tokens", None)),
    ],
)
def test_stop_reason_follows_the_table(payload: Json, expected: tuple[str, str | None]) -> None:
    message = streamed(payload, DONE)
    assert (message["stop_reason"], message["stop_sequence"]) == expected


USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 80},
}


@pytest.mark.parametrize(
    "payloads",
    [
        [chunk({"content": "x"}), chunk({}, "stop"), {"choices": [], "usage": USAGE}],
        [{"choices": [], "usage": USAGE}, chunk({"content": "x"}), chunk({}, "stop")],
        [chunk({"content": "x"}), chunk({}, "stop", usage=USAGE)],
        [chunk({"content": "x"}, usage={"prompt_tokens": 9}), chunk({}, "stop", usage=USAGE)],
    ],
)
def test_usage_is_told_whenever_it_comes_and_the_last_one_counts(payloads: list[Json]) -> None:
    usage = streamed(*payloads, DONE)["usage"]
    assert usage["input_tokens"] == 20
    assert usage["cache_read_input_tokens"] == 80
    assert usage["output_tokens"] == 7


def test_no_usage_is_zeros() -> None:
    result = bench.stream(sse(chunk({"content": "x"}), chunk({}, "stop", usage=None), DONE))
    assert result.events[-2][1]["usage"] == {"input_tokens": 0, "output_tokens": 0}


def test_continuous_usage_is_known_from_the_start() -> None:
    counts = {"prompt_tokens": 50, "completion_tokens": 1}
    result = bench.stream(sse(chunk({"content": "x"}, usage=counts), *finished()))
    usage = result.events[0][1]["message"]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (50, 0)


def test_managed_context_is_answered_in_the_last_delta() -> None:
    result = bench.stream(sse(chunk({"content": "x"}, "stop"), DONE), context_management={})
    assert result.events[-2][1]["context_management"] == {"applied_edits": []}
