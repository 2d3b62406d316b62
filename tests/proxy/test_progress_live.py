"""Who waits learns their place in interim answers, if they bear them; the status stays open."""

import asyncio
import contextlib
import json
import shutil
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Callable

import anthropic
import httpx
import openai
import pytest
from doorway import CHAT, Doorway, doorway
from stopwatch import PATIENCE_S
from wire import Wire, chat

from tornado_frontdoor.proxy import progress
from tornado_frontdoor.proxy.progress import bears_interim_answers
from tornado_frontdoor.proxy.proxied_request import ProxiedRequest


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell places ten times as often as in earnest."""
    for name in ("FIRST_S", "EVERY_S", "TICK_S"):
        monkeypatch.setattr(progress, name, getattr(progress, name) / 10)


ASK = {"X_Frontdoor_Progress": "103"}


async def heads(wire: Wire) -> tuple[list[dict[str, str]], int]:
    """Read interim answers until the final one; return them and its status."""
    interim: list[dict[str, str]] = []
    while True:
        status, headers = await wire.head()
        if status != 103:
            return interim, status
        interim.append(headers)


@contextlib.asynccontextmanager
async def full(**settings: object) -> AsyncIterator[Doorway]:
    """Run a front door whose only slot is taken for a while."""
    async with doorway({"hold": 0.7}, cap=1, queue=4, **settings) as door:  # type: ignore[arg-type]
        first = await door.begin(CHAT, chat())
        await door.inside(1)
        yield door
        assert (await first.reply()).status == 200


def test_places_come_while_one_waits_and_then_the_answer() -> None:
    async def scenario() -> None:
        async with full() as door:
            wires = []
            for place in (1, 2):
                wires.append(await door.begin(CHAT, chat(), **ASK))
                await door.inside(1, place)
            (first, status), (second, _) = [await heads(wire) for wire in wires]
            assert status == 200
            assert first[0]["queue-position"] == "1"
            assert second[0]["queue-position"] == "2"
            assert int(second[0]["queue-eta-ms"]) > int(first[0]["queue-eta-ms"]) > 0
            assert second[0]["engine-state"] == "awake"
            assert len(second) >= 2
            assert second[-1]["queue-position"] == "1"
            assert len(door.app.door._places) == 0

    asyncio.run(scenario())


def test_the_status_stays_open_for_a_refusal_and_the_connection_for_the_next() -> None:
    async def scenario() -> None:
        async with full(queue_timeout_s=0.25) as door:
            wire = await door.begin(CHAT, chat(), **ASK)
            interim, status = await heads(wire)
            assert interim
            assert status == 503
            wire.leave()
            kept = await door.begin(CHAT, chat("text"), **ASK)
            assert (await kept.reply()).status == 200
            kept.send("/v1/models", None, "GET")
            assert (await kept.reply()).status == 200

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("query", "headers", "complaint"),
    [
        ("?progress=bogus", {}, "progress must be sse, not 'bogus'"),
        ("", {"X_Frontdoor_Progress": "104"}, "X-Frontdoor-Progress must be 103 or sse, not '104'"),
    ],
)
def test_a_way_to_be_told_that_there_is_not_is_refused(
    query: str, headers: dict[str, str], complaint: str
) -> None:
    async def scenario() -> None:
        async with doorway({}, cap=1, queue=4) as door:
            refused = await door.call(CHAT + query, chat(), **headers)
            assert (refused.status, refused.json["detail"]) == (400, complaint)
            assert door.stats()["started"] == 0

    asyncio.run(scenario())


def test_who_does_not_bear_them_gets_none_and_off_is_off() -> None:
    async def scenario() -> None:
        for settings, headers in (
            ({}, {"User_Agent": "python-requests/2.32"}),
            ({}, {"User_Agent": "curl/8", "Via": "1.1 nginx"}),
            ({"server": 'progress = "off"'}, ASK),
            ({"server": 'progress = "asked"'}, {"User_Agent": "curl/8"}),
        ):
            async with full(**settings) as door:
                wire = await door.begin(CHAT, chat(), **headers)
                assert await heads(wire) == ([], 200)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("headers", "bears"),
    [
        ({"user-agent": "curl/8.9"}, True),
        ({"user-agent": "OpenAI/Python 3.57", "x-stainless-lang": "python"}, True),
        ({"user-agent": "Python/3.11 aiohttp/3.12"}, True),
        ({"user-agent": "Go-http-client/1.1"}, False),
        ({"user-agent": "Python-urllib/3.11"}, False),
        ({"user-agent": "python-requests/2.3", "x-stainless-lang": "python"}, False),
        ({"user-agent": "python-requests/2.3", "x-frontdoor-progress": "103"}, True),
        ({"user-agent": "curl/8", "x-forwarded-for": "1.2.3.4"}, False),
        ({}, False),
    ],
)
def test_known_clients(headers: dict[str, str], bears: bool) -> None:
    assert bears_interim_answers(headers, "known") is bears


def with_openai(url: str) -> str:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
    answer = client.chat.completions.create(
        model="reasoning", messages=[{"role": "user", "content": "hi"}]
    )
    client.close()
    return answer.choices[0].message.content or ""


def with_httpx(url: str) -> str:
    answer = httpx.post(url + CHAT, json=chat(), timeout=PATIENCE_S)
    assert answer.status_code == 200
    return str(answer.json()["choices"][0]["message"]["content"])


def with_urllib(url: str) -> str:
    """It would take a 103 for the answer: it must get none."""
    headers = {"Content-Type": "application/json"}
    body = json.dumps(chat()).encode()
    request = urllib.request.Request(url + CHAT, body, headers)  # noqa: S310 - our own door
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
        return str(json.load(answer)["choices"][0]["message"]["content"])


def with_anthropic(url: str) -> str:
    client = anthropic.Anthropic(base_url=f"{url}/llm", api_key="x", max_retries=0)
    said = [{"role": "user", "content": "hi"}]
    answer = client.messages.create(model="reasoning", max_tokens=9, messages=said)  # type: ignore[arg-type]
    client.close()
    return str(answer.content[0].text)  # type: ignore[union-attr]


def with_requests(url: str) -> str:
    """It would take a 103 for the answer: it must get none."""
    requests = pytest.importorskip("requests")
    answer = requests.post(url + CHAT, json=chat(), timeout=PATIENCE_S)
    assert answer.status_code == 200
    return str(answer.json()["choices"][0]["message"]["content"])


def with_urllib3(url: str) -> str:
    """Likewise."""
    urllib3 = pytest.importorskip("urllib3")
    with urllib3.PoolManager() as pool:
        answer = pool.request("POST", url + CHAT, json=chat(), timeout=PATIENCE_S)
        assert answer.status == 200
        return str(answer.json()["choices"][0]["message"]["content"])


def with_node(url: str) -> str:
    """Node's fetch is undici."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("NODE IS NOT INSTALLED: its fetch is not tried with interim answers")
    post = {
        "method": "POST",
        "headers": {"Content-Type": "application/json"},
        "body": json.dumps(chat()),
    }
    script = (
        f"fetch({json.dumps(url + CHAT)}, {json.dumps(post)}).then(async (answer) => {{"
        "console.log(answer.status, (await answer.json()).choices[0].message.content) })"
    )
    said = subprocess.run([node, "-e", script], capture_output=True, text=True, check=True)
    status, _, text = said.stdout.partition(" ")
    assert status == "200"
    return text


@pytest.mark.parametrize(
    "ask",
    [
        *(with_openai, with_anthropic, with_httpx, with_node),
        *(with_urllib, with_urllib3, with_requests),
    ],
)
def test_real_clients_get_their_answers(
    ask: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot is free again only once places were told, or once they could have been."""
    told: list[ProxiedRequest] = []
    tell = ProxiedRequest.tell

    def heard(self: ProxiedRequest, headers: list[tuple[str, str]]) -> None:
        told.append(self)
        tell(self, headers)

    monkeypatch.setattr(ProxiedRequest, "tell", heard)

    async def scenario() -> str:
        async with doorway({"hold": 0}, cap=1, queue=4) as door:
            first = await door.begin(CHAT, chat(hold_s=60))
            await door.inside(1)
            asked = asyncio.to_thread(ask, f"http://127.0.0.1:{door.port}")
            task = asyncio.ensure_future(asked)
            await door.inside(1, 1)
            if ask in (with_urllib, with_urllib3, with_requests):
                await asyncio.sleep(progress.FIRST_S + 2 * progress.TICK_S)
                assert not told
            else:
                await door.until(lambda: len(told) > 1)
            first.leave()
            return await task

    assert asyncio.run(scenario())


def test_curl_and_aiohttp_get_their_answers() -> None:
    aiohttp = pytest.importorskip("aiohttp")

    async def scenario() -> None:
        async with full() as door:
            url = f"http://127.0.0.1:{door.port}{CHAT}"
            process = await asyncio.create_subprocess_exec(
                *("curl", "-s", "-w", "%{http_code}", "-H", "Content-Type: application/json"),
                *("-o", "/dev/null", "-d", json.dumps(chat()), url),
                stdout=asyncio.subprocess.PIPE,
            )
            async with (
                aiohttp.ClientSession() as session,
                session.post(url, json=chat()) as answer,
            ):
                assert answer.status == 200
                assert (await answer.json())["choices"]
            assert (await process.communicate())[0] == b"200"

    asyncio.run(scenario())
