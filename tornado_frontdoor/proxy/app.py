"""The composition root: builds everything, binds two listeners on one loop, takes it down again.

Nothing else makes an upstream, a surface or a listener. Signals: SIGTERM and SIGINT drain (a second
one ends at once), SIGHUP reads the configuration again; what cannot be read changes nothing.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from ssl import SSLContext
from time import time_ns
from typing import TYPE_CHECKING, Any

from tornado_frontdoor import __version__
from tornado_frontdoor.config import Address, ConfigError, Settings
from tornado_frontdoor.config.changes import changes
from tornado_frontdoor.core.decisions import EngineState, Reason
from tornado_frontdoor.proxy.admin.api import Admin
from tornado_frontdoor.proxy.admin.events import EventHub
from tornado_frontdoor.proxy.admin.history import History
from tornado_frontdoor.proxy.admin.view import View
from tornado_frontdoor.proxy.dialects import key_ring, make_surfaces
from tornado_frontdoor.proxy.downstream.body_store import BodyStore
from tornado_frontdoor.proxy.downstream.browsers import HostRule
from tornado_frontdoor.proxy.downstream.disconnects import DisconnectWatcher
from tornado_frontdoor.proxy.downstream.limits import (
    ADMIN_CONNECTIONS,
    ConnectionLimits,
    body_files,
    connection_limits,
    raise_descriptor_limit,
)
from tornado_frontdoor.proxy.downstream.listener import Listener, Service
from tornado_frontdoor.proxy.downstream.server import Server, bind
from tornado_frontdoor.proxy.downstream.tls import CannotServeTls, load, make_context
from tornado_frontdoor.proxy.engine.journal import JournalError
from tornado_frontdoor.proxy.engine.model_lengths import ModelLengths
from tornado_frontdoor.proxy.handover.succession import Parts, Succession
from tornado_frontdoor.proxy.logs import LineSink, LogWriter
from tornado_frontdoor.proxy.registry import UpstreamRegistry
from tornado_frontdoor.proxy.routing import FrontDoor
from tornado_frontdoor.proxy.service_manager import ServiceManager
from tornado_frontdoor.proxy.signals import Signals
from tornado_frontdoor.proxy.telemetry import Telemetry
from tornado_frontdoor.surfaces.openai import OpenAISurface

if TYPE_CHECKING:
    from tornado_frontdoor.proxy.handover.taken import Predecessor
    from tornado_frontdoor.proxy.tracing import Tracing

LOG = logging.getLogger("frontdoor")

STATE_NAMES = tuple(state.value for state in EngineState)


class App:
    """A running front door. `start`, then `run` until a signal or `stop`."""

    def __init__(
        self,
        settings: Settings,
        read_again: Callable[[], Settings],
        access_log: LineSink,
        predecessor: "Predecessor | None" = None,
    ) -> None:
        self._predecessor = predecessor
        self.settings = self._started_with = settings
        self._read_again = read_again
        self.pool = UpstreamRegistry(Random())  # noqa: S311 - spreads retries, keeps no secret
        self._log = access_log
        self._departures = DisconnectWatcher()
        self._telemetry = Telemetry(access_log, self.pool.readings, STATE_NAMES, __version__)
        surfaces = make_surfaces(settings)
        self._dialects = [surface.name for surface in surfaces]
        started_s = time_ns() // 1_000_000_000
        self.door = FrontDoor(surfaces, OpenAISurface(), self._telemetry, started_s)
        self.admin = Admin(self._telemetry, settings.server.read_admin_token(), self.reread)
        self.admin.ledger = lambda: self.pool.ledger
        self._manager = ServiceManager()
        self._servers: list[Server] = []
        self._descriptors = raise_descriptor_limit()
        self._bodies = BodyStore(settings.server.state_dir, body_files(self._descriptors))
        self._history = History(settings.server.state_dir, self.pool.load)
        self._view = View(
            self.admin.engines,
            self.admin.together,
            lambda: self.door.under_way,
            self.admin.uptime_s,
            self._history,
            access_log,
        )
        self.admin.hub = self._hub = EventHub(self._view)
        self._telemetry.observers += [
            *(self._history.heard, self.admin.what_if.heard, self._hub.happened)
        ]
        self._telemetry.tracing = self._tracing = _tracing_of(settings)
        self._signals: Signals | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._give_up_s = 0.0
        self._listeners: list[Listener] = []
        self._lengths = ModelLengths(self.pool.client, self._show_models)
        files = settings.server.tls_files
        self._tls = make_context(*files) if files else None
        self._put_in_force(settings)
        if predecessor is not None:
            predecessor.take(self.pool.current.values())
        self._telemetry.reloaded(went_well=True)
        parts = Parts(
            *(self.door, self.pool, self._manager, self._servers, self._listeners),
            before=self._close_files,
        )
        self.succession = Succession(settings, parts, predecessor)

    # Up

    def start(self) -> tuple[Address, Address]:
        """Bind both listeners; returns their addresses. Raises CannotBind."""
        server = self.settings.server
        if not server.listen.loopback and not self.settings.keys:
            LOG.warning(
                "THE PUBLIC LISTENER %s IS OPEN TO THE NETWORK and asks for no key: "
                "whoever reaches it uses your engines",
                server.listen,
            )
        limits = connection_limits(self.settings, self._descriptors)
        public = self._listen("public", server.listen, self.door, limits, self._bodies, self._tls)
        for_admin = limits._replace(max_connections=ADMIN_CONNECTIONS)
        bodies = BodyStore(server.state_dir, 0)
        admin = self._listen("admin", server.admin_listen, self.admin, for_admin, bodies)
        if limits.max_connections < server.max_connections:
            LOG.info(
                "%d connections rather than server.max_connections (%d): "
                "the limit of open files is %d",
                *(limits.max_connections, server.max_connections, self._descriptors),
            )
        self.pool.preload()
        self.succession.listen()
        return public, admin

    def heed_signals(self) -> None:
        """Be told by signals from now on; without it each but SIGINT would end the process."""
        self._signals = Signals(
            {
                signal.SIGTERM: self.stop,
                signal.SIGINT: self.stop,
                signal.SIGHUP: self.reread,
                signal.SIGUSR2: self.succession.spawn,
            }
        )

    async def run(self) -> None:
        """Serve until told to stop, then drain and close; signals change nothing from then on."""
        self._manager.ready(self._status())
        try:
            if await self.succession.until(self._stop):
                await self.succession.finish(self._stop)
            else:
                self.succession.call_off()
                await self._be_lame()
            self._manager.stopping("draining")
            await self.drain()
        finally:
            if self._signals is not None:
                self._signals.ignore()
            await self.close()

    def stop(self) -> None:
        """Begin to drain; asked twice, end at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def reread(self) -> tuple[bool, list[str]]:
        """Read the configuration again and put it in force; counts and lines are kept.

        Returns whether that went well, and what there is to say of it, which is logged too.
        """
        if isinstance(self._log, LogWriter):
            self._log.reopen()
        if self.door.draining or self.succession.given:
            # A new upstream would not know of it and admit.
            return False, ["the front door is draining: the configuration in force is unchanged"]
        before = self.settings
        self._manager.reloading()
        good = False
        try:
            good, said = self._reread()
        finally:  # whatever goes wrong: it serves as before
            self._telemetry.reloaded(went_well=good)
            self._manager.ready(self._status())
        for line in said:
            LOG.log(logging.WARNING if good else logging.ERROR, "%s", line)
        if good:
            what = ", ".join(changes(before, self.settings)) or "nothing has changed"
            LOG.info("the configuration was read again: %s: %s", self.settings.path, what)
        return good, said

    def _reread(self) -> tuple[bool, list[str]]:
        try:
            settings = self._read_again()
        except ConfigError as error:
            return False, [*str(error).splitlines(), "the configuration in force is unchanged"]
        old = self._started_with
        fixed = ("listen", "admin_listen", "admin_token_file", "state_dir")
        said = [
            f"server.{key} changes with the next start"
            for key in fixed
            if getattr(settings.server, key) != getattr(old.server, key)
        ]
        if bool(settings.server.tls_files) != bool(old.server.tls_files):
            said.append("server.tls_cert comes or goes with the next start")
        if settings.otel != old.otel:
            said.append("otel changes with the next start")
        if settings.surfaces != old.surfaces:
            said.append("surfaces change with the next start")
        try:
            said += self._put_in_force(settings)
            if self._tls is not None and settings.server.tls_files:
                load(self._tls, *settings.server.tls_files)
        except JournalError as error:
            return False, [str(error)]
        except CannotServeTls as error:
            said.append(f"{error}; the certificate in force stays")
        return True, said

    # Down

    async def _be_lame(self) -> None:
        """Serve for `lame_duck_s` more, and say that load balancers are to look elsewhere."""
        lame_duck_s = self.settings.server.lame_duck_s
        if not lame_duck_s or self.succession.failed:
            return
        self._manager.stopping("telling load balancers")
        LOG.info("going away in %g s: /health is 503 from now on", lame_duck_s)
        self.door.lame = self._listeners[0].place.last = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), lame_duck_s)

    async def drain(self) -> None:
        """Accept no more, refuse the queues, let those in flight end for `drain_timeout_s`."""
        loop = asyncio.get_running_loop()
        self._give_up_s = loop.time() + self.settings.server.drain_timeout_s
        self.door.draining = True
        LOG.info(
            "draining: %d requests under way have %g s to end",
            len(self.door.under_way),
            self.settings.server.drain_timeout_s,
        )
        for server in self._servers[:1]:
            server.stop()
        if self._manager.holds_sockets:
            self._listeners[0].let_go()
        for upstream in self.pool.everyone():
            upstream.drain()
        if not self.succession.given:
            self.pool.hand_over()
        if self.pool.cluster is not None:
            self.pool.cluster.door.leave()
        if self.door.under_way or self.door.being_read:
            await self._wait_for(self.door.empty.wait())
        for request in list(self.door.under_way):
            request.abandon(Reason.DRAINING, "The front door is shutting down")
        if unsent := set().union(*(listener.place.unsent for listener in self._listeners)):
            await self._wait_for(asyncio.wait(unsent))

    async def close(self) -> None:
        """Close every socket."""
        self._manager.close()
        self._close_files()
        for server in self._servers:
            server.stop()
            await server.close_all_connections()
        for listener in self._listeners:
            listener.close()
        await self.succession.close()
        await self._lengths.close()
        self.door.close()
        await self.pool.close()
        self._departures.close()
        if self._tracing is not None:
            await self._tracing.close()

    # How

    def _close_files(self) -> None:
        """Show and keep no more of what happens."""
        self._hub.close()
        self.admin.what_if.close()
        self._history.close()

    async def _wait_for(self, something: Coroutine[Any, Any, object]) -> None:
        """Wait for it, but not past the drain timeout nor past a second signal."""
        loop = asyncio.get_running_loop()
        tasks = {loop.create_task(something), loop.create_task(self._hurry.wait())}
        left_s = max(0.0, self._give_up_s - loop.time())
        await asyncio.wait(tasks, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _listen(
        self,
        name: str,
        address: Address,
        service: Service,
        limits: ConnectionLimits,
        bodies: BodyStore,
        tls: SSLContext | None = None,
    ) -> Address:
        handed = self._manager.sockets(name)
        if self._predecessor is not None and (sent := self._predecessor.sockets(name, address)):
            handed = sent
            self._manager.holds_sockets |= self._predecessor.sockets_held
        sockets = handed or bind(name, address)
        listener = Listener(service, self._departures, limits, bodies)
        self._listeners.append(listener)
        server = Server(name, listener, tls)
        for sock in sockets:
            server.add_socket(sock)
        self._servers.append(server)
        host, port = sockets[0].getsockname()[:2]
        return Address(host if handed else address.host, port)

    def _put_in_force(self, settings: Settings) -> list[str]:
        """Returns what of it has to wait for the next start."""
        notes = self.pool.apply(settings, self._telemetry)
        sleeping = {key: upstream.sleep is not None for key, upstream in settings.upstreams.items()}
        self._telemetry.know(self._dialects, sleeping, settings.keys)
        self.settings = self._view.settings = settings
        untold = {m.upstream for m in settings.models.values() if m.dialect.max_model_len is None}
        urls = {key: settings.upstreams[key].url for key in sorted(untold)}
        keys = {urls[key]: self.pool.current[key].api_key for key in urls}
        self._lengths.watch(urls, {url: key for url, key in keys.items() if key is not None})
        self._show_models()
        for service in (self.door, self.admin):
            service.upstreams = self.pool.current
        if self.pool.cluster is not None:
            self.admin.cluster = self.pool.cluster.status
            self.door.is_cut_off = self.pool.cluster.is_cut_off
        server = settings.server
        self.admin.guard.hosts = HostRule(
            self._started_with.server.admin_listen, server.admin_hosts
        )
        self.door.cross_site_posts = server.cross_site_posts
        self.door.progress = server.progress
        self.door.cors_origins = server.cors_origins
        self.door.keys = key_ring(settings)
        self.door.max_body_bytes = settings.server.max_body_bytes
        self.door.write_stall_timeout_s = settings.server.write_stall_timeout_s
        self.door.trusted_proxies = settings.server.trusted_proxies
        self._bodies.change(server)
        limits = connection_limits(settings, self._descriptors)
        for listener in self._listeners:
            most = limits.max_connections if listener is self._listeners[0] else ADMIN_CONNECTIONS
            listener.limits = limits._replace(max_connections=most)
            listener.place.stall_timeout_s = listener.service.write_stall_timeout_s
        return notes

    def _status(self) -> str:
        return f"serving {len(self.settings.upstreams)} upstreams by {self.settings.path}"

    def _show_models(self) -> None:
        """Have the models known under their names, with what was learned of them."""
        self.door.catalog = self.admin.catalog = self.settings.catalog(self._lengths.known)


def _tracing_of(settings: Settings) -> "Tracing | None":
    """Return who sends spans; without that nothing of OpenTelemetry is needed, nor loaded."""
    if settings.otel is None:
        return None
    from tornado_frontdoor.proxy.tracing import Tracing

    return Tracing(settings.otel, __version__)
