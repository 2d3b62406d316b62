"""One upstream as the proxy holds it: its settings, its gate, its engine, and the way to it.

Beside the gate stands a side door for what an engine answers without a sequence slot (`/tokenize`):
a small line of its own, so that a crowd of token counts takes no slot and does not bury the engine.
vLLM answers those asleep too, so the side door wakes nobody.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import cast

from tornado_frontdoor.config import GpuPoolSettings, UpstreamSettings
from tornado_frontdoor.core.decisions import Answered, Outcome, Verdict
from tornado_frontdoor.core.replicas import EngineReplica
from tornado_frontdoor.core.request import (
    CallerFacts,
    CanonicalRequest,
    Ticket,
    UpstreamKey,
    WakeTerms,
)
from tornado_frontdoor.proxy.callers import affinity_of
from tornado_frontdoor.proxy.cooling_looks import CoolingLooks
from tornado_frontdoor.proxy.curl.client import Receiver, Transfer, UpstreamCall, UpstreamClient
from tornado_frontdoor.proxy.discovery import Discovery
from tornado_frontdoor.proxy.distant_gate import DistantGate, WayToGates
from tornado_frontdoor.proxy.engine.executor import EngineExecutor
from tornado_frontdoor.proxy.engine_handles import EngineHandles
from tornado_frontdoor.proxy.gate_driver import (
    AdmissionLimits,
    GateDriver,
    Lease,
    SleepConfig,
)
from tornado_frontdoor.proxy.gate_settings import (
    engines_later,
    engines_of,
    limits_of,
    order_rules_of,
    wake_limits_of,
)
from tornado_frontdoor.proxy.health import EngineHealth
from tornado_frontdoor.proxy.standing_orders import StandingOrders
from tornado_frontdoor.surfaces.last_pieces import LastPieces

_SIDE_LIMITS = AdmissionLimits(cap=8, queue=512, queue_timeout_s=60.0)
"""Claude Code counts tokens 14 at a time; 8 at once keep an engine's tokenizer busy enough."""
_CLIENT_KEYS = ("authorization", "x-api-key", "api-key")


class CannotJoin(Exception):  # noqa: N818 - said to an operator as it stands
    """A front door that cannot be one of its cluster; the message says why."""


class Upstream:
    """One address: one gate, whatever route or dialect a request came by."""

    def __init__(
        self,
        settings: UpstreamSettings,
        client: UpstreamClient,
        rng: Random,
        nap: SleepConfig | None = None,
        keeper: GateDriver | None = None,
        naps: Mapping[str, SleepConfig] | None = None,
    ) -> None:
        self._client = client
        self.settings = settings
        self.api_key = settings.read_api_key()
        engines = engines_of(settings) if nap is None and keeper is None else None
        limits = limits_of(settings)
        self.keeper = keeper or GateDriver(settings.key, limits, rng, nap, engines, naps)
        looks = engines is not None and naps is None
        self._health = EngineHealth(self.keeper, client) if looks else None
        self._found: Sequence[str] = ()
        self._to_drain: frozenset[str] = frozenset()
        self._discovery: Discovery | None = None
        self._looks: CoolingLooks | None = None
        self._models: Sequence[str] = ()
        if keeper is None:
            self._looks = CoolingLooks(self.keeper, client)
        self._discover()
        self.side_door = GateDriver(UpstreamKey(f"{settings.key} (no slot)"), _SIDE_LIMITS, rng)
        self.sleepers = EngineHandles()
        self._given: DistantGate | None = None

    def __repr__(self) -> str:
        gate, settings = self.keeper.gate, self.settings
        cap, queue = gate.limits.cap, gate.limits.queue
        flying = f"{gate.in_flight}{'' if cap is None else f' of {cap}'} in flight"
        waiting = f"{gate.queued} of {queue} queued"
        return f"<Upstream {settings.key} at {settings.url}: {self.state}, {flying}, {waiting}>"

    def _discover(self) -> None:
        """Look its name up from now on, or no more, as its settings say."""
        wanted = self.settings.discover is not None and self._health is not None
        every_s = self.settings.discover_every_s
        if self._discovery is not None and not wanted:
            self._discovery.close()
            self._discovery, self._found = None, ()
        elif self._discovery is not None:
            self._discovery.every_s = every_s
        elif wanted:
            self._discovery = Discovery(self.settings.url, every_s, self._take_engines)

    def _take_engines(self, found: Sequence[str]) -> None:
        """Have the engines that were found; who is on one that goes stays to the end."""
        self._found = found
        self._change_engines()
        for url in self._to_drain.intersection(found):
            self.drain_engine(url, undo=False)
        self._to_drain -= frozenset(found)

    def _change_engines(self) -> None:
        self._tell_looks()
        if self._health is not None or (self.sleepers and self.settings.replicas):
            self.keeper.change_engines(engines_of(self.settings, self._found))
        if self._health is not None:
            self._health.arm()

    def join(self, executors: Mapping[str, EngineExecutor]) -> None:
        """Give the gate the engines that it puts to sleep and wakes, and let it look at them."""
        several = bool(self.settings.replicas)
        self.sleepers = EngineHandles(self.keeper, executors, several=several)
        self.keeper.on_command = self.sleepers.command
        self.keeper.begin()

    @property
    def engine(self) -> EngineExecutor | None:
        """Who carries out what the gate wants of its engine, the first of several; None: nobody."""
        first = self.sleepers.first
        return first.executor if first is not None and self.sleepers else None

    @property
    def orders(self) -> StandingOrders | None:
        """What holds its engine awake or asleep, the first of several; None: nobody keeps any."""
        first = self.sleepers.first
        return None if first is None else first.orders

    @property
    def state(self) -> str:
        """The engine's state, as in `/admin/status`."""
        return self.keeper.gate.state.value

    @property
    def sleep_depth(self) -> str | None:
        """How deep it sleeps; None while it does not."""
        depth = self.keeper.gate.sleep_depth
        return None if depth is None else depth.value

    @property
    def idle(self) -> bool:
        """Whether nobody is inside."""
        gates = (self.keeper.gate, self.side_door.gate)
        return not any(gate.in_flight or gate.cooling or gate.queued for gate in gates)

    def serves(self, models: Sequence[str]) -> None:
        """Take the names of its models: some engines tell their counts for each."""
        self._models = models
        self._tell_looks()

    def _tell_looks(self) -> None:
        if self._looks is not None:
            engines = tuple(self._found) or self.settings.urls
            self._looks.know(self.settings.engine, self._models, engines, self.api_key)

    # Requests

    def enter(
        self,
        request: CanonicalRequest,
        terms: WakeTerms | None,
        request_id: str,
        caller: CallerFacts | None,
    ) -> Lease:
        """Bring a request to the gate it has to pass."""
        affinity = None
        if self.settings.pick == "affinity" and request.takes_slot:
            affinity = affinity_of(request.body)
        return self.driver_of(request).enter(
            request.weight,
            affinity=affinity,
            terms=terms,
            request_id=request_id,
            caller=caller,
        )

    def queued_with(self, request: CanonicalRequest) -> int:
        """Return how many wait in the queue that a request is in: the place of who came last."""
        return self.driver_of(request).gate.queued

    def driver_of(self, request: CanonicalRequest) -> GateDriver:
        """Return who drives the gate that a request has to pass."""
        return self.keeper if request.takes_slot else self.side_door

    def start(
        self, request: CanonicalRequest, request_id: str, receiver: Receiver, engine: str | None
    ) -> Transfer:
        """Ask the engine that was picked. Its time limits start now, not with the arrival."""
        settings = self.settings
        call = UpstreamCall(
            url=(engine or self._any_engine()) + request.path,
            method="POST",
            body=request.body,
            headers=(
                ("Content-Type", request.content_type),
                # What is encoded cannot be judged, translated or ended with a word of ours.
                ("Accept-Encoding", "identity"),
                *self._credentials(request),
            ),
            marks=(f"X-Request-Id: {request_id}",),
            connect_timeout_s=settings.connect_timeout_s,
            read_timeout_s=settings.read_timeout_s,
            chunk_timeout_s=settings.chunk_timeout_s,
            streams=request.stream,
            lingers=request.takes_slot,
        )
        return self._client.start(call, receiver)

    def _credentials(self, request: CanonicalRequest) -> Iterable[tuple[str, str]]:
        """Return what else the engine is told: with the client's key, or with ours in its place."""
        if self.settings.forward_client_key:
            return request.headers
        headers = [pair for pair in request.headers if pair[0].lower() not in _CLIENT_KEYS]
        if self.api_key is not None:
            headers.append(("Authorization", f"Bearer {self.api_key}"))
        return headers

    def lost(self, engine: str | None, why: str = "") -> bool:
        """Take that a request could not connect, and why; tells whether to ask the gate again."""
        if self._given is not None:
            self._given.lost(engine or "", why)
            return True
        if self.sleepers:
            asleep = self.sleepers.at(engine or self.settings.url)
            if asleep is not None:
                asleep.lost(why)
        elif self._health is not None and engine is not None:
            self._health.refused(engine, why)
        return bool(self.sleepers) or self._health is not None

    def refused(self, engine: str | None, status: int, answer: LastPieces) -> str:
        """Take how an engine refused a request, and say it: perhaps it does not serve any more."""
        asleep = self.sleepers.at(engine or self.settings.url)
        if asleep is not None:
            asleep.executor.refused(status, answer.pieces[0])
        told = f"the engine answered {status}: {answer.shown()}"
        key = f"upstreams.{self.settings.key}.api_key_file"
        return f"{told}; it wants a key: see {key}" if status == 401 else told

    def move(self, ticket: Ticket) -> bool:
        """Give a ticket of which nothing was sent to another of several engines."""
        return self._health is not None and self.keeper.gate.move(ticket)

    def engines(self) -> list[EngineReplica]:
        """Return the engines that the gate picks from; none where it does not."""
        replicas = self.keeper.gate.replicas
        return [*replicas] if replicas is not None else []

    def _any_engine(self) -> str:
        """Return where to ask what takes no slot: an engine that is there, if any is."""
        there = [one.name for one in self.engines() if one.available]
        return there[0] if there else self.settings.url

    # Operators

    def drain_engine(self, url: str, *, undo: bool) -> bool:
        """Send nobody new to one of several engines; False: there is none of that address."""
        if url not in [one.name for one in self.engines()]:
            return False
        self.keeper.drain_engine(url, undo=undo)
        return True

    def drain_when_found(self, urls: Iterable[str]) -> None:
        """Drain these too, once its name stands for them."""
        self._to_drain = frozenset(urls)

    async def wake(self, by: str = "an operator", replica: str | None = None) -> Answered:
        """Wake the engine, all of several, or that one; return what came of it."""
        if not self.sleepers:
            return Answered("wake", Verdict.DONE)
        return await self.sleepers.wake(by, replica)

    async def sleep(self, level: int, replica: str | None = None) -> Answered:
        """Put the engine to sleep, all of several, or that one; return what came of it."""
        if not self.sleepers:
            return Answered("sleep", Verdict.UNSUPPORTED, "it has no sleep table", level)
        return await self.sleepers.sleep(level, replica)

    def change(
        self,
        settings: UpstreamSettings,
        pool: GpuPoolSettings | None,
        groups: tuple[str, ...] = (),
    ) -> list[str]:
        """Put new settings in force; everyone inside stays inside. Returns what has to wait."""
        key, notes = settings.key, list[str]()
        self.keeper.on_rest = self.side_door.on_rest = None
        if self.sleepers and settings.replicas and settings.urls != self.settings.urls:
            notes.append(engines_later(settings, self.settings))
            settings = replace(settings, url=self.settings.url, replicas=self.settings.replicas)
        if self.sleepers and settings.url != self.settings.url:
            notes.append(f"upstreams.{key}.url: another path changes with the next start")
            settings = replace(settings, url=self.settings.url)
        if settings.engine != self.settings.engine:
            notes.append(f"upstreams.{key}.engine changes with the next start")
        self.settings = settings
        self.api_key = settings.read_api_key()
        self.keeper.gate.key = settings.key
        wake = wake_limits_of(settings, pool, groups)
        if (wake is None) is bool(self.sleepers):
            # A second gate before one engine would be a second cap.
            notes.append(f"upstreams.{key}.sleep comes or goes with the next start")
        self._discover()
        self._change_engines()
        self.keeper.change_limits(limits_of(settings))
        for engine in self.sleepers if wake is not None else ():
            policy = wake_limits_of(settings, pool, groups, engine.url)
            if policy is not None:
                self.keeper.change_policies({engine.url: policy})
        self.sleepers.change_orders(order_rules_of(settings))
        return notes

    def retire(self, let_go: Callable[[], None]) -> None:
        """Serve those inside to their end, sleep no more, and call `let_go` when all is quiet."""
        self.sleepers.close_orders()
        for engine in self.sleepers:
            engine.retire()

        def at_rest() -> None:
            if self.idle and self.keeper.gate.wake_step is None:
                let_go()

        self.keeper.on_rest = self.side_door.on_rest = at_rest
        at_rest()

    @property
    def distant(self) -> DistantGate:
        """The gate at the process that has taken it over; see `give_to`."""
        assert self._given is not None
        return self._given

    def give_to(
        self, way: WayToGates, in_flight: Iterable[Lease]
    ) -> tuple[list[Lease], list[Ticket]]:
        """Have the gate at another process from now on; returns who waits, and who holds slots."""
        waiting, cooling = self.keeper.give_away()
        distant = self._given = DistantGate(
            way, self.settings.url, self.settings.key, lambda: limits_of(self.settings)
        )
        self.keeper = cast(GateDriver, distant)
        running = [lease.ticket for lease in in_flight]
        for lease in (*waiting, *in_flight):
            distant.take(lease)
        for ticket, lingering in cooling:
            if ticket not in running:
                distant.take(Lease(distant, ticket))
                running.append(ticket)
            distant.cool(ticket, Outcome.CLIENT_GONE_STREAMING, lingering)
        return waiting, running

    async def let_go(self) -> None:
        """Stop what looked after the engine: the process that has the gate does."""
        if self._discovery is not None:
            self._discovery.close()
        looks, self._looks = self._looks, None
        if looks is not None:
            await looks.close()
        health, self._health = self._health, None
        self.sleepers.close_orders()
        if health is not None:
            await health.close()
        await self.sleepers.close()

    def drain(self) -> None:
        """Refuse the queues and all newcomers."""
        self.sleepers.close_orders()
        self.keeper.drain()
        self.side_door.drain()

    async def close(self) -> None:
        """Stop timers and calls."""
        self.sleepers.close_orders()
        self.keeper.close()
        self.side_door.close()
        if self._discovery is not None:
            self._discovery.close()
        if self._looks is not None:
            await self._looks.close()
        if self._health is not None:
            await self._health.close()
        await self.sleepers.close()
