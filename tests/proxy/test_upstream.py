"""Calls to engines that go well: what is sent, what comes back, on how many connections."""

import asyncio
import gzip
import sys
from typing import Any

import pytest
from stopwatch import Stopwatch

from tornado_frontdoor.proxy.curl import handle as upstream_handle
from tornado_frontdoor.proxy.curl.client import TransferEnd, UpstreamFailed


async def serve_ok(kit: Any, reader: Any, writer: Any) -> None:
    while not reader.at_eof():
        await kit.read_request(reader)
        writer.write(kit.answer())


def test_requests_one_after_another_share_one_connection(kit: Any) -> None:
    async def scenario() -> None:
        async with (
            kit.engine(lambda r, w: serve_ok(kit, r, w)) as engine,
            kit.client() as client,
        ):
            for _ in range(20):
                taker = kit.Taker()
                client.start(kit.call(engine.url), taker)
                assert await taker.end() is TransferEnd.COMPLETE
                assert (taker.status, taker.body) == (200, b"ok")
            assert engine.connections == 1
            assert len(client._curls) == 1

    asyncio.run(scenario())


def test_an_idle_connection_is_not_reused_when_it_is_too_old(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_handle, "MAX_IDLE_S", 1)

    async def scenario() -> None:
        async with (
            kit.engine(lambda r, w: serve_ok(kit, r, w)) as engine,
            kit.client() as client,
        ):
            for pause_s, connections in ((0.5, 1), (1.3, 1), (0.0, 2)):
                await client.ask("GET", engine.url, timeout_s=5)
                assert engine.connections == connections
                await asyncio.sleep(pause_s)

    asyncio.run(scenario())


def test_a_connection_that_the_engine_closed_while_idle_is_neither_reused_nor_spun_on(
    kit: Any,
) -> None:
    async def serve(reader: Any, writer: Any) -> None:
        await kit.read_request(reader)
        writer.write(kit.answer())

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            await client.ask("GET", engine.url, timeout_s=5)
            await engine.stop()
            wakes = 0
            on_ready = client._on_ready

            def count() -> None:
                nonlocal wakes
                wakes += 1
                on_ready()

            client._loop.add_reader(client._epoll.fileno(), count)
            await kit.until(lambda: wakes == 1)
            await asyncio.sleep(0.05)
            assert wakes == 1
            assert (await client.ask("GET", engine.url, timeout_s=5)).body == b"ok"
            assert engine.connections == 2

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("method", "body", "start", "rest"),
    [
        ("POST", b"abc", b"POST /v1/x?beta=true HTTP/1.1", b"Content-Length: 3"),
        ("POST", b"", b"POST /v1/x?beta=true HTTP/1.1", b"Content-Length: 0"),
        ("PUT", b"abc", b"PUT /v1/x?beta=true HTTP/1.1", b"Content-Length: 3"),
        ("GET", b"", b"GET /v1/x?beta=true HTTP/1.1", b""),
        ("DELETE", b"", b"DELETE /v1/x?beta=true HTTP/1.1", b""),
        ("HEAD", b"", b"HEAD /v1/x?beta=true HTTP/1.1", b""),
    ],
)
def test_exactly_what_the_caller_gave_is_sent(
    kit: Any, method: str, body: bytes, start: bytes, rest: bytes
) -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def serve(reader: Any, writer: Any) -> None:
        while not reader.at_eof():
            seen.append(await kit.read_request(reader))
            head_only = seen[-1][0].startswith(b"HEAD")
            writer.write(kit.answer() if not head_only else b"HTTP/1.1 200 OK\r\n\r\n")

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            headers = [("X-Empty", ""), ("X-Name", "M\xfcller"), ("Content-Length", "7")]
            # The handle was used in another way before: nothing of that may remain.
            await client.ask("POST", engine.url, body=b"12345", timeout_s=5)
            await client.ask("HEAD", engine.url, timeout_s=5)
            await client.ask("PATCH", engine.url, body=b"1", timeout_s=5)
            answer = await client.ask(
                method, f"{engine.url}/v1/x?beta=true", body=body, headers=headers, timeout_s=5
            )
            assert answer.status == 200
            assert len(client._curls) == 1
            head, got = seen[-1]
            assert got == body
            lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
            expected = {start, b"X-Empty:", b"X-Name: M\xfcller", rest} - {b""}
            expected.add(f"Host: 127.0.0.1:{engine.port}".encode())
            assert sorted(lines) == sorted(expected)

    asyncio.run(scenario())


def test_a_compressed_body_and_a_redirect_go_through_as_they_are(kit: Any) -> None:
    packed = gzip.compress(b"hello " * 1000)
    heads: list[bytes] = []

    async def serve(reader: Any, writer: Any) -> None:
        while not reader.at_eof():
            heads.append((await kit.read_request(reader))[0])
            more = ("Content-Encoding: gzip", "Location: /elsewhere", "Set-Cookie: a=b")
            writer.write(kit.answer(packed, "307 Temporary Redirect", *more))

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            for _ in range(2):
                taker = kit.Taker()
                client.start(kit.call(engine.url, headers=[("Accept-Encoding", "gzip")]), taker)
                assert await taker.end() is TransferEnd.COMPLETE
                assert taker.status == 307
                assert bytes(taker.body) == packed
                assert ("Location", "/elsewhere") in taker.headers
            assert len(heads) == 2
            assert b"Accept-Encoding: gzip\r\n" in heads[1]
            assert b"Cookie" not in heads[1]

    asyncio.run(scenario())


def test_proxies_of_the_environment_are_ignored(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)

    async def scenario() -> None:
        async with (
            kit.engine(lambda r, w: serve_ok(kit, r, w)) as engine,
            kit.client() as client,
        ):
            assert (await client.ask("GET", engine.url, timeout_s=5)).body == b"ok"

    asyncio.run(scenario())


def test_interim_heads_are_skipped_and_trailers_ignored(kit: Any) -> None:
    async def serve(reader: Any, writer: Any) -> None:
        await kit.read_request(reader)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.write(b"HTTP/1.1 201 Created\r\nX-A:  one \r\nx-a: two\r\nX-B:\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Trailer: t\r\n\r\n")

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            taker = kit.Taker()
            client.start(kit.call(engine.url), taker)
            assert await taker.end() is TransferEnd.COMPLETE
            assert (taker.heads, taker.status, taker.body) == (1, 201, b"ok")
            framing = ("Transfer-Encoding", "chunked")
            assert taker.headers == [("X-A", "one"), ("x-a", "two"), ("X-B", ""), framing]

    asyncio.run(scenario())


def test_each_event_of_a_stream_comes_as_it_was_sent(kit: Any) -> None:
    events = [b"data: %d\n\n" % number for number in range(5)]

    async def scenario() -> None:
        step = asyncio.Event()

        async def serve(reader: Any, writer: Any) -> None:
            await kit.read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for event in events:
                await step.wait()
                step.clear()
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            writer.write(b"0\r\n\r\n")

        async with kit.engine(serve) as engine, kit.client() as client:
            taker = kit.Taker()
            transfer = client.start(kit.call(engine.url), taker)
            await kit.until(lambda: taker.heads == 1)
            assert not transfer.first_byte
            for number in range(5):
                step.set()
                await kit.until(lambda n=number: taker.chunks == n + 1)
                assert bytes(taker.body) == b"".join(events[: number + 1])
            assert transfer.first_byte
            assert await taker.end() is TransferEnd.COMPLETE

    asyncio.run(scenario())


def test_three_hundred_calls_are_at_the_engine_at_once(kit: Any) -> None:
    async def scenario() -> None:
        everyone = asyncio.Barrier(300)

        async def serve(reader: Any, writer: Any) -> None:
            for _ in range(2):
                await kit.read_request(reader)
                await everyone.wait()
                writer.write(kit.answer())

        async with kit.engine(serve) as engine, kit.client() as client:
            for _ in range(2):
                takers = [kit.Taker() for _ in range(300)]
                for taker in takers:
                    client.start(kit.call(engine.url), taker)
                for taker in takers:
                    assert await taker.end() is TransferEnd.COMPLETE
            assert engine.connections == 300  # none was closed early, all were reused
            assert len(client._curls) == len(client._free_list) == 300

    asyncio.run(scenario())


def test_an_answer_before_the_whole_request_was_sent_is_taken(kit: Any) -> None:
    async def serve(reader: Any, writer: Any) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(kit.answer(b"too large", "413 Content Too Large", "Connection: close"))
        await writer.drain()
        while await reader.read(65536):
            pass

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            taker = kit.Taker()
            client.start(kit.call(engine.url, body=bytes(32 << 20)), taker)
            assert await taker.end() is TransferEnd.COMPLETE
            assert (taker.status, taker.body) == (413, b"too large")

    asyncio.run(scenario())


def test_an_idle_handle_keeps_neither_body_nor_receiver(kit: Any) -> None:
    async def scenario() -> None:
        async with (
            kit.engine(lambda r, w: serve_ok(kit, r, w)) as engine,
            kit.client() as client,
        ):
            body = bytes(1 << 20)
            taker = kit.Taker()
            before = sys.getrefcount(body), sys.getrefcount(taker)
            client.start(kit.call(engine.url, body=body), taker)
            await taker.end()
            assert (sys.getrefcount(body), sys.getrefcount(taker)) == before

    asyncio.run(scenario())


def test_ask_returns_the_whole_answer_and_refuses_a_large_one(kit: Any) -> None:
    async def serve(reader: Any, writer: Any) -> None:
        while not reader.at_eof():
            head, _ = await kit.read_request(reader)
            size = 8 << 20 if b"/large" in head else 100_000
            writer.write(kit.answer(b"x" * size, "503 Service Unavailable"))

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            answer = await client.ask("GET", engine.url, timeout_s=5)
            assert answer.status == 503
            assert answer.body == b"x" * 100_000
            url = f"{engine.url}/large"
            with pytest.raises(UpstreamFailed, match="larger than 99999") as failed:
                await client.ask("GET", url, timeout_s=5, limit_bytes=99_999)
            assert failed.value.end is TransferEnd.BROKEN
            assert len(client.under_way) == 0
            await kit.until(lambda: engine.open == 0)

    asyncio.run(scenario())


def test_ask_ends_after_its_total_time_however_lively_the_engine(kit: Any) -> None:
    async def serve(reader: Any, writer: Any) -> None:
        await kit.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not (reader.at_eof() or writer.is_closing()):
            writer.write(b".")
            await asyncio.sleep(0.01)

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            watch = Stopwatch()
            with pytest.raises(UpstreamFailed) as failed:
                await client.ask("GET", engine.url, timeout_s=0.2)
            assert failed.value.end is TransferEnd.SILENT
            assert watch.wall_s > 0.19
            assert watch.own_s < 1
            await kit.until(lambda: engine.open == 0)

    asyncio.run(scenario())


def test_cancelling_an_ask_closes_its_connection(kit: Any) -> None:
    async def serve(reader: Any, _writer: Any) -> None:
        await kit.read_request(reader)

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            task = asyncio.ensure_future(client.ask("GET", engine.url, timeout_s=5))
            await kit.until(lambda: engine.open == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(client.under_way) == 0
            await kit.until(lambda: engine.open == 0, 0.1)

    asyncio.run(scenario())


class Stored:
    """A body that is not in memory."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.size_bytes = len(body)
        self.gone_from = len(body)

    def read(self, offset: int, most: int) -> bytes:
        return self.body[offset : min(offset + most, self.gone_from)]


def test_a_body_that_is_not_in_memory_is_sent_as_one_that_is(kit: Any) -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def serve(reader: Any, writer: Any) -> None:
        while not reader.at_eof():
            seen.append(await kit.read_request(reader))
            writer.write(kit.answer())

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            stored = Stored(bytes(range(256)) * 10_000)
            bodies = [b"a", stored, b"", stored, stored, b"b" * 70_000]
            for body in bodies:
                taker = kit.Taker()
                client.start(kit.call(engine.url, method="POST", body=body), taker)
                assert await taker.end() is TransferEnd.COMPLETE
            await client.ask("GET", engine.url, timeout_s=5)
            assert len(client._curls) == 1
            assert engine.connections == 1
            sent = [body.body if isinstance(body, Stored) else body for body in bodies]
            assert [body for _, body in seen] == [*sent, b""]
            heads = [head.lower() for head, _ in seen]
            assert [head.split(b" ")[0] for head in heads] == [b"post"] * 6 + [b"get"]
            assert not any(b"expect" in head or b"chunked" in head for head in heads)
            assert len({len(head.split(b"\r\n")) for head in heads[:6]}) == 1

    asyncio.run(scenario())


def test_a_body_that_is_gone_while_it_is_sent_breaks_its_call_and_no_other(kit: Any) -> None:
    async def scenario() -> None:
        async with (
            kit.engine(lambda r, w: serve_ok(kit, r, w)) as engine,
            kit.client() as client,
        ):
            stored = Stored(b"x" * 100_000)
            stored.gone_from = 50_000
            taker = kit.Taker()
            client.start(kit.call(engine.url, method="POST", body=stored), taker)
            assert await taker.end() is TransferEnd.BROKEN
            assert (await client.ask("POST", engine.url, timeout_s=5, body=b"x")).body == b"ok"

    asyncio.run(scenario())


def test_a_stored_body_goes_out_once_more_from_its_beginning(kit: Any) -> None:
    """Where a connection that is reused turns out to be closed."""
    seen: list[bytes] = []

    async def serve(reader: Any, writer: Any) -> None:
        seen.append((await kit.read_request(reader))[1])
        writer.write(kit.answer())
        if len(seen) == 1:
            await reader.readexactly(100_000)
            writer.transport.abort()
        await serve_ok(kit, reader, writer)

    async def scenario() -> None:
        async with kit.engine(serve) as engine, kit.client() as client:
            await client.ask("GET", engine.url, timeout_s=5)
            stored = Stored(bytes(range(256)) * 10_000)
            taker = kit.Taker()
            client.start(kit.call(engine.url, method="POST", body=stored), taker)
            assert await taker.end() is TransferEnd.COMPLETE
            assert seen == [b"", stored.body]

    asyncio.run(scenario())
