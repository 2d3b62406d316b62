"""Whatever is sent, by clients or engines: an answer or a refusal, and no other exception."""

import json
from typing import Any

from anthropic_bench import (
    COUNT_TOKENS,
    EVENT_STREAM,
    HI,
    MESSAGES,
    TOOL,
    bench,
    call_delta,
    chunk,
    completion,
    sse,
)
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tornado_frontdoor.core.decisions import Outcome
from tornado_frontdoor.surfaces.base import Refused

Json = dict[str, Any]

SEEDS: list[Json] = [
    bench.question(
        system=[{"type": "text", "text": "S"}],
        messages=[
            *HI,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "T", "signature": "s"},
                    {"type": "tool_use", "id": "a", "name": "get", "input": {"x": [1]}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "a",
                        "content": [
                            {"type": "text", "text": "x"},
                            {"type": "image", "source": {"type": "url", "url": "http://x"}},
                            {"type": "tool_reference", "tool_name": "get"},
                        ],
                        "is_error": True,
                    },
                    {"type": "document", "source": {"type": "content", "content": []}},
                    {"type": "search_result", "title": "t", "source": "s", "content": []},
                ],
            },
            {"role": "system", "content": "inline"},
        ],
        tools=[{**TOOL, "input_examples": [{}], "allowed_callers": ["direct"]}],
        tool_choice={"type": "tool", "name": "get", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 2000, "display": "omitted"},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": {}}},
        stop_sequences=["a"],
        stream=True,
        max_tokens=5000,
    )
]
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.text(max_size=3), scalars)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (holder, key) within a JSON value."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys]
    for _, key in list(found):
        if isinstance(value[key], dict | list):
            found += places(value[key])
    return found


@st.composite
def spoilt(draw: st.DrawFn, seeds: list[Json]) -> Json:
    """A JSON object with one to three of its values changed or taken away."""
    value: Json = json.loads(json.dumps(draw(st.sampled_from(seeds))))
    for _ in range(draw(st.integers(1, 3))):
        holder, key = draw(st.sampled_from(places(value)))
        if draw(st.booleans()):
            holder[key] = draw(values)
        elif isinstance(holder, dict):
            holder.pop(key, None)
        if not value:
            break
    return value


def test_seed_itself_is_accepted() -> None:
    [seed] = SEEDS
    assert bench.decode(seed, images="base64+url").request.stream


@settings(max_examples=examples(130), deadline=None)
@given(
    spoilt(SEEDS),
    st.sampled_from([MESSAGES, COUNT_TOKENS]),
    st.sampled_from(["merge", "keep", "reminder"]),
)
def test_spoilt_question_is_served_or_refused(fields: Json, path: str, inline: str) -> None:
    try:
        exchange = bench.decode(fields, path=path, images="base64+url", inline_system=inline)
    except Refused as refused:
        document = bench.surface.refuse(refused.refusal, "r1")
        assert document.status in (400, 404)
    else:
        assert isinstance(json.loads(exchange.request.body)["messages"], list)


CALL = {"id": "a", "index": 0, "function": {"name": "f", "arguments": "{}"}}
DETAILS = {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}
WHOLE = completion({"content": "x", "reasoning": "r", "tool_calls": [CALL]}, usage=DETAILS)
CHUNK = chunk({"content": "x", "reasoning": "r", **call_delta(0, "a", "f", "{}")}, usage=DETAILS)
ERROR: Json = {"error": {"message": "m", "code": 500}}


@settings(max_examples=examples(100), deadline=None)
@given(spoilt([WHOLE, ERROR]), st.sampled_from([200, 400, 500]), st.booleans())
def test_spoilt_answer_is_a_message_or_an_error(body: Json, status: int, stream: bool) -> None:
    document, ending = bench.answer(body, status=status, stream=stream)
    assert json.loads(document.body)["type"] == ("message" if document.status == 200 else "error")
    assert (ending.outcome is Outcome.SERVED) == (document.status < 500)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(spoilt([CHUNK, ERROR]), max_size=3), st.booleans())
def test_spoilt_stream_is_a_message_or_ends_with_an_error(
    payloads: list[Json], buffered: bool
) -> None:
    traits = {"tool_args": "buffer" if buffered else "stream"}
    data = sse(CHUNK, *payloads, chunk({}, "stop"), "[DONE]")
    result = bench.stream(data, traits=traits)
    if result.ending.outcome is Outcome.SERVED:
        assert result.kinds[-1] == "message_stop"
    else:
        assert result.error


PIECES = [
    chunk({"content": "x", "refusal": None, "tool_calls": None}, logprobs=None),
    chunk({"reasoning": "r", "reasoning_content": "o", "tool_calls": []}, stop_reason=None),
    chunk({"content": "y"}, usage=DETAILS) | {"error": None},
    chunk({"content": "z"}) | {"error": "of the engine"},
]


def with_another_choice(payload: Json) -> Json:
    """The same chunk put together as no engine does: it is read member by member."""
    choices = payload.get("choices")
    return (
        payload | {"choices": [*choices, {}]} if choices and isinstance(choices, list) else payload
    )


@settings(max_examples=examples(130), deadline=None)
@given(st.lists(st.sampled_from(PIECES) | spoilt(PIECES), max_size=4), st.booleans())
def test_chunk_read_in_one_go_means_what_it_means_member_by_member(
    payloads: list[Json], begun: bool
) -> None:
    first = [chunk({"content": "a"})] if begun else []
    data, slowly = (
        sse(*first, *chunks, chunk({}, "stop"), "[DONE]")
        for chunks in (payloads, map(with_another_choice, payloads))
    )
    assert bench.stream(data).data == bench.stream(slowly).data


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=4), st.sampled_from(["translate", "native"]))
def test_no_bytes_at_all_upset_a_relay(pieces: list[bytes], anthropic: str) -> None:
    for stream in (False, True):
        relay = bench.decode(bench.question(stream=stream), anthropic=anthropic).relay
        relay.head(200, EVENT_STREAM)
        for piece in pieces:
            relay.data(b"data: " + piece if stream else piece)
        ending = relay.ending or relay.end()
        assert ending.outcome is Outcome.UPSTREAM_ERROR
