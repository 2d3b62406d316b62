"""The stand-in over real sockets: vLLM's shapes, its hidden queue, departures, exact counters."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from caller import Caller, Connection, chat_body, scene

from simulator.stand_in import StandIn, StandInOptions

CHAT = "/v1/chat/completions"


def test_stream_is_vllms_one_chunk_an_event_role_first_usage_last() -> None:
    async def scenario() -> None:
        async with scene(tokens=2) as caller:
            body = chat_body(stream=True) | {"stream_options": {"include_usage": True}}
            reply = await caller.call(CHAT, body, X_Request_Id="abc")
        assert reply.status == 200
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert reply.headers["transfer-encoding"] == "chunked"
        assert all(c.startswith(b"data: ") and c.endswith(b"\n\n") for c in reply.chunks)
        assert all(chunk.count(b"\n\n") == 1 for chunk in reply.chunks)
        assert reply.chunks[-1] == b"data: [DONE]\n\n"
        role, first, second, finish, usage = reply.events
        assert {event["id"] for event in reply.events} == {"chatcmpl-abc"}
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert first["choices"][0]["delta"] == {"content": "w0 "}
        assert second["choices"][0]["delta"] == {"content": "w1 "}
        assert finish["choices"][0]["finish_reason"] == "stop"
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 2

    asyncio.run(scenario())


def test_openai_client_reads_plain_and_streamed_answers_alike() -> None:
    async def scenario() -> None:
        async with scene(tokens=4) as caller, _openai(caller) as client:
            plain = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}]
            )
            stream = await client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "hi"}],
                stream=True,
            )
            told = [chunk.choices[0].delta.content or "" async for chunk in stream]
            assert "".join(told) == plain.choices[0].message.content == "w0 w1 w2 w3 "
            text = await client.completions.create(model="m", prompt=["a", "b"])
            assert [choice.text for choice in text.choices] == ["w0 w1 w2 w3 "] * 2
            async with client.responses.stream(model="m", input="x") as events:
                answer = await events.get_final_response()
            assert answer.output_text == "w0 w1 w2 w3 "
            vectors = await client.embeddings.create(model="m", input=["a", "b", "a"])
            assert vectors.data[0].embedding == vectors.data[2].embedding
            assert vectors.data[0].embedding != vectors.data[1].embedding
            assert [model.id async for model in client.models.list()] == ["m"]

    asyncio.run(scenario())


def test_openai_client_reads_tool_calls_and_reasoning() -> None:
    async def scenario() -> None:
        knobs: dict[str, Any] = {
            "reasoning": "let me see",
            "text": "so: ",
            "tool_calls": [{"name": "f", "arguments": {"x": 1}}, {"name": "g"}],
        }
        async with scene() as caller, _openai(caller) as client:
            async with client.chat.completions.stream(
                model="m",
                messages=[{"role": "user", "content": "hi"}],
                extra_body={"stand_in": knobs},
            ) as events:
                final = await events.get_final_completion()
            plain = (await caller.chat(**knobs)).json["choices"][0]
        message = final.choices[0].message
        calls = message.tool_calls or []
        assert final.choices[0].finish_reason == plain["finish_reason"] == "tool_calls"
        assert message.content == plain["message"]["content"] == "so: "
        assert plain["message"]["reasoning"] == "let me see"
        said = [(call.function.name, call.function.arguments) for call in calls]
        assert said == [("f", '{"x": 1}'), ("g", "{}")]
        assert [c["function"]["name"] for c in plain["message"]["tool_calls"]] == ["f", "g"]

    asyncio.run(scenario())


def test_sequences_above_the_slots_wait_inside_in_order_with_a_200_already_sent() -> None:
    async def scenario() -> None:
        async with scene(slots=2) as caller:
            names = ["a", "b", "c", "d"]
            held = [await caller.begin_chat(n, stream=True, hold_s=60) for n in names[:2]]
            for name in names[2:]:
                await caller.until(lambda s, n=name: s["in_flight"] == names.index(n))  # type: ignore[misc]
                held.append(await caller.begin_chat(name, stream=True))
            full = await caller.until(lambda s: s["in_flight"] == 4)
            assert (full["waiting"], full["started"], full["max_concurrent"]) == (2, 2, 4)
            assert [(await connection.head())[0] for connection in held] == [200] * 4
            held[0].leave()
            assert (await held[2].chunk()).startswith(b"data: ")
            done = await caller.until(lambda s: s["in_flight"] == 1)
            assert done["order"] == names
            assert (done["finished"], done["aborted"]) == (2, 1)

    asyncio.run(scenario())


def test_plain_answer_waits_for_the_hold_and_for_all_its_tokens() -> None:
    async def scenario() -> None:
        async with scene(hold=0.1, tokens=5, gap_ms=20) as caller:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            assert (await caller.chat()).status == 200
            assert loop.time() - began_s >= 0.2

    asyncio.run(scenario())


async def _fin(connection: Connection) -> None:
    connection.leave()


async def _half(connection: Connection) -> None:
    connection.half_close()


async def _rst(connection: Connection) -> None:
    connection.reset()


async def _fin_with_bytes_unread(connection: Connection) -> None:
    connection.writer.write(b"\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.sleep(0.02)  # let them arrive first: that is what hides the close
    connection.leave()


@pytest.mark.parametrize("leave", [_fin, _half, _rst, _fin_with_bytes_unread])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["holding", "waiting", "streaming", "silent", "stalled"])
def test_client_that_leaves_is_gone_at_once(
    phase: str, stream: bool, leave: Callable[[Connection], Awaitable[None]]
) -> None:
    knobs: dict[str, object] = {
        "holding": {"hold_s": 60},
        "waiting": {"hold_s": 60},
        "streaming": {"tokens": 10_000, "gap_ms": 10},
        "silent": {"silent": True},
        "stalled": {"break_after": 1, "break_how": "stall", "tokens": 5},
    }[phase]  # type: ignore[assignment]

    async def scenario() -> None:
        async with scene(slots=1) as caller:
            if phase == "waiting":
                await caller.begin_chat("first", hold_s=60)
                await caller.until(lambda s: s["started"] == 1)
            others = 1 if phase == "waiting" else 0
            leaver = await caller.begin_chat("leaver", stream=stream, **knobs)
            await caller.until(lambda s: s["in_flight"] == others + 1)
            if phase in {"streaming", "stalled"} and stream:
                await leaver.head()
                await leaver.chunk()
                await leaver.chunk()
            loop = asyncio.get_running_loop()
            left_s = loop.time()
            await leave(leaver)
            after = await caller.until(lambda s: s["in_flight"] == others)
            assert loop.time() - left_s < 2
            assert (after["aborted"], after["finished"]) == (1, 0)
            assert after["max_concurrent"] == others + 1
            if not others:
                assert (await caller.chat()).status == 200  # the only slot is free

    asyncio.run(scenario())


def test_log_has_a_line_for_each_change_of_the_number_in_flight(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def scenario() -> list[str]:
        async with scene(log=str(log), slots=1) as caller:
            first = await caller.begin_chat("1", hold_s=60)
            await caller.until(lambda s: s["in_flight"] == 1)
            second = await caller.begin_chat("2", hold_s=60)
            await caller.until(lambda s: s["in_flight"] == 2)
            first.leave()
            await caller.until(lambda s: s["in_flight"] == 1)
            second.leave()
            await caller.until(lambda s: s["in_flight"] == 0)
            return log.read_text().splitlines()  # while it runs: lines are flushed

    assert asyncio.run(scenario()) == [
        "in_flight=1 max_concurrent=1",
        "in_flight=2 max_concurrent=2",
        "in_flight=1 max_concurrent=2",
        "in_flight=0 max_concurrent=2",
    ]


def test_counters_are_exact_under_a_burst_of_plain_and_streamed_calls() -> None:
    async def scenario() -> None:
        async with scene(slots=8, hold=0.02, gap_ms=1) as caller:
            calls = [caller.chat(stream=n % 2 == 0) for n in range(100)]
            replies = await asyncio.gather(*calls)
            assert [reply.status for reply in replies] == [200] * 100
            stats = await caller.stats()
            assert (stats["started"], stats["finished"], stats["in_flight"]) == (100, 100, 0)
            assert stats["max_concurrent"] <= 100
            assert len(set(stats["order"])) == 100
            await caller.call("/stand-in/reset")
            assert (await caller.stats())["max_concurrent"] == 0

    asyncio.run(scenario())


def test_exponential_holds_repeat_with_the_seed() -> None:
    async def holds(seed: int) -> list[float]:
        async with scene(hold="exp:0.02", seed=seed, slots=1) as caller:
            loop = asyncio.get_running_loop()
            taken = []
            for _ in range(6):
                began_s = loop.time()
                await caller.chat()
                taken.append(loop.time() - began_s)
            return taken

    first, again = asyncio.run(holds(7)), asyncio.run(holds(7))
    assert first == pytest.approx(again, abs=0.02)
    assert max(first) > 2 * min(first)


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (chat_body() | {"model": "M"}, 404, "NotFoundError"),
        ({"model": "m"}, 400, "BadRequestError"),
        (b"{", 400, "BadRequestError"),
        (b"[]", 400, "BadRequestError"),
        (chat_body() | {"stream_options": {"include_usage": True}}, 400, "BadRequestError"),
        (chat_body() | {"tools": []}, 400, "BadRequestError"),
        (chat_body() | {"max_tokens": 2_000_000}, 400, "BadRequestError"),
        (chat_body(status=503, error="no"), 503, "Service Unavailable"),
    ],
)
def test_wrong_calls_get_vllms_error_object_and_no_slot(
    body: object, status: int, kind: str
) -> None:
    async def scenario() -> None:
        async with scene() as caller:
            reply = await caller.call(CHAT, body, Content_Type="application/json")
            assert (reply.status, reply.json["error"]["type"]) == (status, kind)
            assert reply.json["error"]["code"] == status
            stats = await caller.stats()
            assert (stats["refused"], stats["started"], stats["max_concurrent"]) == (1, 0, 0)

    asyncio.run(scenario())


def test_a_missing_model_and_no_messages_at_all_are_accepted() -> None:
    async def scenario() -> None:
        async with scene() as caller:
            assert (await caller.call(CHAT, {"messages": []})).status == 200

    asyncio.run(scenario())


def test_too_long_a_prompt_is_told_in_vllms_words() -> None:
    async def scenario() -> None:
        async with scene(max_model_len=10) as caller:
            body = {"model": "m", "messages": [{"role": "user", "content": "x" * 11}]}
            message = (await caller.call(CHAT, body)).json["error"]["message"]
            assert "maximum context length is 10 tokens" in message
            assert "contains at least 11 input tokens" in message

    asyncio.run(scenario())


def test_a_form_is_refused_on_chat_and_heard_on_transcriptions() -> None:
    form = (
        b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nRIFF\r\n--x--\r\n'
    )

    async def scenario() -> None:
        async with scene() as caller:
            kind = "multipart/form-data; boundary=x"
            refused = await caller.call(CHAT, form, Content_Type=kind)
            assert (refused.status, "application/json" in refused.json["error"]["message"]) == (
                400,
                True,
            )
            heard = await caller.call("/v1/audio/transcriptions", form, Content_Type=kind)
            assert heard.json["text"] == "w0 w1 w2 "

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("how", "ends_with"), [("die", None), ("fail", b"data: [DONE]\n\n"), ("end", b"w1")]
)
def test_streams_break_as_ordered(how: str, ends_with: bytes | None) -> None:
    async def scenario() -> None:
        async with scene(tokens=5) as caller:
            connection = await caller.begin_chat(stream=True, break_after=2, break_how=how)
            if how == "die":
                with pytest.raises(asyncio.IncompleteReadError):
                    await connection.reply()
            else:
                reply = await connection.reply()
                assert reply.text == "w0 w1 "
                assert ends_with is not None
                assert ends_with in reply.chunks[-1]
                errors = [event["error"]["code"] for event in reply.events if "error" in event]
                assert errors == ([500] if how == "fail" else [])
            stats = await caller.until(lambda s: s["in_flight"] == 0)
            assert (stats["failed"], stats["finished"]) == (1, 0)

    asyncio.run(scenario())


def test_a_slow_reader_holds_the_answer_back_and_loses_nothing() -> None:
    async def scenario() -> None:
        async with scene() as caller:
            connection = await caller.begin_chat(stream=True, tokens=300, bytes_per_token=100_000)
            await connection.head()
            for _ in range(20):  # the engine is done long ago; the client reads nothing
                await asyncio.sleep(0.005)
            assert (await caller.stats())["in_flight"] == 1
            pieces = 0
            while chunk := await connection.chunk():
                pieces += b'"content":"w' in chunk
            assert pieces == 300
            await caller.until(lambda s: s["finished"] == 1)

    asyncio.run(scenario())


def test_many_choices_weigh_many_slots() -> None:
    async def scenario() -> None:
        async with scene(slots=4) as caller:
            first = await caller.begin(CHAT, chat_body(hold_s=60) | {"n": 3})
            await caller.until(lambda s: s["started"] == 1)
            await caller.begin(CHAT, chat_body() | {"n": 2})
            stats = await caller.until(lambda s: s["in_flight"] == 2)
            assert (stats["sequences"], stats["waiting"]) == (5, 1)
            first.leave()
            reply = await caller.call(CHAT, chat_body(stream=True) | {"n": 2})
            indices = [event["choices"][0]["index"] for event in reply.events]
            assert indices == [0, 1] * 5

    asyncio.run(scenario())


def test_paths_answer_as_vllms() -> None:
    async def scenario() -> None:
        async with scene() as caller:
            assert (await caller.get("/health")).body == b""
            assert (await caller.get("/version")).json == {"version": "0.33"}
            assert (await caller.get("/v1/models")).json["data"][0]["id"] == "m"
            assert b"vllm:num_requests_running" in (await caller.get("/metrics")).body
            assert (await caller.call("/is_sleeping", method="GET")).status == 404
            assert (await caller.get(CHAT)).json == {"detail": "Method Not Allowed"}
            assert (await caller.call("/nothing")).json == {"detail": "Not Found"}
            moved = await caller.call(f"{CHAT}/", chat_body())
            assert (moved.status, moved.headers["location"]) == (307, f"http://test{CHAT}")
            tokens = (await caller.call("/tokenize", {"prompt": "hé"})).json
            assert tokens["count"] == 3
            back = await caller.call("/detokenize", {"tokens": tokens["tokens"]})
            assert back.json == {"prompt": "hé"}
            assert (await caller.call("/invocations", chat_body())).json["object"] == (
                "chat.completion"
            )
            ranked = await caller.call("/v1/rerank", {"query": "q", "documents": ["a", "b"]})
            assert {result["index"] for result in ranked.json["results"]} == {0, 1}
            scored = await caller.call("/v1/score", {"text_1": "q", "text_2": ["a", "b"]})
            assert len(scored.json["data"]) == 2

    asyncio.run(scenario())


def test_vllms_own_bound_counts_running_and_waiting() -> None:
    async def scenario() -> None:
        async with scene(slots=1, max_num_queued_reqs=2) as caller:
            for count in (1, 2):
                await caller.begin_chat(hold_s=60)
                await caller.until(lambda s, n=count: s["in_flight"] == n)  # type: ignore[misc]
            refused = await caller.chat()
            assert (refused.status, "retry-after" in refused.headers) == (503, False)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "options",
    [
        {"slots": 0},
        {"hold": "exp:"},
        {"hold": "uniform:2"},
        {"models": ()},
        {"vllm": "latest"},
        {"faults": "chat=explode"},
        {"faults": "chats=fail"},
        {"faults": "sleep=slow"},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        StandInOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_command_says_where_it_listens_and_ends_quietly(number: int, code: int) -> None:
    script = (
        "import sys; from simulator.stand_in import StandInOptions, run;"
        "sys.exit(run(StandInOptions(port=int(sys.argv[1]))))"
    )

    def start(port: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", script, str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    with start(0) as first:
        assert first.stdout is not None
        line = first.stdout.readline()
        assert line.startswith("listening stand-in http://127.0.0.1:")
        with start(int(line.rpartition(":")[2])) as second:
            assert second.wait(20) == 1
            assert "cannot listen" in second.communicate()[1]
        os.kill(first.pid, number)
        assert first.wait(20) == code
        assert first.communicate() == ("", "")


def _openai(caller: Caller) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{caller.port}/v1", api_key="x", max_retries=0
    )


def test_knobs_also_ride_in_the_last_message_for_callers_behind_a_translation() -> None:
    async def scenario() -> None:
        async with scene() as caller:
            text = "stand_in:" + json.dumps({"text": "ordered"})
            body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": text}]}
            message = (await caller.call("/v1/messages", body)).json
            assert message["content"] == [{"type": "text", "text": "ordered"}]

    asyncio.run(scenario())


def test_nothing_is_left_on_the_loop_after_close() -> None:
    async def scenario() -> None:
        stand_in = StandIn(StandInOptions(models=("m",)))
        caller = Caller(stand_in, stand_in.listen())
        await caller.begin_chat(hold_s=60)
        await caller.until(lambda s: s["in_flight"] == 1)
        await stand_in.close()
        await caller.close()
        with pytest.raises(ConnectionRefusedError):
            await caller.connect()

    asyncio.run(scenario())
