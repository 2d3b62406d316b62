"""What a crowd can take is bounded: memory of bodies, connections, descriptors, and patience."""

import asyncio
import contextlib
import json
import os
import resource
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import psutil
import pytest
from doorway import CHAT, doorway
from stopwatch import PATIENCE_S
from wire import Wire, chat

from tornado_frontdoor.proxy.downstream.limits import FOR_A_REQUEST, connections_within

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
HEAD = "POST {} HTTP/1.1\r\nHost: d\r\nContent-Type: application/json\r\n"


def head(size: int) -> bytes:
    return (HEAD.format(CHAT) + f"Content-Length: {size}\r\n\r\n").encode()


def padded(size: int, model: str = "reasoning") -> bytes:
    """Return a chat's body of some size."""
    body = json.dumps(chat(model)).encode()
    return body + b" " * (size - len(body))


# Bodies


def test_bodies_that_fit_into_no_memory_are_told_when_to_come_back() -> None:
    async def scenario() -> None:
        async with doorway(
            {"hold": 0.5}, cap=1, queue=50, max_body_mib=2, server="max_buffered_mib = 4"
        ) as door:
            wires = [await door.wire() for _ in range(12)]
            for wire in wires:
                wire.raw(head(MIB) + padded(MIB))
            replies = [await wire.reply() for wire in wires]
            refused = [reply for reply in replies if reply.status != 200]
            assert len(replies) - len(refused) >= 3
            assert refused
            for reply in refused:
                assert reply.status == 503
                assert reply.json["error"]["code"] == "buffers_full"
                assert 1 <= int(reply.headers["retry-after"]) <= 6
            assert door.outcomes.count("buffers_full") == len(refused)
            assert door.app._bodies.memory.held_bytes == 0

    asyncio.run(scenario())


def test_a_body_that_has_stalled_makes_room_for_one_that_comes() -> None:
    """Uploads that were begun and left alone take nothing from anybody."""

    async def scenario() -> None:
        async with doorway(max_body_mib=2, server="max_buffered_mib = 4") as door:
            stalled = [await door.wire() for _ in range(4)]
            for wire in stalled:
                wire.raw(head(2 * MIB) + b" " * (MIB - 4096))
            await door.until(lambda: door.app._bodies.memory.held_bytes > 3 * MIB)
            await asyncio.sleep(1.1)
            wire = await door.wire()
            wire.raw(head(2 * MIB) + padded(2 * MIB))
            assert (await wire.reply()).status == 200
            assert (await stalled[0].reply()).status == 408
            assert set(door.outcomes) == {"request_timeout", "served"}

    asyncio.run(scenario())


def test_a_body_for_a_full_line_is_refused_by_its_head() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 1}, cap=1, queue=0, max_body_mib=2) as door:
            # `text` takes anybody: only a front door whose lines are all full refuses by the head.
            first = await door.begin(CHAT, chat())
            await door.inside(1)
            wire = await door.wire()
            wire.raw(head(2 * MIB))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(wire.reply(), 0.2)
            wire.leave()
            del door.app.pool.current["text"]
            wire = await door.wire()
            wire.raw(head(2 * MIB))
            reply = await wire.reply()
            assert (reply.status, reply.json["error"]["code"]) == (503, "queue_full")
            assert 1 <= int(reply.headers["retry-after"]) <= 59
            assert (await first.reply()).status == 200

    asyncio.run(scenario())


def test_what_is_silent_gets_a_408_and_what_is_slow_is_waited_for() -> None:
    async def scenario() -> None:
        limits = "head_timeout_s = 0.4\nbody_timeout_s = 0.4"
        async with doorway(server=limits) as door:
            body = json.dumps(chat("text")).encode()
            slow, silent, cut_head = [await door.wire() for _ in range(3)]
            silent.raw(head(len(body)) + body[:5])
            cut_head.raw(b"POST /v1/chat")
            slow.raw(head(len(body)))
            for byte in body[:12]:
                slow.raw(bytes([byte]))
                await asyncio.sleep(0.1)
            slow.raw(body[12:])
            assert (await slow.reply()).status == 200
            reply = await silent.reply()
            assert reply.status == 408
            assert "body_timeout_s" in reply.json["detail"]
            cut = await cut_head.reply()
            assert cut.status == 408
            assert "head_timeout_s" in cut.json["detail"]
            await cut_head.closed(5)
            assert sorted(door.outcomes) == ["request_timeout", "request_timeout", "served"]
            assert next(x for x in door.lines if x["status"] == 408)["code"] == "CT"

    asyncio.run(scenario())


def test_one_address_has_so_many_unfinished_requests_and_the_most_silent_goes() -> None:
    async def scenario() -> None:
        async with doorway(server="max_unfinished_per_address = 3") as door:
            wires = [await door.wire() for _ in range(5)]
            listener = door.app._listeners[0]
            for number, wire in enumerate(wires, start=1):
                wire.raw(head(1000) + b"{")
                await door.until(lambda n=number: len(listener._unfinished) == min(n, 3))
            for wire in wires[:2]:
                assert (await wire.reply()).status == 408
            assert sum(listener._by_address.values()) == 3
            for wire in wires:
                wire.leave()
            await door.until(lambda: not listener._unfinished and not listener._by_address)

    asyncio.run(scenario())


# Connections and descriptors


def test_at_the_bound_an_idle_connection_makes_room_and_a_busy_one_does_not() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 2.5}, server="max_connections = 3") as door:
            busy = [await door.begin(CHAT, chat()) for _ in range(2)]
            await door.inside(2)
            idle = await door.wire()
            newcomer = await door.begin("/v1/models", None, "GET")
            assert (await newcomer.reply()).status == 200
            await idle.closed(5)
            assert len(door.app._listeners[0].connections) == 3
            assert [(await wire.reply()).status for wire in busy] == [200, 200]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("descriptors", "most", "at_engines", "connections"),
    [(1000, 5000, 100, 1000 - 100 * FOR_A_REQUEST), (1000, 50, 100, 50), (10, 50, 100, 1)],
)
def test_connections_leave_descriptors_for_engines(
    descriptors: int, most: int, at_engines: int, connections: int
) -> None:
    assert connections_within(descriptors, most, at_engines) == connections
    uncapped = connections_within(descriptors, most, None)
    assert 1 <= uncapped <= max(1, descriptors * 2 // 3 + FOR_A_REQUEST)


class Serving:
    """A front door as a process of its own, before an engine that is not there."""

    def __init__(self, process: asyncio.subprocess.Process, ports: list[int], log: Path) -> None:
        self.process = psutil.Process(process.pid)
        self.port, self.admin_port = ports
        self.log = log

    async def get(self, path: str, port: int) -> int:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
        wire.send(path, None, "GET")
        status = (await wire.reply()).status
        wire.leave()
        return status

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)


@asynccontextmanager
async def serving(
    folder: Path, descriptors: int | None = None, url: str = "http://127.0.0.1:9", more: str = ""
) -> AsyncIterator[Serving]:
    config = folder / "frontdoor.toml"
    config.write_text(f"""
        [server]
        listen = "127.0.0.1:0"
        admin_listen = "127.0.0.1:0"
        {more}
        [upstreams.text]
        url = "{url}"
        [upstreams.text.admission]
        slots = 8
        cap = 2
        queue = 100
        queue_timeout_s = 30
        [models.text]
        upstream = "text"
        """)

    def limited() -> None:
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    log = folder / "log"
    with log.open("wb") as to:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tornado_frontdoor.cli", "serve", "--config", config),
            stdout=asyncio.subprocess.PIPE,
            stderr=to,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            preexec_fn=limited,
        )
    assert process.stdout is not None
    ports = [int((await process.stdout.readline()).rpartition(b":")[2]) for _ in range(2)]
    try:
        yield Serving(process, ports, log)
    finally:
        process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0


def test_more_idle_connections_than_descriptors_keep_nobody_out(tmp_path: Path) -> None:
    """400 at a limit of 256: no traceback, no busy loop, public and admin listener answer."""

    async def scenario() -> None:
        async with serving(tmp_path, descriptors=256) as door:
            idle = [await asyncio.open_connection("127.0.0.1", door.port) for _ in range(400)]
            before_s, begun_s = door.cpu_s(), monotonic()
            assert await door.get("/metrics", door.admin_port) == 200
            assert await door.get("/v1/models", door.port) == 200
            await asyncio.sleep(1)
            assert (door.cpu_s() - before_s) / (monotonic() - begun_s) < 0.3
            assert door.process.num_fds() < 256
            text = door.log.read_text()
            assert "Traceback" not in text
            assert len(text) < 2000
            for _, writer in idle:
                writer.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_ten_thousand_idle_connections_cost_little(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as door:
            before = door.process.memory_info().rss
            idle = [await asyncio.open_connection("127.0.0.1", door.port) for _ in range(10_000)]
            assert await door.get("/v1/models", door.port) == 200
            each_kib = (door.process.memory_info().rss - before) / len(idle) / 1024
            cpu_s = door.cpu_s()
            await asyncio.sleep(10)
            used = (door.cpu_s() - cpu_s) / 10
            print(f"{each_kib:.1f} KiB each, {used:.1%} of a processor")
            assert each_kib < 16
            assert used < 0.02
            for _, writer in idle:
                writer.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_memory_is_given_back_after_a_crowd(tmp_path: Path) -> None:
    """60 bodies of 4 MiB wait at once; afterwards the process is nearly as small as before."""

    async def scenario() -> None:
        never = socket.create_server(("127.0.0.1", 0))  # takes what comes and answers nothing
        url = f"http://127.0.0.1:{never.getsockname()[1]}"
        async with serving(tmp_path, url=url, more="drain_timeout_s = 0") as door:
            before = door.process.memory_info().rss
            wires = []
            body = padded(4 * MIB, "text")
            for _ in range(60):
                reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
                writer.write(head(len(body)) + body)
                await writer.drain()
                wires.append((reader, writer))
            peak = before
            async with asyncio.timeout(20):
                while peak < before + 200 * MIB:
                    peak = max(peak, door.process.memory_info().rss)
                    await asyncio.sleep(0.02)
            for _, writer in wires:
                writer.close()
            async with asyncio.timeout(20):
                while door.process.memory_info().rss > before + 48 * MIB:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        never.close()

    asyncio.run(scenario())


async def upload(door: Serving, raw: list[bytes]) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", door.port)
    for piece in raw:
        writer.write(piece)
        await writer.drain()
    return writer


async def rise_mib(door: Serving, crowd: list[list[bytes]], whole: int) -> tuple[float, float]:
    """Return by how much memory grew while a crowd was inside, and after it has left."""
    before = door.process.memory_info().rss
    writers = await asyncio.gather(*(upload(door, raw) for raw in crowd))
    peak = before
    async with asyncio.timeout(120):
        while True:
            peak = max(peak, door.process.memory_info().rss)
            if files_of(door) == len(crowd) and (not whole or await waiting(door) == whole):
                break
            await asyncio.sleep(0.05)
    for writer in writers:
        writer.close()
    async with asyncio.timeout(60):
        while door.process.memory_info().rss > before + 48 * MIB:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return (peak - before) / MIB, (door.process.memory_info().rss - before) / MIB


def files_of(door: Serving) -> int:
    """Return how many files without a name it has."""
    names = []
    for file in Path(f"/proc/{door.process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            names.append(os.readlink(file))
    return sum("(deleted)" in name for name in names)


async def waiting(door: Serving) -> int:
    """Return how many requests are inside."""
    wire = Wire(*await asyncio.open_connection("127.0.0.1", door.port))
    wire.send("/health", None, "GET")
    text = (await wire.reply()).json["upstreams"]["text"]
    wire.leave()
    return int(text["in_flight"] + text["queued"])


@pytest.mark.slow
def test_a_crowd_with_large_bodies_takes_disk_and_not_memory(tmp_path: Path) -> None:
    """60 that wait with 8 MiB each, then 40 uploads of 30 MiB that stop before their last byte."""

    async def scenario() -> None:
        never = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{never.getsockname()[1]}"
        more = "drain_timeout_s = 0\nmax_buffered_mib = 256"
        async with serving(tmp_path, url=url, more=more) as door:
            body = padded(8 * MIB, "text")
            crowd = [[head(len(body)), body]] * 60
            waited = await rise_mib(door, crowd, 60)
            pieces = [b" " * MIB] * 29 + [b" " * (MIB - 1)]
            unfinished = await rise_mib(door, [[head(30 * MIB), *pieces]] * 40, 0)
            print(f"MiB at most, and afterwards: {waited} that wait, {unfinished} unfinished")
            assert waited[0] < 120
            assert unfinished[0] < 120
        never.close()

    asyncio.run(scenario())
