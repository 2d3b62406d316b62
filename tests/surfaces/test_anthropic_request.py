"""Anthropic requests: the top-level fields, and what an engine is asked instead."""

import json
from typing import Any

import pytest
from anthropic_bench import COUNT_TOKENS, HI, bench

from tornado_frontdoor.core.decisions import Outcome, Reason
from tornado_frontdoor.surfaces.base import Refused

TOOL = {"name": "get", "input_schema": {"type": "object", "properties": {}}}


def test_plain_question_becomes_a_plain_chat_request() -> None:
    assert bench.sent(system="Be brief.", temperature=0.5, top_p=0.9, top_k=40) == {
        "model": "reasoning",
        "messages": [{"role": "system", "content": "Be brief."}, *HI],
        "max_tokens": 100,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
    }


def test_canonical_request_names_the_callers_model_and_the_engines_place() -> None:
    exchange = bench.decode(bench.question(stream=True))
    request = exchange.request
    assert (request.surface, request.model, request.upstream) == ("anthropic", "claude-x", "gpu")
    assert (request.path, request.content_type) == ("/v1/chat/completions", "application/json")
    assert (request.stream, request.weight, request.takes_slot) == (True, 1, True)
    assert exchange.target.served_name == "reasoning"


def test_body_is_compact_and_keeps_its_characters() -> None:
    body = bench.decode(
        bench.question(messages=[{"role": "user", "content": "渐🙂é"}])
    ).request.body
    assert b": " not in body
    assert "渐🙂é".encode() in body


def test_lone_surrogate_reaches_the_engine_as_it_was_written() -> None:
    body = bench.decode(
        bench.question(messages=[{"role": "user", "content": "\ud83d"}])
    ).request.body
    assert b"\\ud83d" in body
    assert json.loads(body)["messages"][0]["content"] == "\ud83d"


def test_null_fields_are_absent_fields() -> None:
    names = (
        "system temperature top_p top_k stop_sequences stream tools tool_choice thinking"
        " output_config output_format metadata service_tier speed inference_geo container"
        " mcp_servers context_management fallbacks"
    )
    assert bench.sent(**dict.fromkeys(names.split())) == bench.sent()


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": "100"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages.0"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [*HI, {"content": "x"}]}, "messages.1.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
        ({"system": 3}, "system"),
        ({"system": [{"type": "image"}]}, "system.0"),
        ({"system": [{"type": "text"}]}, "system.0.text"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"stream": "yes"}, "stream"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": ["a", "b", "c", "d", "e"]}, "stop_sequences"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences.1"),
        ({"stop_sequences": [1]}, "stop_sequences.0"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"speed": "fast"}, "speed"),
        ({"inference_geo": "eu"}, "inference_geo"),
        ({"container": "c"}, "container"),
        ({"container": {}}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"compaction": {}}, "compaction"),
        ({"thread": "t"}, "thread"),
        ({"fallbacks": ["x"]}, "fallbacks"),
        ({"fallback_credit_token": "t"}, "fallback_credit_token"),
        ({"context_management": "all"}, "context_management"),
        ({"priority": 1}, "priority"),
        ({"chat_template": "x"}, "chat_template"),
        ({"kv_transfer_params": {}}, "kv_transfer_params"),
        ({"vllm_xargs": {}}, "vllm_xargs"),
        ({"cache_salt": "x"}, "cache_salt"),
        ({"output_config": 1}, "output_config"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"effort": 3}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "grammar"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_format": {"type": "xml"}}, "output_format.type"),
        ({"thinking": "on"}, "thinking"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}, "max_tokens": 2048},
         "thinking.budget_tokens"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_by_its_path(fields: dict[str, Any], path: str) -> None:
    refusal = bench.refusal(**fields)
    assert (refusal.reason, refusal.param) == (Reason.BAD_REQUEST, path)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b'{"model": "claude-x",', b"\xff{}", b"[" * 100_000,
     b'{"messages":' + b"[" * 100_000],
)  # fmt: skip
def test_body_that_is_no_object_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(Refused) as caught:
        bench.decode(body)
    assert caught.value.refusal.reason is Reason.BAD_REQUEST


def test_unknown_model_is_not_found_before_anything_else_is_looked_at() -> None:
    with pytest.raises(Refused) as caught:
        bench.decode({"model": "gpt-4", "messages": 1})
    assert caught.value.refusal.reason is Reason.MODEL_NOT_FOUND
    assert caught.value.refusal.detail == "model: gpt-4"


def test_model_names_have_no_case_and_aliases_may_be_globs() -> None:
    for name in ("reasoner", "REASONER", "Claude-Opus-4-8"):
        assert bench.sent(model=name)["model"] == "reasoning"


@pytest.mark.parametrize(
    ("asked", "traits", "sent"),
    [
        (64_000, {}, 64_000),
        (64_000, {"max_model_len": 32_768}, 32_768),
        (64_000, {"max_model_len": 32_768, "max_output_tokens": 8_192}, 8_192),
        (64_000, {"max_output_tokens": 100_000}, 64_000),
        (1, {"max_model_len": 32_768}, 1),
    ],
)
def test_max_tokens_is_clamped_to_what_the_model_can(
    asked: int, traits: dict[str, Any], sent: int
) -> None:
    assert bench.sent(traits, max_tokens=asked)["max_tokens"] == sent


def test_stop_sequences_become_stop_and_none_are_left_out() -> None:
    assert bench.sent(stop_sequences=["a", "b"])["stop"] == ["a", "b"]
    assert "stop" not in bench.sent(stop_sequences=[])
    assert len(bench.sent({"stop_limit": 5}, stop_sequences=list("abcde"))["stop"]) == 5


def test_stream_options_are_sent_with_streams_only() -> None:
    assert not {"stream", "stream_options"} & set(bench.sent(stream=False))
    streamed = bench.sent(stream=True)
    assert streamed["stream"] is True
    assert streamed["stream_options"] == {"include_usage": True}
    continuous = bench.sent({"continuous_usage": True}, stream=True)["stream_options"]
    assert continuous == {"include_usage": True, "continuous_usage_stats": True}


def test_fields_of_newer_clients_are_passed_over_and_named() -> None:
    fields: dict[str, Any] = {
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high", "task_budget": 5},
        "metadata": {"user_id": "{}"},
        "service_tier": "auto",
        "speed": "standard",
        "cache_control": {"type": "ephemeral"},
        "mcp_servers": [],
        "fallbacks": [],
        "from_the_future": {"x": 1},
    }
    sent = bench.sent(**fields)
    assert set(sent) == {"model", "messages", "max_tokens", "reasoning_effort"}
    document, _ = bench.answer({"choices": [{"message": {"content": "x"}}]}, **fields)
    assert dict(document.headers)["x-frontdoor-ignored"] == (
        "metadata,service_tier,speed,cache_control,from_the_future,output_config.task_budget"
    )


def test_names_of_ignored_fields_cannot_forge_headers() -> None:
    fields: dict[str, Any] = dict.fromkeys(["a\r\nSet-Cookie: x", "b c", "é", "\x00", "ok", '"'], 1)
    document, _ = bench.answer({"choices": [{"message": {"content": "x"}}]}, **fields)
    assert dict(document.headers)["x-frontdoor-ignored"] == "ok"
    many: dict[str, Any] = {f"field_{number}": 1 for number in range(1000)}
    document, _ = bench.answer({"choices": [{"message": {"content": "x"}}]}, **many)
    assert len(dict(document.headers)["x-frontdoor-ignored"]) <= 512


def test_nothing_ignored_is_not_announced() -> None:
    document, _ = bench.answer({"choices": [{"message": {"content": "x"}}]})
    assert "x-frontdoor-ignored" not in dict(document.headers)


def test_context_management_is_answered_with_no_edits_applied() -> None:
    document, ending = bench.answer(
        {"choices": [{"message": {"content": "x"}}]}, context_management={"edits": []}
    )
    assert ending.outcome is Outcome.SERVED
    assert json.loads(document.body)["context_management"] == {"applied_edits": []}
    document, _ = bench.answer({"choices": [{"message": {"content": "x"}}]})
    assert "context_management" not in json.loads(document.body)


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_output_format_becomes_a_response_format(field: str) -> None:
    wanted = {"type": "json_schema", "schema": {"type": "object"}}
    fields = {field: {"format": wanted} if field == "output_config" else wanted}
    assert bench.sent(**fields)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "response", "schema": {"type": "object"}, "strict": True},
    }


# Thinking


def thinking_fields(traits: dict[str, Any], **fields: Any) -> dict[str, Any]:
    names = {"reasoning_effort", "chat_template_kwargs", "thinking_token_budget"}
    sent = bench.sent(traits, max_tokens=50_000, **fields)
    return {name: value for name, value in sent.items() if name in names}


DISABLED = {"type": "disabled"}
ADAPTIVE = {"type": "adaptive"}


def enabled(budget: int) -> dict[str, Any]:
    return {"type": "enabled", "budget_tokens": budget}


@pytest.mark.parametrize(
    ("traits", "fields", "expected"),
    [
        ({}, {}, {}),
        ({"thinking_default": "off"}, {}, {"reasoning_effort": "none"}),
        ({"thinking_default": "off", "thinking_style": "enable_thinking"}, {},
         {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"thinking_default": "off", "thinking_style": "none"}, {}, {}),
        ({"thinking_default": "off"}, {"thinking": ADAPTIVE}, {}),
        ({}, {"thinking": ADAPTIVE}, {}),
        ({}, {"thinking": ADAPTIVE, "output_config": {"effort": "high"}},
         {"reasoning_effort": "high"}),
        ({"effort_map": {"max": "high"}}, {"output_config": {"effort": "max"}},
         {"reasoning_effort": "high"}),
        ({"thinking_style": "none"}, {"output_config": {"effort": "max"}}, {}),
        ({}, {"thinking": DISABLED}, {"reasoning_effort": "none"}),
        ({"effort_map": {"none": "low"}}, {"thinking": DISABLED}, {"reasoning_effort": "low"}),
        ({}, {"thinking": DISABLED, "output_config": {"effort": "high"}},
         {"reasoning_effort": "none"}),
        ({"thinking_style": "thinking"}, {"thinking": DISABLED},
         {"chat_template_kwargs": {"thinking": False}}),
        ({"thinking_style": "none"}, {"thinking": DISABLED}, {}),
        ({}, {"thinking": enabled(1024)}, {"reasoning_effort": "low"}),
        ({}, {"thinking": enabled(4095)}, {"reasoning_effort": "low"}),
        ({}, {"thinking": enabled(4096)}, {"reasoning_effort": "medium"}),
        ({}, {"thinking": enabled(16383)}, {"reasoning_effort": "medium"}),
        ({}, {"thinking": enabled(16384)}, {"reasoning_effort": "high"}),
        ({"effort_map": {"high": "max"}}, {"thinking": enabled(16384)},
         {"reasoning_effort": "max"}),
        ({}, {"thinking": enabled(1024), "output_config": {"effort": "high"}},
         {"reasoning_effort": "high"}),
        ({"thinking_style": "enable_thinking"}, {"thinking": enabled(2000)},
         {"chat_template_kwargs": {"enable_thinking": True}}),
        ({"thinking_style": "enable_thinking", "thinking_budget": True},
         {"thinking": enabled(2000)},
         {"chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": 2000}),
        ({"thinking_style": "none"}, {"thinking": enabled(2000)}, {}),
    ],
)  # fmt: skip
def test_thinking_is_asked_for_in_the_models_own_words(
    traits: dict[str, Any], fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert thinking_fields(traits, **fields) == expected


def test_budget_is_held_against_the_clients_own_max_tokens() -> None:
    sent = bench.sent({"max_output_tokens": 1000}, max_tokens=5000, thinking=enabled(2000))
    assert sent["max_tokens"] == 1000


# Headers towards the engine


def headers_to_engine(anthropic: str = "translate", **headers: str) -> dict[str, str]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    exchange = bench.decode(bench.question(), headers=named, anthropic=anthropic)
    return dict(exchange.request.headers)


def test_either_credential_is_taken_and_becomes_the_one_that_engines_know() -> None:
    assert headers_to_engine(x_api_key="k") == {"authorization": "Bearer k"}
    assert headers_to_engine(authorization="Bearer k") == {"authorization": "Bearer k"}
    both = headers_to_engine(authorization="Bearer other", x_api_key="k")
    assert both == {"authorization": "Bearer k"}


def test_engine_is_told_nothing_that_steers_it() -> None:
    told = headers_to_engine(
        x_vllm_priority="-9",
        x_data_parallel_rank="0",
        x_session_id="s",
        x_request_id="r",
        endpoint_load_metrics_format="text",
        anthropic_version="2023-06-01",
        anthropic_beta="x",
        x_claude_code_session_id="s",
        accept_encoding="gzip",
        cookie="c",
        traceparent="00-1-2-01",
    )
    assert told == {"traceparent": "00-1-2-01"}


@pytest.mark.parametrize("version", ["2023-06-01", "2026-10-21", "2099-01-01", "odd", ""])
def test_any_version_and_any_beta_are_accepted(version: str) -> None:
    headers = {"anthropic-version": version, "anthropic-beta": "a-1,b-2"}
    assert bench.decode(bench.question(), headers=headers).request.path == "/v1/chat/completions"


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
def test_a_number_that_json_has_not_is_refused_and_never_sent(number: str) -> None:
    """Python's own writer would send `Infinity`, which no JSON reader but its own takes."""
    schema = f'{{"type": "object", "default": {number}}}'
    tool = f'{{"name": "t", "input_schema": {schema}}}'
    asked = bench.question()
    raw = json.dumps(asked)[:-1] + f', "tools": [{tool}]}}'
    with pytest.raises(Refused) as caught:
        bench.decode(raw.encode())
    assert caught.value.refusal.reason is Reason.BAD_REQUEST


# Counting


def counted(traits: dict[str, Any] | None = None, /, **fields: Any) -> dict[str, Any]:
    question = {"model": "claude-x", "messages": HI} | fields
    request = bench.decode(question, path=COUNT_TOKENS, **(traits or {})).request
    assert (request.path, request.takes_slot, request.stream) == ("/tokenize", False, False)
    body: dict[str, Any] = json.loads(request.body)
    return body


def test_count_asks_for_the_very_messages_of_an_answer() -> None:
    fields: dict[str, Any] = {
        "system": [{"type": "text", "text": "S"}],
        "messages": [*HI, {"role": "system", "content": "inline"}],
        "tools": [TOOL],
        "tool_choice": {"type": "auto"},
        "thinking": DISABLED,
    }
    style = {"thinking_style": "enable_thinking"}
    asked, counts = bench.sent(style, **fields), counted(style, **fields)
    for name in ("messages", "tools", "chat_template_kwargs"):
        assert counts.pop(name) == asked[name]
    assert counts == {"model": "reasoning", "add_generation_prompt": True}
    assert asked["messages"][0] == {"role": "system", "content": "S\ninline"}


def test_count_takes_questions_without_max_tokens_and_with_no_tools() -> None:
    assert "tools" not in counted(tools=[])
    assert counted(max_tokens=5, stream=True, temperature=1) == counted()


def test_count_of_a_prefill_continues_it() -> None:
    counts = counted(messages=[*HI, {"role": "assistant", "content": "1, 2,"}])
    assert counts["continue_final_message"] is True
    assert counts["add_generation_prompt"] is False


def test_count_refuses_what_an_answer_would_refuse() -> None:
    with pytest.raises(Refused) as caught:
        counted(messages=[{"role": "user", "content": [{"type": "compaction"}]}])
    assert caught.value.refusal.param == "messages.0.content.0"
    with pytest.raises(Refused):
        counted(container="c")
