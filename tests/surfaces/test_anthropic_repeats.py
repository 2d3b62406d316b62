"""Chunks that go on as they are written come to the same events as if each were read."""

import json
from itertools import count, pairwise
from random import Random
from typing import Any

import pytest
from depth import seeds

from tornado_frontdoor.surfaces.anthropic.relays import StreamRelay
from tornado_frontdoor.surfaces.anthropic.repeats import PATIENCE, Repeats
from tornado_frontdoor.surfaces.anthropic.response import Asked
from tornado_frontdoor.surfaces.anthropic.stream import MessageStream

SEEDS = seeds("0-149")
HEAD = [("content-type", "text/event-stream")]
TEXTS = [
    " word", "a", "", '"', "\\", "\\u0041", "\n", "\t", "\x7f", "\x00", "é", "漢字", "😀",
    "\ud800", "\u2028", '", "content": "', "content", "stop", "x1", "}", "null", "a word", " ",
]  # fmt: skip
FIELDS: list[dict[str, Any]] = [
    {}, {}, {},
    {"logprobs": None, "finish_reason": None},
    {"finish_reason": None, "token_ids": [1, 2]},
    {"finish_reason": "stop"},
    {"logprobs": {"content": [{"token": " word"}]}},
]  # fmt: skip


def relay(*, reads_all: bool, hides: bool) -> Any:
    numbers = count()
    asked = Asked("m", "m", "req_1", lambda: str(next(numbers)), hides_thinking=hides)
    machine = MessageStream(asked)
    if reads_all:
        machine.again = lambda _: b""  # type: ignore[method-assign]
    made = StreamRelay(asked, machine)
    made.head(200, HEAD)
    return made


def delta_of(random: Random) -> dict[str, Any]:  # noqa: PLR0911 - one for each form
    text = random.choice(TEXTS)
    match random.randrange(12):
        case 0:
            return {"reasoning": text}
        case 1:
            return {"reasoning_content": text}
        case 2:
            return {"reasoning": text, "reasoning_content": text, "content": None}
        case 3:
            return {"content": text, "reasoning": random.choice(TEXTS)}
        case 4:
            function = {"name": "f", "arguments": random.choice(["{", "{}"])}
            call = {"index": 0, "id": "c", "function": function}
            return {"tool_calls": [call]} if random.random() < 0.5 else {"content": text}
        case 5:
            return {"role": "assistant", "content": text}
        case 6:
            return {"content": text, "tool_calls": None}
        case _:
            return {"content": text}


def chunks_of(random: Random) -> list[bytes]:
    """Return a stream: mostly one form, with all that can come between."""
    form = random.choice([0, 1, 2])
    field = random.choice(FIELDS)
    chunks: list[bytes] = []
    for _ in range(random.randint(1, 30)):
        choice = {"index": 0, "delta": delta_of(random), **field}
        if random.random() < 0.1:
            choice |= random.choice(FIELDS)
        chunk: dict[str, Any] = {"id": "x1", "model": "stop", "choices": [choice]}
        if random.random() < 0.1:
            chunk["usage"] = {"prompt_tokens": 7, "completion_tokens": random.randrange(99)}
        ascii_only = random.random() < 0.3
        spaces = (", ", ": ") if form == 1 else (",", ":")
        data = json.dumps(chunk, ensure_ascii=ascii_only, separators=spaces)
        raw = data.encode("utf-8", "surrogatepass")
        if random.random() < 0.03:
            raw = raw.replace(b"word", b"wo\xffrd")
        if random.random() < 0.03:
            raw = raw.replace(b'"content"', b'"content":"first","content"')
        end = b"\r\n\r\n" if form == 2 and random.random() < 0.2 else b"\n\n"
        frame = b"data: " + raw + end
        if random.random() < 0.03:
            frame = random.choice([b": note\n\n", b"event: error\n", b"\n", b"data: \n\n"])
        chunks.append(frame)
    raw = b"".join(chunks)
    if random.random() < 0.2:  # cut anywhere
        edges = sorted({0, len(raw), *(random.randrange(len(raw) + 1) for _ in range(9))})
        chunks = [raw[a:b] for a, b in pairwise(edges)]
    elif random.random() < 0.2:  # two at once
        chunks = [b"".join(chunks[at : at + 2]) for at in range(0, len(chunks), 2)]
    return chunks


@pytest.mark.parametrize("seed", SEEDS)
def test_any_stream_comes_to_the_same_events_as_if_each_chunk_were_read(seed: int) -> None:
    random = Random(seed)
    chunks, hides = chunks_of(random), random.random() < 0.2
    quick = relay(reads_all=False, hides=hides)
    slow = relay(reads_all=True, hides=hides)
    for chunk in chunks:
        assert quick.data(chunk) == slow.data(chunk), f"replay: FRONTDOOR_SEEDS={seed}, {chunk!r}"
        assert quick.ending == slow.ending
    if quick.ending is None:
        assert quick.end() == slow.end()


def framed(chunk: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(chunk)}\n\n".encode()


def piece(text: str, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return framed({"id": "x", "choices": [choice]} | more)


def test_text_of_the_usual_stream_is_read_once() -> None:
    made = relay(reads_all=False, hides=False)
    read: list[str] = []
    take = made._machine.take

    def taking(frame: Any) -> bool:
        read.append(frame.data)
        return take(frame)

    made._machine.take = taking
    chunks = [piece(f" word{number}") for number in range(40)] + [piece(" é"), piece("漢")]
    for chunk in chunks:
        assert b'"text_delta"' in made.data(chunk)
    # The first begins the message, the second has the form, and two have escapes.
    assert len(read) == 2 + 2


def test_a_count_that_comes_again_counts_again() -> None:
    for reads_all in (True, False):
        made = relay(reads_all=reads_all, hides=False)
        for text, tokens in (("a", 1), ("b", 1), ("c", 1)):
            made.data(piece(text, usage={"completion_tokens": tokens}))
        made.data(piece("\u00e9", usage={"completion_tokens": 2}))  # escaped: has no form
        made.data(piece("d", usage={"completion_tokens": 1}))
        made.data(b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n')
        assert b'"output_tokens":1' in made.end().data


CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
BETWEEN = {
    "the name of an event": [b"event: error\n", piece("c")],
    "half a frame": [b"data: {}\n", piece("c"), piece("d")],
    "a call": [
        framed({"choices": [{"index": 0, "delta": {"tool_calls": [CALL]}}]}),
        *(piece(text) for text in ("c", " ", " ", "d")),
    ],
}


@pytest.mark.parametrize("what", BETWEEN)
def test_a_known_form_is_read_where_something_else_is_under_way(what: str) -> None:
    quick, slow = (relay(reads_all=reads_all, hides=False) for reads_all in (False, True))
    for chunk in [piece("a"), piece("b"), *BETWEEN[what]]:
        assert quick.data(chunk) == slow.data(chunk)
        assert quick.ending == slow.ending


FORMLESS = {
    "the text has an escape and its like stands elsewhere": (
        '{"id":"A","choices":[{"index":0,"delta":{"content":"\\u0041"}}]}',
        "A",
        '{"id":"B","choices":[{"index":0,"delta":{"content":"\\u0041"}}]}',
    ),
    "it has reasoning, too": (
        '{"choices":[{"index":0,"delta":{"content":"A","reasoning":"why"}}]}',
        "A",
        '{"choices":[{"index":0,"delta":{"content":"B","reasoning":"why"}}]}',
    ),
    "it has two lines": (
        '{"choices":[{"index":0,\n"delta":{"content":"A"}}]}',
        "A",
        '{"choices":[{"index":0,\n"delta":{"content":"B"}}]}',
    ),
    "a later text is in its place": (
        '{"choices":[{"index":0,"delta":{"content":"A","content":"C"}}]}',
        "A",
        '{"choices":[{"index":0,"delta":{"content":"B","content":"C"}}]}',
    ),
    "it counts": (
        '{"choices":[{"index":0,"delta":{"content":"A"}}],"usage":{"completion_tokens":1}}',
        "A",
        '{"choices":[{"index":0,"delta":{"content":"B"}}],"usage":{"completion_tokens":1}}',
    ),
}


@pytest.mark.parametrize("why", FORMLESS)
def test_a_chunk_that_brings_more_than_its_text_has_no_form(why: str) -> None:
    data, text, following = FORMLESS[why]
    repeats = Repeats()
    repeats.learn(data, text)
    assert repeats.text_in(f"data: {following}\n\n".encode()) == b""


def test_nobody_looks_for_a_form_for_ever() -> None:
    repeats = Repeats()
    for number in range(3 * PATIENCE):
        data = piece("a", created=number).decode()[6:-2]
        repeats.learn(data, "a")
    known = [bool(repeats.text_in(piece("b", created=number))) for number in range(3 * PATIENCE)]
    assert known.index(True) == PATIENCE - 1
    assert sum(known) == 1


@pytest.mark.parametrize(
    "text",
    [b'"a\\n"', b'"a"b"', b'""', b'"\xff"', b'"\x1f"', b'"a', b'a"', b'"', b"null", b'"a","b":"c"'],
)
def test_what_is_not_plainly_a_text_is_to_be_read(text: bytes) -> None:
    repeats = Repeats()
    repeats.learn(piece("xyz").decode()[6:-2], "xyz")
    assert repeats.text_in(piece("xyz")) == b'"xyz"'
    assert repeats.text_in(piece("xyz").replace(b'"xyz"', text)) == b""
