"""Clients of `/llm` that leave, in every state and in every way: nothing of them is left."""

import asyncio
import os
import random
from collections.abc import Callable

import pytest
from doorway import CHAT, Doorway, doorway
from llm import COUNT_TOKENS, MESSAGES, ask
from stopwatch import Stopwatch
from wire import Cut, Wire, chat

NOTICE_LOOKS = 100
"""A fifth of a second on an idle machine."""


def crlf_then_close(wire: Wire) -> None:
    wire.raw(b"\r\n")
    wire.leave()


LEAVINGS: list[Callable[[Wire], None]] = [
    Wire.leave,
    Wire.reset,
    Wire.half_close,
    crlf_then_close,
]


async def within_notice(door: Doorway, condition: Callable[[], bool]) -> None:
    """Wait for what must be true at once."""
    assert await door.until(condition) < NOTICE_LOOKS


@pytest.mark.parametrize("leave", LEAVINGS)
@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_the_line_never_reaches_the_engine(
    leave: Callable[[Wire], None], stream: bool
) -> None:
    async def scenario() -> None:
        async with doorway(cap=1, queue=1) as door:
            first = await door.begin(CHAT, chat(hold_s=60))
            await door.inside(1)
            second = await door.begin(MESSAGES, ask(stream=stream))
            await door.inside(1, 1)
            leave(second)
            await within_notice(door, lambda: door.gate.queued == 0)
            third = await door.begin(MESSAGES, ask(stream=stream))
            await door.inside(1, 1)
            first.leave()
            served = (await third.reply()).headers["x-request-id"]
            assert door.stats()["order"][1:] == [served]
            assert door.outcomes[0] == "client_gone_queued"

    asyncio.run(scenario())


@pytest.mark.parametrize("leave", LEAVINGS)
@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_a_silent_engine_frees_the_slot_and_ends_the_call(
    leave: Callable[[Wire], None], stream: bool
) -> None:
    async def scenario() -> None:
        async with doorway({"hold": 60}, cap=1, queue=0) as door:
            wire = await door.begin(MESSAGES, ask(stream=stream))
            await door.until(lambda: door.stats()["started"] == 1)
            leave(wire)
            await within_notice(
                door, lambda: door.stats()["aborted"] == 1 and door.gate.in_flight == 0
            )
            assert door.outcomes == ["client_gone_streaming"]

    asyncio.run(scenario())


@pytest.mark.parametrize("leave", LEAVINGS)
def test_who_leaves_a_stream_frees_the_slot_and_ends_the_call(
    leave: Callable[[Wire], None],
) -> None:
    async def scenario() -> None:
        async with doorway({"tokens": 1000, "gap_ms": 20}, cap=1, queue=0) as door:
            wire = await door.begin(MESSAGES, ask(stream=True))
            assert (await wire.head())[0] == 200
            for _ in range(3):
                await wire.chunk()
            leave(wire)
            await within_notice(
                door, lambda: door.stats()["aborted"] == 1 and door.gate.in_flight == 0
            )
            assert door.stats()["finished"] == 0

    asyncio.run(scenario())


def test_who_leaves_while_an_answer_is_collected_ends_the_call() -> None:
    """A plain answer sends no byte before its end, so nothing but the socket tells of a leave."""

    async def scenario() -> None:
        async with doorway({"tokens": 20, "gap_ms": 50}, cap=1, queue=0) as door:
            for leave in LEAVINGS:
                wire = await door.begin(MESSAGES, ask())
                await door.inside(1)
                await asyncio.sleep(0.05)
                leave(wire)
                await within_notice(door, lambda: door.gate.in_flight == 0)
                await door.until(lambda: door.gate.cooling == 0)  # the engine has let go of it too
            await door.until(lambda: door.stats()["aborted"] == len(LEAVINGS))

    asyncio.run(scenario())


def test_who_leaves_while_a_body_comes_in_takes_nothing() -> None:
    async def scenario() -> None:
        async with doorway(cap=1, queue=0) as door:
            for leave in LEAVINGS[:3]:
                wire = await door.wire()
                wire.raw(
                    b"POST /llm/v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
                )
                await wire.writer.drain()
                await door.until(lambda: door.app._listeners[0]._unfinished)
                leave(wire)
                await door.until(lambda: not door.app._listeners[0]._unfinished)
            assert (await door.call(MESSAGES, ask())).status == 200
            assert door.outcomes == [*["request_timeout"] * 3, "served"]

    asyncio.run(scenario())


def test_who_stays_but_stops_reading_is_cut_and_pings_do_not_keep_it_alive() -> None:
    async def scenario() -> None:
        async with doorway({"gap_ms": 0}, cap=1, queue=0, write_stall_timeout_s=0.4) as door:
            door.app.door.keep_alive_s = 0.02
            wire = await door.begin(MESSAGES, ask(stream=True, tokens=2000, bytes_per_token=50_000))
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await door.inside(1)
            watch = Stopwatch()
            await door.until(lambda: door.gate.in_flight == 0)
            assert watch.wall_s > 0.3
            assert watch.own_s < 3
            await door.until(lambda: door.stats()["aborted"] == 1)
            assert door.outcomes == ["client_gone_streaming"]

    asyncio.run(scenario())


# A storm


def order(rng: random.Random) -> dict[str, object]:
    """Return what an engine is told to do for one of the storm."""
    knobs: dict[str, object] = {"hold_s": rng.uniform(0, 0.1), "tokens": 6, "gap_ms": 5}
    fate = rng.random()
    if fate < 0.1:
        knobs["status"] = rng.choice([400, 401, 429, 500, 503])
    elif fate < 0.25:
        how = rng.choice(["die", "fail", "end", "stall"])
        knobs |= {"break_after": rng.randrange(4), "break_how": how}
    elif fate < 0.3:
        knobs["silent"] = True
    elif fate < 0.5:
        calls = [{"name": "f", "arguments": {"x": n}} for n in range(rng.randrange(3))]
        knobs |= {"reasoning": "let me see", "text": "so it is", "tool_calls": calls}
    return knobs


async def one_of_the_storm(door: Doorway, rng: random.Random, seen: list[int]) -> None:
    """Be a client of either dialect: patient, gone at any moment, or one whose engine fails."""
    await asyncio.sleep(rng.uniform(0, 1.0))
    stream, knobs = rng.random() < 0.5, order(rng)
    model = rng.choice(["reasoning", "claude-opus", "text", "nobody"])
    kind = rng.random()
    if kind < 0.7:
        wire = await door.begin(MESSAGES, ask(model, stream=stream, **knobs))
    elif kind < 0.8:
        wire = await door.begin(COUNT_TOKENS, ask(model))
    else:
        wire = await door.begin(CHAT, chat(model, stream=stream, **knobs))
    if rng.random() < 0.5:
        await asyncio.sleep(rng.uniform(0, 0.25))
        rng.choice(LEAVINGS)(wire)
    try:
        seen.append((await wire.reply()).status)
    except (Cut, ConnectionError):
        seen.append(0)
    finally:
        wire.leave()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm_of_departures_and_deaths_ends_at_zero(seed: int) -> None:
    """300 clients of all kinds and of both dialects; afterwards nothing is left anywhere."""
    seed = int(os.environ.get("STORM_SEED", seed))
    print(f"replay: STORM_SEED={seed} pytest {__file__} -k storm")
    descriptors = len(os.listdir("/proc/self/fd"))

    async def scenario() -> None:
        async with doorway(
            {"notice_ms": 8 * (seed % 2)},
            cap=6,
            queue=8,
            queue_timeout_s=0.3,
            read_timeout_s=0.5,
            chunk_timeout_s=0.3,
        ) as door:
            door.app.door.keep_alive_s = 0.05
            rng = random.Random(seed)
            seen: list[int] = []
            streams = [random.Random(rng.random()) for _ in range(300)]
            await asyncio.gather(*(one_of_the_storm(door, own, seen) for own in streams))
            await door.at_rest()
            assert door.stats()["max_sequences"] <= 6, "above the cap, at the engine"
            assert set(seen) <= {0, 200, 400, 401, 404, 429, 500, 502, 503, 504, 529}
            assert {0, 200, 404} <= set(seen)
            assert len(door.lines) == 300
            assert len({line["request_id"] for line in door.lines}) == 300
            # On a busy machine the crowd comes late, and not everything happens to it.
            assert {"served", "client_gone_streaming"} <= {
                line["outcome"] for line in door.lines if line["surface"] == "anthropic"
            }
            # All six slots are there: nothing leaked, in either direction.
            full = await door.begin(CHAT, chat(n=6, hold_s=0))
            assert (await full.reply()).status == 200

    asyncio.run(scenario())
    assert len(os.listdir("/proc/self/fd")) == descriptors
