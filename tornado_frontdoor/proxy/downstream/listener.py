"""Requests as they come in: bodies bounded, refusals early, whoever is slow or silent let go.

A body that is refused is answered at once, and the rest of it is read and thrown away for a while,
because a connection that is closed with bytes unread resets what was sent on it.
"""

import asyncio
from collections.abc import Awaitable
from time import monotonic
from typing import Protocol

from tornado_frontdoor.core.decisions import Reason, Refusal
from tornado_frontdoor.proxy.downstream.body_store import BodyStore, ReceivedBody
from tornado_frontdoor.proxy.downstream.client import Client, ListenerContext
from tornado_frontdoor.proxy.downstream.disconnects import DisconnectWatcher
from tornado_frontdoor.proxy.downstream.heads import last_answer, new_request_id
from tornado_frontdoor.proxy.downstream.http1 import ClientConnection
from tornado_frontdoor.proxy.downstream.limits import ConnectionLimits
from tornado_frontdoor.proxy.downstream.request_head import RequestHead
from tornado_frontdoor.proxy.downstream.server import ConnectionHost
from tornado_frontdoor.surfaces.base import Document

SWEEP_S = 5.0
"""How often those are looked for whose time is over; a shorter limit makes it more often."""
SPARED_S = 1.0
"""Who was heard within it is not closed to make room for a newcomer."""
LINGER_S = 5.0
"""How long the rest of a refused body is read, so that the refusal is not lost in a reset."""
_TOO_SLOW = "The rest of the head did not come (server.head_timeout_s)"
MALFORMED = {408: Reason.REQUEST_TIMEOUT, 431: Reason.HEAD_TOO_LARGE}


class Service(Protocol):
    """What a listener serves: decides by the head whether a body is wanted, then serves it."""

    max_body_bytes: int
    write_stall_timeout_s: float

    def turn_away(self, client: Client) -> Document | None:
        """Return the answer that needs no body (unknown path, too large), or None to read it."""
        ...

    def refuse_body(self, client: Client, reason: Reason) -> Document:
        """Return the answer to a body that is too large, too slow, or has no room in memory."""
        ...

    def never_came(self, client: Client, size_bytes: int) -> None:
        """Take that a client left before its body was whole."""
        ...

    def serve(self, client: Client) -> None:
        """Serve a whole request; must not raise."""
        ...

    def malformed(self, request_id: str, address: str, refusal: Refusal) -> Document:
        """Return the answer to what came from an address and is no request."""
        ...

    def handshake_failed(self) -> None:
        """Take that a TLS handshake came to nothing."""
        ...


class Listener(ConnectionHost):
    """Makes a Client of each request on its connections and hands it to the service."""

    def __init__(
        self,
        service: Service,
        departures: DisconnectWatcher,
        limits: ConnectionLimits,
        store: BodyStore,
    ) -> None:
        super().__init__()
        self.service = service
        self.place = ListenerContext(departures, service.write_stall_timeout_s)
        self.limits = limits
        self.store = store
        self._idle: dict[ClientConnection, float] = {}
        """Connections without a request, and since when, longest idle first."""
        self._begun: dict[ClientConnection, float] = {}
        """Those of which the first bytes of a head were seen, and since when."""
        self._unfinished: dict[Incoming, float] = {}
        """Bodies that still come in, and when they were last heard of, longest silent first."""
        self._by_address: dict[str, int] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._arm_sweep()

    @property
    def max_connections(self) -> int:
        """How many connections there may be."""
        return self.limits.max_connections

    def is_idle(self, connection: ClientConnection) -> None:
        """A connection awaits a request."""
        self._idle[connection] = monotonic()

    def start_request(self, connection: ClientConnection) -> "Incoming":
        """A head has come in on a connection that was idle."""
        self._no_longer_idle(connection)
        return Incoming(self, connection)

    def on_close(self, connection: ClientConnection) -> None:
        """Forget a connection that is closed."""
        self._no_longer_idle(connection)
        self.connections.pop(connection, None)

    def handshake_failed(self) -> None:
        """A TLS handshake came to nothing."""
        self.service.handshake_failed()

    def _no_longer_idle(self, connection: ClientConnection) -> None:
        self._idle.pop(connection, None)
        if self._begun:
            self._begun.pop(connection, None)

    def close(self) -> None:
        """Stop looking after connections."""
        if self._sweep is not None:
            self._sweep.cancel()
        self.store.close()

    # Bodies on their way

    def unfinished(self, incoming: "Incoming") -> None:
        """A body is on its way; one address may have so many, then its most silent one goes."""
        address = incoming.address
        count = self._by_address.get(address, 0) + 1
        if count > self.limits.max_unfinished_per_address:
            silent = next(other for other in self._unfinished if other.address == address)
            silent.refuse(Reason.REQUEST_TIMEOUT)
            count = self._by_address.get(address, 0) + 1
        self._by_address[address] = count
        self._unfinished[incoming] = monotonic()

    def heard(self, incoming: "Incoming") -> None:
        """A piece of a body has come."""
        if self._unfinished.pop(incoming, None) is not None:
            self._unfinished[incoming] = monotonic()

    def finished(self, incoming: "Incoming") -> None:
        """A body is whole, refused or gone."""
        if self._unfinished.pop(incoming, None) is not None:
            left = self._by_address[incoming.address] - 1
            if left:
                self._by_address[incoming.address] = left
            else:
                del self._by_address[incoming.address]

    def makes_room(self, incoming: "Incoming", size_bytes: int) -> bool:
        """Take room for a piece from bodies that have been silent for a while, if there is any."""
        while not self.store.memory.take(size_bytes):
            silent = self._most_silent(incoming)
            if silent is None:
                return False
            silent.refuse(Reason.REQUEST_TIMEOUT)
        return True

    def _most_silent(self, besides: "Incoming | None" = None) -> "Incoming | None":
        for incoming, heard_s in self._unfinished.items():
            if heard_s > monotonic() - SPARED_S:
                return None
            if incoming is not besides:
                return incoming
        return None

    # Connections that show nothing

    def make_room(self) -> bool:
        """Close who is idle for longest, else whose body is silent for longest."""
        for connection, since_s in self._idle.items():
            if since_s > monotonic() - SPARED_S:
                break
            self._no_longer_idle(connection)
            self.connections.pop(connection, None)
            connection.close()
            return True
        silent = self._most_silent()
        if silent is None:
            return False
        silent.refuse(Reason.REQUEST_TIMEOUT)
        silent.cut()
        return True

    def close_idle(self) -> None:
        """Close all connections on which nothing is under way."""
        for connection in [*self._idle]:
            if not connection.stream.held_bytes:
                self._no_longer_idle(connection)
                connection.close()

    def let_go(self) -> None:
        """Have each connection end with what is under way on it: who comes next connects anew."""
        self.place.last = True
        for connection in self.connections:
            connection.keeps_alive = False
        self.close_idle()

    def sweep(self) -> None:
        """Let go whose time is over. One timer for all: Tornado's costs a task a request."""
        now_s = monotonic()
        for connection, since_s in list(self._idle.items()):
            begun_s = self._begun.get(connection)
            if since_s <= now_s - self.limits.idle_timeout_s:
                self._no_longer_idle(connection)
                connection.close()
            elif begun_s is None:
                if connection.stream.held_bytes:
                    self._begun[connection] = now_s
            elif begun_s <= now_s - self.limits.head_timeout_s:
                connection.say_and_close(408, _TOO_SLOW)
        for incoming, heard_s in list(self._unfinished.items()):
            if heard_s > now_s - self.limits.body_timeout_s:
                break
            incoming.refuse(Reason.REQUEST_TIMEOUT)

    def _arm_sweep(self) -> None:
        limits = self.limits
        shortest_s = min(limits.idle_timeout_s, limits.head_timeout_s, limits.body_timeout_s)
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(min(SWEEP_S, shortest_s / 4), self._sweep_again)

    def _sweep_again(self) -> None:
        self.sweep()
        self._arm_sweep()


class Incoming:
    """Collects one request."""

    __slots__ = ("_body", "_client", "_connection", "_linger", "_listener", "_refused", "_waits")

    def __init__(self, listener: Listener, connection: ClientConnection) -> None:
        self._listener = listener
        self._connection = connection
        self._client: Client | None = None
        self._body = ReceivedBody(listener.store.memory)
        self._refused = False
        self._waits = False
        """The listener looks after its body, which has not come with its head."""
        self._linger: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        """Where it comes from."""
        return self._connection.remote_ip

    def headers_received(self, head: RequestHead) -> None:
        """Take the head; what can be refused by it alone is refused now."""
        service = self._listener.service
        if self._listener.place.last:
            self._connection.keeps_alive = False
        self._client = client = Client(self._connection, head, self._listener.place)
        document = service.turn_away(client)
        if document is None and head.length_bytes > service.max_body_bytes:
            document = service.refuse_body(client, Reason.BODY_TOO_LARGE)
        if document is not None:
            head.headers.pop("expect", None)  # or "100 Continue" would be said after our answer
            self._answer(document)
        # Most bodies have come in with their head; only one that has not is looked after.
        elif head.chunked or head.length_bytes > self._connection.stream.held_bytes:
            self._waits = True
            self._listener.unfinished(self)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Take a piece of the body, or throw it away; nothing more is read until that is done."""
        if self._refused or self._client is None:
            return None
        listener, body = self._listener, self._body
        if self._waits:
            listener.heard(self)
        if body.size_bytes + len(chunk) > listener.service.max_body_bytes:
            self.refuse(Reason.BODY_TOO_LARGE)
        elif not (listener.store.memory.take(len(chunk)) or listener.makes_room(self, len(chunk))):
            self.refuse(Reason.BUFFERS_FULL)
        else:
            body.add(chunk)
            if body.wants_to_spill(listener.store):
                return body.spill(listener.store)
        return None

    def finish(self) -> None:
        """The request is whole."""
        client = self._client
        if self._waits:
            self._listener.finished(self)
        if client is None or self._connection.stream.is_closed:
            self.on_connection_close()
            return
        if self._refused:
            self._end_linger()
            client.finish()
            return
        if self._body.size_bytes:
            small = self._body.small()
            if small is None:
                client.received = self._body
            else:
                client.body = small
            client.on_ended = self._body.forget
        client.watch()
        self._listener.service.serve(client)

    def on_connection_close(self) -> None:
        """Forget a request that never became whole."""
        self._end_linger()
        size_bytes = self._body.size_bytes
        self._forget()
        if self._client is not None and not self._client.gone:
            self._client.gone = True
            if not self._refused:
                self._listener.service.never_came(self._client, size_bytes)

    def malformed(self, status: int, why: str) -> bytes:
        """Return the answer to what is no request; empty where it was answered already."""
        if self._refused:
            return b""
        self._refused = True
        request_id = self._client.id if self._client is not None else new_request_id()
        refusal = Refusal(MALFORMED.get(status, Reason.BAD_REQUEST), why)
        document = self._listener.service.malformed(request_id, self.address, refusal)
        return last_answer(document, request_id)

    def refuse(self, reason: Reason) -> None:
        """Answer before the body is whole; what has come of it is forgotten."""
        assert self._client is not None
        self._answer(self._listener.service.refuse_body(self._client, reason))

    def cut(self) -> None:
        """Close the connection now."""
        self._end_linger()
        self._connection.close()

    def _answer(self, document: Document) -> None:
        """Answer at once and read on for a while: a close with bytes unread resets the answer."""
        assert self._client is not None
        self._refused = True
        self._forget()
        self._client.send_early(document)
        self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._connection.close)

    def _forget(self) -> None:
        self._listener.finished(self)
        self._body.forget()

    def _end_linger(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
