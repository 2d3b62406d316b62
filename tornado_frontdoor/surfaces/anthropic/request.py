"""A Messages request as an OpenAI chat request: the top-level fields.

Three rules. What has a meaning that an engine cannot keep is refused with its path. What has none
for an engine is passed over and named in the answer's `x-frontdoor-ignored`. Fields that nobody
here knows are passed over too: clients add some with every release, and must not break on us.
"""

from typing import Any, NamedTuple

from tornado_frontdoor.core.catalog import Target, Traits
from tornado_frontdoor.core.printable import quoted
from tornado_frontdoor.surfaces.anthropic.content import Rules
from tornado_frontdoor.surfaces.anthropic.fields import (
    Json,
    flag_at,
    int_field,
    invalid,
    list_at,
    number_at,
    object_at,
)
from tornado_frontdoor.surfaces.anthropic.messages import Conversation, read_conversation
from tornado_frontdoor.surfaces.anthropic.thinking import read_thinking
from tornado_frontdoor.surfaces.anthropic.tools import read_tools

_CITATIONS_REFUSED_SINCE = "2026-10-21"
"""The version of the API that made `citations` on user text an error."""

_TRANSLATED = frozenset(
    {
        "model", "max_tokens", "messages", "system", "temperature", "top_p", "top_k",
        "stop_sequences", "stream", "tools", "tool_choice", "thinking", "output_config",
        "output_format", "context_management",
    }
)  # fmt: skip

_REFUSED_WHEN_SET = frozenset(
    {
        "container", "mcp_servers", "inference_geo", "compaction", "thread", "fallbacks",
        "fallback_credit_token",
    }
)  # fmt: skip

_OF_THE_ENGINE = frozenset(
    {
        "chat_template", "chat_template_kwargs", "cache_salt", "ec_transfer_params",
        "kv_transfer_params", "logits_processors", "media_io_kwargs", "mm_processor_kwargs",
        "priority", "prompt_logprobs", "request_id", "vllm_xargs",
    }
)  # fmt: skip
"""vLLM's own fields reach into the engine (its scheduler, its cache, its code): not from here."""

_ALLOWED_VALUES = {"service_tier": ("auto", "standard_only"), "speed": ("standard",)}
_KNOWN_OUTPUT = frozenset({"effort", "format"})


class Translation(NamedTuple):
    """A chat request, and what its answer must know of the question."""

    body: dict[str, Any]
    ignored: tuple[str, ...]
    hides_thinking: bool
    manages_context: bool
    one_tool_at_a_time: bool


def clamped(max_tokens: int, traits: Traits) -> int:
    """Return what an engine can be asked for; vLLM refuses more than its context outright."""
    limits = (max_tokens, traits.max_output_tokens, traits.max_model_len)
    return min(limit for limit in limits if limit is not None)


def read_max_tokens(fields: Json) -> int:
    """Return the client's own `max_tokens`; raises Refused where it is missing or no limit."""
    value = fields.get("max_tokens")
    if value is None:
        raise invalid("max_tokens", "field required")
    if value == 0 and not isinstance(value, bool):
        raise invalid("max_tokens", "cache pre-warming is not supported by this gateway")
    return int_field(value, "max_tokens", 1)


def chat_request(fields: Json, target: Target, version: str) -> Translation:
    """Translate a request for an answer; `version` is its `anthropic-version`. Raises Refused."""
    traits = target.traits
    max_tokens = read_max_tokens(fields)
    parts = _Parts(fields, traits, version, max_tokens)
    body: dict[str, Any] = {
        "model": target.served_name,
        "messages": parts.conversation.messages,
        "max_tokens": clamped(max_tokens, traits),
        **_sampling(fields, traits),
        **parts.tools.fields,
        **parts.thinking.fields,
        **_format(fields),
    }
    if parts.conversation.continues:
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    if flag_at(fields.get("stream"), "stream"):
        # vLLM refuses `stream_options` without `stream`.
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if traits.continuous_usage:
            body["stream_options"]["continuous_usage_stats"] = True
    return Translation(
        body,
        ignored=_ignored(fields),
        hides_thinking=parts.thinking.hidden,
        manages_context=_manages_context(fields),
        one_tool_at_a_time=parts.tools.one_at_a_time,
    )


def count_request(fields: Json, target: Target, version: str) -> dict[str, Any]:
    """Translate a request for a count: the same conversation, for vLLM's `/tokenize`."""
    parts = _Parts(fields, target.traits, version, None)
    _ignored(fields)
    body: dict[str, Any] = {
        "model": target.served_name,
        "messages": parts.conversation.messages,
        "add_generation_prompt": not parts.conversation.continues,
    }
    if parts.conversation.continues:
        body["continue_final_message"] = True
    if parts.tools.fields:
        body["tools"] = parts.tools.fields["tools"]
    if "chat_template_kwargs" in parts.thinking.fields:
        body["chat_template_kwargs"] = parts.thinking.fields["chat_template_kwargs"]
    return body


class _Parts:
    """What an answer and a count have in common."""

    def __init__(self, fields: Json, traits: Traits, version: str, max_tokens: int | None) -> None:
        if fields.get("messages") is None:
            raise invalid("messages", "field required")
        rules = Rules(traits.images, version >= _CITATIONS_REFUSED_SINCE)
        self.thinking = read_thinking(fields, traits, max_tokens)
        self.conversation: Conversation = read_conversation(
            fields.get("system"),
            fields["messages"],
            traits,
            rules,
            thinks=self.thinking.forced,
        )
        self.tools = read_tools(
            fields.get("tools"), fields.get("tool_choice"), self.conversation.loaded_tools
        )


def _sampling(fields: Json, traits: Traits) -> dict[str, Any]:
    sampling: dict[str, Any] = {}
    if fields.get("temperature") is not None:
        sampling["temperature"] = number_at(fields["temperature"], "temperature", 2)
    if fields.get("top_p") is not None:
        sampling["top_p"] = number_at(fields["top_p"], "top_p", 1)
    if fields.get("top_k") is not None:
        sampling["top_k"] = int_field(fields["top_k"], "top_k", 0)
    if fields.get("stop_sequences"):
        stops = list_at(fields["stop_sequences"], "stop_sequences")
        if len(stops) > traits.stop_limit:
            raise invalid("stop_sequences", f"this model takes at most {traits.stop_limit}")
        for number, stop in enumerate(stops):
            if not isinstance(stop, str) or not stop:
                raise invalid(f"stop_sequences.{number}", "must be a string that is not empty")
        sampling["stop"] = stops
    return sampling


def _format(fields: Json) -> dict[str, Any]:
    config = fields.get("output_config")
    path = "output_config.format"
    wanted = None if config is None else object_at(config, "output_config").get("format")
    if wanted is None:
        path = "output_format"
        wanted = fields.get("output_format")
    if wanted is None:
        return {}
    if object_at(wanted, path).get("type") != "json_schema":
        raise invalid(f"{path}.type", f"{quoted(wanted.get('type'))} is not supported")
    schema = object_at(wanted.get("schema"), f"{path}.schema")
    named = {"name": "response", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _manages_context(fields: Json) -> bool:
    raw = fields.get("context_management")
    if raw is None:
        return False
    object_at(raw, "context_management")
    return True


def _ignored(fields: Json) -> tuple[str, ...]:
    """Return the fields that have no effect; raises Refused for those that must not be ignored."""
    ignored = []
    for name, value in fields.items():
        if name in _TRANSLATED or value is None:
            continue
        if name in _OF_THE_ENGINE:
            raise invalid(name, "is a field of the engine and not of this API")
        if name in _REFUSED_WHEN_SET:
            if value != []:
                raise invalid(name, "is not supported by this gateway")
            continue
        allowed = _ALLOWED_VALUES.get(name)
        if allowed is not None and value not in allowed:
            raise invalid(name, f"{quoted(value)} is not supported by this gateway")
        ignored.append(name)
    config = fields.get("output_config")
    if isinstance(config, dict):
        ignored += [f"output_config.{name}" for name in config if name not in _KNOWN_OUTPUT]
    return tuple(ignored)
