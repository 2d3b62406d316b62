"""Whole answers: a chat completion as a message, judged by the official type."""

import json
from typing import Any

import pytest
from anthropic_bench import bench, completion

from tornado_frontdoor.core.decisions import Outcome

Json = dict[str, Any]


def tool_call(name: str = "get", arguments: Any = "{}", call_id: str | None = "c1") -> Json:
    call: Json = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return call if call_id is None else {"id": call_id, **call}


def answered(message: Json, finish: str | None = "stop", /, **more: Any) -> Json:
    asked = {name: more.pop(name) for name in ("tools", "tool_choice", "thinking") if name in more}
    traits = more.pop("traits", {})
    return bench.message(completion(message, finish, **more), traits=traits, **asked)


def stopped(message: Json, finish: str | None, /, **more: Any) -> tuple[str, str | None]:
    final = answered(message, finish, **more)
    return final["stop_reason"], final["stop_sequence"]


def test_envelope_is_whole_and_names_the_model_that_was_asked_for() -> None:
    document, _ = bench.answer(completion({"content": "Hello"}))
    message = json.loads(document.body)
    assert list(message) == [
        "id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "stop_details",
        "container", "usage",
    ]  # fmt: skip
    assert message["model"] == "claude-x"
    assert message["id"].startswith("msg_")
    assert message["content"] == [{"type": "text", "text": "Hello"}]
    headers = dict(document.headers)
    assert headers["Content-Type"] == "application/json"
    assert headers["x-frontdoor-model"] == "reasoning"


def test_blocks_stand_in_order() -> None:
    message = {"content": "text", "reasoning": "why", "tool_calls": [tool_call()]}
    content = answered(message, "tool_calls")["content"]
    assert [block["type"] for block in content] == ["thinking", "text", "tool_use"]
    assert content[0]["thinking"] == "why"
    assert content[0]["signature"].startswith("fd1-")
    assert (content[2]["id"], content[2]["name"], content[2]["input"]) == ("c1", "get", {})


@pytest.mark.parametrize(
    "message",
    [
        {"reasoning": "why"},
        {"reasoning_content": "why"},
        {"reasoning": "why", "reasoning_content": "why"},
        {"reasoning": "", "reasoning_content": "why"},
        {"reasoning": None, "reasoning_content": "why"},
    ],
)
def test_reasoning_is_found_under_either_name_and_not_doubled(message: Json) -> None:
    content = answered({"content": "x", **message})["content"]
    assert [block.get("thinking") for block in content] == ["why", None]


def test_thinking_can_be_there_without_its_text() -> None:
    thinking = {"type": "adaptive", "display": "omitted"}
    block = answered({"content": "x", "reasoning": "why"}, thinking=thinking)["content"][0]
    assert (block["type"], block["thinking"]) == ("thinking", "")
    assert block["signature"]


def test_nothing_at_all_is_one_empty_text() -> None:
    empty: list[Json] = [{}, {"content": ""}, {"reasoning": None, "tool_calls": []}]
    for message in empty:
        [block] = answered(message)["content"]
        assert (block["type"], block["text"]) == ("text", "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", {}),
        (None, {}),
        ("{}", {}),
        ('{"a": "é\\n"}', {"a": "é\n"}),
        ({"a": 1}, {"a": 1}),
        ('{"a":', {"INVALID_JSON": '{"a":'}),
        ("[1]", {"INVALID_JSON": "[1]"}),
        ("null", {"INVALID_JSON": "null"}),
        ('{"a":1e999}', {"INVALID_JSON": '{"a":1e999}'}),
        ('{"a":NaN}', {"INVALID_JSON": '{"a":NaN}'}),
        ("plain", {"INVALID_JSON": "plain"}),
    ],
)
def test_arguments_become_an_object_whatever_they_are(arguments: Any, expected: Json) -> None:
    [block] = answered({"tool_calls": [tool_call(arguments=arguments)]}, "tool_calls")["content"]
    assert block["input"] == expected


def test_calls_without_an_id_get_one_each() -> None:
    calls = [tool_call(call_id=None), tool_call(call_id=None), tool_call()]
    ids = [block["id"] for block in answered({"tool_calls": calls}, "tool_calls")["content"]]
    assert ids[0].startswith("toolu_")
    assert len(set(ids)) == 3


def test_one_tool_at_a_time_means_one_tool() -> None:
    asked = {
        "tools": [{"name": "get", "input_schema": {}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    }
    message = {"tool_calls": [tool_call(), tool_call("other", call_id="c2")]}
    [block] = answered(message, "tool_calls", **asked)["content"]
    assert block["id"] == "c1"


GOOD, BAD = [tool_call()], [tool_call(arguments='{"a":')]


@pytest.mark.parametrize(
    ("message", "finish", "more", "expected"),
    [
        ({"content": "x"}, "stop", {}, ("end_turn", None)),
        ({"content": "x"}, "stop", {"stop_reason": "END"}, ("stop_sequence", "END")),
        ({"content": "x"}, "stop", {"matched_stop": "END"}, ("stop_sequence", "END")),
        ({"content": "x"}, "stop", {"stop_reason": 128001}, ("end_turn", None)),
        ({"content": "x"}, "stop", {"stop_reason": None}, ("end_turn", None)),
        ({"content": "x"}, "length", {}, ("max_tokens", None)),
        ({"tool_calls": GOOD}, "length", {}, ("max_tokens", None)),
        ({"tool_calls": BAD}, "length", {}, ("max_tokens", None)),
        ({"content": "x"}, "content_filter", {}, ("refusal", None)),
        ({"refusal": "no"}, "stop", {}, ("refusal", None)),
        ({"tool_calls": GOOD}, "tool_calls", {}, ("tool_use", None)),
        ({"tool_calls": GOOD}, "stop", {}, ("tool_use", None)),
        ({"tool_calls": GOOD}, "function_call", {}, ("tool_use", None)),
        ({"tool_calls": GOOD}, "stop", {"stop_reason": "END"}, ("tool_use", None)),
        ({"tool_calls": BAD}, "stop", {"stop_reason": "END"}, ("stop_sequence", "END")),
        ({"tool_calls": BAD}, "stop", {}, ("tool_use", None)),
        ({"tool_calls": BAD + GOOD}, "stop", {"stop_reason": "END"}, ("tool_use", None)),
        ({"content": "x"}, "tool_calls", {}, ("tool_use", None)),
        ({"content": "x"}, "repetition", {}, ("end_turn", None)),
        ({"content": "x"}, None, {}, ("end_turn", None)),
        ({"content": "x"}, "of_the_future", {}, ("end_turn", None)),
    ],
)
def test_stop_reason_follows_the_table(
    message: Json, finish: str | None, more: Json, expected: tuple[str, str | None]
) -> None:
    assert stopped(message, finish, **more) == expected


def test_refusal_of_the_model_is_its_text() -> None:
    [block] = answered({"refusal": "no"})["content"]
    assert block["text"] == "no"


@pytest.mark.parametrize("finish", ["abort", "error"])
def test_answer_that_was_given_up_is_an_error(finish: str) -> None:
    document, ending = bench.answer(completion({"content": "half"}, finish))
    assert (document.status, ending.outcome) == (500, Outcome.UPSTREAM_ERROR)
    assert json.loads(document.body)["error"]["type"] == "api_error"


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (None, {"input_tokens": 0, "output_tokens": 0}),
        ("odd", {"input_tokens": 0, "output_tokens": 0}),
        (
            {"prompt_tokens": None, "completion_tokens": "7"},
            {"input_tokens": 0, "output_tokens": 0},
        ),
        ({"prompt_tokens": 100, "completion_tokens": 7}, {"input_tokens": 100, "output_tokens": 7}),
        (
            {"prompt_tokens": 100, "prompt_tokens_details": None},
            {"input_tokens": 100, "output_tokens": 0},
        ),
        (
            {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 80}},
            {
                "input_tokens": 20,
                "output_tokens": 0,
                "cache_read_input_tokens": 80,
                "cache_creation_input_tokens": 0,
            },
        ),
        (
            {
                "prompt_tokens": 100,
                "prompt_tokens_details": {"cached_tokens": 80, "created_cache_tokens": 15},
            },
            {
                "input_tokens": 5,
                "output_tokens": 0,
                "cache_read_input_tokens": 80,
                "cache_creation_input_tokens": 15,
            },
        ),
        (
            {
                "prompt_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": 80, "cache_write_tokens": 2},
            },
            {
                "input_tokens": 0,
                "output_tokens": 0,
                "cache_read_input_tokens": 80,
                "cache_creation_input_tokens": 2,
            },
        ),
        (
            {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}},
            {
                "input_tokens": 0,
                "output_tokens": 9,
                "output_tokens_details": {"thinking_tokens": 4},
            },
        ),
    ],
)
def test_usage_counts_nothing_twice(counts: Any, expected: Json) -> None:
    document, _ = bench.answer(completion({"content": "x"}, usage=counts))
    assert json.loads(document.body)["usage"] == {**expected, "service_tier": "standard"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>Bad gateway</html>",
        b"[]",
        b"null",
        b'{"choices":',
        b"[" * 100_000,
        b'{"choices": []}',
        b'{"choices": {"a": 1}}',
        b'{"choices": [5]}',
        b'{"choices": [{"index": 1, "message": {"content": "x"}}]}',
        b'{"choices": [{"message": "x"}]}',
        b'{"choices": [{"message": {"content": [{"type": "text"}]}}]}',
        b'{"choices": [{"message": {"reasoning": 5}}]}',
        b'{"choices": [{"message": {"tool_calls": [5]}}]}',
        b'{"choices": [{"message": {"tool_calls": [{"function": null}]}}]}',
        b'{"choices": [{"message": {"tool_calls": [{"function": {"name": 5}}]}}]}',
    ],
)
def test_body_that_makes_no_sense_is_the_engines_fault(body: bytes) -> None:
    document, ending = bench.answer(body)
    assert (document.status, ending.outcome) == (502, Outcome.UPSTREAM_ERROR)
    assert json.loads(document.body)["error"]["type"] == "api_error"


def test_answer_without_an_end_is_not_kept_in_memory() -> None:
    relay = bench.decode(bench.question()).relay
    assert relay.head(200, []) is None
    for _ in range(70):
        assert relay.data(b"x" * 1024 * 1024) == b""
    assert relay.ending is not None
    assert relay.ending.document is not None
    assert relay.ending.document.status == 502


def test_whole_answer_commits_to_nothing_and_has_no_keep_alive() -> None:
    relay = bench.decode(bench.question()).relay
    assert relay.head(200, []) is None
    assert relay.keep_alive() == b""


def test_lone_surrogate_of_an_engine_is_passed_on() -> None:
    document, _ = bench.answer(completion({"content": "\ud83d"}))
    assert json.loads(document.body)["content"][0]["text"] == "\ud83d"
