"""Content blocks: what each becomes in a chat message, or why it is refused.

A block whose meaning could not be kept is refused, never dropped: an answer that pretends to have
read a PDF is worse than none. What has no meaning for an engine (`cache_control`) is passed over.
"""

from html import escape
from json import JSONEncoder
from typing import Any, Literal, NamedTuple

from tornado_frontdoor.core.printable import quoted
from tornado_frontdoor.surfaces.anthropic.fields import (
    NOT_FINITE,
    Json,
    invalid,
    nonempty_str,
    object_at,
    objects_at,
    str_field,
)
from tornado_frontdoor.surfaces.patient_json import is_small, write_in_steps

Part = dict[str, Any]

_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_encode = JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_NO_PDF = "PDF documents are not supported by this gateway"
_NO_FILES = "the Files API is not supported by this gateway"


class Rules(NamedTuple):
    """What differs from model to model and from version to version of the API."""

    images: Literal["base64", "base64+url", "none"]
    citations_refused: bool
    """Whether `citations` in a user's text are an error: since version 2026-10-21."""


class ToolResult(NamedTuple):
    """One answer of a tool: its text, and what a tool message has no room for."""

    tool_use_id: str
    text: str
    images: list[Part]
    references: list[str]


def text_part(text: str) -> Part:
    """Return a text part of a chat message."""
    return {"type": "text", "text": text}


def user_parts(block: Json, path: str, rules: Rules) -> list[Part]:
    """Return the chat parts of a block that stands in a user's message."""
    match block.get("type"):
        case "text":
            if block.get("citations") and rules.citations_refused:
                raise invalid(f"{path}.citations", "citations are not allowed on user text")
            text = str_field(block, "text", path)
            return [text_part(text)] if text else []
        case "image":
            return [_image(block, path, rules)]
        case "document":
            return _document(block, path, rules)
        case "search_result":
            return [text_part(_search_result(block, path))]
        case kind:
            raise _unsupported(kind, path, "user")


def assistant_tool_call(block: Json, path: str) -> Json:
    """Return the tool call that a `tool_use` block stands for."""
    caller = block.get("caller")
    if caller is not None and object_at(caller, f"{path}.caller").get("type") != "direct":
        raise invalid(f"{path}.caller", "only direct calls are supported by this gateway")
    if block.get("toolset_name") is not None:
        raise invalid(f"{path}.toolset_name", "toolsets are not supported by this gateway")
    arguments = object_at(block.get("input"), f"{path}.input")
    try:
        small = is_small(arguments)
        written = _encode(arguments) if small else "".join(write_in_steps(arguments))
    except ValueError as error:
        raise invalid(f"{path}.input", NOT_FINITE) from error
    return {
        "id": nonempty_str(block, "id", path),
        "type": "function",
        "function": {
            "name": nonempty_str(block, "name", path),
            "arguments": written,
        },
    }


def refuse_in_assistant(block: Json, path: str) -> Exception:
    """Return the refusal of a block that an assistant's message cannot have."""
    return _unsupported(block.get("type"), path, "assistant")


def tool_result(block: Json, path: str, rules: Rules) -> ToolResult:
    """Return a tool's answer; pictures come apart, as tool messages carry text only."""
    tool_use_id = nonempty_str(block, "tool_use_id", path)
    content = block.get("content")
    texts: list[str] = []
    images: list[Part] = []
    references: list[str] = []
    if isinstance(content, str):
        texts.append(content)
    elif content is not None:
        for inner_path, inner in objects_at(content, f"{path}.content"):
            if inner.get("type") == "tool_reference":
                name = nonempty_str(inner, "tool_name", inner_path)
                references.append(name)
                texts.append(f"Tool loaded: {name}")
                continue
            for part in user_parts(inner, inner_path, rules):
                if part["type"] == "text":
                    texts.append(part["text"])
                else:
                    images.append(part)
    text = "\n".join(texts)
    if block.get("is_error") is True and text[:5].lower() != "error":
        text = f"Tool error:\n{text}"
    return ToolResult(tool_use_id, text, images, references)


def plain_text(content: object, path: str, whose: str) -> list[str]:
    """Return the texts of content that may hold nothing but text, as system prompts do."""
    if isinstance(content, str):
        return [content]
    texts = []
    for block_path, block in objects_at(content, path):
        if block.get("type") != "text":
            raise invalid(block_path, f"only text blocks are supported in {whose}")
        texts.append(str_field(block, "text", block_path))
    return texts


def _image(block: Json, path: str, rules: Rules) -> Part:
    if rules.images == "none":
        raise invalid(path, "image input is not supported by this model")
    transformations = block.get("transformations")
    if isinstance(transformations, dict) and transformations.get("oversized_image") == "error":
        raise invalid(f"{path}.transformations", "oversized_image 'error' is not supported")
    source_path = f"{path}.source"
    source = object_at(block.get("source"), source_path)
    match source.get("type"):
        case "base64":
            media_type = str_field(source, "media_type", source_path)
            if media_type not in _IMAGE_TYPES:
                raise invalid(f"{source_path}.media_type", f"{quoted(media_type)} is not supported")
            url = f"data:{media_type};base64,{nonempty_str(source, 'data', source_path)}"
        case "url":
            url = nonempty_str(source, "url", source_path)
            if rules.images != "base64+url":
                raise invalid(source_path, "image URLs are not supported by this model")
            if not url.lower().startswith(("http://", "https://")):
                raise invalid(f"{source_path}.url", "must be an http or https URL")
        case "file":
            raise invalid(source_path, _NO_FILES)
        case kind:
            raise invalid(source_path, f"source type {quoted(kind)} is not supported")
    return {"type": "image_url", "image_url": {"url": url}}


def _document(block: Json, path: str, rules: Rules) -> list[Part]:
    _refuse_citations(block, path)
    source_path = f"{path}.source"
    source = object_at(block.get("source"), source_path)
    pictures: list[Part] = []
    match source.get("type"):
        case "text":
            text = str_field(source, "data", source_path)
        case "content":
            text, pictures = _flattened(source.get("content"), f"{source_path}.content", rules)
        case "file":
            raise invalid(source_path, _NO_FILES)
        case "base64" | "url":
            raise invalid(source_path, _NO_PDF)
        case kind:
            raise invalid(source_path, f"source type {quoted(kind)} is not supported")
    attributes = "".join(
        f' {name}="{escape(value)}"'
        for name in ("title", "context")
        if isinstance(value := block.get(name), str) and value
    )
    return [text_part(f"<document{attributes}>\n{text}\n</document>"), *pictures]


def _flattened(content: object, path: str, rules: Rules) -> tuple[str, list[Part]]:
    if isinstance(content, str):
        return content, []
    parts: list[Part] = []
    for inner_path, inner in objects_at(content, path):
        if inner.get("type") not in ("text", "image"):
            raise _unsupported(inner.get("type"), inner_path, "document")
        parts += user_parts(inner, inner_path, rules)
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    return text, [part for part in parts if part["type"] != "text"]


def _search_result(block: Json, path: str) -> str:
    _refuse_citations(block, path)
    lines = [
        f"Search result: {str_field(block, 'title', path)}",
        f"Source: {str_field(block, 'source', path)}",
        *plain_text(block.get("content"), f"{path}.content", "a search result"),
    ]
    return "\n".join(lines)


def _refuse_citations(block: Json, path: str) -> None:
    citations = block.get("citations")
    if isinstance(citations, dict) and citations.get("enabled"):
        raise invalid(f"{path}.citations", "citations are not supported by this gateway")


def _unsupported(kind: object, path: str, where: str) -> Exception:
    if not isinstance(kind, str):
        return invalid(f"{path}.type", "field required")
    return invalid(path, f"{kind} blocks are not supported by this gateway in {where} content")
