"""The same answer, streamed or whole, is the same message; through the official client too."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import anthropic
import httpx2
import pytest
from anthropic_bench import (
    EVENT_STREAM,
    JSON,
    bench,
    call_delta,
    chunk,
    completion,
    sse,
    usage_chunk,
    validated,
)
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st

Json = dict[str, Any]

words = st.text(alphabet='ab 渐🙂é"\\\n{}', min_size=1, max_size=6)
dense = words.filter(lambda text: not text.isspace())
flags = st.booleans()
objects = st.dictionaries(words, st.none() | st.integers() | words | st.lists(words), max_size=3)


class Answer(NamedTuple):
    """One answer of an engine, in both of its forms."""

    chunks: list[Json | str]
    whole: Json
    in_order: bool
    """Whether its pieces come in the order in which a whole answer is read."""


@st.composite
def calls(draw: st.DrawFn) -> tuple[list[Json], list[Json]]:
    """Tool calls, whole and as deltas: one after the other, or mixed by index."""
    whole: list[Json] = []
    streams: list[list[Json]] = []
    for index in range(draw(st.integers(0, 3))):
        arguments = draw(
            objects.map(lambda value: json.dumps(value, ensure_ascii=False)) | st.just("")
        )
        call_id = draw(st.just(f"c{index}") | st.none())
        name = f"f{index}"
        call: Json = {"type": "function", "function": {"name": name, "arguments": arguments}}
        whole.append(call if call_id is None else {"id": call_id, **call})
        cuts = sorted(draw(st.lists(st.integers(0, len(arguments)), max_size=3)))
        places = [0, *cuts, len(arguments)]
        pieces = [call_delta(index, arguments=arguments[a:b]) for a, b in pairwise(places)]
        start = call_delta(index, call_id, name, draw(st.sampled_from(["", None])))
        streams.append([start, *pieces])
    if draw(flags):  # begun in order of their index, then mixed
        mixed = [stream.pop(0) for stream in streams]
        rest = [number for number, stream in enumerate(streams) for _ in stream]
        mixed += [streams[number].pop(0) for number in draw(st.permutations(rest))]
        return whole, mixed
    return whole, [delta for stream in streams for delta in stream]


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    reasoning = draw(st.lists(words, max_size=3))
    text = draw(st.lists(words, max_size=3))
    whole_calls, call_deltas = draw(calls())
    field = draw(st.sampled_from(["reasoning", "reasoning_content"]))
    deltas: list[Json] = [{field: piece} for piece in reasoning]
    deltas += [{"content": piece} for piece in text]
    if draw(flags) and reasoning and text:  # the last of one, the first of the other
        deltas[len(reasoning) - 1 : len(reasoning) + 1] = [
            {field: reasoning[-1], "content": text[0]}
        ]
    after: list[Json] = []
    if whole_calls:
        late = st.fixed_dictionaries({"content": dense}) | st.fixed_dictionaries({field: dense})
        after = draw(st.lists(late, max_size=2))
    if draw(flags) and after:
        place = draw(st.integers(0, len(call_deltas)))
        deltas += [*call_deltas[:place], *after, *call_deltas[place:]]
    else:
        deltas += [*call_deltas, *after]
    finish = draw(st.sampled_from(["stop", "length", "tool_calls", "content_filter"]))
    stops: list[Json] = [{}, {"stop_reason": "X"}, {"stop_reason": 7}]
    more = draw(st.sampled_from(stops))
    message: Json = {
        field: "".join(reasoning + [late[field] for late in after if field in late]) or None,
        "content": "".join(text + [late["content"] for late in after if "content" in late]) or None,
        "tool_calls": whole_calls,
    }
    counts = draw(st.none() | st.just({"prompt_tokens": 9, "completion_tokens": 4}))
    chunks = _chunks(draw, deltas, finish, more, counts)
    return Answer(chunks, completion(message, finish, usage=counts, **more), not after)


def _chunks(
    draw: st.DrawFn, deltas: list[Json], finish: str, more: Json, counts: Json | None
) -> list[Json | str]:
    """Chunks as servers differ in writing them: where finish and usage stand, and the end mark."""
    chunks: list[Json | str] = [chunk(delta) for delta in deltas]
    if draw(flags):
        chunks.insert(0, chunk({"role": "assistant", "content": ""}))
    if draw(flags) and deltas:
        chunks[-1] = chunk(deltas[-1], finish, **more)
    else:
        chunks.append(chunk({}, finish, **more))
    if counts is not None:
        usage = usage_chunk(counts["prompt_tokens"], counts["completion_tokens"])
        chunks.insert(draw(st.sampled_from([len(chunks), max(0, len(chunks) - 1)])), usage)
    return [*chunks, *draw(st.sampled_from([["[DONE]"], []]))]


def merged(message: Json) -> Json:
    """A message with its blocks of one kind together, as in a whole answer."""
    content = message["content"]
    thinking = [block for block in content if block["type"] == "thinking"]
    texts = [block for block in content if block["type"] == "text"]
    blocks: list[Json] = []
    if thinking:
        blocks.append({**thinking[0], "thinking": "".join(b["thinking"] for b in thinking)})
    if texts:
        blocks.append({**texts[0], "text": "".join(b["text"] for b in texts)})
    blocks += [block for block in content if block["type"] == "tool_use"]
    return {**message, "content": blocks}


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(place % (len(data) + 1) for place in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


@settings(max_examples=examples(100), deadline=None)
@given(answers(), st.lists(st.integers(0, 10_000), max_size=12))
def test_streamed_and_whole_answers_are_the_same_message(answer: Answer, cuts: list[int]) -> None:
    streamed = bench.streamed_message(*cut(sse(*answer.chunks), cuts))
    whole = bench.message(answer.whole)
    assert merged(streamed) == whole
    if answer.in_order:
        assert streamed == whole


@settings(max_examples=examples(30), deadline=None)
@given(answers(), st.lists(st.integers(0, 10_000), max_size=12))
def test_cuts_of_the_bytes_change_nothing_of_what_is_sent(answer: Answer, cuts: list[int]) -> None:
    data = sse(*answer.chunks)
    assert bench.stream(*cut(data, cuts)).data == bench.stream(data).data


@settings(max_examples=examples(30), deadline=None)
@given(answers(), st.data())
def test_stream_that_breaks_off_anywhere_never_looks_whole(
    answer: Answer, data: st.DataObject
) -> None:
    chunks = [c for c in answer.chunks if c != "[DONE]"]
    finish = next(
        number
        for number, payload in enumerate(chunks)
        if isinstance(payload, dict) and payload["choices"]
        and payload["choices"][0]["finish_reason"]
    )  # fmt: skip
    whole = sse(*chunks[: finish + 1])
    end = data.draw(st.integers(0, len(whole) - 3))  # before the last brace of the finish chunk
    result = bench.stream(whole[:end])
    assert result.error["type"] == "api_error"
    assert "message_delta" not in result.kinds


# The official client, over a transport that is us


def client_for(body: bytes, content_type: list[tuple[str, str]], status: int = 200) -> Any:
    """The official client, whose server is this surface before an engine that answers `body`."""

    def serve(request: httpx2.Request) -> httpx2.Response:
        exchange = bench.decode(request.content)
        relay = exchange.relay
        head = relay.head(status, content_type)
        pieces = cut(body, list(range(0, len(body), 5)))
        if head is None:
            for piece in pieces:
                relay.data(piece)
            document = (relay.ending or relay.end()).document
            assert document is not None
            return httpx2.Response(
                document.status, headers=list(document.headers), content=document.body
            )

        def events() -> Iterator[bytes]:
            yield relay.keep_alive()
            for piece in pieces:
                yield relay.data(piece)
                if relay.ending is not None:
                    break
                yield relay.keep_alive()
            yield (relay.ending or relay.end()).data

        return httpx2.Response(head.status, headers=list(head.headers), content=events())

    return anthropic.Anthropic(
        api_key="k",
        base_url="http://door/llm",
        max_retries=0,
        http_client=anthropic.DefaultHttpxClient(transport=httpx2.MockTransport(serve)),
    )


QUESTION: Any = {
    "model": "claude-x",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "hi"}],
}
CHUNKS: list[Json | str] = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning": "why"}),
    chunk({"content": "渐🙂"}),
    chunk(call_delta(0, "c0", "f", '{"a":')),
    chunk(call_delta(1, "c1", "g", "")),
    chunk(call_delta(0, arguments="1}")),
    chunk(call_delta(1, arguments='{"b":2}')),
    chunk({}, "tool_calls"),
    usage_chunk(),
    "[DONE]",
]
WHOLE = completion(
    {
        "reasoning": "why",
        "content": "渐🙂",
        "tool_calls": [
            {"id": "c0", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "c1", "function": {"name": "g", "arguments": '{"b":2}'}},
        ],
    },
    "tool_calls",
)


def test_official_client_reads_the_same_message_either_way() -> None:
    with client_for(json.dumps(WHOLE).encode(), JSON) as client:
        whole = client.messages.create(**QUESTION)
    with (
        client_for(sse(*CHUNKS), EVENT_STREAM) as client,
        client.messages.stream(**QUESTION) as stream,
    ):
        streamed = stream.get_final_message()
    assert validated(streamed.to_dict()) == validated(whole.to_dict())
    assert whole._request_id == "req_r1"
    assert whole.stop_reason == "tool_use"


def test_official_client_raises_on_a_stream_that_breaks_off() -> None:
    with client_for(sse(*CHUNKS[:4]), EVENT_STREAM) as client:
        stream = client.messages.create(stream=True, **QUESTION)
        with pytest.raises(anthropic.APIStatusError, match="api_error"):
            list(stream)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (400, b'{"error": {"message": "bad"}}', anthropic.BadRequestError),
        (401, b'{"error": "Unauthorized"}', anthropic.AuthenticationError),
        (404, b'{"error": {"message": "no"}}', anthropic.NotFoundError),
        (429, b'{"error": "busy"}', anthropic.RateLimitError),
        (500, b"", anthropic.InternalServerError),
    ],
)
def test_official_client_raises_the_right_class(
    status: int, body: bytes, error: type[Exception]
) -> None:
    with client_for(body, JSON, status) as client, pytest.raises(error):
        client.messages.create(**QUESTION)
