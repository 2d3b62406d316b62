"""What an engine says of itself while it streams through us."""

import asyncio
from dataclasses import replace

from naps import CHAT, chat_with, house


def test_an_engine_that_streams_through_us_is_not_closed_over_errors_of_its_state() -> None:
    """Two 500s from `/is_sleeping` once had its weights loaded again under that stream."""

    async def scenario() -> None:
        async with house() as door:
            assert (await door.admin("/admin/wake/text?wait=true", "POST")).status == 200
            keeper = door.app.pool.current["text"].keeper
            policy = keeper.gate.sleep_policy
            assert policy is not None
            keeper.change_limits(keeper.gate.limits, replace(policy, probe_period_s=0.1))
            wire = await door.begin(CHAT, chat_with(stream=True, tokens=100_000, gap_ms=20))
            await wire.head()
            door.misfortune("is_sleeping=fail")
            looks = len(door.seen()["control_calls"])
            await door.until(lambda: len(door.seen()["control_calls"]) >= looks + 4)
            assert door.state() == "awake"
            door.fortune()
            assert await wire.chunk()
            assert {call["call"] for call in door.seen()["control_calls"][looks:]} == {
                "is_sleeping"
            }
            wire.leave()

    asyncio.run(scenario())
