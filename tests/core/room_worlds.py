"""Worlds of engines that share GPUs: arrivals, services, switches; the laws after every step.

python tests/core/room_worlds.py SEED      replays one world and prints what happened
"""

import sys
from dataclasses import dataclass, field, replace
from math import inf
from random import Random

from tornado_frontdoor.core.gpu_occupant import (
    Granted,
    MakeRoom,
    Moving,
    NeverFits,
    Occupant,
    RoomLimits,
    StayAwake,
)
from tornado_frontdoor.core.gpu_room import plan
from tornado_frontdoor.core.request import UpstreamKey

CAP = 2
WAKE_S, SLEEP_S = 4.0, 1.0
LONGEST_SERVICE_S = 6.0


@dataclass
class Car:
    """One engine: its occupant, its queue of arrivals, the ends of what is in flight."""

    seen: Occupant
    queue: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    moved_at_s: float = inf
    turns: list[float] = field(default_factory=list)
    """How long each turn took to begin, once the incumbent was awake and it waited."""
    served: int = 0
    switches: int = 0


class World:
    """Some engines with more memory than there is; `run` raises AssertionError at a broken law."""

    def __init__(self, seed: int, *, two: bool = False) -> None:
        self.rng = rng = Random(seed)
        self.seed = seed
        self.now = 0.0
        devices = 1 if two else rng.choice([1, 1, 2])
        self.limits = RoomLimits(
            device_gib=dict.fromkeys(range(devices), 20.0),
            host_gib=rng.choice([inf, 10.0, 0.0]),
            stay_factor=rng.choice([0.0, 1.0, 3.0]),
            max_turn_wait_s=rng.choice([5.0, 30.0]),
        )
        self.cars: dict[UpstreamKey, Car] = {}
        for number in range(2 if two else rng.randint(2, 5)):
            key = UpstreamKey(f"m{number}")
            on = tuple(sorted(rng.sample(range(devices), rng.randint(1, devices))))
            levels = rng.choice([(1, 2), (1, 2, 3), (2,), (3,)])
            seen = Occupant(
                upstream=key,
                devices=on,
                awake_gib=12.0 if two else rng.choice([5.0, 8.0, 12.0]),
                asleep_gib=rng.choice([0.0, 1.0]),
                weights_gib=rng.choice([4.0, 8.0]),
                levels=levels,
                level=max(levels),
                switch_cost_s=WAKE_S + SLEEP_S,
                priority=rng.choice([0, 0, 1]),
            )
            self.cars[key] = Car(seen)
        if not two and rng.random() < 0.4:  # some of them exclude one another
            for key in rng.sample([*self.cars], 2):
                self.cars[key].seen = replace(self.cars[key].seen, groups=("big",))
        self.lines: list[str] = []
        self.refused: set[UpstreamKey] = set()

    def run(self, until_s: float = 200.0) -> None:
        """Let requests come for a while, then let everyone be served."""
        arrivals = []
        at_s = 0.0
        while at_s < until_s:
            at_s += self.rng.expovariate(0.5)
            arrivals.append((at_s, self.rng.choice([*self.cars])))
        guard = 0
        while arrivals or any(not car.seen.idle for car in self._alive()):
            guard += 1
            assert guard < 20_000, f"somebody is never served: {self._waiting()}"
            self._step(arrivals)
        for key in self.refused:
            assert not self.cars[key].served

    def _alive(self) -> list[Car]:
        return [car for key, car in self.cars.items() if key not in self.refused]

    def _waiting(self) -> list[str]:
        return [str(car.seen) for car in self.cars.values() if not car.seen.idle]

    def _step(self, arrivals: list[tuple[float, UpstreamKey]]) -> None:
        instants = [max(self._plan(), self.now)]
        instants += [car.moved_at_s for car in self.cars.values()]
        instants += [end for car in self.cars.values() for end in car.ends]
        if arrivals:
            instants.append(arrivals[0][0])
        self.now = min(instants)
        assert self.now < inf, f"nothing will ever happen, and {self._waiting()} wait"
        for car in self.cars.values():
            self._advance(car)
        while arrivals and arrivals[0][0] <= self.now:
            _, key = arrivals.pop(0)
            if key not in self.refused:
                self.cars[key].queue.append(self.now)
        self._settle()

    def _advance(self, car: Car) -> None:
        done = [end for end in car.ends if end <= self.now]
        if done:
            car.ends = [end for end in car.ends if end > self.now]
            car.served += len(done)
            car.seen = replace(car.seen, active_s=self.now)
        if car.moved_at_s <= self.now:
            car.moved_at_s = inf
            if car.seen.moving is Moving.WAKING:
                car.seen = replace(car.seen, moving=None, level=0, woke_s=self.now)
            else:
                assert car.seen.goes_to is not None
                car.seen = replace(car.seen, moving=None, level=car.seen.goes_to, goes_to=None)

    def _settle(self) -> None:
        for car in self.cars.values():
            serves = car.seen.level == 0 and car.seen.moving is None and car.seen.goes_to is None
            while serves and car.queue and len(car.ends) < CAP:
                car.queue.pop(0)
                car.ends.append(self.now + self.rng.uniform(0.1, LONGEST_SERVICE_S))
            asks = bool(car.queue) and car.seen.level != 0 and car.seen.goes_to is None
            car.seen = replace(
                car.seen,
                in_flight=len(car.ends),
                oldest_waiter_s=car.queue[0] if car.queue else inf,
                asks=Moving.WAKING if asks and car.seen.moving is None else None,
                asks_since_s=car.queue[0] if car.queue else inf,
            )
            if car.seen.told and not car.ends:
                car.seen = replace(car.seen, moving=Moving.SLEEPING)
                car.moved_at_s = self.now + SLEEP_S
                self._say(f"{car.seen.upstream} falls to {car.seen.goes_to}")
        self._check()

    def _plan(self) -> float:
        while True:
            made = plan([car.seen for car in self.cars.values()], self.limits, self.now)
            for order in made.orders:
                self._obey(order)
            self._settle()
            if not made.orders:
                asks = {k for k, car in self.cars.items() if car.seen.asks is Moving.WAKING}
                assert set(made.waits_for) == asks, "each that may not wake knows why"
                return made.next_s

    def _obey(self, order: Granted | MakeRoom | StayAwake | NeverFits) -> None:
        car = self.cars[order.upstream]
        self._say(str(order))
        match order:
            case Granted():
                assert car.queue, "a wake that nobody wants"
                car.seen = replace(car.seen, moving=Moving.WAKING, asks=None)
                car.moved_at_s = self.now + WAKE_S
                car.switches += 1
            case MakeRoom():
                assert not car.seen.pinned
                assert order.level in car.seen.levels
                if not car.seen.idle and car.seen.level == 0:
                    self._check_turn(car, order.for_upstream)
                car.seen = replace(car.seen, goes_to=order.level)
            case StayAwake():
                car.seen = replace(car.seen, goes_to=None)
            case NeverFits():
                self.refused.add(order.upstream)
                car.queue.clear()

    def _check_turn(self, car: Car, asking: UpstreamKey) -> None:
        stay_s = min(self.limits.stay_factor * car.seen.switch_cost_s, self.limits.max_turn_wait_s)
        assert self.now >= car.seen.woke_s + stay_s, "sent away before its time"
        first = self.cars[asking].queue[0]
        waited_s = self.now - max(first, car.seen.woke_s)
        self.cars[asking].turns.append(waited_s)

    def _check(self) -> None:
        for device, there_is in self.limits.device_gib.items():
            used = sum(car.seen.gib for car in self.cars.values() if device in car.seen.devices)
            assert used <= there_is + 1e-6, f"GPU {device} takes {used} of {there_is} GiB"
            moving = [c for c in self.cars.values() if device in c.seen.devices and c.seen.moving]
            waking = [car for car in moving if car.seen.moving is Moving.WAKING]
            assert len(waking) <= 1, "two wakes at once on one GPU"
        big = [car.seen for car in self.cars.values() if car.seen.groups]
        awake = [one for one in big if one.level == 0 or one.moving is Moving.WAKING]
        assert len(awake) <= 1, "two of a group are awake"
        for car in self.cars.values():
            if car.seen.moving is Moving.SLEEPING:
                assert not car.ends, "put to sleep with a request in flight"

    def _say(self, text: str) -> None:
        self.lines.append(f"{self.now:8.2f} {text}")


if __name__ == "__main__":
    world = World(int(sys.argv[1]))
    try:
        world.run()
    finally:
        print("\n".join(world.lines))
