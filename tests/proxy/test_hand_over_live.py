"""A front door gives its place to the next one: sockets, slots and places, and refuses nobody."""

import asyncio
import io
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doorway import CHAT, Doorway, doorway
from stopwatch import PATIENCE_S
from test_replicas_live import pair
from wire import Wire, chat

from tornado_frontdoor.config import load
from tornado_frontdoor.proxy.app import App
from tornado_frontdoor.proxy.handover.meeting import CannotTakeOver
from tornado_frontdoor.proxy.handover.taken import find_predecessor


class Next:
    """The front door that takes over."""

    def __init__(self, app: App) -> None:
        self.app = app
        public, admin = app.start()
        self.port, self.admin_port = public.port, admin.port

    @property
    def gate(self) -> Any:
        return self.app.pool.current["reasoning"].keeper.gate

    async def wire(self) -> Wire:
        return Wire(*await asyncio.open_connection("127.0.0.1", self.port))


async def until(condition: Any, within_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.005)


@asynccontextmanager
async def next_of(door: Doorway) -> AsyncIterator[Next]:
    path = door.path
    state = door.app.settings.server.state_dir
    predecessor = await asyncio.to_thread(find_predecessor, state)
    assert predecessor is not None
    app = App(load(path), lambda: load(path), io.StringIO(), predecessor)
    try:
        yield Next(app)
    finally:
        await app.close()


def test_slots_and_places_move_and_the_cap_holds_over_both() -> None:
    """What streams goes on in the old one; its queue comes before whoever comes to the new one."""

    async def scenario() -> None:
        async with doorway({"hold": 60}, cap=2, queue=4) as door:
            wires = [await door.begin(CHAT, chat()) for _ in range(3)]
            await door.inside(2, 1)
            async with next_of(door) as new:
                assert new.port == door.port
                assert (new.gate.in_flight, new.gate.queued) == (2, 1)
                fourth = await new.wire()
                fourth.send(CHAT, chat())
                await until(lambda: new.gate.queued == 2)
                assert door.stats()["in_flight"] == 2
                door.stats()
                wires[0].leave()
                # The one that waited at the old front door is let in, and asks from there.
                await until(lambda: door.stats()["started"] == 3)
                await until(lambda: new.gate.queued == 1)
                assert door.stats()["max_concurrent"] == 2
                wires[1].leave()
                await until(lambda: door.stats()["started"] == 4)
                wires[2].leave()
                fourth.leave()
                await until(lambda: (new.gate.in_flight, new.gate.cooling) == (0, 0))
                assert door.stats()["max_concurrent"] == 2
                await door.app.succession.finish(asyncio.Event())

    asyncio.run(scenario())


def test_a_replica_that_is_drained_by_hand_is_drained_in_the_next_one_too() -> None:
    async def scenario() -> None:
        async with pair({"hold": 0}, cap=4, queue=4) as both:
            drained, other = both.urls
            await both.door.admin(f"/admin/drain/reasoning?replica={drained}", "POST")
            async with next_of(both.door) as new:
                states = {one.name: one.drained for one in new.gate.replicas}
                assert states == {drained: True, other: False}
                wire = await new.wire()
                wire.send(CHAT, chat())
                assert (await wire.reply()).status == 200
                wire.leave()
                assert [one["started"] for one in both.stats()] == [0, 1]

    asyncio.run(scenario())


def test_an_address_of_a_name_that_was_drained_by_hand_is_so_once_it_is_found_again() -> None:
    async def scenario() -> None:
        async with pair({"hold": 0}, cap=4, queue=4) as both:
            upstream = both.door.app.pool.current["reasoning"]
            upstream.drain_when_found(["http://10.0.0.9:8000"])
            engines = [*both.urls, "http://10.0.0.9:8000"]
            upstream.settings = replace(upstream.settings, replicas=(), discover="dns")
            upstream._take_engines(engines)
            assert [one.name for one in upstream.engines() if one.drained] == engines[2:]
            upstream.drain_engine(engines[2], undo=True)
            upstream._take_engines(engines[:2])
            upstream._take_engines(engines)
            assert not any(one.drained for one in upstream.engines())

    asyncio.run(scenario())


def test_a_request_on_a_connection_of_the_old_one_is_served_and_the_last_on_it() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            wire = await door.wire()
            wire.send(CHAT, chat())
            first = await wire.reply()
            assert first.status == 200
            assert "connection" not in first.headers
            async with next_of(door) as new:
                await until(door.app.succession._over.is_set)
                wire.send(CHAT, chat())
                reply = await wire.reply()
                assert (reply.status, reply.headers["connection"]) == (200, "close")
                wire = await door.wire()
                wire.send("/health", None, "GET")
                assert (await wire.reply()).status == 200
                wire.leave()
                assert new.gate.in_flight == 0

    asyncio.run(scenario())


def test_when_the_old_one_ends_before_its_time_its_slots_are_free_again() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 60}, cap=1, queue=2, upstream="cooling_limit_s = 0.1") as door:
            holder = await door.begin(CHAT, chat())
            waiter = await door.begin(CHAT, chat())
            await door.inside(1, 1)
            async with next_of(door) as new:
                assert (new.gate.in_flight, new.gate.queued) == (1, 1)
                await door.app.succession.close()  # as when its process is killed
                await until(lambda: (new.gate.in_flight, new.gate.queued) == (0, 0))
                await until(lambda: new.gate.cooling == 0)
                holder.leave()
                waiter.leave()

    asyncio.run(scenario())


def test_who_waits_at_the_old_one_is_refused_when_the_new_one_ends() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 60}, cap=1, queue=2) as door:
            holder = await door.begin(CHAT, chat())
            waiter = await door.begin(CHAT, chat())
            await door.inside(1, 1)
            async with next_of(door):
                await until(door.app.succession._over.is_set)
            reply = await waiter.reply()
            assert (reply.status, reply.json["error"]["code"]) == (503, "draining")
            assert door.stats()["in_flight"] == 1
            holder.leave()
            await until(lambda: door.stats()["in_flight"] == 0)

    asyncio.run(scenario())


def test_a_front_door_that_is_going_away_gives_its_place_to_nobody() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            door.app.door.draining = True
            state = door.app.settings.server.state_dir
            with pytest.raises(CannotTakeOver, match="going away already"):
                await asyncio.to_thread(find_predecessor, state)
            door.app.door.draining = False

    asyncio.run(scenario())


def test_where_nobody_runs_there_is_nobody_to_take_over_from(tmp_path: Path) -> None:
    assert find_predecessor(tmp_path) is None


def test_one_that_ends_before_it_has_answered_is_said_to_have(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor() as threads:
        listener.bind(str(tmp_path / "frontdoor.sock"))
        listener.listen()
        asking = threads.submit(find_predecessor, tmp_path)
        asked, _ = listener.accept()
        with asked:
            asked.recv(1024)
        with pytest.raises(CannotTakeOver, match="ended before it gave its place away"):
            asking.result(PATIENCE_S)


def test_health_is_503_for_a_while_before_the_port_is_closed() -> None:
    async def scenario() -> None:
        async with doorway(server="lame_duck_s = 60") as door:
            app = door.app
            lame = asyncio.ensure_future(app._be_lame())
            await until(lambda: app.door.lame)
            assert (await door.get("/health")).status == 503
            reply = await door.call(CHAT, chat())
            assert (reply.status, reply.headers["connection"]) == (200, "close")
            app.stop()
            app.stop()  # a second signal ends it
            await lame

    asyncio.run(scenario())
