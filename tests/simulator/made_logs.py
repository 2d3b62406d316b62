"""Logs of a simulated front door and of a simulated engine's benchmark, as real ones write."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
from scenes import scene

from simulator.model.event_loop import HeapDriver
from simulator.model.gates import new_gate
from simulator.model.run import SimulatedRun
from simulator.traffic.distributions import Distribution
from simulator.traffic.service import Rows, Service
from simulator.traffic.streams import Streams
from simulator.traffic.workload import Renewal, Replay
from tornado_frontdoor.core.request import TicketState

START = datetime(2026, 1, 5, tzinfo=UTC)


class _Logging(SimulatedRun):
    """A run that writes the line the front door would write at the end of each request."""

    def __init__(self, *given):
        super().__init__(*given)
        self.lines = []

    def _served(self, attempt):
        runs = attempt.state is TicketState.IN_FLIGHT
        super()._served(attempt)
        if runs:
            self._log(attempt, "served", attempt.admitted_s - attempt.arrived_s)

    def _refused(self, attempt, refusal):
        super()._refused(attempt, refusal)
        self._log(attempt, refusal.reason.value, self._loop.time_s - attempt.arrived_s)

    def _lose_patience(self, attempt):
        waits = attempt.queued
        super()._lose_patience(attempt)
        if waits:
            waited_s = self._loop.time_s - attempt.arrived_s
            self._log(attempt, "client_gone_queued", waited_s)

    def _go(self, attempt):
        runs = attempt.state is TicketState.IN_FLIGHT
        super()._go(attempt)
        if runs:
            self._log(attempt, "client_gone_streaming", attempt.admitted_s - attempt.arrived_s)

    def _log(self, attempt, outcome, waited_s):
        now = self._loop.time_s
        entry = {
            "time": (START + timedelta(seconds=now)).isoformat(timespec="milliseconds"),
            "upstream": "reasoning",
            "outcome": outcome,
            "waited_s": round(waited_s, 6),
            "first_byte_s": None,
            "total_s": round(now - attempt.arrived_s, 6),
            "weight": attempt.weight,
        }
        if outcome == "served" and self._scenario.service.profile is not None:
            entry["stream"] = True
            entry["first_byte_s"] = round(attempt.first_token_s - attempt.arrived_s, 6)
            entry["tokens_in"], entry["tokens_out"] = round(attempt.prompt), round(attempt.work)
        self.lines.append(json.dumps(entry))


def _carried_out(kind, world, seed):
    streams, loop = Streams(seed, 0), HeapDriver()
    run = kind(world, streams, loop, new_gate(world, loop, streams))
    return run, run.run()


def logged(tmp_path, world, seed=3):
    """Return an access log of a world, and the world's metrics."""
    run, records = _carried_out(_Logging, world, seed)
    path = tmp_path / "access.log"
    path.write_text("\n".join(run.lines), encoding="utf-8")
    return path, records


class _Benchmark(SimulatedRun):
    """A run that writes what an engine's benchmark writes for each request that ran."""

    slower = None
    """By request: how many times its tokens are in its work, where the engine's speed varies."""

    def __init__(self, *given):
        super().__init__(*given)
        self.lines = []

    def _served(self, attempt):
        super()._served(attempt)
        slower = 1.0 if self.slower is None else self.slower[attempt.index]
        entry = {
            "input_toks": attempt.prompt / slower,
            "output_toks": attempt.work / slower,
            "scheduled_ts": attempt.started_s,
            "first_token_ts": attempt.first_token_s,
            "last_token_ts": self._loop.time_s,
        }
        self.lines.append(json.dumps(entry))


def benchmark(tmp_path, profile, *, rate=0.7, requests=400, prompt=2000.0, cap=7, seed=3):
    service = Service(
        profile=profile,
        prompt=Distribution("exp", prompt),
        output=Distribution("lognormal", 250.0, 0.6),
    )
    arrivals = Renewal(rate=rate)
    world = scene(cap=cap, queue=10_000, service=service, arrivals=arrivals, requests=requests)
    run, _ = _carried_out(_Benchmark, world, seed)
    path = tmp_path / "bench.jsonl"
    path.write_text("\n".join(run.lines), encoding="utf-8")
    return path


# Engines whose speed varies by itself: who comes in a slow time is so much more work.


def slowness(rng, at_s, *, of_run=0.0, of_times=0.0, lasting=0.1):
    """How slow an engine is at instants: its run's part, and a walk that forgets in a while.

    `lasting` is that while as a share of the run.
    """
    steps = 400
    forgets = np.exp(-1 / (steps * lasting))
    news = rng.normal(0.0, np.sqrt(1 - forgets**2), steps)
    walk = [rng.normal()]
    for new in news[1:]:
        walk.append(forgets * walk[-1] + new)
    step = (at_s / at_s[-1] * (steps - 1)).astype(int)
    return np.exp(of_run * rng.normal() + of_times * np.array(walk)[step])


def varying(world, laws, slower, rng):
    """Return a world whose requests come as its arrivals say, and are so much more work."""
    gaps = rng.exponential(1 / world.arrivals.rate, world.requests)
    at_s = np.cumsum(gaps)
    factor = slower(at_s)
    sizes = [np.maximum(least, law.draw(rng, len(at_s))) * factor for law, least in laws]
    rows = Rows(at_s, service_s=sizes[0]) if len(sizes) == 1 else Rows(at_s, *sizes)
    return replace(world, arrivals=Replay(rows=rows), requests=None), factor


def varying_log(path, world, factor):
    """Write the access log of such a world, or its benchmark where its engine is of tokens."""
    kind = _Logging if world.service.profile is None else _Benchmark
    streams, loop = Streams(3, 0), HeapDriver()
    run = kind(world, streams, loop, new_gate(world, loop, streams))
    run.slower = factor
    run.run()
    path.write_text("\n".join(run.lines), encoding="utf-8")
    return path
