"""The acceptance check through three front doors, before two engines behind one name."""

import asyncio
from collections import Counter
from pathlib import Path

from doors import LONG_LEASE_S, doors
from redis_server import RedisServer


def test_forty_at_three_doors_before_two_engines_get_fourteen_answers(
    redis: RedisServer, tmp_path: Path
) -> None:
    """As before one engine with 8 slots: cap 6, 8 places, and 4 slots at each of two."""

    async def scenario() -> None:
        async with doors(
            redis, tmp_path, 3, hold_s=0.8, several=True, lease_s=LONG_LEASE_S
        ) as many:
            replies = await asyncio.gather(*(many.alive[n % 3].call() for n in range(40)))
            assert Counter(reply.status for reply in replies) == {200: 14, 503: 26}
            refused = [reply for reply in replies if reply.status == 503]
            assert all(reply.headers["retry-after"] for reply in refused)
            assert many.second is not None
            counters = [many.reasoning._counters, many.second._counters]
            assert [one.max_concurrent for one in counters] == [3, 3]  # the least busy first
            assert sum(one.started for one in counters) == 14

    asyncio.run(scenario())
