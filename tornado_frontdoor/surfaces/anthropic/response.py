"""One whole answer: an OpenAI chat completion as an Anthropic message.

What is decided here holds for streams too: `stream` uses the same functions for usage, arguments
and stop reasons, so that both ways of asking end in the same message.
"""

from collections.abc import Callable, Sequence
from json import dumps
from typing import Any, NamedTuple

from tornado_frontdoor.surfaces.anthropic.errors import (
    BrokenAnswerError,
    broken,
    in_band_failure,
)
from tornado_frontdoor.surfaces.anthropic.fields import Json, encode, loads_finite, to_bytes
from tornado_frontdoor.surfaces.base import Headers
from tornado_frontdoor.surfaces.quick_json import loads

_HEADER_LIMIT = 512


class Asked(NamedTuple):
    """What an answer must know of its question."""

    model: str
    """The name the client asked for, and reads again: it keys context windows and prices on it."""
    served_name: str
    request_id: str
    new_id: Callable[[], str]
    """A source of random letters and digits."""
    ignored: tuple[str, ...] = ()
    hides_thinking: bool = False
    manages_context: bool = False
    one_tool_at_a_time: bool = False
    buffers_arguments: bool = False


class ToolCall(NamedTuple):
    """One tool call of an answer; `arguments` as the engine wrote them."""

    id: str
    name: str
    arguments: str


def answer_headers(asked: Asked, content_type: str) -> Headers:
    """Return the headers of an answer."""
    headers = [("Content-Type", content_type), ("request-id", asked.request_id)]
    if _is_plain(asked.served_name):
        headers.append(("x-frontdoor-model", asked.served_name))
    # The names are the client's own words: only harmless ones are echoed into a header.
    named = ",".join(name for name in asked.ignored if _is_plain(name))[:_HEADER_LIMIT]
    if named:
        headers.append(("x-frontdoor-ignored", named))
    return headers


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and not set(text) & set(' ,;"\\')


def message(body: bytes, asked: Asked) -> bytes:
    """Return the message for an engine's body; raises BrokenAnswerError."""
    answer = parsed(body)
    if answer.get("error"):
        raise BrokenAnswerError(in_band_failure(answer["error"]))
    choice = first_choice(answer)
    reply = None if choice is None else choice.get("message")
    if choice is None or not isinstance(reply, dict):
        raise broken("The engine's answer holds no message")
    message_id = f"msg_{asked.new_id()}"
    calls = _calls(reply.get("tool_calls"), asked)
    refusal = text_of(reply, "refusal")
    content: list[Json] = []
    thinking = reasoning_of(reply)
    if thinking:
        shown = "" if asked.hides_thinking else thinking
        block = {"type": "thinking", "thinking": shown, "signature": signature(message_id)}
        content.append(block)
    text = text_of(reply, "content") + refusal
    if text or not (thinking or calls):
        content.append({"type": "text", "text": text})
    content += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": tool_input(call.arguments)}
        for call in calls
    ]
    stop_reason, stop_sequence = stop(
        choice.get("finish_reason"),
        matched_stop(choice),
        [is_object(call.arguments) for call in calls],
        refused=bool(refusal),
    )
    translated: Json = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "stop_details": None,
        "container": None,
        "usage": {**usage(answer.get("usage")), "service_tier": "standard"},
    }
    if asked.manages_context:
        translated["context_management"] = {"applied_edits": []}
    return to_bytes(encode(translated))


def parsed(data: str | bytes) -> Json:
    """Return a JSON object of an engine; raises BrokenAnswerError."""
    try:
        value = loads(data)
    except (ValueError, RecursionError) as error:
        raise broken(f"The engine's answer is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise broken("The engine's answer is not a JSON object")
    return value


def first_choice(answer: Json) -> Json | None:
    """Return the choice with index 0; more than one is never asked for."""
    choices = answer.get("choices")
    if not choices:
        return None
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise broken("The engine's answer has choices that are none")
    first: Json = choices[0]
    return None if first.get("index") else first


def text_of(holder: Json, key: str) -> str:
    """Return a text that may be missing or null; raises BrokenAnswerError for anything else."""
    value = holder.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise broken(f"The engine's answer has a {key} that is no text")
    return value


def reasoning_of(holder: Json) -> str:
    """Return the reasoning, under its new name or its old one; never both."""
    return text_of(holder, "reasoning") or text_of(holder, "reasoning_content")


def signature(message_id: str) -> str:
    """Return the signature of a thinking block: required by clients, echoed by them, never read."""
    return f"fd1-{message_id.removeprefix('msg_')}"


def arguments_of(function: Json) -> str:
    """Return a call's arguments as text; some servers send them as an object."""
    value = function.get("arguments")
    if value is None:
        return ""
    return value if isinstance(value, str) else dumps(value, ensure_ascii=False)


def is_object(arguments: str) -> bool:
    """Tell whether arguments are what they should be; none at all are an empty object."""
    if not arguments:
        return True
    try:
        return isinstance(loads_finite(arguments), dict)
    except (ValueError, RecursionError):
        return False


def tool_input(arguments: str) -> Json:
    """Return arguments as an object, wrapped where they are none: the call must not be lost."""
    if not is_object(arguments):
        return {"INVALID_JSON": arguments}
    parsed_arguments: Json = loads_finite(arguments) if arguments else {}
    return parsed_arguments


def matched_stop(choice: Json) -> str | None:
    """Return the stop sequence that ended the answer: vLLM's name for it, or SGLang's."""
    for key in ("stop_reason", "matched_stop"):
        value = choice.get(key)
        if isinstance(value, str):
            return value
    return None


def stop(
    finish: object, matched: str | None, calls_parse: Sequence[bool], *, refused: bool
) -> tuple[str, str | None]:
    """Return stop reason and stop sequence; first match wins. Raises BrokenAnswerError.

    A named tool ends with `stop` in vLLM: so it is the calls that count, not the finish reason.
    """
    if finish in ("abort", "error"):
        raise broken(f"The engine gave the answer up ({finish})", status=500)
    if finish == "length":
        return "max_tokens", None
    if refused or finish == "content_filter":
        return "refusal", None
    if any(calls_parse):
        return "tool_use", None
    if finish == "stop" and matched is not None:
        return "stop_sequence", matched
    if calls_parse or finish == "tool_calls":
        return "tool_use", None
    return "end_turn", None


def usage(raw: object) -> dict[str, Any]:
    """Return token counts; what an engine does not tell is 0, and its cache is left out."""
    counts = raw if isinstance(raw, dict) else {}
    details = counts.get("prompt_tokens_details")
    translated: dict[str, Any] = {}
    cached = created = 0
    if isinstance(details, dict):
        cached = _count(details, "cached_tokens")
        created = _count(details, "created_cache_tokens") or _count(details, "cache_write_tokens")
        translated["cache_read_input_tokens"] = cached
        translated["cache_creation_input_tokens"] = created
    translated["input_tokens"] = max(0, _count(counts, "prompt_tokens") - cached - created)
    translated["output_tokens"] = _count(counts, "completion_tokens")
    details = counts.get("completion_tokens_details")
    if isinstance(details, dict) and details.get("reasoning_tokens") is not None:
        thinking = _count(details, "reasoning_tokens")
        translated["output_tokens_details"] = {"thinking_tokens": thinking}
    return translated


def _count(counts: Json, key: str) -> int:
    value = counts.get(key)
    return value if isinstance(value, int) and value > 0 else 0


def _calls(raw: object, asked: Asked) -> list[ToolCall]:
    calls = []
    for call in raw if isinstance(raw, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise broken("The engine's answer has a tool call without a function")
        call_id = text_of(call, "id") or f"toolu_{asked.new_id()}"
        calls.append(ToolCall(call_id, text_of(function, "name"), arguments_of(function)))
        if asked.one_tool_at_a_time:
            break
    return calls
