"""The twin: one list of arrivals through the live front door and through the simulator.

Both end alike, request by request and in the same order. The live one is the whole front door, from
its listener to libcurl, and a stand-in engine, on virtual time: an instant is an instant there too,
however busy the machine is. By hand, many more requests are held against theory.
"""

import asyncio
import io
import json
import math
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import callers
import numpy as np
import pytest
from network import Network
from tornado.ioloop import IOLoop
from virtual_time import VirtualLoop, virtual_clock

from simulator.exact.closed_form import BoundedQueue
from simulator.model.scenario import Scenario
from simulator.standin.server import StandIn, StandInOptions
from simulator.study.experiment import Plan, observe
from simulator.traffic.distributions import Distribution
from simulator.traffic.service import Rows, Service
from simulator.traffic.workload import Replay
from tornado_frontdoor.config import load
from tornado_frontdoor.proxy.app import App

CAP, QUEUE, TIMEOUT_S, HOLD_S = 2, 3, 0.5011, 0.4037
REQUESTS = 24
STATUS = {"served": 200, "queue_full": 503, "queue_timeout": 503}
CONFIGURATION = f"""
[server]
listen = "127.0.0.1:1"
admin_listen = "127.0.0.1:2"
state_dir = "state"
[upstreams.reasoning]
url = "http://127.0.0.1:11"
[upstreams.reasoning.admission]
slots = {CAP + 1}
cap = {CAP}
queue = {QUEUE}
queue_timeout_s = {TIMEOUT_S}
[models.reasoning]
upstream = "reasoning"
"""

Twin = tuple[list[str], list[int]]


def simulated(at_s: list[float]) -> Twin:
    """Return each request's outcome and the order in which they were admitted."""
    scenario = Scenario(
        cap=CAP,
        queue=QUEUE,
        timeout_s=TIMEOUT_S,
        arrivals=Replay(rows=Rows(at_s=np.array(at_s))),
        service=Service(seconds=Distribution("const", HOLD_S)),
    )
    _, journal = observe(scenario, Plan())
    ends = {entry.number: entry.what for entry in journal if entry.what in STATUS}
    order = [entry.number for entry in journal if entry.what == "admitted"]
    return [ends[number] for number in range(1, len(at_s) + 1)], order


def arrivals(seed: int) -> list[float]:
    """Return instants that are some milliseconds apart: none hangs on what comes in the same."""
    rng = Random(seed)
    instants = rng.sample(range(0, 3200, 7), REQUESTS)
    return sorted(instant / 1000 for instant in instants)


class TwinStage:
    """A front door and its engine on a network and a clock of their own."""

    def __init__(self, folder: Path, text: str = CONFIGURATION, **engine: Any) -> None:
        self.network = Network()
        self.engine = {"models": ("reasoning",), "port": 11, "slots": 8, "tokens": 0, **engine}
        self.public, self.admin = 1, 2
        self.path = folder / "frontdoor.toml"
        self.path.write_text(text)
        self.log = io.StringIO()

    def connect(self, port: int) -> Any:
        """Return a connection for a caller."""
        return self.network.connect(port)

    def told(self, caller: int, *what: object) -> None:
        """What callers were told is in the access lines."""

    def run(self, at_s: list[float]) -> Twin:
        """Let the requests come; return what the simulator returns."""
        loop = VirtualLoop(Random(1))
        with ExitStack() as stack:
            stack.callback(loop.close)
            stack.callback(asyncio.set_event_loop, None)
            asyncio.set_event_loop(loop)
            stack.enter_context(virtual_clock(loop))
            stack.enter_context(self.network.in_place())
            return loop.run_until_complete(self._live(at_s))

    async def _live(self, at_s: list[float]) -> Twin:
        loop = asyncio.get_running_loop()
        IOLoop.current().time = loop.time  # type: ignore[method-assign]
        engine = StandIn(StandInOptions(**self.engine))
        engine.listen()
        app = App(load(self.path), lambda: load(self.path), self.log)
        app.start()
        await asyncio.sleep(5)  # the engine was looked at, whatever has to settle has settled
        began_s = loop.time() + 1
        ids = await asyncio.gather(*(self._ask(began_s + t) for t in at_s))
        await asyncio.sleep(1)
        order = list(engine._counters.order)
        await app.close()
        await engine.close()
        await asyncio.sleep(0.1)
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        outcome_of = {line["request_id"]: line["outcome"] for line in lines if "outcome" in line}
        number_of = {request_id: number for number, request_id in enumerate(ids, 1)}
        return [outcome_of[one] for one in ids], [number_of[one] for one in order]

    async def _ask(self, at_s: float) -> str:
        await asyncio.sleep(at_s - asyncio.get_running_loop().time())
        wire = await callers.dial(self, self.public)
        assert wire is not None
        wire.writer.write(callers.request(callers.CHAT, b'{"model":"reasoning","messages":[]}'))
        answer = await wire.answer()
        await wire.close()
        return answer.headers["x-request-id"]


@pytest.mark.parametrize("seeds", [range(n, n + 5) for n in range(0, 20, 5)], ids=str)
def test_the_same_arrivals_end_in_the_same_way_live_and_simulated(seeds, tmp_path):
    met: set[str] = set()
    for seed in seeds:
        at_s = arrivals(seed)
        there = TwinStage(tmp_path, hold=HOLD_S).run(at_s)
        assert there == simulated(at_s), f"seed {seed}"
        met.update(there[0])
    assert met == set(STATUS), "all three outcomes are met"


@pytest.mark.slow
def test_shares_agree_with_theory_within_sampling_error(tmp_path):
    """The real gate before a stand-in loses as many as M/M/6/14+D says."""
    cap, queue, timeout_s, mean_s, load, seconds = 6, 8, 0.3, 0.2, 1.2, 300
    rate = load * cap / mean_s
    rng = Random(7)
    at_s, t = [], rng.expovariate(rate)
    while t < seconds:
        at_s.append(t)
        t += rng.expovariate(rate)
    text = CONFIGURATION.replace(
        f"slots = {CAP + 1}\ncap = {CAP}", f"slots = {cap + 1}\ncap = {cap}"
    )
    text = text.replace(f"queue = {QUEUE}", f"queue = {queue}")
    text = text.replace(f"queue_timeout_s = {TIMEOUT_S}", f"queue_timeout_s = {timeout_s}")
    outcomes, _ = TwinStage(tmp_path, text, hold=f"exp:{mean_s}", seed=3).run(at_s)
    exact = BoundedQueue(cap, queue, rate, mean_s, timeout_s)
    for outcome, share in (
        ("served", exact.served),
        ("queue_full", exact.rejected),
        ("queue_timeout", exact.timed_out),
    ):
        observed = outcomes.count(outcome) / len(outcomes)
        # Neighbours share their fate: a run of N weighs like about N/4 independent requests here.
        sigma = math.sqrt(share * (1 - share) / len(outcomes)) * 2
        assert abs(observed - share) < 4 * sigma, (outcome, observed, share, sigma)
