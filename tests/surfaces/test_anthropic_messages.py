"""Anthropic conversations: system prompts, turns and prefills as chat messages."""

import json
from typing import Any

import pytest
from anthropic_bench import HI, TOOL, assistant, bench, chat, text, tool_result, tool_use, user

Json = dict[str, Any]


def test_system_in_the_midst_is_merged_into_the_first_message_by_default() -> None:
    sent = chat(*HI, {"role": "system", "content": "S"}, system="A", tools=[TOOL])
    assert sent == [{"role": "system", "content": "A\nS"}, *HI]


def test_system_in_the_midst_is_never_dropped_where_there_is_no_other() -> None:
    assert chat(*HI, {"role": "system", "content": [text("S")]}) == [
        {"role": "system", "content": "S"},
        *HI,
    ]


def test_system_in_the_midst_can_keep_its_place() -> None:
    traits = {"inline_system": "keep"}
    sent = chat(*HI, {"role": "system", "content": "S"}, assistant("a"), user("b"), traits=traits)
    assert [message["role"] for message in sent] == ["user", "system", "assistant", "user"]
    first = chat({"role": "system", "content": "S"}, *HI, system="A", traits=traits)
    assert first == [{"role": "system", "content": "A\nS"}, *HI]


def test_system_in_the_midst_can_become_a_reminder() -> None:
    sent = chat(*HI, {"role": "system", "content": "S"}, traits={"inline_system": "reminder"})
    assert sent == [
        {
            "role": "user",
            "content": [text("hi"), text("<system-reminder>\nS\n</system-reminder>")],
        }
    ]


def test_empty_system_message_parts_no_turn() -> None:
    assert chat(user("a"), {"role": "system", "content": ""}, user("b")) == [
        {"role": "user", "content": [text("a"), text("b")]}
    ]


def test_tool_results_stay_together_around_a_merged_system_message() -> None:
    sent = chat(
        assistant(tool_use("a"), tool_use("b")),
        user(tool_result("a"), "first"),
        {"role": "system", "content": "S"},
        user(tool_result("b"), "second"),
    )
    assert [message["role"] for message in sent] == [
        "system", "assistant", "tool", "tool", "user",
    ]  # fmt: skip
    assert sent[-1]["content"] == [text("first"), text("second")]


def test_consecutive_turns_of_one_role_are_one_turn() -> None:
    sent = chat(user("a"), user("b"), assistant("c"), assistant("d", tool_use()), user("e"))
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert sent[0]["content"] == [text("a"), text("b")]
    assert sent[1]["content"] == "cd"
    assert len(sent[1]["tool_calls"]) == 1


@pytest.mark.parametrize(
    ("blocks", "joined"),
    [
        (["a", "b"], "a\nb"),
        (["a", "\nb"], "a\nb"),
        (["a\n", "b"], "a\nb"),
        (["a", "", "b"], "a\nb"),
        ([], None),
        ([""], None),
    ],
)
def test_system_blocks_are_joined_by_one_newline(blocks: list[str], joined: str | None) -> None:
    sent = chat(*HI, system=[text(block) for block in blocks])
    assert sent == ([] if joined is None else [{"role": "system", "content": joined}]) + HI


def test_clients_that_differ_in_their_attribution_only_ask_alike() -> None:
    def body(build: str) -> bytes:
        line = f"x-anthropic-billing-header: cc_version={build}; cch={build};"
        system = [text(line), text("You are."), {**text("\nBe."), "cache_control": {}}]
        return bench.decode(bench.question(system=system)).request.body

    assert body("2.1.100") == body("2.1.200")
    assert json.loads(body("x"))["messages"][0]["content"] == "You are.\nBe."


def test_attribution_goes_without_taking_the_prompt_with_it() -> None:
    line = "x-anthropic-billing-header: cch=1;"
    assert chat(*HI, system=f"{line}\nYou are.")[0]["content"] == "You are."
    kept = chat(*HI, system=[text(line), text("You")], traits={"strip_attribution": False})
    assert kept[0]["content"] == f"{line}\nYou"
    second = chat(*HI, system=[text("You"), text(line)])
    assert second[0]["content"] == f"You\n{line}"


def test_prefill_is_continued_and_not_answered() -> None:
    sent = bench.sent(messages=[*HI, assistant("1, 2,")])
    assert sent["messages"][-1] == {"role": "assistant", "content": "1, 2,"}
    assert sent["continue_final_message"] is True
    assert sent["add_generation_prompt"] is False
    assert "continue_final_message" not in bench.sent(messages=[assistant("a"), *HI])


@pytest.mark.parametrize(
    ("traits", "fields"),
    [
        ({"prefill": "reject"}, {"messages": [*HI, assistant("1")]}),
        ({}, {"messages": [*HI, assistant("1", tool_use())]}),
        (
            {},
            {
                "messages": [*HI, assistant("1")],
                "max_tokens": 4000,
                "thinking": {"type": "enabled", "budget_tokens": 2000},
            },
        ),
    ],
)
def test_prefill_that_cannot_be_continued_is_refused(traits: Json, fields: Json) -> None:
    assert "must end with a user message" in bench.refusal(traits, **fields).detail


def test_prefill_goes_with_thinking_that_is_only_allowed() -> None:
    sent = bench.sent(messages=[*HI, assistant("1")], thinking={"type": "adaptive"})
    assert sent["continue_final_message"] is True


def test_system_message_after_the_assistants_is_no_prefill() -> None:
    sent = bench.sent(messages=[*HI, assistant("a"), {"role": "system", "content": "S"}])
    assert "continue_final_message" not in sent
