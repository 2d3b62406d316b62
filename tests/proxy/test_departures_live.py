"""Clients that leave, in every state and in every way: the slot is free and the engine told."""

import asyncio
import contextlib
import os
import random
from collections.abc import Callable
from time import monotonic

import pytest
from doorway import CHAT, Doorway, doorway
from stopwatch import Stopwatch
from wire import Cut, Wire, chat, request

from tornado_frontdoor.core.decisions import Admit, EngineState, Refusal

NOTICE_LOOKS = 50
"""A tenth of a second on an idle machine."""


HOWS: list[Callable[[Wire], None]] = [Wire.leave, Wire.reset, Wire.half_close]
UNREAD = [
    pytest.param(b"", id="nothing"),
    pytest.param(b"\r\n", id="crlf"),
    pytest.param(request("/v1/models", None, "GET"), id="pipelined"),
    pytest.param(request(CHAT, chat()), id="pipelined-chat"),
]
"""What a client sends after its request and before it leaves. Tornado takes it into its buffer,
stops reading, and so never learns of a close that comes later."""

leaving = pytest.mark.parametrize("leave", HOWS)
unread = pytest.mark.parametrize("more", UNREAD)


async def within_notice(door: Doorway, condition: Callable[[], bool]) -> None:
    """Wait for what must be true at once."""
    assert await door.until(condition) < NOTICE_LOOKS


@leaving
@unread
def test_who_leaves_the_line_frees_the_place_and_never_reaches_the_engine(
    leave: Callable[[Wire], None], more: bytes
) -> None:
    """F22, F25, F46: also with bytes left unread, which hide the close from the server."""

    async def scenario() -> None:
        async with doorway(cap=1, queue=2) as door:
            first = await door.begin(CHAT, chat(hold_s=60))
            await door.inside(1)
            second = await door.begin(CHAT, chat())
            second.raw(more)
            await door.inside(1, 1)
            third = await door.begin(CHAT, chat())
            await door.inside(1, 2)
            leave(second)
            await within_notice(door, lambda: door.gate.queued == 1)
            fourth = await door.begin(CHAT, chat())  # the place is free again
            await door.inside(1, 2)
            first.leave()
            ids = [(await w.reply()).headers["x-request-id"] for w in (third, fourth)]
            assert door.stats()["order"][1:] == ids
            gone = [line for line in door.lines if line["outcome"] == "client_gone_queued"]
            assert [(line["code"], line["status"]) for line in gone] == [("CQ", 0)]

    asyncio.run(scenario())


@leaving
@unread
@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_a_silent_engine_frees_the_slot_and_ends_the_call(
    leave: Callable[[Wire], None], more: bytes, stream: bool
) -> None:
    """F11: not a byte is on its way from which the close could be learnt."""

    async def scenario() -> None:
        async with doorway({"hold": 60}, cap=1, queue=1) as door:
            wire = await door.begin(CHAT, chat(stream=stream))
            wire.raw(more)
            await door.until(lambda: door.stats()["started"] == 1)
            waiting = await door.begin(CHAT, chat(hold_s=0))
            await door.inside(1, 1)
            leave(wire)
            await within_notice(
                door, lambda: door.stats()["aborted"] == 1 and door.stats()["started"] == 2
            )
            assert (await waiting.reply()).status == 200
            assert door.outcomes[0] == "client_gone_streaming"
            assert door.lines[0]["code"] == "CD"

    asyncio.run(scenario())


@leaving
@unread
def test_who_leaves_a_stream_frees_the_slot_and_ends_the_call(
    leave: Callable[[Wire], None], more: bytes
) -> None:
    """F8, F11: the engine sees the close within a tenth of a second."""

    async def scenario() -> None:
        async with doorway({"tokens": 1000, "gap_ms": 20}, cap=1, queue=0) as door:
            wire = await door.begin(CHAT, chat(stream=True))
            wire.raw(more)
            assert (await wire.head())[0] == 200
            for _ in range(3):
                await wire.chunk()
            leave(wire)
            await within_notice(
                door, lambda: door.stats()["aborted"] == 1 and door.gate.in_flight == 0
            )
            assert door.stats()["finished"] == 0

    asyncio.run(scenario())


def test_who_leaves_while_a_body_comes_in_takes_nothing() -> None:
    """F6: nobody is inside before a request is whole."""

    async def scenario() -> None:
        async with doorway(cap=1, queue=0) as door:
            for leave in (Wire.leave, Wire.reset, Wire.half_close):
                wire = await door.wire()
                wire.raw(
                    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
                )
                await wire.writer.drain()
                await asyncio.sleep(0.02)
                leave(wire)
            assert (await door.call(CHAT, chat())).status == 200
            await door.until(lambda: sorted(door.outcomes) == [*["request_timeout"] * 3, "served"])

    asyncio.run(scenario())


def test_a_grant_in_the_turn_in_which_its_client_left_is_given_on() -> None:
    """F28, F45, F48: granted and gone in one instant is the leak of every semaphore."""

    async def scenario() -> None:
        async with doorway({"hold": 60}, cap=1, queue=4) as door:
            for _ in range(30):
                holder = await door.begin(CHAT, chat())
                await door.inside(1)
                waiter = await door.begin(CHAT, chat(tokens=1))
                await door.inside(1, 1)
                last = await door.begin(CHAT, chat(hold_s=0, tokens=1))
                await door.inside(1, 2)
                holder.reset()  # both closes are seen in one turn of the loop
                waiter.reset()
                assert (await last.reply()).status == 200
                last.leave()
                await door.inside(0)
            assert door.stats()["started"] == 60, "the waiters never reached the engine"

    asyncio.run(scenario())


def test_a_grant_to_who_left_an_instant_ago_never_reaches_the_engine() -> None:
    """The close comes between the grant and the call: nothing but a look would tell."""

    async def scenario() -> None:
        async with doorway({"hold": 60}, cap=1, queue=1) as door:
            holder = await door.begin(CHAT, chat())
            await door.inside(1)
            sock, loop = await door.thirsty()
            await loop.sock_sendall(sock, request(CHAT, chat()))
            await door.inside(1, 1)
            (lease,) = door.waiting
            told = lease.on_decision
            assert told is not None

            def leave_first(decision: Admit | Refusal) -> None:
                sock.close()
                told(decision)

            lease.on_decision = leave_first
            holder.leave()
            await door.inside(0)
            assert door.stats()["started"] == 1
            assert door.outcomes == ["client_gone_streaming", "client_gone_queued"]

    asyncio.run(scenario())


def test_who_stays_but_stops_reading_is_cut_after_the_stall_timeout() -> None:
    """F47: a slot is not held for ever by a client that sleeps."""

    async def scenario() -> None:
        async with doorway(
            {"tokens": 9000, "gap_ms": 1}, cap=1, queue=1, write_stall_timeout_s=0.4
        ) as door:
            wire = await door.begin(CHAT, chat(stream=True, bytes_per_token=50_000))
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await door.inside(1)
            watch = Stopwatch()
            await door.until(lambda: door.gate.in_flight == 0)
            assert watch.wall_s > 0.3
            assert watch.own_s < 2.5
            await door.until(lambda: door.stats()["aborted"] == 1)
            assert door.outcomes == ["client_gone_streaming"]

    asyncio.run(scenario())


def test_who_reads_slowly_is_served_to_the_end() -> None:
    """Slow is not stalled: 2 s of sips, none of which empties a third of the kernel's buffer."""

    async def scenario() -> None:
        async with doorway({"tokens": 400}, cap=1, queue=1, write_stall_timeout_s=0.5) as door:
            sock, loop = await door.thirsty()
            with sock:
                body = chat(stream=True, bytes_per_token=20_000)
                await loop.sock_sendall(sock, request(CHAT, body, Connection="close"))
                await door.inside(1)
                size = 0
                began_s = monotonic()
                while piece := await loop.sock_recv(sock, 4096):
                    size += len(piece)
                    if monotonic() - began_s < 2:
                        await asyncio.sleep(0.02)
                assert size > 400 * 20_000
            await door.at_rest()
            assert door.outcomes == ["served"]

    asyncio.run(scenario())


def test_an_answer_that_is_complete_holds_no_slot_while_its_client_reads_on() -> None:
    """The engine is done, so is the slot: whoever reads the rest late delays nobody."""

    async def scenario() -> None:
        async with doorway({"tokens": 1}, cap=1, queue=0, write_stall_timeout_s=0.4) as door:
            wire = await door.begin(CHAT, chat(bytes_per_token=20_000_000))
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await door.until(lambda: door.stats()["finished"] == 1)
            await door.inside(1)  # paused: the engine has said all, but not yet to us
            wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert len((await wire.reply()).body) > 20_000_000

    asyncio.run(scenario())


# A storm


async def one_of_the_storm(door: Doorway, rng: random.Random, seen: list[int]) -> None:
    """Be a client of any kind: patient, gone at any moment, or one whose engine fails."""
    await asyncio.sleep(rng.uniform(0, 1.0))
    stream = rng.random() < 0.5
    knobs: dict[str, object] = {"hold_s": rng.uniform(0, 0.1), "tokens": 6, "gap_ms": 5}
    fate = rng.random()
    if fate < 0.1:
        knobs["status"] = rng.choice([400, 429, 500, 503])
    elif fate < 0.25:
        how = rng.choice(["die", "fail", "end", "stall"])
        knobs |= {"break_after": rng.randrange(4), "break_how": how}
    elif fate < 0.3:
        knobs["silent"] = True
    model = rng.choice(["reasoning", "thinker", "text", "nobody"])
    n = rng.choice([1, 1, 1, 2, 3])
    wire = await door.begin(CHAT, chat(model, stream=stream, n=n, **knobs))
    if rng.random() < 0.5:
        await asyncio.sleep(rng.uniform(0, 0.25))
        with contextlib.suppress(OSError):  # cut already by the other side
            wire.raw(rng.choice(UNREAD[:3]).values[0])  # type: ignore[arg-type]
            await asyncio.sleep(rng.choice([0, 0.01]))
            rng.choice(HOWS)(wire)
    try:
        seen.append((await wire.reply()).status)
    except (Cut, ConnectionError):
        seen.append(0)
    finally:
        wire.leave()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_storm_of_departures_and_deaths_ends_at_zero(seed: int) -> None:
    """F2, F7, F14, F31, F41: 300 clients of all kinds; afterwards nothing is left anywhere."""
    seed = int(os.environ.get("STORM_SEED", seed))
    print(f"replay: STORM_SEED={seed} pytest {__file__} -k storm")
    descriptors = len(os.listdir("/proc/self/fd"))

    async def scenario() -> None:
        async with doorway(
            {"notice_ms": (0, 8, 0)[seed % 3]},
            cap=6,
            queue=8,
            queue_timeout_s=0.3,
            read_timeout_s=0.5,
            chunk_timeout_s=0.3,
        ) as door:
            rng = random.Random(seed)
            seen: list[int] = []
            streams = [random.Random(rng.random()) for _ in range(300)]
            most = asyncio.ensure_future(most_in_flight(door))
            await asyncio.gather(*(one_of_the_storm(door, own, seen) for own in streams))
            await door.at_rest()
            most.cancel()
            assert door.most <= 6
            assert door.stats()["max_sequences"] <= 6, "above the cap, at the engine"
            assert set(seen) <= {0, 200, 400, 404, 429, 500, 502, 503, 504}
            assert len(door.lines) == 300
            assert len({line["request_id"] for line in door.lines}) == 300
            outcomes = set(door.outcomes)
            # On a busy machine the crowd comes late, and not everything happens to it.
            assert {"served", "client_gone_streaming"} <= outcomes
            assert sorted(await counted(door)) == sorted(door.outcomes)
            # All six slots are there: nothing leaked, in either direction.
            full = await door.begin(CHAT, chat(n=6, hold_s=0))
            assert (await full.reply()).status == 200

    asyncio.run(scenario())
    assert len(os.listdir("/proc/self/fd")) == descriptors


async def most_in_flight(door: Doorway) -> None:
    """Look again and again at how many are in flight."""
    while True:
        door.most = max(door.most, door.gate.in_flight)
        await asyncio.sleep(0)


async def counted(door: Doorway) -> list[str]:
    """Return every outcome as often as the metrics count it."""
    text = (await door.admin("/metrics")).body.decode()
    outcomes: list[str] = []
    for line in text.splitlines():
        if line.startswith("frontdoor_requests_total{"):
            labels, _, count = line.rpartition(" ")
            outcomes += [labels.split('outcome="')[1].split('"')[0]] * int(float(count))
    return outcomes


async def rest_of(wire: Wire) -> None:
    while await wire.chunk():
        pass


def test_an_engine_that_dies_under_six_streams_leaves_nothing() -> None:
    """F11: all of them learn it, the queue is told when to come back, the next one is served."""

    async def scenario() -> None:
        async with doorway({"tokens": 1000, "gap_ms": 10}, cap=6, queue=2) as door:
            wires = [await door.begin(CHAT, chat(stream=True)) for _ in range(6)]
            for wire in wires:
                await wire.head()
                await wire.chunk()
            waiting = [await door.begin(CHAT, chat(tokens=1)) for _ in range(2)]
            await door.inside(6, 2)
            door.reasoning.kill(0.3, abrupt=True, accept_s=0)
            for wire in wires:
                with pytest.raises(Cut):
                    await rest_of(wire)
            for wire in waiting:
                assert (await wire.reply()).status == 503
            await door.at_rest()
            await door.until(lambda: door.gate.state is EngineState.AWAKE)
            assert (await door.call(CHAT, chat(tokens=1))).status == 200
            assert door.outcomes == ["upstream_error"] * 6 + ["model_waking"] * 2 + ["served"]

    asyncio.run(scenario())


def test_a_watch_is_never_left_behind() -> None:
    """Numbers of sockets are given out again; a watch must not be mistaken for another's."""

    async def scenario() -> None:
        async with doorway(cap=2, queue=2) as door:
            for _ in range(200):
                wires = [await door.wire() for _ in range(3)]
                for wire in wires:
                    wire.send("/v1/models", None, "GET")
                for wire in wires[:2]:
                    assert (await wire.reply()).status == 200
                for wire in wires:
                    wire.reset()
            await door.at_rest()
            assert (await door.call(CHAT, chat())).status == 200

    asyncio.run(scenario())
