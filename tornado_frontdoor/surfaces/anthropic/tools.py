"""Tools and the choice among them.

Only tools that bring their own schema can be offered to an engine. Anthropic's own tools, whose
schema is in its models or which run on its servers, are refused by name.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

from tornado_frontdoor.core.printable import quoted
from tornado_frontdoor.surfaces.anthropic.fields import (
    NOT_FINITE,
    Json,
    encoded,
    flag_at,
    invalid,
    list_at,
    nonempty_str,
    object_at,
    objects_at,
    str_field,
)

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class Tools(NamedTuple):
    """What goes into a chat request; empty where no tool is offered."""

    fields: dict[str, Any]
    one_at_a_time: bool
    """Whether the answer may hold one call at most."""


def read_tools(raw_tools: object, raw_choice: object, loaded: Collection[str]) -> Tools:
    """Translate tools and tool choice; deferred tools are offered once they are in `loaded`."""
    listed = [] if raw_tools is None else objects_at(raw_tools, "tools")
    names: set[str] = set()
    offered: list[Json] = []
    for path, tool in listed:
        function = _function(tool, path)
        name = function["name"]
        if name in names:
            raise invalid(f"{path}.name", f"there is another tool called {quoted(name)}")
        names.add(name)
        if not flag_at(tool.get("defer_loading"), f"{path}.defer_loading") or name in loaded:
            offered.append({"type": "function", "function": function})
    if raw_choice is not None and not listed:
        raise invalid("tool_choice", "may only be given together with tools")
    choice, one_at_a_time = _choice(raw_choice, [tool["function"]["name"] for tool in offered])
    if not offered:
        return Tools({}, False)  # vLLM refuses an empty list, and a choice without one
    fields: dict[str, Any] = {"tools": offered, "tool_choice": choice}
    if one_at_a_time:
        fields["parallel_tool_calls"] = False
    return Tools(fields, one_at_a_time)


def _function(tool: Json, path: str) -> Json:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise invalid(
            path, f"tool type {quoted(kind)} is not supported; define it as a custom tool"
        )
    callers = tool.get("allowed_callers")
    if callers is not None and "direct" not in list_at(callers, f"{path}.allowed_callers"):
        raise invalid(f"{path}.allowed_callers", "only direct calls are supported by this gateway")
    function: dict[str, Any] = {"name": nonempty_str(tool, "name", path)}
    description = "" if tool.get("description") is None else str_field(tool, "description", path)
    examples = tool.get("input_examples")
    if examples:
        try:
            lines = [encoded(example) for example in list_at(examples, f"{path}.input_examples")]
        except ValueError as error:
            raise invalid(f"{path}.input_examples", NOT_FINITE) from error
        description = "\n".join(
            [*([description] if description else []), "Input examples:", *lines]
        )
    if description:
        function["description"] = description
    schema = object_at(tool.get("input_schema"), f"{path}.input_schema")
    function["parameters"] = schema if "type" in schema else {"type": "object", **schema}
    if tool.get("strict") is not None:
        function["strict"] = flag_at(tool["strict"], f"{path}.strict")
    return function


def _choice(raw: object, offered: list[str]) -> tuple[object, bool]:
    if raw is None:
        return "auto", False
    choice = object_at(raw, "tool_choice")
    one_at_a_time = flag_at(
        choice.get("disable_parallel_tool_use"), "tool_choice.disable_parallel_tool_use"
    )
    kind = choice.get("type")
    if kind == "tool":
        name = nonempty_str(choice, "name", "tool_choice")
        if name not in offered:
            raise invalid("tool_choice.name", f"there is no tool called {quoted(name)}")
        return {"type": "function", "function": {"name": name}}, one_at_a_time
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise invalid("tool_choice.type", f"{quoted(kind)} is not supported")
    return _CHOICES[kind], one_at_a_time
