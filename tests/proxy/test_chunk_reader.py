"""Chunks read past libcurl: the same answers, ends and connections as by libcurl alone."""

import asyncio
import gc
import os
from typing import Any

import pycurl
import pytest
from wire import CHUNKED_HEAD as HEAD
from wire import LAST_CHUNK as LAST
from wire import framed

from tornado_frontdoor.proxy.curl.chunk_reader import LOOK_BYTES, MOST_IN_VAIN, ChunkReader
from tornado_frontdoor.proxy.curl.client import TransferEnd


def test_all_but_the_ends_of_a_stream_is_read_past_libcurl_and_its_connection_is_kept(
    kit: Any,
) -> None:
    pieces = [b"data: %d\n\n" % number * (1 + number % 40) for number in range(100)]

    async def serve(reader: Any, writer: Any) -> None:
        while not reader.at_eof():
            await kit.read_request(reader)
            writer.write(HEAD)
            for number, piece in enumerate(pieces):
                await kit.until(lambda sent=number: not takers or takers[-1].chunks >= sent)
                writer.write(framed(piece))
            writer.write(LAST)

    takers: list[Any] = []

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            for _ in range(3):
                taker = await kit.taken(client, engine.url, takers)
                assert taker.ends == [(TransferEnd.COMPLETE, "")]
                assert bytes(taker.body) == b"".join(pieces)
                # The first may come with the head, the last with the end: those are libcurl's.
                assert taker.past_libcurl >= len(pieces) - 2
                assert not client._readers
            assert engine.connections == 1

    asyncio.run(scenario())


NOT_READ_PAST = {
    "told not to": (HEAD, framed, {"streams": False}),
    "a length": (b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n", framed, {}),
    "an end by closing": (b"HTTP/1.1 200 OK\r\n\r\n", framed, {}),
    "an extension": (HEAD, lambda piece: b"%x;a=b\r\n%b\r\n" % (len(piece), piece), {}),
    "zeros before": (HEAD, lambda piece: b"0%x\r\n%b\r\n" % (len(piece), piece), {}),
}


@pytest.mark.parametrize("why", NOT_READ_PAST)
def test_what_is_no_plain_chunk_is_left_to_libcurl(kit: Any, why: str) -> None:
    head, frame, changes = NOT_READ_PAST[why]
    piece = b"5\r\nhello\r\n" * 9  # looks like chunks, wherever it is cut
    decoded = b"chunked" in head
    takers: list[Any] = []

    async def serve(reader: Any, writer: Any) -> None:
        await kit.read_request(reader)
        writer.write(head)
        await kit.until(lambda: takers[0].heads == 1)
        for number in range(20):
            writer.write(frame(piece))
            size = len(piece if decoded else frame(piece)) * (number + 1)
            await kit.until(lambda size=size: takers[0].size >= size)
        writer.write(LAST if decoded else b"")
        writer.close()

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            taker = await kit.taken(client, engine.url, takers, **changes)
            assert taker.past_libcurl == 0
            assert bytes(taker.body) == (piece if decoded else frame(piece)) * 20

    asyncio.run(scenario())


@pytest.mark.parametrize("begun", [b"1e\r\n", b"1e\r\n5\r\nhello\r\n"])
def test_a_piece_that_looks_like_chunks_is_a_piece(kit: Any, begun: bytes) -> None:
    like_one = b"5\r\nhello\r\n"
    takers: list[Any] = []

    async def serve(reader: Any, writer: Any) -> None:
        await kit.read_request(reader)
        writer.write(HEAD + begun)
        await kit.until(lambda: takers[0].heads == 1)
        while takers[0].size < 2 * len(like_one):
            size = takers[0].size + len(like_one)
            writer.write(like_one)
            await kit.until(lambda size=size: takers[0].size >= size)
        if takers[0].size < 3 * len(like_one):
            writer.write(like_one)
        await kit.until(lambda: takers[0].size == 3 * len(like_one))
        writer.write(b"\r\n")
        await asyncio.sleep(0.01)
        writer.write(LAST)

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            taker = await kit.taken(client, engine.url, takers)
            assert taker.ends[0][0] is TransferEnd.COMPLETE
            assert bytes(taker.body) == like_one * 3

    asyncio.run(scenario())


def test_nothing_overtakes_what_libcurl_held_back(kit: Any) -> None:
    """A resumed stream has something to read in the very turn in which it was resumed."""
    writers: list[Any] = []

    async def serve(reader: Any, writer: Any) -> None:
        await kit.read_request(reader)
        writers.append(writer)
        writer.write(HEAD)

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:

            def hold_up(what: str, taker: Any) -> None:
                if what == "data" and taker.chunks == 1:
                    taker.willing = False

            def help_on(what: str, _: Any) -> None:
                if what == "data":
                    held.willing = True
                    held.transfer.resume()

            held, helper = kit.Taker(hold_up), kit.Taker(help_on)
            for taker in (held, helper):
                taker.transfer = client.start(kit.call(engine.url, streams=True), taker)
                await kit.until(lambda taker=taker: taker.heads == 1)
            # More than is looked at makes libcurl read both, and hold the second one back.
            writers[0].write(framed(b"1 " * 2500) + framed(b"2 " * 2500))
            await kit.until(lambda: held.transfer.held)
            writers[1].write(framed(b"x" * 100))  # looked at first, and resumes the other
            writers[0].write(framed(b"3 " * 50))
            await kit.until(lambda: held.chunks == 3)
            writers[0].write(framed(b"4 " * 50) + LAST)
            assert await held.end() is TransferEnd.COMPLETE
            assert bytes(held.body).split() == [
                *[b"1"] * 2500,
                *[b"2"] * 2500,
                *[b"3"] * 50,
                *[b"4"] * 50,
            ]
            helper.transfer.abort()

    asyncio.run(scenario())


def test_chunks_that_come_together_are_handed_on_one_by_one_and_no_more_than_wanted(
    kit: Any,
) -> None:
    pieces = [b"%d " % number * 30 for number in range(12)]
    writers: list[Any] = []

    async def serve(reader: Any, writer: Any) -> None:
        await kit.read_request(reader)
        writers.append(writer)
        writer.write(HEAD)

    def stop_at_third(what: str, taker: Any) -> None:
        if what == "data":
            came.append(bytes(taker.body)[sum(map(len, came)) :])
            taker.willing = len(came) != 3

    came: list[bytes] = []

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            taker = kit.Taker(stop_at_third)
            taker.transfer = client.start(kit.call(engine.url, streams=True), taker)
            await kit.until(lambda: taker.heads == 1)
            writers[0].write(b"".join(map(framed, pieces)) + b"3\r\nen")
            await kit.until(lambda: taker.transfer.paused)
            await asyncio.sleep(0.01)
            assert came == pieces[:3]
            assert taker.past_libcurl == 3
            taker.willing = True
            taker.transfer.resume()
            writers[0].write(b"d\r\n" + LAST)
            assert await taker.end() is TransferEnd.COMPLETE
            assert bytes(taker.body) == b"".join(pieces) + b"end"

    asyncio.run(scenario())


@pytest.mark.parametrize("odd", ["long", "in parts"])
def test_an_answer_whose_chunks_are_libcurls_all_the_same_is_left_to_it(kit: Any, odd: str) -> None:
    piece = b"x" * (LOOK_BYTES if odd == "long" else 100)
    takers: list[Any] = []
    left_after: list[int] = []

    async def serve(reader: Any, writer: Any) -> None:
        await kit.read_request(reader)
        writer.write(HEAD)
        await kit.until(lambda: takers[0].heads == 1)
        for number in range(30):
            raw = framed(piece)
            writer.write(raw[:50])
            if odd == "in parts":
                size = number * len(piece) + 50 - raw.index(b"x")
                await kit.until(lambda size=size: takers[0].size >= size)
            writer.write(raw[50:])
            await kit.until(lambda number=number: takers[0].size >= (number + 1) * len(piece))
            await asyncio.sleep(0.001)
            if not clients[0]._readers and takers[0].transfer.reader is None:
                left_after.append(number + 1)
        writer.write(LAST)

    clients: list[Any] = []

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            clients.append(client)
            taker = await kit.taken(client, engine.url, takers)
            assert taker.ends[0][0] is TransferEnd.COMPLETE
            assert bytes(taker.body) == piece * 30
            assert taker.past_libcurl == 0
            assert 0 < left_after[0] <= MOST_IN_VAIN + 2

    asyncio.run(scenario())


def test_a_large_request_is_sent_before_libcurl_tells_anything(kit: Any) -> None:
    body = os.urandom(8 << 20)
    told: list[int] = []

    async def serve(reader: Any, writer: Any) -> None:
        while b"x-leave" not in (await reader.readuntil(b"\r\n\r\n")).lower():
            assert await reader.readexactly(len(body)) == body
            writer.write(HEAD)
            await kit.until(lambda: takers[-1].heads == 1)
            for number in range(20):
                await kit.until(lambda number=number: takers[-1].chunks >= number)
                writer.write(framed(b"data"))
            writer.write(LAST)

    takers: list[Any] = []

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            takers.append(kit.Taker())
            call = kit.call(engine.url, body=body, streams=True, headers=[("X-Leave", "1")])
            taker = takers[-1]
            taker.transfer = client.start(call, taker)
            await kit.until(lambda: bool(client._readers.sending))
            taker.transfer.abort()
            assert not client._readers.sending
            handle = client._free_list[-1]
            take_note = handle._take_note

            def noting(kind: int, raw: bytes) -> None:
                told.append(kind)
                take_note(kind, raw)

            handle.curl.setopt(pycurl.DEBUGFUNCTION, noting)
            for _ in range(2):
                taker = await kit.taken(client, engine.url, takers, body=body)
                assert taker.ends[0][0] is TransferEnd.COMPLETE
                assert taker.past_libcurl > 10
            assert pycurl.INFOTYPE_DATA_IN in told
            assert pycurl.INFOTYPE_DATA_OUT not in told
            assert pycurl.INFOTYPE_HEADER_OUT not in told

    asyncio.run(scenario())


def test_an_answer_that_is_over_leaves_nothing_for_the_collector(kit: Any) -> None:
    async def serve(reader: Any, writer: Any) -> None:
        await kit.read_request(reader)
        writer.write(HEAD + framed(b"data") + b"ffff\r\n" + b"x" * 60000)
        await kit.until(lambda: takers[-1].size > 60000)
        writer.close()

    takers: list[Any] = []

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            for _ in range(5):
                taker = await kit.taken(client, engine.url, takers)
                assert taker.ends[0][0] is TransferEnd.BROKEN

    gc.collect()
    gc.disable()
    try:
        asyncio.run(scenario())
        assert not [one for one in gc.get_objects() if isinstance(one, ChunkReader)]
    finally:
        gc.enable()


def test_libcurl_tells_each_read_of_a_body_as_it_came_and_before_it_hands_it_on(kit: Any) -> None:
    heard: list[tuple[str, bytes]] = []
    raw = b"5;x=y\r\nhello\r\n3\r\nab"

    async def serve(reader: Any, writer: Any) -> None:
        await kit.read_request(reader)
        writer.write(HEAD + raw)
        await kit.until(lambda: ("piece", b"ab") in heard)
        writer.write(b"c\r\n" + LAST)

    def perform(url: str) -> None:
        curl = pycurl.Curl()
        curl.setopt(pycurl.URL, url)
        curl.setopt(pycurl.VERBOSE, 1)
        curl.setopt(pycurl.HEADERFUNCTION, lambda _: None)
        curl.setopt(pycurl.WRITEFUNCTION, lambda piece: heard.append(("piece", piece)))
        curl.setopt(
            pycurl.DEBUGFUNCTION,
            lambda kind, told: kind == pycurl.INFOTYPE_DATA_IN and heard.append(("read", told)),
        )
        curl.perform()
        curl.close()

    async def scenario() -> None:
        async with kit.engine(serve) as engine:
            await asyncio.to_thread(perform, engine.url)

    asyncio.run(scenario())
    assert heard == [
        ("read", raw),
        ("piece", b"hello"),
        ("piece", b"ab"),
        ("read", b"c\r\n" + LAST),
        ("piece", b"c"),
    ]
