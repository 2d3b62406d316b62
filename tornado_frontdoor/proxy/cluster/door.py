"""Drives one door's part in the cluster: time and packets in, gates, requests and Redis moved.

All decisions are those of `tornado_frontdoor.cluster` and of the gates. Nothing here waits: what
takes time is a task whose end is told to the node.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from secrets import token_hex
from time import monotonic
from typing import Any

from redis.exceptions import RedisError

from tornado_frontdoor.cluster import actions
from tornado_frontdoor.cluster.actions import Action, Key
from tornado_frontdoor.cluster.messages import (
    DrainReplica,
    Lost,
    OperatorWants,
    Packet,
    terms_of,
    terms_text,
)
from tornado_frontdoor.cluster.node import Node
from tornado_frontdoor.cluster.rules import ClusterRules
from tornado_frontdoor.cluster.tickets import Own
from tornado_frontdoor.core.decisions import Admit, Answered, Outcome, Refusal, Verdict
from tornado_frontdoor.core.request import WakeTerms
from tornado_frontdoor.proxy.cluster.agreement import SharedLimits
from tornado_frontdoor.proxy.cluster.joining import what_differs
from tornado_frontdoor.proxy.cluster.ports import Share, UpstreamGate
from tornado_frontdoor.proxy.cluster.redis_bus import RedisBus
from tornado_frontdoor.proxy.gate_driver import GateDriver, Lease

LOG = logging.getLogger("frontdoor")

TICKS = 20
"""How often in a lease time is looked at."""


class ClusterDoor:
    """One process as a door of the cluster. `gates` are its upstreams, by address."""

    def __init__(self, url: str, rules: ClusterRules) -> None:
        self.name = token_hex(6)
        self.rules = rules
        self.node = Node(self.name, rules, monotonic())
        self.bus = RedisBus(url, self.name, rules.lease_s, SharedLimits())
        self.gates: dict[str, UpstreamGate] = {}
        self.disagrees = ""
        """Which limits the owner keeps, where they are not ours."""
        self._drivers: dict[str, GateDriver] = {}
        self._leases: dict[Key, Lease] = {}
        self._addresses: dict[int, str] = {}
        self._journal: Mapping[str, str] = {}
        self._numbers = 0
        self._wishes: dict[int, asyncio.Future[Answered]] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._beating = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._busy = self._flushes = False
        self.node.puts_off = True

    # Up and down

    def start(self) -> None:
        """Begin to read, to send and to beat."""
        self.bus.start(self._on_packet, self._on_lifeline)
        self._tick()

    def keep(self, limits: SharedLimits) -> None:
        """Keep these limits from now on, and tell them where this door owns the gates."""
        self.bus.limits = limits
        if self.node.owner is not None:
            self.spawn(self._quietly(self.bus.tell_limits()))

    def leave(self) -> None:
        """Own nothing any more; requests of this door go on to their end."""
        self.node.leave(monotonic())
        self._carry_out()

    async def close(self) -> None:
        """Stop; nobody may be inside any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for future in self._wishes.values():
            if not future.done():
                future.set_result(Answered("", Verdict.FAILED, "the front door is shutting down"))
        self._close_gates()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.rules.lease_s)
        for task in self._tasks:
            task.cancel()
        await self.bus.close()

    def _tick(self) -> None:
        if self.node.owner is not None:
            self.node.owner.views = {a: gate.view() for a, gate in self.gates.items()}
        self.node.tick(monotonic())
        self._carry_out()
        self._timer = self._loop.call_later(self.rules.lease_s / TICKS, self._tick)

    def _on_packet(self, packet: Packet) -> None:
        self.node.packet(packet, monotonic())
        self._carry_out()

    def _on_lifeline(self, is_open: bool) -> None:
        self.node.connected(monotonic(), is_open=is_open)

    # Requests of this door

    def new_number(self, address: str) -> int:
        """Return a number for a request of this upstream."""
        self._numbers += 1
        self._addresses[self._numbers] = address
        return self._numbers

    @property
    def views(self) -> Mapping[str, Mapping[str, Any]]:
        """The gates by address, as their owner last showed them."""
        views: Mapping[str, Mapping[str, Any]] = self.node.views
        return views

    def enter(
        self, number: int, address: str, weight: int, affinity: str, terms: WakeTerms | None
    ) -> None:
        """Take a new request. What is decided is told to its gate."""
        now = monotonic()
        self.node.enter(Own(number, address, weight, now, affinity, terms_text(terms)), now)
        self._carry_out()

    def finish(self, number: int, outcome: Outcome) -> None:
        """End a request, once its transfer is over."""
        self._addresses.pop(number, None)
        self.node.finish(number, outcome, monotonic())
        self._carry_out()

    def cool(self, number: int) -> None:
        """Take that a request was broken off: its engine may not count it any more."""
        own = self.node.own.get(number)
        if own is not None:
            own.wire_s = float("inf")

    def may_start(self, number: int) -> bool:
        """Tell whether a request may go to its engine now."""
        may = self.node.may_start(number, monotonic())
        self._carry_out()
        return may

    def lost(self, address: str, replica: str, why: str) -> None:
        """Take that nobody answers at an upstream's engine, or at that one of several, and why."""
        if address in self._drivers:
            self.gates[address].engine_lost(replica, why)
        else:
            self.node.tell_owner(Lost(address, replica, why), monotonic())
        self._carry_out()

    def drain(self, address: str, replica: str, *, undo: bool) -> None:
        """Have nobody new sent to one of several engines, or again, wherever the gate is."""
        if address in self._drivers:
            self.gates[address].drain_replica(replica, undo=undo)
        else:
            self.node.tell_owner(DrainReplica(address, replica, undo), monotonic())
        self._carry_out()

    async def wish(self, address: str, level: int, replica: str = "") -> Answered:
        """Do what an operator at this door wants of an engine, or of that one of several."""
        if self.node.owner is not None:
            return await self.gates[address].grant_wish(level, replica)
        self._numbers += 1
        future: asyncio.Future[Answered] = self._loop.create_future()
        self._wishes[self._numbers] = future
        wants = OperatorWants(self._numbers, address, level, replica)
        if not self.node.tell_owner(wants, monotonic()):
            return Answered("", Verdict.FAILED, "no front door owns the gates now")
        self._carry_out()
        return await future

    def may_command(self) -> bool:
        """Tell whether this door may put engines to sleep or wake them now."""
        may = self.node.may_command(monotonic())
        self._carry_out()
        return may

    def say(self, text: str) -> None:
        """Tell operators something."""
        LOG.warning("cluster: %s", text)

    # What is to be done

    def _carry_out(self) -> None:
        if self._busy:
            return  # whoever is at it sees what comes
        self._busy = True
        try:
            out = self.node.out
            while out:
                found, out[:] = [*out], []
                for action in found:
                    self._act(action)
        finally:
            self._busy = False
        if self.node.has_news and not self._flushes:
            # All that happens in this turn of the loop goes out together.
            self._flushes = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushes = False
        self.node.flush(monotonic())
        self._carry_out()

    def _act(self, action: Action) -> None:
        match action:
            case actions.Send():
                self.bus.send(action.packet)
            case actions.Grant() | actions.TurnAway():
                self._tell(action)
            case actions.GateArrive():
                driver = self._driver(action.address)
                affinity = bytes.fromhex(action.affinity) or None
                terms = terms_of(action.terms)
                entered = driver.enter(action.weight, action.waited_s, affinity, terms)
                self._bring(action.key, entered)
            case actions.GateFinish():
                lease = self._leases.pop(action.key, None)
                if lease is not None:
                    lease.close(action.outcome)
            case actions.GateAdopt():
                driver = self._driver(action.address)
                self._leases[action.key] = driver.adopt(action.weight, action.replica or None)
            case actions.Beat():
                self._beat(action)
            case actions.CountEngine():
                self.spawn(self._sample(action))
            case actions.Say():
                self.say(action.text)
            case _:
                self._act_rarely(action)

    def _act_rarely(self, action: Action) -> None:  # noqa: C901, PLR0912 - one branch an action
        match action:
            case actions.OpenGates():
                self._open_gates(action.shares)
            case actions.GatesReady():
                for gate in self.gates.values():
                    gate.begin()
            case actions.CloseGates():
                self._close_gates()
            case actions.GateLost():
                self.gates[action.address].engine_lost(action.replica, action.why)
            case actions.GateDrain():
                self.gates[action.address].drain_replica(action.replica, undo=action.undo)
            case actions.GateWish():
                self.spawn(self._grant_wish(action))
            case actions.TellOperator():
                future = self._wishes.pop(action.number, None)
                if future is not None and not future.done():
                    future.set_result(Answered("", Verdict(action.verdict), action.detail))
            case actions.Release():
                self.spawn(self._quietly(self.bus.release(action.epoch)))
            case actions.LookForDoors():
                self.spawn(self._look_for_doors())
            case actions.Forget():
                self.spawn(self._quietly(self.bus.forget(action.door)))
            case _:  # what comes often is above
                pass

    def _tell(self, action: actions.Grant | actions.TurnAway) -> None:
        address = self._addresses.get(action.number)
        if address is None:
            return
        gate = self.gates[address]
        if isinstance(action, actions.TurnAway):
            del self._addresses[action.number]
            gate.refused(action.number, action.refusal)
        else:
            gate.granted(action.number, action.waited_s, action.paused_s, action.replica)

    # Gates of this door

    def _open_gates(self, shares: Mapping[str, int] | None) -> None:
        for address, gate in self.gates.items():
            if shares is None:
                self._drivers[address] = gate.open(None, self._journal)
            elif address in shares:
                slots = self.rules.slot_shares(address, len(self.node.doors))
                self._drivers[address] = gate.open(Share(shares[address], slots), {})

    def _driver(self, address: str) -> GateDriver:
        """Return who drives a gate here; that of an upstream that came later is opened now."""
        driver = self._drivers.get(address)
        if driver is None:
            driver = self._drivers[address] = self.gates[address].open(None, self._journal)
            self.gates[address].begin()
        return driver

    def _close_gates(self) -> None:
        for lease in self._leases.values():
            lease.on_decision = None
        self._leases.clear()
        self._drivers.clear()
        for gate in self.gates.values():
            gate.close_gate()

    def _bring(self, key: Key, lease: Lease) -> None:
        self._leases[key] = lease
        if lease.decision is None:
            lease.on_decision = lambda decision: self._decided(key, decision)
        else:
            self._decided(key, lease.decision)

    def _decided(self, key: Key, decision: Admit | Refusal) -> None:
        if isinstance(decision, Refusal):
            self._leases.pop(key, None)
        self.node.decided(key, decision, monotonic())
        self._carry_out()

    # What takes time

    def spawn(self, what: Coroutine[Any, Any, object]) -> None:
        """Let something go on beside everything else."""
        task = self._loop.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _quietly(self, what: Coroutine[Any, Any, object]) -> None:
        try:
            await what
        except (RedisError, OSError) as error:
            LOG.debug("cluster: %s", error)

    def _beat(self, beat: actions.Beat) -> None:
        if not self._beating:
            self._beating = True
            self.spawn(self._beat_once(beat))

    async def _beat_once(self, beat: actions.Beat) -> None:
        sent_s = monotonic()
        try:
            told = await self.bus.beat(campaigns=beat.campaigns, epoch=beat.epoch)
        except (RedisError, OSError) as error:
            refused = "Connect call failed" in str(error) or isinstance(
                error.__cause__, ConnectionRefusedError
            )
            self.node.beat_failed(monotonic(), refused=refused)
        else:
            if told.answer.won:
                self._journal = told.journal
                self.spawn(self._quietly(self.bus.tell_limits()))
            self._agree(told.answer.owner, told.limits)
            self.node.beat_answered(sent_s, told.answer, monotonic())
        finally:
            self._beating = False
        self._carry_out()

    def _agree(self, owner: str, limits: str) -> None:
        """Look whether the owner keeps the limits that this door would keep."""
        here = self.bus.limits.fingerprint
        other = limits if owner and owner != self.name and limits != here else ""
        if other and other != self.disagrees:
            self.spawn(self._quietly(self._tell_difference()))
        self.disagrees = other
        self.node.agrees = not other

    async def _tell_difference(self) -> None:
        what = what_differs(await self.bus.kept(), self.bus.limits)
        LOG.error("cluster: the limits here differ from those of the owner, which hold: %s", what)

    async def _sample(self, sample: actions.CountEngine) -> None:
        address = next(a for a in self.gates if sample.address in self.rules.engines(a))
        busy = await self.gates[address].sample(sample.address)
        self.node.sampled(sample, busy, monotonic())
        self._carry_out()

    async def _look_for_doors(self) -> None:
        try:
            present = await self.bus.lifelines()
        except (RedisError, OSError):
            return
        self.node.seen(present, monotonic())
        self._carry_out()

    async def _grant_wish(self, wish: actions.GateWish) -> None:
        told = await self.gates[wish.address].grant_wish(wish.level, wish.replica)
        if self.node.owner is not None:
            self.node.owner.wished(wish.key, told.verdict.value, told.detail)
