"""SDKs say how long they wait: heeded where they would wait in vain, and nothing keeps them."""

import asyncio
from math import inf

import openai
import pytest
from doorway import CHAT, Doorway, doorway
from wire import chat

from tornado_frontdoor.proxy.callers import patience_of
from tornado_frontdoor.proxy.progress import silence_borne_s

PYTHON = {"x-stainless-lang": "python", "x-stainless-read-timeout": "20"}
NODE = {"x-stainless-lang": "js", "x-stainless-timeout": "20"}


@pytest.mark.parametrize(
    ("headers", "patience"),
    [
        ({}, (inf, False)),
        ({"x-stainless-read-timeout": "5.0"}, (5.0, True)),
        ({"x-stainless-timeout": "5"}, (5.0, False)),
        ({"x-stainless-timeout": "9", "x-stainless-read-timeout": "5"}, (5.0, True)),
        ({"x-stainless-timeout": "9", "x-stainless-read-timeout": "NOT_GIVEN"}, (9.0, False)),
        ({"x-stainless-read-timeout": "600"}, (inf, True)),  # what nobody chose
        ({"x-stainless-timeout": "600"}, (inf, False)),
        ({"x-stainless-timeout": "nan"}, (inf, False)),
        ({"x-stainless-timeout": "-1"}, (inf, False)),
        ({"x-stainless-timeout": "0"}, (inf, False)),
        ({"x-stainless-timeout": "None"}, (inf, False)),
    ],
)
def test_what_sdks_say_of_their_patience(
    headers: dict[str, str], patience: tuple[float, bool]
) -> None:
    assert patience_of(headers) == patience


@pytest.mark.parametrize(
    ("headers", "progress", "waits_s"),
    [
        (PYTHON, "known", inf),  # is told its place, which is a sign of life
        (PYTHON, "off", 20.0),
        (PYTHON | {"x-stainless-read-timeout": "2"}, "known", 2.0),  # sooner than it is told
        (PYTHON | {"via": "1.1 somebody"}, "known", 20.0),
        (NODE, "known", 20.0),  # a time to the head of the answer
    ],
)
def test_whoever_is_told_its_place_waits_on(
    headers: dict[str, str], progress: str, waits_s: float
) -> None:
    assert silence_borne_s(headers, progress) == waits_s  # type: ignore[arg-type]


async def _teach(door: Doorway) -> None:
    """Let the gate see how fast it drains."""
    for _ in range(5):
        for reply in await asyncio.gather(*(door.call(CHAT, chat()) for _ in range(4))):
            assert reply.status == 200


def test_an_sdk_that_would_time_out_in_the_queue_is_told_at_once() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 0.05}, cap=1, queue=20, server='progress = "off"') as door:
            await _teach(door)
            held = [await door.begin(CHAT, chat(hold_s=20)) for _ in range(18)]
            await door.inside(1, 17)
            base_url = f"http://127.0.0.1:{door.port}/v1"
            async with openai.AsyncOpenAI(
                base_url=base_url, api_key="none", max_retries=0, timeout=0.3
            ) as sdk:
                with pytest.raises(openai.InternalServerError) as refused:
                    await sdk.chat.completions.create(
                        model="reasoning", messages=[{"role": "user", "content": "hi"}]
                    )
            assert refused.value.status_code == 503
            assert refused.value.code == "client_deadline"
            assert 1 <= int(refused.value.response.headers["retry-after"]) <= 59
            assert door.outcomes[-1] == "client_deadline"
            line = door.lines[-1]
            assert line["code"] == "PL"
            assert "time limit of 0.3 s" in line["cause"]
            metrics = (await door.admin("/metrics")).body.decode()
            assert 'outcome="client_deadline",surface="openai",upstream="reasoning"} 1.0' in metrics
            for wire in held:
                wire.leave()
            await door.at_rest()

    asyncio.run(scenario())
