"""The public listener under attack: hidden paths, bodies, framings, floods, odd clients."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
from doorway import CHAT, doorway
from wire import Reply, Wire, chat, request

from tornado_frontdoor.core.printable import printable

HIDDEN = """
/ /v1 /v1/ /sleep /wake_up /is_sleeping /collective_rpc /reset_prefix_cache /reset_mm_cache
/reset_encoder_cache /server_info /release_kv_cache_memory /pause /resume /is_paused
/abort_requests /init_weight_transfer_engine /shutdown_weight_transfer_engine
/start_weight_update /start_draft_weight_update /update_weights /finish_weight_update
/update_weight_version /weight_info /weight_checker /get_world_size /invocations /ping /load
/version /kv_event_sources /metrics /metrics/ /docs /redoc /openapi.json /docs/oauth2-redirect
/static/x /start_profile /stop_profile /scale_elastic_ep /is_scaling_elastic_ep
/fault_tolerance/apply /fault_tolerance/status /tokenizer_info /generative_scoring
/v1/load_lora_adapter /v1/unload_lora_adapter /adapters /v1/messages/render
/v1/chat/completions/batch /v1/chat/completions/render
/v1/completions/render /v1/responses/render /v1/chat/completions/derender
/v1/completions/derender /inference/v1/generate /inference/v1/abort_requests /cohere/v2/chat
/cohere/v2/chat/render /v1/realtime /v1/decisions /v1/systemone /v1/responses/resp_1
/v1/responses/resp_1/cancel /pooling /classify /score /rerank /v2/rerank /v2/embed /v1/files
/admin/status /admin/wake/text /admin/sleep/text /stand-in/stats /stand-in/reset
/stand-in/kill /health/ /health/x /ready /readyz
""".split()

SPELLINGS = """
/v1/../sleep /v1%2f..%2fsleep //sleep /sleep;x /v1/./../sleep /v1/chat/completions/../../../sleep
/%73leep /%2e%2e/sleep /v1/%2e%2e/sleep /v1/..%2fsleep /v1//chat/completions //v1/chat/completions
/v1/chat//completions /V1/chat/completions /v1/Chat/Completions /v1/chat/completions/
/v1/chat/completions%20 /v1/chat/completions%00 /v1/chat/completions;jsessionid=1
/v1/chat%2fcompletions /v1%2fchat%2fcompletions /v1\\chat\\completions /v1/chat/completions%2f
/./v1/chat/completions /v1/./chat/completions /v1/chat/completions/. /v1/chat/completions/..
/v1/models/../load_lora_adapter /v1/models/..%2f..%2fsleep /v1/models/%2e%2e/%2e%2e/sleep
/v1/models/x/../../../sleep /v1/models//sleep /v1/models/%252e%252e/sleep /v1/models/%5c..%5csleep
/%76%31/chat/completions /v1/chat/completions#x /v1/chat/completions%3fx /\u0073leep /invocations/
/INVOCATIONS /v1/../invocations /v1/chat/completions/%2e%2e/%2e%2e/%2e%2e/invocations
http://x/sleep http://x//sleep HTTP://x/v1/../sleep http:/v1/chat/completions x:/sleep * sleep
/v1/chat/completions/../../../../../../../../etc/passwd /.. /../v1/chat/completions /~ /%
/v1/chat/completions%c0%ae /v1/%c0%ae%c0%ae/sleep /%ff /v1/models/%ff
""".split()

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE", "PROPFIND", "get"]


async def ask(wire: Wire, target: str, method: str) -> Reply:
    body = None if method in ("GET", "HEAD") else b'{"model":"reasoning","messages":[]}'
    wire.send(target, body, method)
    return await wire.reply(to_head=method == "HEAD")


@pytest.mark.parametrize("targets", [HIDDEN, SPELLINGS], ids=["hidden", "spellings"])
def test_what_is_not_on_the_list_is_not_found_in_any_spelling(targets: list[str]) -> None:
    """And the engine sees none of it, although it has many of these routes."""

    async def scenario() -> None:
        async with doorway({"sleep_mode": True}) as door:
            wire = await door.wire()
            for target in targets:
                for method in METHODS:
                    reply = await ask(wire, target, method)
                    assert reply.status == 404, (method, target, reply)
                    if method != "HEAD":
                        told = reply.json["error"]["type"]
                        assert told in ("invalid_request_error", "not_found_error")
            stats = door.stats()
            assert (stats["started"], stats["refused"], stats["control_calls"]) == (0, 0, [])
            assert not door.reasoning._engine.memory.depth

    asyncio.run(scenario())


def test_known_paths_take_no_other_method() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            wire = await door.wire()
            reads = ("GET", "HEAD", "OPTIONS")
            for target, allowed in (
                (CHAT, ("POST", "OPTIONS")),
                ("/v1/models", reads),
                ("/health", reads),
            ):
                for method in METHODS:
                    if method not in allowed:
                        assert (await ask(wire, target, method)).status == 404
            assert door.stats()["started"] == 0

    asyncio.run(scenario())


def test_an_answer_to_head_has_no_body() -> None:
    """Or the next answer on the connection would begin with it."""

    async def scenario() -> None:
        async with doorway() as door:
            wire = await door.wire()
            for target in ("/sleep", "/v1/models", CHAT):
                wire.send(target, None, "HEAD")
                assert (await wire.reply(to_head=True)).status == (
                    200 if target == "/v1/models" else 404
                )
                wire.send("/v1/models", None, "GET")
                assert (await wire.reply()).json["object"] == "list"

    asyncio.run(scenario())


# Bodies


def test_a_body_above_the_limit_is_refused_before_it_is_read() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            wire = await door.wire()
            wire.raw(
                b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n" % CHAT.encode()
            )
            reply = await wire.reply()
            assert reply.status == 413
            assert reply.took_s < 0.2
            assert reply.json["error"]["type"] == "invalid_request_error"
            assert "max_body_mib" in reply.json["detail"]
            assert door.lines[0]["outcome"] == "body_too_large"
            assert door.lines[0]["code"] == "PB"

    asyncio.run(scenario())


def test_a_body_that_turns_out_too_large_is_refused_while_it_comes() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            wire = await door.wire()
            wire.raw(
                b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % CHAT.encode()
            )
            piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
            for _ in range(18):
                wire.raw(piece)
            assert (await wire.reply()).status == 413
            wire.raw(piece * 3 + b"0\r\n\r\n")  # the rest is read and thrown away
            wire.send("/v1/models", None, "GET")
            assert (await wire.reply()).status == 200
            assert door.outcomes == ["body_too_large"]

    asyncio.run(scenario())


def test_a_refused_body_of_any_size_does_not_reset_its_refusal() -> None:
    """The client sends all of it before it reads: it still finds the answer."""

    async def scenario() -> None:
        async with doorway() as door:
            for path, status in ((CHAT, 413), ("/sleep", 404)):
                wire = await door.wire()
                wire.send(path, b"x" * (8 << 20))
                await wire.writer.drain()
                assert (await wire.reply()).status == status
                wire.send("/v1/models", None, "GET")
                assert (await wire.reply()).status == 200

    asyncio.run(scenario())


def test_a_body_at_the_limit_is_served() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            body = b'{"model":"text","messages":[]}'
            body += b" " * ((1 << 20) - len(body))
            for framing in ("length", "chunked"):
                wire = await door.wire()
                if framing == "length":
                    wire.send(CHAT, body, Content_Type="application/json")
                else:
                    head = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                    wire.raw(head % CHAT.encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
                assert (await wire.reply()).status == 200

    asyncio.run(scenario())


def test_a_client_that_expects_100_gets_it_or_the_refusal_and_nothing_more() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            body = json.dumps(chat("text")).encode()
            wire = await door.wire()
            head = (
                b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n"
            )
            wire.raw(head % (CHAT.encode(), len(body)))
            assert (await wire.head())[0] == 100
            wire.raw(body)
            assert (await wire.reply()).status == 200
            for path, size, status in ((CHAT, 99_999_999, 413), ("/sleep", 10, 404)):
                other = await door.wire()
                other.raw(head % (path.encode(), size))
                assert (await other.reply()).status == status
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        assert await other.reader.read(100) == b"", "a second answer"

    asyncio.run(scenario())


def test_a_body_in_single_bytes_is_read_and_one_that_never_ends_holds_nothing() -> None:
    """F6: a body that is still on its way takes no place in any line."""

    async def scenario() -> None:
        async with doorway(cap=1, queue=0) as door:
            slow = [await door.wire() for _ in range(50)]
            for wire in slow:
                wire.raw(
                    b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{" % CHAT.encode()
                )
            wire = await door.wire()
            for byte in request(CHAT, chat(), Connection="close"):
                wire.raw(bytes([byte]))
                await asyncio.sleep(0)
            assert (await wire.reply()).status == 200
            assert door.gate.in_flight == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b"{}{}",
        b'{"model":',
        b'{"model":"reasoning"',
        b'{"model":7}',
        b'{"model":["reasoning"]}',
        b'{"model":"reasoning",}',
        b"\xff\xfe{}",
        b'{"model":"\xc3("}',
        b"\x00" * 100,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"n":' + b"9" * 5000 + b"}",
        b'{"model":"reasoning","messages":[NaN]}x',
    ],
)
def test_a_body_that_is_none_is_a_400_with_the_place(body: bytes) -> None:
    """F6: found out before any line is entered."""

    async def scenario() -> None:
        async with doorway() as door:
            wire = await door.wire()
            wire.send("/v1/responses", body, Content_Type="application/json")
            reply = await wire.reply()
            assert reply.status == 400
            assert reply.headers["content-type"] == "application/problem+json"
            assert reply.json["error"]["type"] == "invalid_request_error"
            wire.send("/v1/models", None, "GET")
            assert (await wire.reply()).status == 200
            assert (door.outcomes, door.lines[0]["code"]) == (["bad_request"], "PR")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "nobody"},
        {"model": ""},
        {"model": "\ud800"},
        {"model": "x" * 5000},
        {"model": "../reasoning"},
        {"model": "claude\n"},
    ],
)
def test_an_unknown_model_is_a_404_that_costs_nothing(fields: dict[str, str]) -> None:
    async def scenario() -> None:
        async with doorway() as door:
            reply = await door.call(CHAT, {**fields, "messages": []})
            assert reply.status == 404
            assert reply.json["error"]["code"] == "model_not_found"
            assert reply.json["error"]["param"] == "model"
            assert (door.outcomes, door.lines[0]["code"]) == (["model_not_found"], "PN")

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["claude-\ud800", "claude-" + "x" * 900, "claude-\u2028\x00"])
def test_a_name_of_any_characters_is_served_by_its_pattern(name: str) -> None:
    """It goes into the access line, where it must not break anything, nor take megabytes."""

    async def scenario() -> None:
        async with doorway() as door:
            assert (await door.call(CHAT, {"model": name, "messages": []})).status == 200
            assert door.lines[0]["model"] == printable(name)
            assert len(door.lines[0]["model"]) < 210

    asyncio.run(scenario())


# Framing


@pytest.mark.parametrize(
    "head",
    [
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /v1/models\r\n\r\n",
        b"GET  /v1/models HTTP/1.1\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nA : b\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\n A: b\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nA: b\x00c\r\n\r\n",
        b"GET /v1/models HTTP/3.7\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: +2\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2x\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 0x2\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2, 3\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}x",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
        b"GET /v1/models HTTP/1.1\r\nA: " + b"b" * 200_000 + b"\r\n\r\n",
        b"GET /" + b"v" * 200_000 + b" HTTP/1.1\r\n\r\n",
    ],
    ids=range(28),
)
def test_what_is_no_http_is_refused_and_cut_and_never_passed_on(head: bytes) -> None:
    """Also the shapes of request smuggling: no second request may be hidden in a first one."""

    async def scenario() -> None:
        async with doorway(text={"sleep_mode": True}) as door:
            wire = await door.wire()
            smuggled = request(CHAT, chat("text"))
            wire.raw(head + smuggled)
            with contextlib.suppress(ConnectionError):
                await wire.writer.drain()
            said = await wire.rest()
            assert said == b"" or said.split(b" ")[1] in {b"400", b"413", b"431"}, said[:200]
            assert said.count(b"HTTP/1.1 200") == 0
            assert door.stats(door.text)["started"] == 0
            assert (await door.call(CHAT, chat("text"))).status == 200

    asyncio.run(scenario())


def test_equal_lengths_said_twice_are_one() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            wire = await door.wire()
            body = json.dumps(chat("text")).encode()
            size = str(len(body)).encode()
            head = (
                b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %b\r\nContent-Length: %b\r\n\r\n%b"
            )
            wire.raw(head % (CHAT.encode(), size, size, body))
            assert (await wire.reply()).status == 200

    asyncio.run(scenario())


def test_idle_connections_are_closed_and_busy_ones_are_not() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 0.4}, server="idle_timeout_s = 0.1") as door:
            idle, trickle = await door.wire(), await door.wire()
            trickle.raw(b"GET /v1/mod")
            busy = await door.begin(CHAT, chat())
            await door.inside(1)
            await idle.closed(5)
            await trickle.closed(5)
            assert (await busy.reply()).status == 200

    asyncio.run(scenario())


def test_random_bytes_break_nothing() -> None:
    """A thousand connections of noise, heads cut anywhere, bits turned; then all is as before."""
    import random

    async def scenario() -> None:
        async with doorway(queue_timeout_s=0.5, read_timeout_s=0.5) as door:
            rng = random.Random(7)
            whole = request(CHAT, chat(stream=True, tokens=2))
            for _ in range(20):
                wires = [await door.wire() for _ in range(50)]
                for wire in wires:
                    data = bytearray(whole)
                    for _ in range(rng.randrange(4)):
                        data[rng.randrange(len(data))] = rng.randrange(256)
                    wire.raw(bytes(data[: rng.randrange(len(data) + 1)]))
                await asyncio.sleep(0.01)
                for wire in wires:
                    wire.reset()
            await door.at_rest()
            assert (await door.call(CHAT, chat())).status == 200

    asyncio.run(scenario())


def test_a_header_that_comes_several_times_reaches_the_engine_whole(kit: Any) -> None:
    heads: list[bytes] = []

    async def serve(reader: Any, writer: Any) -> None:
        heads.append((await kit.read_request(reader))[0])
        writer.write(kit.answer())

    async def scenario() -> None:
        async with kit.engine(serve) as engine, doorway(url=engine.url) as door:
            wire = await door.wire()
            raw = request(CHAT, chat(), X_Tag="a")
            wire.raw(raw.replace(b"\r\n\r\n", b"\r\nx-tag: b\r\nX-TAG: c\r\n\r\n", 1))
            assert (await wire.reply()).status == 200
            assert b"\r\nx-tag: a,b,c\r\n" in heads[0]
            wire.leave()

    asyncio.run(scenario())
