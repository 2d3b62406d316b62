"""A body that takes long to read keeps nobody waiting, and its own request misses nothing."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from doorway import CHAT, Doorway, doorway
from wire import chat, request

MANY = {f"k{number}": number for number in range(80_000)}


def test_others_are_served_while_a_large_body_is_read() -> None:
    async def scenario() -> None:
        async with doorway(max_body_mib=8) as door:
            large = await door.wire()
            large.send(CHAT, json.dumps({**chat(), "x": MANY}).encode())
            await door.until(lambda: door.app.door.being_read)
            served = 0
            wire = await door.wire()
            while door.app.door.being_read:
                wire.send("/health", None, "GET")
                assert (await wire.reply()).status == 200
                served += 1
            assert served > 5  # how long each may take at most: see test_pauses_live.py
            assert (await large.reply()).status == 200

    asyncio.run(scenario())


def test_who_leaves_while_a_body_is_read_never_reaches_the_engine() -> None:
    async def scenario() -> None:
        async with doorway(max_body_mib=8) as door:
            wire = await door.wire()
            wire.send(CHAT, json.dumps({**chat(), "x": MANY}).encode())
            await door.until(lambda: door.app.door.being_read)
            wire.leave()
            await door.until(lambda: door.outcomes == ["client_gone_queued"])
            assert door.stats()["started"] == 0

    asyncio.run(scenario())


def test_a_drain_waits_for_a_body_that_is_read() -> None:
    async def scenario() -> None:
        async with doorway(max_body_mib=8) as door:
            wire = await door.wire()
            wire.raw(request(CHAT, json.dumps({**chat(), "x": MANY}).encode()))
            await door.until(lambda: door.app.door.being_read)
            await door.app.drain()
            assert (await wire.reply()).status == 503
            assert door.outcomes == ["draining"]

    asyncio.run(scenario())


def test_a_large_body_that_is_none_is_refused_as_a_small_one() -> None:
    async def scenario() -> None:
        async with doorway(max_body_mib=8) as door:
            for path in (CHAT, "/llm/v1/messages"):
                wire = await door.wire()
                wire.send(path, b'{"model":"text","x":[' + b"1," * 100_000 + b"]}")
                assert (await wire.reply()).status == 400
            assert door.outcomes == ["bad_request"] * 2

    asyncio.run(scenario())


class Engine:
    """Takes bodies and answers nothing until it is let."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.may_answer = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if head.startswith(b"post"):  # nobody who looks whether it is there
                    length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
                    self.bodies.append(await reader.readexactly(length))
                    await self.may_answer.wait()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()


@contextlib.asynccontextmanager
async def before_an_engine(**settings: Any) -> AsyncIterator[tuple[Doorway, Engine]]:
    engine = Engine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with doorway(url=url, max_body_mib=8, **settings) as door:
            yield door, engine
    finally:
        server.close()


def held(door: Doorway) -> tuple[int, int]:
    """Return how many bodies are in files, and how many bytes of bodies in memory."""
    return door.app._bodies.files, door.app._bodies.memory.held_bytes


def test_large_bodies_wait_in_files_and_reach_their_engine_as_they_would_from_memory() -> None:
    async def scenario() -> None:
        async with before_an_engine(cap=1, queue=9, server="spill_body_mib = 1") as (door, engine):
            text = "é\n" * 1_000_000
            first = {**chat("REASONING"), "text": text}
            again = {**chat("reasoning"), "text": text}
            message = {
                "model": "reasoning",
                "max_tokens": 9,
                "messages": [{"role": "user", "content": text}],
            }
            wires = []
            for path, body in ((CHAT, first), (CHAT, again), ("/llm/v1/messages", message)):
                wires.append(await door.begin(path, body))
                await door.inside(1, len(wires) - 1)
            assert held(door) == (3, 0)
            engine.may_answer.set()
            statuses = [(await wire.reply()).status for wire in wires]
            assert statuses == [200, 200, 502]  # an empty object is no message
            read = [json.loads(body) for body in engine.bodies]
            assert read[:2] == [again, again]
            assert read[2]["messages"] == message["messages"]
            assert held(door) == (0, 0)

    asyncio.run(scenario())


def test_who_leaves_takes_the_file_along_wherever_the_body_is() -> None:
    async def scenario() -> None:
        async with before_an_engine(cap=1, queue=9, server="spill_body_mib = 1") as (door, engine):
            raw = request(CHAT, json.dumps({**chat(), "text": "x" * 3_000_000}).encode())
            at_engine = await door.wire()
            at_engine.raw(raw)
            await door.until(lambda: engine.bodies)
            waiting = await door.wire()
            waiting.raw(raw)
            await door.inside(1, 1)
            unfinished = await door.wire()
            unfinished.raw(raw[:2_500_000])
            await door.until(lambda: held(door)[0] == 3)
            for wire in (unfinished, waiting, at_engine):
                wire.reset()
            await door.until(lambda: held(door) == (0, 0))
            engine.may_answer.set()

    asyncio.run(scenario())


def test_where_no_file_can_be_written_large_bodies_are_served_from_memory() -> None:
    async def scenario() -> None:
        limits = "spill_body_mib = 1\nmax_spilled_mib = 2"
        async with before_an_engine(cap=1, queue=9, server=limits) as (door, engine):
            body = {**chat(), "text": "x" * 3_000_000}
            wire = await door.begin(CHAT, body)
            await door.until(lambda: engine.bodies)
            assert json.loads(engine.bodies[0]) == body
            assert held(door)[1] > 1_000_000
            engine.may_answer.set()
            assert (await wire.reply()).status == 200

    asyncio.run(scenario())


def test_a_large_body_opens_no_route_that_has_none() -> None:
    async def scenario() -> None:
        async with doorway(max_body_mib=8) as door:
            body = json.dumps({**chat(), "text": "x" * 3_000_000}).encode()
            reply = await door.call("/v1/models", body, "GET")
            assert (reply.status, reply.json["object"]) == (200, "list")
            assert door.stats()["started"] == 0

    asyncio.run(scenario())
