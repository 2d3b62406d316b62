"""The official SDK of two generations against `/llm`: what programs do is what they get."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import anthropic
import pytest
from doorway import doorway
from llm import document, raw_engine

ROOT = Path(__file__).resolve().parents[2]
CLIENT = Path(__file__).parent / "fixtures" / "messages_client.py"
GENERATIONS = {"2.": None, "0.84.": ROOT / ".venv" / "generations" / "anthropic-0.84"}


async def run_client(folder: Path | None) -> dict[str, Any]:
    """Run the client's cases with the SDK in `folder` (None: the environment's own)."""
    environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    if folder is not None:
        environment["PYTHONPATH"] = str(folder)
    async with doorway(
        # No slot cools: each case is to find the only one free.
        {"max_model_len": 100_000},
        cap=1,
        queue=0,
        read_timeout_s=2,
        chunk_timeout_s=2,
        upstream="cooling_limit_s = 0",
    ) as door:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(CLIENT), f"http://127.0.0.1:{door.port}/llm"),
            stdout=asyncio.subprocess.PIPE,
            env=environment,
        )
        async with asyncio.timeout(240):
            said, _ = await process.communicate()
        assert process.returncode == 0
        await door.at_rest()
    results: dict[str, Any] = json.loads(said)
    return results


@pytest.fixture(scope="module", params=GENERATIONS)
def seen(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the client saw; `version` is the SDK's own word for its generation."""
    folder = GENERATIONS[request.param]
    assert folder is None or folder.is_dir(), f"{folder} is missing: bin/check installs it"
    results = asyncio.run(run_client(folder))
    assert results["version"].startswith(request.param)
    assert not results["crashed"], results["crashed"]
    return results


def blocks(message: dict[str, Any]) -> list[Any]:
    """Return what a message says, without what is random in it."""
    said: list[Any] = []
    for block in message["content"]:
        if block["type"] == "text":
            said.append(block["text"])
        elif block["type"] == "tool_use":
            assert block["id"]
            said.append((block["name"], block["input"]))
        else:
            assert block["signature"]
            said.append({"thought": block["thinking"]})
    return said


def test_a_message_is_whole_and_carries_the_name_that_was_asked_for(seen: dict[str, Any]) -> None:
    message = seen["plain"]
    assert blocks(message) == ["Hello, you."]
    assert (message["type"], message["role"], message["model"]) == (
        "message",
        "assistant",
        "reasoning",
    )
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert message["usage"]["input_tokens"] > 10
    assert message["usage"]["output_tokens"] == 2
    assert message["id"].startswith("msg_")
    assert message["_request_id"].startswith("req_")


def test_the_accumulator_of_a_stream_ends_in_the_same_message(seen: dict[str, Any]) -> None:
    """S1, S15, S39: no delta is lost, no key is missing."""
    message = seen["stream"]
    assert blocks(message) == blocks(seen["plain"])
    for count in ("input_tokens", "output_tokens"):
        assert message["usage"][count] == seen["plain"]["usage"][count]
    assert message["stop_reason"] == "end_turn"
    assert message["kinds"][0] == "message_start"
    assert message["kinds"][-1] == "message_stop"
    assert message["kinds"].count("text") == 2, "a delta for each piece of the engine's"


def test_every_event_is_one_of_the_sdk_s_types(seen: dict[str, Any]) -> None:
    assert seen["raw_events"] > 15


@pytest.mark.parametrize("case", ["tools", "streamed_tools"])
def test_parallel_tool_calls_are_blocks_of_their_own(seen: dict[str, Any], case: str) -> None:
    """S6, S7, S12: two calls, two whole objects."""
    message = seen[case]
    assert blocks(message) == [("look", {"at": "the clock"}), ("look", {"at": 'the "quoted"\n🙂'})]
    assert message["stop_reason"] == "tool_use"
    assert len({block["id"] for block in message["content"]}) == 2


def test_results_go_back_with_their_errors_and_images(seen: dict[str, Any]) -> None:
    assert blocks(seen["tool_results"]) == ["It is late."]


def test_thinking_is_a_signed_block_before_the_text(seen: dict[str, Any]) -> None:
    """S3, S21: streamed or not."""
    for message in seen["thinking"]:
        assert blocks(message) == [{"thought": "Let me see."}, "Yes."]


def test_images_are_taken(seen: dict[str, Any]) -> None:
    assert blocks(seen["image"]) == ["A dot."]


def test_an_answer_at_its_limit_says_so(seen: dict[str, Any]) -> None:
    for message in seen["stop_sequence_and_limit"]:
        assert blocks(message) == ["one two "]
        assert message["stop_reason"] == "max_tokens"


def test_tokens_are_counted_with_system_and_tools(seen: dict[str, Any]) -> None:
    """C2: the engine's own count, and of everything."""
    bare, full = seen["counts"]
    assert 10 < bare < full - 50


def test_models_come_page_by_page_and_one_by_one(seen: dict[str, Any]) -> None:
    listed = ["reasoning", "thinker", "text"]
    assert seen["models"]["pages"] == [[name] for name in listed]
    assert seen["models"]["every"] == listed
    assert seen["models"]["one"] == "thinker"


def test_images_of_results_reach_the_engine_after_all_results() -> None:
    """R7: never a user message between two tool messages; the bytes as they were."""
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    uses = [{"type": "tool_use", "id": f"c{n}", "name": "look", "input": {}} for n in (1, 2)]
    image = {"type": "image", "source": source}
    results = [
        {"type": "tool_result", "tool_use_id": "c1", "content": [image]},
        {"type": "tool_result", "tool_use_id": "c2", "content": "dark", "is_error": True},
        {"type": "text", "text": "well?"},
    ]
    messages: list[Any] = [
        {"role": "user", "content": [image, {"type": "text", "text": "look"}]},
        {"role": "assistant", "content": uses},
        {"role": "user", "content": results},
    ]

    async def say(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(document({"choices": [{"message": {"content": "ok"}}]}))

    async def scenario() -> list[dict[str, Any]]:
        async with (
            raw_engine(say) as engine,
            doorway(url=engine.url) as door,
            anthropic.AsyncAnthropic(
                base_url=f"http://127.0.0.1:{door.port}/llm",
                api_key="dummy",
                max_retries=0,
                timeout=60,
            ) as client,
        ):
            await client.messages.create(model="reasoning", max_tokens=9, messages=messages)
            assert b"authorization: bearer dummy" in engine.heads[0].lower()
            asked: list[dict[str, Any]] = json.loads(engine.bodies[0])["messages"]
            return asked

    asked = asyncio.run(scenario())
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert [message["role"] for message in asked] == ["user", "assistant", "tool", "tool", "user"]
    assert url in asked[0]["content"]
    assert url in asked[4]["content"]
    assert asked[4]["content"][-1] == {"type": "text", "text": "well?"}
    assert asked[3]["content"].startswith("Tool error:")


ERRORS = [
    ("unknown model", "NotFoundError", 404, "not_found_error", "model: gpt-9"),
    ("no limit", "BadRequestError", 400, "invalid_request_error", "max_tokens: "),
    ("an unknown block", "BadRequestError", 400, "invalid_request_error", "messages.0.content.0"),
    ("refused by the engine", "BadRequestError", 400, "invalid_request_error", "no such thing"),
    ("a wrong key", "AuthenticationError", 401, "authentication_error", "Unauthorized"),
    ("too long", "BadRequestError", 400, "invalid_request_error", "prompt is too long: 1500"),
    ("too large", "APIStatusError", 413, "request_too_large", "The body is larger than 1 MiB"),
    ("busy engine", "APIStatusError", 503, "api_error", "busy"),
    ("rate limited by the engine", "RateLimitError", 429, "rate_limit_error", "slower"),
    ("failing engine", "InternalServerError", 500, "api_error", "oh"),
    ("dying engine", "InternalServerError", 502, "api_error", "reasoning: "),
    ("silent engine", "APIStatusError", 504, "timeout_error", "reasoning: "),
    ("unknown model in the list", "NotFoundError", 404, "not_found_error", "model: gpt-9"),
    ("page of nothing", "BadRequestError", 400, "invalid_request_error", "limit: "),
]


@pytest.mark.parametrize(
    ("case", "kind", "status", "name", "words"), ERRORS, ids=[row[0] for row in ERRORS]
)
def test_errors_are_of_the_class_that_programs_catch(
    seen: dict[str, Any], case: str, kind: str, status: int, name: str, words: str
) -> None:
    """C7, C8, C10: the status, the type, and words that say where."""
    error = seen["errors"][case]
    assert kind in error["classes"]
    assert (error["status"], error["type"]) == (status, name)
    assert error["message"].startswith(words)
    assert error["request_id"].startswith("req_")


STREAM_ERRORS = [
    ("dying stream", "api_error"),
    ("failing stream", "api_error"),
    ("unfinished stream", "api_error"),
    ("stalled stream", "timeout_error"),
]


@pytest.mark.parametrize(("case", "name"), STREAM_ERRORS)
def test_a_stream_that_breaks_is_an_error_and_no_success(
    seen: dict[str, Any], case: str, name: str
) -> None:
    """S16, S34, S37: an SDK takes a stream that just ends for a success."""
    error = seen["errors"][case]
    assert "APIStatusError" in error["classes"]
    assert error["type"] == name


def test_a_full_line_is_overload_and_the_sdk_s_own_retries_get_through(
    seen: dict[str, Any],
) -> None:
    refused, message = seen["overload"]
    assert refused["status"] == 529
    assert refused["type"] == "overloaded_error"
    assert 1 <= int(refused["retry_after"]) <= 59
    assert blocks(message) == ["at last"]
