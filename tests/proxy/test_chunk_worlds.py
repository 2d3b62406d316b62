"""Chunks read past libcurl, in worlds drawn from seeds: any answer, and storms of aborts."""

import asyncio
import os
import socket
import struct
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from depth import seeds
from wire import CHUNKED_HEAD as HEAD
from wire import LAST_CHUNK as LAST
from wire import framed

from tornado_frontdoor.proxy.curl.chunk_reader import LOOK_BYTES
from tornado_frontdoor.proxy.curl.client import TransferEnd

SEEDS = seeds("0-39")
RESET = struct.pack("ii", 1, 0)


class Script:
    """What an engine sends, cut anywhere, and how it ends: drawn from a seed."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.seed = seed
        self.end = random.choice(["whole"] * 5 + ["closed", "reset", "garbage", "trailers"])
        odd = random.random() < 0.3
        raw, ends = bytearray(), []
        for number in range(random.randint(0, 30)):
            size = random.choice([1, 15, 16, 90, 255, 256, 300, 4096, LOOK_BYTES, LOOK_BYTES + 1])
            if random.random() < 0.03:
                size = (64 << 10) + random.randint(-9, 9)
            piece = (b"%d.%d\r\n5\r\nhello\r\n" % (seed, number) * size)[:size]
            line = b"%x" % size
            if odd and random.random() < 0.2:
                line = random.choice([line.upper(), b"0" + line, line + b";x=y", b"000%x" % size])
            raw += b"%b\r\n%b\r\n" % (line, piece)
            ends.append(len(HEAD) + len(raw))
        match self.end:
            case "whole":
                raw += LAST
            case "trailers":
                raw += b"0\r\nX-Sum: 1\r\n\r\n"
            case "garbage":
                raw += random.choice([b"zz\r\n", b"\r\n", b"5\nhello", b"-1\r\n", b"5\r\nhello!!"])
            case _:
                del raw[len(raw) - random.randint(0, min(20, len(raw))) :]
        whole = bytes(HEAD + raw)
        cuts = {random.randrange(len(whole)) for _ in range(random.choice([0, 3, 20]))}
        # Most ends of writes are ends of chunks, as with real engines.
        cuts.update(end for end in ends if end < len(whole) and random.random() < 0.8)
        edges = sorted({0, len(whole), *cuts})
        self.writes = [
            (whole[begin:end], random.choice([0, 0, 0.0005, 0.002]))
            for begin, end in pairwise(edges)
        ]
        self.pauses_at = frozenset(random.sample(range(40), random.choice([0, 0, 5, 20])))
        self.connect_timeout_s = random.choice([0.02, 5.0])
        """The short one passes in mid-stream: libcurl's timer then has it read on its own."""

    async def serve(self, writer: Any) -> None:
        for raw, pause_s in self.writes:
            writer.write(raw)
            await asyncio.sleep(pause_s)
        if self.end == "reset":
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        if self.end not in {"whole", "trailers"}:
            writer.close()

    def hook(self, what: str, taker: Any) -> None:
        if what == "data":
            assert taker.willing, "it was told to wait"
            taker.willing = taker.chunks not in self.pauses_at
            if not taker.willing:
                loop = asyncio.get_running_loop()
                loop.call_later((taker.chunks % 4) * 0.0005, self.resume, taker)

    @staticmethod
    def resume(taker: Any) -> None:
        taker.willing = True
        taker.transfer.resume()


@pytest.mark.parametrize("seed", SEEDS)
def test_any_answer_however_cut_comes_and_ends_as_by_libcurl_alone(kit: Any, seed: int) -> None:
    script = Script(seed)
    outcomes: list[tuple[Any, bytes]] = []
    connections: list[int] = []

    async def serve(reader: Any, writer: Any) -> None:
        while not reader.at_eof():
            await kit.read_request(reader)
            await script.serve(writer)
            if writer.is_closing():
                return

    async def scenario(streams: bool) -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            for _ in range(2):
                taker = await kit.taken(
                    client,
                    engine.url,
                    hook=script.hook,
                    streams=streams,
                    connect_timeout_s=script.connect_timeout_s,
                )
                outcomes.append((taker.ends[0][0], bytes(taker.body)))
            connections.append(engine.connections)
            assert not client._readers

    for streams in (False, True):
        asyncio.run(scenario(streams))
    by_libcurl = outcomes[0]
    told = f"replay: FRONTDOOR_SEEDS={seed} {Path(__file__).name}, by {script.end}"
    assert [end for end, _ in outcomes] == [by_libcurl[0]] * 4, told
    if script.end in {"reset", "garbage"}:  # what kernel or libcurl still held goes with it
        longest = max((body for _, body in outcomes), key=len)
        assert all(longest.startswith(body) for _, body in outcomes), told
    else:
        assert [body for _, body in outcomes] == [by_libcurl[1]] * 4, told
    assert connections[0] == connections[1], told


class Storm:
    """Streams of which each sends its own letter, and which abort each other at any moment."""

    MOST = 120

    def __init__(self, kit: Any, client: Any, url: str, seed: int) -> None:
        self.random = Random(seed)
        self.takers: list[Any] = []
        self.kit, self.client, self.url = kit, client, url

    def begin(self, name: bytes) -> None:
        if len(self.takers) < self.MOST:
            taker = self.kit.Taker(self.hook)
            taker.name = name
            self.takers.append(taker)
            call = self.kit.call(self.url, body=name, streams=True)
            taker.transfer = self.client.start(call, taker)

    def hook(self, what: str, taker: Any) -> None:
        if what == "head":
            return
        assert set(bytes(taker.body)) == set(taker.name)
        if self.random.random() < 0.02:
            victim = self.random.choice(self.takers)
            victim.transfer.abort()
            if self.random.random() < 0.5:
                self.begin(victim.name)
        if self.random.random() < 0.005:
            raise RuntimeError("a receiver that fails")


@pytest.mark.parametrize("seed", range(4))
def test_aborts_at_any_moment_leave_no_descriptor_and_mix_no_two_streams(
    kit: Any, seed: int
) -> None:
    async def serve(reader: Any, writer: Any) -> None:
        while not reader.at_eof():
            _, body = await kit.read_request(reader)
            writer.write(HEAD)
            for number in range(30):
                writer.write(framed(body * 9) * (1 + number % 3))
                await asyncio.sleep(0.0005)
            writer.write(LAST)

    raised: list[Any] = []

    async def scenario() -> list[Any]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        async with kit.engine(serve) as engine, kit.client() as client:
            storm = Storm(kit, client, engine.url, seed)
            for number in range(40):
                storm.begin(b"%c" % (65 + number))
            await kit.until(lambda: all(taker.ends for taker in storm.takers))
            assert not client._readers
            assert not client.under_way
            return storm.takers

    before = len(os.listdir("/proc/self/fd"))
    takers = asyncio.run(scenario())
    assert not raised
    assert len(os.listdir("/proc/self/fd")) <= before
    assert any(taker.past_libcurl > 20 for taker in takers)
    whole = [taker for taker in takers if taker.ends[0][0] is TransferEnd.COMPLETE]
    assert all(bytes(taker.body) == taker.name * 9 * 60 for taker in whole)
    rest = [taker.ends[0][0] for taker in takers if taker not in whole]
    assert rest == [TransferEnd.ABORTED] * (len(takers) - len(whole))
