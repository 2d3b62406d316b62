"""Turns: from Anthropic's messages, with system prompts and tool results in them, to chat messages.

Consecutive turns of one role are one turn, as the API documents and many chat templates demand; so
they are joined before anything is translated. Of a user's turn the tool results come first, one
tool message each, and never anything between two of them.

Lost, because a chat message has no place for it: the order of text and tool calls within one turn
of the assistant.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from tornado_frontdoor.core.catalog import Traits
from tornado_frontdoor.core.printable import quoted
from tornado_frontdoor.surfaces.anthropic.content import (
    Part,
    Rules,
    assistant_tool_call,
    plain_text,
    refuse_in_assistant,
    text_part,
    tool_result,
    user_parts,
)
from tornado_frontdoor.surfaces.anthropic.fields import Json, invalid, objects_at, str_field

_ATTRIBUTION = "x-anthropic-billing-header"
_NO_PREFILL = (
    "This model does not support assistant message prefill. "
    "The conversation must end with a user message."
)

Block = tuple[str, Json]
"""A content block and its path."""


class Turn(NamedTuple):
    """Consecutive messages of one role; for `system` every block is text."""

    role: str
    blocks: list[Block]


class Conversation(NamedTuple):
    """A conversation as chat messages, and what else it says about the request."""

    messages: list[Json]
    continues: bool
    """Whether the answer goes on with the last message instead of starting a new one."""
    loaded_tools: frozenset[str]
    """Deferred tools that some `tool_reference` has asked for."""


def read_conversation(
    system: object, messages: object, traits: Traits, rules: Rules, *, thinks: bool
) -> Conversation:
    """Translate a conversation; `thinks` tells whether thinking is forced on. Raises Refused."""
    turns, ends_with_assistant = _read_turns(messages, traits)
    if any(map(_is_empty, turns)):
        ends_with_assistant &= not _is_empty(turns[-1])
        turns = _joined(turn for turn in turns if not _is_empty(turn))
    system_texts = _system(system, traits)
    if traits.inline_system == "merge":
        inline = [
            block["text"] for role, blocks in turns if role == "system" for _, block in blocks
        ]
        system_texts += inline
        turns = [turn for turn in turns if turn.role != "system"]
    translated: list[Json] = []
    loaded: list[str] = []
    leading = _join(system_texts)
    head = [Turn("system", [("system", text_part(leading))])] if leading else []
    for role, blocks in _joined([*head, *turns]):
        if role == "system":
            text = _join(block["text"] for _, block in blocks)
            translated.append({"role": "system", "content": text})
        elif role == "user":
            translated += _user(blocks, rules, loaded)
        else:
            translated.append(_assistant(blocks, traits))
    if ends_with_assistant and (
        traits.prefill == "reject" or thinks or "tool_calls" in translated[-1]
    ):
        raise invalid("messages", _NO_PREFILL)
    return Conversation(translated, ends_with_assistant, frozenset(loaded))


def _read_turns(messages: object, traits: Traits) -> tuple[list[Turn], bool]:
    """Return the turns, and whether the last message is the assistant's."""
    numbered = objects_at(messages, "messages")
    if not numbered:
        raise invalid("messages", "at least one message is required")
    turns: list[Turn] = []
    role: object = None
    for path, message in numbered:
        role = message.get("role")
        content_path = f"{path}.content"
        content = message.get("content")
        if role == "system":
            texts = plain_text(content, content_path, "system messages")
            turns.append(_system_turn(texts, content_path, traits))
        elif role in ("user", "assistant"):
            turns.append(Turn(role, _blocks(content, content_path)))
        else:
            raise invalid(f"{path}.role", f"{quoted(role)} is not a role of this API")
    return _joined(turns), role == "assistant"


def _is_empty(turn: Turn) -> bool:
    """Tell whether an assistant's turn has nothing to say: strict templates refuse an empty one.

    Thinking alone, or a text without a character, is nothing; what is not known is left to be
    refused.
    """
    return turn.role == "assistant" and all(
        block.get("type") in ("thinking", "redacted_thinking")
        or (block.get("type") == "text" and block.get("text") == "")
        for _, block in turn.blocks
    )


def _system_turn(texts: list[str], path: str, traits: Traits) -> Turn:
    """Return a system message within a conversation, as the template can take it."""
    text = _join(texts)
    if traits.inline_system == "reminder":
        text = f"<system-reminder>\n{text}\n</system-reminder>"
        return Turn("user", [(path, text_part(text))])
    return Turn("system", [(path, text_part(text))])


def _blocks(content: object, path: str) -> list[Block]:
    if isinstance(content, str):
        return [(path, text_part(content))]
    return objects_at(content, path)


def _joined(turns: Iterable[Turn]) -> list[Turn]:
    joined: list[Turn] = []
    for role, blocks in turns:
        if joined and joined[-1].role == role:
            joined[-1].blocks.extend(blocks)
        else:
            joined.append(Turn(role, [*blocks]))
    return joined


def _system(system: object, traits: Traits) -> list[str]:
    if system is None:
        return []
    texts = plain_text(system, "system", "the system prompt")
    if traits.strip_attribution and texts and texts[0].startswith(_ATTRIBUTION):
        # It names the client's build, and once changed with every request: no prefix was ever
        # found in the engine's cache.
        texts[0] = texts[0].partition("\n")[2]
    return texts


def _join(texts: Iterable[str]) -> str:
    """Join texts with a newline where neither side brings one."""
    joined = ""
    for text in texts:
        if joined and text and not joined.endswith("\n") and not text.startswith("\n"):
            joined += "\n"
        joined += text
    return joined


def _user(blocks: list[Block], rules: Rules, loaded: list[str]) -> list[Json]:
    """Return a user's turn: tool messages, then one user message with all the rest."""
    messages: list[Json] = []
    lifted: list[Part] = []
    parts: list[Part] = []
    for path, block in blocks:
        if block.get("type") == "tool_result":
            result = tool_result(block, path, rules)
            loaded += result.references
            messages.append(
                {"role": "tool", "tool_call_id": result.tool_use_id, "content": result.text}
            )
            if result.images:
                lifted.append(text_part(f"Images from tool result {result.tool_use_id}:"))
                lifted += result.images
        else:
            parts += user_parts(block, path, rules)
    parts = lifted + parts
    if parts or not messages:
        messages.append({"role": "user", "content": _user_content(parts)})
    return messages


def _user_content(parts: list[Part]) -> str | list[Part]:
    if not parts:
        return ""
    if len(parts) == 1 and parts[0]["type"] == "text":
        text: str = parts[0]["text"]
        return text  # every chat template takes a string
    return parts


def _assistant(blocks: list[Block], traits: Traits) -> Json:
    text = thinking = ""
    calls: list[Json] = []
    for path, block in blocks:
        match block.get("type"):
            case "text":
                text += str_field(block, "text", path)
            case "thinking":
                thinking += str_field(block, "thinking", path)
            case "redacted_thinking":
                pass  # opaque to us; refusing it would end conversations begun elsewhere
            case "tool_use":
                calls.append(assistant_tool_call(block, path))
            case _:
                raise refuse_in_assistant(block, path)
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    if thinking:
        if traits.reasoning_field in ("reasoning", "both"):
            message["reasoning"] = thinking
        if traits.reasoning_field in ("reasoning_content", "both"):
            message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = calls
    return message
