"""Front doors that share a gate, for real: sockets, engines that count, a redis-server."""

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from doors import LONG_LEASE_S, REPLICAS, SLEEP, Doors, doors
from redis_server import RedisServer
from wire import chat

from simulator.standin.server import StandIn, StandInOptions
from tornado_frontdoor.proxy.upstreams import CannotJoin

CHAT = "/v1/chat/completions"


async def crowd(many: Doors, count: int) -> Counter[int]:
    """Send so many requests at once, to every door in turn."""
    alive = many.alive
    replies = await asyncio.gather(*(alive[i % len(alive)].call() for i in range(count)))
    for reply in replies:
        assert reply.status == 200 or "retry-after" in reply.headers
    return Counter(reply.status for reply in replies)


def test_forty_at_three_doors_share_one_cap_and_one_queue(
    redis: RedisServer, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with doors(redis, tmp_path, 3, hold_s=0.8, lease_s=LONG_LEASE_S) as many:
            assert await crowd(many, 40) == {200: 14, 503: 26}
            assert many.stats()["max_concurrent"] == 6
            for door in many.alive:
                status = await door.status()
                assert status["cluster"]["doors"] == sorted(d.node.me for d in many.alive)
            roles = Counter(door.node.role for door in many.alive)
            assert roles == {"owner": 1, "member": 2}

    asyncio.run(scenario())


def test_a_client_that_leaves_at_a_member_frees_its_place_and_never_reaches_the_engine(
    redis: RedisServer, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with doors(redis, tmp_path, 2, hold_s=0.5, cap=1, lease_s=LONG_LEASE_S) as many:
            first = asyncio.ensure_future(many.owner.call())
            await many.until(lambda: many.stats()["in_flight"] == 1)
            gate = many.owner.app.pool.current["reasoning"].keeper.gate
            wire = await many.member.wire()
            wire.send(CHAT, chat("reasoning"))
            await many.until(lambda: gate.queued == 1)
            wire.leave()
            await many.until(lambda: gate.queued == 0)
            assert (await first).status == 200
            await asyncio.sleep(0.1)
            assert many.stats()["started"] == 1

    asyncio.run(scenario())


def test_a_door_that_drains_loses_nobody_and_another_owns_the_gates(
    redis: RedisServer, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with doors(redis, tmp_path, 2, hold_s=0.6, cap=2) as many:
            old = many.owner
            calls = [asyncio.ensure_future(door.call()) for door in many.alive for _ in range(3)]
            gate = old.app.pool.current["reasoning"].keeper.gate
            await many.until(lambda: (gate.in_flight, gate.queued) == (2, 4))
            await old.app.drain()
            await old.close()
            replies = await asyncio.gather(*calls)
            assert [reply.status for reply in replies] == [200] * 6
            assert many.stats()["max_concurrent"] == 2
            await many.until(many.serves)
            assert await crowd(many, 2) == {200: 2}

    asyncio.run(scenario())


def test_without_redis_a_door_takes_no_more_than_its_share_and_comes_back_by_itself(
    redis: RedisServer, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with doors(redis, tmp_path, 2, hold_s=0.3) as many:
            redis.kill()
            await many.until(lambda: all(door.node.role == "alone" for door in many.alive))
            status = (await many.alive[0].status())["cluster"]
            assert (status["outage"], status["splits"]) == (True, True)
            assert await crowd(many, 10) == {200: 10}
            assert many.stats()["max_concurrent"] <= 6
            redis.start()
            await many.until(many.serves)
            assert await crowd(many, 12) == {200: 12}
            assert many.stats()["max_concurrent"] == 6

    asyncio.run(scenario())


def test_without_redis_a_door_that_is_to_refuse_says_when_to_come_back(
    redis: RedisServer, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with doors(redis, tmp_path, 2, on_outage="refuse") as many:
            redis.kill()
            await many.until(lambda: all(door.node.role == "alone" for door in many.alive))
            reply = await many.alive[0].call()
            assert reply.status == 503
            assert reply.json["error"]["code"] == "cluster_outage"
            assert reply.headers["retry-after"] == "5"
            metrics = (await many.alive[0].ask_admin("/metrics")).body.decode()
            assert 'frontdoor_cluster_role{role="alone"} 1.0' in metrics
            redis.start()
            await many.until(many.serves)
            assert (await many.alive[0].call()).status == 200

    asyncio.run(scenario())


def test_a_door_with_other_limits_does_not_join(redis: RedisServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        # A lease that outlasts the making of the second door, which keeps the first one waiting.
        async with doors(redis, tmp_path, 1, lease_s=10) as many:
            with pytest.raises(CannotJoin, match=r"admission\.cap of .* is 6 there and 5 here"):
                await many.add(cap=5)

    asyncio.run(scenario())


def test_an_engine_that_sleeps_is_woken_once_whichever_door_is_asked(
    redis: RedisServer, tmp_path: Path
) -> None:
    sleep = "[upstreams.text.sleep]\nidle_sleep_s = 0\nidle_offload_s = 0\nmax_waiting = 16\n"

    async def scenario() -> None:
        async with doors(redis, tmp_path, 2, sleep=sleep) as many:
            await many.until(
                lambda: (
                    many.owner.app.pool.current["text"].state == "awake"
                    and many.member.app.pool.current["text"].state == "awake"
                )
            )
            slept = await many.member.ask_admin("/admin/sleep/text?level=1", "POST")
            assert slept.status == 200, slept.body
            await many.until(lambda: many.member.app.pool.current["text"].state == "sleeping")
            for door in many.alive:
                told = await door.ask_admin("/admin/explain/text")
                assert told.json["a_request_now"].startswith("would wake it"), told.body
                assert (await door.ask_admin("/admin/pin/text", "POST")).status == 501
            started = many.text._counters.snapshot()["started"]
            for door in many.alive:
                wire = await door.wire()
                wire.send(CHAT, chat("text"), **{"X-Frontdoor-Wake": "if-awake"})
                stray = await wire.reply()
                assert (stray.status, stray.json["error"]["code"]) == (503, "model_asleep")
                wire.leave()
            assert many.text._counters.snapshot()["started"] == started
            calls = [door.call("text") for door in many.alive for _ in range(2)]
            replies = await asyncio.gather(*calls)
            assert [reply.status for reply in replies] == [200] * 4
            counters = many.text._counters.snapshot()
            assert counters["not_proven_awake"] == counters["garbage_tokens"] == 0
            assert counters["control_overlaps"] == 0
            shown = many.member.app.pool.current["text"].keeper
            await many.until(lambda: shown.gate.wakes_total == 1)

    asyncio.run(scenario())


def test_several_engines_behind_one_name_share_a_cap_over_all_doors(
    redis: RedisServer, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with doors(redis, tmp_path, 3, several=True, lease_s=LONG_LEASE_S) as many:
            counts = await crowd(many, 24)
            assert counts[200] >= 14
            assert many.second is not None
            stats = [many.stats(), many.second._counters.snapshot()]
            assert [one["max_concurrent"] for one in stats] == [3, 3]
            shown = (await many.member.status())["upstreams"]["reasoning"]["replicas"]
            assert [one["slots"] for one in shown] == [4, 4]

    asyncio.run(scenario())


def test_an_engine_that_dies_or_is_drained_at_a_member_gets_nobody_from_any_door(
    redis: RedisServer, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with doors(redis, tmp_path, 2, hold_s=0.05, several=True) as many:
            second = many.second
            assert second is not None
            url = f"/admin/drain/reasoning?replica={many.urls['second']}"
            replicas = many.owner.app.pool.current["reasoning"].keeper.gate.replicas
            told = await many.member.ask_admin(url, "POST")
            assert told.status == 200
            assert [one["state"] for one in told.json["replicas"]] == ["up", "drained"]
            assert [one.state for one in replicas] == ["up", "drained"]
            assert await crowd(many, 6) == {200: 6}
            assert second._counters.snapshot()["started"] == 0
            told = await many.member.ask_admin(url + "&undo=true", "POST")
            assert told.status == 200
            assert [one["state"] for one in told.json["replicas"]] == ["up", "up"]
            assert [one.state for one in replicas] == ["up", "up"]
            await second.close()
            many.second = None
            # A request that finds nobody there is asked again elsewhere, once.
            assert await crowd(many, 8) == {200: 8}
            await many.until(lambda: [one.state for one in replicas] == ["up", "down"])

    asyncio.run(scenario())


def test_replicas_that_sleep_are_each_woken_once_whichever_door_is_asked(
    redis: RedisServer, tmp_path: Path
) -> None:
    naps = SLEEP.replace("upstreams.text", "upstreams.reasoning")

    async def scenario() -> None:
        async with doors(redis, tmp_path, 2, 1.5, several=True, naps=naps, lease_s=2) as many:
            second = many.second
            assert second is not None

            def states() -> list[str]:
                gate = many.member.app.pool.current["reasoning"].keeper.gate
                shown = [gate.sleep_of(many.urls[name]) for name in REPLICAS]
                return [str((one or {}).get("state")) for one in shown]

            await many.until(lambda: states() == ["awake", "awake"])
            url = f"/admin/sleep/reasoning?level=1&replica={many.urls['second']}"
            slept = await many.member.ask_admin(url, "POST")
            assert slept.status == 200, slept.body
            await many.until(lambda: states() == ["awake", "sleeping"])
            assert (await many.member.call()).status == 200
            assert states() == ["awake", "sleeping"], "one is enough"
            assert await crowd(many, 6) == {200: 6}
            await many.until(lambda: states() == ["awake", "awake"])
            # Another owner finds out how each of them is, and wakes what is needed.
            old = many.owner
            await many.until(lambda: old.app.pool.current["reasoning"].idle)
            slept = await old.ask_admin("/admin/sleep/reasoning?level=2", "POST")
            assert slept.status == 200, slept.body
            await old.app.drain()
            await old.close()
            await many.until(many.serves)
            assert (await many.owner.call()).status == 200
            told = (await many.owner.status())["upstreams"]["reasoning"]["replicas"]
            assert sorted(one["state"] for one in told) == ["awake", "offloaded"]
            for engine in (many.reasoning, second):
                counters = engine._counters.snapshot()
                assert counters["max_concurrent"] <= 4
                assert counters["not_proven_awake"] == counters["garbage_tokens"] == 0
                assert counters["control_overlaps"] == 0

    asyncio.run(scenario())


def test_engines_are_asked_for_their_count_with_their_key(
    redis: RedisServer, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        status = "200 OK" if b"Authorization: Bearer secret\r\n" in head else "401 Unauthorized"
        body = 'vllm:num_requests_running{model_name="m"} 3\n'
        body += 'vllm:num_requests_waiting{model_name="m"} 1\n'
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        writer.write(head + body.encode())
        await writer.drain()
        writer.close()

    async def scenario() -> None:
        engine = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = engine.sockets[0].getsockname()[1]
        sleep = f'api_key_file = "{key}"'
        async with engine, doors(redis, tmp_path, 1, sleep=sleep) as many:
            upstream = many.owner.app.pool.current["text"]
            assert await upstream._count(f"http://127.0.0.1:{port}") == 4

    asyncio.run(scenario())


def test_what_an_operator_drained_stays_so_over_a_change_of_owner(
    redis: RedisServer, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with doors(redis, tmp_path, 2, hold_s=0.05, several=True) as many:
            old, new = many.owner, many.member
            url = f"/admin/drain/reasoning?replica={many.urls['second']}"
            new.app.admin.confirm_s = 0.0  # what nobody has confirmed is not said to be so
            told = await new.ask_admin(url, "POST")
            assert (told.status, "has confirmed it" in told.json["error"]) == (503, True)
            assert (await old.ask_admin(url, "POST")).status == 200
            shown = new.app.pool.current["reasoning"].engines
            await many.until(lambda: [one.state for one in shown()] == ["up", "drained"])
            await old.app.drain()
            await old.close()
            await many.until(many.serves)
            assert [one.state for one in shown()] == ["up", "drained"]

    asyncio.run(scenario())


def test_an_upstream_that_comes_with_a_reload_is_served_by_the_owner_there_is(
    redis: RedisServer, tmp_path: Path
) -> None:
    async def scenario() -> None:
        # A lease that outlasts two reloads on a busy machine: they hold the loop up.
        async with doors(redis, tmp_path, 2, lease_s=3) as many:
            more = (
                '[upstreams.more]\nurl = "http://127.0.0.1:{}"\n[models.more]\nupstream = "more"\n'
            )
            engine = StandIn(StandInOptions(models=("more",)))
            port = engine.listen()
            for door in (many.owner, many.member):
                path = door.app.settings.path
                path.write_text(path.read_text() + more.format(port))
                assert door.app.reread()[0]
            for door in many.alive:
                assert (await door.call("more")).status == 200
            await engine.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_the_acceptance_check_holds_through_three_doors(redis: RedisServer, tmp_path: Path) -> None:
    """40 at once against cap 6 and 8 places, held for 2 s each, over all doors together."""

    async def scenario() -> None:
        async with doors(redis, tmp_path, 3, hold_s=2.0, lease_s=2) as many:
            assert await crowd(many, 40) == {200: 14, 503: 26}
            assert many.stats()["max_concurrent"] == 6

    asyncio.run(scenario())


def test_a_front_door_that_is_alone_loads_nothing_of_the_cluster() -> None:
    code = (
        "import sys, tornado_frontdoor.proxy.app\n"
        "strange = [m for m in sys.modules if m == 'redis' or '.cluster' in m]\n"
        "assert not strange, strange"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
