"""Which of libcurl's descriptors can be served: its words for that, and epoll's."""

import select
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic

import pycurl

EVENTS_A_TURN = 256
"""Descriptors served in one turn of the loop; the rest wait for the next."""

EPOLL = {
    pycurl.POLL_NONE: 0,
    pycurl.POLL_IN: select.EPOLLIN,
    pycurl.POLL_OUT: select.EPOLLOUT,
    pycurl.POLL_INOUT: select.EPOLLIN | select.EPOLLOUT,
}
_IN = select.EPOLLIN
_ACTION = {
    select.EPOLLIN: pycurl.CSELECT_IN,
    select.EPOLLOUT: pycurl.CSELECT_OUT,
    select.EPOLLIN | select.EPOLLOUT: pycurl.CSELECT_IN | pycurl.CSELECT_OUT,
}


def serve_ready(
    epoll: select.epoll,
    wanted: Mapping[int, int],
    readers: Mapping[int, Callable[[float], bool]],
) -> list[tuple[int, int]]:
    """Let `readers` take what they can; return what libcurl is to be told of the rest.

    That is descriptors, and what each is ready for. `wanted` has, by descriptor, what libcurl waits
    for; 0 is an idle connection.
    """
    ready = []
    now_s = monotonic()
    for fd, seen in epoll.poll(0, EVENTS_A_TURN):
        take = readers.get(fd)
        if take is not None and seen == _IN and take(now_s):
            continue
        event = wanted.get(fd)
        if event:
            # EPOLLERR and EPOLLHUP: libcurl finds out by reading or writing.
            ready.append((fd, _ACTION.get(seen, event)))
        else:
            # The engine closed an idle connection. libcurl sees that before it reuses one.
            with suppress(OSError):
                epoll.unregister(fd)
    return ready
