"""Sleep mode over HTTP, as four releases of vLLM behave: shapes, silence, garbage, death."""

import asyncio
from typing import Any

import pytest
from caller import Caller, chat_body, scene

CHAT = "/v1/chat/completions"
RELEASES = ("0.16", "0.23", "0.30", "0.33")
every_release = pytest.mark.parametrize("version", RELEASES)


def sleeper(version: str = "0.33", **options: Any) -> Any:
    """Return the scene of an engine in sleep mode whose transitions take no time unless told."""
    quick = {"sleep_s": (0, 0), "wake_s": (0, 0), "reload_s": 0, "restart_s": 0.2}
    return scene(sleep_mode=True, vllm=version, **{**quick, **options})


async def is_sleeping(caller: Caller) -> bool:
    """Ask the stand-in."""
    return bool((await caller.get("/is_sleeping")).json["is_sleeping"])


async def gauge(caller: Caller) -> str:
    """Return the one state that the gauge shows."""
    text = (await caller.get("/metrics")).body.decode()
    lines = [line for line in text.splitlines() if line.startswith("vllm:engine_sleep_state{")]
    (shown,) = [line for line in lines if line.endswith(" 1.0")]
    return shown.partition('sleep_state="')[2].partition('"')[0]


def test_without_sleep_mode_there_are_no_such_routes() -> None:
    async def scenario() -> None:
        async with scene() as caller:
            for path in ("/sleep", "/wake_up", "/collective_rpc", "/reset_prefix_cache", "/pause"):
                assert (await caller.call(path)).json == {"detail": "Not Found"}

    asyncio.run(scenario())


@every_release
def test_answers_have_a_body_from_032_on(version: str) -> None:
    async def scenario() -> None:
        async with sleeper(version) as caller:
            slept = await caller.call("/sleep?level=2")
            partly = await caller.call("/wake_up?tags=weights")
            reloaded = await caller.call("/collective_rpc", {"method": "reload_weights"})
            woken = await caller.call("/wake_up?tags=kv_cache")
            reset = await caller.call("/reset_prefix_cache")
            replies = (slept, partly, reloaded, woken, reset)
            assert [reply.status for reply in replies] == [200] * 5
            assert reloaded.json == {"results": [None]}
            if version == "0.33":
                assert slept.json == {"status": "sleeping", "level": 2}
                assert partly.json == {"status": "sleeping", "tags": ["weights"]}
                assert woken.json == {"status": "awake", "tags": ["kv_cache"]}
            else:
                assert slept.body == partly.body == woken.body == b""
            assert reset.body == (b'{"success":true}' if version in {"0.30", "0.33"} else b"")
            assert (await caller.call("/sleep", method="GET")).status == 405

    asyncio.run(scenario())


@every_release
@pytest.mark.parametrize("query", ["level=deep", "level=3", "mode=gently"])
def test_bad_values_are_400_from_032_on(version: str, query: str) -> None:
    async def scenario() -> None:
        async with sleeper(version) as caller:
            status = (await caller.call(f"/sleep?{query}")).status
            if version == "0.33":
                assert status == 400
                assert not await is_sleeping(caller)
            elif query == "level=3" or (query == "mode=gently" and version == "0.16"):
                assert status == 200  # not looked at
            else:
                assert status == 500

    asyncio.run(scenario())


@every_release
def test_a_level_in_the_body_is_ignored(version: str) -> None:
    async def scenario() -> None:
        async with sleeper(version) as caller:
            await caller.call("/sleep", {"level": 2})
            assert await gauge(caller) == "weights_offloaded"
            assert (await caller.stats())["engine"]["depth"] == 1

    asyncio.run(scenario())


@every_release
def test_level_2_on_level_1_says_yes_and_does_nothing(version: str) -> None:
    async def scenario() -> None:
        async with sleeper(version) as caller:
            await caller.call("/sleep?level=1")
            assert (await caller.call("/sleep?level=2")).status == 200
            assert await gauge(caller) == "discard_all"
            assert (await caller.stats())["engine"]["depth"] == 1

    asyncio.run(scenario())


@every_release
def test_looks_block_while_a_transition_runs_and_health_does_not(version: str) -> None:
    async def scenario() -> None:
        async with sleeper(version, sleep_s=(1, 1)) as caller:
            await caller.begin("/sleep")
            await caller.until(lambda s: s["engine"]["busy"] == "sleep")
            for path in ("/health", "/v1/models", "/version", "/metrics"):
                assert (await caller.get(path)).status == 200
            assert (await caller.stats())["engine"]["busy"] == "sleep"
            assert await is_sleeping(caller)
            assert (await caller.stats())["engine"]["busy"] is None

    asyncio.run(scenario())


@every_release
@pytest.mark.parametrize("stream", [False, True])
def test_a_plain_wake_from_level_2_serves_garbage_that_looks_like_success(
    version: str, stream: bool
) -> None:
    async def scenario() -> None:
        async with sleeper(version) as caller:
            await caller.call("/sleep?level=2")
            await caller.call("/wake_up")
            assert not await is_sleeping(caller)
            assert await gauge(caller) == "awake"
            assert (await caller.get("/health")).status == 200
            assert await said(caller, stream) == "!!!!" * 3
            await caller.call("/collective_rpc", {"method": "reload_weights"})
            assert await said(caller, stream) == "w0 w1 w2 "
            stats = await caller.stats()
            assert (stats["garbage_tokens"], stats["not_proven_awake"]) == (3, 1)

    asyncio.run(scenario())


async def said(caller: Caller, stream: bool) -> str:
    """Return what a chat answers."""
    reply = await caller.chat(stream=stream)
    assert reply.status == 200
    return reply.text if stream else str(reply.json["choices"][0]["message"]["content"])


@pytest.mark.parametrize("version", ["0.23", "0.30", "0.33"])
def test_a_sleeper_holds_requests_in_silence(version: str) -> None:
    async def scenario() -> None:
        async with sleeper(version) as caller:
            await caller.call("/sleep")
            stream = await caller.begin_chat("s", stream=True)
            plain = await caller.begin_chat("p")
            assert (await stream.head())[0] == 200
            stats = await caller.until(lambda s: s["in_flight"] == 2)
            assert (stats["started"], stats["not_proven_awake"]) == (0, 2)
            metrics = (await caller.get("/metrics")).body.decode()
            assert 'num_requests_waiting{engine="0",model_name="m"} 0.0' in metrics
            plain.leave()
            await caller.until(lambda s: s["aborted"] == 1)
            await caller.call("/wake_up")
            assert b'"role"' in await stream.chunk()
            assert (await caller.until(lambda s: s["in_flight"] == 0))["order"] == ["s"]

    asyncio.run(scenario())


def test_0_16_dies_of_a_request_while_asleep_and_comes_back_awake() -> None:
    async def scenario() -> None:
        async with sleeper("0.16") as caller:
            await caller.call("/sleep")
            assert (await caller.chat()).status == 500
            await caller.until_refused()
            await caller.until_back()
            assert not await is_sleeping(caller)
            assert await said(caller, True) == "w0 w1 w2 "
            assert (await caller.stats())["deaths"] == 1

    asyncio.run(scenario())


@every_release
def test_sleep_cuts_a_stream_that_then_looks_well_ended_or_kills(version: str) -> None:
    async def scenario() -> None:
        async with sleeper(version) as caller:
            stream = await caller.begin_chat(stream=True, tokens=1000, gap_ms=10)
            await stream.head()
            await stream.chunk()
            await stream.chunk()
            assert (await caller.call("/sleep")).status == 200
            rest = b""
            while chunk := await stream.chunk():
                rest += chunk
            assert rest.endswith(b"data: [DONE]\n\n")
            assert (b'"finish_reason":"abort"' in rest) is (version != "0.16")
            assert (b'"code":500' in rest) is (version == "0.16")
            if version == "0.16":
                await caller.until_refused()

    asyncio.run(scenario())


def test_a_plain_answer_and_a_message_that_sleep_aborts_look_well_ended_too() -> None:
    async def scenario() -> None:
        async with sleeper() as caller:
            chat = await caller.begin_chat(hold_s=60)
            body = chat_body(hold_s=60) | {"max_tokens": 5, "stream": True}
            message = await caller.begin("/v1/messages", body)
            await caller.until(lambda s: s["started"] == 2)
            await caller.call("/sleep")
            assert (await chat.reply()).json["choices"][0]["finish_reason"] == "abort"
            ended = (await message.reply()).body
            assert b'"stop_reason":null' in ended
            assert b"event: message_stop" in ended

    asyncio.run(scenario())


@pytest.mark.parametrize("version", ["0.23", "0.30", "0.33"])
def test_a_partial_wake_with_someone_inside_kills_before_024(version: str) -> None:
    async def scenario() -> None:
        async with sleeper(version) as caller:
            await caller.call("/sleep?level=2")
            stream = await caller.begin_chat(stream=True)
            await caller.until(lambda s: s["in_flight"] == 1)
            await caller.call("/wake_up?tags=weights")
            if version == "0.23":
                assert b'"code":500' in (await stream.reply()).body
                await caller.until_refused()
                return
            await caller.call("/collective_rpc", {"method": "reload_weights"})
            assert await is_sleeping(caller)
            assert (await caller.stats())["started"] == 0
            await caller.call("/wake_up?tags=kv_cache")
            assert (await stream.reply()).text == "w0 w1 w2 "

    asyncio.run(scenario())


def test_both_tags_in_one_call_after_one_of_them_do_nothing() -> None:
    async def scenario() -> None:
        async with sleeper() as caller:
            await caller.call("/sleep?level=2")
            await caller.call("/wake_up?tags=weights")
            reply = await caller.call("/wake_up?tags=weights&tags=kv_cache")
            assert reply.json == {"status": "sleeping", "tags": ["weights", "kv_cache"]}
            assert await is_sleeping(caller)

    asyncio.run(scenario())


def test_a_sleep_whose_caller_left_still_happens() -> None:
    async def scenario() -> None:
        async with sleeper(sleep_s=(0.1, 0.1)) as caller:
            connection = await caller.begin("/sleep")
            await caller.until(lambda s: s["engine"]["busy"] == "sleep")
            connection.leave()
            assert await is_sleeping(caller)

    asyncio.run(scenario())


def test_a_paused_engine_refuses_newcomers_from_033() -> None:
    async def scenario() -> None:
        for version, status in (("0.30", None), ("0.33", 503)):
            async with sleeper(version) as caller:
                assert (await caller.call("/pause")).json == {"status": "paused"}
                if status:
                    assert (await caller.chat()).status == status
                else:
                    await caller.begin_chat()
                    await caller.until(lambda s: s["in_flight"] == 1)
                assert (await caller.call("/resume")).json == {"status": "resumed"}
                await caller.until(lambda s: s["in_flight"] == 0)

    asyncio.run(scenario())


def test_worker_calls_are_checked_as_vllm_does() -> None:
    async def scenario() -> None:
        async with sleeper() as caller:
            bodies: list[object] = [b"{", b"[]", {"args": []}, {"method": "fly"}, {"method": "nap"}]
            statuses = [(await caller.call("/collective_rpc", body)).status for body in bodies]
            assert statuses == [400, 400, 400, 500, 200]

    asyncio.run(scenario())


def test_the_witness_sees_order_and_overlap_of_control_calls() -> None:
    async def scenario() -> None:
        async with sleeper(sleep_s=(0.1, 0.1)) as caller:
            await caller.begin("/sleep?level=2&mode=abort")
            await caller.until(lambda s: s["engine"]["busy"] == "sleep")
            await caller.call("/wake_up?tags=weights")
            await caller.call("/collective_rpc", {"method": "reload_weights"})
            stats = await caller.stats()
            assert stats["control_overlaps"] == 1
            sleep, wake, reload = stats["control_calls"]
            assert sleep["query"] == {"level": ["2"], "mode": ["abort"]}
            assert wake["query"] == {"tags": ["weights"]}
            assert "reload_weights" in reload["body"]
            assert sleep["at_s"] < sleep["ended_s"] <= wake["ended_s"]
            assert [entry["status"] for entry in (sleep, wake, reload)] == [200] * 3

    asyncio.run(scenario())


def test_another_start_time_tells_a_restart() -> None:
    async def started_s(caller: Caller) -> float:
        lines = (await caller.get("/metrics")).body.decode().splitlines()
        (line,) = [line for line in lines if line.startswith("process_start_time_seconds ")]
        return float(line.split()[1])

    async def scenario() -> None:
        async with sleeper() as caller:
            before_s = await started_s(caller)
            assert await started_s(caller) == before_s
            await caller.call("/stand-in/kill", {"restart_s": 0.1})
            await caller.until_refused()
            await caller.until_back()
            assert await started_s(caller) > before_s

    asyncio.run(scenario())


@pytest.mark.parametrize("version", ["0.30", "0.33"])
def test_sleeps_and_wakes_are_counted_from_032_on(version: str) -> None:
    async def scenario() -> None:
        async with sleeper(version) as caller:
            await caller.call("/sleep?level=1")
            metrics = (await caller.get("/metrics")).body.decode()
            count = 'sleep_mode_operation_duration_seconds_count{operation="sleep"} 1.0'
            assert (count in metrics) is (version == "0.33")

    asyncio.run(scenario())


def test_aborting_requests_takes_a_json_object() -> None:
    async def scenario() -> None:
        async with sleeper() as caller:
            assert (await caller.call("/abort_requests")).status == 400
            assert (await caller.call("/abort_requests", b"{}")).status == 200

    asyncio.run(scenario())
