"""Counts the files that a request, a slot, a wake and a simulated arrival pass, by watching them.

    PYTHONPATH=. .venv/bin/python docs/tools/walks.py

Each walk is made once unwatched, so that what is only done at first is done, and once watched: the
files of ours whose functions are entered, in order, and how often one hands over to another.
"""

import asyncio
import io
import json
import logging
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from types import FrameType

from simulator.model.scenario import Scenario
from simulator.standin.server import StandIn, StandInOptions
from simulator.study.experiment import Plan, observe
from simulator.traffic.distributions import Distribution
from simulator.traffic.workload import Renewal, Service
from tornado_frontdoor import AdmissionLimits, GateDriver, UpstreamKey
from tornado_frontdoor.config import load
from tornado_frontdoor.core.decisions import Outcome
from tornado_frontdoor.proxy.app import App

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = """
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
[upstreams.text]
url = "http://127.0.0.1:{port}"
[upstreams.text.sleep]
max_waiting = 4
idle_sleep_s = 0
idle_offload_s = 0
[models.text]
upstream = "text"
"""
Walk = list[str]


@contextmanager
def watched(*rooms: str) -> Iterator[Walk]:
    """Give the files whose functions are entered, each as often as it is come to."""
    walk: Walk = []
    folders = tuple(f"{ROOT / room}/" for room in rooms)

    def look(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(folders) and "<" not in frame.f_code.co_name:
            name = file.removeprefix(f"{ROOT}/")
            if not walk or walk[-1] != name:
                walk.append(name)

    sys.setprofile(look)
    try:
        yield walk
    finally:
        sys.setprofile(None)


def told(name: str, walk: Walk) -> None:
    """Print what a walk was."""
    files = list(dict.fromkeys(walk))
    print(f"\n{name}: {len(files)} files, {max(0, len(walk) - 1)} hand-overs")
    print("   ", " > ".join(file.removeprefix("tornado_frontdoor/") for file in files))


async def ask(url: str, *, stream: bool = False, path: str = "/v1/chat/completions") -> None:
    """Make one call, on a thread that nobody watches."""
    body = {"model": "text", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    headers = {"Content-Type": "application/json", "X-Frontdoor-Admin": "1"}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)  # noqa: S310
    await asyncio.to_thread(lambda: urllib.request.urlopen(request).read())  # noqa: S310


async def requests(folder: Path) -> None:
    """Watch a streamed request, and a wake from each level, in a whole front door."""
    engine = StandIn(StandInOptions(models=("text",), sleep_mode=True, tokens=1))
    path = folder / "frontdoor.toml"
    path.write_text(CONFIGURATION.format(port=engine.listen()))
    app = App(load(path), lambda: load(path), io.StringIO())
    public, admin = (f"http://{address}" for address in app.start())
    upstream = app.pool.current["text"]
    while upstream.state != "awake":  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await ask(public, stream=True)
    with watched("tornado_frontdoor") as walk:
        await ask(public, stream=True)
    told("a streamed request, from its head to its access line", walk)
    for level in (1, 2):
        await ask(admin, path=f"/admin/sleep/text?level={level}")
        with watched("tornado_frontdoor") as walk:
            await ask(admin, path="/admin/wake/text?wait=true")
        told(f"a wake from level {level}, by an operator", walk)
        begun = [i for i, file in enumerate(walk) if file.endswith("proxy/engine/executor.py")]
        steps = list(pairwise(begun))
        files = {len(set(walk[a:b])) for a, b in steps}
        print(f"    from one command to the next: {min(files)} to {max(files)} files")
        inside = [file for file in walk if "/core/wake" in file]
        crossed = sum("/core/wake" in a and "/core/wake" in b for a, b in pairwise(walk))
        print(f"    in the wake machine: {len(set(inside))} files, {crossed} hand-overs among them")
    await app.close()
    await engine.close()


async def slots() -> None:
    """Watch one slot: taken, waited for, given on."""
    limits = AdmissionLimits(cap=1, queue=4, queue_timeout_s=30)
    driver = GateDriver(UpstreamKey("gpu"), limits, Random(1))  # noqa: S311

    def once() -> None:
        first, second = driver.enter(), driver.enter()
        first.close(Outcome.SERVED)
        second.close(Outcome.SERVED)

    once()
    with watched("tornado_frontdoor") as walk:
        once()
    told("a slot: taken, waited for, given on, given back", walk)
    driver.close()


def arrivals() -> None:
    """Watch a simulated run of one arrival; a second run shows what each further one passes."""

    def run(count: int) -> Callable[[], object]:
        scenario = Scenario(
            cap=2,
            queue=2,
            timeout_s=30.0,
            arrivals=Renewal(rate=1.0),
            service=Service(seconds=Distribution("exp", 1.0)),
            requests=count,
            warmup=0,
        )
        return lambda: observe(scenario, Plan(driver="heap"))

    run(1)()
    with watched("tornado_frontdoor/core", "simulator") as walk:
        run(1)()
    told("a simulated arrival, with all that starts and ends a run", walk)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(requests(Path(temporary)))
    asyncio.run(slots())
    arrivals()
