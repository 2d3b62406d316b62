"""Addresses are read strictly, and two spellings of one address are one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_frontdoor.config.address import (
    Address,
    normalised_url,
    parse_address,
    parse_origin,
)


@pytest.mark.parametrize(
    ("text", "address", "loopback"),
    [
        ("127.0.0.1:8080", Address("127.0.0.1", 8080), True),
        ("127.1.2.3:1", Address("127.1.2.3", 1), True),
        ("localhost:0", Address("localhost", 0), True),
        ("LOCALHOST:1", Address("localhost", 1), True),
        ("[::1]:8080", Address("::1", 8080), True),
        ("[0:0:0:0:0:0:0:1]:8080", Address("::1", 8080), True),
        ("[::]:80", Address("::", 80), False),
        ("0.0.0.0:65535", Address("0.0.0.0", 65535), False),  # noqa: S104 - read, not bound
        ("vllm_text.ns:80", Address("vllm_text.ns", 80), False),
        ("localhost.evil:80", Address("localhost.evil", 80), False),
    ],
)
def test_listener_is_read(text: str, address: Address, loopback: bool) -> None:
    assert parse_address(text) == address
    assert address.loopback is loopback


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        ":80",
        "host",
        "host:",
        "host:x",
        "host:-1",
        "host:65536",
        "host:8\u0660",
        "host:080808",
        "::1:80",
        "[::1]",
        "[::1]80",
        "[::1:80",
        "[host]:80",
        "[]:80",
        "a b:80",
        "a..b:80",
        "-a:80",
        "999.1.1.1:80",
        "1:80",
        "h\u00f6st:80",
        "http://host:80",
    ],
)
def test_what_is_no_listener_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must "):
        parse_address(text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://host", "http://host:80"),
        ("https://host", "https://host:443/"),
        ("http://HOST:80", "HTTP://host/"),
        ("http://host.:80", "http://host:80"),
        ("http://[::1]:80", "http://[0:0::1]"),
    ],
)
def test_two_spellings_of_one_origin_are_equal(one: str, other: str) -> None:
    assert parse_origin(one) == parse_origin(other)


def test_scheme_and_port_tell_origins_apart() -> None:
    origins = ["http://h", "https://h", "http://h:443", "https://h:80", "http://h:81"]
    assert len({parse_origin(url) for url in origins}) == len(origins)


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("HTTP://Host/", "http://host"),
        ("http://host:80", "http://host:80"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
        ("http://[0:0::1]", "http://[::1]"),
    ],
)
def test_url_is_normalised_and_keeps_the_port_as_written(url: str, normal: str) -> None:
    assert normalised_url(url) == normal


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("http://GW:80/openai/", "http://gw:80/openai"),
        ("https://gw/serving/Models", "https://gw/serving/Models"),
        ("http://gw:8000/", "http://gw:8000"),
    ],
)
def test_a_path_before_v1_is_kept_and_tells_no_origins_apart(url: str, normal: str) -> None:
    assert normalised_url(url) == normal
    assert parse_origin(url) == parse_origin(normal.partition("/")[0] + "//" + url.split("/")[2])


@pytest.mark.parametrize("path", ["/v1", "/openai/v1/", "/a/../b", "//x", "/%2e", "/a b"])
def test_a_path_that_requests_cannot_be_put_behind_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="must"):
        normalised_url(f"http://gw{path}")


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("127.0.0.1:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "127.0.0.1:2", False),
        ("127.0.0.1:1", "localhost:1", True),
        ("0.0.0.0:1", "127.0.0.1:1", True),
        ("0.0.0.0:1", "[::]:1", True),
        ("0.0.0.0:1", "engine:1", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
    ],
)
def test_listeners_overlap_where_one_would_take_the_others_place(
    one: str, other: str, overlap: bool
) -> None:
    assert parse_address(one).overlaps(parse_address(other)) is overlap
    assert parse_address(other).overlaps(parse_address(one)) is overlap


@given(st.text(max_size=40) | st.text(alphabet="htps:/[]1.@?#%x ", max_size=40))
def test_any_text_is_read_or_refused_with_a_reason(text: str) -> None:
    for read in (parse_address, parse_origin, normalised_url):
        try:
            read(text)
        except ValueError as error:
            assert str(error)  # noqa: PT017 - either outcome is fine, a silent one is not


@given(st.sampled_from(["h", "a.b", "127.0.0.1", "::1", "::"]), st.integers(0, 65535))
def test_address_reads_back_what_it_writes(host: str, port: int) -> None:
    assert parse_address(str(Address(host, port))) == Address(host, port)
