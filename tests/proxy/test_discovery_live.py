"""One name, several engines: addresses that come are used, those that go are drained."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from doorway import CHAT, Doorway, doorway
from wire import chat

from simulator.standin.server import StandIn, StandInOptions

NAME = "engines.test"


class Names:
    """A resolver that knows one name, and can be slow or away."""

    def __init__(self) -> None:
        self.hosts = ["127.0.0.1"]
        self.asked = 0
        self.fails = False
        self._real = socket.getaddrinfo

    def getaddrinfo(self, host: str, port: Any, *rest: Any, **more: Any) -> list[Any]:
        if host != NAME:
            return self._real(host, port, *rest, **more)
        self.asked += 1
        if self.fails:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*stream, (one, port)) for one in [*self.hosts, self.hosts[0]]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    known = Names()
    monkeypatch.setattr(socket, "getaddrinfo", known.getaddrinfo)
    return known


@contextlib.asynccontextmanager
async def discovered(**settings: Any) -> AsyncIterator[tuple[Doorway, StandIn]]:
    """Give `reasoning` a name instead of an address, and an engine at another address of it."""
    async with doorway(slots=2, cap=1, **settings) as door:
        second = StandIn(
            StandInOptions(models=("reasoning",), host="127.0.0.2", port=door.reasoning.port)
        )
        second.listen()
        own = f'url = "http://127.0.0.1:{door.reasoning.port}"'
        named = f'url = "http://{NAME}:{door.reasoning.port}"\ndiscover = "dns"\n'
        text = door.configuration.replace(own, named + "discover_every_s = 1")
        door.path.write_text(text.replace("cap = 1", "cap = 4"))
        door.app.reread()
        try:
            assert not door.said
            yield door, second
        finally:
            await second.close()


def engines(door: Doorway) -> list[tuple[str, float]]:
    return [(one.name, one.slots) for one in door.app.pool.current["reasoning"].engines()]


async def until(door: Doorway, hosts: list[str]) -> None:
    wanted = [(f"http://{host}:{door.reasoning.port}", 2) for host in hosts]
    await door.until(lambda: sorted(engines(door)) == wanted)


def test_addresses_behind_a_name_join_and_leave(names: Names) -> None:
    async def scenario() -> None:
        async with discovered() as (door, second):
            await until(door, ["127.0.0.1"])
            names.hosts.append("127.0.0.2")
            await until(door, ["127.0.0.1", "127.0.0.2"])
            wires = [await door.begin(CHAT, chat(hold_s=60)) for _ in range(5)]
            await door.inside(4, 1)  # two at each: no engine gets more than its slots
            assert [door.stats(one)["in_flight"] for one in (door.reasoning, second)] == [2, 2]
            names.hosts.remove("127.0.0.1")
            await until(door, ["127.0.0.2"])
            assert door.stats()["in_flight"] == 2  # who is on it stays
            wires.pop(0).leave()
            for wire in wires:
                wire.leave()
            await door.inside(0)
            reply = await door.call(CHAT, chat())
            assert reply.status == 200
            assert door.lines[-1]["replica"] == f"http://127.0.0.2:{door.reasoning.port}"

    asyncio.run(scenario())


def test_a_name_server_that_is_away_takes_no_engine_with_it(names: Names) -> None:
    async def scenario() -> None:
        async with discovered() as (door, _):
            await until(door, ["127.0.0.1"])
            names.fails = True
            asked = names.asked
            await door.until(lambda: names.asked >= asked + 2)
            assert len(engines(door)) == 1
            assert (await door.call(CHAT, chat())).status == 200

    asyncio.run(scenario())
