"""A body that takes long to read keeps nobody waiting, and its own request misses nothing."""

import asyncio
import json
from time import monotonic

from doorway import CHAT, doorway
from wire import chat, request

MANY = {f"k{number}": number for number in range(80_000)}


def test_others_are_served_while_a_large_body_is_read() -> None:
    async def scenario() -> None:
        async with doorway(max_body_mib=8) as door:
            large = await door.wire()
            large.send(CHAT, json.dumps({**chat(), "x": MANY}).encode())
            await door.until(lambda: door.app.door.being_read)
            longest_s = 0.0
            served = 0
            wire = await door.wire()
            while door.app.door.being_read:
                begun_s = monotonic()
                wire.send("/health", None, "GET")
                assert (await wire.reply()).status == 200
                longest_s = max(longest_s, monotonic() - begun_s)
                served += 1
            assert served > 5
            assert longest_s < 0.25  # far below the second and more that the reading takes
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
