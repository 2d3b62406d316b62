"""Calls that were broken off: the connection stays half open until the engine has closed it too."""

import asyncio
import os
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pycurl
import pytest
from stopwatch import PATIENCE_S

from tornado_frontdoor.proxy.curl.client import TransferEnd, UpstreamClient
from tornado_frontdoor.proxy.curl.lingering import MOST_DRAINED_BYTES

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Scene:
    """One call to an engine that answers with a head and leaves the rest to `after_eof`."""

    def __init__(self, kit: Any, after_eof: Callable[[Any, Any], Any]) -> None:
        self.kit = kit
        self.saw_end = asyncio.Event()
        self.go = asyncio.Event()
        self._after_eof = after_eof

    async def serve(self, reader: Any, writer: Any) -> None:
        await self.kit.read_request(reader)
        writer.write(HEAD)
        assert await reader.read(1) == b""
        self.saw_end.set()
        await self.go.wait()
        await self._after_eof(self, writer)

    async def begin(self, client: UpstreamClient, url: str, **changes: Any) -> tuple[Any, Any]:
        taker = self.kit.Taker()
        transfer = client.start(self.kit.call(url, lingers=True, **changes), taker)
        await self.kit.until(lambda: taker.status == 200)
        return taker, transfer


async def closes(_scene: Scene, writer: Any) -> None:
    writer.close()


async def resets(_scene: Scene, writer: Any) -> None:
    writer.transport.abort()


@pytest.mark.parametrize("after_eof", [closes, resets])
def test_the_engine_sees_the_end_at_once_and_its_own_end_is_the_sign(
    kit: Any, after_eof: Any
) -> None:
    async def scenario() -> None:
        scene = Scene(kit, after_eof)
        async with kit.engine(scene.serve) as engine, kit.client() as client:
            taker, transfer = await scene.begin(client, engine.url)
            transfer.abort()
            assert await taker.end() is TransferEnd.ABORTED
            async with asyncio.timeout(PATIENCE_S):
                await scene.saw_end.wait()
            lingering, signs = transfer.lingering, []
            assert not lingering.over
            lingering.on_over = lambda: signs.append(lingering.over)
            await asyncio.sleep(0.05)
            assert not signs
            scene.go.set()
            await kit.until(lambda: signs)
            assert signs == [True]

    asyncio.run(scenario())


def test_an_abort_from_within_a_callback_lingers_too(kit: Any) -> None:
    async def scenario() -> None:
        scene = Scene(kit, closes)
        scene.go.set()
        seen: list[Any] = []

        def leave(_what: str, taker: Any) -> None:
            taker.transfer.abort()
            seen.append((taker.transfer.lingering, taker.transfer.lingering.over))

        async with kit.engine(scene.serve) as engine, kit.client() as client:
            taker = kit.Taker(leave)
            taker.transfer = client.start(kit.call(engine.url, lingers=True), taker)
            assert await taker.end() is TransferEnd.ABORTED
            ((lingering, over),) = seen
            assert not over
            await kit.until(lambda: lingering.over)

    asyncio.run(scenario())


def test_an_engine_that_sends_on_and_on_is_reset_and_gives_no_sign(kit: Any) -> None:
    async def sends(scene: Scene, writer: Any) -> None:
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        try:
            for _ in range(10 * MOST_DRAINED_BYTES // len(chunk)):
                writer.write(chunk)
                await writer.drain()
        except ConnectionError:
            scene.saw_end.clear()

    async def scenario() -> None:
        scene = Scene(kit, sends)
        async with kit.engine(scene.serve) as engine, kit.client() as client:
            taker, transfer = await scene.begin(client, engine.url)
            transfer.abort()
            assert await taker.end() is TransferEnd.ABORTED
            await scene.saw_end.wait()
            scene.go.set()
            await kit.until(lambda: not scene.saw_end.is_set())
            assert not transfer.lingering.over

    asyncio.run(scenario())


def test_who_does_not_ask_for_it_closes_at_once_and_so_does_a_control_call(kit: Any) -> None:
    async def scenario() -> None:
        scene = Scene(kit, closes)
        async with kit.engine(scene.serve) as engine, kit.client() as client:
            taker = kit.Taker()
            transfer = client.start(kit.call(engine.url), taker)
            await kit.until(lambda: taker.status == 200)
            transfer.abort()
            assert transfer.lingering is None
            async with asyncio.timeout(PATIENCE_S):
                await scene.saw_end.wait()

    asyncio.run(scenario())


def test_closing_gives_up_and_leaves_no_descriptor(kit: Any) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))

    async def scenario() -> None:
        scene = Scene(kit, closes)
        async with kit.engine(scene.serve) as engine, kit.client() as client:
            for _ in range(20):
                taker, transfer = await scene.begin(client, engine.url)
                transfer.abort()
                assert await taker.end() is TransferEnd.ABORTED
                transfer.lingering.close()
                transfer.lingering.close()
                assert not transfer.lingering.over

    asyncio.run(scenario())
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_calls_that_linger_do_not_disturb_those_that_come_after(kit: Any) -> None:
    """The numbers of their sockets are given out again while their duplicates still live."""

    async def scenario() -> None:
        lingerer = Scene(kit, closes)

        async def serve(reader: Any, writer: Any) -> None:
            head, _ = await kit.read_request(reader)
            if b"/linger" not in head:
                writer.write(kit.answer(b"ok", "200 OK", "Connection: close"))
                return
            writer.write(HEAD)
            while await reader.read(1):
                pass
            for _ in range(50):
                writer.write(b"1\r\nx\r\n")
                await asyncio.sleep(0.002)

        async with kit.engine(serve) as engine, kit.client() as client:
            followers = []
            for _ in range(10):
                _, transfer = await lingerer.begin(client, f"{engine.url}/linger")
                transfer.abort()
                followers.append(transfer.lingering)
                plain = kit.Taker()
                client.start(kit.call(engine.url), plain)
                assert await plain.end() is TransferEnd.COMPLETE
            await kit.until(lambda: all(one.over for one in followers))
            assert len(client._epoll.poll(0)) == 0

    asyncio.run(scenario())


def certificate(folder: Path) -> Path:
    path = folder / "engine.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=engine", "-keyout", path, "-out", path),
        ],
        check=True,
        capture_output=True,
    )
    return path


class Trusting(UpstreamClient):
    """Takes any certificate."""

    def _curl_create(self) -> Any:
        curl = super()._curl_create()
        curl.setopt(pycurl.SSL_VERIFYPEER, 0)
        curl.setopt(pycurl.SSL_VERIFYHOST, 0)
        return curl


def test_an_engine_behind_tls_gives_its_sign_by_the_end_of_the_raw_connection(
    kit: Any, tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(tmp_path))

    async def scenario() -> None:
        scene = Scene(kit, closes)
        server = await asyncio.start_server(scene.serve, "127.0.0.1", 0, ssl=context)
        client = Trusting()
        try:
            port = server.sockets[0].getsockname()[1]
            taker, transfer = await scene.begin(client, f"https://127.0.0.1:{port}")
            transfer.abort()
            assert await taker.end() is TransferEnd.ABORTED
            async with asyncio.timeout(PATIENCE_S):
                await scene.saw_end.wait()
            scene.go.set()
            await kit.until(lambda: transfer.lingering.over)
        finally:
            client.close()
            server.close()

    asyncio.run(scenario())
