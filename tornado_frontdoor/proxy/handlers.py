"""The public listener: one request's life, from its head to its access line.

`FrontDoor` finds who answers a request; `Passage` is the life of one that an engine answers. The
order that matters is in `Passage._conclude`: the transfer is over, then the lease is closed (which
lets the next one in), then the client is told, then the line is written.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from time import monotonic

from tornado_frontdoor.core.catalog import Catalog
from tornado_frontdoor.core.decisions import (
    OUTCOME_OF,
    Admit,
    Outcome,
    Reason,
    Refusal,
)
from tornado_frontdoor.proxy.client import Client
from tornado_frontdoor.proxy.telemetry import Record, Telemetry
from tornado_frontdoor.proxy.upstream import Transfer, TransferEnd
from tornado_frontdoor.proxy.upstreams import Upstream
from tornado_frontdoor.surfaces.base import (
    Call,
    Document,
    Ending,
    Exchange,
    ListedModel,
    Refused,
    Route,
    RouteKind,
    Surface,
)
from tornado_frontdoor.surfaces.paths import normalise

ENGINE_END_S = 1.0
"""How long an engine may take to close a stream after its last event; its slot is held so long."""
KEEP_ALIVE_S = 12.0
"""Silence after which a committed stream gets a sign of life; proxies often cut at 15-30 s."""


class FrontDoor:
    """Serves the public listener. What it serves by can be exchanged while it runs."""

    def __init__(
        self, surfaces: Sequence[Surface], fallback: Surface, telemetry: Telemetry, started_s: int
    ) -> None:
        prefixes = [(prefix, surface) for surface in surfaces for prefix in surface.prefixes]
        self._prefixes = sorted(prefixes, key=lambda pair: len(pair[0]), reverse=True)
        self._fallback = fallback
        """Renders what belongs to no surface."""
        self._telemetry = telemetry
        self._started_s = started_s
        self.catalog = Catalog(())
        self.upstreams: Mapping[str, Upstream] = {}
        self.max_body_bytes = 0
        self.write_stall_timeout_s = 0.0
        self.keep_alive_s = KEEP_ALIVE_S
        self.draining = False
        self.passages: set[Passage] = set()
        self.empty = asyncio.Event()
        """Set by the last passage that ends while draining."""

    # A head comes in

    def turn_away(self, client: Client) -> Document | None:
        """Answer by the head alone where no body is needed to know better."""
        try:
            client.found = self._find(client)
        except Refused as refused:
            surface = self._surface_of(client.target)
            return self._refused(client, surface, refused.refusal)
        return None

    def too_large(self, client: Client) -> Document:
        """Refuse a body above the limit."""
        limit_mib = self.max_body_bytes / (1 << 20)
        detail = f"The body is larger than {limit_mib:g} MiB (server.max_body_mib)"
        surface = self._surface_of(client.target)
        return self._refused(client, surface, Refusal(Reason.BODY_TOO_LARGE, detail))

    # A request is whole

    def serve(self, client: Client) -> None:
        """Serve a request; what an engine answers goes on as a passage of its own."""
        found: tuple[Surface | None, Route, str] = client.found
        surface, route, query = found
        if surface is None:
            client.send(self._health())
            return
        if route.kind is RouteKind.PROBE:
            client.send(Document(200, (), b""))
            return
        call = Call(route, query, client.headers, client.body, client.id)
        record = Record(client.id, surface.name, client.arrived_s)
        record.bytes_in = len(client.body)
        client.body = b""
        try:
            if route.kind is RouteKind.MODELS:
                client.send(surface.models(call, self._listing()))
                return
            exchange = surface.decode(call, self.catalog)
        except Refused as refused:
            record.model = refused.model
            self._refuse(client, surface, record, refused.refusal)
            return
        passage = Passage(self, client, surface, exchange, record)
        self.passages.add(passage)
        passage.enter()

    def _find(self, client: Client) -> tuple[Surface | None, Route, str]:
        """Return who answers; None for the front door itself. Raises Refused."""
        normal = normalise(client.target)
        if normal is None:
            raise Refused(Reason.NOT_FOUND, "There is nothing at this path")
        path, query = normal
        if path == "/health" and client.method == "GET":
            return None, Route(RouteKind.PROBE, path), query
        surface = self._surface_of(path)
        if surface is None:
            raise Refused(Reason.NOT_FOUND, f"There is nothing at {client.method} {path}")
        return surface, surface.route(client.method, path), query

    def _surface_of(self, path: str) -> Surface | None:
        """Return the surface that answers for a path: the one with the longest prefix of it."""
        for prefix, surface in self._prefixes:
            if path == prefix or path.startswith(prefix + "/"):
                return surface
        return None

    def _refused(self, client: Client, surface: Surface | None, refusal: Refusal) -> Document:
        record = Record(client.id, surface.name if surface else "", client.arrived_s)
        document = (surface or self._fallback).refuse(refusal, client.id)
        record.status = document.status
        self._telemetry.record(record, OUTCOME_OF[refusal.reason])
        return document

    def _refuse(self, client: Client, surface: Surface, record: Record, refusal: Refusal) -> None:
        document = surface.refuse(refusal, client.id)
        client.send(document)
        record.status = document.status
        record.bytes_out = client.bytes_out
        self._telemetry.record(record, OUTCOME_OF[refusal.reason])

    def _listing(self) -> list[ListedModel]:
        return [
            ListedModel(
                name,
                target,
                self.upstreams[target.upstream].state,
                self.upstreams[target.upstream].sleep_depth,
                self._started_s,
            )
            for name, target in self.catalog.names()
        ]

    def _health(self) -> Document:
        upstreams = {
            key: {
                "state": upstream.state,
                "sleep_depth": upstream.sleep_depth,
                "in_flight": upstream.keeper.gate.in_flight,
                "queued": upstream.keeper.gate.queued,
            }
            for key, upstream in self.upstreams.items()
        }
        body = {"status": "draining" if self.draining else "ok", "upstreams": upstreams}
        headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
        return Document(503 if self.draining else 200, headers, json.dumps(body).encode())

    def ended(self, passage: "Passage", outcome: Outcome) -> None:
        """Forget a passage that is over and write its line."""
        self.passages.discard(passage)
        self._telemetry.record(passage.record, outcome)
        if self.draining and not self.passages:
            self.empty.set()


class Passage:
    """One request on its way through a gate to an engine, and the answer on its way back."""

    def __init__(
        self,
        door: FrontDoor,
        client: Client,
        surface: Surface,
        exchange: Exchange,
        record: Record,
    ) -> None:
        self._door = door
        self._client = client
        self._surface = surface
        self._request = exchange.request
        self._relay = exchange.relay
        self._upstream = door.upstreams[exchange.request.upstream]
        self._lease = self._upstream.enter(exchange.request)
        self._transfer: Transfer | None = None
        self._over = False
        self._told = False
        self._came_back = False
        self._silent_since_s = 0.0
        self._keep_alive_timer: asyncio.TimerHandle | None = None
        self.record = record
        record.model = exchange.request.model
        record.upstream = exchange.request.upstream
        record.stream = exchange.request.stream
        record.weight = exchange.request.weight
        client.on_gone = self._client_left

    # The gate

    def enter(self) -> None:
        """Go on at once where the gate has decided already, else when it does."""
        if self._lease.decision is None:
            self._lease.on_decision = self._decided
        else:
            self._decided(self._lease.decision)

    def _decided(self, decision: Admit | Refusal) -> None:
        if isinstance(decision, Refusal):
            if self._lease.on_decision is not None:
                self.record.waited_s = monotonic() - self._lease.ticket.arrived_s
                self.record.held_s = self._lease.ticket.held_s
            self._refuse(decision)
            return
        self.record.waited_s = decision.waited_s
        self.record.held_s = decision.held_s
        # The grant may have come in the very turn in which the client left: look once more, so that
        # a request nobody waits for never reaches the engine.
        if decision.waited_s and not self._client.is_still_there():
            return
        self._transfer = self._upstream.start(self._request, self._client.id, self)

    def abandon(self, reason: Reason, detail: str) -> None:
        """Break off because the front door goes away."""
        if self._transfer is not None and not self._over:
            self._fail(reason, detail)

    # The client

    def _client_left(self) -> None:
        if self._over:
            return
        if self._transfer is None:
            self._conclude(Outcome.CLIENT_GONE_QUEUED)
        else:
            self._conclude(Outcome.CLIENT_GONE_STREAMING)

    # The engine: called by the transfer, on the loop

    def on_head(self, status: int, headers: list[tuple[str, str]]) -> None:
        """Pass the head on, unless the dialect wants to see the whole answer first."""
        if self._over:
            return
        head = self._relay.head(status, headers)
        if head is not None:
            self._client.open(head.status, [*head.headers, *self._marks()])
            if self._request.stream and self._relay.keep_alive():
                self._silent_since_s = monotonic()
                self._arm_keep_alive(self._door.keep_alive_s)
        if self._relay.ending is not None:
            self._finish(self._relay.ending)

    def on_data(self, chunk: bytes) -> bool:
        """Pass a piece on; False: the client is slow, wait for `resume`."""
        if self._over:
            return True
        record = self.record
        if record.first_byte_s is None:
            record.first_byte_s = monotonic() - record.arrived_s
            self._client.on_drained = self._resume
        data = self._relay.data(chunk)
        if self._keep_alive_timer is not None:
            self._silent_since_s = monotonic()
        ending = self._relay.ending
        if ending is None:
            return self._client.write(data) if data else True
        if data:
            self._client.write(data)
        if ending.outcome is Outcome.SERVED:
            # The client need not wait for the engine to close; the slot does, and by letting the
            # transfer end its connection stays usable.
            if not self._told:
                self._told = True
                self._tell(ending)
                asyncio.get_running_loop().call_later(ENGINE_END_S, self._transfer_late)
        else:
            self._finish(ending)
        return True

    def on_end(self, end: TransferEnd, detail: str) -> None:
        """Take the end of the transfer, whatever it was."""
        if self._over:
            return
        if self._told:
            self._conclude(Outcome.SERVED)
            return
        if end is TransferEnd.CONNECT_FAILED and self._wait_for_engine():
            return
        match end:
            case TransferEnd.COMPLETE:
                self._finish(self._relay.end())
            case TransferEnd.SILENT:
                self._fail(Reason.UPSTREAM_TIMEOUT, f"{self._request.upstream}: {detail}")
            case _:
                self._fail(Reason.UPSTREAM_ERROR, f"{self._request.upstream}: {detail}")

    def _wait_for_engine(self) -> bool:
        """Go back into the line, once, where the engine is expected to come back."""
        if self._came_back or not self._request.takes_slot or not self._upstream.lost():
            return False
        self._came_back = True
        self._transfer = None
        self._lease.close(Outcome.UPSTREAM_ERROR)
        self._lease = self._upstream.enter(self._request)
        self.enter()
        return True

    # Ends

    def _finish(self, ending: Ending) -> None:
        """Carry out the end that the dialect has seen."""
        if ending.refusal is not None:
            self._refuse(ending.refusal._replace(upstream=self._request.upstream))
            return
        self._conclude(ending.outcome, ending)

    def _fail(self, reason: Reason, detail: str) -> None:
        """The engine failed us: a proper error while there is still a status, else a rude end."""
        if not self._client.committed:
            self._refuse(Refusal(reason, detail, self._request.upstream))
            return
        last = self._relay.broken(reason, detail)
        self._conclude(OUTCOME_OF[reason], Ending(OUTCOME_OF[reason], last))

    def _refuse(self, refusal: Refusal) -> None:
        document = self._surface.refuse(refusal, self._client.id)
        outcome = OUTCOME_OF[refusal.reason]
        self._conclude(outcome, Ending(outcome, document=document))

    def _conclude(self, outcome: Outcome, ending: Ending | None = None) -> None:
        """End the passage, once: transfer, slot, client, line, in this order."""
        self._over = True
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()
        if self._transfer is not None:
            self._transfer.abort()  # does nothing where it is over
        self._lease.close(outcome)
        try:
            if ending is not None:
                self._tell(ending)
        finally:  # whatever a socket does: a passage that never ends would hold up every drain
            self._client.on_gone = self._client.on_drained = None
            self.record.status = self._client.status
            self.record.bytes_out = self._client.bytes_out
            self._door.ended(self, outcome)

    def _tell(self, ending: Ending) -> None:
        client = self._client
        if ending.document is not None:
            client.send(ending.document, self._marks())
        elif ending.outcome is Outcome.SERVED or ending.whole:
            if ending.data:
                client.write(ending.data)
            client.finish()
        else:
            client.finish_rudely(ending.data)

    # How

    def _marks(self) -> list[tuple[str, str]]:
        marks = [("X-Frontdoor-Upstream", str(self._request.upstream))]
        if self.record.waited_s:
            marks.append(("X-Frontdoor-Wait-Ms", str(round(self.record.waited_s * 1000))))
        return marks

    def _transfer_late(self) -> None:
        if self._transfer is not None:
            self._transfer.abort()  # does nothing where it is over, as it nearly always is

    def _resume(self) -> None:
        if self._transfer is not None:
            self._transfer.resume()

    def _arm_keep_alive(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._keep_alive_timer = loop.call_later(delay_s, self._keep_alive)

    def _keep_alive(self) -> None:
        keep_alive_s = self._door.keep_alive_s
        silent_s = monotonic() - self._silent_since_s
        if silent_s >= keep_alive_s:
            self._client.write(self._relay.keep_alive())
            self._silent_since_s = monotonic()
            silent_s = 0.0
        self._arm_keep_alive(keep_alive_s - silent_s)
