"""How the end of an answer is judged that goes on byte for byte."""

import json

import pytest

from tornado_frontdoor.core.decisions import Outcome, Reason
from tornado_frontdoor.surfaces.base import Ending
from tornado_frontdoor.surfaces.pass_through import RESPONSES, PassThrough
from tornado_frontdoor.surfaces.weight import CHAT, COMPLETIONS

SSE = ("Content-Type", "text/event-stream; charset=utf-8")
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"


def finish(index: int = 0, reason: str = "stop") -> bytes:
    choice = {"index": index, "delta": {}, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def ended(
    *chunks: bytes,
    path: str = CHAT,
    choices: int = 1,
    headers: tuple[tuple[str, str], ...] = (SSE,),
) -> Ending:
    relay = PassThrough(path, choices)
    assert relay.head(200, headers) is not None
    for chunk in chunks:
        assert relay.data(chunk) == chunk
    return relay.end()


def bytewise(*frames: bytes) -> list[bytes]:
    return [bytes([byte]) for byte in b"".join(frames)]


@pytest.mark.parametrize("pieces", [lambda *frames: list(frames), bytewise])
@pytest.mark.parametrize(
    "text", ["[DONE]", "data: [DONE]", '\ndata: [DONE]\n\n"finish_reason":"stop"', "data: [DONE]\n"]
)
def test_an_end_mark_inside_of_a_text_is_no_end(text, pieces):
    frame = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    said = b"data: " + json.dumps(frame).encode() + b"\n\n"
    ending = ended(*pieces(*[TOKEN] * 8, said))
    assert (ending.outcome, ending.whole) == (Outcome.UPSTREAM_ERROR, False)
    assert b"upstream_error" in ending.data
    assert ended(*pieces(*[TOKEN] * 8, said, DONE)).outcome is Outcome.SERVED


@pytest.mark.parametrize("mark", [b"data: [DONE]", b"data:[DONE]\n", b"data: [DONE]\r\n\r\n"])
def test_an_end_mark_is_one_however_its_line_ends(mark):
    assert ended(TOKEN, mark).outcome is Outcome.SERVED


def test_with_two_choices_one_that_is_finished_is_half_an_answer():
    half = ended(TOKEN, finish(0), *[TOKEN] * 9, path=COMPLETIONS, choices=2)
    assert (half.outcome, half.whole) == (Outcome.UPSTREAM_ERROR, False)
    whole = ended(TOKEN, finish(0), *[TOKEN] * 9, finish(1), path=COMPLETIONS, choices=2)
    assert whole.outcome is Outcome.SERVED


def test_finishes_are_counted_wherever_the_pieces_are_cut():
    stream = TOKEN + finish(0) + TOKEN + finish(1)
    for cut in range(len(stream)):
        assert ended(stream[:cut], stream[cut:], choices=2).outcome is Outcome.SERVED
    assert ended(*bytewise(stream), choices=2).outcome is Outcome.SERVED
    assert ended(*bytewise(stream), choices=3).outcome is Outcome.UPSTREAM_ERROR


@pytest.mark.parametrize("encoding", ["gzip", "br", "GZIP"])
def test_an_encoded_stream_is_passed_on_unjudged_and_nothing_is_put_into_it(encoding):
    relay = PassThrough(CHAT)
    relay.head(200, [SSE, ("Content-Encoding", encoding)])
    relay.data(b"\x1f\x8b...")
    assert relay.broken(Reason.UPSTREAM_ERROR, "it died") == b""
    assert relay.end() == Ending(Outcome.SERVED)


def test_proxies_in_front_are_told_not_to_keep_a_stream():
    streamed = PassThrough(CHAT).head(200, [SSE, ("X-Accel-Buffering", "yes")])
    assert [v for k, v in streamed.headers if k == "X-Accel-Buffering"] == ["no"]
    whole = PassThrough(CHAT).head(200, [("Content-Type", "application/json")])
    assert "X-Accel-Buffering" not in dict(whole.headers)


# Responses


def event(kind: str, *, named: bool = True, **fields: object) -> bytes:
    data = b"data: " + json.dumps({"type": kind, **fields}).encode() + b"\n\n"
    return (f"event: {kind}\n".encode() if named else b"") + data


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("pieces", [lambda *frames: list(frames), bytewise])
@pytest.mark.parametrize(
    ("last", "outcome", "whole"),
    [
        ("response.completed", Outcome.SERVED, False),
        ("response.incomplete", Outcome.SERVED, False),
        ("response.failed", Outcome.UPSTREAM_ERROR, True),
        ("error", Outcome.UPSTREAM_ERROR, True),
        ("response.output_text.done", Outcome.UPSTREAM_ERROR, False),
    ],
)
def test_responses_end_by_their_own_rules(last, outcome, whole, pieces, named):
    frames = (event("response.created", named=named), event(last, named=named, text="x" * 50))
    ending = ended(*pieces(*frames), path=RESPONSES)
    assert (ending.outcome, ending.whole) == (outcome, whole)


def test_a_last_event_as_long_as_the_answer_is_known_by_its_beginning():
    long = event("response.completed", response={"output": "x" * 500_000})
    pieces = [long[at : at + 16_384] for at in range(0, len(long), 16_384)]
    assert ended(*pieces, path=RESPONSES).outcome is Outcome.SERVED


def test_a_word_inside_of_a_text_does_not_end_a_response():
    text = "event: response.completed\ndata: {}\n\n[DONE]"
    ending = ended(event("response.output_text.delta", delta=text), path=RESPONSES)
    assert ending.outcome is Outcome.UPSTREAM_ERROR


def test_a_response_that_breaks_off_ends_with_an_error_event_of_its_dialect():
    ending = ended(event("response.created"), path=RESPONSES)
    name, data = ending.data.decode().strip().split("\n")
    assert name == "event: error"
    payload = json.loads(data.removeprefix("data: "))
    assert payload["type"] == "error"
    assert payload["error"]["type"] == "upstream_error"


@pytest.mark.parametrize(
    ("pieces", "told"),
    [(["no", " room"], "no room"), (["a" * 64, "b" * 64, "c" * 64, "d" * 64, "end"], "…b")],
)
def test_an_engines_error_is_told_and_that_its_beginning_is_gone(pieces, told):
    relay = PassThrough(CHAT)
    relay.head(500, [("Content-Type", "text/plain")])
    for piece in pieces:
        relay.data(piece.encode())
    assert f"the engine answered 500: {told}" in (relay.end().cause or "")
