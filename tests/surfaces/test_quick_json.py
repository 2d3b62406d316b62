"""JSON read quickly: the value, or the refusal, is the library's for whatever anybody writes."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_frontdoor.surfaces.base import Refused
from tornado_frontdoor.surfaces.bodies import read_json, replace_model
from tornado_frontdoor.surfaces.quick_json import (
    NOT_QUICK,
    decode,
    decode_to_encode,
    encode,
    loads,
)

ODD = [
    *('{"a":1,"a":2}', '{"n":18446744073709551616}', '{"n":-9223372036854775809}', '{"n":1e400}'),
    *('{"n":NaN}', '{"n":-Infinity}', '{"n":-0}', '{"n":-0.0}', '{"n":0.1e-400}', '{"n":1E5}'),
    *('{"s":"\\ud800"}', '{"s":"\\u0000"}', '{"s":"\x7f"}', '{"s":"\\/"}', "[1]", "1", '"a"', ""),
    *("{", "{}}", '{"a":}', '{"a":01}', '{"a":+1}', "{'a':1}", '{"a":1,}', '\ufeff{"a":1}', " {} "),
    *('{"s":"\t"}', '{"s":"\\x"}', "nul", '{"n":' + "1" * 5000 + "}", "[" * 3000 + "]" * 3000),
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def told(read: Any, text: str) -> object:
    """Return the value as Python writes it, or the kind of the error."""
    try:
        return repr(read(text))
    except (ValueError, RecursionError) as error:
        return type(error)


@pytest.mark.parametrize("text", ODD)
def test_odd_texts_are_read_or_refused_as_by_the_library(text: str) -> None:
    assert told(loads, text) == told(json.loads, text)


@given(VALUES, st.booleans())
def test_values_are_read_as_by_the_library(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    if ascii_only or not any("\ud800" <= c <= "\udfff" for c in text):
        assert told(loads, text) == told(json.loads, text)


def written(value: Any) -> bytes:
    """Return compact JSON by the library."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


@given(VALUES | st.sampled_from([1e16, -1e16, 9999999999999998.0, 1e-4, 9.9e-5, 1e22, 5e-324]))
def test_what_was_read_is_written_as_by_the_library(value: Any) -> None:
    text = json.dumps(value).encode()
    try:
        read = decode_to_encode(text)
    except NOT_QUICK:
        return
    assert encode([read]) == written([json.loads(text)])


@pytest.mark.parametrize("number", ["1e400", "-1e999", "NaN", "Infinity"])
def test_what_is_no_finite_number_is_never_read_to_be_written(number: str) -> None:
    with pytest.raises(NOT_QUICK):
        decode_to_encode(number.encode())


@given(st.text() | st.sampled_from(ODD), st.integers(0, 30), st.text(max_size=3))
def test_spoilt_texts_are_read_or_refused_as_by_the_library(text: str, at: int, put: str) -> None:
    spoilt = text[:at] + put + text[at:]
    assert told(loads, spoilt) == told(json.loads, spoilt)
    try:
        value = decode(spoilt)
    except NOT_QUICK:
        return
    assert repr(value) == repr(json.loads(spoilt))


def test_a_body_keeps_its_numbers_and_its_last_of_two_equal_keys() -> None:
    fields = read_json(b'{"seed":18446744073709551617,"t":NaN,"model":"a","model":"b"}').fields
    assert (fields["seed"], fields["model"]) == (1 << 64 | 1, "b")
    assert math.isnan(fields["t"])
    assert replace_model(b'{"model":"a", "model" : "b"}', "c") == b'{"model":"c", "model" : "c"}'


@pytest.mark.parametrize("body", [b"\xef\xbb\xbf{}", '{"a":1}'.encode("utf-16"), b'{"a":"\xff"}'])
def test_a_body_is_utf_8_without_a_mark(body: bytes) -> None:
    with pytest.raises(Refused):
        read_json(body)
