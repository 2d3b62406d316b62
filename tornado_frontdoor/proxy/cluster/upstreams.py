"""Upstreams whose gates are the cluster's, and the cluster as the registry holds it."""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, cast

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from tornado_frontdoor.cluster.rules import ClusterRules, GateRules
from tornado_frontdoor.config import GpuPoolSettings, Settings, UpstreamSettings
from tornado_frontdoor.core.decisions import Answered, JournalEntry, OfReplica, Perform, Verdict
from tornado_frontdoor.core.gpu_ledger import GpuLedger
from tornado_frontdoor.core.gpu_occupant import RoomLimits
from tornado_frontdoor.core.request import Ticket
from tornado_frontdoor.engines import kinds
from tornado_frontdoor.proxy.cluster.agreement import SharedLimits, limits_in
from tornado_frontdoor.proxy.cluster.door import ClusterDoor
from tornado_frontdoor.proxy.cluster.gate import SharedGate
from tornado_frontdoor.proxy.cluster.joining import differs
from tornado_frontdoor.proxy.cluster.ports import Share
from tornado_frontdoor.proxy.curl.client import TransferEnd, UpstreamClient, UpstreamFailed
from tornado_frontdoor.proxy.engine.control_client import EngineControlClient
from tornado_frontdoor.proxy.engine.counts import count_at
from tornado_frontdoor.proxy.engine.executor import EngineExecutor
from tornado_frontdoor.proxy.engine.journal import Journal, JournalError, numbers, read, written
from tornado_frontdoor.proxy.engine_handles import EngineHandles
from tornado_frontdoor.proxy.gate_driver import (
    AdmissionLimits,
    EngineOrder,
    Engines,
    GateDriver,
    SleepConfig,
)
from tornado_frontdoor.proxy.gate_settings import engines_of, limits_of, wake_limits_of
from tornado_frontdoor.proxy.health import EngineHealth
from tornado_frontdoor.proxy.telemetry import Telemetry
from tornado_frontdoor.proxy.upstreams import Upstream

COUNT_LIMIT_BYTES = 4 * 1024 * 1024
ROLES = ("owner", "member", "seeking", "alone")
WAKES = "wake-times "
SIZES = "sizes "


class Cluster:
    """What all upstreams of this door share."""

    def __init__(
        self, settings: Settings, client: UpstreamClient, rng: Random, telemetry: Telemetry
    ) -> None:
        assert settings.cluster is not None
        self.client = client
        self.rng = rng
        self.telemetry = telemetry
        self.upstreams: dict[str, ClusterUpstream] = {}
        self._rules: dict[str, GateRules] = {}
        rules = ClusterRules(
            gates=self._rules,
            lease_s=settings.cluster.lease_s,
            on_outage=settings.cluster.on_outage,
        )
        self.door = ClusterDoor(settings.cluster.redis, rules)
        self.pool = settings.gpu
        self._room = RoomLimits(device_gib={})
        self._gpus: tuple[int, GpuLedger] = (0, GpuLedger())
        telemetry.registry.register(_Gauges(self.status))

    def take(self, settings: Settings, room: RoomLimits) -> None:
        """Put the limits of a configuration in force; `room` is what there is of GPUs and host."""
        self.pool = settings.gpu
        self._room = self._gpus[1].limits = room
        self._rules |= {
            upstream.url: GateRules(
                cap=upstream.admission.cap if upstream.admission else None,
                sleeps=upstream.sleep is not None,
                slots={one.url: one.slots for one in upstream.replicas},
            )
            for upstream in settings.upstreams.values()
        }
        self.door.keep(limits_in(settings))

    def make(
        self, wanted: UpstreamSettings, canary: tuple[str, str], groups: tuple[str, ...]
    ) -> Upstream:
        """Make an upstream whose gate is the cluster's."""
        upstream = self.upstreams[wanted.url] = ClusterUpstream(wanted, self, canary, groups)
        return upstream

    async def join(self) -> None:
        """Look whether others keep the same limits; then begin. Raises CannotJoin."""
        try:
            told = await self.door.bus.beat(campaigns=False, epoch=0)
        except (RedisError, OSError) as error:
            told = None
            self.door.say(f"Redis does not answer yet: {error}")
        here = self.door.bus.limits
        if told is not None and told.answer.owner and told.limits != here.fingerprint:
            theirs = SharedLimits(told.limits)
            with suppress(RedisError, OSError):
                theirs = await self.door.bus.kept()
            await self.door.bus.close()
            raise differs(theirs, here)
        self.door.start()

    def gpus(self) -> GpuLedger:
        """Return who is in which GPU's memory, for this door's time as owner."""
        owner = self.door.node.owner
        epoch = owner.epoch if owner is not None else 0
        if self._gpus[0] != epoch:
            self._gpus = (epoch, GpuLedger())
            self._gpus[1].limits = self._room
        return self._gpus[1]

    def granted(self, address: str) -> None:
        """Tell the gate of that address that it has its GPU."""
        for upstream in self.upstreams.values():
            upstream.hear_ledger(address)

    async def remember(self, field: str, text: str) -> None:
        """Write something down while the lease is ours; raises JournalError where it is not."""
        owner = self.door.node.owner
        try:
            kept = owner and await self.door.bus.remember(owner.epoch, field, text)
        except (RedisError, OSError) as error:
            raise JournalError(f"cannot write the journal in Redis: {error}") from error
        if not kept:
            raise JournalError("another front door owns the gates, and with them the journal")

    def is_cut_off(self) -> bool:
        """Tell whether this door refuses everybody while others may serve."""
        node = self.door.node
        refuses = node.alone is not None and node.alone.refuses
        return refuses and node.rules.on_outage == "split"

    def status(self) -> Mapping[str, Any]:
        """Return what this door is in the cluster, for operators."""
        node = self.door.node
        return {
            "door": self.door.name,
            "role": node.role,
            "epoch": node.epoch,
            "doors": list(node.doors),
            "outage": node.alone is not None,
            "on_outage": node.rules.on_outage,
            "splits": node.alone is not None and node.alone.splits,
            "same_limits": node.agrees,
        }


class _Gauges(Collector):
    """Reads what this door is when somebody scrapes."""

    def __init__(self, status: Callable[[], Mapping[str, Any]]) -> None:
        self._status = status

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield the gauges."""
        status = self._status()
        role = GaugeMetricFamily(
            "frontdoor_cluster_role", "1 for what this front door is now", labels=["role"]
        )
        for name in ROLES:
            role.add_metric([name], float(name == status["role"]))
        yield role
        yield GaugeMetricFamily(
            "frontdoor_cluster_doors", "Front doors that are known", value=len(status["doors"])
        )


class ClusterUpstream(Upstream):
    """One address: its gate is at the door that owns the gates, its engine is asked from here."""

    def __init__(
        self,
        settings: UpstreamSettings,
        cluster: Cluster,
        canary: tuple[str, str],
        groups: tuple[str, ...],
    ) -> None:
        self._groups = groups
        self.shared = SharedGate(
            cluster.door,
            settings.url,
            settings.key,
            limits=lambda: limits_of(self.settings),
            build=self._build,
            count=self._count,
            wish=self._wish_here,
        )
        super().__init__(
            settings, cluster.client, cluster.rng, keeper=cast(GateDriver, self.shared)
        )
        self._cluster = cluster
        self._canary = canary
        self._here = EngineHandles()

    # The gate, while it is here

    def _build(
        self, share: Share | None, journal: Mapping[str, str]
    ) -> tuple[GateDriver, Callable[[], None]]:
        settings, rng = self.settings, self._cluster.rng
        limits = limits_of(settings)
        if share is not None:
            limits = replace(limits, cap=share.cap)
        if settings.sleep is None:
            return self._build_awake(limits, engines_of(settings), share)
        naps = {url: self._nap(url, journal) for url in settings.urls}
        if settings.replicas:
            several = engines_of(settings)
            driver = GateDriver(settings.key, limits, rng, engines=several, naps=naps)
        else:
            driver = GateDriver(settings.key, limits, rng, naps[settings.url])
        executors = {url: self._executor_of(url, driver, nap) for url, nap in naps.items()}
        sleepers = EngineHandles(driver, executors, several=bool(settings.replicas))

        def command(decision: EngineOrder) -> None:
            # What is to be remembered was written while the lease is ours; that may be over.
            what = decision.what if isinstance(decision, OfReplica) else decision
            if not isinstance(what, Perform) or self._cluster.door.may_command():
                sleepers.command(decision)

        driver.on_command = command
        self._here = sleepers
        self.shared.on_refused = self._lost_here

        def drop() -> None:
            driver.on_command = _drop
            self._here = EngineHandles()
            self._cluster.door.spawn(sleepers.close())

        return driver, drop

    def _nap(self, url: str, journal: Mapping[str, str]) -> SleepConfig:
        """Return what the gate needs of one engine's sleep, with what is remembered of it."""
        policy = wake_limits_of(self.settings, self._cluster.pool, self._groups, url)
        assert policy is not None
        return SleepConfig(
            kind=kinds()[self.settings.engine].serving(self._canary[1]),
            owner=url,
            limits=policy,
            gpus=self._cluster.gpus(),
            memory=read(journal.get(url)) or JournalEntry(),
            learned_s=numbers(journal.get(WAKES + url)),
            learned_gib=numbers(journal.get(SIZES + url)),
        )

    def _executor_of(self, url: str, driver: GateDriver, nap: SleepConfig) -> EngineExecutor:
        """Make who carries out what the gate wants of one engine, while the gate is here."""
        cluster, key = self._cluster, self.settings.key
        replica = url if self.settings.replicas else None
        report = partial(driver.report, replica=replica)
        waker = EngineControlClient(cluster.client, url, nap.kind, self._canary, report)
        journal, known = cast(Journal, _SharedJournal(cluster)), driver.sleeper(replica)
        made = EngineExecutor(key, url, waker, journal, cluster.telemetry, cluster.granted, known)
        made.change(key, self._canary, self.api_key)
        return made

    def _lost_here(self, replica: str, why: str) -> None:
        engine = self._here.at(replica)
        if engine is not None:
            engine.lost(why)

    def _build_awake(
        self, limits: AdmissionLimits, engines: Engines, share: Share | None
    ) -> tuple[GateDriver, Callable[[], None]]:
        """Make a gate before engines that never sleep, and look after them while it is here."""
        if share is not None and share.slots:
            engines = engines._replace(slots=share.slots)
        driver = GateDriver(self.settings.key, limits, self._cluster.rng, engines=engines)
        health = EngineHealth(driver, self._cluster.client)
        self.shared.on_refused = health.refused
        return driver, lambda: self._cluster.door.spawn(health.close())

    async def _count(self, engine: str) -> int | None:
        """Ask an engine how many sequences it runs and keeps waiting."""
        kind = kinds()[self.settings.engine].serving(self._canary[1])
        try:
            client, key = self._cluster.client, self.api_key
            return await count_at(client, kind, engine, limit_bytes=COUNT_LIMIT_BYTES, api_key=key)
        except UpstreamFailed as failed:
            # Where nobody listens nothing runs.
            return 0 if failed.end is TransferEnd.CONNECT_FAILED else None

    async def _wish_here(self, level: int, replica: str) -> Answered:
        if not self._here:
            if level:
                return Answered("sleep", Verdict.UNSUPPORTED, "it has no sleep table")
            return Answered("wake", Verdict.DONE)
        if level:
            return await self._here.sleep(level, replica or None)
        return await self._here.wake("an operator", replica or None)

    def hear_ledger(self, url: str) -> None:
        """Take that something was decided about the memory of the engine at an address."""
        engine = self._here.at(url)
        if engine is not None:
            engine.hear_ledger()

    # Wherever it is

    def lost(self, engine: str | None, why: str = "") -> bool:
        """Take that nobody answers there, and why; tells whether to ask the gate once more."""
        replica = engine or self.settings.url
        self._cluster.door.lost(self.shared.address, replica, why)
        return True

    def move(self, ticket: Ticket) -> bool:  # noqa: ARG002 - as everywhere
        """Never move: it asks the gate once more, wherever that is."""
        return False

    def drain_engine(self, url: str, *, undo: bool) -> bool:
        """Send nobody new to one of several engines; False: there is none of that address."""
        if url not in self.settings.urls:
            return False
        self._cluster.door.drain(self.shared.address, url, undo=undo)
        return True

    async def wake(
        self,
        by: str = "an operator",  # noqa: ARG002 - not told others
        replica: str | None = None,
    ) -> Answered:
        """Wake the engine, all of several, or that one; return what came of it."""
        return await self._cluster.door.wish(self.shared.address, 0, replica or "")

    async def sleep(self, level: int, replica: str | None = None) -> Answered:
        """Put the engine to sleep, all of several, or that one; return what came of it."""
        return await self._cluster.door.wish(self.shared.address, level, replica or "")

    def change(
        self,
        settings: UpstreamSettings,
        pool: GpuPoolSettings | None,
        groups: tuple[str, ...] = (),
    ) -> list[str]:
        """Put new settings in force; they matter at the door that owns the gates."""
        notes = []
        if settings.url != self.shared.address:
            notes.append(
                f"upstreams.{settings.key}: its first address names it to the other front doors: "
                "its engines change with the next start"
            )
            settings = replace(settings, url=self.settings.url, replicas=self.settings.replicas)
        self.settings, self._groups = settings, groups
        self.api_key = settings.read_api_key()
        if self.shared.driver is not None:
            if self.shared.driver.gate.replicas is not None:
                self.shared.driver.change_engines(engines_of(settings))
            self.shared.driver.change_limits(limits_of(settings))
            for engine in self._here if settings.sleep is not None else ():
                policy = wake_limits_of(settings, pool, groups, engine.url)
                if policy is not None:
                    self.shared.driver.change_policies({engine.url: policy})
        return notes

    def retire(self, let_go: Callable[[], None]) -> None:
        """Stay until the next start: other doors may still bring requests here."""

    def drain(self) -> None:
        """Let those inside go on: they have places in the queue of all front doors."""
        self.side_door.drain()

    async def close(self) -> None:
        """Stop timers and calls."""
        self.shared.close()
        self.side_door.close()


def _drop(_: EngineOrder) -> None:
    """Do nothing for a gate that is not ours any more."""


class _SharedJournal:
    """The journal of the cluster: in Redis, and written only while the lease is ours."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def remember(self, address: str, memory: JournalEntry) -> "asyncio.Future[None]":
        """Write a memory down; it is in Redis when the future is done."""
        return self._put(address, written(memory))

    def learn(self, address: str, wake_times: Mapping[str, float]) -> "asyncio.Future[None]":
        """Write down how long wakes take."""
        return self._put(WAKES + address, json.dumps(dict(wake_times)))

    def learn_sizes(self, address: str, sizes: Mapping[str, float]) -> "asyncio.Future[None]":
        """Write down what was learned of the memory that an engine takes."""
        return self._put(SIZES + address, json.dumps(dict(sizes)))

    def _put(self, field: str, text: str) -> "asyncio.Future[None]":
        return asyncio.get_running_loop().create_task(self._cluster.remember(field, text))
