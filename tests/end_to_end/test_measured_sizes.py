"""What an engine takes of its GPU, measured: by an `nvidia-smi` on the path that a test writes."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from naps import House, house
from test_explain import explained

from tornado_frontdoor.core.gpu_sizes import GpuSizes
from tornado_frontdoor.proxy.engine.gpu_meter import CannotMeasureError, GpuMeter

SMI = """#!/bin/sh
case "$1" in
  --query-gpu=*) echo "0, GPU-aaa"; echo "1, GPU-bbb";;
  *) echo "GPU-bbb, {pid}, 9999"; echo "GPU-aaa, {pid}, $(cat {folder}/mib)"; echo "GPU-aaa, 1, 7";;
esac
"""
POOL = "[gpu]\nmemory_gib = 80\n"
MEASURED: dict[str, Any] = {
    "gpu": {"devices": [0], "utilization": "measure", "residual_gib": "measure"}
}
Smi = Callable[[int, float], None]


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smi:
    """Return what writes an nvidia-smi that says what a process takes of GPU 0, in GiB."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(pid: int, gib: float) -> None:
        (tmp_path / "mib").write_text(str(round(gib * 1024)))
        program = tmp_path / "nvidia-smi"
        program.write_text(SMI.format(pid=pid, folder=tmp_path))
        program.chmod(0o755)

    return write


async def takes(door: House, depth: str, gib: float) -> None:
    """Wait until that is what the engine is known to take."""
    await door.until(lambda: door.gate.takes_gib.get(depth) == pytest.approx(gib, abs=0.01))


def test_what_it_takes_awake_and_asleep_is_measured_told_and_kept(smi: Smi) -> None:
    async def scenario() -> None:
        smi(os.getpid(), 30.0)
        async with house(tables={"text": MEASURED}, pool=POOL, settle=False) as door:
            await takes(door, "awake", 30.0)
            smi(os.getpid(), 2.5)
            await door.put_to_sleep(1)
            await takes(door, "sleeping", 2.5)
            smi(os.getpid(), 3.5)
            assert (await door.admin("/admin/sleep/text?level=2", "POST")).status == 200
            await takes(door, "offloaded", 3.5)
            told = await explained(door)
            assert told["takes_gib"] == {"awake": 30.0, "sleeping": 2.5, "offloaded": 3.5}
            texts = [one["text"] for one in told["history"]]
            assert "it takes 2.5 GiB of each of its GPUs at level 1" in texts
            journal = door.app.pool._journal
            assert journal is not None
            url = door.upstream().settings.url
            known = GpuSizes(awake_seen_gib=30.0, sleeping_seen_gib=2.5, offloaded_seen_gib=3.5)
            await door.until(lambda: GpuSizes.learned(journal.recall(url).sizes_gib) == known)

    asyncio.run(scenario())


def test_one_of_which_nothing_is_known_wakes_alone_and_then_beside_others(smi: Smi) -> None:
    async def scenario() -> None:
        tables = {"text": MEASURED, "code": {"gpu": {"devices": [0], "utilization": 0.3}}}
        async with house("code", "text", tables=tables, pool=POOL, hold_sleeping_s=30) as door:
            await door.put_to_sleep(1)
            assert (await door.ask("code")).status == 200
            smi(os.getpid(), 20.0)
            assert (await door.ask("text")).status == 200
            assert door.depth("code") == 1, "it made room for one that may take all"
            gate = door.upstream("text").keeper.gate
            await door.until(lambda: gate.takes_gib["awake"] == 20.0)
            assert (await door.ask("code")).status == 200
            assert (door.depth("code"), door.depth("text")) == (0, 0)

    asyncio.run(scenario())


def test_where_it_cannot_be_measured_that_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        async with house(tables={"text": MEASURED}, pool=POOL) as door:
            await door.put_to_sleep(1)
            texts = [one["text"] for one in (await explained(door))["history"]]
            assert sum("cannot run nvidia-smi" in text for text in texts) == 1

    asyncio.run(scenario())


FORKS = """
import os, socket, sys, time
sock = socket.create_server(("127.0.0.1", int(sys.argv[1])))
pid = os.fork()
if pid:
    print(pid, flush=True)
time.sleep(60)
"""


def test_memory_of_what_an_engine_has_started_is_its_own(smi: Smi) -> None:
    """VLLM listens in one process and holds its memory in another."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    engine = subprocess.Popen(
        [sys.executable, "-c", FORKS, str(port)], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert engine.stdout is not None
        smi(int(engine.stdout.readline()), 5.0)
        url = f"http://127.0.0.1:{port}"
        assert asyncio.run(GpuMeter(url, (0,)).measure_gib()) == pytest.approx(5.0)
        assert asyncio.run(GpuMeter(url, (0, 1)).measure_gib()) == pytest.approx(9999 / 1024)
        for where, devices, why in [
            (url, (7,), "knows other GPUs: 0, 1"),
            (f"http://127.0.0.1:{port + 1}", (0,), "shows no process of it"),
            ("http://192.0.2.1:80", (0,), "runs on another machine"),
        ]:
            with pytest.raises(CannotMeasureError, match=why):
                asyncio.run(GpuMeter(where, devices).measure_gib())
    finally:
        os.killpg(engine.pid, 9)
        engine.wait()
        assert engine.stdout is not None
        engine.stdout.close()
