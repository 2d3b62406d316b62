"""The end of a front door that another process takes the place of: nobody is refused, nothing cut.

In this order: it accepts no more; its gates are given away with all who are in them; what is to be
on the disk is; the lock of the journal is let go; the listening sockets are handed over. Who comes
meanwhile waits in the kernel's queue, some milliseconds. Once the next one serves, this one goes on
with the connections that it has, closes each after its answer, and ends with the last of them.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tornado_frontdoor.config import Settings
from tornado_frontdoor.core.printable import printable
from tornado_frontdoor.proxy.downstream.listener import Listener
from tornado_frontdoor.proxy.downstream.server import Server
from tornado_frontdoor.proxy.handover.meeting import MeetingPoint, Petition, give, refuse
from tornado_frontdoor.proxy.registry import UpstreamRegistry
from tornado_frontdoor.proxy.routing import FrontDoor
from tornado_frontdoor.proxy.service_manager import ServiceManager

if TYPE_CHECKING:
    from tornado_frontdoor.proxy.handover.given import GivenGates
    from tornado_frontdoor.proxy.handover.taken import Predecessor

LOG = logging.getLogger("frontdoor")

GRACE_S = 5.0
"""How long connections without a request stay open: one that comes on them is served, too."""
LOOK_S = 0.05
TAKE_OVER = "--take-over"
CHILD_LOOK_S = 0.1
"""So often it is looked whether a process that was started to take over has ended instead."""


class Parts(NamedTuple):
    """What of a front door is given away, or ends with it."""

    door: FrontDoor
    pool: UpstreamRegistry
    manager: ServiceManager
    servers: Sequence[Server]
    """The public one first."""
    listeners: Sequence[Listener]
    before: Callable[[], None]
    """Ends what would write into the files of the next one."""


class Succession:
    """Who came before this front door, and who comes after it."""

    def __init__(self, started_with: Settings, parts: Parts, before: "Predecessor | None") -> None:
        self._started_with = started_with
        self._parts = parts
        self._before = before
        self._meeting = MeetingPoint(started_with.server.state_dir, self._asked)
        self._gates: GivenGates | None = None
        self._pid = 0
        self._started_pid = 0
        """Started to take over, and not seen to have done so, nor to have ended."""
        self._ends = False
        self._over = asyncio.Event()
        self.failed = False
        """Whether the next process ended before it served: then nobody does."""

    @property
    def given(self) -> bool:
        """Whether another process has this front door's place."""
        return self._gates is not None

    def listen(self) -> None:
        """Let another process ask for the place of this one; tell the one before that we serve."""
        if self._before is not None:
            self._before.begin()
        self._meeting.open(instead=self._before is not None)

    async def until(self, stop: asyncio.Event) -> bool:
        """Wait for the one or the other; tells whether another process serves instead."""
        loop = asyncio.get_running_loop()
        tasks = {loop.create_task(event.wait()) for event in (stop, self._over)}
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return self._over.is_set() and not self.failed

    async def finish(self, stop: asyncio.Event) -> None:
        """Go on with what is here until nothing is, or until told to `stop`."""
        door, (public, *_) = self._parts.door, self._parts.listeners
        LOG.info("process %d serves now: %d requests go on here", self._pid, len(door.under_way))
        loop = asyncio.get_running_loop()
        until_s = loop.time() + GRACE_S
        while public.connections or door.under_way or door.being_read:
            if stop.is_set():
                return
            if loop.time() >= until_s:
                public.close_idle()
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        """Listen no more."""
        self._meeting.close(given=self.given)
        for end in (self._before, self._gates):
            if end is not None:
                await end.close()

    def spawn(self) -> None:
        """Start the process that takes the place of this one: the same command once more."""
        why = self._why_not()
        if self._started_pid:
            why = why or f"process {self._started_pid} was started before, and has yet to take over"
        if why:
            LOG.warning("no process is started to take over: %s", why)
            return
        again = [] if TAKE_OVER in sys.orig_argv else [TAKE_OVER]
        argv = [sys.executable, *sys.orig_argv[1:], *again]
        # Meant for this process alone by the service manager.
        ours = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID")
        environment = {name: value for name, value in os.environ.items() if name not in ours}
        try:
            pid = os.posix_spawn(sys.executable, argv, environment)
        except OSError as error:
            LOG.error("cannot start the process that is to take over: %s", error)  # noqa: TRY400
            return
        LOG.info("process %d was started to take over", pid)
        self._started_pid = pid
        self._watch(pid)

    def call_off(self) -> None:
        """End with this process: who was started to take over and does not serve is ended, too."""
        self._ends = True
        if self._started_pid:
            LOG.info("process %d is told to end before it takes over", self._started_pid)
            with suppress(ProcessLookupError):
                os.kill(self._started_pid, signal.SIGTERM)
        elif self.given:
            LOG.info("process %d, which was started by another hand, takes over", self._pid)

    def _watch(self, pid: int) -> None:
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) != (0, 0):
                if not self._ends:
                    LOG.error("process %d did not take over: see what it printed", pid)
                self._started_pid = 0
                return
        if self._over.is_set():
            self._started_pid = 0
        else:
            asyncio.get_running_loop().call_later(CHILD_LOOK_S, self._watch, pid)

    # How

    async def _asked(self, asked: Petition) -> None:
        why = self._why_not()
        if why:
            LOG.warning("process %d asked to take over: %s", asked.pid, why)
            refuse(asked.connection, why)
            return
        LOG.info("handing over to process %d", asked.pid)
        # The words of front doors that share gates: loaded by who needs them, as few ever do.
        from tornado_frontdoor.proxy.handover.given import GivenGates

        self._pid = asked.pid
        parts = self._parts
        for server in parts.servers:
            server.hold()
        self._gates = GivenGates(self._serves, self._lost)
        cluster = parts.pool.cluster
        if cluster is None:
            held = [slot for request in parts.door.under_way if (slot := request.slot)]
            if self._before is not None:
                held += self._before.held()
            self._gates.take(held, parts.pool.everyone())
        else:
            self._gates.take((), ())  # the gates are the cluster's
            cluster.door.leave()
        parts.before()
        await parts.pool.let_go()
        public, admin = parts.servers
        own = self._started_with.server
        sockets = {
            f"public {own.listen}": public.sockets,
            f"admin {own.admin_listen}": admin.sockets,
        }
        try:
            give(asked.connection, sockets, held=parts.manager.holds_sockets)
        except OSError as error:
            asked.connection.close()
            LOG.error("handing over failed: %s", printable(str(error)))  # noqa: TRY400
            self._lost()
            return
        self._gates.begin(asked.connection)

    def _why_not(self) -> str:
        if self.given or self._ends or self._parts.door.draining:
            return "this front door is going away already"
        for key, upstream in self._parts.pool.current.items():
            process = upstream.settings.process
            if process is not None and process.command:
                return (
                    f"upstreams.{key}.process.command makes its engine a child of the front door: "
                    "use start and stop, or restart"
                )
        return ""

    def _serves(self) -> None:
        parts = self._parts
        parts.manager.succeeded_by(self._pid)
        for server in parts.servers:
            server.stop()
        for listener in parts.listeners:
            listener.place.last = True
        self._over.set()

    def _lost(self) -> None:
        if self._over.is_set():
            LOG.warning("process %d, which has taken over, has ended", self._pid)
            return
        if self._ends:  # with who was to take over, as it should be
            return
        LOG.error("process %d ended before it served: this front door ends, too", self._pid)
        self.failed = True
        self._over.set()
