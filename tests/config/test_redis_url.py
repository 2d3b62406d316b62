"""`cluster.redis`: what redis-py passes over, or reads as something else, is a fault."""

from pathlib import Path

import pytest

from tornado_frontdoor.config import ConfigError, load
from tornado_frontdoor.config.changes import changes, in_force

FILE = """
[upstreams.a]
url = "http://a:1"
[models.a]
upstream = "a"
[cluster]
redis = {redis!r}
"""


def read(folder: Path, url: object) -> str:
    """Return the fault of a URL, without file and key; empty: there is none."""
    path = folder / "frontdoor.toml"
    path.write_text(FILE.format(redis=url))
    try:
        load(path)
    except ConfigError as error:
        (fault,) = error.faults
        assert fault.key == "cluster.redis"
        return fault.message
    return ""


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://h/",
        "redis://10.0.0.1:6379/15",
        "redis://[::1]:6379/1",
        "redis://h:6379?db=2",
        "redis://:secret@h:6379/0",
        "rediss://user:se%2Fcret@h:6380/0?ssl_ca_certs=/etc/ca.pem&ssl_check_hostname=false",
        "unix:///run/redis.sock",
        "unix://user:secret@/run/redis.sock?db=3",
    ],
)
def test_a_url_that_is_what_it_seems_is_taken(tmp_path: Path, url: str) -> None:
    assert read(tmp_path, url) == ""


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://h/abc", 'the number of a database, from 0 on, not "abc"'),
        ("redis://h/1/2", 'the number of a database, from 0 on, not "1/2"'),
        ("redis://h/-1", "the number of a database"),
        ("redis://h/\N{SUPERSCRIPT TWO}", "the number of a database"),
        ("redis://h/1234567890", "the number of a database"),
        ("redis://h?db=", "a value for db"),
        ("redis://h?db=x", "the number of a database"),
        ("redis://h/0?db=1", "its database once"),
        ("redis://h?db=1&db=2", "db once"),
        ("redis://h?db", "a query of the form ?NAME=VALUE"),
        ("redis://h?bd=1", '"bd" in its query; there may be db'),
        ("redis://h?socket_timeout=1", '"socket_timeout" in its query; there may be db'),
        ("redis://h?ssl_ca_certs=/x", "TLS is had by rediss://"),
        ("rediss://h?ssl_cert_reqs=maybe", "ssl_cert_reqs=required or optional or none"),
        ("redis://h:0/0", "a port from 1 to 65535"),
        ("redis://h:65536/0", "a port from 1 to 65535"),
        ("redis://h:/0", "a port from 1 to 65535"),
        ("redis://h:six/0", "a port from 1 to 65535"),
        ("redis:///0", "must name a host"),
        ("redis://::1/0", "an IPv6 address in brackets"),
        ("redis://a b/0", "no blanks"),
        ("unix://run/redis.sock", "a socket by its whole path"),
        ("unix://", "a socket by its whole path"),
        ("http://h", "must be redis://HOST:PORT/DATABASE"),
        ("h:6379", "must be redis://HOST:PORT/DATABASE"),
        (6379, "must be a text of the form redis://"),
    ],
)
def test_a_url_that_is_not_what_it_seems_is_a_fault(tmp_path: Path, url: object, says: str) -> None:
    assert says in read(tmp_path, url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://hunter2@h", "a password behind the user"),
        ("redis://hunter2:@h", "a password behind the user"),
        ("redis://:hunter2#x@h", "written %23"),
        ("redis://:hunter2/x@h", "written %2F"),
        ("redis://u:hunter2?x@h", "written %2F and %3F"),
        ("redis://:hunter2@x@h", "written %40"),
        ("redis://:hunter2 x@h", "no blanks"),
        ("redis://:hunter2@h:x/y", "a port from"),
        ("redis://:hunter2@/0", "must name a host"),
        ("redis://:hunter2℀@h", "%XX"),
        ("redis://:hunter2]@h", "%5D"),
        ("redis://default:hunter2", "a port from 1 to 65535 behind the host"),
        ("redis://:hunter2@h/0" + "0" * 2000, "the number of a database"),
    ],
)
def test_no_fault_shows_a_password(tmp_path: Path, url: str, says: str) -> None:
    told = read(tmp_path, url)
    assert says in told
    assert "hunter2" not in told


def test_what_is_in_force_and_what_changed_shows_no_password(tmp_path: Path) -> None:
    def settings(name: str, url: str):
        path = tmp_path / name
        path.write_text(FILE.format(redis=url))
        return load(path)

    old = settings("old", "rediss://user:hunter2@h/0?ssl_password=hunter2")
    new = settings("new", "redis://:hunter3@other/0")
    told = [str(line) for line in (*in_force(old), *in_force(new), *changes(old, new))]
    assert any("rediss://h/0" in line for line in told)
    assert 'cluster.redis: "rediss://h/0" -> "redis://other/0"' in told
    assert not [line for line in told if "hunter" in line or "user:" in line]
