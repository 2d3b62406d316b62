"""Keys of clients: who brings none uses no engine, and no engine ever sees one."""

import asyncio
import json
import subprocess
import sys

import pytest
from doorway import CHAT, doorway
from hostile import answer, hostile_engine
from wire import chat

from tornado_frontdoor.surfaces.keys import Key, KeyRing, hashed

ALL, SOME = "fd-" + "a" * 43, "fd-" + "b" * 43
KEYS = f"""
[keys.alice]
sha256 = "{hashed(ALL)}"
[keys.bob]
sha256 = "{hashed(SOME).upper()}"
models = ["Text"]
"""
BODY = {**chat("reasoning"), "max_tokens": 5}
FORMS = [
    {"Authorization": f"Bearer {ALL}"},
    {"Authorization": f"bearer  {ALL}"},
    {"X_Api_Key": ALL},
    {"Api_Key": ALL},
    {"X_Api_Key": ALL, "Authorization": "Bearer something-else"},
]


@pytest.mark.parametrize("path", [CHAT, "/llm/v1/messages", "/v1/messages"])
@pytest.mark.parametrize("headers", FORMS)
def test_a_key_is_taken_in_every_form_of_every_dialect(path: str, headers: dict[str, str]) -> None:
    async def scenario() -> None:
        async with doorway(tables=KEYS) as door:
            assert (await door.call(path, BODY, **headers)).status == 200
            assert door.lines[0]["key"] == "alice"
            metrics = (await door.admin("/metrics")).body.decode()
            assert 'key_requests_total{key="alice",outcome="served"} 1.0' in metrics

    asyncio.run(scenario())


WRONG = [
    {},
    {"Authorization": "Bearer wrong"},
    {"Authorization": ALL},
    {"Authorization": f"Basic {ALL}"},
    {"X_Api_Key": ALL[:-1]},
    {"X_Api_Key": hashed(ALL)},
    {"X_Api_Key": ""},
    {"Cookie": f"key={ALL}"},
]


@pytest.mark.parametrize("headers", WRONG)
def test_without_a_key_nothing_is_told_and_nothing_runs(headers: dict[str, str]) -> None:
    async def scenario() -> None:
        async with doorway(tables=KEYS) as door:
            reply = await door.call(CHAT, BODY, **headers)
            assert reply.status == 401
            assert reply.json["error"]["code"] == "invalid_api_key"
            assert reply.headers["www-authenticate"] == "Bearer"
            reply = await door.call("/llm/v1/messages", BODY, **headers)
            assert reply.status == 401
            assert reply.json["error"]["type"] == "authentication_error"
            for path in ("/v1/models", "/llm/v1/models"):
                assert (await door.call(path, None, "GET", **headers)).status == 401
            assert (await door.get("/health")).status == 200
            assert door.stats()["started"] == 0
            assert {(line["outcome"], line["code"]) for line in door.lines} == {
                ("unauthorized", "PK")
            }

    asyncio.run(scenario())


def test_a_missing_key_is_told_before_the_body_is_read() -> None:
    async def scenario() -> None:
        async with doorway(tables=KEYS) as door:
            wire = await door.wire()
            wire.raw(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n" % CHAT.encode())
            assert (await wire.reply()).status == 401

    asyncio.run(scenario())


def test_a_key_for_some_models_sees_and_asks_for_these_only() -> None:
    async def scenario() -> None:
        bob = {"Authorization": f"Bearer {SOME}"}
        async with doorway(tables=KEYS) as door:
            listed = (await door.call("/v1/models", None, "GET", **bob)).json["data"]
            assert [model["id"] for model in listed] == ["text"]
            assert (await door.call(CHAT, chat("text"), **bob)).status == 200
            for name in ("reasoning", "thinker", "claude-x"):
                reply = await door.call(CHAT, chat(name), **bob)
                assert reply.status == 403
                assert reply.json["error"]["code"] == "model_not_allowed"
            reply = await door.call("/llm/v1/messages", BODY, **bob)
            assert (reply.status, reply.json["error"]["type"]) == (403, "permission_error")
            assert door.stats()["started"] == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("path", [CHAT, "/llm/v1/messages"])
def test_no_engine_sees_a_key_of_ours(path: str) -> None:
    async def scenario() -> None:
        raw = answer("Content-Length: 2", body=b"{}")
        async with hostile_engine(raw) as engine, doorway(url=engine.url, tables=KEYS) as door:
            for headers in FORMS:
                await door.call(path, BODY, **headers)
            assert len(engine.heads) == len(FORMS)
            for head in engine.heads:
                assert "fd-" not in head
                assert "authorization" not in head.lower()

    asyncio.run(scenario())


def test_keys_come_and_go_with_a_reading_of_the_file() -> None:
    async def scenario() -> None:
        async with doorway(tables=KEYS) as door:
            alice = {"X_Api_Key": ALL}
            assert (await door.call(CHAT, BODY, **alice)).status == 200
            text = door.configuration.replace(hashed(ALL), hashed("another"))
            door.path.write_text(text)
            door.app.reread()
            assert (await door.call(CHAT, BODY, **alice)).status == 401
            assert (await door.call(CHAT, BODY, X_Api_Key="another")).status == 200

    asyncio.run(scenario())


def test_every_hash_is_compared_whichever_matches() -> None:
    ring = KeyRing([Key(str(n), hashed(f"key {n}")) for n in range(5)])
    for n in range(5):
        found = ring.find({"x-api-key": f"key {n}"})
        assert found is not None
        assert found.name == str(n)
    assert ring.find({"x-api-key": "key 5"}) is None


def test_a_new_key_is_printed_once_with_its_hash_beside_it() -> None:
    command = [sys.executable, "-m", "tornado_frontdoor.cli", "key", "new", "alice"]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    key = made.stdout.strip()
    assert len(key) > 40
    assert "[keys.alice]" in made.stderr
    assert f'sha256 = "{hashed(key)}"' in made.stderr
    assert key not in made.stderr
    odd = subprocess.run([*command[:-1], "a b"], capture_output=True, text=True, check=False)
    assert (odd.returncode, odd.stdout) == (2, "")


# Pages


PAGE = {"Origin": "https://chat.example"}


def test_a_listed_page_may_ask_and_read_and_others_may_not() -> None:
    async def scenario() -> None:
        async with doorway(server='cors_origins = ["https://Chat.example"]') as door:
            asked = {
                **PAGE,
                "Access_Control_Request_Method": "POST",
                "Access_Control_Request_Headers": "authorization,content-type",
            }
            reply = await door.call(CHAT, None, "OPTIONS", **asked)
            assert reply.status == 204
            assert reply.headers["access-control-allow-origin"] == "https://chat.example"
            assert "POST" in reply.headers["access-control-allow-methods"]
            assert reply.headers["access-control-allow-headers"] == "authorization,content-type"
            for body in (chat("reasoning"), chat("reasoning", stream=True), {"model": "gpt-9"}):
                reply = await door.call(CHAT, body, **PAGE)
                assert reply.headers["access-control-allow-origin"] == "https://chat.example"
                assert reply.headers["vary"] == "Origin"
            for origin in ("https://evil.example", "null", "https://chat.example.evil.example"):
                reply = await door.call(CHAT, None, "OPTIONS", **{**asked, "Origin": origin})
                assert "access-control-allow-origin" not in reply.headers
                reply = await door.call(CHAT, chat("reasoning"), Origin=origin)
                assert "access-control-allow-origin" not in reply.headers

    asyncio.run(scenario())


def test_what_an_engine_says_of_pages_reaches_no_client() -> None:
    async def scenario() -> None:
        raw = answer("Access-Control-Allow-Origin: *", "Content-Length: 2", body=b"{}")
        async with hostile_engine(raw) as engine, doorway(url=engine.url) as door:
            reply = await door.call(CHAT, chat(), **PAGE)
            assert "access-control-allow-origin" not in reply.headers
            assert json.loads(reply.body) == {}

    asyncio.run(scenario())
