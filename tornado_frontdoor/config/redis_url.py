"""The address of a Redis, read strictly: what the library passes over is another database or host.

No message shows a user or a password.
"""

from urllib.parse import parse_qsl, urlsplit

from tornado_frontdoor.config.address import host_of, port_of, split_port
from tornado_frontdoor.config.faults import did_you_mean, shown

DEFAULT_PORT = 6379
_SCHEMES = ("redis", "rediss", "unix")
_FORMS = "redis://HOST:PORT/DATABASE, rediss://HOST:PORT/DATABASE or unix://PATH?db=DATABASE"
_TLS_OPTIONS = (
    *("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password"),
    *("ssl_cert_reqs", "ssl_check_hostname", "ssl_ciphers"),
)
_CERTIFICATES = ("required", "optional", "none")
_DATABASE_DIGITS = 9


def checked_redis_url(text: str) -> str:
    """Return the URL; raises ValueError, for an operator, where it is not what it seems to be."""
    if not text.isprintable() or " " in text:
        raise ValueError("must have no blanks and no control characters")
    try:
        parts = urlsplit(text)
    except ValueError as error:  # its words show what stands there, a password too
        raise ValueError(
            "must be written with plain letters: in a password [ is %5B and ] is %5D, and other "
            "characters are %XX for each byte of their UTF-8"
        ) from error
    if parts.scheme not in _SCHEMES or not text.startswith(f"{parts.scheme}://"):
        raise ValueError(f"must be {_FORMS}")
    if "#" in text:
        raise ValueError("must have no #: in a password it is written %23")
    user, _, where = parts.netloc.rpartition("@")
    _check_user(user)
    if "@" not in parts.netloc and "@" in text and parts.scheme != "unix":
        raise ValueError("must have no / and no ? in a password: they are written %2F and %3F")
    if parts.scheme == "unix":
        if where or not parts.path.strip("/"):
            raise ValueError("must name a socket by its whole path: unix:///run/redis.sock")
        in_path = ""
    else:
        host, port = split_port(where)
        if not host:
            raise ValueError(f"must name a host: {_FORMS}")
        host_of(host)
        if port is not None:
            _check_port(port)
        in_path = parts.path.removeprefix("/")
    _check_query(parts.query, parts.scheme, in_path)
    return text


def shown_redis_url(text: str) -> str:
    """Return a URL as it may be shown: without user, password and query."""
    parts = urlsplit(text)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _check_port(text: str) -> None:
    try:
        port_of(text, lowest=1)
    except ValueError as error:  # it may be a password, where the host was forgotten
        raise ValueError(f"must have a port from 1 to 65535 behind the host: {_FORMS}") from error


def _check_user(text: str) -> None:
    if text and not text.partition(":")[2]:
        raise ValueError(
            "must have a password behind the user: redis://USER:PASSWORD@HOST, "
            "or redis://:PASSWORD@HOST for the default user"
        )
    if "@" in text:
        raise ValueError("must have one @: in a password it is written %40")


def _check_query(query: str, scheme: str, in_path: str) -> None:
    known = ("db", *(_TLS_OPTIONS if scheme == "rediss" else ()))
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise ValueError("must have a query of the form ?NAME=VALUE&NAME=VALUE, or none") from error
    given: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            hint = did_you_mean(name, known) or f"; there may be {', '.join(known)}"
            tls = name in _TLS_OPTIONS and "; TLS is had by rediss://"
            raise ValueError(f"must have no {shown(name)} in its query{tls or hint}")
        if name in given:
            raise ValueError(f"must have {name} once in its query")
        if not value:
            raise ValueError(f"must have a value for {name} in its query")
        if name == "ssl_cert_reqs" and value not in _CERTIFICATES:
            raise ValueError(f"must have ssl_cert_reqs={' or '.join(_CERTIFICATES)} in its query")
        given[name] = value
    if in_path:
        _check_database(in_path)
    if "db" in given:
        if in_path:
            raise ValueError("must name its database once: in the path, or by ?db=")
        _check_database(given["db"])


def _check_database(text: str) -> None:
    if not (text.isascii() and text.isdigit() and len(text) <= _DATABASE_DIGITS):
        raise ValueError(f"must have the number of a database, from 0 on, not {shown(text)}")
