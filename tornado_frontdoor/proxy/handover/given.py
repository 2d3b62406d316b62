"""The gates of this process, once another one has them: what goes on here asks for its slots there.

The same words pass between the two as between front doors of a cluster, over a socket that loses
nothing. When the other process ends, those who wait here are refused and those who run go on.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

from tornado_frontdoor.cluster.messages import (
    Admitted,
    AnyBody,
    Arrive,
    Finish,
    Join,
    Lost,
    Running,
    State,
    TurnedAway,
    Waiting,
    terms_text,
)
from tornado_frontdoor.core.decisions import Outcome, Reason, Refusal
from tornado_frontdoor.core.refusals import DRAINING_RETRY_AFTER_S
from tornado_frontdoor.core.request import WakeTerms
from tornado_frontdoor.proxy.distant_gate import DistantGate
from tornado_frontdoor.proxy.gate_driver import Lease
from tornado_frontdoor.proxy.handover.channel import Channel
from tornado_frontdoor.proxy.upstreams import Upstream


class GivenGates:
    """The way to the gates at the next process. `on_serving` is called once it serves."""

    def __init__(self, on_serving: Callable[[], None], on_lost: Callable[[], None]) -> None:
        self.views: Mapping[str, Mapping[str, Any]] = {}
        self._on_serving = on_serving
        self._on_lost = on_lost
        self._gates: dict[str, DistantGate] = {}
        self._addresses: dict[int, str] = {}
        self._numbers = 0
        self._channel = Channel()
        self._task: asyncio.Task[None] | None = None

    def take(self, held: Iterable[tuple[Upstream, Lease]], upstreams: Iterable[Upstream]) -> None:
        """Have all tickets, and who is drained; `held` are those in flight, by their upstream."""
        waiting: list[Waiting] = []
        running: list[Running] = []
        in_flight: dict[Upstream, list[Lease]] = {}
        for upstream, lease in held:
            in_flight.setdefault(upstream, []).append(lease)
        now = monotonic()
        drained: list[str] = []
        for upstream in upstreams:
            drained += [one.name for one in upstream.engines() if one.drained]
            queued, runs = upstream.give_to(self, in_flight.get(upstream, ()))
            address = upstream.settings.url
            self._gates[address] = upstream.distant
            for lease in queued:
                ticket = lease.ticket
                waited_s = now - ticket.arrived_s
                affinity = (ticket.affinity or b"").hex()
                more = affinity, terms_text(ticket.terms)
                waiting.append(Waiting(ticket.number, address, ticket.weight, waited_s, 0, *more))
            running += [
                Running(ticket.number, address, ticket.weight, ticket.replica or "")
                for ticket in runs
            ]
        self._channel.say_first(Join(tuple(waiting), tuple(running), (), tuple(drained)))

    def begin(self, connection: socket.socket) -> None:
        """Speak with the next process from now on."""
        self._task = asyncio.get_running_loop().create_task(self._talk(connection))

    async def close(self) -> None:
        """Hang up."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    # The way

    def new_number(self, address: str) -> int:
        """Return a number for a request of this upstream."""
        self._numbers += 1
        self._addresses[self._numbers] = address
        return self._numbers

    def enter(
        self, number: int, address: str, weight: int, affinity: str, terms: WakeTerms | None
    ) -> None:
        """Ask for slots."""
        if self._channel.over:
            self._refuse(number)
        self._channel.say(Arrive(number, address, weight, affinity, terms_text(terms)))

    def may_start(self, _: int) -> bool:
        """Tell that it may: what was granted is."""
        return True

    def finish(self, number: int, outcome: Outcome) -> None:
        """Give slots back, or a place."""
        self._addresses.pop(number, None)
        self._channel.say(Finish(number, outcome))

    def cool(self, number: int) -> None:
        """Do nothing: its slots are kept until `finish`."""

    def lost(self, address: str, replica: str, why: str) -> None:
        """Tell that nobody answers at an engine."""
        self._channel.say(Lost(address, replica, why))

    # How

    async def _talk(self, connection: socket.socket) -> None:
        await self._channel.talk(connection, self._hear)
        for number in [*self._addresses]:
            self._refuse(number)
        self._on_lost()

    def _hear(self, body: AnyBody) -> None:
        match body:
            case Admitted():
                gate = self._gate_of(body.number)
                if gate is not None:
                    gate.granted(body.number, body.waited_s, body.paused_s, body.replica)
            case TurnedAway():
                gate = self._gate_of(body.number)
                self._addresses.pop(body.number, None)
                if gate is not None:
                    gate.refused(body.number, body.refusal)
            case State():
                if not self.views:
                    self._on_serving()
                self.views = {"": {}} | dict(body.views)
            case _:  # what the other end only hears
                pass

    def _gate_of(self, number: int) -> DistantGate | None:
        return self._gates.get(self._addresses.get(number, ""))

    def _refuse(self, number: int) -> None:
        detail = "The front door that took over has ended"
        refusal = Refusal(Reason.DRAINING, detail, retry_after_s=DRAINING_RETRY_AFTER_S)
        gate = self._gate_of(number)
        if gate is not None and gate.waits(number):
            self._addresses.pop(number, None)
            gate.refused(number, refusal)
