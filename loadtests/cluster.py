"""Streams over several front doors, while these are killed, stopped, cut off and restarted.

Each user has one request under way, at the doors by turns. One that finds nobody listening goes to
the next door; one whose answer breaks off has lost something, and that is counted, not a failure of
the run: the judge knows what was done to the doors. Each request that ended is a line of
`requests-*.jsonl` in `--out`. A run ends when the list of doors is `null`, not with `--seconds`.

    echo '["http://127.0.0.1:8080", "http://127.0.0.1:8081"]' > doors.json
    locust -f loadtests/cluster.py --headless --users 18 --doors doors.json --hold 0.5
"""

import itertools
import json
import os
from functools import cache
from pathlib import Path
from time import monotonic
from typing import TextIO

import gevent

from loadtests.lib.dialects import ClientCall
from loadtests.lib.run import samples, show
from loadtests.lib.users import Caller
from loadtests.lib.visits import NOBODY, Measurement

MODEL = "reasoning"
TOKENS = 8
LONG_EVERY, LONG = 4, 8.0
"""Every fourth stream lasts eight times `--hold`: longer than a door that is stopped is silent, so
that slots are in use whose door nobody hears. Four, so that three doors get as many each."""
WAIT_S = 0.02
PAUSE_S = 0.05
"""After a request that was not served, as a client's library would wait."""


@cache
def _book(folder: str) -> TextIO:
    path = Path(folder) / f"requests-{os.getpid()}.jsonl"
    return path.open("a", buffering=1, encoding="utf-8")


class RoamingReader(Caller):
    """Reads one stream after another, each from the next front door."""

    def part(self) -> None:
        """Go on until there are no more doors."""
        self.wait_for_all()
        for turn in itertools.count(self.number):
            door = self._next_door(turn)
            if door is None:
                return
            self.turn_to(door)
            long = turn % LONG_EVERY == 0
            seen = self._read_one(self.hold_s() * (LONG if long else 1.0))
            if seen.outcome != NOBODY and seen.kind != "served":
                gevent.sleep(PAUSE_S)

    def _next_door(self, turn: int) -> str | None:
        """Return the door whose turn it is, once there is one; None: it is over."""
        while not self.is_ending:
            urls = self.doors.urls if self.doors else [self.door]
            if urls is None:
                break
            if urls:
                return urls[turn % len(urls)]
            gevent.sleep(WAIT_S)
        return None

    def _read_one(self, lasts_s: float) -> Measurement:
        gap_ms = 1000 * lasts_s / TOKENS
        call = ClientCall(surface="openai", model=MODEL, stream=True, tokens=TOKENS, gap_ms=gap_ms)
        return self.ask(call)

    def _count(self, call: ClientCall, seen: Measurement) -> None:
        """Count and write down one request that ended."""
        ended_s = monotonic()
        kind = seen.kind if seen.kind in {"served", "refused"} else _loss(seen)
        samples.count(call.model, call.group, kind, seen.outcome)
        samples.measure(call.group, "total", seen.total_s)
        name = call.group if kind == "served" else f"{call.group}: {kind}"
        show(self.environment, "POST", name, seen.total_s, seen.length, None)
        if self.options.out:
            line = {
                "sent_s": ended_s - seen.total_s,
                "ended_s": ended_s,
                "waited_s": seen.waited_s,
                "door": self.door,
                "kind": kind,
                "outcome": seen.outcome,
                "request_id": seen.request_id,
            }
            _book(self.options.out).write(json.dumps(line) + "\n")


def _loss(seen: Measurement) -> str:
    """Return what was lost: nothing was sent, nobody answered, a stream was cut, or an error."""
    if seen.outcome == NOBODY:
        return "moved"
    if seen.outcome[:1].isdigit():
        return "failed"
    return "lost" if seen.head_s is None else "cut"
