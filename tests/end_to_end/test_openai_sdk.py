"""OpenAI's own client, synchronous and not: what people's programs will do."""

import asyncio
import io
from collections.abc import Callable
from time import monotonic
from typing import Any, TypeVar

import openai
import pytest
from doorway import CHAT, Doorway, doorway
from openai.types.chat import ChatCompletionMessageParam
from wire import chat

T = TypeVar("T")
HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


async def with_sdk(door: Doorway, work: Callable[[openai.OpenAI], T], retries: int = 0) -> T:
    """Let the synchronous client work on a thread of its own."""

    def run() -> T:
        base_url = f"http://127.0.0.1:{door.port}/v1"
        with openai.OpenAI(
            base_url=base_url, api_key="none", max_retries=retries, timeout=60
        ) as sdk:
            return work(sdk)

    return await asyncio.to_thread(run)


def say(sdk: openai.OpenAI, model: str = "reasoning", **knobs: Any) -> str | None:
    completion = sdk.chat.completions.create(
        model=model, messages=HI, extra_body={"stand_in": knobs}
    )
    return completion.choices[0].message.content


def test_the_synchronous_client_is_served_on_every_route() -> None:
    async def scenario() -> None:
        async with doorway({"tokens": 4}, {"tokens": 4}) as door:
            assert await with_sdk(door, say) == "w0 w1 w2 w3 "

            def stream(sdk: openai.OpenAI) -> str:
                with sdk.chat.completions.create(
                    model="thinker", messages=HI, stream=True
                ) as chunks:
                    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)

            assert await with_sdk(door, stream) == "w0 w1 w2 w3 "
            text = await with_sdk(
                door, lambda sdk: sdk.completions.create(model="text", prompt="x").choices[0].text
            )
            assert text == "w0 w1 w2 w3 "
            vectors = await with_sdk(
                door, lambda sdk: sdk.embeddings.create(model="whatever", input=["a", "b"]).data
            )
            assert len(vectors) == 2
            heard = await with_sdk(
                door,
                lambda sdk: (
                    sdk.audio.transcriptions.create(
                        model="text", file=("x.wav", io.BytesIO(b"RIFF" * 5000))
                    ).text
                ),
            )
            assert heard
            names = await with_sdk(door, lambda sdk: [model.id for model in sdk.models.list()])
            assert {"reasoning", "thinker", "text"} <= set(names)
            model = await with_sdk(door, lambda sdk: sdk.models.retrieve("thinker"))
            assert model.id == "thinker"
            answer = await with_sdk(
                door, lambda sdk: sdk.responses.create(model="text", input="x").output_text
            )
            assert answer
            assert set(door.outcomes) == {"served"}

    asyncio.run(scenario())


def test_the_asynchronous_client_streams_and_leaves() -> None:
    async def scenario() -> None:
        async with doorway({"tokens": 500, "gap_ms": 10}, cap=1, queue=0) as door:
            base_url = f"http://127.0.0.1:{door.port}/v1"
            async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as sdk:
                chunks = await sdk.chat.completions.create(
                    model="reasoning", messages=HI, stream=True
                )
                async with chunks:
                    async for _ in chunks:
                        break
                await door.inside(0)
                await door.until(lambda: door.stats()["aborted"] == 1)
                done = await sdk.chat.completions.create(
                    model="reasoning", messages=HI, max_tokens=2
                )
                assert done.choices[0].message.content == "w0 w1 "

    asyncio.run(scenario())


def test_a_refused_client_comes_back_when_it_was_told_and_is_served() -> None:
    """F55, F56: one retry, no sooner than promised, and the user sees nothing of it."""

    async def scenario() -> None:
        async with doorway(cap=1, queue=0) as door:
            holder = await door.begin(CHAT, chat(hold_s=60))
            await door.inside(1)
            client = asyncio.ensure_future(
                with_sdk(door, lambda sdk: say(sdk, tokens=1), retries=2)
            )
            await door.until(lambda: door.outcomes == ["queue_full"])
            refused_s = monotonic()
            holder.leave()
            assert await client
            assert monotonic() - refused_s >= 0.9, "no sooner than it was told"
            assert door.outcomes.count("queue_full") == 1
            assert door.outcomes.count("served") == 1

    asyncio.run(scenario())


def test_nine_clients_that_retry_are_all_served_in_the_end() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 0.1}, cap=2, queue=5) as door:
            base_url = f"http://127.0.0.1:{door.port}/v1"
            async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=5) as sdk:
                answers = await asyncio.gather(
                    *(sdk.chat.completions.create(model="reasoning", messages=HI) for _ in range(9))
                )
            assert len(answers) == 9
            assert door.stats()["max_concurrent"] == 2
            assert door.outcomes.count("served") == 9

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("model", "knobs", "error", "code"),
    [
        ("nobody", {}, openai.NotFoundError, "model_not_found"),
        ("reasoning", {"status": 400}, openai.BadRequestError, None),
        ("reasoning", {"status": 429}, openai.RateLimitError, None),
        ("reasoning", {"status": 500}, openai.InternalServerError, None),
        ("reasoning", {"die_after_chunks": 0}, openai.InternalServerError, "upstream_error"),
        ("reasoning", {"silent": True}, openai.InternalServerError, "upstream_timeout"),
    ],
)
def test_errors_are_those_of_the_sdk(
    model: str, knobs: dict[str, Any], error: type[openai.APIStatusError], code: str | None
) -> None:
    async def scenario() -> None:
        async with doorway(read_timeout_s=0.3) as door:
            with pytest.raises(error) as raised:
                await with_sdk(door, lambda sdk: say(sdk, model, **knobs))
            if code is not None:
                assert raised.value.code == code
            assert raised.value.request_id == door.lines[0]["request_id"]

    asyncio.run(scenario())


def test_too_many_choices_and_bad_bodies_are_bad_requests() -> None:
    async def scenario() -> None:
        async with doorway() as door:

            def ask(sdk: openai.OpenAI) -> None:
                sdk.chat.completions.create(model="reasoning", messages=HI, n=7)

            with pytest.raises(openai.BadRequestError) as raised:
                await with_sdk(door, ask)
            assert raised.value.param == "n"

    asyncio.run(scenario())


@pytest.mark.parametrize("knobs", [{"die_after_chunks": 2}, {"break_after": 2, "break_how": "end"}])
def test_a_broken_stream_raises(knobs: dict[str, Any]) -> None:
    """The SDK takes a stream that just ends for a success: the error event is what it notices."""

    async def scenario() -> None:
        async with doorway({"tokens": 8, "gap_ms": 5}) as door:

            def stream(sdk: openai.OpenAI) -> int:
                body = {"stand_in": knobs}
                with sdk.chat.completions.create(
                    model="reasoning", messages=HI, stream=True, extra_body=body
                ) as chunks:
                    return sum(1 for _ in chunks)

            with pytest.raises(openai.APIError):
                await with_sdk(door, stream)
            assert door.outcomes == ["upstream_error"]

    asyncio.run(scenario())


async def _crowd_of_sdks(door: Doorway, count: int) -> list[float]:
    """Let as many clients ask at once, with their default retries; return how long each took."""
    base_url = f"http://127.0.0.1:{door.port}/v1"
    sdks = [openai.AsyncOpenAI(base_url=base_url, api_key=f"key-{n}") for n in range(count)]

    async def ask(sdk: openai.AsyncOpenAI) -> float:
        began_s = monotonic()
        await sdk.chat.completions.create(model="reasoning", messages=HI)
        return monotonic() - began_s

    try:
        return await asyncio.gather(*(ask(sdk) for sdk in sdks))
    finally:
        await asyncio.gather(*(sdk.close() for sdk in sdks))


def test_a_small_crowd_of_clients_is_served_by_their_default_retries() -> None:
    """Two run, two wait, four are sent away and come back each at an instant of its own."""

    async def scenario() -> None:
        async with doorway({"hold": 0.2}, cap=2, queue=2, slots=4) as door:
            took_s = await _crowd_of_sdks(door, 8)
            assert len(took_s) == 8
            assert door.outcomes.count("served") == 8
            assert door.outcomes.count("queue_full") >= 4
            assert door.gate.came_back >= 4

    asyncio.run(scenario())


@pytest.mark.slow
def test_forty_clients_of_two_seconds_each_are_all_served_by_their_default_retries() -> None:
    """The second crowd meets a front door that knows its drain; 40 take at least 13.3 s."""

    async def scenario() -> None:
        async with doorway({"hold": 2}) as door:
            first = sorted(await _crowd_of_sdks(door, 40))
            second = sorted(await _crowd_of_sdks(door, 40))
            assert door.outcomes.count("served") == 80
            print(f"p95 of the first crowd {first[37]:.1f} s, of the second {second[37]:.1f} s")
            print(f"came back {door.gate.came_back}, refused {door.outcomes.count('queue_full')}")
            assert second[37] < 20

    asyncio.run(scenario())
