"""Engines behind TLS: trusted by `ca_file` alone, and shown `client_cert` where they ask."""

import asyncio
import json
import os
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from doorway import CHAT, doorway
from wire import chat

from tornado_frontdoor.cli.engine_survey import Unasked, survey
from tornado_frontdoor.config import ConfigError, load
from tornado_frontdoor.config.engine_tls import TlsFiles

CERTIFICATES = Path(__file__).parent / "certificates"
ONE, KEY = CERTIFICATES / "one.pem", CERTIFICATES / "one.key"
TWO, TWO_KEY = CERTIFICATES / "two.pem", CERTIFICATES / "two.key"
ANSWER = json.dumps({"object": "list", "data": [{"id": "reasoning"}], "choices": []}).encode()

NO_LOOKS = "probe_period_s = 3600"
"""The first to see that it is down is a request."""


class TlsEngine:
    """Answers everything with one body, over TLS; tells whose certificates it was shown."""

    def __init__(self, *, asks: bool) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(ONE, KEY)
        if asks:
            self.context.verify_mode = ssl.CERT_REQUIRED
            self.context.load_verify_locations(TWO)
        self.shown: list[bool] = []

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.context)
        return f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.shown.append(bool(writer.get_extra_info("peercert")))
                length = [
                    x for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")
                ]
                await reader.readexactly(int(length[0][15:]) if length else 0)
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%s" % (len(ANSWER), ANSWER)
                )
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def ask(settings: str, *, asks: bool = False) -> tuple[int, dict[str, Any]]:
    """Return the status of one request to such an engine, and its access line."""
    async with TlsEngine(asks=asks) as url, doorway(url=url, upstream=settings) as door:
        reply = await door.call(CHAT, chat())
        await door.until(lambda: bool(door.lines))
        return reply.status, door.lines[-1]


def test_an_engine_is_trusted_by_its_own_authority() -> None:
    status, line = asyncio.run(ask(f'ca_file = "{ONE}"'))
    assert (status, line["outcome"]) == (200, "served")


@pytest.mark.parametrize("settings", ["", f'ca_file = "{TWO}"'], ids=["none", "another"])
def test_an_engine_of_another_authority_gets_no_request(settings: str) -> None:
    status, line = asyncio.run(ask(settings))
    assert status == 503
    assert "certificate" in line["cause"]


def test_why_no_connection_came_about_is_in_the_log_and_explained(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> str:
        async with TlsEngine(asks=False) as url, doorway(url=url, upstream=NO_LOOKS) as door:
            assert (await door.call(CHAT, chat())).status == 503
            told = (await door.admin("/admin/explain/reasoning")).json
            assert told["what"].startswith(f"{url}: a request could not connect: ")
            assert "certificate" in told["what"]
            return url

    url = asyncio.run(scenario())
    (line,) = [one for one in caplog.messages if "is down" in one]
    assert line.startswith(f"upstreams.reasoning: {url} is down: a request could not connect: ")
    assert "certificate" in line


@pytest.mark.parametrize(
    ("hold", "said"),
    [
        ("", "would be refused at once with 503: its engine is down"),
        (
            "hold_restarting_s = 0.5",
            "would be held for its engine for at most 0.5 s, at place 1, then 503",
        ),
    ],
)
def test_a_request_for_one_that_is_down_wakes_nobody(hold: str, said: str) -> None:
    async def scenario() -> None:
        settings = f"{NO_LOOKS}\n{hold}"
        async with TlsEngine(asks=False) as url, doorway(url=url, upstream=settings) as door:
            assert (await door.call(CHAT, chat())).status == 503
            told = (await door.admin("/admin/explain/reasoning")).json
            assert (told["state"], told["a_request_now"]) == ("down", said)
            assert told["expected_wait_s"] == 0

    asyncio.run(scenario())


def test_an_engine_that_asks_who_we_are_is_told() -> None:
    own = f'ca_file = "{ONE}"\nclient_cert = "{TWO}"\nclient_key = "{TWO_KEY}"'
    assert asyncio.run(ask(own, asks=True))[0] == 200
    assert asyncio.run(ask(f'ca_file = "{ONE}"', asks=True))[0] != 200


def test_one_file_may_have_the_key_too(tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(TWO.read_bytes() + TWO_KEY.read_bytes())
    own = f'ca_file = "{ONE}"\nclient_cert = "{both}"'
    assert asyncio.run(ask(own, asks=True))[0] == 200


def test_another_authority_holds_from_the_next_reading_on() -> None:
    async def scenario() -> None:
        async with (
            TlsEngine(asks=False) as url,
            doorway(url=url, upstream=f'ca_file = "{ONE}"') as door,
        ):
            assert (await door.call(CHAT, chat())).status == 200
            door.reread(ca_file=f'"{TWO}"')
            assert (await door.call(CHAT, chat())).status == 503

    asyncio.run(scenario())


def test_a_probe_trusts_no_authority_of_the_machine_beside_that_of_the_file() -> None:
    assert len(TlsFiles().context().get_ca_certs()) > 1
    assert len(TlsFiles(ONE).context().get_ca_certs()) == 1


def test_a_configuration_is_read_without_the_authorities_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take tens of milliseconds for each upstream, and a reload keeps everybody waiting."""
    read: list[str] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: read.append("all"))
    for more in ("", f'ca_file = "{ONE}"', f'client_cert = "{TWO}"\nclient_key = "{TWO_KEY}"'):
        path = tmp_path / "frontdoor.toml"
        path.write_text(UPSTREAM.format(url="https://127.0.0.1:1", settings=more))
        load(path)
    assert not read
    TlsFiles().context()
    assert read, "where they are wanted they are read so"


def test_a_probe_trusts_the_same_and_says_which_setting_is_missing() -> None:
    async def scenario() -> None:
        async with TlsEngine(asks=False) as url:
            found = await asyncio.to_thread(survey, url, None, TlsFiles(ONE))
            assert found.models
            with pytest.raises(Unasked, match="ca_file"):
                await asyncio.to_thread(survey, url)
        async with TlsEngine(asks=True) as url:
            with pytest.raises(Unasked, match="client_cert"):
                await asyncio.to_thread(survey, url, None, TlsFiles(ONE))
            found = await asyncio.to_thread(survey, url, None, TlsFiles(ONE, TWO, TWO_KEY))
            assert found.models

    asyncio.run(scenario())


UPSTREAM = '[upstreams.a]\nurl = "{url}"\n{settings}\n[models.a]\nupstream = "a"\n'


@pytest.mark.parametrize(
    ("url", "settings", "said"),
    [
        ("https://a:1", 'ca_file = "no.pem"', "upstreams.a.ca_file: {}/no.pem cannot be read"),
        (
            "https://a:1",
            'ca_file = "empty.pem"',
            "a.ca_file: {}/empty.pem cannot be used",
        ),
        ("https://a:1", 'client_cert = "empty.pem"', "upstreams.a.client_cert: {}/empty.pem"),
        (
            "https://a:1",
            f'client_cert = "{TWO}"\nclient_key = "{KEY}"',
            "cannot be used: key values mismatch",
        ),
        ("https://a:1", 'ca_file = "pipe.pem"', "a.ca_file: {}/pipe.pem is no regular file"),
        ("https://a:1", 'api_key_file = "pipe.pem"', "a.api_key_file: pipe.pem is no regular file"),
        (
            "https://a:1",
            f'client_cert = "{TWO}"\nclient_key = "secret.key"',
            "{}/secret.key has a passphrase",
        ),
        ("https://a:1", f'client_key = "{KEY}"', "upstreams.a.client_cert: is required beside"),
        (
            "http://a:1",
            f'ca_file = "{ONE}"',
            "a.ca_file: is for engines at https:// only",
        ),
    ],
)
def test_files_that_cannot_be_used_are_faults(
    url: str, settings: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "empty.pem").write_text("")
    os.mkfifo(tmp_path / "pipe.pem")
    secret = (*("openssl", "pkey", "-aes128", "-passout", "pass:x"), *("-in", str(TWO_KEY)))
    if "secret.key" in settings:
        subprocess.run((*secret, "-out", str(tmp_path / "secret.key")), check=True)
    path = tmp_path / "frontdoor.toml"
    path.write_text(UPSTREAM.format(url=url, settings=settings))
    with pytest.raises(ConfigError) as refused:
        load(path)
    assert said.format(tmp_path) in str(refused.value)
