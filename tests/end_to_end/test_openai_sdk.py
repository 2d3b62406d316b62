"""The official OpenAI SDK against `/v1` of a whole front door."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from doorway import Doorway, doorway


@contextlib.asynccontextmanager
async def sdk(door: Doorway, max_retries: int = 0) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{door.port}/v1", api_key="dummy", max_retries=max_retries
    ) as client:
        yield client


def said(**knobs: Any) -> dict[str, Any]:
    """Return the arguments of a chat whose answer is ordered by `knobs`."""
    messages = [{"role": "user", "content": "hi"}]
    return {"model": "thinker", "messages": messages, "extra_body": {"stand_in": knobs}}


def test_plain_and_streamed_answers_are_the_same() -> None:
    async def scenario() -> None:
        async with doorway() as door, sdk(door) as client:
            calls = [{"name": "look", "arguments": {"at": "the clock"}}] * 2
            asked = said(reasoning="hm", text="so it is", tool_calls=calls)
            plain = (await client.chat.completions.create(**asked)).choices[0]
            async with client.chat.completions.stream(**asked) as stream:
                final = (await stream.get_final_completion()).choices[0]
            for choice in (plain, final):
                assert choice.message.content == "so it is"
                assert choice.finish_reason == "tool_calls"
                assert [call.function.arguments for call in choice.message.tool_calls or ()] == [
                    '{"at": "the clock"}'
                ] * 2

    asyncio.run(scenario())


def test_refusals_are_of_the_class_that_programs_catch_and_say_why() -> None:
    async def scenario() -> None:
        async with doorway(cap=1, queue=0) as door, sdk(door) as client:
            with pytest.raises(openai.NotFoundError) as missing:
                await client.chat.completions.create(**said() | {"model": "gpt-9"})
            assert missing.value.code == "model_not_found"
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(**said(), n=2)
            holder = asyncio.ensure_future(client.chat.completions.create(**said(hold_s=0.5)))
            await door.inside(1)
            with pytest.raises(openai.InternalServerError) as full:
                await client.chat.completions.create(**said())
            assert (full.value.status_code, full.value.code) == (503, "queue_full")
            assert full.value.type == "overloaded"
            await holder
            with pytest.raises(openai.InternalServerError) as died:
                await client.chat.completions.create(**said(break_after=0, break_how="die"))
            assert died.value.status_code == 502

    asyncio.run(scenario())


def test_its_own_retries_get_through_a_full_line() -> None:
    async def scenario() -> None:
        async with doorway(cap=1, queue=0) as door, sdk(door, 8) as client:
            holder = asyncio.ensure_future(client.chat.completions.create(**said(hold_s=0.5)))
            await door.inside(1)
            answer = await client.chat.completions.create(**said(text="at last"))
            assert answer.choices[0].message.content == "at last"
            await holder
            assert door.outcomes[0] == "queue_full"
            assert door.outcomes.count("served") == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["die", "fail", "stall"])
def test_a_stream_that_breaks_is_an_error_and_no_success(how: str) -> None:
    """Without an error event a stream that just ends looks like a short answer to it."""

    async def scenario() -> None:
        async with doorway(chunk_timeout_s=0.3) as door, sdk(door) as client:
            stream = await client.chat.completions.create(
                **said(tokens=9, break_after=3, break_how=how), stream=True
            )
            with pytest.raises(openai.APIError):
                async for _ in stream:
                    pass
            await stream.close()

    asyncio.run(scenario())


def test_models_are_listed_and_found_by_name() -> None:
    async def scenario() -> None:
        async with doorway() as door, sdk(door) as client:
            listed = [model.id async for model in client.models.list()]
            assert listed == ["reasoning", "thinker", "text"]
            assert (await client.models.retrieve("THINKER")).id.lower() == "thinker"
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve("gpt-9")

    asyncio.run(scenario())
