"""Nested JSON, wherever it stands and however deep it is: an answer, and no crash."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from anthropic_bench import COUNT_TOKENS, HI, MESSAGES, bench, call_delta, chunk, completion, sse

from tornado_frontdoor.core.catalog import Catalog, Target
from tornado_frontdoor.core.decisions import Outcome
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.surfaces.base import (
    Refused,
    Surface,
    SurfaceRequest,
)
from tornado_frontdoor.surfaces.openai import OpenAISurface
from tornado_frontdoor.surfaces.weight import CHAT

HERE = "HERE"
CALL = {"type": "tool_use", "id": "a", "name": "get", "input": {"x": HERE}}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}
TOOL = {"name": "get", "input_schema": {"type": "object", "x": HERE}}
ASKS: dict[str, dict[str, Any]] = {
    "metadata": {"metadata": {"user_id": "u", "x": HERE}},
    "tool": {"tools": [TOOL]},
    "example": {"tools": [TOOL | {"input_schema": {}, "input_examples": [{"x": HERE}]}]},
    "call": {"messages": [*HI, {"role": "assistant", "content": [CALL]}, RESULT]},
    "content": {"messages": [{"role": "user", "content": HERE}]},
    "block": {"messages": [{"role": "user", "content": [{"type": "text", "text": HERE}]}]},
    "schema": {"output_format": {"type": "json_schema", "schema": {"x": HERE}}},
    "choice": {"tools": [TOOL | {"input_schema": {}}], "tool_choice": {"type": HERE}},
    "steered": {"request_id": "r", "x": HERE},
    "keep alive": {"keep_alive": HERE},
    "model": {"model": HERE},
    "choices": {"n": HERE},
}
NESTS: dict[str, Callable[[int], str]] = {
    "lists": lambda depth: "[" * depth + "]" * depth,
    "objects": lambda depth: '{"a":' * depth + "1" + "}" * depth,
}


def deepest(nest: Callable[[int], str]) -> int:
    """How deep a nest can be read here: what comes then depends on the stack."""
    read, too_deep = 1, 1_000_000
    while too_deep - read > 1:
        depth = (read + too_deep) // 2
        try:
            json.loads(nest(depth))
            read = depth
        except RecursionError:
            too_deep = depth
    return read


def nests(nest: Callable[[int], str]) -> Iterator[str]:
    """Nests from where they can be read and written to where they cannot be read."""
    most = deepest(nest)
    for depth in range(most - 16, most + 2):
        yield nest(depth)


def is_refused(surface: Surface, path: str, body: str, target: Target) -> bool:
    """Whether a body is refused, as a client's fault and in time, rather than decoded."""
    call = SurfaceRequest(surface.route("POST", path), "", {}, body.encode(), "r1")
    try:
        surface.decode(call, Catalog([target]))
    except Refused as refused:
        status = surface.refuse(refused.refusal, "r1").status
    else:
        return False
    assert status == 400
    return True


def check_nests(path: str, ask: dict[str, Any], nest: Callable[[int], str]) -> None:
    target = Target(
        model="Reasoner",
        served_name="reasoning",
        upstream=UpstreamKey("gpu"),
        anthropic="native" if path == "native" else "translate",
    )
    path = MESSAGES if path == "native" else path
    surface: Surface = bench.surface if path.startswith("/llm") else OpenAISurface()
    question = json.dumps(bench.question(model="Reasoner") | ask).replace(f'"{HERE}"', "%s")
    for nested in nests(nest):
        is_refused(surface, path, question % nested, target)
    assert is_refused(surface, path, question % nest(100_000), target)


@pytest.mark.parametrize(
    ("path", "ask"),
    [
        (CHAT, "steered"),
        (CHAT, "choices"),
        (MESSAGES, "metadata"),
        (MESSAGES, "tool"),
        (MESSAGES, "example"),
        (MESSAGES, "call"),
        (MESSAGES, "choice"),
        (COUNT_TOKENS, "tool"),
        ("native", "metadata"),
    ],
)
def test_a_nest_is_sent_on_or_refused_however_deep(path: str, ask: str) -> None:
    check_nests(path, ASKS[ask], NESTS["lists"])


@pytest.mark.slow
@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
@pytest.mark.parametrize("path", [CHAT, "/tokenize", MESSAGES, COUNT_TOKENS, "native"])
def test_a_nest_anywhere_is_sent_on_or_refused(
    path: str, ask: dict[str, Any], nest: Callable[[int], str]
) -> None:
    check_nests(path, ask, nest)


@pytest.mark.parametrize("ask", ["metadata", "tool", "call", "schema"])
def test_a_nest_that_engines_can_read_is_sent_on(ask: str) -> None:
    question = json.dumps(bench.question() | ASKS[ask]).replace(f'"{HERE}"', "%s")
    sent = bench.decode((question % NESTS["objects"](200)).encode()).request.body
    assert isinstance(sent, bytes)
    assert json.loads(sent)


ENGINES: dict[str, bytes] = {
    "a call": json.dumps(
        completion({"tool_calls": [{"id": "a", "function": {"name": "get", "arguments": HERE}}]})
    ).encode(),
    "an error": json.dumps({"error": {"message": HERE}}).encode(),
    "a message": json.dumps(
        {"type": "message", "stop_reason": "end_turn", "content": HERE, "usage": {}}
    ).encode(),
}


@pytest.mark.parametrize("whole", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("anthropic", ["translate", "native"])
@pytest.mark.parametrize("status", [200, 500])
def test_an_engine_that_answers_with_a_nest_is_answered_for(
    whole: bytes, anthropic: str, status: int
) -> None:
    for nested in nests(NESTS["lists"]):
        body = whole.replace(b'"HERE"', nested.encode())
        document, _ = bench.answer(body, status=status, anthropic=anthropic)
        assert document.status in (200, 500, 502)


STREAMS: dict[str, bytes] = {
    "arguments": sse(chunk(call_delta(0, "a", "get", HERE))),
    "error": sse({"error": {"message": HERE}}),
    "start": b"event: message_start\n" + sse({"type": "message_start", "message": {"x": HERE}}),
    "delta": b"event: message_delta\n" + sse({"type": "message_delta", "delta": {"x": HERE}}),
}


@pytest.mark.parametrize("frame", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("anthropic", ["translate", "native"])
def test_a_nest_within_a_stream_ends_it_with_an_event(frame: bytes, anthropic: str) -> None:
    for nested in nests(NESTS["lists"]):
        piece = frame.replace(b'"HERE"', nested.encode())
        streamed = bench.stream(piece, anthropic=anthropic, traits={"tool_args": "buffer"})
        assert streamed.ending.outcome is Outcome.UPSTREAM_ERROR
        assert b"event: error\n" in streamed.data
