"""Stray calls wake no engine, and `keep_alive` says how long one stays awake: on real sockets."""

import asyncio
from typing import Any

import pytest
from naps import CHAT, WORDS, House, chat_with, house, text_of

MESSAGES = "/llm/v1/messages"
ENDED = 'frontdoor_sleeps_total{level="1",reason="keep_alive",upstream="text"}'


def as_ollama_sends_it(**more: Any) -> dict[str, Any]:
    """Return a chat in the form of ollama-python's client."""
    messages = [{"role": "user", "content": "hi"}]
    return {"model": "text", "messages": messages, "options": {}, "stream": False, **more}


async def metrics(door: House) -> str:
    return (await door.admin("/metrics")).body.decode()


@pytest.mark.parametrize("word", ["if-awake", "never", "IF-AWAKE"])
def test_a_stray_call_is_served_by_an_awake_engine_and_wakes_none(word: str) -> None:
    """Cases K12, S17."""

    async def scenario() -> None:
        async with house() as door:
            stray = {"X-Frontdoor-Wake": word}
            awake = await door.call(CHAT, chat_with(), **stray)
            assert (awake.status, text_of(awake)) == (200, WORDS)
            await door.put_to_sleep(1)
            before = len(door.calls())
            refused = await door.call(CHAT, chat_with(), **stray)
            assert (refused.status, refused.json["error"]["code"]) == (503, "model_asleep")
            assert "wakes no engine" in refused.json["detail"]
            assert refused.json["sleep_depth"] == "sleeping"
            assert 1 <= int(refused.headers["retry-after"]) <= 59
            message = {"model": "text", "max_tokens": 9, "messages": chat_with()["messages"]}
            other = await door.call(MESSAGES, message, **stray)
            assert (other.status, other.json["error"]["type"]) == (503, "api_error")
            assert (door.state(), door.calls()[before:]) == ("sleeping", [])
            assert door.outcomes.count("model_asleep") == 2
            plain = await door.call(CHAT, chat_with(), **{"X-Frontdoor-Wake": "always"})
            assert plain.status == 200

    asyncio.run(scenario())


def test_a_models_setting_says_it_for_all_its_requests_but_those_that_say_otherwise() -> None:
    async def scenario() -> None:
        async with house() as door:
            text = door.path.read_text()
            old = '[models.text]\nupstream = "text"'
            titles = '[models.titles]\nupstream = "text"\nserved_name = "text"\nwake = "never"'
            door.path.write_text(text.replace(old, f"{titles}\n\n{old}"))
            assert door.app.reread()[0]
            await door.put_to_sleep(1)
            refused = await door.ask("titles")
            assert (refused.status, door.state()) == (503, "sleeping")
            woken = await door.call(CHAT, chat_with("titles"), **{"X-Frontdoor-Wake": "always"})
            assert woken.status == 200

    asyncio.run(scenario())


def test_an_unknown_word_is_a_bad_request_that_names_the_words() -> None:
    async def scenario() -> None:
        async with house() as door:
            reply = await door.call(CHAT, chat_with(), **{"X-Frontdoor-Wake": "perhaps"})
            assert reply.status == 400
            assert "always, if-awake, never" in reply.json["detail"]
            reply = await door.call(CHAT, chat_with(), **{"X-Frontdoor-Keep-Alive": "soon"})
            assert reply.status == 400
            assert "5m" in reply.json["detail"]
            reply = await door.call(CHAT, as_ollama_sends_it(keep_alive="soon"))
            assert (reply.status, reply.json["error"]["param"]) == (400, "keep_alive")

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["body", "header", "messages"])
def test_keep_alive_0_is_asleep_as_soon_as_idle(how: str) -> None:
    """Case S22."""

    async def scenario() -> None:
        async with house(idle_sleep_s=1000) as door:
            if how == "body":
                reply = await door.call(CHAT, as_ollama_sends_it(keep_alive=0))
            elif how == "header":
                reply = await door.call(CHAT, chat_with(), **{"X-Frontdoor-Keep-Alive": "0"})
            else:
                message = {"model": "text", "max_tokens": 9, "messages": chat_with()["messages"]}
                reply = await door.call(MESSAGES, {**message, "keep_alive": 0})
            assert reply.status == 200
            await door.settled("sleeping")
            assert f"{ENDED} 1.0" in await metrics(door)

    asyncio.run(scenario())


def test_keep_alive_for_minutes_outlasts_the_idle_tier() -> None:
    async def scenario() -> None:
        async with house("text", "ocr", idle_sleep_s=0.2) as door:
            await door.settled("sleeping", "ocr")
            assert (await door.call(CHAT, as_ollama_sends_it(keep_alive="5m"))).status == 200
            assert (await door.ask("ocr")).status == 200
            await door.settled("sleeping", "ocr")
            assert door.state("text") == "awake"

    asyncio.run(scenario())
