"""Calls to engines: streamed with back-pressure, abortable at any moment, cheap.

Tornado's curl client cannot abort (a cancelled fetch runs to its end at the engine), hides a queue
of its own, and sets forty options a request. This one keeps its multi handle and its bookkeeping
and replaces the rest:

- `start` adds the call to libcurl at once. There is no line here: admission is the gate's.
- Handles come from a free list that grows to the most calls ever in flight at one time.
- All time limits but the one for connecting are ours, on one timer for all transfers that looks at
  who was silent: libcurl's low-speed limit has a grain of whole seconds, counts our own pauses,
  and cannot change between the first byte and later ones.
- libcurl is never entered from its own callbacks: what comes up there waits until it returned.

What is private in Tornado and leaned on, each pinned in `test_upstream_privates.py`:
`initialize(max_clients)` makes `_multi` and installs `_handle_socket` and `_set_timeout` on it;
`_curl_create` makes each handle; `_curls` are all handles ever made, closed with the multi by
`close`; `_free_list` are the idle ones; `_fds` are the watched descriptors; `_timeout` is ended by
`close`. `_handle_events`, `_handle_timeout`, `_finish_pending_requests`, `_finish` and
`_process_queue` are called by nothing but each other and the two installed callbacks.
"""

import asyncio
import logging
import select
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any, NoReturn, Self, cast

import pycurl
from tornado.curl_httpclient import CurlAsyncHTTPClient
from tornado.ioloop import IOLoop
from tornado.platform.asyncio import BaseAsyncIOLoop

from tornado_frontdoor.config.engine_tls import TlsFiles
from tornado_frontdoor.proxy.curl.chunk_reader import ChunkReader, ChunkReaders
from tornado_frontdoor.proxy.curl.handle import Handle, end_of, tls_for, unsent
from tornado_frontdoor.proxy.curl.handle import silence_of as _silence_of
from tornado_frontdoor.proxy.curl.readiness import EPOLL, serve_ready
from tornado_frontdoor.proxy.curl.transfer import (
    Collector,
    Receiver,
    Transfer,
    TransferEnd,
    UpstreamAnswer,
    UpstreamCall,
    UpstreamFailed,
)

__all__ = [
    "Receiver",
    "Transfer",
    "TransferEnd",
    "UpstreamAnswer",
    "UpstreamCall",
    "UpstreamClient",
    "UpstreamFailed",
]

_log = logging.getLogger(__name__)

IDLE_CONNECTIONS = 4096
"""Connections kept open for reuse; far above what gates let in, so that none is closed early."""
_BROKEN_OFF = (TransferEnd.ABORTED, TransferEnd.SILENT, TransferEnd.BROKEN)
_TIMER = [(pycurl.SOCKET_TIMEOUT, 0)]


class UpstreamClient(CurlAsyncHTTPClient):
    """Streams to and from engines. Lives on one loop; not thread-safe; never blocks."""

    def __new__(cls) -> Self:
        """Make a client of its own; Tornado would hand out one for each loop."""
        return cast(Self, super().__new__(cls, force_instance=True))

    def initialize(self) -> None:  # type: ignore[override]
        """Set up without any handle; they come with the calls."""
        io_loop = IOLoop.current()
        assert isinstance(io_loop, BaseAsyncIOLoop)
        self._loop = io_loop.asyncio_loop
        self._active: dict[Any, Transfer] = {}
        self._deferred: list[tuple[Callable[[Transfer], None], Transfer]] = []
        self._deferred_due = False
        self._inside = False  # libcurl is on the stack
        self._closed = False
        self._tls: dict[str, TlsFiles] = {}
        self._kick_due = False
        self._curl_due_s = self._armed_s = inf
        self._curl_timer: asyncio.TimerHandle | None = None
        self._silence_due_s = inf
        self._silence_timer: asyncio.TimerHandle | None = None
        self._epoll = select.epoll()
        self._loop.add_reader(self._epoll.fileno(), self._on_ready)
        super().initialize(max_clients=0)
        self._readers = ChunkReaders(self._fds)
        self._multi.setopt(pycurl.M_MAXCONNECTS, IDLE_CONNECTIONS)
        self._multi.setopt(pycurl.M_MAX_TOTAL_CONNECTIONS, 0)  # no limit: that would be a queue
        self._multi.setopt(pycurl.M_MAX_HOST_CONNECTIONS, 0)

    def trust(self, tls: Mapping[str, TlsFiles]) -> None:
        """Meet engines, by their addresses, with these certificates from the next call on."""
        self._tls = dict(tls)

    @property
    def under_way(self) -> Collection[Transfer]:
        """Transfers that have not ended."""
        return self._active.values()

    def start(self, call: UpstreamCall, receiver: Receiver) -> Transfer:
        """Send `call`; nothing of the answer, no end either, comes before this has returned."""
        transfer = Transfer(self, call, receiver)
        if self._closed:
            self._loop.call_soon(transfer.finish, TransferEnd.ABORTED, "the client is closed")
            return transfer
        handle = self._free_list.pop() if self._free_list else self._grow()
        if self._tls or handle.tls is not None:
            handle = self._shown(handle, call.url)
        try:
            handle.prepare(call)
        except (pycurl.error, ValueError, TypeError, OverflowError) as error:
            self._free_list.append(handle)
            self._loop.call_soon(transfer.finish, unsent(error), str(error))
            return transfer
        transfer.handle, handle.transfer = handle, transfer
        curl = handle.curl
        self._active[curl] = transfer
        if self._inside:
            self._deferred.append((self._add, transfer))
        else:
            self._multi.add_handle(curl)
        self.watch_silence(transfer)
        return transfer

    async def ask(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        body: bytes = b"",
        headers: Iterable[tuple[str, str]] = (),
        limit_bytes: int = 1 << 20,
    ) -> UpstreamAnswer:
        """Make a small control call and return the whole answer, whatever its status.

        `timeout_s` is the total. Raises UpstreamFailed; CONNECT_FAILED among others when not even
        the connection stood in time. Cancelling the awaiting task aborts the call.
        """
        settled: asyncio.Future[UpstreamAnswer | UpstreamFailed] = self._loop.create_future()

        def settle(result: UpstreamAnswer | UpstreamFailed) -> None:
            if not settled.done():
                settled.set_result(result)

        call = UpstreamCall(url, timeout_s, timeout_s, timeout_s, method, body, list(headers))
        transfer = self.start(call, Collector(settle, limit_bytes))
        try:
            async with asyncio.timeout(timeout_s):
                result = await settled
        except TimeoutError:
            raise UpstreamFailed(*_silence_of(transfer, timeout_s)) from None
        finally:
            transfer.abort()
        if isinstance(result, UpstreamFailed):
            raise result
        return result

    def close(self) -> None:
        """Abort everything and close all connections. Idempotent."""
        if self._inside:
            self._loop.call_soon(self.close)
            return
        if self._closed:
            return
        self._closed = True
        for transfer in list(self._active.values()):
            self._end(transfer, TransferEnd.ABORTED, "the client is closed")
        for timer in (self._curl_timer, self._silence_timer):
            if timer is not None:
                timer.cancel()
        super().close()
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def fetch_impl(self, request: object, callback: object) -> NoReturn:
        """Refuse: the handles are not prepared for Tornado's own requests."""
        raise NotImplementedError("UpstreamClient has start() and ask(), not fetch()")

    # --- what transfers ask for ---

    def abort_transfer(self, transfer: Transfer) -> None:
        """End as ABORTED: now, or right after libcurl returns when it is on the stack."""
        if self._inside:
            transfer.doom()
            self._deferred.append((self._abort, transfer))
        else:
            self._abort(transfer)

    def resume_transfer(self, transfer: Transfer) -> None:
        """Unpause on the next turn, never in the caller's stack: libcurl calls `on_data` there."""
        self._deferred.append((self._unpause, transfer))
        if not self._inside and not self._deferred_due:
            self._deferred_due = True
            self._loop.call_soon(self._run_deferred)

    def listen(self, transfer: Transfer) -> None:
        """Have libcurl tell what it reads of the answer, once it has sent the request."""
        self._deferred.append((self._readers.listen, transfer))

    def read_chunks(self, transfer: Transfer) -> None:
        """Read whole chunks of the answer past libcurl, once it has returned."""
        transfer.reader = ChunkReader(transfer, self._readers)
        self._deferred.append((self._readers.attach, transfer))

    def watch_silence(self, transfer: Transfer) -> None:
        """Make sure that the timer fires no later than `transfer`'s silence limit."""
        due_s = transfer.heard_s + transfer.silence_s
        if due_s < self._silence_due_s:
            self._silence_due_s = due_s
            if self._silence_timer is not None:
                self._silence_timer.cancel()
            self._silence_timer = self._loop.call_later(due_s - monotonic(), self._end_silent)

    # --- handles ---

    def _curl_create(self) -> Any:
        return Handle()

    def _grow(self) -> Handle:
        handle: Handle = self._curl_create()
        self._curls.append(handle)
        return handle

    def _shown(self, handle: Handle, url: str) -> Handle:
        """Return a handle with the certificates for `url`: this one, or one in its place."""
        wanted = tls_for(url, self._tls)
        if handle.tls not in (None, wanted):
            self._curls.remove(handle)
            handle.close()
            handle = self._grow()
        handle.show(wanted)
        return handle

    def _add(self, transfer: Transfer) -> None:
        if transfer.handle is not None:
            self._multi.add_handle(transfer.handle.curl)

    def _abort(self, transfer: Transfer) -> None:
        self._end(transfer, TransferEnd.ABORTED, "")

    def _unpause(self, transfer: Transfer) -> None:
        if transfer.handle is None:
            return
        failure: tuple[int, str] | None = None
        self._inside = True
        try:
            transfer.handle.curl.pause(pycurl.PAUSE_CONT)
        except pycurl.error as error:
            failure = error.args
        finally:
            self._inside = False
        if failure is not None:
            self._end(transfer, *end_of(transfer, *failure))

    def _run_deferred(self) -> None:
        self._deferred_due = False
        while self._deferred:
            work, self._deferred = self._deferred, []
            for action, transfer in work:
                action(transfer)

    def _end(self, transfer: Transfer, end: TransferEnd, detail: str) -> None:
        handle = transfer.handle
        if handle is not None:
            transfer.handle = None
            curl = handle.curl
            del self._active[curl]
            if transfer.streams:
                self._readers.detach(transfer)
            if end in _BROKEN_OFF and not self._closed:
                self._linger(transfer, curl)
            # An unfinished transfer takes its connection with it: the engine sees the close.
            self._multi.remove_handle(curl)
            handle.release()
            self._free_list.append(handle)
        transfer.finish(end, detail)

    def _linger(self, transfer: Transfer, curl: Any) -> None:
        """Keep the connection, so that it can be seen when the engine lets go of the call."""
        if (lingering := transfer.linger()) is None:
            return
        fd = curl.getinfo(pycurl.ACTIVESOCKET)
        lingering.follow(fd, let_go=transfer.let_go)
        # The duplicate would keep libcurl's registration alive after its descriptor is closed.
        with suppress(OSError, ValueError):
            self._epoll.unregister(fd)

    def _finish_pending_requests(self) -> None:
        queued = 1
        while queued:
            queued, done, failed = self._multi.info_read()
            ended = [(self._active[curl], None, "") for curl in done]
            if failed:
                ended += [(self._active[curl], error, text) for curl, error, text in failed]
            # Transfers, not handles: the end of one may abort the next, for which `_end` then does
            # nothing, and start another on its handle.
            for transfer, error, text in ended:
                self._end(transfer, *end_of(transfer, error, text))

    # --- silence ---

    def _end_silent(self) -> None:
        self._silence_timer = None
        self._silence_due_s = inf
        now_s = monotonic()
        for transfer in list(self._active.values()):
            if transfer.paused:
                transfer.heard_s = now_s  # it is we who do not listen
            if transfer.heard_s + transfer.silence_s > now_s:
                self.watch_silence(transfer)
            elif transfer.handle is not None:
                self._end(transfer, *_silence_of(transfer, transfer.silence_s))

    # --- libcurl and the loop ---

    def _drive(self, events: list[tuple[int, int]]) -> None:
        """Let libcurl work on descriptors (or its timer), then do what waited for its return."""
        socket_action = self._multi.socket_action
        running = -1
        self._inside = True
        try:
            for fd, action in events:
                running = socket_action(fd, action)[1]
        except pycurl.error:
            _log.exception("libcurl failed on a descriptor")
        finally:
            self._inside = False
        # Looked at before the deferred work: an abort there would hide an end elsewhere.
        some_ended = running != len(self._active)
        if self._deferred:
            self._run_deferred()
        if some_ended:
            self._finish_pending_requests()

    def _on_ready(self) -> None:
        if ready := serve_ready(self._epoll, self._fds, self._readers):
            self._drive(ready)

    def _handle_socket(self, event: int, fd: int, _multi: object, _data: object) -> None:
        if event == pycurl.POLL_REMOVE:
            # Usually the connection goes idle and is back with the next call: stay registered,
            # which saves two system calls a request. Closed ones leave the epoll by themselves.
            self._fds[fd] = 0
            return
        self._fds[fd] = event
        if event == pycurl.POLL_IN and fd in self._readers.sending:  # the request has left
            self.listen(self._readers.sending.pop(fd))
        # Whatever we believe, the number may stand for a new socket by now: so ask the kernel.
        try:
            self._epoll.modify(fd, EPOLL[event])
        except FileNotFoundError:
            self._epoll.register(fd, EPOLL[event])

    def _set_timeout(self, msecs: int) -> None:
        # libcurl changes its mind several times a request. "Now" is one callback for all calls
        # started in this turn; later instants leave an armed timer alone when it is early enough.
        if msecs == 0:
            if not self._kick_due:
                self._kick_due = True
                self._loop.call_soon(self._kick)
        elif msecs < 0:
            self._curl_due_s = inf
        else:
            due_s = self._curl_due_s = self._loop.time() + msecs / 1000
            if due_s < self._armed_s:
                self._arm(due_s)

    def _arm(self, due_s: float) -> None:
        if self._curl_timer is not None:
            self._curl_timer.cancel()
        self._armed_s = due_s
        self._curl_timer = self._loop.call_at(due_s, self._handle_timeout)

    def _kick(self) -> None:
        self._kick_due = False
        if not self._closed:
            self._drive(_TIMER)

    def _handle_timeout(self) -> None:
        self._curl_timer, self._armed_s = None, inf
        if self._curl_due_s > self._loop.time():
            if self._curl_due_s < inf:
                self._arm(self._curl_due_s)
            return
        self._curl_due_s = inf
        self._drive(_TIMER)
        # libcurl does not repeat an instant that it has told; had we come a hair too early by
        # its clock, it would never be driven again.
        if (left_ms := self._multi.timeout()) >= 0:
            self._set_timeout(left_ms)
