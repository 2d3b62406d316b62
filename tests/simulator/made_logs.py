"""Logs of a simulated front door and of a simulated engine's benchmark, as real ones write."""

import json
from datetime import UTC, datetime, timedelta

from scenes import scene

from simulator.model.event_loop import HeapDriver
from simulator.model.gates import new_gate
from simulator.model.run import SimulatedRun
from simulator.traffic.distributions import Distribution
from simulator.traffic.service import Service
from simulator.traffic.streams import Streams
from simulator.traffic.workload import Renewal

START = datetime(2026, 1, 5, tzinfo=UTC)


class _Logging(SimulatedRun):
    """A run that writes the line the front door would write at the end of each request."""

    def __init__(self, *given):
        super().__init__(*given)
        self.lines = []

    def _served(self, attempt):
        super()._served(attempt)
        self._log(attempt, "served", attempt.admitted_s - attempt.arrived_s)

    def _refused(self, attempt, refusal):
        super()._refused(attempt, refusal)
        self._log(attempt, refusal.reason.value, self._loop.time_s - attempt.arrived_s)

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


def logged(tmp_path, world, seed=3):
    """Return an access log of a world, and the world's metrics."""
    streams, loop = Streams(seed, 0), HeapDriver()
    run = _Logging(world, streams, loop, new_gate(world, loop, streams))
    records = run.run()
    path = tmp_path / "access.log"
    path.write_text("\n".join(run.lines), encoding="utf-8")
    return path, records


class _Benchmark(SimulatedRun):
    """A run that writes what an engine's benchmark writes for each request that ran."""

    def __init__(self, *given):
        super().__init__(*given)
        self.lines = []

    def _served(self, attempt):
        super()._served(attempt)
        entry = {
            "input_toks": attempt.prompt,
            "output_toks": attempt.work,
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
    streams, loop = Streams(seed, 0), HeapDriver()
    run = _Benchmark(world, streams, loop, new_gate(world, loop, streams))
    run.run()
    path = tmp_path / "bench.jsonl"
    path.write_text("\n".join(run.lines), encoding="utf-8")
    return path
