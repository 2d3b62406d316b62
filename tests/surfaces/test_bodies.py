"""Bodies: the model is found, and only its bytes ever change."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_frontdoor.surfaces.base import Refused
from tornado_frontdoor.surfaces.bodies import (
    read_json,
    replace_model,
    with_model,
    without_fields,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(
    st.dictionaries(st.text(), json_values, max_size=6),
    st.integers(0, 3),
    st.booleans(),
)
def test_an_object_is_read_as_the_json_module_reads_it(fields, indent, ascii_only):
    body = json.dumps(fields, indent=indent or None, ensure_ascii=ascii_only).encode()
    assert read_json(body).fields == json.loads(body)


@given(st.text(), st.text(), st.dictionaries(st.text(), json_values, max_size=4))
def test_only_the_bytes_of_the_model_change(spelt, served, fields):
    before = json.dumps(fields | {"model": spelt}, ensure_ascii=False)
    written = json.dumps(spelt, ensure_ascii=False)
    marker = f'"model": {written}'
    expected = fields | {"model": served}
    changed = replace_model(before.encode(), served)
    assert json.loads(changed) == expected
    if before.count(marker) == 1:
        replaced = before.replace(marker, f'"model": {json.dumps(served, ensure_ascii=False)}')
        assert changed.decode() == replaced


def test_a_model_inside_of_a_message_is_left_alone():
    body = b'{ "messages":[{"model":"Other"}] ,"model" :\t"ME", "x":1.50}\n'
    assert replace_model(body, "me") == (
        b'{ "messages":[{"model":"Other"}] ,"model" :\t"me", "x":1.50}\n'
    )


def test_of_two_model_keys_both_change_so_that_no_engine_reads_the_wrong_one():
    body = b'{"model":"A","model":"B"}'
    assert replace_model(body, "c") == b'{"model":"c","model":"c"}'


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "ends early"),
        (b"   ", "ends early"),
        (b"[1]", "must be an object"),
        (b'"x"', "must be an object"),
        (b"{", "ends early"),
        (b'{"a"', "ends early"),
        (b'{"a":1', "ends early"),
        (b'{"a":1,}', "a key was expected"),
        (b'{"a" 1}', "':' was expected"),
        (b'{"a":1 "b":2}', "',' or '}' was expected"),
        (b'{"a":1} x', "more after the object"),
        (b'{"a":}', "Expecting value"),
        (b"nonsense", "Expecting value"),
        (b'{"a":"\xff"}', "not UTF-8"),
        (b'\xef\xbb\xbf{"a":1}', "not valid JSON"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"a":' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_what_is_wrong_with_a_body_is_said(body, says):
    with pytest.raises(Refused) as refused:
        read_json(body)
    assert says in refused.value.refusal.detail


@given(st.binary(max_size=60))
def test_garbage_is_refused_and_never_raises_anything_else(body):
    try:
        parsed = read_json(body)
    except Refused:
        return
    assert with_model(parsed, "x")


def test_members_are_left_out_and_the_others_stay_byte_for_byte():
    parsed = read_json(b'{"a" : 1.50, "b": [1, 2], "a": {"b":2} ,"c":"\\u00e9"}')
    assert without_fields(parsed, {"b"}) == b'{"a" : 1.50, "a": {"b":2}, "c":"\\u00e9"}'
    assert without_fields(parsed, {"a", "b", "c"}) == b"{}"
