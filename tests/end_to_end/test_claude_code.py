"""What Claude Code 2.1.197 sends, as recorded by `bin/tryout claude-code`, replayed.

The recording is of one prompt with one tool call: a probe, a question, and the same question with
the tool's result. Its texts are not the client's; its shape is.
"""

import asyncio
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from doorway import doorway
from llm import STREAM_HEAD, chunk, events, framed, hold_to_the_grammar, raw_engine
from wire import Reply

RECORDED = Path(__file__).parent / "fixtures" / "claude_code.json"
PROBE, QUESTION, RESULT = json.loads(RECORDED.read_text(encoding="utf-8"))
SAID = "The tool has spoken."
ANSWER = STREAM_HEAD + framed(chunk({"content": "ok"}, "stop")) + framed(b"data: [DONE]\n\n")


async def say_ok(writer: asyncio.StreamWriter, _: bytes) -> None:
    writer.write(ANSWER + b"0\r\n\r\n")


def translated(*calls: dict[str, Any], model: str = "") -> tuple[list[dict[str, Any]], list[Reply]]:
    """Replay calls; returns what an engine was asked, and the answers."""
    replies = []

    async def scenario() -> list[dict[str, Any]]:
        async with raw_engine(say_ok) as engine, doorway(url=engine.url, model=model) as door:
            for call in calls:
                headers = dict(call["headers"])
                replies.append(
                    await door.call(
                        call["path"], json.dumps(call["body"]).encode(), call["method"], **headers
                    )
                )
            return [json.loads(body) for body in engine.bodies]

    return asyncio.run(scenario()), replies


def test_its_probe_is_answered_with_an_empty_200() -> None:
    asked, (reply,) = translated(PROBE)
    assert (reply.status, reply.body) == (200, b"")
    assert asked == []


def test_its_question_becomes_a_chat_that_any_template_takes() -> None:
    """R1, R2, R4, R16: one system message, first, and no field that an engine does not know."""
    (asked,), (reply,) = translated(QUESTION)
    assert reply.status == 200
    assert [message["role"] for message in asked["messages"]] == ["system", "user"]
    system = asked["messages"][0]["content"]
    assert system.split() == "(text of theirs) (text of theirs) (content of theirs)".split()
    assert "x-anthropic-billing-header" not in system
    assert "stand_in" in json.dumps(asked["messages"][1])
    assert [tool["function"]["name"] for tool in asked["tools"]] == [
        tool["name"] for tool in QUESTION["body"]["tools"]
    ]
    assert all(
        tool["function"]["parameters"] == theirs["input_schema"]
        for tool, theirs in zip(asked["tools"], QUESTION["body"]["tools"], strict=True)
    )
    assert set(asked) == {
        "max_tokens",
        "messages",
        "model",
        "reasoning_effort",
        "stream",
        "stream_options",
        "tool_choice",
        "tools",
    }
    assert asked["model"] == "reasoning"
    assert asked["reasoning_effort"] == QUESTION["body"]["output_config"]["effort"]
    assert reply.headers["x-frontdoor-ignored"] == "metadata"
    hold_to_the_grammar(reply.body)


def test_its_limit_is_cut_to_what_the_model_can() -> None:
    """It asks for 32000 tokens of a model it does not know; vLLM refuses more than its context."""
    dialect = "[models.reasoning.dialect]\nmax_model_len = 8192"
    asked, _ = translated(QUESTION, model=dialect)
    assert QUESTION["body"]["max_tokens"] == 32000
    assert asked[0]["max_tokens"] == 8192


def test_its_tool_result_goes_back_to_the_call_that_it_is_of() -> None:
    """R14: with the thinking before the call, and the arguments as they were."""
    (asked,), _ = translated(RESULT)
    assert [message["role"] for message in asked["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    _, _, assistant, tool = asked["messages"]
    (call,) = assistant["tool_calls"]
    assert assistant["reasoning"] == "A tool will do."
    assert assistant["content"] == "I ask it. "
    assert call["function"]["name"] == "Bash"
    assert SAID in json.loads(call["function"]["arguments"])["command"]
    assert tool["tool_call_id"] == call["id"]
    assert SAID in tool["content"]


def test_what_changes_in_its_attribution_changes_nothing_for_the_engine() -> None:
    """R5: or no two requests would share a prefix in the engine's cache."""
    other = deepcopy(QUESTION)
    text = other["body"]["system"][0]["text"]
    assert text.startswith("x-anthropic-billing-header")
    other["body"]["system"][0]["text"] = text + " cch=abcde;"
    asked, _ = translated(QUESTION, other)
    assert asked[0] == asked[1]


def test_the_system_in_the_midst_can_stay_where_it_was() -> None:
    asked, _ = translated(QUESTION, model='[models.reasoning.dialect]\ninline_system = "keep"')
    assert [message["role"] for message in asked[0]["messages"]] == ["system", "user", "system"]


def test_a_whole_turn_asks_for_the_tool_and_then_says_what_the_tool_said() -> None:
    async def scenario() -> None:
        async with doorway(cap=1, queue=0) as door:
            told = []
            for call in (QUESTION, RESULT):
                reply = await door.call(
                    call["path"], json.dumps(call["body"]).encode(), **call["headers"]
                )
                assert reply.status == 200
                hold_to_the_grammar(reply.body)
                told.append(events(reply.body))
            first, last = told
            blocks = [
                event["content_block"] for event in first if event["type"] == "content_block_start"
            ]
            assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
            assert blocks[2]["name"] == "Bash"
            assert first[0]["message"]["model"] == "claude-local"
            assert first[-2]["delta"]["stop_reason"] == "tool_use"
            deltas = [event["delta"] for event in last if event["type"] == "content_block_delta"]
            assert "".join(delta.get("text", "") for delta in deltas) == SAID
            assert last[-2]["delta"]["stop_reason"] == "end_turn"
            assert last[-2]["context_management"] == {"applied_edits": []}

    asyncio.run(scenario())


def test_nothing_of_a_person_or_a_machine_is_in_the_recording() -> None:
    text = RECORDED.read_text(encoding="utf-8")
    for trace in ("tmp/", "home/", "root/", "@", "x-claude-code-session-id", "fd1-", "toolu_"):
        assert trace not in text
    assert json.loads(QUESTION["body"]["metadata"]["user_id"]) == {
        "device_id": "0",
        "account_uuid": "0",
        "session_id": "0",
    }
