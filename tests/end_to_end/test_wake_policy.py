"""`X-Frontdoor-Wake: if-awake`: stray calls are served by an awake engine, and wake none."""

import asyncio

import pytest
from naps import CHAT, WORDS, chat_with, house, text_of


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
            assert (refused.status, refused.json["error"]["code"]) == (503, "model_waking")
            assert "not to wake it" in refused.json["detail"]
            assert refused.json["sleep_depth"] == "sleeping"
            assert (door.state(), door.calls()[before:]) == ("sleeping", [])
            plain = await door.call(CHAT, chat_with(), **{"X-Frontdoor-Wake": "always"})
            assert plain.status == 200

    asyncio.run(scenario())


def test_an_unknown_word_is_a_bad_request_that_names_the_words() -> None:
    async def scenario() -> None:
        async with house() as door:
            reply = await door.call(CHAT, chat_with(), **{"X-Frontdoor-Wake": "perhaps"})
            assert reply.status == 400
            assert "always, if-awake, never" in reply.json["detail"]

    asyncio.run(scenario())
