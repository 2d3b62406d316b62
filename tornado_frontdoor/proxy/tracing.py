"""Spans of the front door's own, sent over OTLP/HTTP: the extra `otel`, loaded only where it is on.

A request's spans are made when it has ended, from its record; a thread of the SDK sends them. Only
their ids are drawn as it comes, because its engine is told whose child it is. Names and attributes
are those of OpenTelemetry's conventions for generative AI and HTTP; what is ours alone begins with
`frontdoor.`.

    chat reasoning          server  arrived ------------------------------------ ended
      queued                        arrived ---------- granted
        held                        arrived --- awake
      chat reasoning        client                     granted ---- first byte - ended
"""

import asyncio
import threading
from collections.abc import Mapping
from time import time_ns
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tornado_frontdoor.config.settings import OtelSettings
from tornado_frontdoor.core.decisions import Outcome
from tornado_frontdoor.core.request import CanonicalRequest
from tornado_frontdoor.proxy.records import Record

LAST_WORDS_S = 2.0
"""How long the end of the process waits for spans that are not sent yet."""
_OPERATIONS = {
    "/chat/completions": "chat",
    "/messages": "chat",
    "/responses": "chat",
    "/completions": "text_completion",
    "/embeddings": "embeddings",
}

Attributes = Mapping[str, Any]


class Ids(NamedTuple):
    """What was drawn for a request as it came: its trace, its span, that of the engine's call."""

    trace: int
    root: int
    call: int


class _Drawn(RandomIdGenerator):
    """Gives spans the ids that were drawn for them before."""

    def __init__(self) -> None:
        self.trace: int | None = None
        self.span: int | None = None

    def generate_trace_id(self) -> int:
        """Return the id that is next, or another."""
        drawn, self.trace = self.trace, None
        return drawn or super().generate_trace_id()

    def generate_span_id(self) -> int:
        """Return the id that is next, or another."""
        drawn, self.span = self.span, None
        return drawn or super().generate_span_id()


class Tracing:
    """Sends the spans of requests that ended."""

    def __init__(self, settings: OtelSettings, version: str) -> None:
        resource = {"service.name": settings.service_name, "service.version": version}
        self._drawn = _Drawn()
        self._sampler = ParentBased(TraceIdRatioBased(settings.sample_share))
        self._provider = TracerProvider(
            sampler=self._sampler,
            id_generator=self._drawn,
            resource=Resource.create(resource),
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(endpoint=f"{settings.endpoint.rstrip('/')}/v1/traces")
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tornado_frontdoor", version)
        self._parents = TraceContextTextMapPropagator()

    def begin(self, record: Record, request: CanonicalRequest) -> CanonicalRequest:
        """Draw the ids of a request; returns it with its engine told whose child it is."""
        parent = self._parents.extract(record.trace)
        said = get_current_span(parent).get_span_context()
        fresh = RandomIdGenerator()
        trace_id = said.trace_id if said.is_valid else fresh.generate_trace_id()
        ids = Ids(trace_id, fresh.generate_span_id(), fresh.generate_span_id())
        sampled = self._sampler.should_sample(parent, trace_id, "").decision
        flags = "00" if sampled is Decision.DROP else "01"
        record.span_ids = ids
        told = f"00-{ids.trace:032x}-{ids.call:016x}-{flags}"
        rest = (pair for pair in request.headers if pair[0].lower() != "traceparent")
        return replace(request, headers=(*rest, ("traceparent", told)))

    def ended(self, record: Record, outcome: Outcome, total_s: float) -> None:
        """Make the spans of a request; what asked for no model is none of them."""
        if record.model is None:
            return
        arrived_ns = time_ns() - round(total_s * 1e9)

        def at(later_s: float) -> int:
            return arrived_ns + round(later_s * 1e9)

        operation = next(
            (name for end, name in _OPERATIONS.items() if record.path.endswith(end)), None
        )
        name = f"{operation or record.method} {record.model}"
        parent = self._parents.extract(record.trace)
        known = _known({**_of_request(record, operation), **_of_end(record, outcome)})
        ids: Ids | None = record.span_ids
        if ids is not None:
            self._drawn.trace, self._drawn.span = ids.trace, ids.root
        root = self._tracer.start_span(
            name, parent, SpanKind.SERVER, attributes=known, start_time=at(0)
        )
        self._drawn.trace = None  # where the client named one, nobody has asked for it
        inside = trace.set_span_in_context(root)
        if record.place is not None:
            place = {"frontdoor.queue.position": record.place}
            queued = self._tracer.start_span("queued", inside, attributes=place, start_time=at(0))
            if record.held_s:
                depth = _known({"frontdoor.sleep.depth": record.wake})
                within = trace.set_span_in_context(queued)
                held = self._tracer.start_span("held", within, attributes=depth, start_time=at(0))
                held.end(at(record.held_s))
            queued.end(at(record.waited_s))
        if record.replica is not None:
            self._drawn.span = None if ids is None else ids.call
            asked = self._tracer.start_span(
                name,
                inside,
                SpanKind.CLIENT,
                attributes=_known(_of_engine(record, operation)),
                start_time=at(record.waited_s),
            )
            if record.first_byte_s is not None:
                asked.add_event("first byte", timestamp=at(record.first_byte_s))
            _judge(asked, record, outcome)
            asked.end(at(total_s))
        _judge(root, record, outcome)
        root.end(at(total_s))

    async def close(self) -> None:
        """Send what is left, for a while."""
        last = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        last.start()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, last.join, LAST_WORDS_S)


def _of_request(record: Record, operation: str | None) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": record.model,
        "gen_ai.request.stream": record.stream or None,
        "http.request.method": record.method,
        "url.path": record.path,
        "client.address": record.forwarded or record.client,
        "user_agent.original": record.user_agent,
        "frontdoor.request_id": record.request_id,
        "frontdoor.surface": record.surface,
        "frontdoor.upstream": record.upstream,
        "frontdoor.slots": record.weight or None,
    }


def _of_end(record: Record, outcome: Outcome) -> dict[str, Any]:
    first_s = record.first_byte_s
    return {
        "http.response.status_code": record.status or None,
        "gen_ai.usage.input_tokens": record.tokens_in,
        "gen_ai.usage.output_tokens": record.tokens_out,
        "gen_ai.response.time_to_first_chunk": first_s if record.stream else None,
        "frontdoor.outcome": outcome.label,
        "frontdoor.end_code": outcome.code,
        "frontdoor.cause": record.cause,
    }


def _of_engine(record: Record, operation: str | None) -> dict[str, Any]:
    there = urlsplit(record.replica or "")
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": record.model,
        "server.address": there.hostname,
        "server.port": there.port,
    }


def _judge(span: Span, record: Record, outcome: Outcome) -> None:
    """Say of a span that it failed: by the outcome, or by the engine's own status."""
    failed = record.status if record.status >= 500 else None
    if outcome is not Outcome.SERVED or failed:
        kind = str(failed) if outcome is Outcome.SERVED else outcome.label
        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR, record.cause))


def _known(attributes: Mapping[str, Any]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}
