"""Large bodies are read in a thread, one after the other, while the loop goes on."""

import asyncio
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from msgspec.structs import replace

from tornado_frontdoor.core.catalog import Catalog
from tornado_frontdoor.proxy.downstream.body_store import ReceivedBody
from tornado_frontdoor.surfaces.base import DecodedRequest, Surface, SurfaceRequest


class LargeBodies:
    """One thread: what is in memory besides the bodies that wait is one of them."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "bodies")

    def read(
        self,
        surface: Surface,
        call: SurfaceRequest,
        received: ReceivedBody | None,
        catalog: Catalog,
    ) -> "asyncio.Future[DecodedRequest]":
        """Decode a call, whose body is `received` or, where that is None, in it."""
        loop = asyncio.get_running_loop()
        if received is None:
            return loop.run_in_executor(self._thread, _decode, surface, call, catalog)
        received.begin()
        reading = loop.run_in_executor(
            self._thread, _decode_received, surface, call, received, catalog
        )
        reading.add_done_callback(lambda _: received.end())
        return reading

    def close(self) -> None:
        """Read no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _decode(surface: Surface, call: SurfaceRequest, catalog: Catalog) -> DecodedRequest:
    with _no_collection():
        return surface.decode(call, catalog)


def _decode_received(
    surface: Surface, call: SurfaceRequest, received: ReceivedBody, catalog: Catalog
) -> DecodedRequest:
    """Decode a call; what its engine is sent goes to where the body was."""
    body = received.whole()
    decoded = _decode(surface, replace(call, body=body), catalog)
    sent = decoded.request.body
    assert isinstance(sent, bytes)
    kept = received.keep(sent, unchanged=sent is body)
    return replace(decoded, request=replace(decoded.request, body=kept))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from walking what a body holds: that stops every thread."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
