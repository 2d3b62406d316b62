"""A front door that is cut off from Redis alone tells load balancers to look elsewhere."""

import asyncio
from pathlib import Path

from doors import Door, doors
from redis_server import RedisServer
from wire import Reply

from loadtests.harness.redis_way import RedisWay


async def health_of(door: Door) -> Reply:
    wire = await door.wire()
    wire.send("/health", None, "GET")
    reply = await wire.reply()
    wire.leave()
    return reply


def test_a_door_that_refuses_while_others_serve_is_not_healthy_until_it_is_back(
    redis: RedisServer, tmp_path: Path
) -> None:
    """Its connections are reset and new ones say nothing: it cannot know who has its share."""

    async def scenario() -> None:
        async with doors(redis, tmp_path, 1) as many:
            way = RedisWay(redis.port)
            door = await many.add(redis=f"redis://127.0.0.1:{way.port}/0")
            await many.until(many.serves)
            assert (await health_of(door)).status == 200
            way.drop()
            await many.until(door.app.door.is_cut_off)
            refused = await door.call()
            assert (refused.status, refused.json["error"]["code"]) == (503, "cluster_outage")
            health = await health_of(door)
            assert (health.status, health.json["status"]) == (503, "cut_off")
            assert (await health_of(many.doors[0])).status == 200
            assert (await many.doors[0].call()).status == 200
            way.heal()
            await many.until(many.serves)
            health = await health_of(door)
            assert (health.status, health.json["status"]) == (200, "ok")
            assert (await door.call()).status == 200

    asyncio.run(scenario())


def test_without_redis_doors_that_go_on_with_their_shares_are_healthy(
    redis: RedisServer, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with doors(redis, tmp_path, 2) as many:
            redis.kill()
            await many.until(lambda: all(d.node.alone and d.node.alone.splits for d in many.alive))
            for door in many.alive:
                assert (await health_of(door)).status == 200

    asyncio.run(scenario())
