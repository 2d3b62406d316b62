"""Bodies in files: what goes there, what comes back, and what a full disk does to them."""

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tornado_frontdoor.config.settings import ServerSettings
from tornado_frontdoor.proxy.downstream.body_store import (
    FLUSH_BYTES,
    BodyStore,
    ReceivedBody,
)

PIECE = os.urandom(64 * 1024)
DESCRIPTORS = Path("/proc/self/fd")


class Scene:
    """A store in a folder, and the budget of what is in memory."""

    def __init__(self, folder: Path, most_files: int = 9) -> None:
        self.store = BodyStore(folder / "state", most_files)
        self.store.change(ServerSettings(spill_body_mib=2))
        self.budget = self.store.memory

    async def received(self, pieces: int) -> ReceivedBody:
        body = ReceivedBody(self.budget)
        for _ in range(pieces):
            assert self.budget.take(len(PIECE))
            body.add(PIECE)
            if body.wants_to_spill(self.store):
                await body.spill(self.store)
        return body

    def nothing_is_left(self) -> bool:
        left = self.store.files, self.store.held_bytes, self.budget.held_bytes
        self.store.close()
        return left == (0, 0, 0)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    before = sorted(os.listdir(DESCRIPTORS))
    asyncio.run(scenario)
    assert sorted(os.listdir(DESCRIPTORS)) == before


async def read(body: ReceivedBody) -> bytes:
    body.begin()
    return await asyncio.to_thread(body.whole)


def test_a_large_body_leaves_memory_and_comes_back_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        body = await scene.received(100)
        assert body.small() is None
        assert scene.budget.held_bytes <= FLUSH_BYTES
        assert list((tmp_path / "state").iterdir()) == [], "the file has no name"
        whole = await read(body)
        assert whole == PIECE * 100
        sent = body.keep(whole, unchanged=True)
        body.end()
        assert not isinstance(sent, bytes)
        assert scene.budget.held_bytes == 0
        assert sent.size_bytes == len(whole)
        assert sent.read(65_000, 1000) == whole[65_000:66_000]
        body.forget()
        assert sent.read(0, 10) == b""
        assert scene.nothing_is_left()

    run(scenario())


@pytest.mark.parametrize("other", [b"short", PIECE * 120], ids=["shorter", "longer"])
def test_what_an_engine_is_sent_takes_the_place_of_the_body(tmp_path: Path, other: bytes) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        body = await scene.received(100)
        await read(body)
        sent = body.keep(other, unchanged=False)
        body.end()
        assert not isinstance(sent, bytes)
        assert (sent.size_bytes, sent.read(0, 1 << 30)) == (len(other), other)
        body.forget()
        assert scene.nothing_is_left()

    run(scenario())


def test_a_client_that_leaves_while_its_body_is_written_or_read_leaves_nothing(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        body = await scene.received(100)
        body.begin()
        reading = asyncio.get_running_loop().run_in_executor(None, body.whole)
        body.forget()
        assert (await reading)[: len(PIECE)] == PIECE
        body.end()
        body = await scene.received(20)
        for _ in range(20):
            scene.budget.take(len(PIECE))
            body.add(PIECE)
        spilling = asyncio.ensure_future(body.spill(scene.store))
        await asyncio.sleep(0)
        body.forget()
        await spilling
        assert scene.nothing_is_left()

    run(scenario())


@pytest.mark.parametrize("trouble", ["no folder", "no room", "no descriptor", "disk full"])
def test_where_no_file_can_be_a_body_stays_in_memory(
    tmp_path: Path, trouble: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path, most_files=0 if trouble == "no descriptor" else 9)
        if trouble == "no folder":
            (tmp_path / "state").write_text("a file")
        elif trouble == "no room":
            scene.store.limit_bytes = FLUSH_BYTES * 3
        elif trouble == "disk full":
            write, written = os.pwrite, 0

            def full(*arguments: Any) -> int:
                nonlocal written
                written += 1
                if written > 50:
                    raise OSError(28, "No space left on device")
                return write(*arguments)

            monkeypatch.setattr(os, "pwrite", full)
        body = await scene.received(100)
        assert scene.budget.held_bytes > 20 * len(PIECE)
        whole = await read(body)
        assert whole == PIECE * 100
        assert body.keep(whole, unchanged=True) is whole
        body.end()
        body.forget()
        assert scene.nothing_is_left()
        said = [record.message for record in caplog.records]
        assert len(said) == (trouble in ("no folder", "disk full"))

    run(scenario())


def test_a_body_in_single_bytes_takes_no_more_memory_than_one_in_large_pieces(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        body = ReceivedBody(scene.budget)
        sent = os.urandom(300_000)
        for at in range(len(sent)):
            scene.budget.take(1)
            body.add(sent[at : at + 1])
            if at == 150_000:
                for _ in range(3):
                    scene.budget.take(len(PIECE))
                    body.add(PIECE)
        assert len(body._pieces) < 10
        assert body.small() == sent[:150_001] + 3 * PIECE + sent[150_001:]
        body.forget()
        assert scene.nothing_is_left()

    run(scenario())
