"""Worlds of gates that sleep and wake, drawn whole from one source of randomness, and judged.

One to three engines share GPUs or not; callers come in bursts and leave as they like; operators and
other hands meddle; engines die; the front door is killed and comes back with what it wrote down.
Half the worlds run on a coarse grid, so that arrivals, reports, limits and idle tiers meet in one
instant. Every site judges its gate all the while (`wake_sites.py`); once the faults end everything
must come to rest, and a last caller must be served.

Run as a script it prints the digest of the traces of a range of seeds: `wake_worlds.py 0-19`.
"""

import sys
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from random import Random

from depth import parse_seeds
from wake_engines import VERSIONS, Manners
from wake_sites import Site

from simulator.model.invariants import digest
from simulator.standin.engine_values import ControlCall, Times
from tornado_frontdoor.core.clock import ManualClock
from tornado_frontdoor.core.gate import AdmissionLimits, SleepPolicy
from tornado_frontdoor.core.gpu_ledger import GpuLedger
from tornado_frontdoor.core.request import WakeTerms
from tornado_frontdoor.core.schedule import Wish
from tornado_frontdoor.core.standing import (
    NOTHING,
    OrderKind,
    OrderOwner,
    StandingOrder,
    standing,
)

AT_REST = ("awake", "sleeping", "offloaded", "stopped")


class World:
    """One world; `run` raises an AssertionError, or what a bug raises, when it was not legal."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.clock = ManualClock()
        self.trace: list[str] = []
        self.lives = 0
        self.foreigners = 0
        self.gpus = GpuLedger()
        self.grid_s = rng.choice((1.0, 0.5, None))
        self.faults = rng.choice((0.0, 0.0, 0.1, 0.3, 0.6))
        self.meddling = rng.random() < 0.3
        self.mortal = rng.random() < 0.6
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.sites: list[Site] = []
        self._build()

    def _build(self) -> None:
        for index in range(self.rng.choice((1, 1, 2, 3))):
            limits, wake_limits = self._draw_limits()
            self.sites.append(Site(self, f"up{index}", limits, wake_limits, self._draw_manners()))

    @property
    def now(self) -> float:
        """The instant."""
        return self.clock.now()

    def at(self, at_s: float, what: Callable[[], None]) -> None:
        """Let something happen then, after all that was to happen then already."""
        self._count += 1
        heappush(self._heap, (at_s, self._count, what))

    def _draw_limits(self) -> tuple[AdmissionLimits, SleepPolicy]:
        rng = self.rng
        idle_s = rng.choice((0.0, 5.0, 20.0))
        return AdmissionLimits(
            cap=rng.choice((1, 2, 3, None)),
            queue=rng.choice((1, 2, 6)),
            queue_timeout_s=rng.choice((2.0, 20.0)),
        ), SleepPolicy(
            idle_sleep_s=idle_s,
            idle_offload_s=rng.choice((0.0, idle_s, idle_s + 15.0)),
            hold_sleeping_s=rng.choice((1.0, 30.0)),
            hold_offloaded_s=rng.choice((60.0, 180.0)),
            hold_restarting_s=rng.choice((10.0, 300.0)),
            retry_after_sleeping_s=10,
            retry_after_offloaded_s=60,
            retry_after_restarting_s=600,
            canary=rng.random() < 0.8,
            devices=rng.choice(((), (0,), (0, 1), (1,))),
            idle_stop_s=rng.choice((0.0, 0.0, 30.0)),
        )

    def _draw_manners(self) -> Manners:
        rng = self.rng
        whole = self.grid_s is not None
        return Manners(
            version=rng.choice(VERSIONS),
            delay_s=rng.choice((0.0, 0.5)) if whole else rng.uniform(0.0, 0.9),
            fault=self.faults,
            tells_process=rng.random() < 0.7,
            tells_level=rng.random() < 0.8,
            supports_sleep=rng.random() < 0.95,
            times=Times(
                sleep_s=(rng.choice((0.0, 4.0)), rng.choice((0.0, 0.5))),
                wake_s=(rng.choice((0.0, 2.0)), rng.choice((0.0, 3.0))),
                reload_s=rng.choice((0.0, 20.0)),
                restart_s=rng.choice((1.0, 60.0)),
            ),
            stoppable=rng.random() < 0.3,
        )

    def run(self, events: int = 40) -> "World":
        """Let `events` things happen, then peace, then a last caller."""
        until_s = 0.0
        for _ in range(events):
            until_s += self._draw_pause()
            self.run_until(until_s)
            self._meddle(self.rng.choice(self.sites))
        self._peace()
        return self

    def _draw_pause(self) -> float:
        if self.grid_s is None:
            return self.rng.expovariate(self.rng.choice((0.05, 0.5, 5.0)))
        return self.grid_s * self.rng.choice((0, 0, 0, 1, 1, 2, 5, 20, 60))

    def run_until(self, until_s: float) -> None:
        """Let time pass, with everything that is to happen until then."""
        for _ in range(100_000):
            deadlines = [(site.gate.next_deadline(), site) for site in self.sites]
            gate_s = min((at_s for at_s, _ in deadlines if at_s is not None), default=inf)
            engine_s = min(site.door.engine.next_deadline() for site in self.sites)
            heap_s = self._heap[0][0] if self._heap else inf
            at_s = min(gate_s, engine_s, heap_s)
            if at_s > until_s:
                break
            self._move(max(at_s, self.now))
            self._engines()
            # Only one thing at a time, as each may change what comes next.
            if self._heap and self._heap[0][0] <= self.now:
                heappop(self._heap)[2]()
            elif engine_s > self.now:
                for deadline_s, site in deadlines:
                    if deadline_s is not None and deadline_s <= self.now:
                        site.expire()
                        break
            self._engines()
        else:
            raise AssertionError("it does not come to an end")
        self._move(max(until_s, self.now))

    def _move(self, now: float) -> None:
        self.clock.set(now)
        for site in self.sites:
            site.door.now = now

    def _engines(self) -> None:
        for site in self.sites:
            for event in site.door.take_events():
                site.door.happened(event)
                if event.kind.name == "DIED":
                    site.engine_died()

    # What happens

    def _meddle(self, site: Site) -> None:
        names = ["arrive"] * 12 + ["leave"] * 3 + ["operator"] * 2 + ["burst"] * 2 + ["order"] * 2
        if self.mortal:
            names += ["die", "restart"]
        if self.meddling:
            names += ["hand"]
        name = self.rng.choice(names)
        getattr(self, f"_{name}")(site)
        self._engines()

    def _arrive(self, site: Site) -> None:
        terms = None
        if self.rng.random() < 0.2:
            kept_s = self.rng.choice((None, 0.0, 10.0, inf))
            wakes = self.rng.random() < 0.5
            terms = WakeTerms(wakes, wakes or self.rng.random() < 0.5, kept_s, "a caller")
        site.arrive(self.rng.choice((0.0, 1.0, 5.0, 50.0)), terms)

    def _order(self, site: Site) -> None:
        """An operator's order comes, or the one that stood is over."""
        kind = self.rng.choice((None, None, *OrderKind))
        order = kind and StandingOrder(kind, OrderOwner.OPERATOR, "alice", self.now + 60.0)
        held = standing(order, Wish(), pinned=site.wake_limits.pinned, instant_s=self.now)
        site.call(lambda: site.gate.stand(held))

    def _burst(self, site: Site) -> None:
        for _ in range(self.rng.choice((2, 5, 12))):
            self._arrive(site)

    def _leave(self, site: Site) -> None:
        if site.inside:
            site.leave(self.rng.choice([*site.inside.values()]))

    def _operator(self, site: Site) -> None:
        wish = self.rng.choice((0, 1, 2))
        gate = site.gate
        site.call(gate.wake_now if wish == 0 else lambda: gate.sleep_now(wish))

    def _die(self, site: Site) -> None:
        site.door.engine.kill(self.now)

    def _hand(self, site: Site) -> None:
        """Another hand: it puts to sleep, or asks for a sequence."""
        site.meddled = True
        engine = site.door.engine
        if self.rng.random() < 0.5 and site.door.manners.supports_sleep:
            engine.call(
                ControlCall(id=("hand", 0), name="sleep", level=self.rng.choice((1, 2))), self.now
            )
        elif not engine.dead:
            self.foreigners += 1
            engine.submit(("foreign", self.foreigners), 5.0, self.now)

    def _restart(self, _: Site) -> None:
        """The front door is killed, and another one starts at once."""
        for site in self.sites:
            site.door.forget()
            site.inside.clear()
        self.lives += 1
        self.gpus = GpuLedger()
        for site in self.sites:
            site.open()

    def _peace(self) -> None:
        """End all faults, restart what hangs for ever, and see everything come to rest."""
        for site in self.sites:
            site.door.manners = site.door.manners._replace(fault=0.0)
            site.call(lambda site=site: site.gate.stand(NOTHING))  # type: ignore[misc]
        for wait_s in (40.0, 40.0, 600.0):  # a call that hangs may be behind another one
            for site in self.sites:
                for ticket in [*site.inside.values()]:
                    site.leave(ticket)
                engine = site.door.engine
                if engine.next_deadline() == inf and engine.busy:
                    engine.kill(self.now)
                for job in engine.replica.jobs():
                    engine.abort(job, self.now)
                    site.door.collect()
            self._engines()
            self.run_until(self.now + wait_s)
        for site in self.sites:
            assert site.gate.state.value in AT_REST, site.gate.state
            site.line.at_rest(*site.door.engine.reported_load)
        for site in self.sites:
            served = site.ends["served"]
            site.arrive(1.0)
            self.run_until(self.now + 200.0)
            refused = [*site.inside.values()] or site.ends["served"] == served
            policy = site.wake_limits
            # Who is held for less than it takes is refused, as it should be.
            starts = site.kind.stops and policy.hold_restarting_s < 100.0
            if refused and policy.hold_sleeping_s > 1.0 and not starts:
                raise AssertionError(f"the last caller of {site.key} was not served")


def world(seed: int) -> World:
    """Return the world of a seed, run to its end."""
    return World(Random(seed)).run()


if __name__ == "__main__":
    print(digest(line for seed in parse_seeds(sys.argv[1]) for line in world(seed).trace))
