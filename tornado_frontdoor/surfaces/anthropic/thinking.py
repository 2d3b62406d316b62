"""How hard a model is to think: `thinking` and `output_config.effort`, in the words of its engine.

Engines have no common switch, so each model's configuration says which one it has
(`thinking_style`) and which words of effort it knows (`effort_map`).
"""

from typing import Any, NamedTuple

from tornado_frontdoor.core.catalog import Traits
from tornado_frontdoor.core.printable import quoted
from tornado_frontdoor.surfaces.anthropic.fields import Json, int_field, invalid, object_at

_EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
_LEAST_BUDGET = 1024


class Thinking(NamedTuple):
    """What goes into a chat request about thinking."""

    fields: dict[str, Any]
    forced: bool
    """Whether the request insists on thinking, which rules out a prefill."""
    hidden: bool
    """Whether the answer shows that there was thinking but not the text of it."""


def read_thinking(fields: Json, traits: Traits, max_tokens: int | None) -> Thinking:
    """Translate `thinking` and the effort; `max_tokens` is the client's own. Raises Refused."""
    effort = _effort(fields)
    raw = fields.get("thinking")
    if raw is None:
        if traits.thinking_default == "off":
            return Thinking(_switch(traits, on=False), forced=False, hidden=False)
        return Thinking(_effort_fields(traits, effort), forced=False, hidden=False)
    thinking = object_at(raw, "thinking")
    hidden = thinking.get("display") == "omitted"
    match thinking.get("type"):
        case "disabled":
            return Thinking(_switch(traits, on=False), forced=False, hidden=hidden)
        case "adaptive":
            return Thinking(_effort_fields(traits, effort), forced=False, hidden=hidden)
        case "enabled":
            budget = _budget(thinking, max_tokens)
            if effort is None:
                effort = "low" if budget < 4096 else "medium" if budget < 16384 else "high"
                by_effort = traits.thinking_style == "reasoning_effort"
                told = _effort_fields(traits, effort) if by_effort else {}
            else:
                told = _effort_fields(traits, effort)
            told |= _switch(traits, on=True)
            if traits.thinking_budget:
                told["thinking_token_budget"] = budget
            return Thinking(told, forced=True, hidden=hidden)
        case kind:
            raise invalid("thinking.type", f"{quoted(kind)} is not supported")


def _effort(fields: Json) -> str | None:
    raw = fields.get("output_config")
    effort = None if raw is None else object_at(raw, "output_config").get("effort")
    if effort is None:
        return None
    if not isinstance(effort, str) or effort not in _EFFORTS:
        raise invalid("output_config.effort", f"{quoted(effort)} is not supported")
    return effort


def _budget(thinking: Json, max_tokens: int | None) -> int:
    budget = int_field(thinking.get("budget_tokens"), "thinking.budget_tokens", _LEAST_BUDGET)
    if max_tokens is not None and budget >= max_tokens:
        raise invalid("thinking.budget_tokens", "must be less than max_tokens")
    return budget


def _effort_fields(traits: Traits, effort: str | None) -> dict[str, Any]:
    if effort is None or traits.thinking_style == "none":
        return {}
    return {"reasoning_effort": traits.effort_map.get(effort, effort)}


def _switch(traits: Traits, *, on: bool) -> dict[str, Any]:
    if traits.thinking_style in ("enable_thinking", "thinking"):
        return {"chat_template_kwargs": {traits.thinking_style: on}}
    if traits.thinking_style == "reasoning_effort" and not on:
        return {"reasoning_effort": traits.effort_map.get("none", "none")}
    return {}
