"""Where listeners bind and where upstreams are, read strictly.

Every function here raises ValueError with a message for an operator; none looks a name up.
"""

import re
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*\.?")
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)*/?")
_ANY_HOST = {"0.0.0.0", "::"}  # noqa: S104 - recognised here, bound only when the operator writes it
_HOST_LENGTH_MAX = 255


class Address(NamedTuple):
    """A host and a port to bind; port 0 lets the system choose one."""

    host: str
    """Lower case; an IPv6 address without its brackets."""
    port: int

    def __str__(self) -> str:
        return f"{_bracketed(self.host)}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def any_host(self) -> bool:
        """Whether it stands for every address of the machine."""
        return self.host in _ANY_HOST

    def overlaps(self, other: "Address") -> bool:
        """Whether both cannot be bound, or reach the same listener."""
        if self.port != other.port or self.port == 0:
            return False
        if self.any_host or other.any_host:
            return (self.any_host and other.any_host) or self.loopback or other.loopback
        return self.host == other.host or (self.loopback and other.loopback)


class Origin(NamedTuple):
    """What identifies an upstream. Two spellings of one address are equal."""

    scheme: str
    host: str
    port: int


def parse_address(text: str) -> Address:
    """Read `HOST:PORT` or `[IPV6]:PORT`."""
    host, port = split_port(text)
    if port is None:
        raise ValueError("must be HOST:PORT, and the port is missing")
    return Address(host_of(host), port_of(port, lowest=0))


def parse_origin(text: str) -> Origin:
    """Read `http://HOST[:PORT]` or `https://HOST[:PORT]`; a path tells no origins apart."""
    parts = urlsplit(text)  # raises ValueError for unbalanced brackets
    if parts.scheme not in DEFAULT_PORTS or not text[len(parts.scheme) :].startswith("://"):
        raise ValueError("must be http://HOST:PORT or https://HOST:PORT")
    if "@" in parts.netloc:
        raise ValueError("must not hold credentials: write only scheme, host and port")
    _check_prefix(parts.path)
    if "?" in text or "#" in text:
        raise ValueError("must not have a query or a fragment: write only scheme, host and port")
    host, port = split_port(parts.netloc)
    number = DEFAULT_PORTS[parts.scheme] if port is None else port_of(port, lowest=1)
    return Origin(parts.scheme, host_of(host).removesuffix("."), number)


def normalised_url(text: str) -> str:
    """Return the URL with scheme and host in lower case and no slash at its end."""
    origin = parse_origin(text)
    parts = urlsplit(text)
    bare = f"{origin.scheme}://{_bracketed(origin.host)}"
    written = parts.netloc.endswith(f":{origin.port}")
    return (f"{bare}:{origin.port}" if written else bare) + parts.path.rstrip("/")


def _check_prefix(path: str) -> None:
    """Raise ValueError for a path that requests cannot be put behind."""
    if path.rstrip("/").endswith("/v1"):
        raise ValueError(f"must not have {path} at its end: requests bring their own /v1")
    if not _PREFIX.fullmatch(path) or any(part in (".", "..") for part in path.split("/")):
        raise ValueError(f"must have a plain path before /v1, or none, not {path}")


def split_port(text: str) -> tuple[str, str | None]:
    """Return the host, without brackets, and what follows its colon; None: there is no colon."""
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError("must close the bracket of an IPv6 address: [::1]:8080")
        if ":" not in host:
            raise ValueError("must have an IPv6 address inside the brackets")
        return host, rest[1:] if rest else None
    host, colon, port = text.rpartition(":")
    if not colon:
        return text, None
    if ":" in host:
        raise ValueError("must have an IPv6 address in brackets: [::1]:8080")
    return host, port


def host_of(text: str) -> str:
    """Return a host in lower case; raises ValueError for what is none."""
    if not text:
        raise ValueError("must name a host; 0.0.0.0 stands for every address of this machine")
    try:
        return str(ip_address(text))
    except ValueError:
        host = text.lower()
    if ":" in host or len(host) > _HOST_LENGTH_MAX or not _HOST_NAME.fullmatch(host):
        raise ValueError(f"must name a host, and {text!r} is none")
    if host.replace(".", "").isdigit():
        raise ValueError(f"must name a host, and {text!r} is no IPv4 address")
    return host


def port_of(text: str, lowest: int) -> int:
    """Return a port; raises ValueError for what is none."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and lowest <= int(text) <= 65535):
        raise ValueError(f"must have a port from {lowest} to 65535, not {text!r}")
    return int(text)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
