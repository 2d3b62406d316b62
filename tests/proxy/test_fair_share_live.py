"""Two keys before one engine: whoever holds less is next, whatever the other has in the queue."""

import asyncio

import pytest
from doorway import CHAT, doorway
from wire import chat

from tornado_frontdoor.surfaces.keys import hashed

KEYS = f"""
[keys.batch]
sha256 = "{hashed("sk-batch")}"

[keys.person]
sha256 = "{hashed("sk-person")}"
share = 2
"""


@pytest.mark.parametrize(("fair", "place"), [("fair_share = true", 0), ("", 5)])
def test_one_who_asks_beside_a_crowd_is_next_where_slots_are_shared_by_key(
    fair: str, place: int
) -> None:
    async def scenario() -> None:
        async with doorway({"hold": 0.02}, cap=1, queue=f"8\n{fair}", tables=KEYS) as door:
            batch = {"Authorization": "Bearer sk-batch"}
            first = await door.begin(CHAT, chat(hold_s=600), **batch)
            await door.inside(1, 0)
            wires = []
            for number in range(1, 6):
                wires.append(await door.begin(CHAT, chat(), **batch))
                await door.inside(1, number)
            wires.append(await door.begin(CHAT, chat(), Authorization="Bearer sk-person"))
            await door.inside(1, 6)
            first.leave()
            replies = [await wire.reply() for wire in wires]
            assert [reply.status for reply in replies] == [200] * 6
            ids = [reply.headers["x-request-id"] for reply in replies]
            order = door.stats()["order"][1:]
            assert order.index(ids[5]) == place
            assert [one for one in order if one != ids[5]] == ids[:5], "in order within a key"

    asyncio.run(scenario())
