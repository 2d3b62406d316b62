"""Whether a front door may join its cluster: those that are there must keep the same limits."""

import logging

from redis.exceptions import RedisError

from tornado_frontdoor.config import Settings
from tornado_frontdoor.proxy.cluster.agreement import SharedLimits, differences, limits_in
from tornado_frontdoor.proxy.cluster.redis_bus import RedisBus
from tornado_frontdoor.proxy.upstreams import CannotJoin

LOG = logging.getLogger("frontdoor")


_HAS_TO_BE_THE_SAME = (
    "of each upstream url (or the first of replicas), replicas, admission, sleep, gpu, pick and "
    "cooling_limit_s; all groups; cluster.lease_s and on_outage"
)


def differs(theirs: SharedLimits, here: SharedLimits) -> CannotJoin:
    """Return what is said where the limits are not the same."""
    found = differences(theirs, here)
    return CannotJoin(
        "the limits of its upstreams differ from those of the front doors that are there: "
        f"{what_differs(theirs, here)}. Give all the same file, or reload theirs first"
        + ("" if found else f". What has to be the same: {_HAS_TO_BE_THE_SAME}")
    )


def what_differs(theirs: SharedLimits, here: SharedLimits) -> str:
    """Return what differs, or by which names it was seen to."""
    names = f"theirs are {theirs.fingerprint}, and {here.fingerprint} here"
    return "; ".join(differences(theirs, here)) or names


async def look_before(settings: Settings) -> None:
    """Look whether a front door with `settings` may join in the place of one that runs.

    It is asked before that one gives anything away, since afterwards nobody would serve. Where that
    one is alone, it takes its limits with it. Raises CannotJoin.
    """
    assert settings.cluster is not None
    here = limits_in(settings)
    bus = RedisBus(settings.cluster.redis, "next", settings.cluster.lease_s, here)
    try:
        theirs = await bus.kept()
        others = len(await bus.lifelines()) > 1
    except (RedisError, OSError) as error:
        LOG.info("cluster: Redis does not tell which limits hold: %s", error)
        return
    finally:
        await bus.close()
    if theirs.fingerprint not in ("", here.fingerprint) and others:
        raise differs(theirs, here)
