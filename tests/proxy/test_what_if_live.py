"""What other limits would have done, asked of the simulator beside the front door that runs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from doorway import CHAT, Doorway, doorway
from wire import Reply, chat

from tornado_frontdoor.proxy.admin import what_if


async def ask(door: Doorway, cap: object = 1, queue: object = 8, name: str = "reasoning") -> Reply:
    query = f"?cap={cap}&queue={queue}&timeout_s=30"
    return await door.admin(f"/admin/what-if/{name}{query}", "POST", X_Frontdoor_Admin="test")


async def traffic(door: Doorway, requests: int) -> None:
    wires = [await door.begin(CHAT, chat()) for _ in range(requests)]
    for wire in wires:
        await wire.reply()


@pytest.mark.slow
def test_a_replay_stands_beside_what_was() -> None:
    async def scenario() -> dict[str, Any]:
        async with doorway({"hold": 0.1}, cap=2, queue=30) as door:
            await traffic(door, 24)
            upstream = door.app.pool.current["reasoning"]
            # Not over a socket: at low priority it takes what a busy machine leaves.
            return await door.app.admin.what_if.ask(upstream, what_if.Limits(1, 8, 30.0))

    told = asyncio.run(scenario())
    assert told["requests"] == 24
    assert told["in_force"]["limits"] == {"cap": 2, "queue": 30, "timeout_s": 30.0}
    assert told["observed"]["served_share"] == told["in_force"]["metrics"]["served_share"] == 1
    assert told["asked"]["limits"]["cap"] == 1
    assert told["asked"]["metrics"]["served_share"] < 1, "24 at once, one slot and 8 places"


def test_what_cannot_be_asked_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = 'raise ModuleNotFoundError("No module named \'simpy\'", name="simpy")'
    (tmp_path / "simpy.py").write_text(missing)
    (tmp_path / "numpy.py").write_text(missing)

    async def scenario() -> None:
        async with doorway(cap=2) as door:
            for reply, status, words in (
                (await ask(door), 409, "0 requests are recorded"),
                (await ask(door, name="text"), 409, "no cap"),
                (await ask(door, cap="x"), 400, "must be given, as numbers"),
                (await ask(door, cap=0), 400, "from 1 to 4096"),
                (await ask(door, name="nobody"), 404, "no upstream"),
            ):
                assert reply.status == status, reply.body
                assert words in reply.json["error"]
            await traffic(door, what_if.FEWEST)
            monkeypatch.setenv("PYTHONPATH", str(tmp_path))
            reply = await ask(door)
            assert reply.status == 501
            assert "pip install 'tornado-frontdoor[simulator]'" in reply.json["error"]

    asyncio.run(scenario())


def test_one_at_a_time_for_a_bounded_time_and_never_longer_than_the_front_door(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(what_if, "_START", "import time; time.sleep(60)")

    async def scenario() -> None:
        async with doorway(cap=2) as door:
            await traffic(door, what_if.FEWEST)
            asked = door.app.admin.what_if
            first = await door.wire(door.admin_port)
            path = "/admin/what-if/reasoning?cap=1&queue=8&timeout_s=30"
            first.send(path, None, "POST", X_Frontdoor_Admin="test")
            await door.until(lambda: asked._running is not None)
            assert (await ask(door)).status == 409
            asked.close()
            reply = await first.reply()
            assert reply.status == 503
            assert "was ended" in reply.json["error"]
            monkeypatch.setattr(what_if, "LIMIT_S", 0.05)
            reply = await ask(door)
            assert (reply.status, json.loads(reply.body)) == (
                503,
                {"error": "the replay took longer than 0.05 s"},
            )

    asyncio.run(scenario())


def test_a_page_of_another_site_cannot_ask() -> None:
    async def scenario() -> None:
        async with doorway(cap=2) as door:
            path = "/admin/what-if/reasoning?cap=1&queue=8&timeout_s=30"
            reply = await door.admin(path, "POST", Origin="http://evil.example")
            assert reply.status == 403

    asyncio.run(scenario())
