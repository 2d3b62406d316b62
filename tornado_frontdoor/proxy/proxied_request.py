"""The life of one request that an engine answers, from its gate to its access line.

The order that matters is in `ProxiedRequest._conclude`: the transfer is over, then the lease is
closed (which lets the next one in), then the client is told, then the line is written.
"""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from time import monotonic
from typing import Protocol

from tornado_frontdoor.core.decisions import OUTCOME_OF, Admit, Outcome, Reason, Refusal
from tornado_frontdoor.core.refusals import DRAINING_RETRY_AFTER_S
from tornado_frontdoor.core.request import CallerFacts, Ticket, TicketState, WakeTerms
from tornado_frontdoor.proxy.curl.client import Transfer, TransferEnd
from tornado_frontdoor.proxy.downstream.client import Client
from tornado_frontdoor.proxy.early_stream import STREAM_HEADERS, EarlyStream
from tornado_frontdoor.proxy.gate_driver import GateDriver, Lease
from tornado_frontdoor.proxy.records import Record
from tornado_frontdoor.proxy.upstreams import Upstream
from tornado_frontdoor.surfaces.base import DecodedRequest, Ending, Surface
from tornado_frontdoor.surfaces.chunked import piece_of
from tornado_frontdoor.surfaces.last_pieces import LastPieces
from tornado_frontdoor.surfaces.usage import tokens_of

ENGINE_END_S = 1.0
"""How long an engine may take to close a stream after its last event; its slot is held so long."""
KEEP_ALIVE_S = 12.0
"""Silence after which a committed stream gets a sign of life; proxies often cut at 15-30 s."""
# Python 3.11 takes 0.3 µs to find a member of an enumeration: those that each request needs.
_SERVED, _COMPLETE = Outcome.SERVED, TransferEnd.COMPLETE


class Owner(Protocol):
    """Who a request reports its end to: the router, or a test."""

    keep_alive_s: float

    def waits(self, request: "ProxiedRequest", headers: Mapping[str, str]) -> None:
        """Take that a request has to wait, and what its client sent."""
        ...

    def ended(self, request: "ProxiedRequest", outcome: Outcome) -> None:
        """Take that a request is over, its slot given back and its client told."""
        ...


class ProxiedRequest:
    """One request on its way through a gate to an engine, and the answer on its way back."""

    def __init__(  # noqa: PLR0913, PLR0917 - all that a request is, once
        self,
        decoded: DecodedRequest,
        upstream: Upstream,
        client: Client,
        surface: Surface,
        record: Record,
        owner: Owner,
        terms: WakeTerms | None = None,
        caller: CallerFacts | None = None,
    ) -> None:
        self._owner = owner
        self._client = client
        self._surface = surface
        self._request = decoded.request
        self._translator = decoded.relay
        self._upstream = upstream
        self._terms = terms
        self._caller = caller
        self._lease = upstream.enter(decoded.request, terms, client.id, self._caller)
        self._transfer: Transfer | None = None
        self._over = False
        self._told = False
        self._came_back = False
        self._trouble = ""
        """Why the engine that was asked first could not be reached, for the operator."""
        self.in_stream = False
        """Whether its client is told its place inside of its stream; set before `enter`."""
        self._early: EarlyStream | None = None
        self._last: LastPieces | None = None
        """Of the answer, from its head on. Where its pieces go on as they came: `_verbatim`; and
        with their framing, from the second on: `_as_framed`."""
        self._verbatim = self._as_framed = False
        self._silent_since_s = 0.0
        self._keep_alive_timer: asyncio.TimerHandle | None = None
        self.record = record
        record.model = decoded.request.model
        record.upstream = decoded.request.upstream
        record.stream = decoded.request.stream
        record.weight = decoded.request.weight
        client.on_gone = self._client_left

    def __repr__(self) -> str:
        ticket = self._lease.ticket
        state = "over" if self._over else ticket.state.name.lower().replace("_", " ")
        age_s = monotonic() - ticket.arrived_s
        request = f"{self._client.id} for {self._request.model} at {self._request.upstream}"
        return f"<ProxiedRequest {request}: {state}, {age_s:.1f} s, slots {ticket.weight}>"

    def seen(self) -> dict[str, object]:
        """Return what the page shows of it while it is under way."""
        queued = self._lease.ticket.state is TicketState.QUEUED
        return {"state": "queued" if queued else "in_flight", "place": None, **self.record.so_far()}

    @property
    def slot(self) -> tuple[Upstream, Lease] | None:
        """The slots that it holds, and of which upstream; None: it holds none, or waits."""
        lease = self._lease
        holds = self._request.takes_slot and lease.ticket.state is TicketState.IN_FLIGHT
        return (self._upstream, lease) if holds else None

    @property
    def waits(self) -> bool:
        """Whether it is to be told its place."""
        if self._over:
            return False
        if self.in_stream:
            return self._early is None or not self._early.begun
        return self._lease.ticket.state is TicketState.QUEUED

    @property
    def line(self) -> tuple[GateDriver, Ticket]:
        """Where it waits, and as whom."""
        return self._upstream.driver_of(self._request), self._lease.ticket

    def tell(self, headers: list[tuple[str, str]]) -> None:
        """Tell the client of its place, in an interim answer or in the stream that begins by it."""
        if self.in_stream:
            if self._early is None and not self._client.status:
                self._translator = self._early = EarlyStream(self._translator)
                self._client.open(200, [*STREAM_HEADERS, *self._marks()], None)
            if self._early is not None:
                self._client.write(self._early.note(" ".join(map("=".join, headers))))
            return
        self._client.send_interim(HTTPStatus.EARLY_HINTS, headers)

    # The gate

    def enter(self) -> None:
        """Go on at once where the gate has decided already, else when it does."""
        if self._lease.decision is None:
            self._lease.on_decision = self._decided
            self.record.place = self._upstream.queued_with(self._request)
            self._owner.waits(self, self._client.headers)
            if self._request.takes_slot and self._upstream.sleep_depth is not None:
                self.record.wake = self._upstream.sleep_depth
        else:
            self._decided(self._lease.decision)

    def _decided(self, decision: Admit | Refusal) -> None:
        if isinstance(decision, Refusal):
            if self._lease.on_decision is not None:
                self.record.waited_s = monotonic() - self._lease.ticket.arrived_s
                self.record.held_s = self._lease.ticket.paused_s
            self._refuse(decision)
            return
        self.record.waited_s = decision.waited_s
        self.record.held_s = decision.paused_s
        # The grant may have come in the very turn in which the client left: look once more, so that
        # a request nobody waits for never reaches the engine.
        if decision.waited_s and not self._client.is_still_there():
            return
        if not self._lease.may_start():
            self._lease.on_decision = self._decided
            return
        self._start()

    def _start(self) -> None:
        engine = self._lease.ticket.replica
        self.record.replica = engine or self._upstream.settings.url
        self._transfer = self._upstream.start(self._request, self._client.id, self, engine)

    def abandon(self, reason: Reason, detail: str) -> None:
        """Break off because the front door goes away."""
        if not self._over:
            self._fail(reason, detail)

    # The client

    def _client_left(self) -> None:
        if self._over:
            return
        record = self.record
        if self._transfer is None:
            if self._lease.on_decision is not None:
                self._lease.close(Outcome.CLIENT_GONE_QUEUED)
                record.held_s = self._lease.ticket.paused_s
                record.waited_s = monotonic() - self._lease.ticket.arrived_s
            record.cause = "the client left while it waited"
            self._conclude(Outcome.CLIENT_GONE_QUEUED)
            return
        what = "read nothing for too long" if self._client.stalled else "left"
        when = "before the first byte" if record.first_byte_s is None else "in the answer"
        record.cause = f"the client {what} {when}"
        self._conclude(Outcome.CLIENT_GONE_STREAMING)

    # The engine: called by the transfer, on the loop

    def on_head(self, status: int, headers: list[tuple[str, str]]) -> None:
        """Pass the head on, unless the dialect wants to see the whole answer first."""
        if self._over:
            return
        head = self._translator.head(status, headers)
        self._verbatim = self._translator.verbatim is not None
        self._last = self._translator.verbatim or LastPieces()
        if head is not None:
            self._client.open(head.status, [*head.headers, *self._marks()], head.length)
        goes_on = head is not None or self._early is not None
        if goes_on and self._request.stream and self._translator.keep_alive():
            self._silent_since_s = monotonic()
            self._arm_keep_alive(self._owner.keep_alive_s)
        if self._translator.ending is not None:
            self._finish(self._translator.ending)

    def on_data(self, chunk: bytes) -> bool:
        """Pass a piece on; False: the client is slow, wait for `resume`."""
        if self._over:
            return True
        record = self.record
        if record.first_byte_s is None:
            record.first_byte_s = monotonic() - record.arrived_s
            self._client.on_drained = self._resume
            self._as_framed = self._verbatim and self._client.is_chunked
        assert self._last is not None
        self._last.add(chunk)
        if self._verbatim:
            return self._client.write(chunk)
        data = self._translator.data(chunk)
        if self._keep_alive_timer is not None:
            self._silent_since_s = monotonic()
        ending = self._translator.ending
        if ending is None:
            return self._client.write(data) if data else True
        if data:
            self._client.write(data)
        if ending.outcome is _SERVED:
            # The client need not wait for the engine to close; the slot does, and by letting the
            # transfer end its connection stays usable.
            if not self._told:
                self._told = True
                self._tell(ending)
                assert self._transfer is not None  # whose end is nearly always sooner
                asyncio.get_running_loop().call_later(ENGINE_END_S, self._transfer.abort)
        else:
            self._finish(ending)
        return True

    def on_chunk(self, chunk: bytes) -> bool:
        """Pass a whole chunk on as it is framed, where pieces go on as they came."""
        if not self._as_framed or self._over:
            return self.on_data(piece_of(chunk))
        assert self._last is not None
        self._last.add_chunk(chunk)
        return self._client.write_chunk(chunk)

    def on_end(self, end: TransferEnd, detail: str) -> None:
        """Take the end of the transfer, whatever it was."""
        if self._over:
            return
        if self._told:
            self._conclude(_SERVED)
            return
        if end is _COMPLETE:
            self._finish(self._translator.end())
            return
        if end is TransferEnd.CONNECT_FAILED:
            self._trouble = detail
            if self._wait_for_engine(detail):
                return
        match end:
            case TransferEnd.UNSENDABLE:
                told = "A header of the request cannot be sent to an engine"
                self._refuse(Refusal(Reason.BAD_REQUEST, told), f"{told}: {detail}")
            case TransferEnd.SILENT:
                self._fail(Reason.UPSTREAM_TIMEOUT, f"{self._request.upstream}: {detail}")
            case _:
                # Where the engine is, and what libcurl says of it, is for operators only.
                told = "cannot be reached" if end is TransferEnd.CONNECT_FAILED else "broke off"
                upstream = self._request.upstream
                self._fail(
                    Reason.UPSTREAM_ERROR,
                    f"{upstream}: the engine {told}",
                    cause=f"{upstream}: {detail}",
                )

    def _wait_for_engine(self, why: str) -> bool:
        """Try another engine, or go back into the queue, once: nothing was sent to this one."""
        ticket = self._lease.ticket
        if not self._request.takes_slot or not self._upstream.lost(ticket.replica, why):
            return False
        if self._came_back:
            return False
        self._came_back = True
        if self._upstream.move(ticket):
            self._start()
            return True
        self._transfer = None
        self._lease.close(Outcome.UPSTREAM_ERROR)
        self._lease = self._upstream.enter(
            self._request, self._terms, self._client.id, self._caller
        )
        self.enter()
        return True

    # Ends

    def _finish(self, ending: Ending) -> None:
        """Carry out the end that the dialect has seen."""
        if ending.refusal is not None:
            self._refuse(ending.refusal._replace(upstream=self._request.upstream))
            return
        self._conclude(ending.outcome, ending)

    def _fail(self, reason: Reason, detail: str, cause: str | None = None) -> None:
        """The engine failed us: a proper error while there is still a status, else a rude end.

        `cause` is what the operator is told, where that is more than the client's `detail`.
        """
        if not self._client.committed or (self._early is not None and not self._early.begun):
            again_s = DRAINING_RETRY_AFTER_S if reason is Reason.DRAINING else None
            self._refuse(Refusal(reason, detail, self._request.upstream, again_s), cause)
            return
        last = self._translator.broken(reason, detail)
        self._conclude(OUTCOME_OF[reason], Ending(OUTCOME_OF[reason], last, cause=cause or detail))

    def _refuse(self, refusal: Refusal, cause: str | None = None) -> None:
        document = self._surface.refuse(refusal, self._client.id)
        outcome = OUTCOME_OF[refusal.reason]
        cause = cause or refusal.detail
        if self._trouble and self._trouble not in cause:
            cause = f"{cause}: {self._trouble}"
        self._conclude(outcome, Ending(outcome, document=document, cause=cause))

    def _conclude(self, outcome: Outcome, ending: Ending | None = None) -> None:
        """End the request, once: transfer, slot, client, line, in this order."""
        self._over = True
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()
        lingering = None
        if self._transfer is not None:
            self._transfer.abort()  # does nothing where it is over
            lingering = self._transfer.lingering
        self._lease.close(outcome, lingering)
        try:
            if ending is not None:
                self._tell(ending)
        finally:  # whatever a socket does: a request that never ends would hold up every drain
            self._client.on_gone = self._client.on_drained = None
            self.record.status = self._client.status
            self.record.bytes_out = self._client.bytes_out
            last = self._last
            pieces = last.pieces if last is not None else ()
            if pieces:
                self.record.tokens_in, self.record.tokens_out = tokens_of(b"".join(pieces))
            if ending is not None and outcome is not _SERVED:
                self.record.cause = ending.cause
            elif last is not None and pieces and self.record.status >= 400:
                engine = self._lease.ticket.replica  # it was served, and refused by that
                self.record.cause = self._upstream.refused(engine, self.record.status, last)
            elif ending is not None:
                self.record.cause = ending.cause
            self._owner.ended(self, outcome)

    def _tell(self, ending: Ending) -> None:
        client = self._client
        if self._early is not None:
            ending = self._early.told(ending)
        if ending.document is not None:
            client.send(ending.document, self._marks())
        elif ending.outcome is _SERVED or ending.whole:
            if ending.data:
                client.write(ending.data)
            client.finish()
        else:
            client.abort_after(ending.data)

    # How

    def _marks(self) -> list[tuple[str, str]]:
        marks = [("X-Frontdoor-Upstream", str(self._request.upstream))]
        if self.record.waited_s:
            marks.append(("X-Frontdoor-Wait-Ms", str(round(self.record.waited_s * 1000))))
        return marks

    def _resume(self) -> None:
        if self._transfer is not None:
            self._transfer.resume()

    def _arm_keep_alive(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._keep_alive_timer = loop.call_later(delay_s, self._keep_alive)

    def _keep_alive(self) -> None:
        left_s = self._silent_since_s + self._owner.keep_alive_s - monotonic()
        if left_s <= 0:
            self._client.write(self._translator.keep_alive())
            self._silent_since_s, left_s = monotonic(), self._owner.keep_alive_s
        self._arm_keep_alive(left_s)
