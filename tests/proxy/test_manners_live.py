"""What surroundings ask of the public listener: HEAD, OPTIONS, hints, encodings, our secrets."""

import asyncio
import gzip
import json
from types import SimpleNamespace

import pytest
from doorway import CHAT, doorway
from wire import chat


@pytest.mark.parametrize(
    "path", ["/health", "/v1/models", "/v1/models/reasoning", "/llm/v1/models"]
)
def test_head_is_get_without_a_body(path: str) -> None:
    """`wget --spider` is a health check."""

    async def scenario() -> None:
        async with doorway() as door:
            wire = await door.wire()
            wire.send(path, None, "HEAD")
            head = await wire.reply(to_head=True)
            assert head.status == 200
            assert int(head.headers["content-length"]) > 50
            wire.send("/health", None, "GET")
            assert (await wire.reply()).json["status"] == "ok"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/health", "GET, HEAD, OPTIONS"),
        (CHAT, "POST, OPTIONS"),
        ("/v1/models", "GET, HEAD, OPTIONS"),
        ("/llm/v1/messages", "POST, OPTIONS"),
        ("/v1/messages", "POST, OPTIONS"),
    ],
)
def test_options_tells_the_methods_of_a_path(path: str, allowed: str) -> None:
    async def scenario() -> None:
        async with doorway() as door:
            reply = await door.call(path, None, "OPTIONS")
            assert (reply.status, reply.body) == (204, b"")
            assert reply.headers["allow"] == allowed
            assert "access-control-allow-origin" not in reply.headers
            assert (await door.call("/v1/nothing", None, "OPTIONS")).status == 404

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/chat/completions", "OpenAI clients: the base URL ends in /v1"),
        ("/v1/v1/chat/completions", "one /v1"),
        ("/llm/v1/chat/completions", "without /llm"),
        ("/llm/chat/completions", "without /llm"),
        ("/messages", "Anthropic clients: the base URL is /llm"),
        ("/llm/llm/v1/messages", "Anthropic clients: the base URL is /llm"),
        ("/anthropic/v1/messages", "Anthropic clients: the base URL is /llm"),
    ],
)
def test_a_misplaced_call_is_told_its_place(path: str, hint: str) -> None:
    async def scenario() -> None:
        async with doorway() as door:
            reply = await door.call(path, chat())
            assert reply.status == 404
            assert hint in reply.json["error"]["message"]

    asyncio.run(scenario())


def test_messages_are_served_below_v1_too_unless_the_file_says_no() -> None:
    body = {**chat(), "max_tokens": 5}

    async def scenario() -> None:
        async with doorway() as door:
            reply = await door.call("/v1/messages?beta=true", body)
            assert (reply.status, reply.json["type"]) == (200, "message")
            assert door.lines[-1]["surface"] == "anthropic"
            refused = await door.call("/v1/messages", {**body, "model": "gpt-9"})
            assert refused.json["type"] == "error"
        async with doorway(surfaces="anthropic_at_v1 = false") as door:
            reply = await door.call("/v1/messages", body)
            assert reply.status == 404
            assert "the base URL is /llm" in reply.json["detail"]

    asyncio.run(scenario())


@pytest.mark.parametrize("path", [CHAT, "/llm/v1/messages"])
@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br"])
def test_an_encoded_body_is_told_that_it_is_not_read(path: str, encoding: str) -> None:
    async def scenario() -> None:
        async with doorway() as door:
            body = gzip.compress(json.dumps(chat()).encode())
            reply = await door.call(path, body, Content_Encoding=encoding)
            assert reply.status == 415
            assert encoding in reply.json["error"]["message"]

    asyncio.run(scenario())


def test_an_engines_address_is_for_operators_only() -> None:
    async def scenario() -> None:
        async with doorway(url="http://127.0.0.1:9") as door:
            for path in (CHAT, "/llm/v1/messages"):
                reply = await door.call(path, {**chat(), "max_tokens": 5})
                assert reply.status == 503
                assert b"127.0.0.1" not in reply.body
                assert b"port" not in reply.body
                assert b"reasoning does not answer" in reply.body
            # The one that found nobody says why; the next is refused for that, and asks nobody.
            assert "Failed to connect to 127.0.0.1" in door.lines[0]["cause"]

    asyncio.run(scenario())


def test_an_engine_behind_a_path_is_asked_there(kit: SimpleNamespace) -> None:
    """KServe has its OpenAI routes behind `/openai`."""
    asked: list[bytes] = []

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await kit.read_request(reader)
        asked.append(head.split(b"\r\n")[0])
        writer.write(kit.answer(b"{}"))

    async def scenario() -> None:
        async with kit.engine(engine) as served, doorway(url=f"{served.url}/openai/") as door:
            assert (await door.call(CHAT, chat())).status == 200
        assert asked == [b"POST /openai/v1/chat/completions HTTP/1.1"]

    asyncio.run(scenario())
