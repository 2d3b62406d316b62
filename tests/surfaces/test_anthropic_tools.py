"""Tools and the choice among them."""

from typing import Any

import pytest
from anthropic_bench import HI, TOOL, assistant, bench, tool_result, tool_use, user

from tornado_frontdoor.surfaces.base import Refused

Json = dict[str, Any]


def function(tool: Json) -> Json:
    [sent] = bench.sent(tools=[tool])["tools"]
    assert sent["type"] == "function"
    found: Json = sent["function"]
    return found


def test_custom_tools_become_functions() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    for kind in ({}, {"type": None}, {"type": "custom"}):
        tool = {"name": "get", "description": "Gets.", "input_schema": schema, **kind}
        assert function(tool) == {"name": "get", "description": "Gets.", "parameters": schema}
    assert function(TOOL | {"strict": True})["strict"] is True
    assert "strict" not in function(TOOL | {"strict": None})
    assert function({"name": "x", "input_schema": {}})["parameters"] == {"type": "object"}
    passed_over = {"cache_control": {}, "eager_input_streaming": True}
    assert function(TOOL | passed_over) == function(TOOL)


def test_input_examples_are_told_in_the_description() -> None:
    examples = {"input_examples": [{"a": "é"}, {}]}
    told = 'Input examples:\n{"a":"é"}\n{}'
    assert function(TOOL | examples)["description"] == told
    described = TOOL | examples | {"description": "Gets."}
    assert function(described)["description"] == f"Gets.\n{told}"


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_input_example_with_a_number_that_json_has_not_is_refused(number: float) -> None:
    with pytest.raises(Refused) as refused:
        bench.sent(tools=[{**TOOL, "input_examples": [{"a": number}]}])
    assert refused.value.refusal.param == "tools.0.input_examples"


def test_deferred_tools_are_offered_once_they_are_asked_for() -> None:
    tools = [TOOL, {**TOOL, "name": "later", "defer_loading": True}]
    assert len(bench.sent(tools=tools)["tools"]) == 1
    reference = tool_result(content=[{"type": "tool_reference", "tool_name": "later"}])
    messages = [*HI, assistant(tool_use()), user(reference)]
    sent = bench.sent(tools=tools, messages=messages)
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["get", "later"]
    assert sent["messages"][-1]["content"] == "Tool loaded: later"
    assert not {"tools", "tool_choice"} & set(bench.sent(tools=tools[1:]))


def test_no_tools_are_not_an_empty_list() -> None:
    assert not {"tools", "tool_choice"} & set(bench.sent(tools=[]))


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (None, "auto"),
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "B"}, {"type": "function", "function": {"name": "B"}}),
    ],
)
def test_tool_choice_is_kept(choice: Json | None, sent: Any) -> None:
    tools = [{**TOOL, "name": "A"}, {**TOOL, "name": "B"}]
    asked = bench.sent(tools=tools, tool_choice=choice)
    assert asked["tool_choice"] == sent
    assert "parallel_tool_calls" not in asked
    if choice is not None:
        choice = choice | {"disable_parallel_tool_use": True}
        assert bench.sent(tools=tools, tool_choice=choice)["parallel_tool_calls"] is False


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": ["x"]}, "tools.0"),
        ({"tools": [{"input_schema": {}}]}, "tools.0.name"),
        ({"tools": [{"name": "", "input_schema": {}}]}, "tools.0.name"),
        ({"tools": [{"name": "a"}]}, "tools.0.input_schema"),
        ({"tools": [TOOL, TOOL]}, "tools.1.name"),
        ({"tools": [TOOL | {"allowed_callers": ["code"]}]}, "tools.0.allowed_callers"),
        ({"tools": [TOOL | {"description": 5}]}, "tools.0.description"),
        ({"tools": [TOOL, {"type": "bash_20250124", "name": "bash"}]}, "tools.1"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0"),
        ({"tools": [{"type": "mcp_toolset"}]}, "tools.0"),
        ({"tool_choice": {"type": "auto"}}, "tool_choice"),
        ({"tools": [], "tool_choice": {"type": "none"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": []}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
    ],
)
def test_tools_that_cannot_be_offered_are_refused(fields: Json, path: str) -> None:
    assert bench.refusal(**fields).param == path
