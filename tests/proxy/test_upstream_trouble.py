"""Engines that refuse, break, lie and die: every such call ends once, as what it was."""

import asyncio
import random
import socket
import struct
from typing import Any

import pytest

from tornado_frontdoor.proxy.curl import handle as upstream_handle
from tornado_frontdoor.proxy.curl.client import TransferEnd, UpstreamFailed


def reset(writer: Any) -> None:
    """Close with a RST."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


BROKEN = {
    "closed without an answer": b"",
    "head cut": b"HTTP/1.1 200 OK\r\nContent-Le",
    "length cut": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345",
    "length cut before the body": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n",
    "chunk cut": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n123",
    "last chunk missing": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n123\r\n",
    "bad chunk size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n123\r\n",
    "a blank line first": b"\nnothing of HTTP",
    "not HTTP": b"\x15\x03\x01\x00\x02\x02\x50",
    "SSH": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "an event without a head": b"data: {}\n\n",
    "interim head only": b"HTTP/1.1 100 Continue\r\n\r\n",
    "switched protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    "endless header": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1_000_000,
}


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("name", BROKEN)
def test_an_answer_that_is_not_whole_is_broken(kit: Any, name: str, how: str) -> None:
    async def serve(reader: Any, writer: Any) -> None:
        await kit.read_request(reader)
        writer.write(BROKEN[name])
        await writer.drain()
        if how == "reset":
            reset(writer)
        else:
            writer.close()

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            taker = kit.Taker()
            client.start(kit.call(engine.url), taker)
            assert await taker.end() is TransferEnd.BROKEN
            assert taker.ends[0][1]  # says why
            assert engine.connections == 1  # a fresh connection that breaks is not tried again
            assert len(client._free_list) == 1

    asyncio.run(scenario())


def test_a_truncated_stream_is_broken_also_when_it_breaks_while_paused(kit: Any) -> None:
    async def serve(reader: Any, writer: Any) -> None:
        await kit.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 500_000)
        await writer.drain()
        writer.close()

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:

            def pause_at_first(what: str, taker: Any) -> None:
                taker.willing = not (what == "data" and taker.chunks == 1)

            taker = kit.Taker(pause_at_first)
            transfer = client.start(kit.call(engine.url), taker)
            await kit.until(lambda: transfer.held)
            transfer.resume()
            assert await taker.end() is TransferEnd.BROKEN
            assert taker.size == 500_000

    asyncio.run(scenario())


def test_a_refused_connection_and_an_unknown_host_are_told_apart_from_broken(kit: Any) -> None:
    async def scenario() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            urls = [
                f"http://127.0.0.1:{unused.getsockname()[1]}/",
                "http://nobody.invalid/",
                "http://[::1/",
            ]
            async with kit.client() as client:
                for url in urls:
                    taker = kit.Taker()
                    client.start(kit.call(url), taker)
                    assert not taker.ends
                    assert await taker.end() is TransferEnd.CONNECT_FAILED
                    with pytest.raises(UpstreamFailed):
                        await client.ask("GET", url, timeout_s=5)

    asyncio.run(scenario())


@pytest.mark.parametrize("headers", [[("A", "b\r\nC: d")], [("A\n", "b")], [("A", "\u20ac")]])
def test_a_header_that_cannot_be_sent_ends_the_call_on_a_later_turn(
    kit: Any, headers: list[tuple[str, str]]
) -> None:
    async def scenario() -> None:
        async with kit.client() as client:
            taker = kit.Taker()
            client.start(kit.call("http://127.0.0.1:9/", headers=headers), taker)
            assert not taker.ends
            assert await taker.end() is TransferEnd.UNSENDABLE
            aborted = kit.Taker()
            client.start(kit.call("http://127.0.0.1:9/", headers=headers), aborted).abort()
            assert await aborted.end() is TransferEnd.ABORTED
            assert len(client._free_list) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_reused_connection_that_turns_out_dead_costs_one_silent_retry(kit: Any, how: str) -> None:
    requests: list[bytes] = []

    async def scenario() -> None:
        async def serve(reader: Any, writer: Any) -> None:
            requests.append((await kit.read_request(reader))[1])
            writer.write(kit.answer())
            if engine.connections > 1:
                return
            requests.append((await kit.read_request(reader))[1])  # and dies as it arrives
            if how == "reset":
                reset(writer)
            else:
                writer.close()

        async with kit.engine(serve) as engine, kit.client() as client:
            for number in range(2):
                taker = kit.Taker()
                client.start(kit.call(engine.url, body=b"%d" % number), taker)
                assert await taker.end() is TransferEnd.COMPLETE
                assert taker.body == b"ok"
                assert taker.heads == 1
            assert requests == [b"0", b"1", b"1"]
            assert engine.connections == 2

    asyncio.run(scenario())


def test_a_reused_connection_that_breaks_after_long_work_is_not_tried_again(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_handle, "STALE_WITHIN_S", 0.05)
    requests = 0

    async def serve(reader: Any, writer: Any) -> None:
        nonlocal requests
        await kit.read_request(reader)
        requests += 1
        writer.write(kit.answer())
        await kit.read_request(reader)
        requests += 1
        await asyncio.sleep(0.2)
        writer.close()

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            await client.ask("POST", engine.url, body=b"{}", timeout_s=5)
            taker = kit.Taker()
            client.start(kit.call(engine.url), taker)
            assert await taker.end() is TransferEnd.BROKEN
            assert taker.ends[0][1] == "the connection broke before an answer"
            assert requests == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("where", ["on_head", "on_data", "on_end"])
def test_a_receiver_that_raises_loses_its_call_and_nothing_else(
    kit: Any, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve(reader: Any, writer: Any) -> None:
        while not reader.at_eof():
            await kit.read_request(reader)
            writer.write(kit.answer())

    def fail(*_arguments: object) -> bool:
        raise RuntimeError("a bug of ours")

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            taker = kit.Taker()
            setattr(taker, where, fail)
            client.start(kit.call(engine.url), taker)
            if where == "on_end":
                await kit.until(lambda: len(client.under_way) == 0)
            else:
                assert await taker.end() is TransferEnd.ABORTED
            assert "a bug of ours" in caplog.text
            assert len(client._free_list) == len(client._curls)
            assert (await client.ask("GET", engine.url, timeout_s=5)).body == b"ok"

    asyncio.run(scenario())


WAYS = ("whole", "stream", "cut", "reset", "silent", "garbage")


async def misbehave(kit: Any, way: str, reader: Any, writer: Any) -> None:
    if way == "whole":
        writer.write(kit.answer(b"x" * 20_000))
    elif way == "stream":
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(20):
            writer.write(b"400\r\n" + b"y" * 1024 + b"\r\n")
            await asyncio.sleep(0.001)
        writer.write(b"0\r\n\r\n")
    elif way == "cut":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1")
        writer.close()
    elif way == "reset":
        reset(writer)
    elif way == "garbage":
        writer.write(b"\x00\xff\r\n\r\n")
    else:
        await reader.read()


class Storm:
    """Calls that are paused, resumed and aborted at random, from within and from without."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.loop = asyncio.get_running_loop()
        self.takers: list[tuple[str, Any]] = []

    def hook(self, _what: str, taker: Any) -> None:
        choice = self.rng.random()
        if choice < 0.03:
            taker.transfer.abort()
        elif choice < 0.2:
            taker.willing = False
            self.loop.call_later(self.rng.random() * 0.02, self.resume, taker)

    def resume(self, taker: Any) -> None:
        taker.willing = True
        taker.transfer.resume()

    async def blow(self, kit: Any, client: Any, url: str) -> None:
        for _ in range(400):
            way = self.rng.choice(WAYS)
            # Only who is silent by intent runs into a limit: a busy machine pauses the others too.
            limit_s = 0.3 if way == "silent" else 8.0
            limits = {"read_timeout_s": limit_s, "chunk_timeout_s": limit_s}
            taker = kit.Taker(self.hook)
            taker.transfer = client.start(kit.call(f"{url}/{way}", **limits), taker)
            self.takers.append((way, taker))
            if self.rng.random() < 0.3:
                self.loop.call_later(self.rng.random() * 0.1, taker.transfer.abort)
            if self.rng.random() < 0.2:
                await asyncio.sleep(self.rng.random() * 0.01)


@pytest.mark.parametrize("seed", range(4))
def test_a_storm_of_aborts_and_failures_leaks_no_handle_and_no_connection(
    kit: Any, seed: int
) -> None:
    expected = {"whole": "COMPLETE", "stream": "COMPLETE", "silent": "SILENT"}

    async def serve(reader: Any, writer: Any) -> None:
        while not (reader.at_eof() or writer.is_closing()):
            head, _ = await kit.read_request(reader)
            await misbehave(kit, head.split(b" ")[1].decode()[1:], reader, writer)

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            storm = Storm(seed)
            await storm.blow(kit, client, engine.url)
            for way, taker in storm.takers:
                end = await taker.end()
                assert end.name in ("ABORTED", expected.get(way, "BROKEN"))
                assert end.name != "COMPLETE" or taker.size in (20_000, 20 * 1024)
            assert len(client.under_way) == 0
            assert len(client._free_list) == len(set(client._free_list)) == len(client._curls)
            assert not client._deferred
            answer = await client.ask("GET", f"{engine.url}/whole", timeout_s=5)
            assert len(answer.body) == 20_000
            client.close()
            await kit.until(lambda: engine.open == 0)

    asyncio.run(scenario())


def test_a_url_that_is_refused_twice_never_goes_where_its_handle_went_before(kit: Any) -> None:
    async def serve(reader: Any, writer: Any) -> None:
        while not reader.at_eof():
            await kit.read_request(reader)
            writer.write(kit.answer())

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            for url, end in (
                (engine.url, TransferEnd.COMPLETE),
                ("http://\u20ac/", TransferEnd.CONNECT_FAILED),
                ("http://\u20ac/", TransferEnd.CONNECT_FAILED),
                (engine.url, TransferEnd.COMPLETE),
            ):
                taker = kit.Taker()
                client.start(kit.call(url), taker)
                assert await taker.end() is end
            assert len(client._curls) == 1

    asyncio.run(scenario())
