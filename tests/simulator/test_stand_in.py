"""The stand-in over real sockets, in vLLM's shapes and words, read by the official client."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import Any

import openai
import pytest
from caller import Caller, chat_body, scene
from stopwatch import PATIENCE_S

from simulator.standin.server import StandInOptions

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


PATIENT = {"keep_alive_s": PATIENCE_S}
"""It closes no connection while a client on a busy machine imports what comes next."""


def test_openai_client_reads_plain_and_streamed_answers_alike() -> None:
    async def scenario() -> None:
        async with scene(tokens=4, **PATIENT) as caller, _openai(caller) as client:
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
        async with scene(**PATIENT) as caller, _openai(caller) as client:
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
            assert (moved.status, moved.headers["location"]) == (307, f"http://127.0.0.1{CHAT}")
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
        "import sys; from simulator.standin.server import StandInOptions, run;"
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
        base_url=f"http://127.0.0.1:{caller.port}/v1", api_key="x", max_retries=0, timeout=60
    )  # to connect, too: its own 5 s pass while a busy machine imports


def test_knobs_also_ride_in_the_last_message_for_callers_behind_a_translation() -> None:
    async def scenario() -> None:
        async with scene() as caller:
            text = "please\nstand_in:" + json.dumps({"text": "ordered"}) + "\nor not"
            tools = [{"name": "f", "input_schema": {"type": "object"}}]
            messages = [{"role": "user", "content": text}]
            body = {"model": "m", "max_tokens": 9, "messages": messages, "tools": tools}
            message = (await caller.call("/v1/messages", body)).json
            assert message["content"] == [{"type": "text", "text": "ordered"}]
            messages.append({"role": "user", "content": "and then?"})
            message = (await caller.call("/v1/messages", body)).json
            assert message["content"][0]["text"] != "ordered", "an order is for one request"

    asyncio.run(scenario())
