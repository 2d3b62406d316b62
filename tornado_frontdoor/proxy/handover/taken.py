"""The front door before this one: its sockets are ours, and its tickets are in our gates.

Those of it that run take their slots here before anybody else is let in, so that the cap holds over
both processes; those of it that wait come first, in their order. When it ends, so do its tickets.
"""

import asyncio
import json
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from tornado_frontdoor.cluster.messages import (
    AnyBody,
    Arrive,
    Finish,
    Join,
    Lost,
    Running,
    State,
    TurnedAway,
    Waiting,
    read_body,
    terms_of,
    told,
)
from tornado_frontdoor.config import Address
from tornado_frontdoor.core.decisions import Admit, Outcome, Reason, Refusal
from tornado_frontdoor.core.request import TicketState
from tornado_frontdoor.proxy.distant_gate import view_of
from tornado_frontdoor.proxy.gate_driver import Lease
from tornado_frontdoor.proxy.handover.channel import Channel
from tornado_frontdoor.proxy.handover.meeting import CannotTakeOver, Given, ask
from tornado_frontdoor.proxy.upstreams import Upstream

VIEWS_S = 0.5
"""How often the process before us is shown the gates."""


class Unheard:
    """Nothing tells when an engine lets go of what a process that has ended asked it."""

    over = False

    def __init__(self) -> None:
        self.on_over: Callable[[], None] | None = None

    def close(self) -> None:
        """Wait for it no longer."""


class Predecessor:
    """The process before this one, until it has ended."""

    def __init__(self, given: Given, join: Join, rest: bytes) -> None:
        self._connection = given.connection
        self._sockets = dict(given.sockets)
        self.sockets_held = given.held
        self._join = join
        self._rest = rest
        self._upstreams: dict[str, Upstream] = {}
        self._leases: dict[int, tuple[Upstream, Lease]] = {}
        self._channel = Channel()
        self._tasks: list[asyncio.Task[None]] = []

    def sockets(self, name: str, address: Address) -> list[socket.socket]:
        """Return the sockets of that listener, if it listened at this address; none: bind."""
        return self._sockets.pop(f"{name} {address}", [])

    def held(self) -> list[tuple[Upstream, Lease]]:
        """Return the leases of its requests that are in flight."""
        return [one for one in self._leases.values() if one[1].ticket.state in _HOLDS]

    def take(self, upstreams: Iterable[Upstream]) -> None:
        """Bring its tickets to these gates: what runs, who is drained by hand, then who waits."""
        upstreams = [*upstreams]
        self._upstreams = {url: one for one in upstreams for url in one.settings.urls}
        for running in self._join.running:
            self._adopt(running)
        for upstream in upstreams:
            for url in self._join.drained:
                upstream.drain_engine(url, undo=False)
            upstream.drain_when_found(self._join.drained)
        for waiting in self._join.waiting:
            self._arrive(waiting.number, waiting)

    def begin(self) -> None:
        """Hear it from now on, and show it the gates: by that it knows that we serve."""
        for sock in (one for several in self._sockets.values() for one in several):
            sock.close()  # of an address that is not ours any more
        self._tasks = [asyncio.get_running_loop().create_task(self._talk())]

    async def close(self) -> None:
        """Hang up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Its tickets

    def _adopt(self, running: Running) -> None:
        upstream = self._upstreams.get(running.address)
        if upstream is not None:
            lease = upstream.keeper.adopt(running.weight, running.replica or None)
            self._leases[running.number] = upstream, lease

    def _arrive(self, number: int, one: Waiting | Arrive) -> None:
        upstream = self._upstreams.get(one.address)
        if upstream is None:
            detail = "Its engine is not in the new configuration"
            self._channel.say(TurnedAway(number, Refusal(Reason.DRAINING, detail)))
            return
        waited_s = one.waited_s if isinstance(one, Waiting) else 0.0
        affinity = bytes.fromhex(one.affinity) or None
        lease = upstream.keeper.enter(one.weight, waited_s, affinity, terms_of(one.terms))
        self._leases[number] = upstream, lease
        if lease.decision is None:
            lease.on_decision = lambda decision: self._decided(number, decision)
        else:
            self._decided(number, lease.decision)

    def _decided(self, number: int, decision: Admit | Refusal) -> None:
        known = told(number, decision)
        if isinstance(known, Refusal):
            self._leases.pop(number, None)
            self._channel.say(TurnedAway(number, known))
        else:
            self._channel.say(known)

    # Its words

    async def _talk(self) -> None:
        self._channel.say_first(self._shown())
        shows = asyncio.get_running_loop().create_task(self._show_always())
        try:
            await self._channel.talk(self._connection, self._hear, self._rest)
        finally:
            shows.cancel()
        self._ended()

    def _hear(self, body: AnyBody) -> None:
        match body:
            case Arrive():
                self._arrive(body.number, body)
            case Finish():
                _, lease = self._leases.pop(body.number, (None, None))
                if lease is not None:
                    lease.close(body.outcome)
            case Lost():
                upstream = self._upstreams.get(body.address)
                if upstream is not None:
                    upstream.lost(body.replica or None, body.why)
            case _:  # what the other end only hears
                pass

    def _ended(self) -> None:
        """Let go of what it had: its engines notice that its connections are closed."""
        for _, lease in self._leases.values():
            lease.close(Outcome.CLIENT_GONE_STREAMING, Unheard())
        self._leases.clear()

    def _shown(self) -> State:
        views: dict[str, Mapping[str, object]] = {
            one.settings.url: view_of(one.keeper.gate) for one in self._upstreams.values()
        }
        return State((), views)

    async def _show_always(self) -> None:
        with suppress(OSError):
            while True:
                await asyncio.sleep(VIEWS_S)
                self._channel.say(self._shown())


_HOLDS = (TicketState.IN_FLIGHT, TicketState.COOLING)


def find_predecessor(folder: Path) -> Predecessor | None:
    """Ask the front door that runs for its place; None: none does. Raises CannotTakeOver.

    Blocks until all has been handed over.
    """
    given = ask(folder)
    if given is None:
        return None
    rest = given.rest
    try:
        while b"\n" not in rest:
            piece = given.connection.recv(1 << 20)
            if not piece:
                raise CannotTakeOver("the front door that ran has ended in the middle of it")
            rest += piece
    except OSError as error:
        raise CannotTakeOver(f"the front door that ran does not go on: {error}") from error
    line, _, rest = rest.partition(b"\n")
    join = read_body(json.loads(line))
    assert isinstance(join, Join)
    given.connection.setblocking(False)
    return Predecessor(given, join, rest)
