"""Streamed tool calls: mixed, split, nameless or broken ones, each a block of its own."""

import json
from typing import Any

import pytest
from anthropic_bench import (
    ROLE,
    bench,
    blocks,
    call_delta,
    chunk,
    finished,
    sse,
    streamed,
)

Json = dict[str, Any]


def test_text_goes_before_a_call_of_the_same_chunk() -> None:
    both = chunk({"content": "x", **call_delta(0, "c", "get", '{"a":1}')})
    assert blocks(both, *finished("tool_calls")) == ["x", ("get", {"a": 1})]


def test_reasoning_text_and_call_are_three_blocks() -> None:
    payloads = [
        ROLE, chunk({"reasoning": "r"}), chunk({"content": "t"}),
        chunk(call_delta(0, "c1", "get", "")), chunk(call_delta(0, arguments='{"a"')),
        chunk(call_delta(0, arguments=":1}")), *finished("tool_calls"),
    ]  # fmt: skip
    assert blocks(*payloads) == [("thinking", "r"), "t", ("get", {"a": 1})]


def test_arguments_stream_as_they_come() -> None:
    pieces = [call_delta(0, "c1", "get", ""), call_delta(0, arguments='{"a"'),
              call_delta(0, arguments=":1}")]  # fmt: skip
    result = bench.stream(*(sse(chunk(piece)) for piece in pieces), sse(*finished("tool_calls")))
    assert b'"partial_json":"{\\"a\\""' in result.pieces[1]
    assert b'"partial_json":":1}"' in result.pieces[2]


def test_call_without_arguments_has_an_empty_input() -> None:
    for deltas in ([call_delta(0, "c", "now")], [call_delta(0, "c", "now", "")],
                   [call_delta(0, "c", "now", "{}")], [call_delta(0, "c", "now", {})]):  # fmt: skip
        assert blocks(*map(chunk, deltas), *finished("tool_calls")) == [("now", {})]


def test_arguments_as_an_object_are_written_as_json() -> None:
    delta = call_delta(0, "c", "get", {"a": "é"})
    assert blocks(chunk(delta), *finished("tool_calls")) == [("get", {"a": "é"})]


@pytest.mark.parametrize("chunked", [False, True])
def test_three_calls_are_three_blocks(chunked: bool) -> None:
    deltas = [call_delta(i, f"c{i}", f"f{i}", json.dumps({"n": i})) for i in range(3)]
    if not chunked:
        deltas = [{"tool_calls": [delta["tool_calls"][0] for delta in deltas]}]
    calls = blocks(*map(chunk, deltas), *finished("tool_calls"))
    assert calls == [("f0", {"n": 0}), ("f1", {"n": 1}), ("f2", {"n": 2})]


def test_calls_without_an_index_go_by_their_place() -> None:
    first = [call_delta(None, f"c{i}", f"f{i}", '{"n":')["tool_calls"][0] for i in range(2)]
    second = [call_delta(None, arguments=f"{i}}}")["tool_calls"][0] for i in range(2)]
    payloads = [chunk({"tool_calls": first}), chunk({"tool_calls": second})]
    calls = blocks(*payloads, *finished("tool_calls"))
    assert calls == [("f0", {"n": 0}), ("f1", {"n": 1})]


def test_interleaved_calls_lose_nothing() -> None:
    deltas = [
        call_delta(0, "a", "f"), call_delta(1, "b", "g"),
        call_delta(0, arguments='{"x":'), call_delta(1, arguments='{"y":'),
        call_delta(0, arguments="1}"), call_delta(1, arguments="2}"),
    ]  # fmt: skip
    assert blocks(*map(chunk, deltas), *finished("tool_calls")) == [
        ("f", {"x": 1}),
        ("g", {"y": 2}),
    ]


def test_next_call_streams_as_soon_as_the_one_before_is_whole() -> None:
    deltas = [call_delta(0, "a", "f", '{"x":1}'), call_delta(1, "b", "g", ""),
              call_delta(1, arguments='{"y":')]  # fmt: skip
    result = bench.stream(*(sse(chunk(delta)) for delta in deltas))
    assert b'"partial_json":"{\\"y\\":"' in result.pieces[2]


def test_same_index_with_a_new_id_is_a_new_call() -> None:
    deltas = [
        call_delta(0, "a", "f", '{"x":1}'), call_delta(0, "b", "f", '{"x":2}'),
        call_delta(0, "c", "g", ""), call_delta(0, arguments='{"x":3}'),
    ]  # fmt: skip
    assert blocks(*map(chunk, deltas), *finished("tool_calls")) == [
        ("f", {"x": 1}),
        ("f", {"x": 2}),
        ("g", {"x": 3}),
    ]


def test_repeated_id_and_name_are_not_a_new_call() -> None:
    deltas = [call_delta(0, "a", "f", '{"x"'), call_delta(0, "a", "f", ":1}")]
    assert blocks(*map(chunk, deltas), *finished("tool_calls")) == [("f", {"x": 1})]


def test_name_split_over_chunks_is_put_together() -> None:
    deltas = [call_delta(0, "a", "get_"), call_delta(0, name="weather"),
              call_delta(0, arguments="{}")]  # fmt: skip
    assert blocks(*map(chunk, deltas), *finished("tool_calls")) == [("get_weather", {})]


def test_calls_without_an_id_get_one_each() -> None:
    deltas = [call_delta(0, None, "f", "{}"), call_delta(1, None, "f", "{}")]
    content = streamed(*map(chunk, deltas), *finished("tool_calls"))["content"]
    assert len({block["id"] for block in content}) == 2
    assert all(block["id"].startswith("toolu_") for block in content)


def test_text_waits_for_the_call_that_took_the_place_of_a_whole_one() -> None:
    payloads = [
        chunk(call_delta(0, "a", "f")), chunk(call_delta(1, "b", "g", '{"y":')),
        chunk(call_delta(0, arguments='{"x":1}')), chunk({"content": "t"}),
        chunk(call_delta(1, arguments="2}")), *finished("tool_calls"),
    ]  # fmt: skip
    assert blocks(*payloads) == [("f", {"x": 1}), ("g", {"y": 2}), "t"]


def test_what_comes_late_for_a_closed_call_changes_nothing() -> None:
    payloads: list[Json | str] = [
        chunk(call_delta(0, "a", "f", '{"x":1}')), chunk({"content": "t"}),
        chunk(call_delta(0, arguments="}")), chunk({}, "stop", stop_reason="X"), "[DONE]",
    ]  # fmt: skip
    assert blocks(*payloads) == [("f", {"x": 1}), "t"]
    assert streamed(*payloads)["stop_reason"] == "tool_use"


def test_white_space_between_calls_is_not_kept_for_later() -> None:
    payloads = [
        chunk(call_delta(0, "a", "f", "{}")), chunk({"content": "\n"}),
        chunk(call_delta(1, "b", "g", "{}")), chunk({"content": "Done"}), *finished("stop"),
    ]  # fmt: skip
    assert blocks(*payloads) == [("f", {}), ("g", {}), "Done"]


@pytest.mark.parametrize("name", ["f", None])
def test_id_that_comes_late_is_taken(name: str | None) -> None:
    late = call_delta(0, "own", name)
    deltas = [call_delta(0, None, "f"), late, call_delta(0, arguments="{}")]
    [block] = streamed(*map(chunk, deltas), *finished("tool_calls"))["content"]
    assert block["id"] == "own"


def test_reasoning_between_arguments_does_not_split_the_call() -> None:
    payloads = [
        chunk(call_delta(0, "a", "f", '{"x":')), chunk({"reasoning": "hm"}),
        chunk(call_delta(0, arguments="1}")), *finished("tool_calls"),
    ]  # fmt: skip
    assert blocks(*payloads) == [("f", {"x": 1}), ("thinking", "hm")]


def test_text_between_arguments_comes_after_the_call() -> None:
    payloads = [
        chunk(call_delta(0, "a", "f", '{"x":')), chunk({"content": "t"}),
        chunk(call_delta(0, arguments="1}")), chunk({"content": "u"}), *finished("tool_calls"),
    ]  # fmt: skip
    assert blocks(*payloads) == [("f", {"x": 1}), "tu"]


def test_white_space_between_calls_is_dropped() -> None:
    payloads = [
        chunk(call_delta(0, "a", "f", "{}")), chunk({"content": "\n"}),
        chunk(call_delta(1, "b", "g", "{}")), chunk({"content": "\n"}), *finished("tool_calls"),
    ]  # fmt: skip
    assert blocks(*payloads) == [("f", {}), ("g", {})]


def test_text_after_a_call_is_a_new_block_and_keeps_its_white_space() -> None:
    payloads = [
        chunk(call_delta(0, "a", "f", "{}")),
        chunk({"content": "\n"}),
        chunk({"content": "Done"}),
        chunk({"content": " "}),
        chunk({"content": "now"}),
    ]
    assert blocks(*payloads, *finished()) == [("f", {}), "\nDone now"]


def test_text_before_a_call_keeps_its_white_space() -> None:
    payloads = [chunk({"content": "\n\n"}), chunk(call_delta(0, "a", "f", "{}"))]
    assert blocks(*payloads, *finished()) == ["\n\n", ("f", {})]


def test_held_pieces_come_out_after_calls_that_never_became_whole() -> None:
    payloads = [
        chunk(call_delta(0, "a", "f")), chunk({"reasoning": "r", "content": "t"}),
        chunk(call_delta(1, "b", "g", '{"y":2}')), *finished("tool_calls"),
    ]  # fmt: skip
    assert blocks(*payloads) == [("f", {}), ("g", {"y": 2}), ("thinking", "r"), "t"]


def test_arguments_that_are_never_json_are_passed_as_they_are() -> None:
    result = bench.stream(sse(chunk(call_delta(0, "a", "f", '{"x":')), *finished("length")))
    assert b'"partial_json":"{\\"x\\":"' in result.data
    assert result.message()["stop_reason"] == "max_tokens"


def test_buffered_arguments_come_whole_or_wrapped() -> None:
    traits = {"tool_args": "buffer"}
    payloads = [
        chunk(call_delta(0, "a", "f", '{"x"')), chunk(call_delta(0, arguments=":1}")),
        chunk(call_delta(1, "b", "g", '{"y":')), chunk(call_delta(2, "c", "h")),
        *finished("tool_calls"),
    ]  # fmt: skip
    assert blocks(*payloads, traits=traits) == [
        ("f", {"x": 1}),
        ("g", {"INVALID_JSON": '{"y":'}),
        ("h", {}),
    ]
    result = bench.stream(sse(*payloads), traits=traits)
    assert sum(b"partial_json" in frame for frame in result.data.split(b"\n\n")) == 2


def test_one_tool_at_a_time_drops_the_second() -> None:
    asked: Json = {
        "tools": [{"name": "f", "input_schema": {}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    }
    deltas = [call_delta(0, "a", "f", '{"x":'), call_delta(1, "b", "f", '{"x":2}'),
              call_delta(0, arguments="1}"), call_delta(2, "c", "f", '{"x":3}')]  # fmt: skip
    assert blocks(*map(chunk, deltas), *finished("tool_calls"), **asked) == [("f", {"x": 1})]
