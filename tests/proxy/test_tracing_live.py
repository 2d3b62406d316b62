"""Spans of the door's own, as a collector gets them over a real socket; nothing where it is off."""

import asyncio
import gzip
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from doorway import CHAT, Doorway, doorway
from wire import chat

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """Takes what is posted to `/v1/traces` and keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[Any] = []
        self.raw = b""
        self.url = ""

    def named(self, name: str, kind: int | None = None) -> Any:
        (found,) = [s for s in self.spans if s.name == name and kind in (None, s.kind)]
        return found

    def take(self, body: bytes) -> None:
        self.raw += body
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(values_of(group.resource.attributes))
            self.spans += [span for scope in group.scope_spans for span in scope.spans]


def values_of(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in attributes}


@contextmanager
def collector() -> Iterator[Collector]:
    kept = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            packed = self.headers.get("Content-Encoding") == "gzip"
            if self.path == "/otlp/v1/traces":
                kept.take(gzip.decompress(body) if packed else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    kept.url = f"http://127.0.0.1:{server.server_port}/otlp"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def otel(kept: Collector, more: str = "") -> str:
    return f'[otel]\nendpoint = "{kept.url}"\n{more}'


async def queued_one(door: Doorway) -> None:
    first = await door.begin(CHAT, chat(hold_s=60))
    await door.inside(1)
    traced = f"00-{TRACE}-{PARENT}-01"
    second = await door.begin(CHAT, chat(stream=True), Traceparent=traced)
    await door.inside(1, 1)
    first.leave()
    assert (await second.reply()).status == 200


def test_a_request_is_queued_granted_and_answered_in_the_trace_of_its_client() -> None:
    with collector() as kept:

        async def scenario() -> None:
            async with doorway({"hold": 0.1}, cap=1, tables=otel(kept)) as door:
                await queued_one(door)
                said = [{"role": "user", "content": "a private matter"}]
                lost = {"model": "nobody", "messages": said}
                await door.call(CHAT, lost, Authorization="Bearer sk-secret")
                await door.call("/nowhere")

        asyncio.run(scenario())
    assert kept.resources[0]["service.name"] == "frontdoor"
    ours = [span for span in kept.spans if span.trace_id.hex() == TRACE]
    assert [span.name for span in ours] == ["queued", "chat reasoning", "chat reasoning"]
    queued, asked, root = ours
    assert (root.kind, asked.kind) == (2, 3), "server and client"
    assert root.parent_span_id.hex() == PARENT
    assert queued.parent_span_id == asked.parent_span_id == root.span_id
    assert root.start_time_unix_nano == queued.start_time_unix_nano
    assert queued.end_time_unix_nano == asked.start_time_unix_nano
    assert asked.end_time_unix_nano == root.end_time_unix_nano
    (first_byte,) = asked.events
    assert first_byte.name == "first byte"
    assert asked.start_time_unix_nano < first_byte.time_unix_nano <= root.end_time_unix_nano
    told = values_of(root.attributes)
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.request.model"] == "reasoning"
    assert told["gen_ai.request.stream"] is True
    assert told["http.response.status_code"] == 200
    assert (told["frontdoor.outcome"], told["frontdoor.upstream"]) == ("served", "reasoning")
    assert values_of(queued.attributes) == {"frontdoor.queue.position": 1}
    assert values_of(asked.attributes)["server.address"] == "127.0.0.1"
    assert b"sk-secret" not in kept.raw
    assert b"a private matter" not in kept.raw
    lost = kept.named("chat nobody")
    assert values_of(lost.attributes)["error.type"] == "model_not_found"
    assert lost.status.code == 2
    assert "nobody" in lost.status.message
    left = [span for span in kept.spans if span.kind == 2 and span.status.code == 2]
    assert {values_of(span.attributes)["error.type"] for span in left} == {
        *("model_not_found", "client_gone_streaming")
    }


@pytest.mark.parametrize("flags", ["01", "00"])
def test_the_engine_is_told_whose_child_it_is(kit: Any, flags: str) -> None:
    heads: list[bytes] = []

    async def serve(reader: Any, writer: Any) -> None:
        while True:
            heads.append((await kit.read_request(reader))[0])
            writer.write(kit.answer(b"{}", "200 OK"))

    with collector() as kept:

        async def scenario() -> None:
            async with (
                kit.engine(serve) as engine,
                doorway(url=engine.url, tables=otel(kept)) as door,
            ):
                await door.call(CHAT, chat(), Traceparent=f"00-{TRACE}-{PARENT}-{flags}")
                await door.call(CHAT, chat())

        asyncio.run(scenario())
    told = [
        line.split(": ")[1].split("-")
        for head in heads
        for line in head.decode().splitlines()
        if line.lower().startswith("traceparent: ")
    ]
    assert [len(one) for one in told] == [4, 4]
    assert (told[0][1], told[0][3]) == (TRACE, flags)
    calls = {span.span_id.hex(): span.trace_id.hex() for span in kept.spans if span.kind == 3}
    ours = {span: trace for _, trace, span, flags in told if flags == "01"}
    assert calls == ours, "each call that is sent, and none that is not sampled"


def test_a_client_that_is_not_sampled_is_not_sent_and_a_dead_collector_costs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with collector() as kept:

        async def scenario() -> None:
            async with doorway(tables=otel(kept, "sample_share = 0")) as door:
                await door.call(CHAT, chat())
                await door.call(CHAT, chat(), Traceparent=f"00-{TRACE}-{PARENT}-00")

        asyncio.run(scenario())
    assert kept.spans == []

    async def nobody_there() -> None:
        async with doorway(tables=otel(kept)) as door:
            assert (await door.call(CHAT, chat())).status == 200
            door.said.clear()

    with caplog.at_level("CRITICAL", "opentelemetry"):
        asyncio.run(nobody_there())


def test_nothing_of_it_is_loaded_where_it_is_off() -> None:
    program = (
        "import sys, tornado_frontdoor.proxy.app\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stdout == "[]\n"
