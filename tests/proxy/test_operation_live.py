"""What an operator sees and does: access lines, metrics, status, a new configuration, the drain."""

import asyncio
import re
from collections import Counter
from pathlib import Path

import pytest
from doorway import CHAT, Doorway, doorway
from wire import Cut, Wire, chat

ROOT = Path(__file__).resolve().parents[2]
LINE_FIELDS = {
    "method": str,
    "path": str,
    "time": str,
    "request_id": str,
    "surface": str,
    "outcome": str,
    "code": str,
    "status": int,
    "waited_s": float,
    "held_s": float,
    "total_s": float,
    "bytes_in": int,
    "bytes_out": int,
    "weight": int,
    "stream": bool,
}
CODES = {
    "served": "--",
    "queue_full": "PF",
    "queue_timeout": "PQ",
    "client_gone_queued": "CQ",
    "client_gone_streaming": "CD",
    "upstream_error": "UH",
    "upstream_timeout": "UT",
    "bad_request": "PR",
    "model_not_found": "PN",
    "body_too_large": "PB",
}
STATUS_FIELDS = {
    "url",
    "models",
    "state",
    "sleep_depth",
    "running",
    "sleeping",
    "wake_in_progress",
    "wake_step",
    "last_activity_s",
    "sleep_support",
    "in_flight",
    "cap",
    "queued",
    "queue",
    "wakes_total",
    "estimated_wake_seconds",
}


async def samples(door: Doorway) -> dict[str, float]:
    """Return all samples of the metrics."""
    reply = await door.admin("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    lines = [line for line in reply.body.decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


async def one_of_each(door: Doorway) -> None:
    """Let a request end in each way that needs no engine that sleeps."""
    await door.call(CHAT, chat())
    await door.call(CHAT, chat("nobody"))
    await door.call(CHAT, b"{", Content_Type="application/json")
    await door.call("/sleep", b"")
    await door.call(CHAT, b"x" * (1 << 21))
    await door.call(CHAT, chat(die_after_chunks=0))
    await door.call(CHAT, chat(silent=True))
    door.reread(read_timeout_s=60)  # the others are not to race it
    holder = await door.begin(CHAT, chat(hold_s=60))
    await door.inside(1)
    late = await door.begin(CHAT, chat())
    await door.inside(1, 1)
    assert (await door.call(CHAT, chat())).json["error"]["code"] == "queue_full"
    assert (await late.reply()).json["error"]["code"] == "queue_timeout"
    leaver = await door.begin(CHAT, chat())
    await door.inside(1, 1)
    leaver.leave()
    await door.inside(1)
    holder.leave()
    await door.inside(0)


MAY_BE_NULL = {
    *("client", "forwarded", "user_agent", "key", "model", "upstream", "replica", "cause"),
    *("place", "wake", "first_byte_s", "tokens_in", "tokens_out"),
}


def test_every_request_leaves_one_line_and_one_count() -> None:
    """F22: what a client gave up is no error of ours, and has a name of its own."""

    async def scenario() -> None:
        async with doorway(cap=1, queue=1, queue_timeout_s=1.5, read_timeout_s=0.4) as door:
            await one_of_each(door)
            await door.at_rest()
            assert set(door.outcomes) == set(CODES)
            for line in door.lines:
                for name, kind in LINE_FIELDS.items():
                    assert isinstance(line[name], kind), (name, line)
                assert line.keys() - LINE_FIELDS.keys() == MAY_BE_NULL
                assert line["code"] == CODES[line["outcome"]]
                assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", line["time"])
            values = await samples(door)
            counted: Counter[str] = Counter()
            for name, value in values.items():
                if name.startswith("frontdoor_requests_total{"):
                    counted[re.search('outcome="(.*?)"', name)[1]] += int(value)  # type: ignore[index]
            assert counted == Counter(door.outcomes)
            passed = [line for line in door.lines if line["upstream"]]
            for name in ("request_seconds", "queue_wait_seconds"):
                found = sum(v for k, v in values.items() if k.startswith(f"frontdoor_{name}_count"))
                assert found == len(passed)
            assert values['frontdoor_queue_wait_seconds_sum{upstream="reasoning"}'] > 0.25
            firsts = [line for line in door.lines if line["first_byte_s"] is not None]
            assert values['frontdoor_first_byte_seconds_count{upstream="reasoning"}'] == len(firsts)

    asyncio.run(scenario())


def test_gauges_status_and_health_say_what_is() -> None:
    """F14, F30, F41: read from the gates when they are asked for, also after refusals."""

    async def scenario() -> None:
        async with doorway({"hold": 60}, cap=2, queue=3) as door:
            wires = [await door.begin(CHAT, chat()) for _ in range(5)]
            await door.inside(2, 3)
            assert (await door.call(CHAT, chat())).status == 503
            for expected in ((2, 3), (2, 2), (2, 1), (2, 0), (1, 0), (0, 0)):
                await door.inside(*expected)
                values = await samples(door)
                key = '{upstream="reasoning"}'
                assert values[f"frontdoor_in_flight{key}"] == expected[0]
                assert values[f"frontdoor_queue_depth{key}"] == expected[1]
                assert values[f"frontdoor_cap{key}"] == 2
                assert values[f"frontdoor_queue_limit{key}"] == 3
                assert 'frontdoor_cap{upstream="text"}' not in values
                state = 'frontdoor_engine_state{state="awake",upstream="reasoning"}'
                assert values[state] == 1
                status = (await door.admin("/admin/status")).json["upstreams"]["reasoning"]
                assert (status["in_flight"], status["queued"]) == expected
                assert (status["cap"], status["queue"]) == (2, 3)
                health = (await door.get("/health")).json
                assert health["status"] == "ok"
                assert health["upstreams"]["reasoning"]["in_flight"] == expected[0]
                assert health["upstreams"]["reasoning"]["queued"] == expected[1]
                if wires:
                    wires.pop().leave()

    asyncio.run(scenario())


def test_the_gauges_of_the_process_follow_what_is_open() -> None:
    """A leak of tasks or descriptors would show where operators look for it."""

    async def scenario() -> None:
        async with doorway({"hold": 60}, cap=5) as door:
            names = ("frontdoor_asyncio_tasks", "process_open_fds")
            before = await samples(door)
            wires = [await door.begin(CHAT, chat()) for _ in range(5)]
            await door.inside(5, 0)
            crowded = await samples(door)
            # The tasks are the stand-in's, one for each connection: a client of ours takes none.
            assert crowded["process_open_fds"] >= before["process_open_fds"] + 10
            assert crowded["frontdoor_asyncio_tasks"] <= before["frontdoor_asyncio_tasks"] + 5
            for wire in wires:
                wire.leave()
            await door.at_rest()

            async def back() -> bool:
                after = await samples(door)
                return all(after[name] <= before[name] for name in names)

            while not await back():
                pass

    asyncio.run(scenario())


def test_every_metric_of_ours_is_told_of_in_the_operations_guide() -> None:
    guide = (ROOT / "docs" / "operations.md").read_text()

    async def scenario() -> None:
        async with doorway() as door:
            page = (await door.admin("/metrics")).body.decode()
            names = set(re.findall(r"^# HELP (frontdoor_\w+?)(?:_created)? ", page, re.MULTILINE))
            assert names >= {"frontdoor_in_flight", "frontdoor_wakes_total"}
            assert [name for name in sorted(names) if f"`{name}" not in guide] == []

    asyncio.run(scenario())


def test_the_status_has_every_field_always() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            status = (await door.admin("/admin/status")).json
            assert status.keys() >= {"version", "uptime_s", "upstreams"}
            assert list(status["upstreams"]) == ["reasoning", "text"]
            for upstream in status["upstreams"].values():
                assert upstream.keys() >= STATUS_FIELDS
            assert status["upstreams"]["text"]["cap"] is None
            assert status["upstreams"]["text"]["queue"] is None
            listed = (await door.get("/v1/models")).json
            names = {model["id"] for model in listed["data"]}
            assert names >= {"reasoning", "thinker", "text"}
            one = (await door.get("/v1/models/Reasoning")).json
            assert one["frontdoor"] == {
                "upstream": "reasoning",
                "state": "awake",
                "sleep_depth": None,
            }
            assert (await door.get("/v1/models/none")).json["error"]["code"] == "model_not_found"

    asyncio.run(scenario())


def test_a_name_that_no_model_has_is_in_the_access_line() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            await door.call(CHAT, {"model": "gpt-9", "messages": []})
            await door.call("/llm/v1/messages", {"model": "x" * 5000, "max_tokens": 1})
            assert [line["model"] for line in door.lines] == ["gpt-9", "x" * 199 + "…"]
            assert {line["outcome"] for line in door.lines} == {"model_not_found"}

    asyncio.run(scenario())


def test_neither_listener_serves_the_others_paths() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            for path in ("/metrics", "/admin/status"):
                assert (await door.get(path)).status == 404
                assert (await door.admin(path, "POST")).status == 404
            for path in ("/v1/models", "/health", CHAT, "/x", "/admin", "/admin/", "/metrics/x"):
                assert (await door.admin(path)).status == 404
            assert (await door.admin(CHAT, "POST")).status == 404

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("method", "path", "says"),
    [
        ("GET", "/admin/status?model=text", "status has no parameter 'model'; it takes none"),
        ("GET", "/admin/explain/text?a", "explain has no parameter 'a'; it takes none"),
        ("GET", "/admin/events?since=3", "events has no parameter 'since'; it takes none"),
        ("POST", "/admin/reload?bogus=1", "reload has no parameter 'bogus'; it takes none"),
        ("POST", "/admin/drain/text?url=x", "drain has no parameter 'url'; it has replica, undo"),
    ],
)
def test_a_parameter_that_no_call_has_is_refused_by_its_name(
    method: str, path: str, says: str
) -> None:
    async def scenario() -> None:
        async with doorway() as door:
            reply = await door.admin(path, method)
            assert (reply.status, reply.json) == (400, {"error": says})

    asyncio.run(scenario())


def test_what_scrapes_looks_and_browses_may_add_words_of_its_own() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            for path in ("/metrics?name[]=frontdoor_in_flight&x", "/?v=1", "/page.js?v=1"):
                assert (await door.admin(path)).status == 200
            for path in ("/admin/nothing?x=1", "/admin/wake?x=1"):
                assert (await door.admin(path)).status == 404
            assert (await door.call("/health?probe=1", method="GET")).status == 200

    asyncio.run(scenario())


def test_admin_calls_need_the_token_where_there_is_one(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")

    async def scenario() -> None:
        async with doorway(server=f'admin_token_file = "{token}"') as door:
            for given in ("", "Bearer", "Bearer wrong", "s3cret", "Bearer s3cret2", "Basic s3cret"):
                reply = await door.admin("/admin/status", Authorization=given)
                assert reply.status == 401, given
                assert reply.headers["www-authenticate"] == "Bearer"
            assert (await door.admin("/nothing")).status == 401
            right = await door.admin("/admin/status", Authorization="Bearer s3cret")
            assert right.status == 200

    asyncio.run(scenario())


# A configuration that changes


def test_a_new_cap_is_in_force_at_once_and_nobody_is_lost() -> None:
    """F14, F27: more slots let the line in now; fewer let those in flight end."""

    async def scenario() -> None:
        async with doorway({"hold": 60}, cap=2, queue=8) as door:
            wires = [await door.begin(CHAT, chat()) for _ in range(8)]
            await door.inside(2, 6)
            door.reread(cap=5)
            await door.inside(5, 3)
            await door.until(lambda: door.stats()["started"] == 5)
            door.reread(cap=1)
            assert (door.gate.in_flight, door.gate.queued) == (5, 3)
            for wire in wires[:4]:
                wire.leave()
            await door.inside(1, 3)
            wires[4].leave()
            await door.inside(1, 2)
            door.reread(queue=1)
            assert door.gate.queued == 2, "who is inside stays inside"
            assert (await door.call(CHAT, chat())).status == 503
            values = await samples(door)
            assert values['frontdoor_cap{upstream="reasoning"}'] == 1
            door.reread(queue_timeout_s=0.1)
            for wire in wires[6:]:
                assert (await wire.reply()).json["error"]["code"] == "queue_timeout"

    asyncio.run(scenario())


def test_what_a_running_door_cannot_change_is_told_until_it_is_as_it_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with doorway({}, cap=2, queue=2) as door:
            warned = []
            for listen in ('"127.0.0.1:1"', '"127.0.0.1:2"', '"127.0.0.1:0"'):
                caplog.clear()
                door.reread(admin_listen=listen)
                warned.append("server.admin_listen changes with the next start" in caplog.text)
            assert warned == [True, True, False]

    asyncio.run(scenario())


def test_a_wrong_file_changes_nothing() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 1}, cap=2, queue=2) as door:
            wires = [await door.begin(CHAT, chat()) for _ in range(4)]
            await door.inside(2, 2)
            good = door.configuration
            for wrong in (good.replace("cap = 2", "cap = 8"), "[", "", "\x00", good + good):
                door.path.write_text(wrong)
                door.app.reread()
            door.path.unlink()
            door.app.reread()
            assert (door.gate.limits.cap, door.gate.limits.queue) == (2, 2)
            assert [(await wire.reply()).status for wire in wires] == [200] * 4
            door.said.clear()  # its faults were logged, as they should be

    asyncio.run(scenario())


def test_an_engine_under_another_name_keeps_its_cap() -> None:
    """An address has one cap, whatever it is called and however often the file changes."""

    async def scenario() -> None:
        async with doorway({"hold": 3}, cap=2, queue=2) as door:
            wires = [await door.begin(CHAT, chat()) for _ in range(3)]
            await door.inside(2, 1)
            old = door.configuration
            new = old.replace("upstreams.reasoning", "upstreams.deep")
            door.path.write_text(new.replace('upstream = "reasoning"', 'upstream = "deep"'))
            door.app.reread()
            fourth = await door.begin(CHAT, chat())
            (deep,) = (one for key, one in door.app.pool.current.items() if key == "deep")
            await door.until(lambda: deep.keeper.gate.queued == 2)
            full = await door.call(CHAT, chat())
            assert full.status == 503
            assert "deep" in full.json["detail"]
            status = (await door.admin("/admin/status")).json["upstreams"]
            assert list(status) == ["deep", "text"]
            assert (status["deep"]["in_flight"], status["deep"]["queued"]) == (2, 2)
            assert [(await wire.reply()).status for wire in (*wires, fourth)] == [200] * 4
            assert door.stats()["max_concurrent"] == 2
            door.path.write_text(old)
            door.app.reread()

    asyncio.run(scenario())


def test_an_engine_that_was_dropped_and_taken_back_keeps_its_cap() -> None:
    """Those inside are served to their end meanwhile, and count when it is back."""

    async def scenario() -> None:
        async with doorway({"hold": 1.5}, cap=2, queue=2) as door:
            wires = [await door.begin(CHAT, chat()) for _ in range(3)]
            await door.inside(2, 1)
            old = door.configuration
            start, end = old.index("[upstreams.reasoning]"), old.index("[upstreams.text]")
            without = old[:start] + old[end:]
            start = without.index("[models.reasoning]")
            without = without[:start] + without[without.index("[models.text]") :]
            door.path.write_text(without)
            door.app.reread()
            assert (await door.call(CHAT, chat())).status == 404
            door.path.write_text(old)
            door.app.reread()
            wires.append(await door.begin(CHAT, chat()))
            assert [(await wire.reply()).status for wire in wires] == [200] * 4
            assert door.stats()["max_concurrent"] == 2

    asyncio.run(scenario())


# The drain


def test_a_drain_lets_streams_end_and_refuses_the_line() -> None:
    async def scenario() -> None:
        async with doorway({"tokens": 30, "gap_ms": 20}, cap=1, queue=2) as door:
            kept = await door.wire()  # connected before: it can still ask
            kept.send("/health", None, "GET")
            assert (await kept.reply()).status == 200
            stream = await door.begin(CHAT, chat(stream=True))
            await stream.head()
            waiting = [await door.begin(CHAT, chat()) for _ in range(2)]
            await door.inside(1, 2)
            draining = asyncio.ensure_future(door.app.drain())
            for wire in waiting:
                refused = await wire.reply()
                assert refused.status == 503
                assert refused.headers["retry-after"] == "5"
                assert refused.json["error"]["type"] == refused.json["error"]["code"] == "draining"
            kept.send("/health", None, "GET")
            health = await kept.reply()
            assert (health.status, health.json["status"]) == (503, "draining")
            door.reread(cap=5)
            kept.send(CHAT, chat())
            assert (await kept.reply()).json["error"]["code"] == "draining"
            with pytest.raises(OSError):  # noqa: PT011 - refused, whatever it is called
                await door.wire()
            assert (await rest_of(stream)).endswith(b"data: [DONE]\n\n")
            await asyncio.wait_for(draining, 10)
            assert Counter(door.outcomes) == {"served": 1, "draining": 3}

    asyncio.run(scenario())


async def rest_of(wire: Wire) -> bytes:
    body = b""
    while chunk := await wire.chunk():
        body += chunk
    return body


def test_a_drain_that_takes_too_long_ends_streams_rudely() -> None:
    async def scenario() -> None:
        async with doorway({"tokens": 3000, "gap_ms": 20}, drain_timeout_s=0.3) as door:
            stream = await door.begin(CHAT, chat(stream=True))
            await stream.head()
            plain = await door.begin(CHAT, chat(hold_s=60))
            await door.inside(2)
            await asyncio.wait_for(door.app.drain(), 10)
            body = b""
            with pytest.raises(Cut):
                body = await rest_of(stream)
            assert b"[DONE]" not in body
            assert (await plain.reply()).json["error"]["code"] == "draining"
            assert door.outcomes == ["draining", "draining"]
            assert {line["code"] for line in door.lines} == {"PX"}

    asyncio.run(scenario())


def test_an_access_log_that_cannot_be_written_fails_no_request() -> None:
    """A pipe whose reader has gone must not take the front door with it."""

    async def scenario() -> None:
        async with doorway() as door:
            log = door.app._log

            def broken(_: str) -> int:
                raise BrokenPipeError

            log.write = broken  # type: ignore[method-assign]
            assert (await door.call(CHAT, chat())).status == 200
            assert (await door.call("/sleep", b"")).status == 404
            assert (await door.call(CHAT, b"{")).status == 400
            assert (await door.call(CHAT, b"x" * (1 << 21))).status == 413
            values = await samples(door)
            assert sum(v for k, v in values.items() if "requests_total{" in k) == 4

    asyncio.run(scenario())


def test_an_engine_that_is_asked_at_another_path_keeps_its_gate_and_its_cap() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 60}, cap=1, queue=1) as door:
            first = await door.begin(CHAT, chat())
            await door.inside(1)
            before = door.app.pool.current["reasoning"]
            url = before.settings.url
            door.configuration = door.configuration.replace(f'"{url}"', f'"{url}/other"')
            door.reread()
            after = door.app.pool.current["reasoning"]
            assert after is before
            assert after.settings.url == f"{url}/other"
            waiting = await door.begin(CHAT, chat())
            await door.inside(1, 1)
            waiting.leave()
            first.leave()
            await door.at_rest()
            assert [one.name for one in after.engines()] == [f"{url}/other"]

    asyncio.run(scenario())
