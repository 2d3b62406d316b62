"""Whether a front door could meet others at a Redis: tried, with no trace left of it."""

from typing import NamedTuple
from urllib.parse import urlsplit

from redis.exceptions import RedisError

from tornado_frontdoor.config import Settings
from tornado_frontdoor.config.redis_url import shown_redis_url
from tornado_frontdoor.core.printable import printable
from tornado_frontdoor.proxy.cluster.agreement import limits_in
from tornado_frontdoor.proxy.cluster.joining import what_differs
from tornado_frontdoor.proxy.cluster.redis_bus import RedisBus

LEAST_PATIENCE_S = 2.0
LEAST_MAJOR = 7

_HINTS = {
    "authentication required": "it wants a password: redis://:PASSWORD@HOST",
    "invalid username-password": "it refuses this user or password",
    "without any password configured": "its default user has no password: write none",
    "db index is out of range": "it has no database of that number: its `databases` says how many",
    "certificate verify failed": "its certificate is not trusted here, or is another host's: "
    "?ssl_ca_certs=FILE names whose word is taken for it",
    "wrong_version_number": "it does not speak TLS there: redis:// rather than rediss://",
    "connection reset": "it breaks the connection off: is it a Redis, and without TLS (rediss://)?",
    "closed by server": "it breaks the connection off: is it a Redis, and without TLS (rediss://)?",
    "protocol error": "what listens there is no Redis",
    "connect call failed": "nobody listens there",
    "connection refused": "nobody listens there",
    "not known": "its host is not known",
    "name resolution": "its host is not known",
    "read only replica": "it is a replica: name its primary",
    "no permissions": "its user may not do what front doors do: all commands on {frontdoor}:*, "
    "and INFO, CLIENT and EVAL",
}


class RedisTried(NamedTuple):
    """What came of it."""

    seen: str
    """What answered; empty: nothing did."""
    mistakes: list[str]


async def try_redis(settings: Settings) -> RedisTried:
    """Do what a front door does to join its cluster, but for joining."""
    assert settings.cluster is not None
    url = settings.cluster.redis
    patience_s = max(settings.cluster.lease_s, LEAST_PATIENCE_S)
    here = limits_in(settings)
    bus = RedisBus(url, "probe", patience_s, here)
    try:
        server = await bus.prove()
        theirs, doors = await bus.kept(), await bus.lifelines()
    except (RedisError, OSError) as error:
        return RedisTried("", [f"{shown_redis_url(url)}: {_why(error, url, patience_s)}"])
    finally:
        await bus.close()
    mistakes = []
    major = server.version.partition(".")[0]
    if server.name == "redis" and major.isdigit() and int(major) < LEAST_MAJOR:
        mistakes.append(f"is Redis {server.version}, and front doors need {LEAST_MAJOR} or Valkey")
    if theirs.fingerprint not in ("", here.fingerprint):
        mistakes.append(
            "the front doors that are there have other limits, so that one with this file would "
            f"not join: {what_differs(theirs, here)}"
        )
    there = f"{len(doors)} front door{'' if len(doors) == 1 else 's'} there"
    return RedisTried(f"{server.name} {server.version}; {there}", mistakes)


def _why(error: Exception, url: str, patience_s: float) -> str:
    told = str(error)
    if "timeout" in told.lower():
        tls = ": does it speak TLS there?" if url.startswith("rediss:") else ""
        return f"it does not answer within {patience_s:g} s{tls}"
    if "no such file" in told.lower():
        unix = urlsplit(url).scheme == "unix"
        return "there is no such socket" if unix else "a file that it names is not there (ssl_…)"
    hints = (hint for sign, hint in _HINTS.items() if sign in told.lower())
    return next(hints, printable(told))
