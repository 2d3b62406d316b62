"""Redis and the ways to it, as far as doors can tell: late, lossy, stopped, empty, behind."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from tornado_frontdoor.cluster.actions import BeatAnswer
from tornado_frontdoor.cluster.messages import Packet, decode, encode

if TYPE_CHECKING:
    from worlds import World


class Lease(NamedTuple):
    """Who owns until when, by Redis' clock, which is the world's."""

    owner: str
    epoch: int
    until_s: float
    run: str


@dataclass
class Way:
    """One door's way to Redis: what goes wrong on it, in each direction."""

    up: bool = True
    down: bool = True
    stalled: list[Callable[[], None]] = field(default_factory=list)
    stalls: bool = False
    lag_s: float = 0.0


class Redis:
    """One Redis. Packets go through it as bytes, so that each is encoded and decoded."""

    def __init__(self, world: "World", rng: Random, lease_s: float) -> None:
        self.world = world
        self.rng = rng
        self.lease_s = lease_s
        self.alive = True
        self.run = "run-1"
        self.runs = 1
        self.lease: Lease | None = None
        self.last: Lease | None = None
        self.epoch = 0
        self.doors: dict[str, float] = {}
        self.lifelines: set[str] = set()
        self.ways: dict[str, Way] = {}
        self.loss = 0.0
        self.repeats = 0.0
        self.jitter_s = 0.001

    def way(self, door: str) -> Way:
        return self.ways.setdefault(door, Way())

    # The network

    def _delay(self, door: str) -> float:
        rng = self.rng
        late = rng.random() < self.loss  # as often as lost: late
        return 0.0003 + rng.random() * self.jitter_s + self.way(door).lag_s + late * 0.4

    def _carry(self, door: str, *, up: bool, what: Callable[[], None]) -> None:
        way = self.way(door)
        if not (way.up if up else way.down):
            if way.stalls:
                way.stalled.append(lambda: self._carry(door, up=up, what=what))
            return
        self.world.after(self._delay(door), what)

    def heal(self, door: str) -> None:
        self.ways[door] = Way()
        self._open_lifeline(door)

    def _open_lifeline(self, door: str) -> None:
        if self.alive and self.world.sites[door].alive:
            self.lifelines.add(door)

    def heal_stalled(self, door: str) -> None:
        stalled = self.way(door).stalled
        self.heal(door)
        for what in stalled:
            what()

    # What doors ask

    def beat(self, door: str, campaigns: bool, epoch: int, answer: Callable, failed: Callable):
        def execute() -> None:
            if not self.alive:
                self._carry(door, up=False, what=failed)
                return
            told = self._beat(door, campaigns, epoch)
            self._carry(door, up=False, what=lambda: answer(told))

        self._carry(door, up=True, what=execute)

    def _beat(self, door: str, campaigns: bool, epoch: int) -> BeatAnswer:
        now = self.world.now
        self.doors[door] = now
        if self.world.sites[door].joined_run == self.run:
            self._open_lifeline(door)
        self.world.sites[door].joined_run = self.run
        if self.lease is not None and self.lease.until_s <= now:
            self.last, self.lease = self.lease, None
        won = False
        lease = self.lease
        if lease is not None and lease.owner == door:
            self.lease = lease = lease._replace(until_s=now + self.lease_s)
        elif lease is None and campaigns:
            self.epoch = max(self.epoch, epoch) + 1
            self.lease = lease = Lease(door, self.epoch, now + self.lease_s, self.run)
            won = True
        before = self.last
        return BeatAnswer(
            owner=lease.owner if lease else "",
            epoch=lease.epoch if lease else self.epoch,
            left_s=lease.until_s - now if lease else 0.0,
            won=won,
            before=before.owner if before else "",
            same_run=before is not None and before.run == self.run,
            run=self.run,
            doors=tuple(sorted(self.doors)),
        )

    def release(self, door: str, epoch: int) -> None:
        def execute() -> None:
            lease = self.lease
            if self.alive and lease is not None and (lease.owner, lease.epoch) == (door, epoch):
                self.last, self.lease = lease, None

        self._carry(door, up=True, what=execute)

    def forget(self, door: str, other: str) -> None:
        self._carry(door, up=True, what=lambda: self.doors.pop(other, None))

    def look(self, door: str, answer: Callable[[frozenset[str]], None]) -> None:
        def execute() -> None:
            if self.alive:
                present = frozenset(self.lifelines)
                self._carry(door, up=False, what=lambda: answer(present))

        self._carry(door, up=True, what=execute)

    def send(self, packet: Packet) -> None:
        if self.world.as_bytes:
            packet = decode(encode(packet))
        times = 1 + (self.rng.random() < self.repeats)
        if self.rng.random() < self.loss:
            times -= 1
        for _ in range(times):
            self._carry(packet.sender, up=True, what=lambda: self._store(packet))

    def _store(self, packet: Packet) -> None:
        to = packet.to
        if self.alive and to in self.world.sites:
            self._carry(to, up=False, what=lambda: self.world.sites[to].packet(packet))

    # What happens to it

    def stop(self) -> None:
        self.alive = False
        self.lifelines.clear()
        for site in self.world.sites.values():
            site.lifeline_broke()

    def start(self, *, empty: bool) -> None:
        self.alive = True
        self._next_run()
        if empty:
            self.lease = self.last = None
            self.epoch = 0
            self.doors.clear()

    def fail_over(self, snapshot: tuple[Lease | None, Lease | None, int, dict[str, float]]) -> None:
        """Go on with a replica that has not heard the latest."""
        self.stop()
        self.alive = True
        self._next_run()
        self.lease, self.last, self.epoch = snapshot[:3]
        self.doors = dict(snapshot[3])

    def snapshot(self) -> tuple[Lease | None, Lease | None, int, dict[str, float]]:
        return self.lease, self.last, self.epoch, dict(self.doors)

    def _next_run(self) -> None:
        self.runs += 1
        self.run = f"run-{self.runs}"
