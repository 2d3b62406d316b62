"""What a debugger or a traceback shows of an upstream and of a request says how they are."""

import asyncio
import re

from doorway import CHAT, doorway


def test_an_upstream_and_its_requests_tell_where_they_are() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 0.5}, slots=2, cap=1, queue=3) as door:
            body = {"model": "thinker", "messages": []}
            first, second = await door.begin(CHAT, body), await door.begin(CHAT, body)
            await door.inside(1, 1)
            upstream = door.app.pool.current["reasoning"]
            url = upstream.settings.url
            told = f"<Upstream reasoning at {url}: awake, 1 of 1 in flight, 1 of 3 queued>"
            assert repr(upstream) == told
            requests = list(door.app.door.under_way)
            states = sorted(
                re.sub(r"^<ProxiedRequest \S+ |[\d.]+ s,", "", repr(r)) for r in requests
            )
            assert states == [
                "for thinker at reasoning: in flight,  slots 1>",
                "for thinker at reasoning: queued,  slots 1>",
            ]
            for wire in (first, second):
                await wire.reply()
            await door.at_rest()
            assert all(": over, " in repr(request) for request in requests)
            text = door.app.pool.current["text"]
            assert ": awake, 0 in flight, 0 of 512 queued>" in repr(text)

    asyncio.run(scenario())
