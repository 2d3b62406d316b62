"""Which of libcurl's descriptors can be served: its words for that, and epoll's."""

import select
from collections.abc import Mapping
from contextlib import suppress

import pycurl

EVENTS_A_TURN = 256
"""Descriptors served in one turn of the loop; the rest wait for the next."""

EPOLL = {
    pycurl.POLL_NONE: 0,
    pycurl.POLL_IN: select.EPOLLIN,
    pycurl.POLL_OUT: select.EPOLLOUT,
    pycurl.POLL_INOUT: select.EPOLLIN | select.EPOLLOUT,
}
_ACTION = {
    select.EPOLLIN: pycurl.CSELECT_IN,
    select.EPOLLOUT: pycurl.CSELECT_OUT,
    select.EPOLLIN | select.EPOLLOUT: pycurl.CSELECT_IN | pycurl.CSELECT_OUT,
}


def ready_of(epoll: select.epoll, wanted: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return what libcurl is to be told: descriptors, and what each is ready for.

    `wanted` has, by descriptor, what libcurl waits for; 0 is an idle connection.
    """
    ready = []
    for fd, seen in epoll.poll(0, EVENTS_A_TURN):
        event = wanted.get(fd)
        if event:
            # EPOLLERR and EPOLLHUP: libcurl finds out by reading or writing.
            ready.append((fd, _ACTION.get(seen, event)))
        else:
            # The engine closed an idle connection. libcurl sees that before it reuses one.
            with suppress(OSError):
                epoll.unregister(fd)
    return ready
