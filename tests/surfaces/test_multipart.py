"""Multipart bodies: what two servers could read in two ways is refused."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_frontdoor.surfaces.base import Refused
from tornado_frontdoor.surfaces.multipart import read_multipart, rewritten

TYPE = "multipart/form-data; boundary=xyz"
FILE = ('Content-Disposition: form-data; name="file"; filename="model"', b"\x00\r\n--xy\r\n" * 50)
MODEL = ('Content-Disposition: form-data; name="model"', b"OvisOCR2")


def multipart(*parts: tuple[str, bytes], boundary: str = "xyz") -> bytes:
    body = b"".join(
        f"--{boundary}\r\n{head}\r\n\r\n".encode() + content + b"\r\n" for head, content in parts
    )
    return body + f"--{boundary}--\r\n".encode()


def field(name: str, value: str) -> tuple[str, bytes]:
    return f'Content-Disposition: form-data; name="{name}"', value.encode()


def read(body: bytes, content_type: str = TYPE):
    return read_multipart(content_type, body, ("model", "n"), ("priority", "request_id"))


@pytest.mark.parametrize("parts", [(FILE, MODEL), (MODEL, FILE), (MODEL,)])
def test_the_model_field_is_found_wherever_it_stands(parts):
    body = multipart(*parts)
    found = read(body, 'multipart/form-data; boundary="xyz"')
    assert found.values == {"model": "OvisOCR2"}
    assert body[slice(*found.spans["model"])] == b"OvisOCR2"


def test_a_file_called_model_is_not_the_model():
    head = 'Content-Disposition: form-data; name="model"; filename="weights.bin"'
    assert read(multipart((head, b"x" * 2000))).values == {}


@pytest.mark.parametrize(
    "head",
    [
        'content-disposition: FORM-DATA; Name="model"',
        "Content-Disposition: form-data; name=model",
        'Content-Disposition: form-data ; name="model" ',
        'Content-Disposition: form-data; name="model"\r\nContent-Type: text/plain',
    ],
)
def test_a_field_is_known_in_every_spelling_that_engines_read(head):
    assert read(multipart((head, b"m"))).values == {"model": "m"}


@pytest.mark.parametrize(
    "head",
    [
        "Content-Disposition: form-data; name*=utf-8''model",
        'Content-Disposition: form-data; name="mod\\el"',
        'Content-Disposition: form-data; name="x"; name="model"',
        'Content-Disposition: form-data; name="x"\r\nContent-Disposition: form-data; name="model"',
        'Content-Disposition: form-data;\r\n name="model"',
        'Content-Disposition: form-data; name="x"\nContent-Disposition: form-data; name="model"',
        'Content-Disposition : form-data; name="model"',
        "Content-Disposition: attachment; filename=x",
        "Content-Type: text/plain",
    ],
)
def test_a_part_whose_name_could_be_read_in_two_ways_is_refused(head):
    with pytest.raises(Refused):
        read(multipart((head, b"m")))


@pytest.mark.parametrize("name", ["model", "n"])
def test_a_field_that_decides_is_refused_when_it_comes_twice(name):
    """Engines take the last one; a front door that took the first would look at the wrong one."""
    with pytest.raises(Refused) as refused:
        read(multipart(field(name, "1"), FILE, field(name, "2")))
    assert refused.value.refusal.param == name


def test_a_field_and_a_file_of_one_name_are_refused_too():
    head = 'Content-Disposition: form-data; name="model"; filename="x"'
    with pytest.raises(Refused):
        read(multipart(MODEL, (head, b"m")))


@pytest.mark.parametrize(
    ("content_type", "body", "says"),
    [
        ("multipart/form-data", multipart(MODEL), "one boundary"),
        ("multipart/form-data; boundary=xyz; boundary=abc", multipart(MODEL), "one boundary"),
        ("multipart/form-data; boundary*=xyz", multipart(MODEL), "one boundary"),
        ('multipart/form-data; boundary="xyz', multipart(MODEL), "one boundary"),
        (TYPE, multipart(MODEL)[:-20], "ends within a part"),
        (TYPE, multipart((MODEL[0], b"m" * 2000)), "model field is too long"),
        (TYPE, b"--xyzz\r\n" + multipart(MODEL), "more behind it"),
        (TYPE, b"hello", "does not hold its boundary"),
        (TYPE, b"--xyz\r\nno head\r\n--xyz--\r\n", "no head"),
    ],
)
def test_a_broken_multipart_body_is_refused(content_type, body, says):
    with pytest.raises(Refused) as refused:
        read(body, content_type)
    assert says in refused.value.refusal.detail


def test_unwanted_parts_go_and_the_others_stay_as_they_were():
    body = multipart(field("priority", "-1"), MODEL, FILE, field("request_id", "mine"))
    assert rewritten(body, read(body), None) == multipart(MODEL, FILE)
    assert rewritten(body, read(body), "ovis") == multipart(field("model", "ovis"), FILE)


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_has_no_model(body):
    with suppress(Refused):
        found = read_multipart("multipart/form-data; boundary=x", body, ("model",))
        named = None if not found.spans else body[slice(*found.spans["model"])]
        assert found.values.get("model") == (
            None if named is None else named.decode("utf-8", "replace").strip()
        )
