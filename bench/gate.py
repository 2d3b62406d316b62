"""Operations of one gate: 10,000 requests enter and leave, alone and through a full queue."""

import argparse
import random
import statistics
import sys
import time

from tornado_frontdoor.core.clock import ManualClock
from tornado_frontdoor.core.decisions import Outcome
from tornado_frontdoor.core.gate import AdmissionLimits, Gate
from tornado_frontdoor.core.request import Ticket, UpstreamKey

PAIRS = 10_000
TARGET_S = 0.25


def gate(cap: int, queue: int) -> Gate:
    """Return a gate whose clock stands still."""
    limits = AdmissionLimits(cap=cap, queue=queue, queue_timeout_s=30.0)
    return Gate(UpstreamKey("bench"), limits, ManualClock(), random.Random(1))


def alone() -> None:
    """Each finds a free slot."""
    one = gate(6, 8)
    for _ in range(PAIRS):
        ticket = Ticket()
        one.arrive(ticket)
        one.finish(ticket, Outcome.SERVED)


def in_line(waiting: int) -> None:
    """Each joins the end of a queue of `waiting`, and the head of it gets the slot that ends."""
    one = gate(1, waiting + 1)
    inside = [Ticket() for _ in range(waiting + 1)]
    for ticket in inside:
        one.arrive(ticket)
    for number in range(PAIRS):
        ticket = Ticket()
        one.arrive(ticket)
        inside.append(ticket)
        one.finish(inside[number], Outcome.SERVED)


def leaving(waiting: int) -> None:
    """Each leaves from the end of a queue of `waiting`."""
    one = gate(1, waiting + 1)
    for _ in range(waiting + 1):
        one.arrive(Ticket())
    for _ in range(PAIRS):
        ticket = Ticket()
        one.arrive(ticket)
        one.finish(ticket, Outcome.CLIENT_GONE_QUEUED)


def main() -> int:
    """Measure and print; returns 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="bin/bench gate", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    ok = True
    for name, run in (
        ("a free slot", alone),
        ("a queue of 8", lambda: in_line(8)),
        ("a queue of 1,000", lambda: in_line(1000)),
        ("leave a queue of 1,000", lambda: leaving(1000)),
    ):
        times = []
        for _ in range(options.rounds):
            started = time.process_time()
            run()
            times.append(time.process_time() - started)
        took_s = statistics.median(times)
        met = took_s <= TARGET_S
        ok = ok and met
        print(
            f"{name:22} {took_s:.3f} s for {PAIRS} pairs, {took_s / PAIRS * 1e6:.1f} us each "
            f"(target <= {TARGET_S} s) {'ok' if met else 'MISSED'}"
        )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
