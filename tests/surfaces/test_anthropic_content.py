"""Content blocks: what each becomes in a chat message, or where it is refused."""

import json
from typing import Any

import pytest
from anthropic_bench import (
    COUNT_TOKENS,
    HI,
    PNG,
    PNG_PART,
    assistant,
    bench,
    chat,
    text,
    tool_result,
    tool_use,
    user,
)

from tornado_frontdoor.surfaces.base import Refused

Json = dict[str, Any]


def one(*blocks: Json | str, **traits: Any) -> Any:
    """What one user message with these blocks becomes."""
    [message] = chat(user(*blocks), traits=traits)
    assert message["role"] == "user"
    return message["content"]


# User content


def test_single_text_is_a_plain_string() -> None:
    assert one("hi") == "hi"
    assert one({**text("hi"), "cache_control": {"type": "ephemeral"}}) == "hi"
    assert one("", "hi") == "hi"


def test_nothing_is_an_empty_string() -> None:
    assert chat({"role": "user", "content": ""}) == [{"role": "user", "content": ""}]
    assert chat({"role": "user", "content": []}) == [{"role": "user", "content": ""}]
    assert one("") == ""


def test_several_parts_keep_their_order() -> None:
    assert one("a", PNG, "b") == [text("a"), PNG_PART, text("b")]
    assert one(PNG) == [PNG_PART]


@pytest.mark.parametrize("kind", ["jpeg", "png", "gif", "webp"])
def test_pictures_become_data_urls(kind: str) -> None:
    source = {"type": "base64", "media_type": f"image/{kind}", "data": "QQ=="}
    [part] = one({"type": "image", "source": source, "transformations": {}})
    assert part["image_url"] == {"url": f"data:image/{kind};base64,QQ=="}


def test_picture_urls_are_for_models_that_may_fetch_them() -> None:
    block = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    [part] = one(block, images="base64+url")
    assert part == {"type": "image_url", "image_url": {"url": "https://x/y.png"}}


def test_text_documents_become_text() -> None:
    block: Json = {"type": "document", "source": {"type": "text", "data": "D"}}
    assert one(block) == "<document>\nD\n</document>"
    titled = {**block, "title": 'a "b" <c>', "context": "from x", "citations": {"enabled": False}}
    assert one(titled) == (
        '<document title="a &quot;b&quot; &lt;c&gt;" context="from x">\nD\n</document>'
    )


def test_documents_of_blocks_keep_their_pictures() -> None:
    source: Json = {"type": "content", "content": [text("a"), PNG, text("b")]}
    assert one({"type": "document", "source": source}) == [
        text("<document>\na\nb\n</document>"),
        PNG_PART,
    ]
    source = {"type": "content", "content": "plain"}
    assert one({"type": "document", "source": source}) == "<document>\nplain\n</document>"


def test_search_results_become_text() -> None:
    block = {"type": "search_result", "title": "T", "source": "http://s", "content": [text("x")]}
    assert one(block) == "Search result: T\nSource: http://s\nx"


def test_citations_on_user_text_are_an_error_of_newer_versions_only() -> None:
    block = {**text("hi"), "citations": [{}]}
    question = bench.question(messages=[user(block)])
    for version in ("", "2023-06-01"):
        assert bench.decode(question, headers={"anthropic-version": version})
    with pytest.raises(Refused) as caught:
        bench.decode(question, headers={"anthropic-version": "2026-10-21"})
    assert caught.value.refusal.param == "messages.0.content.0.citations"


@pytest.mark.parametrize(
    ("block", "traits", "path"),
    [
        ({"type": "text"}, {}, ".text"),
        ({"type": "text", "text": 3}, {}, ".text"),
        ({}, {}, ".type"),
        ({"type": 5}, {}, ".type"),
        ({"type": "image"}, {}, ".source"),
        (PNG, {"images": "none"}, ""),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": "A"}},
         {}, ".source.media_type"),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}},
         {}, ".source.data"),
        ({"type": "image", "source": {"type": "url", "url": "https://x"}}, {}, ".source"),
        ({"type": "image", "source": {"type": "url", "url": "file:///etc"}},
         {"images": "base64+url"}, ".source.url"),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, {}, ".source"),
        ({"type": "image", "source": {"type": "odd"}}, {}, ".source"),
        ({**PNG, "transformations": {"oversized_image": "error"}}, {}, ".transformations"),
        ({"type": "document", "source": {"type": "base64", "data": "x"}}, {}, ".source"),
        ({"type": "document", "source": {"type": "url", "url": "http://x"}}, {}, ".source"),
        ({"type": "document", "source": {"type": "file", "file_id": "f"}}, {}, ".source"),
        ({"type": "document", "source": {"type": "odd"}}, {}, ".source"),
        ({"type": "document", "source": {"type": "text", "data": "x"},
          "citations": {"enabled": True}}, {}, ".citations"),
        ({"type": "document", "source": {"type": "content", "content": [{"type": "odd"}]}}, {},
         ".source.content.0"),
        ({"type": "search_result", "title": "t", "source": "s", "content": [],
          "citations": {"enabled": True}}, {}, ".citations"),
        ({"type": "search_result", "title": "t", "source": "s", "content": [PNG]}, {},
         ".content.0"),
        ({"type": "thinking", "thinking": "t", "signature": "s"}, {}, ""),
        (tool_use(), {}, ""),
        ({"type": "server_tool_use"}, {}, ""),
        ({"type": "web_search_tool_result"}, {}, ""),
        ({"type": "mcp_tool_use"}, {}, ""),
        ({"type": "container_upload"}, {}, ""),
        ({"type": "compaction"}, {}, ""),
        ({"type": "fallback"}, {}, ""),
        ({"type": "of_the_future"}, {}, ""),
        (tool_result(""), {}, ".tool_use_id"),
        ({"type": "tool_result"}, {}, ".tool_use_id"),
        (tool_result(content=5), {}, ".content"),
        (tool_result(content=[5]), {}, ".content.0"),
        (tool_result(content=[{"type": "browser_state"}]), {}, ".content.0"),
        (tool_result(content=[{"type": "document", "source": {"type": "url"}}]), {},
         ".content.0.source"),
    ],
)  # fmt: skip
def test_user_blocks_that_cannot_be_kept_are_refused(block: Json, traits: Json, path: str) -> None:
    refusal = bench.refusal(traits, messages=[*HI, user("x", block)])
    assert refusal.param == f"messages.1.content.1{path}"


# Tool results


def results(*blocks: Json | str, **traits: Any) -> list[Json]:
    return chat(*HI, assistant(tool_use("a"), tool_use("b")), user(*blocks), traits=traits)[2:]


def test_tool_results_come_first_and_nothing_between_them() -> None:
    first = tool_result("a", content=[text("seen"), PNG])
    assert results("before", first, tool_result("b", content="ok"), "after") == [
        {"role": "tool", "tool_call_id": "a", "content": "seen"},
        {"role": "tool", "tool_call_id": "b", "content": "ok"},
        {
            "role": "user",
            "content": [
                text("Images from tool result a:"),
                PNG_PART,
                text("before"),
                text("after"),
            ],
        },
    ]


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({}, ""),
        ({"content": None}, ""),
        ({"content": []}, ""),
        ({"content": "x"}, "x"),
        ({"content": [text("x"), text("y")]}, "x\ny"),
        ({"content": "boom", "is_error": True}, "Tool error:\nboom"),
        ({"content": [text("boom")], "is_error": True}, "Tool error:\nboom"),
        ({"content": "ERROR: boom", "is_error": True}, "ERROR: boom"),
        ({"is_error": True}, "Tool error:\n"),
        ({"content": "boom", "is_error": False}, "boom"),
        (
            {"content": [{"type": "document", "source": {"type": "text", "data": "D"}}]},
            "<document>\nD\n</document>",
        ),
    ],
)
def test_tool_result_becomes_a_tool_message(fields: Json, content: str) -> None:
    assert results(tool_result("a", **fields)) == [
        {"role": "tool", "tool_call_id": "a", "content": content}
    ]


# The assistant's content


def test_history_of_a_tool_call_is_kept_whole() -> None:
    message = assistant(
        {"type": "thinking", "thinking": "T", "signature": "s"},
        "text",
        tool_use("toolu_9", caller={"type": "direct"}, toolset_name=None),
        {"type": "redacted_thinking", "data": "x"},
    )
    [_, sent, _] = chat(*HI, message, user(tool_result("toolu_9")))
    assert sent == {
        "role": "assistant",
        "content": "text",
        "reasoning": "T",
        "tool_calls": [
            {"id": "toolu_9", "type": "function", "function": {"name": "get", "arguments": "{}"}}
        ],
    }


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("reasoning", {"reasoning"}),
        ("reasoning_content", {"reasoning_content"}),
        ("both", {"reasoning", "reasoning_content"}),
    ],
)
def test_history_of_thinking_goes_where_the_engine_reads_it(field: str, names: set[str]) -> None:
    message = assistant({"type": "thinking", "thinking": "T", "signature": "s"}, "x")
    [_, sent, _] = chat(*HI, message, user("y"), traits={"reasoning_field": field})
    assert set(sent) - {"role", "content"} == names
    assert all(sent[name] == "T" for name in names)


def test_redacted_thinking_does_not_end_a_conversation() -> None:
    [_, sent, _] = chat(*HI, assistant({"type": "redacted_thinking", "data": "x"}, "a"), *HI)
    assert sent == {"role": "assistant", "content": "a"}


def test_content_is_null_only_beside_tool_calls() -> None:
    [_, sent, _] = chat(*HI, assistant(tool_use()), user(tool_result()))
    assert sent["content"] is None
    [_, sent, _] = chat(*HI, assistant({"type": "text", "text": "x"}), *HI)
    assert sent["content"] == "x"


EMPTY: list[Any] = [
    [],
    "",
    [{"type": "text", "text": ""}],
    [{"type": "thinking", "thinking": "hm", "signature": "s"}],
    [{"type": "redacted_thinking", "data": "x"}],
]


@pytest.mark.parametrize("content", EMPTY)
def test_a_turn_with_nothing_in_it_is_dropped_and_its_neighbours_are_one(content: object) -> None:
    """Strict chat templates refuse an empty assistant, and two users in a row."""
    sent = chat({"role": "user", "content": "a"}, {"role": "assistant", "content": content},
                {"role": "user", "content": "b"})  # fmt: skip
    assert [message["role"] for message in sent] == ["user"]
    assert [part["text"] for part in sent[0]["content"]] == ["a", "b"]


@pytest.mark.parametrize("content", EMPTY)
def test_an_empty_last_turn_is_no_prefill(content: object) -> None:
    sent = chat({"role": "user", "content": "a"}, {"role": "assistant", "content": content})
    assert [message["role"] for message in sent] == ["user"]


@pytest.mark.parametrize("number", ["1e999", "NaN"])
def test_tool_arguments_that_are_not_finite_are_refused_by_their_path(number: str) -> None:
    with pytest.raises(Refused) as refused:
        chat(*HI, assistant(tool_use(input={"n": float(number)})), user(tool_result()))
    assert refused.value.refusal.param == "messages.1.content.0.input"


@pytest.mark.parametrize(
    "arguments",
    [{}, {"a": 'he said "x"\n\t\\ 🙂 \u2028'}, {"n": 1.5, "l": [None, True], "o": {"é": ""}}],
)
def test_tool_arguments_survive_as_json(arguments: Json) -> None:
    [_, sent, _] = chat(*HI, assistant(tool_use(input=arguments)), user(tool_result()))
    [call] = sent["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == arguments


@pytest.mark.parametrize(
    ("block", "path"),
    [
        (PNG, ""),
        ({"type": "document", "source": {"type": "text", "data": "x"}}, ""),
        (tool_result(), ""),
        ({"type": "text"}, ".text"),
        ({"type": "thinking"}, ".thinking"),
        ({"type": "of_the_future"}, ""),
        (tool_use(""), ".id"),
        (tool_use(name=""), ".name"),
        (tool_use(input=None), ".input"),
        (tool_use(input="{}"), ".input"),
        (tool_use(caller={"type": "code_execution"}), ".caller"),
        (tool_use(toolset_name="browser"), ".toolset_name"),
    ],
)
def test_assistant_blocks_that_cannot_be_kept_are_refused(block: Json, path: str) -> None:
    refusal = bench.refusal(messages=[*HI, assistant("x", block), *HI])
    assert refusal.param == f"messages.1.content.1{path}"


def test_pictures_and_documents_are_counted_or_refused_and_upset_nothing() -> None:
    question = bench.question(messages=[user("x", PNG)])
    body = json.loads(bench.decode(question, path=COUNT_TOKENS).request.body)
    assert body["messages"][0]["content"] == [text("x"), PNG_PART]
    pdf = {"type": "document", "source": {"type": "base64", "data": "x"}}
    with pytest.raises(Refused):
        bench.decode(bench.question(messages=[user(pdf)]), path=COUNT_TOKENS)
