"""Lengths that engines tell of: listed, used as the limit of an answer, learned again."""

import asyncio
import json

import pytest
from doorway import Doorway, doorway

from simulator.standin.server import StandIn, StandInOptions
from tornado_frontdoor.proxy.engine.model_list import read_model_list

MESSAGES = "/llm/v1/messages"


async def learned(door: Doorway, name: str = "reasoning", length: int = 40_960) -> None:
    """Wait until a model's length is known."""

    def known() -> bool:
        target = door.app.door.catalog.resolve(name)
        return target is not None and target.traits.max_model_len == length

    await door.until(known)


def message(max_tokens: int, model: str = "reasoning") -> dict[str, object]:
    return {
        "model": model,
        "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": "hi"}],
    }


def test_a_length_that_the_engine_tells_is_listed_and_limits_what_it_is_asked_for() -> None:
    """Claude Code asks for 64000 tokens, and stops at an engine of 40960 that refuses them."""

    async def scenario() -> None:
        async with doorway({"max_model_len": 40_960}) as door:
            await learned(door)
            listed = (await door.get("/v1/models")).json["data"]
            assert {m["id"]: m["max_model_len"] for m in listed}["thinker"] == 40_960
            one = (await door.get("/llm/v1/models/reasoning")).json
            assert (one["max_input_tokens"], one["max_tokens"]) == (40_960, 40_960)
            assert (await door.call(MESSAGES, message(64_000, "claude-x"))).status == 200

    asyncio.run(scenario())


def test_what_the_file_says_comes_before_what_the_engine_tells() -> None:
    async def scenario() -> None:
        model = "[models.reasoning.dialect]\nmax_model_len = 1000"
        async with doorway({"max_model_len": 40_960}, model=model) as door:
            await learned(door, "text", 131_072)
            assert (await door.get("/v1/models/reasoning")).json["max_model_len"] == 1000

    asyncio.run(scenario())


def test_an_engine_that_comes_back_with_another_length_is_asked_again() -> None:
    async def scenario() -> None:
        first = StandIn(StandInOptions(models=("reasoning",), max_model_len=40_960))
        port = first.listen()
        async with doorway(url=f"http://127.0.0.1:{port}", asks_lengths=True) as door:
            await learned(door)
            asking = door.app._lengths._askings[door.app.settings.upstreams["reasoning"].url]
            await first.close()
            asking.due_s = 0.0
            await door.until(lambda: asking.retry_s > 1)  # it was asked, and nobody was there
            await learned(door)  # what was known stays known
            second = StandIn(StandInOptions(models=("reasoning",), max_model_len=50_000))
            second.listen(port)
            try:
                await learned(door, length=50_000)
            finally:
                await second.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("path", ["/v1/models/claude-x", "/llm/v1/models/claude-x"])
def test_a_model_asked_for_by_a_pattern_can_be_retrieved(path: str) -> None:
    async def scenario() -> None:
        async with doorway() as door:
            reply = await door.get(path)
            assert (reply.status, reply.json["id"]) == (200, "claude-x")
            assert (await door.get(path.replace("claude", "gpt"))).status == 404
            # A listed name is told as it is written, however it was asked for.
            exact = await door.get(path.replace("claude-x", "THINKER"))
            assert exact.json["id"] == "thinker"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("entry", "length"),
    [
        ({"id": "m", "max_model_len": 4096}, 4096),
        ({"id": "m", "meta": {"n_ctx_train": 32768, "n_ctx": 2048}}, 2048),
        ({"id": "m", "meta": {"n_ctx_train": 32768}}, None),
        ({"id": "m", "max_model_len": None, "meta": None}, None),
        ({"id": "m", "max_model_len": True}, None),
        ({"id": "m", "max_model_len": "4096"}, None),
        ({"id": "m", "max_model_len": -1}, None),
    ],
)
def test_a_length_is_read_where_one_is_told(entry: dict[str, object], length: int | None) -> None:
    assert read_model_list(json.dumps({"data": [entry, {"no": "id"}, 7]}).encode()) == {"m": length}


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"data": {}}', b"\xff", b"null"])
def test_what_is_no_list_of_models_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - JSON's own errors are these too
        read_model_list(body)
