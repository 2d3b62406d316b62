"""Large bodies are read in small steps, and as the library reads them."""

import json
import random
from typing import Any

import pytest

from tornado_frontdoor.surfaces import patient_json
from tornado_frontdoor.surfaces.anthropic.fields import encode_request
from tornado_frontdoor.surfaces.base import Refused
from tornado_frontdoor.surfaces.bodies import read_json, with_model
from tornado_frontdoor.surfaces.patient_json import HUGE_BYTES, PatientReader, takes_long, write

PIECES = ["a", "é", "😀", '"', "\\", "/", "\n", "\x00", "\x7f", "\u2028", "\ud83d", "\ude00", "u"]


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut everywhere: what must stay together must do so at any place."""
    for name, most in {
        "STEP": 19,
        "SHOWN_BYTES": 13,
        "_SEGMENT_BYTES": 17,
        "_END_BYTES": 12,
    }.items():
        monkeypatch.setattr(patient_json, name, most)


def value_of(rng: random.Random, depth: int = 0) -> Any:
    kinds = ["text", "number", "constant", *(["list", "object"] if depth < 4 else [])]
    match rng.choice(kinds):
        case "text":
            return "".join(rng.choice(PIECES) for _ in range(rng.randrange(30)))
        case "number":
            return rng.choice([0, -1, 10**30, 1.5, -2.5e-7, 1e300, rng.randrange(10**6)])
        case "constant":
            return rng.choice([None, True, False])
        case "list":
            return [value_of(rng, depth + 1) for _ in range(rng.randrange(5))]
        case _:
            texts = [value_of(rng, 9) for _ in range(rng.randrange(5))]
            return {str(text): value_of(rng, depth + 1) for text in texts}


def as_sent(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def read(text: str) -> Any:
    """Read and write it, which puts back what was left out of long texts."""
    body = as_sent(text)
    reader = PatientReader(body)
    value, end = reader.raw_decode(reader.skip_blanks(0))
    if reader.skip_blanks(end) < len(body):
        raise ValueError("more")
    return json.loads(b"".join(reader.long_texts.restore(write(value))))


@pytest.mark.usefixtures("short_steps")
@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_whatever_is_written_is_read_as_the_library_reads_it(ensure_ascii: bool) -> None:
    rng = random.Random(5)
    for _ in range(2000):
        value = value_of(rng)
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=rng.choice([None, 3]))
        assert read(text) == json.loads(as_sent(text))
        assert json.loads(write(value)) == json.loads(json.dumps(value))


@pytest.mark.usefixtures("short_steps")
def test_whatever_is_cut_or_changed_is_refused_as_the_library_refuses_it() -> None:
    rng = random.Random(6)
    for _ in range(3000):
        text = list(json.dumps(value_of(rng)))
        for _ in range(rng.randrange(1, 3)):
            place = rng.randrange(len(text) + 1)
            text[place : place + rng.randrange(2)] = rng.choice(['"', "\\", "u", "1", "]", "", " "])
        broken = "".join(text)
        try:
            expected = json.loads(as_sent(broken))
        except ValueError:
            with pytest.raises((ValueError, IndexError)):
                read(broken)
        else:
            assert "inf" in repr(expected) or read(broken) == expected


def test_bodies_of_any_size_get_their_model_and_keep_every_other_byte() -> None:
    for filler in ("x", '\\"', "\\\\ud83d", "😀", "\\ud83d\\ude00", " "):
        text = '{"a":"%s", "model" : "m\\u0041", "b":[{"c":1}]}' % (filler * 1_100_000)
        parsed = read_json(text.encode())
        assert parsed.long_texts is not None
        assert parsed.fields["model"] == "mA"
        assert with_model(parsed, "new") == text.replace('"m\\u0041"', '"new"').encode()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
        (b'{"a":[' + b"1," * 500_001 + b"1]}", "more than 500000 values"),
        (b'{"a":' + b"9" * 100_000 + b', "b":[' + b"1," * 20_000 + b"1]}", "too long"),
        (b'{"a":[' + b"{}," * 60_001 + b"1]}", "more than 60000 objects and lists"),
        (b'{"a":"' + b"x" * 2_000_000 + b"\xff" + b'"}', "not UTF-8"),
        (b'{"a":"' + b"x" * 2_000_000, "not valid JSON"),
        (b'{"a":' + b" " * 2_000_000, "ends early"),
    ],
)
def test_what_is_too_much_or_broken_is_said(body: bytes, why: str) -> None:
    assert takes_long(body)
    with pytest.raises(Refused) as refused:
        read_json(body)
    assert why in refused.value.refusal.detail


def test_small_and_plain_bodies_are_read_at_once() -> None:
    assert not takes_long(b"[" * 60_000)
    assert not takes_long(b'{"a":"%b"}' % (b"x" * 500_000))
    assert takes_long(b'{"a":"%b"}' % (b"x" * 1_100_000))
    assert takes_long(b'{"a":[%b1]}' % (b"1," * 40_000))


LONG = [
    "a" * 5_000_000,
    "\\u00e9\\ud83d\\ude00" * 300_000,
    "\\\\" * 2_000_000 + "n",
    "é" * 1_000_001 + "😀",
    '\\"' * 1_000_000,
    "x" * 70_000,
]


@pytest.mark.parametrize("escaped", LONG, ids=range(len(LONG)))
def test_long_texts_reach_an_engine_whole_wherever_a_translation_puts_them(escaped: str) -> None:
    """Joined with others, and as JSON within JSON, as arguments of tools are."""
    body = f'{{"messages":[{" " * HUGE_BYTES}"{escaped}"]}}'.encode()
    text = json.loads(body)["messages"][0]
    read_body = read_json(body)
    assert read_body.long_texts is not None
    [shown] = read_body.fields["messages"]
    assert len(shown) < 3000
    assert shown[:16] == text[:16]
    assert shown[-1] == text[-1]
    inner = json.dumps({"a": shown, "b": [shown]}, ensure_ascii=False)
    sent = encode_request({"joined": f"<{shown}>\n{shown}", "inner": inner}, read_body)
    told = json.loads(sent)
    assert told["joined"] == f"<{text}>\n{text}"
    assert json.loads(told["inner"]) == {"a": text, "b": [text]}


def test_many_texts_are_short_ones_or_left_out_so_that_joining_them_takes_no_time() -> None:
    texts = [f"{number:06} " + "é" * 100 + "." * 400 for number in range(12_000)]
    body = json.dumps({"system": texts}, ensure_ascii=False).encode()
    read_body = read_json(body)
    shown = read_body.fields["system"]
    assert sum(map(len, shown)) < patient_json.MOST_KEPT_BYTES + 12_000 * 200
    told = json.loads(encode_request({"system": "\n".join(shown)}, read_body))
    assert told["system"] == "\n".join(texts)
