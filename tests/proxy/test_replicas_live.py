"""Several engines behind one name, and one that is dead: by the engines' own counts."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import openai
import pytest
from doorway import CHAT, Doorway, doorway
from stopwatch import PATIENCE_S
from wire import chat

from simulator.standin.server import StandIn, StandInOptions
from tornado_frontdoor.core.decisions import EngineState


class Pair:
    """Two stand-ins behind `reasoning`."""

    def __init__(self, door: Doorway, second: StandIn) -> None:
        self.door = door
        self.engines = [door.reasoning, second]
        self.urls = [f"http://127.0.0.1:{engine.port}" for engine in self.engines]

    def stats(self) -> list[dict[str, Any]]:
        """Return what both have counted."""
        return [self.door.stats(engine) for engine in self.engines]

    async def status(self) -> dict[str, Any]:
        """Return the upstream's part of the status."""
        status: dict[str, Any] = json.loads((await self.door.admin("/admin/status")).body)
        one: dict[str, Any] = status["upstreams"]["reasoning"]
        return one

    async def states(self) -> list[str]:
        """Return the state of both, by the status."""
        return [replica["state"] for replica in (await self.status())["replicas"]]

    async def until_states(self, *states: str, within_s: float = PATIENCE_S) -> None:
        """Wait until the status says so."""
        async with asyncio.timeout(within_s):
            while await self.states() != list(states):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)

    async def crowd(self, size: int, **knobs: Any) -> list[int]:
        """Send so many at once; return their statuses."""
        wires = [await self.door.begin(CHAT, chat(**knobs)) for _ in range(size)]
        return [(await wire.reply()).status for wire in wires]


@contextlib.asynccontextmanager
async def pair(
    engine: dict[str, Any] | None = None, upstream: str = "", slots: int = 4, **settings: Any
) -> AsyncIterator[Pair]:
    """Give `reasoning` a second engine, as an operator does: a changed file and SIGHUP."""
    second = StandIn(StandInOptions(**{"models": ("reasoning",), **(engine or {})}))
    second.listen()
    try:
        async with doorway(engine, **settings) as door:
            both = Pair(door, second)
            tables = ", ".join(f'{{ url = "{url}", slots = {slots} }}' for url in both.urls)
            text = door.configuration.replace(
                f'url = "{both.urls[0]}"', f"replicas = [{tables}]\n{upstream}"
            ).replace("slots = 8\n", "", 1)
            door.path.write_text(text)
            door.app.reread()
            assert not door.said
            yield both
    finally:
        await second.close()


def test_a_crowd_is_spread_and_no_engine_gets_more_than_its_slots() -> None:
    async def scenario() -> None:
        async with pair({"hold": 0.05}, cap=7, queue=40) as both:
            assert await both.crowd(40) == [200] * 40
            stats = both.stats()
            assert max(one["max_concurrent"] for one in stats) <= 4
            assert sum(one["finished"] for one in stats) == 40
            assert min(one["finished"] for one in stats) >= 15
            replicas = Counter(line["replica"] for line in both.door.lines)
            assert set(replicas) == set(both.urls)

    asyncio.run(scenario())


def test_weights_never_overfill_an_engine() -> None:
    async def scenario() -> None:
        async with pair({"hold": 0.05}, cap=7, queue=40) as both:
            wires = [await both.door.begin(CHAT, chat(n=1 + n % 4)) for n in range(24)]
            assert [(await wire.reply()).status for wire in wires] == [200] * 24
            assert max(one["max_sequences"] for one in both.stats()) <= 4
            too_heavy = await both.door.call(CHAT, chat(n=5))
            assert too_heavy.status == 400

    asyncio.run(scenario())


def test_requests_that_find_an_engine_dead_are_served_by_the_other() -> None:
    async def scenario() -> None:
        async with pair({"hold": 0.02}, cap=7, queue=40) as both:
            one = both.engines[0]
            one.kill(600.0, abrupt=True, accept_s=0)
            assert await both.crowd(20) == [200] * 20
            assert await both.states() == ["down", "up"]
            assert (await both.status())["state"] == "awake"
            metrics = (await both.door.admin("/metrics")).body.decode()
            name = f'{{replica="{both.urls[0]}",upstream="reasoning"}}'
            assert f"frontdoor_replica_available{name} 0.0" in metrics
            one._engine.restart_at(one.now())
            one.pump()
            await both.until_states("up", "up")
            before = both.stats()[0]["finished"]
            assert await both.crowd(8) == [200] * 8
            assert both.stats()[0]["finished"] > before, "one that is back is used"

    asyncio.run(scenario())


def test_an_engine_that_dies_gives_back_its_slots() -> None:
    async def scenario() -> None:
        async with pair({"tokens": 10_000, "gap_ms": 5}, cap=4, queue=4) as both:
            wires = [await both.door.begin(CHAT, chat(stream=True)) for _ in range(4)]
            for wire in wires:
                await wire.head()
            waiting = [await both.door.begin(CHAT, chat(tokens=1, gap_ms=0)) for _ in range(2)]
            await both.door.inside(4, 2)
            both.engines[0].kill(60.0, abrupt=True, accept_s=0)
            assert [(await wire.reply()).status for wire in waiting] == [200] * 2
            await both.door.inside(2)
            assert (await both.status())["replicas"][0]["taken"] == 0

    asyncio.run(scenario())


def test_draining_one_by_hand_loses_nobody() -> None:
    async def scenario() -> None:
        async with pair({"hold": 0.1}, cap=7, queue=40) as both:
            wires = [await both.door.begin(CHAT, chat(hold_s=1.5)) for _ in range(7)]
            await both.door.inside(7)
            path = f"/admin/drain/reasoning?replica={both.urls[0]}"
            reply = await both.door.admin(path, "POST")
            assert reply.status == 200, reply.body
            assert [one["state"] for one in reply.json["replicas"]] == ["drained", "up"]
            before = both.stats()[0]["started"]
            more = [await both.door.begin(CHAT, chat()) for _ in range(10)]
            assert {(await wire.reply()).status for wire in [*wires, *more]} == {200}
            assert both.stats()[0]["started"] == before
            other = f"/admin/drain/reasoning?replica={both.urls[1]}"
            assert (await both.door.admin(other, "POST")).status == 200
            told = (await both.door.admin("/admin/explain/reasoning")).json
            assert "every replica is drained by hand" in told["what"]
            assert told["a_request_now"].startswith("would wait for a replica that is used again")
            assert (await both.door.admin(f"{other}&undo=true", "POST")).status == 200
            undone = await both.door.admin(f"{path}&undo=true", "POST")
            assert undone.json["replicas"][0]["state"] == "up"
            assert await both.crowd(8) == [200] * 8
            assert both.stats()[0]["started"] > before
            unknown = await both.door.admin("/admin/drain/reasoning?replica=http://x", "POST")
            assert unknown.status == 404

    asyncio.run(scenario())


def test_where_all_are_drained_and_all_are_down_both_are_told() -> None:
    async def scenario() -> None:
        async with pair(cap=4, queue=4, upstream="hold_restarting_s = 0") as both:
            for url in both.urls:
                await both.door.admin(f"/admin/drain/reasoning?replica={url}", "POST")
            for engine in both.engines:
                engine.kill(60.0, abrupt=True, accept_s=0)
            await both.door.until(lambda: both.door.app.pool.current["reasoning"].state == "down")
            told = (await both.door.admin("/admin/explain/reasoning")).json
            assert both.urls[0] in told["what"]
            assert told["what"].endswith("; every replica is drained by hand")
            assert told["blocked_by"].startswith("every replica is drained by hand: ")
            assert told["blocked_by"].endswith("--undo`, and they are down besides")
            assert told["a_request_now"] == (
                "would be refused at once with 503: its engine is down, "
                "and every replica is drained by hand"
            )

    asyncio.run(scenario())


def test_one_conversation_stays_with_one_engine() -> None:
    def turn(who: int, turns: int) -> dict[str, Any]:
        talk = [{"role": "user", "content": f"I am number {who}"}]
        for number in range(turns):
            talk += [
                {"role": "assistant", "content": "so"},
                {"role": "user", "content": f"{number}"},
            ]
        return {**chat(), "messages": talk}

    async def scenario() -> None:
        async with pair(upstream='pick = "affinity"', cap=7, queue=40) as both:
            homes: dict[int, set[str]] = {}
            for turns in range(4):
                for who in range(12):
                    reply = await both.door.call(CHAT, turn(who, turns))
                    assert reply.status == 200
                    homes.setdefault(who, set()).add(both.door.lines[-1]["replica"])
            assert all(len(home) == 1 for home in homes.values())
            assert len(set.union(*homes.values())) == 2

    asyncio.run(scenario())


def test_a_conversation_that_all_ask_about_makes_no_queue_at_its_engine() -> None:
    async def scenario() -> None:
        async with pair({"hold": 60}, upstream='pick = "affinity"', cap=6, queue=4) as both:
            wires = [await both.door.begin(CHAT, chat()) for _ in range(7)]
            await both.door.inside(6, 1)
            await both.door.until(lambda: sum(one["in_flight"] for one in both.stats()) == 6)
            assert sorted(one["in_flight"] for one in both.stats()) == [2, 4]
            for wire in wires:
                wire.leave()
            await both.door.inside(0)

    asyncio.run(scenario())


# One engine that never sleeps, and is dead


def test_a_dead_engine_is_seen_although_nobody_asks_it() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            began_s = monotonic()
            door.reasoning.kill(60.0, abrupt=True, accept_s=0)
            await door.until(lambda: door.gate.state is EngineState.DOWN)
            assert monotonic() - began_s < 5
            status = json.loads((await door.admin("/admin/status")).body)["upstreams"]["reasoning"]
            assert (status["state"], status["sleep_depth"]) == ("down", "restarting")
            assert (await door.get("/health")).json["upstreams"]["reasoning"]["state"] == "down"
            metrics = (await door.admin("/metrics")).body.decode()
            assert 'frontdoor_engine_state{state="down",upstream="reasoning"} 1.0' in metrics

    asyncio.run(scenario())


def test_callers_wait_for_an_engine_that_restarts_where_they_may() -> None:
    async def scenario() -> None:
        async with doorway(upstream="hold_restarting_s = 30") as door:
            door.reasoning.kill(1.5, abrupt=True, accept_s=0)
            wires = [await door.begin(CHAT, chat()) for _ in range(8)]
            await door.inside(0, 8)
            assert [(await wire.reply()).status for wire in wires] == [200] * 8
            assert door.stats()["max_concurrent"] <= 6

    asyncio.run(scenario())


async def survives(restart_s: float) -> None:
    async with doorway() as door:
        door.reasoning.kill(restart_s, abrupt=True, accept_s=0)
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{door.port}/v1", api_key="none"
        ) as sdk:
            answer = await sdk.chat.completions.create(
                model="reasoning", messages=[{"role": "user", "content": "hello"}]
            )
        assert answer.choices
        assert door.outcomes[-1] == "served"


@pytest.mark.slow
def test_the_openai_sdk_survives_a_restart_of_twenty_seconds() -> None:
    asyncio.run(survives(20.0))
