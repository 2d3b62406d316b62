"""What is inside a stand-in: its slots and hidden line, departures, breaks, exact counters."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from caller import Caller, chat_body, scene
from wire import Cut, Wire

from simulator.standin.requests import ServiceTime
from simulator.standin.server import StandIn, StandInOptions

CHAT = "/v1/chat/completions"


def test_sequences_above_the_slots_wait_inside_in_order_with_a_200_already_sent() -> None:
    async def scenario() -> None:
        async with scene(slots=2) as caller:
            names = ["a", "b", "c", "d"]
            held = [await caller.begin_chat(n, stream=True, hold_s=60) for n in names[:2]]
            for name in names[2:]:
                await caller.until(lambda s, n=name: s["in_flight"] == names.index(n))  # type: ignore[misc]
                held.append(await caller.begin_chat(name, stream=True))
            full = await caller.until(lambda s: s["in_flight"] == 4)
            assert (full["waiting"], full["started"], full["max_concurrent"]) == (2, 2, 4)
            assert [(await connection.head())[0] for connection in held] == [200] * 4
            held[0].leave()
            assert (await held[2].chunk()).startswith(b"data: ")
            done = await caller.until(lambda s: s["in_flight"] == 1)
            assert done["order"] == names
            assert (done["finished"], done["aborted"]) == (2, 1)

    asyncio.run(scenario())


def test_plain_answer_waits_for_the_hold_and_for_all_its_tokens() -> None:
    async def scenario() -> None:
        async with scene(hold=0.1, tokens=5, gap_ms=20) as caller:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            assert (await caller.chat()).status == 200
            assert loop.time() - began_s >= 0.2

    asyncio.run(scenario())


async def _fin(connection: Wire) -> None:
    connection.leave()


async def _half(connection: Wire) -> None:
    connection.half_close()


async def _rst(connection: Wire) -> None:
    connection.reset()


async def _fin_with_bytes_unread(connection: Wire) -> None:
    connection.writer.write(b"\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.sleep(0.02)  # let them arrive first: that is what hides the close
    connection.leave()


@pytest.mark.parametrize("leave", [_fin, _half, _rst, _fin_with_bytes_unread])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["holding", "waiting", "streaming", "silent", "stalled"])
def test_client_that_leaves_is_gone_at_once(
    phase: str, stream: bool, leave: Callable[[Wire], Awaitable[None]]
) -> None:
    knobs: dict[str, object] = {
        "holding": {"hold_s": 60},
        "waiting": {"hold_s": 60},
        "streaming": {"tokens": 10_000, "gap_ms": 10},
        "silent": {"silent": True},
        "stalled": {"break_after": 1, "break_how": "stall", "tokens": 5},
    }[phase]  # type: ignore[assignment]

    async def scenario() -> None:
        async with scene(slots=1) as caller:
            if phase == "waiting":
                await caller.begin_chat("first", hold_s=60)
                await caller.until(lambda s: s["started"] == 1)
            others = 1 if phase == "waiting" else 0
            leaver = await caller.begin_chat("leaver", stream=stream, **knobs)
            await caller.until(lambda s: s["in_flight"] == others + 1)
            if phase in {"streaming", "stalled"} and stream:
                await leaver.head()
                await leaver.chunk()
                await leaver.chunk()
            loop = asyncio.get_running_loop()
            left_s = loop.time()
            await leave(leaver)
            after = await caller.until(lambda s: s["in_flight"] == others)
            assert loop.time() - left_s < 5
            assert (after["aborted"], after["finished"]) == (1, 0)
            assert after["max_concurrent"] == others + 1
            if not others:
                assert (await caller.chat()).status == 200  # the only slot is free

    asyncio.run(scenario())


def test_log_has_a_line_for_each_change_of_the_number_in_flight(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def scenario() -> list[str]:
        async with scene(log=str(log), slots=1) as caller:
            first = await caller.begin_chat("1", hold_s=60)
            await caller.until(lambda s: s["in_flight"] == 1)
            second = await caller.begin_chat("2", hold_s=60)
            await caller.until(lambda s: s["in_flight"] == 2)
            first.leave()
            await caller.until(lambda s: s["in_flight"] == 1)
            second.leave()
            await caller.until(lambda s: s["in_flight"] == 0)
            return log.read_text().splitlines()  # while it runs: lines are flushed

    assert asyncio.run(scenario()) == [
        "in_flight=1 max_concurrent=1",
        "in_flight=2 max_concurrent=2",
        "in_flight=1 max_concurrent=2",
        "in_flight=0 max_concurrent=2",
    ]


def test_history_has_every_change_of_what_is_inside_since_the_reset_by_the_loops_clock() -> None:
    async def scenario() -> None:
        async with scene(slots=1) as caller:
            await caller.chat()
            before_s = asyncio.get_running_loop().time()
            await caller.call("/stand-in/reset")
            first = await caller.begin_chat("1", hold_s=60)
            await caller.until(lambda s: s["in_flight"] == 1)
            second = await caller.begin_chat("2", hold_s=60)
            await caller.until(lambda s: s["in_flight"] == 2)
            first.leave()
            await caller.until(lambda s: s["started"] == 2)
            second.leave()
            await caller.until(lambda s: s["in_flight"] == 0)
            changes = (await caller.get("/stand-in/history")).json["changes"]
            order = (await caller.stats())["order"]
            stamps = [at_s for at_s, _, _ in changes]
            assert before_s <= stamps[0]
            assert stamps == sorted(stamps)
            assert [sequences for _, sequences, _ in changes] == [0, 1, 1, 2, 1, 1, 0]
            assert [started for _, _, started in changes if started] == order

    asyncio.run(scenario())


def test_counters_are_exact_under_a_burst_of_plain_and_streamed_calls() -> None:
    async def scenario() -> None:
        async with scene(slots=8, hold=0.02, gap_ms=1) as caller:
            calls = [caller.chat(stream=n % 2 == 0) for n in range(100)]
            replies = await asyncio.gather(*calls)
            assert [reply.status for reply in replies] == [200] * 100
            stats = await caller.stats()
            assert (stats["started"], stats["finished"], stats["in_flight"]) == (100, 100, 0)
            assert stats["max_concurrent"] <= 100
            assert len(set(stats["order"])) == 100
            await caller.call("/stand-in/reset")
            assert (await caller.stats())["max_concurrent"] == 0

    asyncio.run(scenario())


def test_exponential_holds_repeat_with_the_seed_and_keep_their_mean() -> None:
    hold = ServiceTime.parse("exp:2")
    first, again, other = (
        [hold.draw(rng) for _ in range(20_000)] for rng in map(random.Random, (7, 7, 8))
    )
    assert first == again != other
    assert sum(first) / len(first) == pytest.approx(2, rel=0.03)
    assert ServiceTime.parse(2.5).draw(random.Random(7)) == 2.5


@pytest.mark.parametrize(
    ("how", "ends_with"), [("die", None), ("fail", b"data: [DONE]\n\n"), ("end", b"w1")]
)
def test_streams_break_as_ordered(how: str, ends_with: bytes | None) -> None:
    async def scenario() -> None:
        async with scene(tokens=5) as caller:
            connection = await caller.begin_chat(stream=True, break_after=2, break_how=how)
            if how == "die":
                with pytest.raises(Cut):
                    await connection.reply()
            else:
                reply = await connection.reply()
                assert reply.text == "w0 w1 "
                assert ends_with is not None
                assert ends_with in reply.chunks[-1]
                errors = [event["error"]["code"] for event in reply.events if "error" in event]
                assert errors == ([500] if how == "fail" else [])
            stats = await caller.until(lambda s: s["in_flight"] == 0)
            assert (stats["failed"], stats["finished"]) == (1, 0)

    asyncio.run(scenario())


def test_a_slow_reader_holds_the_answer_back_and_loses_nothing() -> None:
    async def scenario() -> None:
        async with scene() as caller:
            connection = await caller.begin_chat(stream=True, tokens=300, bytes_per_token=100_000)
            await connection.head()
            for _ in range(20):  # the engine is done long ago; the client reads nothing
                await asyncio.sleep(0.005)
            assert (await caller.stats())["in_flight"] == 1
            chunks = 0
            while chunk := await connection.chunk():
                chunks += b'"content":"w' in chunk
            assert chunks == 300
            await caller.until(lambda s: s["finished"] == 1)

    asyncio.run(scenario())


def test_many_choices_weigh_many_slots() -> None:
    async def scenario() -> None:
        async with scene(slots=4) as caller:
            first = await caller.begin(CHAT, chat_body(hold_s=60) | {"n": 3})
            await caller.until(lambda s: s["started"] == 1)
            await caller.begin(CHAT, chat_body() | {"n": 2})
            stats = await caller.until(lambda s: s["in_flight"] == 2)
            assert (stats["sequences"], stats["waiting"]) == (5, 1)
            first.leave()
            reply = await caller.call(CHAT, chat_body(stream=True) | {"n": 2})
            indices = [event["choices"][0]["index"] for event in reply.events]
            assert indices == [0, 1] * 5

    asyncio.run(scenario())


def test_vllms_own_bound_counts_running_and_waiting() -> None:
    async def scenario() -> None:
        async with scene(slots=1, max_num_queued_reqs=2) as caller:
            for count in (1, 2):
                await caller.begin_chat(hold_s=60)
                await caller.until(lambda s, n=count: s["in_flight"] == n)  # type: ignore[misc]
            refused = await caller.chat()
            assert (refused.status, "retry-after" in refused.headers) == (503, False)

    asyncio.run(scenario())


def test_nothing_is_left_on_the_loop_after_close() -> None:
    async def scenario() -> None:
        stand_in = StandIn(StandInOptions(models=("m",)))
        caller = Caller(stand_in, stand_in.listen())
        await caller.begin_chat(hold_s=60)
        await caller.until(lambda s: s["in_flight"] == 1)
        await stand_in.close()
        await caller.close()
        with pytest.raises(ConnectionRefusedError):
            await caller.connect()

    asyncio.run(scenario())
