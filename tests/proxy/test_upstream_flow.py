"""Back-pressure and aborts: what we may do to a call under way."""

import asyncio
import hashlib
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
from stopwatch import Stopwatch

from tornado_frontdoor.proxy.curl.client import TransferEnd, UpstreamFailed

MIB = 1 << 20


async def stream_forever(kit: Any, reader: Any, writer: Any) -> None:
    await kit.read_request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not (reader.at_eof() or writer.is_closing()):
        writer.write(b"data: x\n\n")
        await asyncio.sleep(0.001)


async def say_nothing(kit: Any, reader: Any, _writer: Any) -> None:
    await kit.read_request(reader)


@contextmanager
def unanswering() -> Iterator[str]:
    """Give the address of a listener whose backlog is full: connecting to it hangs."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_paused_stream_holds_the_engine_back_and_loses_nothing(kit: Any) -> None:
    block = bytes(range(256)) * 4096
    total = 200

    async def scenario() -> None:
        sent = 0

        async def serve(reader: Any, writer: Any) -> None:
            nonlocal sent
            await kit.read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (total * MIB))
            for number in range(total):
                writer.write(number.to_bytes(4, "big") + block[4:])
                sent += MIB
                await writer.drain()

        def pause_at_first(what: str, taker: Any) -> None:
            if what == "data" and taker.chunks == 1:
                taker.willing = False

        async with kit.engine(serve) as engine, kit.client() as client:
            taker = kit.Taker(pause_at_first)
            taker.keep = False
            before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            transfer = client.start(kit.call(engine.url), taker)
            await kit.until(lambda: transfer.held)
            last = -1
            while sent != last:  # until the engine stands still
                last = sent
                await asyncio.sleep(0.2)
            assert taker.chunks == 1
            assert transfer.paused
            assert sent - taker.size < 16 * MIB  # kernel's and asyncio's buffers
            taker.willing = True
            transfer.resume()
            assert taker.chunks == 1  # never within the caller's stack
            assert await taker.end() is TransferEnd.COMPLETE
            assert taker.size == total * MIB
            expected = hashlib.sha256()
            for number in range(total):
                expected.update(number.to_bytes(4, "big") + block[4:])
            assert taker.digest.digest() == expected.digest()
            grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
            assert grown_kib < 32 * 1024

    asyncio.run(scenario())


EVENTS = [b"data: %d %s\n\n" % (number, b"y" * (number % 977)) for number in range(6000)]
FRAMED = {
    "length": b"Content-Length: %d\r\n\r\n" % len(b"".join(EVENTS)) + b"".join(EVENTS),
    "close": b"\r\n" + b"".join(EVENTS),
    "chunked": b"Transfer-Encoding: chunked\r\n\r\n"
    + b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in EVENTS)
    + b"0\r\n\r\n",
}


@pytest.mark.parametrize("framing", FRAMED)
def test_pausing_after_every_chunk_keeps_every_byte_in_order(kit: Any, framing: str) -> None:
    async def serve(reader: Any, writer: Any) -> None:
        while not (reader.at_eof() or writer.is_closing()):
            await kit.read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\n" + FRAMED[framing])
            if framing == "close":
                writer.close()

    def resume_later(what: str, taker: Any) -> None:
        if what == "data":
            taker.willing = False
            # At once or some turns later: before libcurl was told to wait, and after.
            turns = taker.chunks % 4
            step: Any = taker.transfer.resume
            for _ in range(turns):
                step = partial(asyncio.get_running_loop().call_soon, step)
            asyncio.get_running_loop().call_soon(step)

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            for _ in range(3):
                taker = kit.Taker(resume_later)
                taker.transfer = client.start(kit.call(engine.url), taker)
                assert await taker.end() is TransferEnd.COMPLETE
                assert bytes(taker.body) == b"".join(EVENTS)

    asyncio.run(scenario())


@pytest.mark.parametrize("engine_is", ["flowing", "silent", "paused"])
def test_an_abort_closes_the_connection_and_the_client_still_serves(
    kit: Any, engine_is: str
) -> None:
    async def serve(reader: Any, writer: Any) -> None:
        await (say_nothing if engine_is == "silent" else stream_forever)(kit, reader, writer)

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            for _ in range(3):
                taker = kit.Taker()
                taker.willing = engine_is != "paused"
                transfer = client.start(kit.call(engine.url), taker)
                if engine_is == "silent":
                    await kit.until(lambda: engine.open == 1)
                else:
                    await kit.until(lambda t=taker: t.chunks > 0)
                transfer.abort()
                assert taker.ends == [(TransferEnd.ABORTED, "")]  # before abort returned
                await kit.until(lambda: engine.open == 0, 0.1)
                transfer.abort()
                transfer.resume()
                assert await taker.end() is TransferEnd.ABORTED
            assert len(client.under_way) == 0
            assert len(client._curls) == len(client._free_list) == 1

    asyncio.run(scenario())


def test_a_connection_nobody_answers_can_be_aborted_and_is_given_up_in_time(kit: Any) -> None:
    async def scenario() -> None:
        async with kit.client() as client:
            with unanswering() as url:
                taker = kit.Taker()
                transfer = client.start(kit.call(url), taker)
                await kit.until(lambda: any(client._fds.values()))
                transfer.abort()
                assert taker.ends == [(TransferEnd.ABORTED, "")]

                for limits in ({"connect_timeout_s": 0.2}, {"read_timeout_s": 0.2}):
                    watch = Stopwatch()
                    taker = kit.Taker()
                    client.start(kit.call(url, **limits), taker)
                    assert await taker.end() is TransferEnd.CONNECT_FAILED
                    assert watch.wall_s > 0.19
                    assert watch.own_s < 1
                with pytest.raises(UpstreamFailed) as failed:
                    await client.ask("GET", url, timeout_s=0.2)
                assert failed.value.end is TransferEnd.CONNECT_FAILED
            assert len(client.under_way) == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("when", ["head", "data"])
def test_an_abort_from_within_a_callback_ends_once_and_hears_nothing_more(
    kit: Any, when: str
) -> None:
    async def scenario() -> None:
        def abort(what: str, taker: Any) -> None:
            if what == when:
                taker.transfer.abort()
                assert not taker.ends  # libcurl is on the stack

        async with (
            kit.engine(lambda r, w: stream_forever(kit, r, w)) as engine,
            kit.client() as client,
        ):
            taker = kit.Taker(abort)
            taker.transfer = client.start(kit.call(engine.url), taker)
            assert await taker.end() is TransferEnd.ABORTED
            assert taker.chunks == (1 if when == "data" else 0)
            await kit.until(lambda: engine.open == 0, 0.1)
            assert len(client._free_list) == 1

    asyncio.run(scenario())


def test_calls_may_be_started_and_others_aborted_from_within_callbacks(kit: Any) -> None:
    async def scenario() -> None:
        async with (
            kit.engine(lambda r, w: stream_forever(kit, r, w)) as engine,
            kit.client() as client,
        ):
            victim, late, dead = kit.Taker(), kit.Taker(), kit.Taker()
            victim.transfer = client.start(kit.call(engine.url), victim)
            await kit.until(lambda: victim.chunks > 0)

            def hook(what: str, taker: Any) -> None:
                if what == "data" and taker.chunks == 1:
                    victim.transfer.abort()
                    late.transfer = client.start(kit.call(engine.url), late)
                    dead.transfer = client.start(kit.call(engine.url), dead)
                    dead.transfer.abort()

            taker = kit.Taker(hook)
            taker.transfer = client.start(kit.call(engine.url), taker)
            assert await victim.end() is TransferEnd.ABORTED
            assert await dead.end() is TransferEnd.ABORTED
            await kit.until(lambda: late.chunks > 0 and taker.chunks > 1)
            assert len(client.under_way) == 2

    asyncio.run(scenario())


def test_a_call_that_ends_while_another_aborts_itself_is_not_forgotten(kit: Any) -> None:
    async def scenario() -> None:
        together = asyncio.Event()

        async def serve(reader: Any, writer: Any) -> None:
            await kit.read_request(reader)
            await together.wait()
            writer.write(kit.answer())

        def abort(_what: str, taker: Any) -> None:
            taker.transfer.abort()

        async with kit.engine(serve) as engine, kit.client() as client:
            takers = [kit.Taker(abort if number % 2 else None) for number in range(8)]
            for taker in takers:
                taker.transfer = client.start(kit.call(engine.url), taker)
            await kit.until(lambda: engine.open == 8)
            together.set()
            ends = [await taker.end() for taker in takers]
            assert ends == [TransferEnd.COMPLETE, TransferEnd.ABORTED] * 4

    asyncio.run(scenario())


def test_the_end_of_one_call_may_abort_another_that_has_just_ended_and_start_a_third(
    kit: Any,
) -> None:
    async def scenario() -> None:
        together = asyncio.Event()

        async def serve(reader: Any, writer: Any) -> None:
            while not reader.at_eof():
                await kit.read_request(reader)
                await together.wait()
                writer.write(kit.answer())

        async with kit.engine(serve) as engine, kit.client() as client:
            takers = [kit.Taker() for _ in range(8)]
            third = kit.Taker()

            class AbortsTheRest(kit.Taker):  # type: ignore[misc]
                def on_end(self, end: TransferEnd, detail: str) -> None:
                    super().on_end(end, detail)
                    for other in takers:
                        if other is not self:
                            other.transfer.abort()
                    client.start(kit.call(engine.url), third)

            takers[3] = AbortsTheRest()
            for taker in takers:
                taker.transfer = client.start(kit.call(engine.url), taker)
            await kit.until(lambda: engine.open == 8)
            together.set()
            await asyncio.sleep(0)
            time.sleep(0.02)  # noqa: ASYNC251 - so that all answers are read in one turn
            ends = [await taker.end() for taker in takers]
            assert ends[3] is TransferEnd.COMPLETE
            assert await third.end() is TransferEnd.COMPLETE
            assert len(client.under_way) == 0
            assert len(client._free_list) == len(client._curls)

    asyncio.run(scenario())


def test_close_aborts_everything_and_later_calls_end_at_once(kit: Any) -> None:
    async def scenario() -> None:
        async with (
            kit.engine(lambda r, w: stream_forever(kit, r, w)) as engine,
            kit.client() as client,
        ):
            takers = [kit.Taker() for _ in range(5)]
            for taker in takers:
                client.start(kit.call(engine.url), taker)
            await kit.until(lambda: engine.open == 5)
            client.close()
            assert [taker.ends[0][0] for taker in takers] == [TransferEnd.ABORTED] * 5
            await kit.until(lambda: engine.open == 0, 0.1)
            client.close()
            late = kit.Taker()
            client.start(kit.call(engine.url), late)
            assert not late.ends
            assert await late.end() is TransferEnd.ABORTED

    asyncio.run(scenario())
