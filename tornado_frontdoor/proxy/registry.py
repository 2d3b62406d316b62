"""All upstreams of one front door, and what they share: the client, the journal, the GPUs.

An upstream is identified by its address: one that stays over a change of the configuration keeps
its gate, its counts and its engine, also under another name. One that is dropped serves those
inside to their end.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from math import inf
from random import Random
from time import monotonic
from typing import Any

from tornado_frontdoor.config import Settings, UpstreamSettings
from tornado_frontdoor.core.decisions import JournalEntry, Verdict
from tornado_frontdoor.core.gpu_ledger import GpuLedger
from tornado_frontdoor.core.gpu_occupant import RoomLimits
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.engines import kinds
from tornado_frontdoor.engines.base import EngineKind
from tornado_frontdoor.engines.process import Stoppable
from tornado_frontdoor.proxy.curl.client import UpstreamClient
from tornado_frontdoor.proxy.engine.control_client import EngineControlClient
from tornado_frontdoor.proxy.engine.executor import EngineExecutor
from tornado_frontdoor.proxy.engine.gpu_meter import GpuMeter
from tornado_frontdoor.proxy.engine.journal import Journal
from tornado_frontdoor.proxy.engine.process import STOP_MARGIN_S, EngineProcess
from tornado_frontdoor.proxy.gate_driver import SleepConfig
from tornado_frontdoor.proxy.gate_settings import order_rules_of, wake_limits_of
from tornado_frontdoor.proxy.gauges import GateReading
from tornado_frontdoor.proxy.standing_orders import StandingOrders
from tornado_frontdoor.proxy.telemetry import Telemetry
from tornado_frontdoor.proxy.upstreams import Upstream

LOG = logging.getLogger("frontdoor")


class UpstreamRegistry:
    """Makes, keeps and retires upstreams."""

    def __init__(self, rng: Random) -> None:
        self.client = UpstreamClient()
        self.current: dict[str, Upstream] = {}
        self._retired: list[Upstream] = []
        self._rng = rng
        self._gpus = GpuLedger()
        self._journal: Journal | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self.cluster: Any = None
        """The front doors that share these gates; None where this one is alone."""

    def apply(self, settings: Settings, telemetry: Telemetry) -> list[str]:
        """Have the upstreams that `settings` describe; raises JournalError.

        Returns what of it has to wait for the next start.
        """
        notes: list[str] = []
        sleeps = any(upstream.sleep for upstream in settings.upstreams.values())
        if settings.cluster is not None and not self.everyone():
            # Only now: a front door that is alone needs no Redis, nor its library.
            room = import_module("tornado_frontdoor.proxy.cluster.upstreams")
            self.cluster = room.Cluster(settings, self.client, self._rng, telemetry)
        if self.cluster is not None:
            self.cluster.take(settings, room_limits(settings))
        elif sleeps and self._journal is None:
            self._journal = Journal(settings.server.state_dir)
        self._gpus.limits = room_limits(settings)
        # Also those that were dropped: a second gate before one engine would be a second cap.
        everyone = self.everyone()
        before = {url: upstream for upstream in everyone for url in upstream.settings.urls}
        moved = _moved(everyone, settings)
        current: dict[str, Upstream] = {}
        for key, wanted in settings.upstreams.items():
            found = next((before[url] for url in wanted.urls if url in before), None)
            upstream = found or moved.get(wanted.key)
            if upstream is None:
                upstream = self._make(wanted, settings, telemetry)
            else:
                notes += upstream.change(wanted, settings.gpu, settings.groups_of(key))
                if wanted.sleep is not None:
                    self._tell_engine(upstream, settings)
            names = [m.served_name for m in settings.models.values() if m.upstream == key]
            upstream.serves(names)
            current[key] = upstream
        self.client.trust(
            {url: one.tls for one in settings.upstreams.values() if one.tls for url in one.urls}
        )
        kept = set(current.values())
        self.current = current
        self._retired = [upstream for upstream in everyone if upstream not in kept]
        for upstream in [*self._retired]:
            upstream.retire(partial(self._let_go, upstream))
        return notes

    def everyone(self) -> list[Upstream]:
        """Return all upstreams that may still have somebody inside."""
        return [*self.current.values(), *self._retired]

    def load(self) -> tuple[int, int]:
        """Return how many requests are in flight and queued now."""
        gates = [upstream.keeper.gate for upstream in self.everyone()]
        return sum(gate.in_flight for gate in gates), sum(gate.queued for gate in gates)

    @property
    def ledger(self) -> GpuLedger:
        """Who is in which GPU's memory, as far as this front door decides it."""
        if self.cluster is None:
            return self._gpus
        ledger: GpuLedger = self.cluster.gpus()
        return ledger

    def readings(self) -> list[GateReading]:
        """Return all gates as they are now."""
        return [_reading_of(upstream) for upstream in self.current.values()]

    async def close(self) -> None:
        """Close everything."""
        if self.cluster is not None:
            await self.cluster.door.close()
        for upstream in self.everyone():
            await upstream.close()
        await asyncio.gather(*self._closing, return_exceptions=True)
        if self._journal is not None:
            self._journal.close()
        self.client.close()

    def _make(self, wanted: UpstreamSettings, settings: Settings, telemetry: Telemetry) -> Upstream:
        if self.cluster is not None:
            groups = settings.groups_of(wanted.key)
            upstream: Upstream = self.cluster.make(wanted, _canary(wanted, settings), groups)
            return upstream
        if wanted.sleep is None:
            return Upstream(wanted, self.client, self._rng)
        naps = {url: self._nap_of(url, wanted, settings) for url in wanted.urls}
        if wanted.replicas:
            upstream = Upstream(wanted, self.client, self._rng, naps=naps)
        else:
            upstream = Upstream(wanted, self.client, self._rng, naps[wanted.url])
        upstream.join({url: self._executor(url, upstream, settings, telemetry) for url in naps})
        self._tell_engine(upstream, settings)
        for engine in upstream.sleepers:
            assert self._journal is not None
            engine.orders = StandingOrders(
                engine,
                order_rules_of(wanted),
                self._journal.recall(engine.url).order,
                partial(self._journal.keep_order, engine.url),
                engine.wake,
            )
            engine.orders.refresh()
        return upstream

    def _nap_of(self, url: str, wanted: UpstreamSettings, settings: Settings) -> SleepConfig:
        """Return what the gate needs of one engine's sleep, with what is remembered of it."""
        limits = wake_limits_of(wanted, settings.gpu, settings.groups_of(wanted.key), url)
        assert limits is not None
        assert self._journal is not None
        known = self._journal.recall(url)
        return SleepConfig(
            kind=kind_of(wanted, settings),
            owner=url,
            limits=limits,
            gpus=self._gpus,
            memory=known.memory or JournalEntry(),
            learned_s=known.wake_times_s,
            learned_gib=known.sizes_gib,
        )

    def _executor(
        self, url: str, upstream: Upstream, settings: Settings, telemetry: Telemetry
    ) -> EngineExecutor:
        """Make who carries out what the gate wants of one engine."""
        assert self._journal is not None
        wanted, keeper = upstream.settings, upstream.keeper
        replica = url if wanted.replicas else None
        kind, canary = kind_of(wanted, settings), _canary(wanted, settings)
        report = partial(keeper.report, replica=replica)
        waker = EngineControlClient(self.client, url, kind, canary, report)
        if wanted.process is not None:
            log = wanted.process.log_file or settings.server.state_dir / f"{wanted.key}.log"
            waker.process = EngineProcess(wanted.process, log, waker.answers)
        key, known = wanted.key, keeper.sleeper(replica)
        return EngineExecutor(key, url, waker, self._journal, telemetry, self._granted, known)

    def _tell_engine(self, upstream: Upstream, settings: Settings) -> None:
        """Have all that sleep know of the file what concerns them."""
        wanted, canary = upstream.settings, _canary(upstream.settings, settings)
        for engine in upstream.sleepers:
            executor, gpu = engine.executor, wanted.gpu_of(engine.url)
            executor.change(wanted.key, canary, upstream.api_key, wanted.process)
            measures = gpu is not None and gpu.measures
            executor.meter = GpuMeter(engine.url, gpu.devices) if gpu and measures else None
            executor.measured = engine.measured
            executor.suspect = engine.suspect

    def preload(self) -> None:
        """Have woken what is to be awake from the start, one after the other, by priority."""
        wanted = [
            upstream
            for upstream in self.current.values()
            if upstream.engine is not None
            and upstream.settings.sleep is not None
            and upstream.settings.sleep.preload
        ]
        if wanted:
            wanted.sort(key=lambda one: -(one.settings.gpu.priority if one.settings.gpu else 0))
            task = asyncio.get_running_loop().create_task(_wake_all(wanted))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def hand_over(self) -> None:
        """Let another front door have the journal: this one begins nothing any more."""
        if self._journal is not None:
            self._journal.unlock()

    async def let_go(self) -> None:
        """Stop looking after engines whose gates were given away, and let go of the journal."""
        for upstream in self.everyone():
            await upstream.let_go()
        if self._journal is not None:
            await self._journal.flush()
            self._journal.unlock()

    def _let_go(self, upstream: Upstream) -> None:
        """Forget an upstream that was dropped, now that nobody is inside."""
        if upstream not in self._retired:
            return
        self._retired.remove(upstream)
        task = asyncio.get_running_loop().create_task(upstream.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        for url in upstream.settings.urls:
            self._gpus.forget(url)
        for owner in self._gpus.settle(monotonic()):
            self._granted(owner)

    def _granted(self, address: str) -> None:
        for upstream in self.everyone():
            engine = upstream.sleepers.at(address)
            if engine is not None:
                engine.hear_ledger()


def _reading_of(upstream: Upstream) -> GateReading:
    """Return a gate as it is now, for gauges."""
    gate = upstream.keeper.gate
    limits = gate.limits
    several = upstream.engines() if upstream.settings.several else []
    return GateReading(
        upstream=upstream.settings.key,
        in_flight=gate.in_flight,
        cooling=gate.cooling,
        cap=limits.cap,
        queued=gate.queued,
        queue=limits.queue,
        state=upstream.state,
        oldest_wait_s=gate.oldest_wait_s or 0.0,
        returns_expected=gate.returns_expected,
        returns_kept=gate.returns_kept,
        came_back=gate.came_back,
        stayed_away=gate.stayed_away,
        replicas=tuple((one.name, one.used, one.available) for one in several),
        replica_states=tuple((one.url, one.state.value) for one in upstream.sleepers if several),
        orders=tuple((one.kind.value, one.owner.value) for one in upstream.sleepers.held()),
    )


async def _wake_all(upstreams: Sequence[Upstream]) -> None:
    for upstream in upstreams:
        key = upstream.settings.key
        if upstream.keeper.gate.standing.asleep is not None:
            LOG.info("%s is not preloaded: it is to stay asleep", key)
            continue
        answered = await upstream.wake("its preload")
        if answered.verdict is not Verdict.DONE:
            LOG.warning("%s could not be preloaded: %s", key, answered.detail)


def _moved(everyone: list[Upstream], settings: Settings) -> dict[UpstreamKey, Upstream]:
    """Return, by their new names, upstreams whose engine is asked at another path from now on.

    It is the same engine: a gate of its own would be a second cap. One that sleeps keeps its path
    until the next start, and must have kept its name, since what is remembered goes by its address.
    """
    still = {url for wanted in settings.upstreams.values() for url in wanted.urls}
    left = {
        _origin(one.settings.url): one
        for one in everyone
        if len(one.settings.urls) == 1 and one.settings.url not in still
    }
    known = {url for one in everyone for url in one.settings.urls}
    moved: dict[UpstreamKey, Upstream] = {}
    for wanted in settings.upstreams.values():
        if len(wanted.urls) == 1 and wanted.url not in known:
            one = left.get(_origin(wanted.url))
            if one is not None and (one.engine is None or one.settings.key == wanted.key):
                moved[wanted.key] = left.pop(_origin(wanted.url))
    return moved


def _origin(url: str) -> str:
    return "/".join(url.split("/", 3)[:3])


def room_limits(settings: Settings) -> RoomLimits:
    """Return what there is of GPUs and host; nothing is limited where the file says nothing."""
    pool = settings.gpu
    if pool is None:
        return RoomLimits(device_gib={})
    devices = {
        device
        for one in settings.upstreams.values()
        for url in one.urls
        for device in one.devices_of(url)
    }
    return RoomLimits(
        device_gib=dict.fromkeys(devices, pool.memory_gib * pool.limit),
        whole_gib=dict.fromkeys(devices, pool.memory_gib),
        host_gib=settings.host.ram_gib if settings.host else inf,
        stay_factor=pool.stay_factor,
        max_turn_wait_s=pool.max_turn_wait_s,
    )


def kind_of(wanted: UpstreamSettings, settings: Settings) -> EngineKind:
    """Return the kind of an engine, which a `process` table lets be stopped, too."""
    kind = kinds()[wanted.engine].serving(_canary(wanted, settings)[1])
    process = wanted.process
    if process is None:
        return kind
    # Its limits come first, and what they end is told; these are for a driver that does not answer.
    stop_s = process.stop_timeout_s + 2 * STOP_MARGIN_S
    return Stoppable(kind.at(process.ready_path), process.start_timeout_s + stop_s, stop_s)


def _canary(wanted: UpstreamSettings, settings: Settings) -> tuple[str, str]:
    """Return where and for which model to ask for one token."""
    if wanted.sleep is None:
        return "", ""
    names = [m.served_name for m in settings.models.values() if m.upstream == wanted.key]
    return wanted.sleep.canary_path, names[0] if names else ""
