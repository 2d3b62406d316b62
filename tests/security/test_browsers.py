"""A web page that a neighbour of the GPUs looks at must not use them, nor put them to sleep."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest
from doorway import CHAT, Doorway, doorway
from wire import Reply, chat

from tornado_frontdoor.config import Address
from tornado_frontdoor.proxy.admin.guard import WRONG_TOKEN_DELAY_S, WRONG_TOKENS_AT_ONCE
from tornado_frontdoor.proxy.downstream.browsers import HostRule

SLEEP = "/admin/sleep/text"
EVIL = {"Origin": "https://evil.example", "Content_Type": "text/plain"}
OWN = "http://127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104


async def refusals(door: Doorway) -> dict[tuple[str, str], float]:
    """What was refused by its head, by listener and reason."""
    found = {}
    for family in door.app._telemetry.registry.collect():
        for sample in family.samples:
            if sample.name == "frontdoor_edge_refusals_total" and sample.value:
                found[sample.labels["listener"], sample.labels["reason"]] = sample.value
    return found


def answer_of(path: str, method: str = "GET", **headers: str) -> Reply:
    async def scenario() -> Reply:
        async with doorway() as door:
            return await door.admin(path, method, **headers)

    return asyncio.run(scenario())


# The admin listener: whose name


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8010", "127.0.0.1.evil.example", "10.1.2.3", ""]
)
@pytest.mark.parametrize(
    ("path", "method"), [("/admin/status", "GET"), ("/metrics", "GET"), (SLEEP, "POST")]
)
def test_a_rebound_name_reads_nothing_and_does_nothing(host: str, path: str, method: str) -> None:
    reply = answer_of(path, method, Host=host)
    assert reply.status in (400, 403)
    assert b"upstreams" not in reply.body


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:8010", "[::1]:8010", "LOCALHOST", "127.8.8.8:1"]
)
def test_our_own_names_are_answered(host: str) -> None:
    assert answer_of("/admin/status", Host=host).status == 200


def test_a_listed_name_is_answered_from_the_moment_it_is_listed() -> None:
    async def scenario() -> None:
        async with doorway(server="admin_hosts = []") as door:
            assert (await door.admin("/admin/status", Host="gpu.lan:8010")).status == 403
            door.reread(admin_hosts='["GPU.lan"]')
            assert (await door.admin("/admin/status", Host="gpu.lan:8010")).status == 200

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("listen", "host", "fine"),
    [
        (EVERYWHERE, "10.1.2.3:8010", True),
        (EVERYWHERE, "localhost", True),
        (EVERYWHERE, "gpu.lan", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.4", False),
        ("10.1.2.3", "127.0.0.1", False),
        ("gpu.lan", "GPU.lan:8010", True),
        ("::1", "[::1]:8010", True),
        ("::1", "[::2]:8010", False),
        ("127.0.0.1", "[::1", True),
        ("127.0.0.1", "a b", False),
    ],
)
def test_a_listener_answers_to_what_it_listens_on(listen: str, host: str, *, fine: bool) -> None:
    assert HostRule(Address(listen, 8010), ()).allows(host) is fine


# The admin listener: whose page


PAGES = {
    "another site": {"Origin": "https://evil.example"},
    "a file or a frame without a name": {"Origin": "null"},
    "our name on another port": {"Origin": "http://127.0.0.1:9"},
    "cross-site by its own word": {"Sec_Fetch_Site": "cross-site"},
    "a neighbour's subdomain": {"Sec_Fetch_Site": "same-site"},
    "another site with our mark": {"Origin": "https://evil.example", "X_Frontdoor_Admin": "1"},
    "a form without any header of its own": {"Origin": OWN, "Sec_Fetch_Site": "same-origin"},
    "an old browser": {"User_Agent": "Mozilla/5.0", "Referer": "https://evil.example/"},
}  # fmt: skip


@pytest.mark.parametrize("headers", PAGES.values(), ids=PAGES)
@pytest.mark.parametrize(
    "path",
    [
        *(SLEEP, "/admin/wake/text", "/admin/pin/text", "/admin/keep/text?for=1h"),
        *("/admin/unpin/text", "/admin/drain/text?replica=x", "/admin/reload"),
        "/admin/what-if/text?cap=1&queue=1&timeout_s=1",
    ],
)
def test_a_page_of_another_site_does_nothing(headers: dict[str, str], path: str) -> None:
    assert answer_of(path, "POST", **headers).status == 403


def test_our_own_page_and_programs_act() -> None:
    """Plain curl, the command line, and a page of ours that sends its mark."""
    ours = {"Origin": OWN, "Sec_Fetch_Site": "same-origin", "X_Frontdoor_Admin": "page"}
    for headers in ({}, {"User_Agent": "curl/8.5.0", "Accept": "*/*"}, ours):
        assert answer_of("/admin/wake/text", "POST", **headers).status == 202


def test_a_denied_call_is_counted_by_its_reason() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            await door.admin("/admin/status", Host="evil.example")
            await door.admin(SLEEP, "POST", **EVIL)
            assert await refusals(door) == {("admin", "host"): 1, ("admin", "origin"): 1}

    asyncio.run(scenario())


# The admin listener: the token


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[Doorway]:
    (folder / "token").write_text("s3cret\n")
    async with doorway(server=f'admin_token_file = "{folder / "token"}"') as door:
        yield door


@pytest.mark.parametrize("given", ["Bearer s3cret", "bearer s3cret", "BEARER  s3cret"])
def test_the_scheme_is_compared_without_case(given: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path) as door:
            assert (await door.admin("/admin/status", Authorization=given)).status == 200
            anywhere = await door.admin("/metrics", Authorization=given, Host="frontdoor:8010")
            assert anywhere.status == 200

    asyncio.run(scenario())


def test_a_wrong_token_leaves_a_line_and_a_count_and_is_slow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path) as door:
            for given in ("Bearer wrong", "Basic s3cret", "s3cret", "Bearer s3cret s3cret", ""):
                started_s = monotonic()
                reply = await door.admin("/admin/status", Authorization=given)
                assert reply.status == 401
                assert reply.headers["www-authenticate"] == "Bearer"
                assert monotonic() - started_s >= WRONG_TOKEN_DELAY_S
            assert (await refusals(door))["admin", "token"] == 5

    with caplog.at_level(logging.WARNING, "frontdoor"):
        asyncio.run(scenario())
    assert caplog.text.count("wrong or missing token from 127.0.0.1") == 5
    assert "s3cret" not in caplog.text


def test_many_who_guess_at_once_are_sent_away_and_slow_nobody_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path) as door:
            guard = door.app.admin.guard
            wire = await door.wire(door.admin_port)
            wire.send("/admin/status", None, "GET", Authorization="Bearer x")
            await door.until(lambda: guard.delayed == 1)
            guard.delayed = WRONG_TOKENS_AT_ONCE
            reply = await door.admin("/admin/status", Authorization="Bearer y")
            assert (reply.status, reply.headers["retry-after"]) == (429, "1")
            right = await door.admin("/admin/status", Authorization="Bearer s3cret")
            assert right.status == 200
            assert (await wire.reply()).status == 401
            assert guard.delayed == WRONG_TOKENS_AT_ONCE - 1

    asyncio.run(scenario())


# The public listener: no GPU work for a page


FORMS = {
    "text": {"Content_Type": "text/plain"},
    "text that says it is JSON": {"Content_Type": "text/plain; charset=application/json"},
    "a form": {"Content_Type": "application/x-www-form-urlencoded"},
    "multipart from a page": {
        "Content_Type": "multipart/form-data; boundary=b",
        "Origin": "https://evil.example",
    },
    "no type from a page": {"Sec_Fetch_Site": "cross-site"},
    "no type from an old browser": {"User_Agent": "Mozilla/5.0"},
    "bytes": {"Content_Type": "application/octet-stream"},
}


@pytest.mark.parametrize("headers", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("path", [CHAT, "/llm/v1/messages", "/tokenize"])
def test_what_any_page_can_send_runs_on_no_gpu(headers: dict[str, str], path: str) -> None:
    async def scenario() -> None:
        async with doorway() as door:
            body = json.dumps(chat("reasoning") | {"max_tokens": 5}).encode()
            reply = await door.call(path, body, **headers)
            assert reply.status == 415
            assert reply.json["error"]["type"] == "invalid_request_error"
            assert door.stats()["started"] == 0
            assert door.outcomes == ["bad_request"]

    asyncio.run(scenario())


PROGRAMS = {
    "curl as the README has it": {"Content_Type": "application/json", "User_Agent": "curl/8.5.0"},
    "an SDK": {"Content_Type": "application/json; charset=utf-8", "Authorization": "Bearer x"},
    "a program without a type": {"User_Agent": "python-requests/2.32"},
    "a page that was allowed to ask": {
        "Content_Type": "application/json",
        "Origin": "https://chat.example",
    },
}


@pytest.mark.parametrize("headers", PROGRAMS.values(), ids=PROGRAMS)
def test_programs_are_served(headers: dict[str, str]) -> None:
    async def scenario() -> None:
        async with doorway() as door:
            body = json.dumps(chat("reasoning")).encode()
            assert (await door.call(CHAT, body, **headers)).status == 200

    asyncio.run(scenario())


def test_pages_are_served_where_the_operator_says_so() -> None:
    async def scenario() -> None:
        async with doorway(server="cross_site_posts = true") as door:
            body = json.dumps(chat("reasoning")).encode()
            assert (await door.call(CHAT, body, Sec_Fetch_Site="cross-site")).status == 200

    asyncio.run(scenario())


def test_a_public_listener_that_asks_for_no_key_warns(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with doorway():
            assert "OPEN TO THE NETWORK" not in caplog.text
        async with doorway(listen="0.0.0.0:0"):
            assert "OPEN TO THE NETWORK" in caplog.text

    with caplog.at_level(logging.WARNING, "frontdoor"):
        asyncio.run(scenario())
