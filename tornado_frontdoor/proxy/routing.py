"""The public listener: who answers a request, and those that need no engine to be answered.

What an engine answers goes on as a `ProxiedRequest` of its own.
"""

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import inf
from time import monotonic

from msgspec.structs import replace

from tornado_frontdoor.core.catalog import Catalog
from tornado_frontdoor.core.decisions import (
    OUTCOME_OF,
    Outcome,
    Reason,
    Refusal,
)
from tornado_frontdoor.core.printable import quoted
from tornado_frontdoor.proxy.callers import caller_of
from tornado_frontdoor.proxy.downstream.browsers import can_come_from_any_page
from tornado_frontdoor.proxy.downstream.client import Client
from tornado_frontdoor.proxy.downstream.cors import allowed_origin, may_be_sent, readable_by
from tornado_frontdoor.proxy.early_stream import wants_early_stream
from tornado_frontdoor.proxy.large_bodies import LargeBodies
from tornado_frontdoor.proxy.progress import (
    PlaceTeller,
    Progress,
    bears_interim_answers,
    check_words,
    silence_borne_s,
)
from tornado_frontdoor.proxy.proxied_request import KEEP_ALIVE_S, ProxiedRequest
from tornado_frontdoor.proxy.records import Networks, Record, record_of
from tornado_frontdoor.proxy.route_table import RouteTable
from tornado_frontdoor.proxy.telemetry import Telemetry
from tornado_frontdoor.proxy.upstreams import Upstream
from tornado_frontdoor.proxy.wake_policy import wake_terms
from tornado_frontdoor.surfaces.base import (
    DecodedRequest,
    Document,
    ListedModel,
    Refused,
    Route,
    RouteKind,
    Surface,
    SurfaceRequest,
)
from tornado_frontdoor.surfaces.headers import end_to_end
from tornado_frontdoor.surfaces.keys import Key, KeyRing, without_keys
from tornado_frontdoor.surfaces.patient_json import takes_long

_ENGINE, _MODELS, _PROBE = RouteKind.ENGINE, RouteKind.MODELS, RouteKind.PROBE
UNREAD_FROM_DIGITS = 6
"""A body from 100 kB on is not read where it is sure that its request must be refused."""


class FrontDoor:
    """Serves the public listener. What it serves by can be exchanged while it runs."""

    def __init__(
        self, surfaces: Sequence[Surface], fallback: Surface, telemetry: Telemetry, started_s: int
    ) -> None:
        self._routes = RouteTable(surfaces)
        self._fallback = fallback
        """Renders what belongs to no surface."""
        self._telemetry = telemetry
        self._started_s = started_s
        self.catalog = Catalog(())
        self.upstreams: Mapping[str, Upstream] = {}
        self.max_body_bytes = 0
        self.cross_site_posts = False
        self.cors_origins: Collection[str] = ()
        self.keys: KeyRing | None = None
        """None: nobody is asked for a key."""
        self.trusted_proxies: Networks = ()
        self.write_stall_timeout_s = 0.0
        self.keep_alive_s = KEEP_ALIVE_S
        self.draining = False
        self.lame = False
        """Whether it serves for a while yet and load balancers are to look elsewhere."""
        self.is_cut_off: Callable[[], bool] = _never
        """Whether the other front doors of its cluster may serve while this one cannot."""
        self.under_way: dict[ProxiedRequest, None] = {}
        """In the order they came, so that whatever is done to all of them is done in that order."""
        self.progress: Progress = "known"
        self._places = PlaceTeller()
        self.being_read = 0
        """Requests whose large bodies are read in the thread."""
        self._reader = LargeBodies()
        self.empty = asyncio.Event()
        """Set by the last request that ends while draining."""

    # A head comes in

    def turn_away(self, client: Client) -> Document | None:
        """Answer by the head alone where no body is needed to know better."""
        headers = client.headers
        origin = allowed_origin(headers, self.cors_origins) if "origin" in headers else None
        if origin is not None:
            client.extra = readable_by(origin)
        if client.method == "OPTIONS" and (methods := self._routes.methods_of(client.target)):
            allowed = () if origin is None else may_be_sent(headers, methods)
            return Document(204, [("Allow", ", ".join(methods)), *allowed], b"")
        try:
            client.found = surface, route, _ = self._routes.find(client.method, client.target)
            if self.keys is not None and route.kind is not _PROBE:
                client.key = self._key_of(client, self.keys)
            if route.kind is _ENGINE:
                if "content-encoding" in headers:
                    _refuse_encoded(client)
                # What nearly all say is no page's, and needs no closer look.
                plain = headers.get("content-type") == "application/json"
                if not plain and not self.cross_site_posts and origin is None:
                    _refuse_any_page(client)
        except Refused as refused:
            surface = self._routes.surface_of(client.target)
            return self._refused(client, surface, refused.refusal)
        length = headers.get("content-length", "")
        if len(length) < UNREAD_FROM_DIGITS or route.kind is not _ENGINE:
            return None
        refusal = self._sure_refusal()
        return None if refusal is None else self._refused(client, surface, refusal)

    def _key_of(self, client: Client, keys: KeyRing) -> Key:
        key = keys.find(client.headers)
        if key is None:
            self._telemetry.refused_at_edge("public", "key")
            raise Refused(Reason.INVALID_API_KEY, "The API key is missing or wrong")
        return key

    def _sure_refusal(self) -> Refusal | None:
        """Return what any gate would answer while all lines are full; None: it may find room."""
        gates = [upstream.keeper for upstream in self.upstreams.values()]
        if not all(gate.full for gate in gates):
            return None
        lease = gates[0].enter()
        if isinstance(lease.decision, Refusal):
            upstream = lease.decision.upstream if len(gates) == 1 else None
            return lease.decision._replace(upstream=upstream)
        lease.close(Outcome.QUEUE_FULL)
        return None

    def refuse_body(self, client: Client, reason: Reason) -> Document:
        """Refuse a body that is too large, too slow, or has no room in memory."""
        limit_mib = self.max_body_bytes / (1 << 20)
        detail = {
            Reason.BODY_TOO_LARGE: f"The body is larger than {limit_mib:g} MiB "
            "(server.max_body_mib)",
            Reason.BUFFERS_FULL: "Bodies of other requests fill the memory that is set apart "
            "(server.max_buffered_mib)",
        }.get(reason, "Nothing more of the body came (server.body_timeout_s)")
        # Spread, as everything that sends clients away for a while.
        retry_after_s = 1 + int(client.id[-2:], 16) / 64
        refusal = Refusal(
            reason, detail, retry_after_s=retry_after_s if reason is Reason.BUFFERS_FULL else None
        )
        return self._refused(client, self._routes.surface_of(client.target), refusal)

    # A request is whole

    def never_came(self, client: Client, size_bytes: int) -> None:
        """Write the line of a client that left before its body was whole."""
        surface = self._routes.surface_of(client.target)
        record = record_of(client, surface.name if surface else "", self.trusted_proxies)
        record.bytes_in = size_bytes
        record.cause = f"the client left after {size_bytes} bytes of its body"
        self._telemetry.record(record, Outcome.REQUEST_TIMEOUT)

    def malformed(self, request_id: str, address: str, refusal: Refusal) -> Document:
        """Answer what is no request: it belongs to no surface."""
        record = Record(request_id, "", monotonic())
        record.client = address
        record.cause = refusal.detail
        document = self._fallback.refuse(refusal, request_id)
        record.status = document.status
        self._telemetry.record(record, OUTCOME_OF[refusal.reason])
        self._telemetry.refused_at_edge("public", "malformed")
        return document

    def handshake_failed(self) -> None:
        """Count who did not get through with TLS."""
        self._telemetry.refused_at_edge("public", "tls")

    def serve(self, client: Client) -> None:
        """Serve a request; what an engine answers goes on as a `ProxiedRequest`."""
        found: tuple[Surface | None, Route, str] = client.found
        surface, route, query = found
        if surface is None:
            client.send(self._health())
            return
        if route.kind is _PROBE:
            client.send(Document(200, (), b""))
            return
        headers = end_to_end(client.headers)
        if self.keys is not None:
            headers = without_keys(headers)
        call = SurfaceRequest(route, query, headers, client.body, client.id)
        record = record_of(client, surface.name, self.trusted_proxies)
        if client.key is not None:
            record.key = record.known_key = client.key.name
        received = client.received
        record.bytes_in = len(client.body) if received is None else received.size_bytes
        client.body = b""
        try:
            if route.kind is _MODELS:
                client.send(surface.models(call, self._listing(route.argument, client.key)))
                return
            if received is not None or takes_long(call.body):
                self._read_apart(client, surface, record, call)
                return
            decoded = surface.decode(call, self.catalog)
        except Refused as refused:
            record.model = refused.model
            self._refuse(client, surface, record, refused.refusal)
            return
        self._enter(client, surface, record, decoded)

    def _read_apart(
        self, client: Client, surface: Surface, record: Record, call: SurfaceRequest
    ) -> None:
        """Read a large body in a thread, one after the other: the loop goes on meanwhile."""
        self.being_read += 1
        reading = self._reader.read(surface, call, client.received, self.catalog)
        reading.add_done_callback(partial(self._was_read, client, surface, record))

    def _was_read(
        self,
        client: Client,
        surface: Surface,
        record: Record,
        reading: "asyncio.Future[DecodedRequest]",
    ) -> None:
        self.being_read -= 1
        if reading.cancelled():
            return
        try:
            decoded = reading.result()
            if client.is_still_there():
                self._enter(client, surface, record, decoded)
            else:
                record.model = decoded.request.model
                record.cause = "the client left while its body was read"
                self._telemetry.record(record, Outcome.CLIENT_GONE_QUEUED)
        except Refused as refused:
            record.model = refused.model
            self._refuse(client, surface, record, refused.refusal)
        except Exception:
            client.cut()  # or it would wait for ever
            raise
        finally:
            self._look_whether_empty()

    def close(self) -> None:
        """Stop reading bodies and telling places."""
        self._places.close()
        self._reader.close()

    def _enter(
        self, client: Client, surface: Surface, record: Record, decoded: DecodedRequest
    ) -> None:
        if client.key is not None and not client.key.may_ask(decoded.target.model):
            record.model = decoded.request.model
            detail = f"This key may not ask for {quoted(decoded.request.model)}"
            self._refuse(client, surface, record, Refusal(Reason.MODEL_NOT_ALLOWED, detail))
            return
        query = client.target.partition("?")[2]
        try:
            check_words(client.headers, query)
            terms = wake_terms(client, decoded, record)
        except Refused as refused:
            record.model, record.upstream = decoded.request.model, decoded.request.upstream
            self._refuse(client, surface, record, refused.refusal)
            return
        if self._telemetry.tracing is not None:
            asked = self._telemetry.tracing.begin(record, decoded.request)
            decoded = replace(decoded, request=asked)
        upstream = self.upstreams[decoded.request.upstream]
        in_stream = decoded.request.stream and wants_early_stream(
            client.headers, query, decoded.target.progress, self.progress
        )
        patience_s = inf if in_stream else silence_borne_s(client.headers, self.progress)
        caller = caller_of(client.headers, decoded.request, patience_s, client.key)
        request = ProxiedRequest(decoded, upstream, client, surface, record, self, terms, caller)
        request.in_stream = in_stream
        self.under_way[request] = None
        request.enter()
        if request.in_stream:
            self._places.add(request)

    def _refused(self, client: Client, surface: Surface | None, refusal: Refusal) -> Document:
        record = record_of(client, surface.name if surface else "", self.trusted_proxies)
        record.cause = refusal.detail
        document = (surface or self._fallback).refuse(refusal, client.id)
        if refusal.reason is Reason.INVALID_API_KEY:
            challenge = ("WWW-Authenticate", "Bearer")
            document = document._replace(headers=[*document.headers, challenge])
        record.status = document.status
        self._telemetry.record(record, OUTCOME_OF[refusal.reason])
        return document

    def _refuse(self, client: Client, surface: Surface, record: Record, refusal: Refusal) -> None:
        document = surface.refuse(refusal, client.id)
        client.send(document)
        record.cause = refusal.detail
        record.status = document.status
        record.bytes_out = client.bytes_out
        self._telemetry.record(record, OUTCOME_OF[refusal.reason])

    def _listing(self, wanted: str | None, key: Key | None) -> list[ListedModel]:
        names = self.catalog.names()
        if wanted is not None and (target := self.catalog.resolve(wanted)) is not None:
            names.append((wanted, target))  # by a pattern; a name that is listed is found before it
        return [
            ListedModel(
                name,
                target,
                self.upstreams[target.upstream].state,
                self.upstreams[target.upstream].sleep_depth,
                self._started_s,
            )
            for name, target in names
            if key is None or key.may_ask(target.model)
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
        status = "cut_off" if self.is_cut_off() else "ok"
        status = "draining" if self.draining or self.lame else status
        body = {"status": status, "upstreams": upstreams}
        headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
        return Document(200 if status == "ok" else 503, headers, json.dumps(body).encode())

    def waits(self, request: ProxiedRequest, headers: Mapping[str, str]) -> None:
        """Tell a request its place from time to time, where its client bears it."""
        if not request.in_stream and bears_interim_answers(headers, self.progress):
            self._places.add(request)

    def ended(self, request: ProxiedRequest, outcome: Outcome) -> None:
        """Forget a request that is over and write its line."""
        self.under_way.pop(request, None)
        self._telemetry.record(request.record, outcome)
        self._look_whether_empty()

    def _look_whether_empty(self) -> None:
        if self.draining and not self.under_way and not self.being_read:
            self.empty.set()


def _refuse_any_page(client: Client) -> None:
    if can_come_from_any_page(client.headers):
        raise Refused(
            Reason.UNSUPPORTED_MEDIA_TYPE,
            "Content-Type must be application/json (multipart/form-data for files); "
            "a browser must send a key with anything else",
        )


def _refuse_encoded(client: Client) -> None:
    encoding = client.headers.get("content-encoding", "")
    if encoding.strip().lower() not in ("", "identity"):
        raise Refused(
            Reason.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Encoding {quoted(encoding)} is not read here: send the body as it is",
        )


def _never() -> bool:
    return False
