"""TLS on the public listener: served, read again on SIGHUP, and never confused with plain HTTP."""

import asyncio
import json
import shutil
import ssl
from pathlib import Path
from time import monotonic

import pytest
from doorway import CHAT, Doorway, doorway
from wire import Wire, chat

from tornado_frontdoor.config import load
from tornado_frontdoor.proxy.downstream.tls import CannotServeTls, make_context

CERTIFICATES = Path(__file__).parent / "certificates"


def served(folder: Path, name: str = "one") -> str:
    """Put a certificate in place and return the settings that name it."""
    for kind in ("pem", "key"):
        shutil.copy(CERTIFICATES / f"{name}.{kind}", folder / f"served.{kind}")
    return f'tls_cert = "{folder}/served.pem"\ntls_key = "{folder}/served.key"'


async def connect(door: Doorway, name: str = "one") -> Wire:
    """Open a connection that trusts one certificate only."""
    context = ssl.create_default_context(cafile=str(CERTIFICATES / f"{name}.pem"))
    streams = await asyncio.open_connection("127.0.0.1", door.port, ssl=context, limit=1 << 24)
    wire = Wire(*streams)
    door._wires.append(wire)
    return wire


def test_everything_is_served_over_tls(tmp_path: Path) -> None:
    """Large answers too, which need more than one write, and bodies that take several reads."""

    async def scenario() -> None:
        async with doorway(server=served(tmp_path), max_body_mib=4) as door:
            wire = await connect(door)
            wire.send("/health", method="GET")
            assert (await wire.reply()).json["status"] == "ok"
            wire.send(CHAT, chat("reasoning", stream=True, tokens=3000, gap_ms=0))
            reply = await wire.reply()
            assert reply.body.rstrip().endswith(b"data: [DONE]")
            assert len(reply.body) > 300_000
            long = chat("reasoning") | {"padding": "x" * 3_000_000}
            wire.send(CHAT, json.dumps(long).encode())
            assert (await wire.reply()).status == 200
            wire.raw(b"nonsense\r\n\r\n")
            assert (await wire.reply()).status == 400

    asyncio.run(scenario())


def test_a_client_that_leaves_is_noticed_behind_tls(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with doorway(server=served(tmp_path)) as door:
            wire = await connect(door)
            wire.send(CHAT, chat("reasoning", stream=True, tokens=1000, gap_ms=20))
            await wire.head()
            wire.leave()
            await door.until(lambda: door.outcomes == ["client_gone_streaming"])

    asyncio.run(scenario())


def test_a_new_certificate_is_served_after_a_reading_and_a_bad_one_is_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with doorway(server=served(tmp_path)) as door:
            old = await connect(door, "one")
            served(tmp_path, "two")
            assert door.app.reread() == (True, [])
            await connect(door, "two")
            old.send("/health", method="GET")
            assert (await old.reply()).status == 200
            shutil.copy(CERTIFICATES / "one.key", tmp_path / "served.key")
            good, said = door.app.reread()
            assert good
            assert "the certificate in force stays" in said[0]
            await connect(door, "two")

    asyncio.run(scenario())


def test_plain_http_on_the_tls_port_is_refused_within_a_second_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with doorway(server=served(tmp_path)) as door:
            started_s = monotonic()
            wire = await door.begin("/health", method="GET")
            await wire.rest()
            assert monotonic() - started_s < 1

    with caplog.at_level("WARNING"):
        asyncio.run(scenario())
    assert "127.0.0.1" in caplog.text


def test_old_tls_is_not_spoken(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with doorway(server=served(tmp_path)) as door:
            context = ssl.create_default_context(cafile=str(CERTIFICATES / "one.pem"))
            with pytest.warns(DeprecationWarning, match="TLSv1_1"):
                context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, OSError)):
                await asyncio.open_connection("127.0.0.1", door.port, ssl=context)

    asyncio.run(scenario())


def test_a_key_without_its_certificate_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(CannotServeTls, match=r"tls_cert .*one.pem with server.tls_key .*two.key"):
        make_context(CERTIFICATES / "one.pem", CERTIFICATES / "two.key")
    path = tmp_path / "frontdoor.toml"
    path.write_text(
        '[server]\ntls_cert = "x.pem"\n[upstreams.u]\nurl = "http://127.0.0.1:9"\n'
        '[models.m]\nupstream = "u"\n'
    )
    with pytest.raises(Exception, match=r"tls_key: is required beside server\.tls_cert"):
        load(path)


def test_a_handshake_that_comes_to_nothing_is_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with doorway(server=served(tmp_path)) as door:
            looks = await door.wire()  # whether the port is open, as load balancers do
            looks.leave()
            for nonsense in (
                b"GET / HTTP/1.1\r\nHost: d\r\n\r\n",
                b"\x16\x03\x01\x00\x05\x01\0\0\1\0",
            ):
                wire = await door.wire()
                wire.raw(nonsense)
                await wire.rest()
            metrics = (await door.admin("/metrics")).body.decode()
            assert 'edge_refusals_total{listener="public",reason="tls"} 2.0' in metrics

    asyncio.run(scenario())
