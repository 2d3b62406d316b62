"""What the connections of a listener may take, and how many descriptors there are to take."""

import logging
import resource
from typing import NamedTuple

from tornado_frontdoor.config import Settings

LOG = logging.getLogger("frontdoor")

ADMIN_CONNECTIONS = 64
ADMIN_BUFFERED_BYTES = 8 * 1024 * 1024
KEPT_DESCRIPTORS = 64 + ADMIN_CONNECTIONS
"""For the admin listener, the journal, the log, the loop, and calls that look after engines."""
FOR_A_REQUEST = 2
"""Descriptors of a request at an engine: its connection, and one that ends while it begins."""
MOST_BODY_FILES = 4096


class ConnectionLimits(NamedTuple):
    """The limits of one listener; the field's names are the settings'."""

    max_connections: int
    max_unfinished_per_address: int
    idle_timeout_s: float
    head_timeout_s: float
    body_timeout_s: float


def connection_limits(settings: Settings, descriptors: int) -> ConnectionLimits:
    """Return the limits of the public listener."""
    server = settings.server
    caps = [u.admission.cap if u.admission else None for u in settings.upstreams.values()]
    at_engines = None if None in caps else sum(cap or 0 for cap in caps)
    for_clients = descriptors - KEPT_DESCRIPTORS - body_files(descriptors)
    return ConnectionLimits(
        connections_within(for_clients, server.max_connections, at_engines),
        server.max_unfinished_per_address,
        server.idle_timeout_s,
        server.head_timeout_s,
        server.body_timeout_s,
    )


def body_files(descriptors: int) -> int:
    """Return how many descriptors may go to files with large bodies."""
    return min(MOST_BODY_FILES, descriptors // 16)


def raise_descriptor_limit() -> int:
    """Raise the process's soft limit of descriptors to its hard one; returns what is in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            LOG.warning("the limit of open files stays at %d of %d", soft, hard)
            return soft
    return hard


def connections_within(descriptors: int, most: int, at_engines: int | None) -> int:
    """Return how many clients' connections leave descriptors enough for their requests.

    `at_engines` is how many requests can be at engines at once; None where nothing bounds it: then
    a third of the descriptors is left to them.
    """
    if at_engines is None:
        at_engines = descriptors // (3 * FOR_A_REQUEST)
    return max(1, min(most, descriptors - FOR_A_REQUEST * at_engines))
