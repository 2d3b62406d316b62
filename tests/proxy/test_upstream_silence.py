"""Silence of an engine: how long it may last, and what does not count as one."""

import asyncio
from typing import Any

from stopwatch import Stopwatch

from tornado_frontdoor.proxy.curl.client import TransferEnd


async def say_nothing(kit: Any, reader: Any, _writer: Any) -> None:
    await kit.read_request(reader)


async def _silent_end(kit: Any, serve: Any, **limits: float) -> tuple[Any, TransferEnd, Stopwatch]:
    async with kit.engine(serve) as engine, kit.client() as client:
        taker = kit.Taker()
        lasted = Stopwatch()
        client.start(kit.call(engine.url, **limits), taker)
        end = await taker.end()
        lasted.stop()
        await kit.until(lambda: engine.open == 0)
        assert client._silence_timer is None or len(client.under_way) == 0
        return taker, end, lasted


def test_silence_before_the_first_byte_ends_the_call(kit: Any) -> None:
    async def scenario() -> None:
        taker, end, lasted = await _silent_end(
            kit, lambda r, w: say_nothing(kit, r, w), read_timeout_s=0.2
        )
        assert end is TransferEnd.SILENT
        assert lasted.wall_s > 0.19
        assert lasted.own_s < 0.5
        assert taker.heads == 0

    asyncio.run(scenario())


def test_silence_after_the_head_is_allowed_as_long_as_before_the_first_byte(kit: Any) -> None:
    async def serve(reader: Any, writer: Any) -> None:
        await kit.read_request(reader)
        await asyncio.sleep(0.2)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

    async def scenario() -> None:
        taker, end, lasted = await _silent_end(kit, serve, read_timeout_s=0.3, chunk_timeout_s=0.05)
        assert end is TransferEnd.SILENT
        assert lasted.wall_s > 0.49
        assert lasted.own_s < 0.8
        assert taker.heads == 1

    asyncio.run(scenario())


def test_silence_between_bytes_has_its_own_shorter_limit(kit: Any) -> None:
    async def serve(reader: Any, writer: Any) -> None:
        await kit.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(8):
            writer.write(b"x")
            await asyncio.sleep(0.05)

    async def scenario() -> None:
        taker, end, lasted = await _silent_end(kit, serve, read_timeout_s=60, chunk_timeout_s=0.2)
        assert end is TransferEnd.SILENT
        assert taker.size == 8
        assert lasted.wall_s > 0.54
        assert lasted.own_s < 0.9

    asyncio.run(scenario())


def test_our_own_pause_is_no_silence(kit: Any) -> None:
    async def scenario() -> None:
        resumed = asyncio.Event()

        async def serve(reader: Any, writer: Any) -> None:
            await kit.read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nx")
            await resumed.wait()
            await asyncio.sleep(0.25)  # longer than what was left of the limit before the pause
            writer.write(b"y")

        async with kit.engine(serve) as engine, kit.client() as client:
            taker = kit.Taker()
            taker.willing = False
            transfer = client.start(kit.call(engine.url, chunk_timeout_s=0.4), taker)
            await kit.until(lambda: transfer.paused)
            await asyncio.sleep(0.7)
            assert not taker.ends
            transfer.resume()
            resumed.set()
            assert await taker.end() is TransferEnd.COMPLETE
            assert taker.body == b"xy"

    asyncio.run(scenario())
