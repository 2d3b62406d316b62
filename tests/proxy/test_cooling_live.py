"""Slots of those who left: taken until the engine has noticed, by the engine's own count."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import pytest
from doorway import CHAT, Doorway, doorway, with_length
from wire import chat

ROUNDS = 25


async def all_leave_at_once(door: Doorway, *, stream: bool) -> None:
    """Two leave in one turn of the loop while two wait; then those two do, and nobody is left."""
    wires = [await door.begin(CHAT, chat(stream=stream)) for _ in range(4)]
    await door.until(lambda: door.stats()["in_flight"] == 2 and door.gate.queued == 2)
    started = door.stats()["started"]
    for wire in wires[:2]:
        wire.reset()
    await door.until(lambda: door.stats()["started"] == started + 2)
    for wire in wires[2:]:
        wire.reset()
    await door.at_rest()


@pytest.mark.parametrize("stream", [False, True], ids=["silent", "streaming"])
@pytest.mark.parametrize("notice_ms", [0, 8])
def test_the_engine_never_holds_more_than_the_cap_when_several_leave_at_once(
    notice_ms: int, stream: bool
) -> None:
    async def scenario() -> None:
        engine = {"hold": 60, "notice_ms": notice_ms}
        if stream:
            engine = {"tokens": 10_000, "gap_ms": 5, "notice_ms": notice_ms}
        async with doorway(engine, cap=2, queue=2) as door:
            for _ in range(ROUNDS):
                await all_leave_at_once(door, stream=stream)
            assert door.stats()["aborted"] == 4 * ROUNDS
            assert door.stats()["max_concurrent"] == 2

    asyncio.run(scenario())


def test_without_cooling_it_does() -> None:
    """The test above can fail: with a limit of 0 a slot is given on at once, as it was before."""

    async def scenario() -> None:
        engine = {"hold": 60, "notice_ms": 8}
        async with doorway(engine, cap=2, queue=2, upstream="cooling_limit_s = 0") as door:
            await all_leave_at_once(door, stream=False)
            assert door.stats()["max_concurrent"] == 4

    asyncio.run(scenario())


def test_a_slot_cools_visibly_and_comes_free_when_the_engine_lets_go() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 60, "notice_ms": 300}, cap=1, queue=1) as door:
            wire = await door.begin(CHAT, chat())
            await door.until(lambda: door.stats()["started"] == 1)
            waiting = await door.begin(CHAT, chat(hold_s=0))
            await door.inside(1, 1)
            began_s = monotonic()
            wire.leave()
            await door.inside(0, 1)
            status = json.loads((await door.admin("/admin/status")).body)["upstreams"]["reasoning"]
            assert (status["in_flight"], status["cooling"], status["queued"]) == (0, 1, 1)
            metrics = (await door.admin("/metrics")).body.decode()
            assert 'frontdoor_cooling{upstream="reasoning"} 1.0' in metrics
            assert (await waiting.reply()).status == 200
            assert 0.3 <= monotonic() - began_s < 1.5
            assert door.stats()["max_concurrent"] == 1
            assert door.outcomes == ["client_gone_streaming", "served"]

    asyncio.run(scenario())


def test_an_engine_that_gives_no_sign_keeps_the_slot_for_the_limit_and_no_longer() -> None:
    async def scenario() -> None:
        engine = {"hold": 60, "notice_ms": 60_000}
        # It is asked for no length: libcurl would send a request again that dies on its connection.
        settings = {"model": with_length(""), "upstream": "cooling_limit_s = 0.3"}
        async with doorway(engine, cap=1, queue=1, **settings) as door:
            wire = await door.begin(CHAT, chat())
            await door.until(lambda: door.stats()["started"] == 1)
            await door.begin(CHAT, chat())
            await door.inside(1, 1)
            began_s = monotonic()
            wire.leave()
            await door.until(lambda: door.stats()["started"] == 2)
            assert 0.3 <= monotonic() - began_s < 1.0
            assert (door.gate.in_flight, door.gate.cooling) == (1, 0)
            door.reasoning._inference.on_death(abrupt=True)  # for the rest that comes after

    asyncio.run(scenario())


def test_an_engine_that_was_silent_for_too_long_cools_as_one_whose_client_left() -> None:
    async def scenario() -> None:
        engine = {"hold": 60, "notice_ms": 300}
        async with doorway(engine, cap=1, queue=1, read_timeout_s=0.1) as door:
            wire = await door.begin(CHAT, chat())
            assert (await wire.reply()).status == 504
            assert (door.gate.in_flight, door.gate.cooling) == (0, 1)
            await door.at_rest()

    asyncio.run(scenario())


def test_a_request_that_nobody_leaves_does_not_cool(monkeypatch: pytest.MonkeyPatch) -> None:
    """It pays nothing: no socket is duplicated, no follower made."""

    async def scenario() -> None:
        async with doorway({"tokens": 3}, cap=2, queue=2) as door:
            monkeypatch.setattr("os.dup", None)
            for stream in (False, True):
                for _ in range(3):
                    assert (await door.call(CHAT, chat(stream=stream))).status == 200
            assert door.outcomes == ["served"] * 6

    asyncio.run(scenario())


def test_a_request_that_was_not_sent_yet_does_not_cool() -> None:
    """Connected, and still in the middle of TLS: nothing of the request has reached anybody."""

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            url = f"https://127.0.0.1:{mute.getsockname()[1]}"
            async with doorway(url=url, cap=1, queue=0) as door:
                wire = await door.begin(CHAT, chat())
                await door.inside(1)
                connection, _ = mute.accept()
                with connection:
                    wire.leave()
                    await door.inside(0)
                    assert door.gate.cooling == 0

    asyncio.run(scenario())


class Enough(Exception):  # noqa: N818 - it is no error
    """The scene is over, whatever is still inside."""


@pytest.mark.parametrize("left_by", ["client", "drain"])
def test_a_front_door_that_goes_away_waits_for_no_engine(left_by: str) -> None:
    began_s = 0.0

    async def scenario() -> None:
        nonlocal began_s
        settings = {"drain_timeout_s": 0.2, "upstream": "cooling_limit_s = 3600"}
        async with doorway({"hold": 60, "notice_ms": 60_000}, **settings) as door:
            wire = await door.begin(CHAT, chat())
            await door.until(lambda: door.stats()["started"] == 1)
            if left_by == "client":
                wire.leave()
                await door.until(lambda: door.gate.cooling == 1)
            began_s = monotonic()
            await door.app.drain()
            assert door.gate.cooling == 1
            raise Enough

    with pytest.raises(Enough):
        asyncio.run(scenario())
    assert monotonic() - began_s < 1.5


class Deaf:
    """An engine that never closes a connection, and tells how many requests it runs."""

    def __init__(self, answer: bytes = b"") -> None:
        self.runs = 0
        self.asked = 0
        self.calls = 0
        self._answer = answer
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = b""
                if head.startswith(b"GET /metrics"):
                    self.asked += 1
                    body = (
                        f'vllm:num_requests_running{{engine="0"}} {self.runs}\n'
                        f'vllm:num_requests_waiting{{engine="0"}} 0\n'
                    ).encode()
                elif head.startswith(b"POST"):
                    length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
                    await reader.readexactly(int(length))
                    self.runs += 1
                    self.calls += 1
                    writer.write(self._answer)
                    continue
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def before_a_deaf_one(
    answer: bytes = b"", **settings: Any
) -> AsyncIterator[tuple[Doorway, Deaf]]:
    engine = Deaf(answer)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with doorway(url=url, **settings) as door:
            yield door, engine
            engine.close()
    finally:
        engine.close()
        server.close()


@pytest.mark.slow
def test_slots_come_free_by_the_engines_count_where_it_gives_no_other_sign() -> None:
    async def scenario() -> None:
        settings = {"cap": 2, "queue": 2, "upstream": "cooling_limit_s = 60"}
        async with before_a_deaf_one(**settings) as (door, engine):
            leaves, stays = await door.begin(CHAT, chat()), await door.begin(CHAT, chat())
            await door.until(lambda: engine.runs == 2)
            waits = await door.begin(CHAT, chat())
            await door.inside(2, 1)
            leaves.leave()
            await door.until(lambda: engine.asked >= 4)
            assert (door.gate.in_flight, door.gate.cooling, door.gate.queued) == (1, 1, 1)
            engine.runs -= 1
            await door.until(lambda: engine.calls == 3)
            assert (door.gate.in_flight, door.gate.cooling, door.gate.queued) == (2, 0, 0)
            for wire in (stays, waits):
                wire.leave()

    asyncio.run(scenario())


@pytest.mark.parametrize("stays", [True, False], ids=["not closed by it", "closed by it"])
def test_an_answer_that_cannot_be_read_cools_unless_the_engine_itself_has_closed(
    stays: bool,
) -> None:
    async def scenario() -> None:
        garbage = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n"
        settings = {"cap": 1, "queue": 1, "upstream": "cooling_limit_s = 0.5"}
        async with before_a_deaf_one(garbage if stays else b"", **settings) as (door, engine):
            wire = await door.begin(CHAT, chat())
            await door.until(lambda: engine.calls)
            began_s = monotonic()
            if not stays:
                engine.close()
            assert (await wire.reply()).status == 502
            if stays:
                assert door.gate.cooling == 1
                await door.until(lambda: not door.gate.cooling)
                assert monotonic() - began_s > 0.4
            else:
                await door.until(lambda: not door.gate.cooling)
            assert door.gate.in_flight == 0

    asyncio.run(scenario())
